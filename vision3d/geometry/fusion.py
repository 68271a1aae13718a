# SPDX-License-Identifier: Apache-2.0
"""Geometric consistency of depth maps, and their fusion to a point cloud (as in MVSNet, arXiv 1804.02505).

A depth is confirmed by a source view if lifting it, projecting it there, lifting the depth found there and projecting
it back ends near the pixel, at nearly the same depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vision3d.errors import InputError
from vision3d.geometry.blocks import row_blocks
from vision3d.geometry.normals import check_depth, normals_from_depth, unproject_rows
from vision3d.types import Camera, PointCloud


@dataclass(frozen=True)
class ConsistencyRule:
    """When a depth is kept. The default is one setting for all scenes; published results are often tuned by scene.

    Attributes:
        min_views: source views that must confirm it.
        max_pixel_error: distance of the reprojected pixel must be below this, pixels.
        max_relative_error: difference of the reprojected depth, as a share of the depth, must be below this.
    """

    min_views: int = 3
    max_pixel_error: float = 0.5
    max_relative_error: float = 0.01

    def __post_init__(self) -> None:
        if self.min_views < 0 or not (self.max_pixel_error > 0 and self.max_relative_error > 0):
            raise InputError(
                f"a consistency rule needs min_views of 0 or more and errors above 0, got {self.min_views}, "
                f"{self.max_pixel_error}, {self.max_relative_error}"
            )


@dataclass(frozen=True)
class Consistency:
    """Result of :func:`check_consistency`.

    Attributes:
        count: [H, W] uint8 number of source views that confirm the pixel's depth.
        depth: [H, W] float32 mean of the depth and the confirming reprojected depths; NaN where the depth is unknown.
        kept: [H, W] bool.
    """

    count: np.ndarray
    depth: np.ndarray
    kept: np.ndarray


def check_consistency(
    depth: np.ndarray,
    camera: Camera,
    source_depths: Sequence[np.ndarray],
    source_cameras: Sequence[Camera],
    rule: ConsistencyRule | None = None,
    depth_range: tuple[float, float] | None = None,
) -> Consistency:
    """Compare a depth map with those of source views; works in blocks of rows, so that memory stays small.

    Args:
        depth: [H, W] z-depth of the reference view, NaN or 0 where unknown.
        camera: its camera: intrinsics of this size and ``world_to_camera``.
        source_depths: depth maps of the source views (sizes may differ), read one at a time.
        source_cameras: their cameras, lengths in the same unit.
        rule: see :class:`ConsistencyRule`.
        depth_range: the mean depth must lie strictly inside it, or None.

    Raises:
        InputError: numbers of maps and cameras differ, or a map does not have its camera's size.
    """
    rule = rule or ConsistencyRule()
    if len(source_depths) != len(source_cameras):
        raise InputError(f"{len(source_depths)} source depth maps and {len(source_cameras)} cameras: give one each")
    z = check_depth(depth, camera)
    count = np.zeros(z.shape, np.uint8)
    total = np.where(np.isfinite(z) & (z > 0), z, np.nan).astype(np.float64)
    for index in range(len(source_cameras)):
        source = check_depth(source_depths[index], source_cameras[index])
        for block in row_blocks(*z.shape):
            found, confirmed = _compare(z[block.rows], block.rows.start, camera, source, source_cameras[index], rule)
            count[block.rows] += confirmed
            total[block.rows] += np.where(confirmed, found, 0.0)
    mean = (total / (count.astype(np.float64) + 1.0)).astype(np.float32)
    with np.errstate(invalid="ignore"):
        kept = (count >= rule.min_views) & np.isfinite(mean)
        if depth_range is not None:
            kept &= (mean > depth_range[0]) & (mean < depth_range[1])
    return Consistency(count, mean, kept)


def reproject_depth(
    depth: np.ndarray, camera: Camera, source_depth: np.ndarray, source_camera: Camera
) -> tuple[np.ndarray, np.ndarray]:
    """Depth and pixel distance after a way to the source view and back: [H, W] float64 each, NaN where there is none.

    Args:
        depth: [H, W] z-depth of the reference view.
        camera, source_camera: intrinsics of these sizes and ``world_to_camera``, one unit.
        source_depth: [h, w] z-depth of the source view, NaN or 0 where unknown; sampled bilinearly, unknown pixels and
            those outside count as 0, as in the public code.
    """
    found, distance = _reproject(
        check_depth(depth, camera), 0, camera, check_depth(source_depth, source_camera), source_camera
    )
    return found, distance


def _compare(
    depth: np.ndarray, first: int, camera: Camera, source: np.ndarray, source_camera: Camera, rule: ConsistencyRule
) -> tuple[np.ndarray, np.ndarray]:
    found, distance = _reproject(depth, first, camera, source, source_camera)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(found - depth) / depth
        return found, (distance < rule.max_pixel_error) & (error < rule.max_relative_error)


def _reproject(
    depth: np.ndarray, first: int, camera: Camera, source: np.ndarray, source_camera: Camera
) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`reproject_depth`, for rows ``first`` ... of the reference view."""
    motion = source_camera.world_to_camera @ np.linalg.inv(camera.world_to_camera)
    back = np.linalg.inv(motion)
    points = unproject_rows(depth, np.linalg.inv(camera.intrinsics), first)
    x, y, z = _project(points @ motion[:3, :3].T + motion[:3, 3], source_camera.intrinsics)
    with np.errstate(invalid="ignore"):
        there = np.where(z > 0, _bilinear(source, x, y), np.nan)
    inverse = np.linalg.inv(source_camera.intrinsics)
    rays = inverse[:, 0] * x[..., None] + inverse[:, 1] * y[..., None] + inverse[:, 2]
    with np.errstate(invalid="ignore"):
        there[~(there > 0)] = np.nan
    returned = (rays / rays[..., 2:] * there[..., None]) @ back[:3, :3].T + back[:3, 3]
    x, y, z = _project(returned, camera.intrinsics)
    height, width = depth.shape
    distance = np.hypot(x - np.arange(width), y - np.arange(first, first + height)[:, None])
    with np.errstate(invalid="ignore"):
        behind = ~(z > 0)
    z[behind], distance[behind] = np.nan, np.nan
    return z, distance


