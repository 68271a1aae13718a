# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vision3d.errors import InputError
from vision3d.geometry.disparity import disparity_to_depth
from vision3d.geometry.normals import normals_from_depth
from vision3d.geometry.pointcloud import (
    depth_edge_mask,
    depth_to_pointcloud,
    limit_depth,
    remove_outliers,
    voxel_downsample,
)
from vision3d.io.calibration import read_calibration
from vision3d.io.disparity import read_disparity
from vision3d.io.images import read_image
from vision3d.types import Camera, PointCloud

RNG = np.random.default_rng(0)
CAMERA = Camera(np.array([[500.0, 0, 20.3], [0, 450, 11.7], [0, 0, 1]]), 40, 24)


def random_cloud(count: int = 2000) -> PointCloud:
    normals = RNG.normal(size=(count, 3)).astype(np.float32)
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    colors = RNG.integers(0, 256, (count, 3), dtype=np.uint8)
    return PointCloud(RNG.normal(size=(count, 3)).astype(np.float32), colors, normals)


def as_open3d(cloud: PointCloud) -> object:
    open3d = pytest.importorskip("open3d")
    result = open3d.geometry.PointCloud(open3d.utility.Vector3dVector(cloud.points.astype(np.float64)))
    if cloud.colors is not None:
        result.colors = open3d.utility.Vector3dVector(cloud.colors / 255.0)
    return result


def in_order(points: np.ndarray) -> np.ndarray:
    return points[np.lexsort(np.asarray(points, dtype=np.float32).T)]


def test_cloud_agrees_with_open3d() -> None:
    open3d = pytest.importorskip("open3d")
    depth = RNG.uniform(0.5, 5, (24, 40)).astype(np.float32)
    depth[3, 4] = np.nan
    pinhole = open3d.camera.PinholeCameraIntrinsic(40, 24, 500, 450, 20.3, 11.7)
    image = open3d.geometry.Image(np.nan_to_num(depth))
    reference = open3d.geometry.PointCloud.create_from_depth_image(image, pinhole, depth_scale=1.0, depth_trunc=100.0)
    cloud = depth_to_pointcloud(depth, CAMERA)
    assert cloud.points.dtype == np.float32
    np.testing.assert_allclose(cloud.points, np.asarray(reference.points), rtol=1e-5, atol=1e-6)


@pytest.mark.real
def test_real_scene_agrees_with_opencv(shared: Path) -> None:
    import cv2

    scene = shared / "data/stereo/eth3d/playground_1l"
    rig = read_calibration(scene / "calib.txt", image_size=(941, 490))
    disparity = read_disparity(scene / "disp0.pfm")
    image = read_image(scene / "left.png")
    matrix = np.array(
        [
            [1, 0, 0, -rig.left.cx],
            [0, 1, 0, -rig.left.cy],
            [0, 0, 0, rig.left.fx],
            [0, 0, 1 / rig.baseline, 0],
        ]
    )
    known = np.isfinite(disparity)
    cloud = depth_to_pointcloud(disparity_to_depth(disparity, rig), rig.left, image)
    np.testing.assert_allclose(cloud.points, cv2.reprojectImageTo3D(disparity, matrix)[known], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(cloud.colors, image[known])


def test_mask_colors_and_normals() -> None:
    depth = np.full((24, 40), 2.0)
    depth[0] = np.nan
    image = RNG.integers(0, 256, (24, 40, 3), dtype=np.uint8)
    normals = normals_from_depth(depth, CAMERA)
    mask = np.zeros((24, 40), dtype=bool)
    mask[:2, 5] = True
    cloud = depth_to_pointcloud(depth, CAMERA, image=image, mask=mask, normals=normals)
    assert len(cloud) == 1
    np.testing.assert_array_equal(cloud.colors, image[1:2, 5])
    np.testing.assert_allclose(cloud.normals, [[0, 0, -1]], atol=1e-6)
    assert len(depth_to_pointcloud(np.full((24, 40), np.nan), CAMERA, image)) == 0
    for options in ({"image": image[1:]}, {"mask": mask[:, 1:]}, {"normals": normals[1:]}):
        with pytest.raises(InputError):
            depth_to_pointcloud(depth, CAMERA, **options)  # type: ignore[arg-type]


def test_depth_edge_mask() -> None:
    depth = np.full((5, 10), 2.0, dtype=np.float32)
    depth[:, 5:] = 4
    depth[0, 0] = np.nan
    expected = np.zeros((5, 10), dtype=bool)
    expected[:, 4:6] = True
    np.testing.assert_array_equal(depth_edge_mask(depth), expected)
    np.testing.assert_array_equal(depth_edge_mask(1 / depth), expected)
    assert not depth_edge_mask(np.linspace(2, 2.4, 40)[None]).any()
    assert not depth_edge_mask(np.full((3, 3), np.nan)).any()
    with pytest.raises(InputError):
        depth_edge_mask(depth[0])


def test_limit_depth() -> None:
    cloud = random_cloud(500)
    limited = limit_depth(cloud, 1.0, minimum=-0.5)
    assert 0 < len(limited) < 500
    assert limited.points[:, 2].min() >= -0.5
    assert limited.points[:, 2].max() <= 1
    assert limited.colors is not None
    assert len(limited.colors) == len(limited)


def test_voxel_downsample_agrees_with_open3d() -> None:
    cloud = random_cloud()
    reference = as_open3d(cloud).voxel_down_sample(0.5)  # type: ignore[attr-defined]
    small = voxel_downsample(cloud, 0.5)
    order = np.lexsort(small.points.T)
    points = np.asarray(reference.points)
    reference_order = np.lexsort(points.astype(np.float32).T)
    np.testing.assert_allclose(small.points[order], points[reference_order], atol=1e-5)
    assert small.colors is not None
    colors = np.asarray(reference.colors)[reference_order] * 255
    assert np.abs(small.colors[order] - colors).max() <= 0.51
    np.testing.assert_allclose(np.linalg.norm(small.normals, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(in_order(voxel_downsample(cloud, 1e-5).points), in_order(cloud.points))
    assert len(voxel_downsample(cloud.select(np.zeros(2000, dtype=bool)), 1.0)) == 0
    for size in (0.0, -1.0, np.nan, 1e-9):
        with pytest.raises(InputError):
            voxel_downsample(cloud, size)


def test_remove_outliers_agrees_with_open3d() -> None:
    cloud = random_cloud()
    _, kept = as_open3d(cloud).remove_statistical_outlier(17, 2.0)  # type: ignore[attr-defined]
    cleaned = remove_outliers(cloud, neighbors=16, std_ratio=2.0)
    np.testing.assert_array_equal(cleaned.points, cloud.points[np.asarray(kept)])
    assert 0 < len(cleaned) < len(cloud)
    few = cloud.select(np.arange(5))
    assert len(remove_outliers(few)) == 5
    same = PointCloud(np.zeros((40, 3), np.float32))
    assert len(remove_outliers(same)) == 40
    with pytest.raises(InputError):
        remove_outliers(cloud, neighbors=0)
