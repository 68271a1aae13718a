# SPDX-License-Identifier: Apache-2.0
"""The classical matchers of OpenCV, with fixed settings, as a baseline beside the networks.

``bm`` is block matching; ``sgbm`` semi-global matching along three directions (Hirschmueller 2008, OpenCV's 3-way
variant); ``sgbm_hh`` along all eight, on images whose left side is padded so that the left border has an answer too;
``sgbm_wls`` along three, padded alike, both views matched without checks and smoothed by the weighted-least-squares
filter of opencv-contrib (Min et al., TIP 2014; lambda 8000, sigma 1.5). Their holes are filled along the row as the
KITTI development kit does, because networks answer everywhere.
"""

from __future__ import annotations

import numpy as np

from vision3d.errors import ConfigError, InputError, UnknownNameError
from vision3d.ops.semi_global import (
    SPECKLE_PIXELS,
    SPECKLE_RANGE,
    match_all_directions,
    pad_left,
    semi_global_matcher,
)

BASELINES = ("bm", "sgbm", "sgbm_hh", "sgbm_wls")
DEFAULT_SEARCH = 192
_NO_CHECK = 1_000_000


def search_range(pixels: float | None) -> int:
    """The number of disparities to try: ``pixels`` (192 if None) rounded up to a multiple of 16, as OpenCV needs it."""
    return max(16, int(np.ceil((pixels or DEFAULT_SEARCH) / 16)) * 16)


def match_baseline(name: str, left: np.ndarray, right: np.ndarray, max_disparity: float | None = None) -> np.ndarray:
    """Match a rectified pair with a classical matcher.

    Args:
        name: ``bm``, ``sgbm``, ``sgbm_hh`` or ``sgbm_wls``.
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
    if name == "sgbm_wls":
        return _match_filtered(left, right, search)
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


def _match_filtered(left: np.ndarray, right: np.ndarray, search: int) -> np.ndarray:
    import cv2

    if not hasattr(cv2, "ximgproc"):
        raise ConfigError(
            "the baseline 'sgbm_wls' needs the filters of opencv-contrib: replace opencv-python-headless by "
            "opencv-contrib-python-headless of the same version"
        )
    padded = pad_left(left, search), pad_left(right, search)
    matcher = semi_global_matcher(search, 5, cv2.STEREO_SGBM_MODE_SGBM_3WAY)
    matcher.setDisp12MaxDiff(_NO_CHECK)  # the filter makes its own left-right check
    matcher.setUniquenessRatio(0)
    matcher.setSpeckleWindowSize(0)
    wls_filter = cv2.ximgproc.createDisparityWLSFilter(matcher)
    wls_filter.setLambda(8000)
    wls_filter.setSigmaColor(1.5)
    right_disparity = cv2.ximgproc.createRightMatcher(matcher).compute(padded[1], padded[0])
    filtered = wls_filter.filter(matcher.compute(*padded), padded[0], disparity_map_right=right_disparity)
    disparity = filtered[:, search:].astype(np.float32) / 16
    return np.where(disparity < 0, np.float32(np.nan), disparity)
