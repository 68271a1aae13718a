# SPDX-License-Identifier: Apache-2.0
"""Semi-global matching (Hirschmueller, TPAMI 2008), run by OpenCV on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vision3d.errors import InputError

if TYPE_CHECKING:
    import cv2

SPECKLE_PIXELS, SPECKLE_RANGE = 100, 2


def semi_global_matcher(search: int, block: int, mode: int) -> cv2.StereoSGBM:
    """OpenCV's matcher with this project's fixed settings; ``search`` is a multiple of 16, ``mode`` OpenCV's."""
    import cv2

    return cv2.StereoSGBM.create(
        minDisparity=0,
        numDisparities=search,
        blockSize=block,
        P1=24 * block**2,
        P2=96 * block**2,
        disp12MaxDiff=1,
        preFilterCap=63,
        uniquenessRatio=10,
        speckleWindowSize=SPECKLE_PIXELS,
        speckleRange=SPECKLE_RANGE,
        mode=mode,
    )


def pad_left(image: np.ndarray, search: int) -> np.ndarray:
    """[H, search + W, 3]: the first column repeated, so that all columns of the image have the whole search range."""
    import cv2

    return cv2.copyMakeBorder(image, 0, 0, search, 0, cv2.BORDER_REPLICATE)


def match_all_directions(left: np.ndarray, right: np.ndarray, search: int) -> np.ndarray:
    """Match along all eight directions, the left side padded so that the left border has an answer too.

    Args:
        left, right: [H, W, 3] uint8 of one size.
        search: number of disparities to try, a multiple of 16.

    Returns:
        [H, W] float32 pixels, multiples of 1/16; NaN where the left-right, uniqueness or speckle check fails.
    """
    import cv2

    if left.shape[1] < 2 or not left.size:
        return np.full(left.shape[:2], np.nan, dtype=np.float32)  # OpenCV refuses such images
    matcher = semi_global_matcher(search, 3, cv2.STEREO_SGBM_MODE_HH)
    fixed_point = matcher.compute(pad_left(left, search), pad_left(right, search))[:, search:].astype(np.float32)
    return np.where(fixed_point < 0, np.float32(np.nan), fixed_point / 16)


@torch.no_grad()
def semi_global_matching(left: Tensor, right: Tensor, max_disparity: int = 192) -> Tensor:
    """Disparity by semi-global matching along eight directions. No gradient; tensors of a GPU travel to the CPU.

    Args:
        left, right: [B, 3, H, W] RGB in [0, 1], rounded to 8 bit.
        max_disparity: search range in pixels, rounded up to a multiple of 16.

    Returns:
        [B, 1, H, W] float32 pixels on the device of ``left``, NaN where the matcher's own checks fail.

    Raises:
        InputError: shapes that differ or are not [B, 3, H, W], or a range below 1.
    """
    if left.shape != right.shape or left.ndim != 4 or left.shape[1] != 3:
        raise InputError(
            f"left and right must be [B, 3, H, W] of one size, got {tuple(left.shape)} and {tuple(right.shape)}"
        )
    if max_disparity < 1:
        raise InputError(f"max_disparity must be at least 1, got {max_disparity}")
    search = -(-max_disparity // 16) * 16
    views = [
        (view.detach().float().clamp(0, 1) * 255)
        .round()
        .to("cpu", torch.uint8)
        .permute(0, 2, 3, 1)
        .contiguous()
        .numpy()
        for view in (left, right)
    ]
    disparity = np.empty((left.shape[0], 1, *left.shape[2:]), dtype=np.float32)
    for number, (left_view, right_view) in enumerate(zip(*views, strict=True)):
        disparity[number, 0] = match_all_directions(left_view, right_view, search)
    return torch.from_numpy(disparity).to(left.device)
