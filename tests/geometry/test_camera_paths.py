# SPDX-License-Identifier: Apache-2.0
"""Camera paths against SciPy's rotations and by their geometry."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation, Slerp

from vision3d.errors import InputError
from vision3d.geometry.camera_paths import fill_poses, interpolated_path, spiral_path


def make_poses(count: int = 5, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    poses = np.tile(np.eye(4), (count, 1, 1))
    poses[:, :3, :3] = Rotation.from_rotvec(generator.normal(0, 0.6, (count, 3))).as_matrix()
    poses[:, :3, 3] = generator.normal(0, 1, (count, 3))
    return poses


def test_interpolated_path_is_slerp_and_lerp() -> None:
    poses = make_poses()
    path = interpolated_path(poses, 33)
    times = np.linspace(0, 4, 33)
    turns = Slerp(np.arange(5), Rotation.from_matrix(poses[:, :3, :3]))(times).as_matrix()
    np.testing.assert_allclose(path[:, :3, :3], turns, atol=1e-12)
    for axis in range(3):
        np.testing.assert_allclose(path[:, axis, 3], np.interp(times, np.arange(5), poses[:, axis, 3]), atol=1e-12)
    np.testing.assert_allclose(path[::8], poses, atol=1e-12)
    np.testing.assert_allclose(interpolated_path(poses[:1], 3), np.repeat(poses[:1], 3, 0), atol=1e-12)


def test_fill_poses_continues_a_steady_motion() -> None:
    """With constant turn and speed every frame, inside and outside, is found exactly from two of them."""
    step, start = np.array([0.1, -0.02, 0.05]), np.array([1.0, 2, 3])
    truth = np.tile(np.eye(4), (9, 1, 1))
    truth[:, :3, :3] = Rotation.from_rotvec(np.arange(9)[:, None] * [0.02, 0.1, -0.03]).as_matrix()
    truth[:, :3, 3] = start + np.arange(9)[:, None] * step
    damaged = truth.copy()
    damaged[[0, 1, 3, 4, 6, 7, 8]] = np.eye(4)
    np.testing.assert_allclose(fill_poses(damaged, [5, 2]), truth, atol=1e-12)
    assert np.array_equal(damaged[0], np.eye(4))  # the argument is not changed
    np.testing.assert_allclose(fill_poses(damaged, [2]), np.repeat(truth[2:3], 9, 0))


def test_spiral_looks_at_the_focus() -> None:
    poses = make_poses(7)
    poses[:, :3, :3] = Rotation.from_rotvec([[0.2, 0.5, 0.1]] * 7).as_matrix()
    path = spiral_path(poses, 3.0, 24)
    target = poses[:, :3, 3].mean(0) + 3.0 * poses[0, :3, 2]
    away = target - path[:, :3, 3]
    np.testing.assert_allclose(away / np.linalg.norm(away, axis=1, keepdims=True), path[:, :3, 2], atol=1e-12)
    np.testing.assert_allclose(
        path[:, :3, :3] @ path[:, :3, :3].swapaxes(1, 2), np.tile(np.eye(3), (24, 1, 1)), atol=1e-12
    )
    np.testing.assert_allclose(np.linalg.det(path[:, :3, :3]), 1)
    assert np.ptp(path[:, :3, 3], axis=0).max() > 0.3
    # Upright: the camera's x axis stays perpendicular to the middle's y axis.
    np.testing.assert_allclose(path[:, :3, 0] @ poses[0, :3, 1], 0, atol=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda: interpolated_path(np.zeros((0, 4, 4)), 3),
        lambda: interpolated_path(make_poses(), 0),
        lambda: spiral_path(make_poses(), 0.0, 3),
        lambda: fill_poses(make_poses(), []),
        lambda: fill_poses(make_poses(), [5]),
        lambda: fill_poses(np.eye(4), [0]),
    ],
)
def test_illegal_arguments(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError):
        call()
