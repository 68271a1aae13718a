# SPDX-License-Identifier: Apache-2.0
"""Rotations and motions against scipy and matrix exponentials; alignments against known motions and references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import expm, logm
from scipy.spatial.transform import Rotation, Slerp

from vision3d.errors import InputError
from vision3d.geometry import poses

ANGLES = [0.0, 1e-12, 1e-8, 1e-6, 1e-3, 0.5, 2.0, 3.0, np.pi - 1e-3, np.pi - 1e-9]


def vectors(angle: float, count: int = 5) -> np.ndarray:
    axes = np.random.default_rng(0).standard_normal((count, 3))
    return angle * axes / np.linalg.norm(axes, axis=1, keepdims=True)


def random_poses(count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    motion = np.tile(np.eye(4), (count, 1, 1))
    motion[:, :3, :3] = Rotation.random(count, random_state=seed).as_matrix()
    motion[:, :3, 3] = random.standard_normal((count, 3))
    return motion


@pytest.mark.parametrize("angle", [*ANGLES, 4.0, 7.0])
def test_axis_angle(angle):
    rotation = vectors(angle)
    tensor = torch.from_numpy(rotation)
    expected = Rotation.from_rotvec(rotation)
    matrix = poses.axis_angle_to_matrix(tensor)
    np.testing.assert_allclose(matrix, expected.as_matrix(), atol=1e-12)
    quaternion = poses.axis_angle_to_quaternion(tensor).numpy()
    same = np.abs((quaternion[:, [1, 2, 3, 0]] * expected.as_quat()).sum(1))
    np.testing.assert_allclose(same, 1, atol=1e-12)
    if angle < np.pi:
        np.testing.assert_allclose(poses.matrix_to_axis_angle(matrix), rotation, atol=1e-7)
        np.testing.assert_allclose(poses.quaternion_to_axis_angle(torch.from_numpy(quaternion)), rotation, atol=1e-9)


def test_quaternions_and_6d():
    rotations = Rotation.random(50, random_state=1)
    half_turns = Rotation.from_rotvec(np.pi * np.concatenate([np.eye(3), vectors(1.0)]))
    for group in (rotations, half_turns):
        matrix = torch.from_numpy(group.as_matrix())
        quaternion = poses.matrix_to_quaternion(matrix)
        assert (quaternion[:, 0] >= 0).all()
        np.testing.assert_allclose(quaternion.norm(dim=1), 1, atol=1e-12)
        np.testing.assert_allclose(poses.quaternion_to_matrix(3.7 * quaternion), matrix, atol=1e-12)
        np.testing.assert_allclose(poses.rotation_6d_to_matrix(poses.matrix_to_rotation_6d(matrix)), matrix, atol=1e-12)
    any_two = poses.rotation_6d_to_matrix(torch.randn(20, 6, dtype=torch.float64))
    np.testing.assert_allclose(any_two @ any_two.mT, np.broadcast_to(np.eye(3), (20, 3, 3)), atol=1e-12)
    np.testing.assert_allclose(torch.linalg.det(any_two), 1, atol=1e-12)


@pytest.mark.parametrize(
    ("function", "start"),
    [
        (poses.axis_angle_to_matrix, [0.0] * 3),
        (poses.se3_exp, [0.0] * 6),
        (poses.rotation_6d_to_matrix, [1.0, 0, 0, 0, 1, 0]),
        (lambda v: poses.matrix_to_axis_angle(poses.axis_angle_to_matrix(v)), [0.0] * 3),
        (lambda v: poses.se3_log(poses.se3_exp(v)), [0.0] * 6),
    ],
)
@pytest.mark.parametrize("size", [0.0, 1e-7, 0.7])
def test_gradients(function, start, size):
    generator = torch.Generator().manual_seed(0)
    inputs = size * torch.randn(2, len(start), dtype=torch.float64, generator=generator)
    inputs += torch.tensor(start, dtype=torch.float64)
    assert torch.autograd.gradcheck(function, inputs.requires_grad_(), eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("angle", [*ANGLES[:-1], 0.009, 0.011])
def test_se3(angle):
    twist = np.concatenate([vectors(angle), np.random.default_rng(1).standard_normal((5, 3))], 1)
    pose = poses.se3_exp(torch.from_numpy(twist))
    for row, matrix in zip(twist, pose.numpy(), strict=True):
        generator = np.zeros((4, 4))
        generator[:3, :3] = poses.skew(torch.from_numpy(row[:3]))
        generator[:3, 3] = row[3:]
        np.testing.assert_allclose(matrix, expm(generator), atol=1e-11)
        if 0.4 < angle < 3:
            np.testing.assert_allclose(logm(matrix).real, generator, atol=1e-8)
    np.testing.assert_allclose(poses.se3_log(pose), twist, atol=1e-6)


def test_invert_and_interpolate():
    first, second = torch.from_numpy(random_poses(2))
    np.testing.assert_allclose(poses.invert_pose(first) @ first, np.eye(4), atol=1e-12)
    slerp = Slerp([0, 1], Rotation.from_matrix(np.stack([first[:3, :3], second[:3, :3]])))
    for share in (0.0, 0.3, 1.0):
        middle = poses.interpolate_poses(first, second, share)
        np.testing.assert_allclose(middle[:3, :3], slerp(share).as_matrix(), atol=1e-9)
        np.testing.assert_allclose(middle[:3, 3], (1 - share) * first[:3, 3] + share * second[:3, 3], atol=1e-12)
    batch = poses.interpolate_poses(first.expand(3, 4, 4), second.expand(3, 4, 4), torch.tensor([0.0, 0.3, 1.0]))
    np.testing.assert_allclose(batch[2], second, atol=1e-9)


def test_similarity():
    motion = poses.Similarity(2.5, Rotation.random(random_state=3).as_matrix(), np.array([1.0, -2.0, 3.0]))
    other = poses.Similarity(0.3, Rotation.random(random_state=4).as_matrix(), np.array([0.5, 0.0, -1.0]))
    points = np.random.default_rng(0).standard_normal((7, 3))
    homogeneous = np.concatenate([points, np.ones((7, 1))], 1)
    np.testing.assert_allclose(motion.apply(points), (homogeneous @ motion.matrix().T)[:, :3], atol=1e-12)
    np.testing.assert_allclose((motion @ other).matrix(), motion.matrix() @ other.matrix(), atol=1e-12)
    np.testing.assert_allclose((motion @ motion.inverse()).matrix(), np.eye(4), atol=1e-12)


def test_alignment_finds_a_known_motion():
    motion = poses.Similarity(2.5, Rotation.random(random_state=3).as_matrix(), np.array([1.0, -2.0, 3.0]))
    source = random_poses(12)
    target = motion.apply_to_poses(source)
    for found in (poses.align_poses(source, target), poses.align_poses_procrustes(source, target)):
        np.testing.assert_allclose(found.matrix(), motion.matrix(), atol=1e-10)
    rigid = poses.Similarity(1.0, motion.rotation, motion.translation)
    found = poses.align_poses(source, rigid.apply_to_poses(source), with_scale=False)
    np.testing.assert_allclose(found.matrix(), rigid.matrix(), atol=1e-10)


def test_alignment_of_a_straight_trajectory():
    """The centres leave one rotation free; points in front of the cameras settle it."""
    source = random_poses(6)
    source[:, :3, 3] = np.linspace(0, 1, 6)[:, None] * [1.0, 2.0, 3.0]
    motion = poses.Similarity(1.0, Rotation.random(random_state=3).as_matrix(), np.array([1.0, -2.0, 3.0]))
    found = poses.align_poses_procrustes(source, motion.apply_to_poses(source), forward=1.0)
    np.testing.assert_allclose(found.matrix(), motion.matrix(), atol=1e-10)


def test_alignment_of_a_mirrored_and_a_flat_cloud():
    """Rotations stay proper: a mirror image is matched as well as a rotation can (scipy's Kabsch is the oracle)."""
    points = np.random.default_rng(0).standard_normal((10, 3))
    mirrored = points * [1, 1, -1]
    found = poses.align_points(points, mirrored, with_scale=False)
    assert np.linalg.det(found.rotation) == pytest.approx(1)
    expected, _ = Rotation.align_vectors(mirrored - mirrored.mean(0), points - points.mean(0))
    np.testing.assert_allclose(found.rotation, expected.as_matrix(), atol=1e-9)
    flat = points * [1, 1, 0]
    turn = Rotation.random(random_state=1).as_matrix()
    np.testing.assert_allclose(poses.align_points(flat, flat @ turn.T).rotation, turn, atol=1e-9)


def test_umeyama_is_the_least_squares_answer():
    random = np.random.default_rng(5)
    source, target = random.standard_normal((2, 9, 3))
    found = poses.align_points(source, target)
    best = np.sum((found.apply(source) - target) ** 2)
    for _ in range(50):
        turn = Rotation.from_rotvec(0.02 * random.standard_normal(3)).as_matrix()
        scale = found.scale * (1 + 0.02 * random.standard_normal())
        near = poses.Similarity(scale, turn @ found.rotation, found.translation + 0.02 * random.standard_normal(3))
        assert np.sum((near.apply(source) - target) ** 2) > best


def test_wrong_points():
    points = np.zeros((4, 3))
    with pytest.raises(InputError, match="one length"):
        poses.align_points(points, points[:3])
    with pytest.raises(InputError, match="finite"):
        poses.align_points(points * np.nan, points)
    with pytest.raises(InputError, match="one place"):
        poses.align_points(points, np.eye(4)[:, :3])
    with pytest.raises(InputError, match="one place"):
        poses.align_points(np.eye(4)[:, :3], points)


@pytest.mark.real
def test_alignment_of_the_published_code(shared):
    file = np.load(shared / "parity/cfnerf/align.npz")
    found = poses.align_poses(file["est_c2w"], file["gt_c2w"])
    assert found.scale == pytest.approx(float(file["s"]), abs=1e-10)
    np.testing.assert_allclose(found.rotation, file["R"], atol=1e-10)
    np.testing.assert_allclose(found.translation, file["t"], atol=1e-10)
    aligned = found.apply_to_poses(file["est_c2w"])
    np.testing.assert_allclose(aligned[:, :3, :3], file["aligned_R"], atol=1e-5)
    np.testing.assert_allclose(aligned[:, :3, 3], file["aligned_t"], atol=1e-5)
    other = poses.align_poses_procrustes(file["est_c2w"], file["gt_c2w"])
    assert other.scale == pytest.approx(float(file["proc_s0"] / file["proc_s1"]), abs=1e-5)
    np.testing.assert_allclose(other.rotation, file["proc_R"], atol=1e-5)
    moved = other.apply(file["proc_t1"][None].astype(float))[0]
    np.testing.assert_allclose(moved, file["proc_t0"], atol=1e-5)
