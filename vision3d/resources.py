# SPDX-License-Identifier: Apache-2.0
"""Where the published cards, weights and recipes lie: beside the code in a checkout, inside the package in a wheel."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def resource_folder(kind: str) -> Path:
    """Return the folder ``models``, ``datasets`` or ``configs`` of this installation."""
    package = Path(str(files("vision3d")))
    packaged = package / "_resources" / kind
    return packaged if packaged.is_dir() else package.parent / kind
