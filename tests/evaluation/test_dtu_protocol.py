# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vision3d.errors import FileFormatError, InputError
from vision3d.evaluation.dtu_protocol import (
    DtuTruth,
    average_scores,
    box_distances,
    evaluate_dtu,
    points_in_mask,
    read_dtu_truth,
    thin_points,
)
from vision3d.io.pointcloud import write_pointcloud
from vision3d.types import PointCloud


def grid(height: float, step: float = 1.0, side: int = 40) -> np.ndarray:
    x, y = np.meshgrid(np.arange(side) * step, np.arange(side) * step)
    return np.stack([x.ravel(), y.ravel(), np.full(x.size, height)], axis=1)


def truth_of(points: np.ndarray, plane: tuple[float, ...] = (0, 0, 1, 0.5)) -> DtuTruth:
    box = np.array([[-10.0, -10.0, -10.0], [110.0, 70.0, 50.0]])
    return DtuTruth(points, np.ones((13, 9, 7), dtype=bool), box, 10.0, np.array(plane))


def brute_force(points: np.ndarray, truth: DtuTruth) -> tuple[float, float]:
    """Accuracy and completeness with loops over cells and all pairs, as MaxDistCP.m and ComputeStat do."""

    def distances(source: np.ndarray, target: np.ndarray) -> np.ndarray:
        found = np.full(len(source), 60.0)
        cells = np.floor((truth.box[1] - truth.box[0]) / 60).astype(int)
        for cell in np.ndindex(*(cells + 1)):
            low = truth.box[0] + np.array(cell) * 60
            inside = np.all((source >= low) & (source < low + 60), axis=1)
            near = target[np.all((target >= low - 60) & (target < low + 120), axis=1)]
            if len(near) and inside.any():
                pairs = np.linalg.norm(source[inside][:, None] - near[None], axis=-1)
                found[inside] = pairs.min(1)
        return found

    seen = []
    for point in points:
        cell = [int(np.floor(value + 0.5)) for value in (point - truth.box[0]) / truth.resolution]
        exists = all(0 <= value < size for value, size in zip(cell, truth.mask.shape, strict=True))
        seen.append(exists and bool(truth.mask[tuple(cell)]))
    forward = distances(points, truth.points)[np.array(seen)]
    above = np.array([truth.plane[:3] @ point + truth.plane[3] > 0 for point in truth.points])
    backward = distances(truth.points, points)[above]
    return float(forward[forward < 20].mean()), float(backward[backward < 20].mean())


def test_parallel_planes_have_their_distance() -> None:
    score = evaluate_dtu(grid(0.25), truth_of(grid(0.0)))
    assert score.accuracy == pytest.approx(0.25)
    assert score.completeness == pytest.approx(0.25)
    assert score.overall == pytest.approx(0.25)
    assert (score.accuracy_median, score.evaluated, score.reference) == (pytest.approx(0.25), 1600, 1600)


def test_half_a_cloud_is_accurate_but_not_complete() -> None:
    """The missing half lies 1 to 20 mm away, of which 20 mm no longer counts."""
    whole = grid(0.0)
    half = whole[whole[:, 0] < 20]
    score = evaluate_dtu(half, truth_of(whole))
    assert score.accuracy == 0
    counted = [max(0.0, x - 19) for x in range(40) if x - 19 < 20]
    assert score.completeness == pytest.approx(np.mean(counted))


def test_outliers_plane_and_mask_leave_points_out() -> None:
    surface = grid(0.0)
    far = np.array([[20.0, 20.0, 45.0], [500.0, 0.0, 0.0]])
    score = evaluate_dtu(np.vstack([surface, far]), truth_of(surface))
    assert score.accuracy == 0  # 45 mm: an outlier; 500 mm: outside the mask
    assert score.evaluated == len(surface) + 1
    below = np.vstack([surface, grid(-5.0)])
    assert evaluate_dtu(surface, truth_of(below)).reference == len(surface)
    hidden = truth_of(surface)
    hidden.mask[1:3] = False  # x from 0 to 20
    kept = points_in_mask(surface, hidden)
    assert kept.sum() == np.count_nonzero(surface[:, 0] >= 15)
    assert np.isnan(evaluate_dtu(far[1:], truth_of(surface)).accuracy)


