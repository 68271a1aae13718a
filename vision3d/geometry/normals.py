# SPDX-License-Identifier: Apache-2.0
"""Surface normals from depth maps."""

from __future__ import annotations

import numpy as np

from vision3d.errors import InputError
from vision3d.geometry.blocks import row_blocks
from vision3d.types import Camera


def unproject(depth: np.ndarray, camera: Camera) -> np.ndarray:
    """The 3-D point of every pixel, camera axes.

    Args:
        depth: [H, W] z-depth, metres, NaN where unknown.
        camera: intrinsics for images of this size.

    Returns:
        [H, W, 3] float64, NaN where the depth is unknown, infinite or not positive.

    Raises:
        InputError: not a map, or of another size than the camera's images.
    """
    z = check_depth(depth, camera)
    return unproject_rows(z, np.linalg.inv(camera.intrinsics), 0)


def check_depth(depth: np.ndarray, camera: Camera) -> np.ndarray:
    """The depth as an array; InputError unless it is a map of the size of the camera's images."""
    z = np.asarray(depth)
    if z.ndim != 2:
        raise InputError(f"depth must be a map HxW, got shape {z.shape}")
    height, width = z.shape
    if camera.width is not None and camera.height is not None and (camera.width, camera.height) != (width, height):
        raise InputError(
            f"the depth map is {width}x{height}, the camera is of {camera.width}x{camera.height}; use Camera.resized"
        )
    return z


def unproject_rows(depth: np.ndarray, inverse: np.ndarray, first: int) -> np.ndarray:
    """The 3-D points [h, W, 3] float64 of the rows ``first`` ... of a depth map, given the inverse intrinsics."""
    z = depth.astype(np.float64)
    with np.errstate(invalid="ignore"):
        z[~(np.isfinite(z) & (z > 0))] = np.nan
    x, y = np.arange(z.shape[1]), np.arange(first, first + z.shape[0])[:, None]
    rays = inverse[:, 0] * x[None, :, None] + inverse[:, 1] * y[..., None] + inverse[:, 2]
    return rays / rays[..., 2:] * z[..., None]


def normals_from_depth(depth: np.ndarray, camera: Camera) -> np.ndarray:
    """Unit normals, camera axes, pointing to the camera; exact on planes.

    Each normal is the cross product of the differences of the 3-D points along columns and rows: central differences
    where both neighbours are known, else one-sided ones.

    Args:
        depth: [H, W] z-depth, metres, NaN where unknown.
        camera: intrinsics for images of this size.

    Returns:
        [H, W, 3] float32, NaN where the pixel is unknown or has no known neighbour in a column or row.
    """
    z = check_depth(depth, camera)
    inverse = np.linalg.inv(camera.intrinsics)
    normals = np.empty((*z.shape, 3), np.float32)
    for block in row_blocks(z.shape[0], z.shape[1], halo=1):
        points = unproject_rows(z[block.source], inverse, block.source.start)
        normals[block.rows] = _normals(points)[block.inner]
    return normals


def _normals(points: np.ndarray) -> np.ndarray:
    normal = np.cross(_difference(points, 1), _difference(points, 0))
    with np.errstate(invalid="ignore", divide="ignore"):
        normal /= np.linalg.norm(normal, axis=2, keepdims=True)
        normal *= np.where((normal * points).sum(axis=2, keepdims=True) > 0, -1.0, 1.0)
    return normal


def _difference(points: np.ndarray, axis: int) -> np.ndarray:
    """Difference of neighbouring points along an axis: central, else one-sided, else NaN."""
    step = np.diff(points, axis=axis)
    gap = np.full_like(np.take(points, [0], axis=axis), np.nan)
    forward = np.concatenate([step, gap], axis=axis)
    backward = np.concatenate([gap, step], axis=axis)
    central = forward + backward
    one_sided = np.where(np.isfinite(forward), forward, backward)
    return np.where(np.isfinite(central), central, one_sided)
