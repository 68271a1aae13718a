# SPDX-License-Identifier: Apache-2.0
"""Transforms of stereo samples. Both views are always cut alike; random ones draw from the generator they are given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vision3d.errors import InputError
from vision3d.types import StereoSample

_MAPS = ("left", "right", "disparity", "occlusion", "right_disparity", "normals", "foreground")
_LUMA = np.array([0.299, 0.587, 0.114])
_PCA_VALUES = np.array([0.2175, 0.0188, 0.0045])
_PCA_VECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])


def crop(sample: StereoSample, top: int, left: int, height: int, width: int) -> StereoSample:
    """Cut the same window out of every map of the sample. The calibration is dropped, since it no longer fits."""
    rows, columns = slice(top, top + height), slice(left, left + width)
    cut: dict[str, Any] = {}
    for name in _MAPS:
        value = getattr(sample, name)
        cut[name] = None if value is None else np.ascontiguousarray(value[rows, columns])
    return replace(sample, rig=None, **cut)


def random_crop(
    sample: StereoSample, height: int, width: int, generator: np.random.Generator, crop_top: float = 0.0
) -> StereoSample:
    """Cut a random window; its first row lies below the share ``crop_top`` of the free height.

    Raises:
        InputError: the sample is smaller than the window.
    """
    free_rows, free_columns = _free(sample, height, width)
    first = round(crop_top * free_rows)
    top = int(generator.integers(first, free_rows + 1))
    left = int(generator.integers(0, free_columns + 1))
    return crop(sample, top, left, height, width)


def center_crop(sample: StereoSample, height: int, width: int) -> StereoSample:
    """Cut the window from the centre.

    Raises:
        InputError: the sample is smaller than the window.
    """
    free_rows, free_columns = _free(sample, height, width)
    return crop(sample, free_rows // 2, free_columns // 2, height, width)


def _free(sample: StereoSample, height: int, width: int) -> tuple[int, int]:
    have_height, have_width = sample.left.shape[:2]
    if have_height < height or have_width < width:
        raise InputError(
            f"{sample.scene}: the pair of {have_width} x {have_height} is smaller than the crop {width} x {height}: "
            "choose a smaller crop"
        )
    return have_height - height, have_width - width


def vertical_flip(sample: StereoSample) -> StereoSample:
    """Turn the pair upside down (disparities stay as they are; the y part of normals changes its sign)."""
    flipped: dict[str, Any] = {}
    for name in _MAPS:
        value = getattr(sample, name)
        flipped[name] = None if value is None else np.ascontiguousarray(value[::-1])
    if flipped["normals"] is not None:
        flipped["normals"] = flipped["normals"] * np.array([1, -1, 1], dtype=np.float32)
    return replace(sample, rig=None, **flipped)


def published_color(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The colour augmentation of FADNet: brightness, contrast and saturation in random order, then PCA lighting.

    Args:
        image: [H, W, 3] uint8 RGB.

    Returns:
        [H, W, 3] uint8 RGB.
    """
    import cv2

    # Each operation is affine in the colours, so the whole chain is one matrix [3, 4] that needs only the mean colour.
    matrix, offset = np.eye(3), np.zeros(3)
    mean = np.array(cv2.mean(image)[:3])
    for kind in generator.permutation(3):
        keep = 1 - generator.uniform(0, 0.4)
        if kind == 2:
            mixing = keep * np.eye(3) + (1 - keep) * _LUMA  # every row of the second part is the luma
            matrix, offset = mixing @ matrix, mixing @ offset
        else:
            grey = _LUMA @ (matrix @ mean + offset) if kind == 1 else 0.0
            matrix, offset = keep * matrix, keep * offset + (1 - keep) * grey
    offset = offset + 255 * (_PCA_VECTORS @ (generator.normal(0, 0.1, size=3) * _PCA_VALUES))
    return cv2.transform(image, np.column_stack([matrix, offset]))


def published_colors(sample: StereoSample, generator: np.random.Generator) -> StereoSample:
    """``published_color`` on both views, drawn independently."""
    left, right = published_color(sample.left, generator), published_color(sample.right, generator)
    return replace(sample, left=left, right=right)