def test_agrees_with_brute_force() -> None:
    generator = np.random.default_rng(0)
    reference = generator.uniform([-20, -20, -20], [120, 80, 60], (700, 3))
    cloud = generator.uniform([-20, -20, -20], [120, 80, 60], (600, 3))
    cloud[:200] = reference[:200] + generator.normal(0, 1, (200, 3))
    truth = truth_of(reference, (0.1, -0.2, 1.0, -3.0))
    truth.mask[generator.random(truth.mask.shape) < 0.4] = False
    score = evaluate_dtu(cloud, truth, density=0)
    assert (score.accuracy, score.completeness) == pytest.approx(brute_force(cloud, truth), abs=1e-9)


def test_box_distances_stop_at_60() -> None:
    box = np.array([[0.0, 0, 0], [100, 100, 100]])
    points = np.array([[0.0, 0, 0], [99, 0, 0], [119.9, 0, 0], [120.0, 0, 0], [-1.0, 0, 0]])
    found = box_distances(points, np.array([[30.0, 0, 0], [125.0, 0, 0]]), box)
    assert found == pytest.approx([30, 26, 5.1, 60, 60])


def test_thinning_keeps_a_net() -> None:
    generator = np.random.default_rng(1)
    points = generator.uniform(0, 3, (2000, 3))
    kept = thin_points(points, 0.4, seed=3)
    net = points[kept]
    distances = np.linalg.norm(net[:, None] - net[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    assert distances.min() > 0.4
    assert np.linalg.norm(points[:, None] - net[None], axis=-1).min(1).max() <= 0.4  # all others had a kept neighbour
    assert np.array_equal(kept, thin_points(points, 0.4, seed=3))


def test_files(tmp_path: Path) -> None:
    from scipy.io import savemat

    folder = tmp_path / "SampleSet/MVS Data"
    (folder / "ObsMask").mkdir(parents=True)
    (tmp_path / "Points/stl").mkdir(parents=True)
    truth = truth_of(grid(0.0))
    savemat(folder / "ObsMask/ObsMask1_10.mat", {"ObsMask": truth.mask, "BB": truth.box, "Res": 10.0})
    savemat(folder / "ObsMask/Plane1.mat", {"P": truth.plane[:, None]})
    write_pointcloud(tmp_path / "Points/stl/stl001_total.ply", PointCloud(grid(0.0).astype(np.float32)))
    read = read_dtu_truth(tmp_path, 1)
    assert evaluate_dtu(grid(0.5), read).overall == pytest.approx(0.5)
    with pytest.raises(FileFormatError, match="ObsMask2_10"):
        read_dtu_truth(tmp_path, 2)
    savemat(folder / "ObsMask/Plane1.mat", {"P": np.ones(3)})
    with pytest.raises(FileFormatError, match="Plane1"):
        read_dtu_truth(tmp_path, 1)
    (folder / "ObsMask/Plane1.mat").write_bytes(b"no matrix")
    with pytest.raises(FileFormatError, match="Plane1"):
        read_dtu_truth(tmp_path, 1)


def test_bad_clouds_and_averages() -> None:
    for points in (np.zeros((0, 3)), np.zeros((4, 2)), np.array([[np.nan, 0, 0]])):
        with pytest.raises(InputError, match="finite points"):
            evaluate_dtu(points, truth_of(grid(0.0)))
    scores = {1: evaluate_dtu(grid(0.25), truth_of(grid(0.0))), 4: evaluate_dtu(grid(0.75), truth_of(grid(0.0)))}
    assert average_scores(scores)["overall"] == pytest.approx(0.5)
    assert np.isnan(average_scores({})["accuracy"])
