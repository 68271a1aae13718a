# SPDX-License-Identifier: Apache-2.0
"""Point clouds from depth maps, and filters for them."""

from __future__ import annotations

import numpy as np

from vision3d.errors import InputError
from vision3d.geometry.blocks import row_blocks
from vision3d.geometry.normals import check_depth, unproject_rows
from vision3d.types import Camera, PointCloud


def depth_to_pointcloud(
    depth: np.ndarray,
    camera: Camera,
    image: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    normals: np.ndarray | None = None,
) -> PointCloud:
    """The points of a depth map, in the axes of the camera (x right, y down, z forward), row by row.

    Args:
        depth: [H, W] z-depth, metres, NaN where unknown.
        camera: intrinsics for images of this size.
        image: [H, W, 3] uint8 RGB for the colours, or None.
        mask: [H, W] bool, True where points are wanted, or None for all.
        normals: [H, W, 3], or None.

    Returns:
        The cloud of the pixels with finite positive depth (and finite normal, where normals are given).

    Raises:
        InputError: sizes that do not fit each other.
    """
    z = check_depth(depth, camera)
    size = z.shape
    for name, array in (("image", image), ("mask", mask), ("normals", normals)):
        if array is not None and array.shape[:2] != size:
            raise InputError(f"the {name} is of size {array.shape[:2]}, the depth map of {size}; resize one of them")
    with np.errstate(invalid="ignore"):
        wanted = np.isfinite(z) & (z > 0)
    if mask is not None:
        wanted &= np.asarray(mask, dtype=bool)
    if normals is not None:
        wanted &= np.isfinite(normals).all(axis=2)
    points = np.empty((np.count_nonzero(wanted), 3), np.float32)
    inverse, filled = np.linalg.inv(camera.intrinsics), 0
    for block in row_blocks(*size):
        picked = unproject_rows(z[block.rows], inverse, block.rows.start)[wanted[block.rows]]
        points[filled : filled + len(picked)] = picked
        filled += len(picked)
    return PointCloud(
        points=points,
        colors=None if image is None else np.ascontiguousarray(image[wanted], dtype=np.uint8),
        normals=None if normals is None else normals[wanted].astype(np.float32, copy=False),
    )


def depth_edge_mask(values: np.ndarray, threshold: float = 0.1) -> np.ndarray:
    """Pixels at jumps of depth, where stereo networks leave flying points between foreground and background.

    Args:
        values: [H, W] depth or disparity (the ratio of neighbours is the same in both), NaN where unknown.
        threshold: smallest relative jump: largest value of the 3x3 neighbourhood over its smallest, minus 1.

    Returns:
        [H, W] bool, True at the edges; keep the others: ``mask=~depth_edge_mask(depth)``.
    """
    array = np.asarray(values)
    if array.ndim != 2:
        raise InputError(f"a map HxW is expected, got shape {array.shape}")
    edges = np.empty(array.shape, dtype=bool)
    for block in row_blocks(array.shape[0], array.shape[1], halo=1):
        edges[block.rows] = _edges(array[block.source].astype(np.float32), threshold)[block.inner]
    return edges


def _edges(array: np.ndarray, threshold: float) -> np.ndarray:
    import cv2

    known = np.isfinite(array)
    window = np.ones((3, 3), np.uint8)
    infinity = float(np.finfo(np.float32).max)
    largest = cv2.dilate(np.where(known, array, -infinity), window, borderType=cv2.BORDER_REPLICATE)
    smallest = cv2.erode(np.where(known, array, infinity), window, borderType=cv2.BORDER_REPLICATE)
    return known & (largest.astype(np.float64) > smallest.astype(np.float64) * (1 + threshold))


def limit_depth(cloud: PointCloud, maximum: float, minimum: float = 0.0) -> PointCloud:
    """The points with ``minimum <= z <= maximum``, metres."""
    z = cloud.points[:, 2]
    return cloud.select((z >= minimum) & (z <= maximum))


def voxel_downsample(cloud: PointCloud, size: float) -> PointCloud:
    """One point for each occupied cube of edge ``size`` metres: the mean of its points, colours and normals.

    The grid starts half a cube below the least coordinates, as Open3D's.

    Raises:
        InputError: the size is not positive, or so small that the cubes cannot be counted.
    """
    if not size > 0:
        raise InputError(f"the voxel size must be a positive number of metres, got {size}")
    if len(cloud) == 0:
        return cloud
    points = cloud.points.astype(np.float64)
    cells = np.floor((points - (points.min(axis=0) - size / 2)) / size)
    if cells.max() >= 2**20:
        raise InputError(f"a voxel size of {size} m is too small for this cloud; take a larger one")
    keys = cells.astype(np.int64) @ np.array([1 << 42, 1 << 21, 1], dtype=np.int64)
    _, group, count = np.unique(keys, return_inverse=True, return_counts=True)

    def mean(values: np.ndarray) -> np.ndarray:
        sums = [np.bincount(group.ravel(), weights=values[:, i], minlength=len(count)) for i in range(3)]
        return np.stack(sums, axis=1) / count[:, None]

    normals = None
    if cloud.normals is not None:
        normals = mean(cloud.normals)
        length = np.linalg.norm(normals, axis=1, keepdims=True)
        normals = (normals / np.where(length > 0, length, 1)).astype(np.float32)
    return PointCloud(
        points=mean(points).astype(np.float32),
        colors=None if cloud.colors is None else np.rint(mean(cloud.colors)).astype(np.uint8),
        normals=normals,
    )


def remove_outliers(cloud: PointCloud, neighbors: int = 16, std_ratio: float = 2.0) -> PointCloud:
    """Drop the points that lie far from their neighbours (statistical outlier removal, Rusu et al. 2008).

    A point stays if its mean distance to its ``neighbors`` nearest points is below the mean of that figure over the
    cloud plus ``std_ratio`` standard deviations. Clouds of at most ``neighbors`` points are returned as they are.

    Raises:
        InputError: ``neighbors`` is below 1, or ``std_ratio`` is not positive.
    """
    from scipy.spatial import cKDTree

    if neighbors < 1 or not std_ratio > 0:
        raise InputError(f"neighbors must be at least 1 and std_ratio positive, got {neighbors} and {std_ratio}")
    if len(cloud) <= neighbors:
        return cloud
    points = cloud.points.astype(np.float64)
    distances, _ = cKDTree(points).query(points, k=neighbors + 1)
    figure = distances[:, 1:].mean(axis=1)
    return cloud.select(figure < figure.mean() + std_ratio * figure.std(ddof=1) + 1e-12)
