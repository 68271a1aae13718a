# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from vision3d.errors import FileFormatError, InputError
from vision3d.evaluation.tanks_protocol import (
    CropVolume,
    align_cameras,
    evaluate_tanks,
    read_crop_volume,
    refine_alignment,
    transform,
)

SQUARE = np.array([[-1.0, -1.0], [2.0, -1.0], [2.0, 2.0], [-1.0, 2.0]])
VOLUME = CropVolume(2, -1.0, 1.0, SQUARE)


def surface(count: int = 40) -> np.ndarray:
    """A wavy sheet over the unit square, points 0.025 apart."""
    x, y = np.meshgrid(np.arange(count) / count, np.arange(count) / count)
    return np.stack([x.ravel(), y.ravel(), 0.15 * np.sin(7 * x.ravel()) * np.cos(5 * y.ravel())], axis=1)


def turned(angle: float, scale: float, shift: tuple[float, float, float]) -> np.ndarray:
    matrix = np.eye(4)
    cosine, sine = np.cos(angle), np.sin(angle)
    matrix[:3, :3] = scale * np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])
    matrix[:3, 3] = shift
    return matrix


def brute_force(points: np.ndarray, truth: np.ndarray, threshold: float) -> tuple[float, float]:
    pairs = np.linalg.norm(points[:, None] - truth[None], axis=-1)
    return 100 * (pairs.min(1) < threshold).mean(), 100 * (pairs.min(0) < threshold).mean()


def test_a_perfect_and_a_half_cloud() -> None:
    truth = surface()
    score = evaluate_tanks(truth, truth, VOLUME, 0.01, refine=False)
    assert (score.precision, score.recall, score.fscore) == (100, 100, 100)
    half = evaluate_tanks(truth[truth[:, 0] < 0.5], truth, VOLUME, 0.01, refine=False)
    assert (half.precision, half.recall) == (100, pytest.approx(50))
    assert half.fscore == pytest.approx(200 / 3)
    nothing = evaluate_tanks(truth + np.array([0, 0, 0.5]), truth, VOLUME, 0.01, refine=False)
    assert (nothing.precision, nothing.recall, nothing.fscore) == (0, 0, 0)


def test_agrees_with_brute_force() -> None:
    generator = np.random.default_rng(0)
    truth = surface(20)
    cloud = truth[generator.random(len(truth)) < 0.8] + generator.normal(0, 0.006, (1, 3))
    cloud = cloud + generator.normal(0, 0.006, cloud.shape)
    score = evaluate_tanks(cloud, truth, VOLUME, 0.012, refine=False)  # 0.05 apart: the thinning to 0.006 merges none
    assert (score.points, score.truth_points) == (len(cloud), len(truth))
    # The thinned cloud is of float32.
    assert (score.precision, score.recall) == pytest.approx(brute_force(cloud, truth, 0.012), abs=0.3)


def test_alignment_by_cameras_and_icp() -> None:
    truth = surface()
    world = turned(0.7, 2.5, (3.0, -1.0, 0.5))  # from the truth to the axes of the estimate
    generator = np.random.default_rng(1)
    true_poses, poses = [], []
    for _ in range(6):
        center = generator.uniform(-1, 1, 3)
        for centers, found in ((center, true_poses), (transform(center[None], world)[0], poses)):
            pose = np.eye(4)
            pose[:3, 3] = -centers
            found.append(pose)
    matrix = align_cameras(poses, true_poses)
    assert matrix @ world == pytest.approx(np.eye(4), abs=1e-9)
    moved = transform(truth, world)
    disturbed = turned(0.01, 1.004, (0.004, -0.003, 0.002)) @ matrix
    assert evaluate_tanks(moved, truth, VOLUME, 0.005, alignment=disturbed, refine=False).fscore < 60
    score = evaluate_tanks(moved, truth, VOLUME, 0.005, alignment=disturbed)
    assert score.fscore > 99
    assert score.alignment @ world == pytest.approx(np.eye(4), abs=2e-3)
    shifted = align_cameras(poses, true_poses, turned(0.0, 1.0, (1.0, 0.0, 0.0)))
    assert transform(moved, shifted) == pytest.approx(truth + np.array([1, 0, 0]))
    with pytest.raises(InputError, match="3 or more"):
        align_cameras(poses[:2], true_poses[:2])


def test_icp_without_neighbours_changes_nothing() -> None:
    assert np.array_equal(refine_alignment(surface(), surface() + 50, 0.1), np.eye(4))


def test_crop_volume(tmp_path: Path) -> None:
    path = tmp_path / "Barn.json"
    corners = [[0, 5, 0], [4, 5, 0], [4, 5, 4], [2, 5, 2], [0, 5, 4]]  # a notch; the axis' own coordinate is ignored
    path.write_text(
        json.dumps({"orthogonal_axis": "Y", "axis_min": -1.0, "axis_max": 2.0, "bounding_polygon": corners})
    )
    volume = read_crop_volume(path)
    points = np.array([[1.0, 0, 1], [1.0, 3, 1], [2.0, 0, 3], [0.5, 2.0, 3.0], [5.0, 0, 1]])
    assert volume.contains(points).tolist() == [True, False, False, True, False]
    truth = np.vstack([surface(), surface() + np.array([0, 0, 10])])
    assert evaluate_tanks(surface(), truth, VOLUME, 0.01, refine=False).recall == 100  # the copy lies outside
    path.write_text("{}")
    with pytest.raises(FileFormatError, match="crop volume"):
        read_crop_volume(path)


def test_the_polygon_rule_agrees_with_open3d() -> None:
    open3d = pytest.importorskip("open3d")
    generator = np.random.default_rng(2)
    corners = generator.uniform(-1, 1, (7, 2))
    corners = corners[np.argsort(np.arctan2(*(corners - corners.mean(0)).T))]
    points = generator.uniform(-1.2, 1.2, (500, 3))
    volume = open3d.visualization.SelectionPolygonVolume()
    volume.orthogonal_axis, volume.axis_min, volume.axis_max = "Z", -0.5, 0.5
    volume.bounding_polygon = open3d.utility.Vector3dVector(np.column_stack([corners, np.zeros(7)]))
    cloud = open3d.geometry.PointCloud(open3d.utility.Vector3dVector(points))
    want = np.asarray(volume.crop_point_cloud(cloud).points)
    found = points[CropVolume(2, -0.5, 0.5, corners).contains(points)]
    assert np.array_equal(np.sort(found, axis=0), np.sort(want, axis=0))


def test_bad_input() -> None:
    with pytest.raises(InputError, match="finite points"):
        evaluate_tanks(np.zeros((0, 3)), surface(), VOLUME, 0.01)
    with pytest.raises(InputError, match="threshold"):
        evaluate_tanks(surface(), surface(), VOLUME, 0.0)
