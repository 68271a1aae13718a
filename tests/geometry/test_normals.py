# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from vision3d.errors import InputError
from vision3d.geometry.normals import normals_from_depth, unproject
from vision3d.geometry.pointcloud import depth_edge_mask, depth_to_pointcloud
from vision3d.types import Camera

CAMERA = Camera(np.array([[500.0, 0, 20.3], [0, 450, 11.7], [0, 0, 1]]))


def plane_depth(normal: np.ndarray, distance: float, height: int, width: int) -> np.ndarray:
    """z-depth of the plane ``normal . X = distance`` at each pixel, worked out from the rays."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    rays = np.stack([(x - 20.3) / 500, (y - 11.7) / 450, np.ones_like(x)], axis=-1)
    return distance / (rays @ normal)


@pytest.mark.parametrize("normal", [(0.0, 0.0, -1.0), (0.3, 0.0, -1.0), (0.2, -0.5, -1.0), (-0.7, 0.4, -0.9)])
def test_planes_are_exact(normal: tuple[float, float, float]) -> None:
    unit = np.array(normal) / np.linalg.norm(normal)
    depth = plane_depth(unit, -3.0, 24, 40)
    result = normals_from_depth(depth, CAMERA)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, np.broadcast_to(unit, result.shape), atol=1e-5)
    holes = depth.copy()
    holes[5:8, 10:13] = np.nan
    holes[0, 0] = 0
    result = normals_from_depth(holes, CAMERA)
    known = np.isfinite(holes) & (holes > 0)
    np.testing.assert_array_equal(np.isfinite(result).all(axis=2), known)
    np.testing.assert_allclose(result[known], np.broadcast_to(unit, result[known].shape), atol=1e-5)


def test_lonely_pixels_have_no_normal() -> None:
    depth = np.full((5, 5), np.nan)
    depth[2, 2] = 1
    assert np.isnan(normals_from_depth(depth, CAMERA)).all()
    assert np.isnan(normals_from_depth(np.ones((1, 1)), CAMERA)).all()


def test_unproject() -> None:
    depth = np.array([[2.0, np.inf], [-1.0, 4.0]])
    points = unproject(depth, CAMERA)
    np.testing.assert_allclose(points[1, 1], [4 * (1 - 20.3) / 500, 4 * (1 - 11.7) / 450, 4])
    assert np.isnan(points[0, 1]).all()
    assert np.isnan(points[1, 0]).all()
    with pytest.raises(InputError, match="resized"):
        unproject(depth, Camera(CAMERA.intrinsics, 40, 24))
    with pytest.raises(InputError):
        unproject(depth[0], CAMERA)


def test_blocks_of_rows_leave_no_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    depth = np.random.default_rng(0).uniform(1, 9, (31, 40)).astype(np.float32)
    depth[4:6, 7:9] = np.nan
    image = np.zeros((31, 40, 3), np.uint8)

    def everything() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        normals = normals_from_depth(depth, CAMERA)
        cloud = depth_to_pointcloud(depth, CAMERA, image=image, normals=normals)
        return normals, depth_edge_mask(depth), cloud.points

    whole = everything()
    monkeypatch.setattr("vision3d.geometry.blocks.row_blocks.__defaults__", (0, 90))
    for one, other in zip(whole, everything(), strict=True):
        np.testing.assert_array_equal(one, other)
    known = np.isfinite(depth)
    np.testing.assert_array_equal(whole[2], unproject(depth, CAMERA)[known].astype(np.float32))


def test_memory_stays_near_that_of_the_answer() -> None:
    depth = np.full((1500, 2000), 3.0, np.float32)
    depth[::7] += 0.1
    tracemalloc.start()
    try:
        normals = normals_from_depth(depth, Camera(CAMERA.intrinsics))
        peak = tracemalloc.get_traced_memory()[1]
        depth_to_pointcloud(depth, Camera(CAMERA.intrinsics), mask=~depth_edge_mask(depth), normals=normals)
        later = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * depth.size  # bytes; the answer itself has 12 a pixel
    assert later < 60 * depth.size
