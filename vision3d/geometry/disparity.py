# SPDX-License-Identifier: Apache-2.0
"""Disparity and depth of rectified pairs: conversion, filling of gaps, left-right consistency."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from vision3d.errors import InputError
from vision3d.geometry.blocks import row_blocks
from vision3d.types import StereoRig

if TYPE_CHECKING:
    import torch

Map = TypeVar("Map", np.ndarray, "torch.Tensor")

_CONSISTENT_SHARE = 0.01  # tolerance of the left-right check relative to the disparity


def disparity_to_depth(disparity: Map, rig: StereoRig) -> Map:
    """``fx * baseline / (disparity + doffs)``.

    Args:
        disparity: any shape, pixels of images of the rig's size; array or tensor.
        rig: the calibration.

    Returns:
        z-depth of the left camera, metres, same shape and type (integers become float32); NaN where the disparity is
        not finite or ``disparity + doffs <= 0``.

    Example:
        >>> import numpy as np
        >>> from vision3d.types import Camera, StereoRig
        >>> camera = Camera(np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]]))
        >>> disparity_to_depth(np.array([10.0, 0.0]), StereoRig(camera, camera, baseline=0.1))
        array([ 5., nan])
    """
    return _invert(disparity, rig.left.fx * rig.baseline, before=rig.doffs, after=0.0)


def depth_to_disparity(depth: Map, rig: StereoRig) -> Map:
    """``fx * baseline / depth - doffs``; the inverse of :func:`disparity_to_depth`.

    Args:
        depth: any shape, metres; array or tensor.
        rig: the calibration.

    Returns:
        Pixels, same shape and type; NaN where the depth is not finite or not positive.
    """
    return _invert(depth, rig.left.fx * rig.baseline, before=0.0, after=-rig.doffs)


def fill_invalid(disparity: np.ndarray) -> np.ndarray:
    """Fill unknown pixels by the rule of the KITTI development kit (background interpolation).

    Inside a row each gap takes the smaller of its two neighbours, gaps at the row ends take the nearest known value,
    and rows without any known pixel copy the nearest row that has one (the upper one on a tie). A map without any known
    pixel is returned as it is.

    Args:
        disparity: [H, W], NaN or infinity where unknown.

    Returns:
        [H, W] float32 copy.
    """
    filled = _map(disparity, "disparity").astype(np.float32)
    known = np.isfinite(filled)
    rows = known.any(axis=1)
    if not rows.any():
        return filled
    height, width = filled.shape
    columns = np.arange(width)
    before = np.maximum.accumulate(np.where(known, columns, -1), axis=1)
    after = np.minimum.accumulate(np.where(known, columns, width)[:, ::-1], axis=1)[:, ::-1]
    row = np.arange(height)[:, None]
    left = np.where(before >= 0, filled[row, np.maximum(before, 0)], np.inf)
    right = np.where(after < width, filled[row, np.minimum(after, width - 1)], np.inf)
    filled = np.minimum(left, right)
    good = np.flatnonzero(rows)
    nearest = good[np.abs(np.arange(height)[:, None] - good[None]).argmin(axis=1)]
    return cast(np.ndarray, filled[nearest].astype(np.float32))


def consistency(
    disparity_left: np.ndarray, disparity_right: np.ndarray, tolerance: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Left-right check of two disparity maps.

    The error of a left pixel is ``e = |d_L(x) - d_R(x - d_L(x))|`` (linear interpolation in the row) and its tolerance
    ``t = tolerance + 0.01 d``. A pixel is occluded where ``e > t``, where its partner lies outside of the right image,
    or where one of the two disparities is unknown.

    Args:
        disparity_left: [H, W], pixels, ``x_right = x_left - disparity``.
        disparity_right: [H, W] of the right view, positive too (``x_left = x_right + disparity``).
        tolerance: largest difference of the two disparities near zero that counts as the same point, pixels.

    Returns:
        confidence ``exp(-(e / t)^2 ln 2)``, [H, W] float32 in [0, 1] (1/2 at the tolerance; 0 where unknown or
        outside), and the occlusion mask, [H, W] bool.

    Raises:
        InputError: no maps, or of two sizes.
    """
    left, right = _map(disparity_left, "disparity_left"), _map(disparity_right, "disparity_right")
    if left.shape != right.shape:
        raise InputError(f"the maps of the two views have different sizes: {left.shape} and {right.shape}")
    certainty, occluded = np.empty(left.shape, np.float32), np.empty(left.shape, dtype=bool)
    for block in row_blocks(*left.shape):
        certainty[block.rows], occluded[block.rows] = _compare(left[block.rows], right[block.rows], tolerance)
    return certainty, occluded


def _compare(left: np.ndarray, right: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    width = left.shape[1]
    columns = np.arange(width, dtype=np.float32)[None] - left
    with np.errstate(invalid="ignore"):
        outside = ~(columns >= 0) | (columns > width - 1)
    position = np.clip(np.nan_to_num(columns, nan=0.0), 0, width - 1)
    low = np.floor(position).astype(np.int64)
    weight = position - low
    near = np.take_along_axis(right, low, axis=1)
    far = np.take_along_axis(right, np.minimum(low + 1, width - 1), axis=1)
    with np.errstate(invalid="ignore"):
        error = np.abs(left - (near * (1 - weight) + np.where(weight > 0, far, 0) * weight))
        limit = tolerance + _CONSISTENT_SHARE * np.abs(left)
        certainty = np.exp2(-np.square(error / limit))
        certainty[outside | ~np.isfinite(certainty)] = 0.0
        return certainty, outside | ~(error <= limit)


def _invert(values: Map, factor: float, before: float, after: float) -> Map:
    """``factor / (values + before) + after``, NaN where the divisor is not a positive finite number."""
    if isinstance(values, np.ndarray):
        real = values if np.issubdtype(values.dtype, np.floating) else values.astype(np.float32)
        divisor = real + real.dtype.type(before)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            result = real.dtype.type(factor) / divisor + real.dtype.type(after)
            good = np.isfinite(divisor) & (divisor > 0) & np.isfinite(result)
        return np.where(good, result, real.dtype.type(np.nan))
    import torch

    if not isinstance(values, torch.Tensor):
        raise InputError(f"an array or a tensor is expected, got {type(values).__name__}")
    tensor = values if values.is_floating_point() else values.float()
    divided = tensor + before
    quotient = factor / divided + after
    known = divided.isfinite() & (divided > 0) & quotient.isfinite()
    return torch.where(known, quotient, torch.full_like(quotient, float("nan")))


def _map(values: np.ndarray, name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 2:
        raise InputError(f"{name} must be a map HxW, got shape {array.shape}")
    return array
