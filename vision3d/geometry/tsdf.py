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
    integration, geometry = open3d.pipelines.integration, open3d.geometry
    as_image: Any = geometry.Image
    volume = integration.ScalableTSDFVolume(_UNIT, _TRUNCATION * _UNIT, integration.TSDFVolumeColorType.RGB8)
    scale = _UNIT / voxel_size
    for depth, camera, image in views:
        usable = np.where(np.isfinite(depth), depth * scale, 0).astype(np.float32)
        if not usable.any():
            continue
        picture = geometry.RGBDImage.create_from_color_and_depth(
            as_image(np.ascontiguousarray(image)),
            as_image(usable),
            depth_scale=1.0,
            depth_trunc=float(usable.max()) + 1.0,
            convert_rgb_to_intensity=False,
        )
        height, width = depth.shape
        lens = open3d.camera.PinholeCameraIntrinsic(width, height, camera.fx, camera.fy, camera.cx, camera.cy)
        pose = camera.world_to_camera.copy()
        pose[:3, 3] *= scale
        volume.integrate(picture, lens, pose)
    mesh = volume.extract_triangle_mesh()
    mesh.scale(1 / scale, center=np.zeros(3))
    mesh.compute_vertex_normals()
    return mesh
