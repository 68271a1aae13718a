# SPDX-License-Identifier: Apache-2.0
"""The classical matchers of OpenCV, with fixed settings, as a baseline beside the networks.

``bm`` is block matching; ``sgbm`` semi-global matching along three directions (Hirschmueller 2008, OpenCV's 3-way
variant); ``sgbm_hh`` along all eight, on images whose left side is padded so that the left border has an answer too.
Their holes are filled along the row as the KITTI development kit does, because networks answer everywhere.
"""

from __future__ import annotations

import numpy as np

from vision3d.errors import InputError, UnknownNameError
from vision3d.ops.semi_global import SPECKLE_PIXELS, SPECKLE_RANGE, match_all_directions, semi_global_matcher

BASELINES = ("bm", "sgbm", "sgbm_hh")
DEFAULT_SEARCH = 192


def search_range(pixels: float | None) -> int:
    """The number of disparities to try: ``pixels`` (192 if None) rounded up to a multiple of 16, as OpenCV needs it."""
    return max(16, int(np.ceil((pixels or DEFAULT_SEARCH) / 16)) * 16)


def match_baseline(name: str, left: np.ndarray, right: np.ndarray, max_disparity: float | None = None) -> np.ndarray:
    """Match a rectified pair with a classical matcher.

    Args:
        name: ``bm``, ``sgbm`` or ``sgbm_hh``.
        left, right: [H, W, 3] uint8 RGB.
        max_disparity: search range in pixels (192 if None), rounded up to a multiple of 16.

    Returns:
        [H, W] float32 disparity in pixels, every hole filled (0 everywhere if nothing was matched).

    Raises:
        UnknownNameError: another name.
        InputError: images of different sizes or not [H, W, 3] uint8.
    """
    from vision3d.geometry.disparity import fill_invalid

    if name not in BASELINES:
        raise UnknownNameError("baseline", name, BASELINES)
    if left.shape != right.shape or left.ndim != 3 or left.shape[2] != 3 or left.dtype != np.uint8:
        raise InputError(f"left and right must be uint8 [H, W, 3] of one size, got {left.shape} and {right.shape}")
    search = search_range(max_disparity)
    disparity = _matched(name, np.ascontiguousarray(left), np.ascontiguousarray(right), search)
    if np.isnan(disparity).all():
        return np.zeros_like(disparity)
    return np.asarray(fill_invalid(disparity), dtype=np.float32)


def _matched(name: str, left: np.ndarray, right: np.ndarray, search: int) -> np.ndarray:
    """[H, W] float32 disparity, NaN where the matcher has no answer."""
    import cv2

    if name == "sgbm_hh":
        return match_all_directions(left, right, search)
    if left.shape[1] <= search:
        return np.full(left.shape[:2], np.nan, dtype=np.float32)  # no column has the whole search range
    if name == "bm":
        matcher = _block_matcher(search)
        left, right = (cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in (left, right))
    else:
        matcher = semi_global_matcher(search, 5, cv2.STEREO_SGBM_MODE_SGBM_3WAY)
    fixed_point = matcher.compute(left, right).astype(np.float32)
    return np.where(fixed_point < 0, np.float32(np.nan), fixed_point / 16)


def _block_matcher(search: int):  # type: ignore[no-untyped-def]  # cv2.StereoBM
    import cv2

    matcher = cv2.StereoBM.create(numDisparities=search, blockSize=15)
    matcher.setPreFilterCap(31)
    matcher.setTextureThreshold(10)
    matcher.setUniquenessRatio(10)
    matcher.setSpeckleWindowSize(SPECKLE_PIXELS)
    matcher.setSpeckleRange(SPECKLE_RANGE)
    matcher.setDisp12MaxDiff(1)
    return matcher
