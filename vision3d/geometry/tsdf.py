# SPDX-License-Identifier: Apache-2.0
"""A mesh from depth maps by a truncated signed distance field (Curless and Levoy, SIGGRAPH 1996), with Open3D."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from vision3d.errors import InputError, MissingExtraError
from vision3d.types import Camera

_UNIT = 0.01  # the voxels' edge inside Open3D, so that the unit of the world does not matter
_TRUNCATION = 4.0  # voxels
_BLOCK, _BLOCKS = 16, 2000  # voxels along a block's edge, blocks to begin with (more are made when needed)
_LEAST_WEIGHT = 1.0  # views that a voxel was seen by


def fuse_tsdf(views: Iterable[tuple[np.ndarray, Camera, np.ndarray]], voxel_size: float) -> Any:
    """Integrate depth maps one after the other; memory grows with the surface, not with the number of views.

    Args:
        views: z-depth [H, W] (NaN where unknown), its camera, and colours [H, W, 3] uint8.
        voxel_size: edge of a voxel, in the unit of the cameras.

    Returns:
        ``open3d.geometry.TriangleMesh`` with colours and normals, world axes and unit.

    Raises:
        MissingExtraError: Open3D is not installed. InputError: the voxel size is not positive.
    """
    try:
        import open3d
    except (ImportError, OSError) as error:
        raise MissingExtraError("open3d", "3d", "a mesh") from error
    if not (np.isfinite(voxel_size) and voxel_size > 0):
        raise InputError(f"the voxel size must be a positive number, got {voxel_size}")
    core: Any = open3d.core
    make_grid: Any = open3d.t.geometry.VoxelBlockGrid
    unit = _UNIT / voxel_size
    number = core.float32
    # Positional: the names of these arguments have changed between versions.
    grid = make_grid(("tsdf", "weight", "color"), (number, number, number), ((1,), (1,), (3,)), _UNIT, _BLOCK, _BLOCKS)
    empty = True
    for depth, camera, image in views:
        usable = np.where(np.isfinite(depth), depth * unit, 0).astype(np.float32)
        if not usable.any():
            continue
        pose = camera.world_to_camera.copy()
        pose[:3, 3] *= unit
        lens, motion = core.Tensor(camera.intrinsics), core.Tensor(pose)
        distances = open3d.t.geometry.Image(core.Tensor(usable[..., None]))
        colors = open3d.t.geometry.Image(core.Tensor(np.ascontiguousarray(image, dtype=np.float32) / 255))
        farthest = float(usable.max()) + 1.0
        blocks = grid.compute_unique_block_coordinates(distances, lens, motion, 1.0, farthest, _TRUNCATION)
        grid.integrate(blocks, distances, colors, lens, lens, motion, 1.0, farthest, _TRUNCATION)
        empty = False
    if empty:
        return open3d.geometry.TriangleMesh()
    mesh = grid.extract_triangle_mesh(_LEAST_WEIGHT).to_legacy()
    mesh.scale(1 / unit, center=np.zeros(3))
    mesh.vertex_colors = open3d.utility.Vector3dVector(np.clip(np.asarray(mesh.vertex_colors), 0, 1))
    mesh.compute_vertex_normals()
    return mesh
