# SPDX-License-Identifier: Apache-2.0
"""The real pair with ground truth of the demo, which scikit-image ships."""

from __future__ import annotations

import numpy as np

from vision3d.errors import FileFormatError, MissingExtraError
from vision3d.types import Camera, StereoRig


def load_motorcycle() -> tuple[np.ndarray, np.ndarray, np.ndarray, StereoRig]:
    """The Middlebury 2014 motorcycle pair at quarter size: views uint8, true disparity with NaN, calibration.

    Raises:
        MissingExtraError: scikit-image or its loader is missing. FileFormatError: it has no such pair.
    """
    try:
        from skimage.data import stereo_motorcycle

        left, right, truth = stereo_motorcycle()
    except ImportError as error:
        raise MissingExtraError("scikit-image", "", "the demo pair", "pip install scikit-image pooch") from error
    except (OSError, ValueError) as error:
        raise FileFormatError(f"scikit-image has no demo pair ({error}): pip install -U scikit-image pooch") from error
    height, width = truth.shape
    cameras = [
        Camera(np.array([[994.978, 0, cx], [0, 994.978, 254.877], [0, 0, 1]]), width, height)
        for cx in (311.193, 342.279)
    ]
    truth = np.where(np.isfinite(truth), truth, np.nan).astype(np.float32)
    return left, right, truth, StereoRig(cameras[0], cameras[1], baseline=0.193001)
