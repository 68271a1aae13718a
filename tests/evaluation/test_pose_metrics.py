# SPDX-License-Identifier: Apache-2.0
"""Trajectory and image errors against scipy, scikit-image, closed forms and the published code's figures."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from vision3d.errors import ConfigError, InputError
from vision3d.evaluation import image_metrics, pose_metrics


def trajectory(count: int = 8, seed: int = 0) -> np.ndarray:
    poses = np.tile(np.eye(4), (count, 1, 1))
    poses[:, :3, :3] = Rotation.random(count, random_state=seed).as_matrix()
    poses[:, :3, 3] = np.random.default_rng(seed).standard_normal((count, 3))
    return poses


@pytest.mark.parametrize("degrees", [0.0, 1e-7, 0.01, 30.0, 90.0, 179.9, 180.0])
def test_rotation_angle(degrees):
    turn = Rotation.from_rotvec(np.radians(degrees) * np.array([0.6, 0.0, 0.8])).as_matrix()
    assert pose_metrics.rotation_angle(turn) == pytest.approx(degrees, abs=1e-9)
    base = Rotation.random(random_state=2).as_matrix()
    assert pose_metrics.rotation_errors(base @ turn, base) == pytest.approx(degrees, abs=1e-6)


def test_moved_and_scaled_trajectory_has_no_error():
    truth = trajectory()
    turn = Rotation.random(random_state=9).as_matrix()
    moved = truth.copy()
    moved[:, :3, :3] = turn @ truth[:, :3, :3]
    moved[:, :3, 3] = 3 * truth[:, :3, 3] @ turn.T + [1, 2, 3]
    for alignment in ("sim3", "procrustes"):
        errors = pose_metrics.trajectory_errors(moved, truth, alignment=alignment)
        summary = errors.summary()
        assert summary.pop("scale") == pytest.approx(1 / 3)
        assert max(summary.values()) < 1e-5
    assert pose_metrics.trajectory_errors(moved, truth, alignment="se3").ate_rmse > 0.1
    assert pose_metrics.trajectory_errors(moved, truth, alignment="none").ate_rmse > 1


def test_known_errors():
    """Each frame is turned by 2 degrees about its own axis and one centre lies 0.3 beside the true one."""
    truth = trajectory(4)
    wrong = truth.copy()
    turn = Rotation.from_rotvec([0, 0, np.radians(2.0)]).as_matrix()
    wrong[:, :3, :3] = truth[:, :3, :3] @ turn
    wrong[1, :3, 3] += [0, 0.3, 0]
    errors = pose_metrics.trajectory_errors(wrong, truth, alignment="none")
    assert errors.ate_mean == pytest.approx(0.3 / 4)
    assert errors.ate_rmse == pytest.approx(0.15)
    np.testing.assert_allclose(errors.rotation, 2.0, atol=1e-6)
    for frame in range(3):
        moves = [np.linalg.inv(poses[frame]) @ poses[frame + 1] for poses in (truth, wrong)]
        error = np.linalg.inv(moves[0]) @ moves[1]
        assert errors.relative_translation[frame] == pytest.approx(np.linalg.norm(error[:3, 3]))
        angle = np.degrees(Rotation.from_matrix(error[:3, :3]).magnitude())
        assert errors.relative_rotation[frame] == pytest.approx(angle, abs=1e-6)
    lengths, _ = pose_metrics.relative_pose_errors(wrong, truth, delta=4)
    assert len(lengths) == 0


def test_normalized_trajectory():
    poses = pose_metrics.normalize_trajectory(trajectory(6))
    np.testing.assert_allclose(poses[:, :3, 3].mean(0), 0, atol=1e-12)
    assert (poses[:, :3, 3] ** 2).sum(1).mean() == pytest.approx(1)
    assert pose_metrics.focal_error(110, 100) == pytest.approx(0.1)
    with pytest.raises(InputError, match="stands still"):
        pose_metrics.normalize_trajectory(np.tile(np.eye(4), (3, 1, 1)))


def test_wrong_arguments():
    with pytest.raises(InputError, match="same frames"):
        pose_metrics.trajectory_errors(trajectory(3), trajectory(4))
    with pytest.raises(ConfigError, match="choose sim3"):
        pose_metrics.trajectory_errors(trajectory(3), trajectory(3), alignment="sim")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least 1"):
        pose_metrics.relative_pose_errors(trajectory(3), trajectory(3), delta=0)


@pytest.mark.real
def test_figures_of_the_published_code(shared):
    file = np.load(shared / "parity/cfnerf/align.npz")
    errors = pose_metrics.trajectory_errors(file["est_c2w"], file["gt_c2w"])
    np.testing.assert_allclose(errors.translation, file["t_err"], atol=1e-5)
    np.testing.assert_allclose(errors.rotation, file["r_err_deg"], atol=1e-3)
    assert errors.ate_mean == pytest.approx(float(file["ate_mean"]), abs=1e-5)
    assert errors.ate_rmse == pytest.approx(float(file["ate_rmse"]), abs=1e-5)
    assert errors.rotation_mean == pytest.approx(float(file["r_err_deg_mean"]), abs=1e-4)


def gaussian_mean(image: np.ndarray) -> np.ndarray:
    """Means over 11 x 11 Gaussian windows (sigma 1.5) that lie inside the image, one channel."""
    line = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
    kernel = np.outer(line, line) / line.sum() ** 2
    windows = np.lib.stride_tricks.sliding_window_view(image, (11, 11))
    return (windows * kernel).sum((-1, -2))


def test_image_metrics():
    random = np.random.default_rng(0)
    truth = random.random((20, 24, 3))
    image = np.clip(truth + 0.1 * random.standard_normal(truth.shape), 0, 1)
    assert image_metrics.psnr(image, truth) == pytest.approx(-10 * np.log10(np.mean((image - truth) ** 2)))
    assert image_metrics.psnr(truth, truth) == np.inf
    assert image_metrics.ssim(truth, truth) == pytest.approx(1)
    values = []
    for channel in range(3):
        first, second = image[..., channel], truth[..., channel]
        means = gaussian_mean(first), gaussian_mean(second)
        covariance = gaussian_mean(first * second) - means[0] * means[1]
        spread = gaussian_mean(first**2) - means[0] ** 2 + gaussian_mean(second**2) - means[1] ** 2
        likeness = (2 * means[0] * means[1] + 1e-4) * (2 * covariance + 9e-4)
        values.append(likeness / ((means[0] ** 2 + means[1] ** 2 + 1e-4) * (spread + 9e-4)))
    assert image_metrics.ssim(image, truth) == pytest.approx(float(np.mean(values)), abs=1e-9)
    with pytest.raises(InputError, match="11 x 11"):
        image_metrics.ssim(truth[:8], truth[:8])
    with pytest.raises(InputError, match="one size"):
        image_metrics.psnr(truth, truth[:8])
