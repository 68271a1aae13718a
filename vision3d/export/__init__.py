# SPDX-License-Identifier: Apache-2.0
"""Networks as files that run without this project's code: ONNX and torch.export programmes.

The graphs consist of standard operators alone. Each file carries a card (:class:`ExportCard`) with what a program needs
to feed it; ``load_exported`` turns a file into a module that ``predict_stereo`` and ``predict_panorama`` take.

Example:
    >>> from vision3d.export import export_onnx, load_exported  # doctest: +SKIP
    >>> export_onnx("covonet", "covonet.onnx")  # doctest: +SKIP
    >>> result = vision3d.predict_stereo("l.png", "r.png", load_exported("covonet.onnx"))  # doctest: +SKIP
"""

from vision3d.export.card import FORMAT_VERSION, ExportCard
from vision3d.export.check import Difference, check_export
from vision3d.export.files import export_onnx, export_torch, read_card
from vision3d.export.networks import load_network
from vision3d.export.runtime import load_exported

__all__ = [
    "FORMAT_VERSION",
    "Difference",
    "ExportCard",
    "check_export",
    "export_onnx",
    "export_torch",
    "load_exported",
    "load_network",
    "read_card",
]
