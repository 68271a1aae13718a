# SPDX-License-Identifier: Apache-2.0
"""Fusion of depth maps against the public filter on real maps, and on a scene of planes with exact depth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vision3d.errors import InputError
from vision3d.geometry.fusion import (
    Consistency,
    ConsistencyRule,
    check_consistency,
    fuse_depth_maps,
    kept_points,
    reproject_depth,
)
from vision3d.io.cameras import MVSNetCamera, read_mvsnet_camera
from vision3d.io.pfm import read_pfm
from vision3d.types import Camera

PLANE = (np.array([0.2, -0.1, 1.0]) / np.linalg.norm([0.2, -0.1, 1.0]), 5.0)  # n . X = 5 in world axes


def camera(x: float, turn: float = 0.0, width: int = 40, height: int = 30) -> Camera:
    pose = np.eye(4)
    pose[:3, :3] = [[np.cos(turn), 0, -np.sin(turn)], [0, 1, 0], [np.sin(turn), 0, np.cos(turn)]]
    pose[:3, 3] = -pose[:3, :3] @ [x, 0.1 * x, 0.0]
    return Camera(np.array([[35.0, 0, width / 2], [0, 36.0, height / 2], [0, 0, 1]]), width, height, None, pose)


def plane_depth(view: Camera) -> np.ndarray:
    """Exact z-depth of the plane, ray by ray."""
    assert view.width is not None
    assert view.height is not None
    y, x = np.mgrid[: view.height, : view.width]
    rays = np.stack([x, y, np.ones_like(x)], -1) @ np.linalg.inv(view.intrinsics).T
    to_world = np.linalg.inv(view.world_to_camera)
    normal, distance = PLANE
    return ((distance - normal @ to_world[:3, 3]) / (rays @ to_world[:3, :3].T @ normal)).astype(np.float32)


VIEWS = [camera(0.0), camera(0.4, 0.05), camera(-0.4, -0.05), camera(0.2), camera(0.1, 0.02, 60, 50)]
DEPTHS = [plane_depth(view) for view in VIEWS]


@pytest.fixture(scope="module")
def sceaux(shared: Path) -> tuple[list[MVSNetCamera], list[np.ndarray], np.lib.npyio.NpzFile]:
    folder = shared / "data/mvs_sample/sceaux"
    cameras = [read_mvsnet_camera(folder / f"cams/{i:08d}_cam.txt") for i in range(4)]
    depths = [read_pfm(folder / f"depths/{i:08d}.pfm") for i in range(4)]
    y, x = np.mgrid[:480, :640]
    depths[0] = np.where((x // 32 + y // 32) % 5 == 0, depths[0] * np.float32(1.05), depths[0])
    return cameras, depths, np.load(shared / "parity/dispmvs/fusion_sceaux.npz")


@pytest.mark.real
@pytest.mark.parametrize(("name", "pixels"), [("p100", 1.0), ("p025", 0.25)])
def test_equals_the_public_filter_on_real_maps(sceaux: tuple, name: str, pixels: float) -> None:
    cameras, depths, expected = sceaux
    rule = ConsistencyRule(min_views=2, max_pixel_error=pixels, max_relative_error=0.01)
    result = check_consistency(
        depths[0], cameras[0].camera, depths[1:], [c.camera for c in cameras[1:]], rule, cameras[0].depth_range
    )
    kept = np.unpackbits(expected[f"{name}_final"]).reshape(480, 640).astype(bool)
    total, number, mean = expected[f"{name}_summary"]
    assert (result.count != expected[f"{name}_count"]).sum() <= 20
    assert (result.kept != kept).sum() <= 20
    assert abs(int(result.count.sum()) - total) <= 20
    assert abs(int(result.kept.sum()) - number) <= 20
    assert result.depth[result.kept].mean(dtype=np.float64) == pytest.approx(mean, abs=1e-4)
    if name == "p100":
        average, where = np.where(result.kept, result.depth, 0.0)[::2, ::2], expected["p100_avg"] > 0
        np.testing.assert_allclose(
            average[where & (average > 0)], expected["p100_avg"][where & (average > 0)], atol=5e-4
        )
        points = kept_points(result, cameras[0].camera).points
        np.testing.assert_allclose(points.mean(0, dtype=np.float64), expected["p100_world_mean"], atol=1e-4)
        np.testing.assert_allclose(points[:5], expected["p100_world_first5"], atol=1e-4)


def test_exact_depth_is_confirmed_wherever_it_is_seen() -> None:
    found, distance = reproject_depth(DEPTHS[0], VIEWS[0], DEPTHS[1], VIEWS[1])
    middle = (slice(5, 25), slice(8, 32))  # inside the source view
    np.testing.assert_allclose(found[middle], DEPTHS[0][middle], rtol=1e-3)  # bilinear samples of a slanted plane
    assert distance[middle].max() < 0.05
    result = check_consistency(DEPTHS[0], VIEWS[0], DEPTHS[1:], VIEWS[1:])
    assert result.count.max() == 4
    assert result.kept.mean() > 0.7
    np.testing.assert_allclose(result.depth[result.kept], DEPTHS[0][result.kept], rtol=2e-3)


def test_wrong_depth_is_dropped() -> None:
    depth = DEPTHS[0].copy()
    depth[5:9, 10:20] *= 1.05
    depth[12, 12], depth[12, 13], depth[12, 14], depth[12, 15] = np.nan, 0.0, -1.0, np.inf
    result = check_consistency(depth, VIEWS[0], DEPTHS[1:], VIEWS[1:])
    assert not result.kept[5:9, 10:20].any()
    assert not result.kept[12, 12:16].any()
    assert (result.count[12, 12:16] == 0).all()
    assert np.isnan(result.depth[12, 12:16]).all()
    assert result.kept[15:25, 15:25].all()


def test_depth_range_and_number_of_views() -> None:
    everything = check_consistency(DEPTHS[0], VIEWS[0], DEPTHS[1:3], VIEWS[1:3], ConsistencyRule(min_views=1))
    assert not check_consistency(DEPTHS[0], VIEWS[0], DEPTHS[1:3], VIEWS[1:3]).kept.any()  # two cannot be three
    middle = float(np.median(DEPTHS[0]))
    rule = ConsistencyRule(min_views=1)
    near = check_consistency(DEPTHS[0], VIEWS[0], DEPTHS[1:3], VIEWS[1:3], rule, (0.1, middle))
    assert 0 < near.kept.sum() < everything.kept.sum()
    assert near.depth[near.kept].max() < middle
    alone = check_consistency(DEPTHS[0], VIEWS[0], [], [], ConsistencyRule(min_views=0))
    assert alone.kept.all()


def test_views_behind_confirm_nothing() -> None:
    pose = np.diag([-1.0, 1.0, -1.0, 1.0])  # looks the other way
    back = Camera(VIEWS[0].intrinsics, 40, 30, None, pose)
    assert not check_consistency(DEPTHS[0], VIEWS[0], [DEPTHS[0]], [back], ConsistencyRule(min_views=1)).count.any()


def test_fused_cloud_lies_on_the_plane() -> None:
    images = [np.full((*depth.shape, 3), 10 * (i + 1), np.uint8) for i, depth in enumerate(DEPTHS)]
    cloud = fuse_depth_maps(DEPTHS, VIEWS, images)
    normal, distance = PLANE
    assert len(cloud) > 3000
    np.testing.assert_allclose(cloud.points @ normal, distance, atol=0.02)
    assert cloud.colors is not None
    assert set(np.unique(cloud.colors)) == {10, 20, 30, 40, 50}
    assert cloud.normals is not None
    np.testing.assert_allclose(np.linalg.norm(cloud.normals, axis=1), 1.0, atol=1e-5)
    assert (cloud.normals @ -normal > 0.99).mean() > 0.95
    few = fuse_depth_maps(dict(enumerate(DEPTHS)), dict(enumerate(VIEWS)), pairs={0: [1, 2, 3]}, normals=False)
    assert 0 < len(few) <= DEPTHS[0].size
    assert few.colors is None
    assert few.normals is None
    assert len(fuse_depth_maps([], [])) == 0


def test_a_lonely_point_looks_at_its_camera() -> None:
    kept = np.zeros((30, 40), bool)
    kept[3, 4] = True
    alone = np.where(kept, np.float32(2.0), np.nan).astype(np.float32)
    cloud = kept_points(Consistency(kept.astype(np.uint8), alone, kept), VIEWS[1], None, alone)
    centre = np.linalg.inv(VIEWS[1].world_to_camera)[:3, 3]
    assert cloud.normals is not None
    direction = (centre - cloud.points[0]) / np.linalg.norm(centre - cloud.points[0])
    np.testing.assert_allclose(cloud.normals[0], direction, atol=1e-5)


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(InputError, match="1 source depth maps and 2 cameras"):
        check_consistency(DEPTHS[0], VIEWS[0], DEPTHS[1:2], VIEWS[1:3])
    with pytest.raises(InputError, match="the camera is of 40x30"):
        check_consistency(DEPTHS[0][1:], VIEWS[0], [], [])
    with pytest.raises(InputError, match="errors above 0"):
        ConsistencyRule(max_pixel_error=0.0)
    result = check_consistency(DEPTHS[0], VIEWS[0], [], [])
    with pytest.raises(InputError, match="the image is of size"):
        kept_points(result, VIEWS[0], np.zeros((3, 4, 3), np.uint8))
