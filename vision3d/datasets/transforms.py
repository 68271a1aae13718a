# SPDX-License-Identifier: Apache-2.0
"""Transforms of stereo samples. Both views are always cut alike; random ones draw from the generator they are given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vision3d.errors import InputError
from vision3d.geometry.disparity import consistency
from vision3d.types import Camera, StereoSample

_MAPS = ("left", "right", "disparity", "occlusion", "right_disparity", "normals", "foreground")
_DENSE = 0.9  # share of known pixels
_LUMA = np.array([0.299, 0.587, 0.114])
_PCA_VALUES = np.array([0.2175, 0.0188, 0.0045])
_PCA_VECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])


def crop(sample: StereoSample, top: int, left: int, height: int, width: int) -> StereoSample:
    """Cut the same window out of every map of the sample; the principal points follow."""
    rows, columns = slice(top, top + height), slice(left, left + width)
    cut: dict[str, Any] = {}
    for name in _MAPS:
        value = getattr(sample, name)
        cut[name] = None if value is None else np.ascontiguousarray(value[rows, columns])
    rig = sample.rig
    if rig is not None:
        views = (rig.left.cropped(left, top, width, height), rig.right.cropped(left, top, width, height))
        rig = replace(rig, left=views[0], right=views[1])
    return replace(sample, rig=rig, **cut)


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
    rig = sample.rig
    if rig is not None:
        rig = replace(rig, left=_turned(rig.left, sample, 1), right=_turned(rig.right, sample, 1))
    return replace(sample, rig=rig, **flipped)


def horizontal_flip_swap(sample: StereoSample) -> StereoSample:
    """Mirror the pair: the mirrored right view becomes the left one, so that disparities stay positive.

    Normals and foreground belong to the old left view and are dropped. So does its occlusion: where the sample has one
    and both disparities are dense (9 of 10 pixels known), that of the new left view is computed by their left-right
    :func:`~vision3d.geometry.disparity.consistency` (1 px; unknown pixels count as hidden), else it is None.

    Raises:
        InputError: the disparity of the right view is not known.
    """
    if sample.right_disparity is None:
        raise InputError(
            f"{sample.scene}: a flip with view swap needs the disparity of the right view; leave the transform out"
        )
    rig = sample.rig
    if rig is not None:
        rig = replace(rig, left=_turned(rig.right, sample, 0), right=_turned(rig.left, sample, 0))
    disparity = _mirrored(sample.right_disparity)
    right_disparity = None if sample.disparity is None else _mirrored(sample.disparity)
    return replace(
        sample,
        left=_mirrored(sample.right),
        right=_mirrored(sample.left),
        disparity=disparity,
        right_disparity=right_disparity,
        occlusion=None if sample.occlusion is None else _hidden(disparity, right_disparity),
        normals=None,
        foreground=None,
        rig=rig,
    )


def _hidden(disparity: np.ndarray, right_disparity: np.ndarray | None) -> np.ndarray | None:
    """The occlusion mask of the left view, or None where the maps are too sparse to tell it."""
    if right_disparity is None or min(np.isfinite(item).mean() for item in (disparity, right_disparity)) < _DENSE:
        return None
    return consistency(disparity, right_disparity)[1]


def _mirrored(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values[:, ::-1])


def _turned(camera: Camera, sample: StereoSample, axis: int) -> Camera:
    """The camera of the image mirrored along x (0) or y (1)."""
    intrinsics = camera.intrinsics.copy()
    intrinsics[axis, 2] = sample.left.shape[1 - axis] - 1 - intrinsics[axis, 2]
    intrinsics[0, 1] = -intrinsics[0, 1] + 0.0  # no -0
    return replace(camera, intrinsics=intrinsics)


def resize(sample: StereoSample, height: int, width: int) -> StereoSample:
    """Resample the pair; disparities are scaled with the width, the calibration follows.

    Images: area averages (smaller) or bilinear. Disparities: ``resize_disparity``. Masks and normals: nearest pixel.

    Raises:
        InputError: a size below 1.
    """
    import cv2

    if height < 1 or width < 1:
        raise InputError(f"{sample.scene}: the size {width}x{height} is illegal, at least 1x1 is expected")
    have_height, have_width = sample.left.shape[:2]
    how = cv2.INTER_AREA if height * width < have_height * have_width else cv2.INTER_LINEAR
    resized: dict[str, Any] = {
        name: cv2.resize(np.ascontiguousarray(getattr(sample, name)), (width, height), interpolation=how)
        for name in ("left", "right")
    }
    rows, columns = _nearest(have_height, height), _nearest(have_width, width)
    for name in ("occlusion", "normals", "foreground"):
        value = getattr(sample, name)
        resized[name] = None if value is None else value[rows[:, None], columns]
    for name in ("disparity", "right_disparity"):
        value = getattr(sample, name)
        resized[name] = None if value is None else resize_disparity(value, height, width)
    rig = sample.rig
    if rig is not None:
        rig = rig.with_size(have_width, have_height).resized(width, height)
    return replace(sample, rig=rig, **resized)


def resize_disparity(disparity: np.ndarray, height: int, width: int, edge: float = 1.0) -> np.ndarray:
    """Resample [H, W] disparities (NaN: unknown) and scale their values with the width.

    Bilinear where all four neighbours are known and within ``edge`` pixels of the nearest one, else the nearest pixel:
    neither NaN nor the values of two surfaces are mixed, and slanted surfaces stay exact. A pixel is known where the
    nearest one is.
    """
    have_height, have_width = disparity.shape
    y = np.clip((np.arange(height) + 0.5) * have_height / height - 0.5, 0, have_height - 1)[:, None]
    x = np.clip((np.arange(width) + 0.5) * have_width / width - 0.5, 0, have_width - 1)[None, :]
    top, left = np.floor(y).astype(np.int64), np.floor(x).astype(np.int64)
    bottom, right = np.minimum(top + 1, have_height - 1), np.minimum(left + 1, have_width - 1)
    below, beside = (y - top).astype(np.float32), (x - left).astype(np.float32)
    nearest = disparity[_nearest(have_height, height)[:, None], _nearest(have_width, width)]
    corners = [disparity[row, column] for row in (top, bottom) for column in (left, right)]
    smooth = np.ones(nearest.shape, dtype=bool)
    for corner in corners:
        smooth &= np.abs(corner - nearest) <= edge  # False where either is NaN
    upper = corners[0] * (1 - beside) + corners[1] * beside
    lower = corners[2] * (1 - beside) + corners[3] * beside
    values = np.where(smooth, upper * (1 - below) + lower * below, nearest)
    return (values * (width / have_width)).astype(np.float32)


def _nearest(have: int, want: int) -> np.ndarray:
    return np.clip(((np.arange(want) + 0.5) * have / want).astype(np.int64), 0, have - 1)


def misalign_right(sample: StereoSample, shift: float, angle: float = 0.0) -> StereoSample:
    """Imperfect rectification: turn the right image by ``angle`` about its centre and move it down by ``shift``.

    The match of the left pixel (x, y) was (x - d, y) and moves to (x', y'); the disparity becomes ``x - x'``, so that
    columns stay exact; negative ones become NaN. The row difference is the imperfection. The calibration no longer
    holds and is dropped, as is the disparity of the right view.

    Args:
        shift: pixels, positive: down.
        angle: degrees, positive: clockwise on the screen.
    """
    import cv2

    if shift == 0 and angle == 0:
        return sample
    height, width = sample.left.shape[:2]
    cosine, sine = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    cx, cy = (width - 1) / 2, (height - 1) / 2
    matrix = np.array([[cosine, -sine, cx - cosine * cx + sine * cy], [sine, cosine, cy - sine * cx - cosine * cy]])
    matrix[1, 2] += shift
    right = cv2.warpAffine(
        np.ascontiguousarray(sample.right),
        matrix,
        (width, height),
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REPLICATE,
    )
    disparity = sample.disparity
    if disparity is not None and angle != 0:
        x, y = np.arange(width)[None, :], np.arange(height)[:, None]
        moved = x - (matrix[0, 0] * (x - disparity) + matrix[0, 1] * y + matrix[0, 2])
        disparity = np.where(moved >= 0, moved, np.nan).astype(np.float32)
    return replace(sample, right=right, disparity=disparity, right_disparity=None, rig=None)


def shift_disparity(sample: StereoSample, pixels: int) -> StereoSample:
    """Move the content of the right view by whole ``pixels`` to the left: every disparity grows by as much.

    Disparities that become negative, or whose match leaves the frame, become NaN; new columns repeat the border and
    have no right disparity. The principal point of the right view follows, so depths stay as they are.
    """
    if pixels == 0:
        return sample
    width = sample.left.shape[1]
    source = np.arange(width) + pixels
    known = (source >= 0) & (source < width)
    right = sample.right[:, np.clip(source, 0, width - 1)]
    changed: dict[str, Any] = {}
    if sample.disparity is not None:
        moved = sample.disparity + np.float32(pixels)
        match = np.arange(width) - moved
        inside = (match >= max(0, -pixels)) & (match <= width - 1 - max(0, pixels))  # where the right view has content
        changed["disparity"] = np.where((moved >= 0) & inside, moved, np.float32(np.nan))
    if sample.right_disparity is not None:
        moved = sample.right_disparity[:, np.clip(source, 0, width - 1)] + np.float32(pixels)
        target = np.arange(width) + moved
        inside = known & (moved >= 0) & (target <= width - 1)
        changed["right_disparity"] = np.where(inside, moved, np.float32(np.nan))
    rig = sample.rig
    if rig is not None:
        rig = replace(rig, right=rig.right.cropped(pixels, 0, width, sample.left.shape[0]))
    return replace(sample, right=right, rig=rig, **changed)


def occlude(image: np.ndarray, top: int, left: int, height: int, width: int) -> np.ndarray:
    """A copy of [H, W, 3] with a window in the mean colour of the image, as if something stood before the camera."""
    covered = image.copy()
    covered[top : top + height, left : left + width] = image.reshape(-1, 3).mean(axis=0).astype(np.uint8)
    return covered


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