def _project(points: np.ndarray, intrinsics: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    pixels = points @ intrinsics.T
    with np.errstate(invalid="ignore", divide="ignore"):
        return pixels[..., 0] / pixels[..., 2], pixels[..., 1] / pixels[..., 2], points[..., 2]


def _bilinear(values: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Samples at (x, y); unknown pixels and those outside count as 0."""
    height, width = values.shape
    x, y = (np.clip(np.nan_to_num(v, nan=-1.0), -1.0, side) for v, side in ((x, width), (y, height)))
    left, top = np.floor(x), np.floor(y)
    result = np.zeros(x.shape)
    for row, share_y in ((top, top + 1.0 - y), (top + 1.0, y - top)):
        for column, share_x in ((left, left + 1.0 - x), (left + 1.0, x - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            r, c = np.clip(row, 0, height - 1).astype(np.intp), np.clip(column, 0, width - 1).astype(np.intp)
            found = values[r, c]
            result += np.where(inside & np.isfinite(found), found, 0.0) * share_x * share_y
    return result


def fuse_depth_maps(
    depths: Sequence[np.ndarray] | Mapping[int, np.ndarray],
    cameras: Sequence[Camera] | Mapping[int, Camera],
    images: Sequence[np.ndarray] | Mapping[int, np.ndarray] | None = None,
    pairs: Mapping[int, Sequence[int]] | None = None,
    rule: ConsistencyRule | None = None,
    depth_ranges: Mapping[int, tuple[float, float]] | None = None,
    normals: bool = True,
) -> PointCloud:
    """The kept points of all depth maps, in world axes, in the unit of the cameras.

    Args:
        depths: depth map of each view; a mapping or sequence that reads files when asked keeps memory flat.
        cameras: camera of each view, of the size of its depth map.
        images: [H, W, 3] uint8 RGB of each view for the colours, or None.
        pairs: source views of each reference view; None: all others.
        rule: see :class:`ConsistencyRule`.
        depth_ranges: depth range of each view, or None.
        normals: also estimate unit normals, towards the camera that saw the point.

    Returns:
        The points, view after view, row after row. (Points seen by several views appear several times:
        ``voxel_downsample`` thins them.)

    Raises:
        InputError: sizes that do not fit each other.
    """
    views = range(len(depths)) if pairs is None else pairs
    clouds = list(
        _fused_views(
            depths,
            cameras,
            images,
            {v: [s for s in views if s != v] if pairs is None else pairs[v] for v in views},
            rule,
            depth_ranges or {},
            normals,
        )
    )
    return PointCloud(
        points=np.concatenate([cloud.points for cloud in clouds] or [np.zeros((0, 3), np.float32)]),
        colors=_joined([cloud.colors for cloud in clouds]),
        normals=_joined([cloud.normals for cloud in clouds]),
    )


def _joined(parts: list[np.ndarray | None]) -> np.ndarray | None:
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if given else None


def _fused_views(
    depths: Sequence[np.ndarray] | Mapping[int, np.ndarray],
    cameras: Sequence[Camera] | Mapping[int, Camera],
    images: Sequence[np.ndarray] | Mapping[int, np.ndarray] | None,
    pairs: Mapping[int, Sequence[int]],
    rule: ConsistencyRule | None,
    depth_ranges: Mapping[int, tuple[float, float]],
    normals: bool,
) -> Iterator[PointCloud]:
    for view, sources in pairs.items():
        depth, camera = depths[view], cameras[view]
        result = check_consistency(
            depth,
            camera,
            _Picked(depths, sources),
            [cameras[source] for source in sources],
            rule,
            depth_ranges.get(view),
        )
        image = None if images is None else images[view]
        yield kept_points(result, camera, image, depth if normals else None)


class _Picked(Sequence[np.ndarray]):
    """The maps of some views, read when asked."""

    def __init__(self, maps: Sequence[np.ndarray] | Mapping[int, np.ndarray], views: Sequence[int]) -> None:
        self.maps, self.views = maps, views

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.maps[self.views[index]]

    def __len__(self) -> int:
        return len(self.views)


def kept_points(
    result: Consistency, camera: Camera, image: np.ndarray | None = None, depth: np.ndarray | None = None
) -> PointCloud:
    """The kept pixels of one view, lifted with the mean depth to world axes, row by row.

    Args:
        result: see :func:`check_consistency`.
        camera: the view's camera.
        image: [H, W, 3] uint8 RGB for the colours, or None.
        depth: [H, W] the view's own depth map for normals, or None for a cloud without. A normal is that of the mean
            depth of the kept pixels, of the own depth where too few neighbours are kept, or else points to the camera.

    Raises:
        InputError: an image of another size.
    """
    if image is not None and image.shape[:2] != result.kept.shape:
        raise InputError(f"the image is of size {image.shape[:2]}, the depth map of {result.kept.shape}; resize one")
    inverse = np.linalg.inv(camera.intrinsics)
    to_world = np.linalg.inv(camera.world_to_camera)
    points = np.empty((np.count_nonzero(result.kept), 3), np.float32)
    filled = 0
    for block in row_blocks(*result.kept.shape):
        picked = unproject_rows(result.depth[block.rows], inverse, block.rows.start)[result.kept[block.rows]]
        points[filled : filled + len(picked)] = picked @ to_world[:3, :3].T + to_world[:3, 3]
        filled += len(picked)
    colors = None if image is None else np.ascontiguousarray(image[result.kept], dtype=np.uint8)
    normals = None if depth is None else _kept_normals(result, camera, depth, points, to_world)
    return PointCloud(points=points, colors=colors, normals=normals)


def _kept_normals(
    result: Consistency, camera: Camera, depth: np.ndarray, points: np.ndarray, to_world: np.ndarray
) -> np.ndarray:
    """[N, 3] float32 unit normals of the kept pixels, world axes."""
    normals = normals_from_depth(np.where(result.kept, result.depth, np.nan), camera)[result.kept]
    missing = ~np.isfinite(normals).all(1)
    if missing.any():
        normals[missing] = normals_from_depth(depth, camera)[result.kept][missing]
    normals = normals.astype(np.float64) @ to_world[:3, :3].T
    missing = ~np.isfinite(normals).all(1)
    normals[missing] = (to_world[:3, 3] - points)[missing]
    return (normals / np.linalg.norm(normals, axis=1, keepdims=True)).astype(np.float32)
