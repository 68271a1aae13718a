# SPDX-License-Identifier: Apache-2.0
"""vision3d: a PyTorch model zoo for 3-D vision from ordinary cameras.

Example:
    >>> import vision3d  # doctest: +SKIP
    >>> result = vision3d.predict_stereo("left.png", "right.png", calibration="calib.txt")
    >>> result.save("out")
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public names and where they live. They are imported on first use, so that `import vision3d` costs little.
_PUBLIC = {
    "create_model": "vision3d.zoo",
    "list_models": "vision3d.zoo",
    "load_card": "vision3d.zoo",
    "predict_panorama": "vision3d.panorama",
    "PanoramaResult": "vision3d.panorama",
    "predict_stereo": "vision3d.pipelines",
    "predict_mvs": "vision3d.multiview.pipeline",
    "fit_radiance_field": "vision3d.radiance_field",
    "StereoResult": "vision3d.pipelines",
    "Camera": "vision3d.types",
    "StereoRig": "vision3d.types",
    "StereoOutput": "vision3d.types",
    "StereoSample": "vision3d.types",
    "PointCloud": "vision3d.types",
    "Vision3DError": "vision3d.errors",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'vision3d' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
