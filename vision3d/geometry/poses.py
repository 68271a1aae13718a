# SPDX-License-Identifier: Apache-2.0
"""Rotations, rigid motions and similarities: SO(3), SE(3), Sim(3).

Poses are camera-to-world matrices ``[..., 4, 4]`` with OpenCV axes unless a name says otherwise. The conversions are
differentiable torch functions of any float type; the gradient at the identity is finite. :class:`Similarity` and the
alignments are NumPy in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vision3d.errors import InputError

_SMALL = 1e-12  # squared angle below which the series are used (the angle 1e-6)


def skew(vector: Tensor) -> Tensor:
    """Cross-product matrix ``[v]x`` [..., 3, 3] of ``vector`` [..., 3]."""
    x, y, z = vector.unbind(-1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))


def axis_angle_to_quaternion(vector: Tensor) -> Tensor:
    """Unit quaternion [..., 4], real part first, of a rotation vector [..., 3] in radians."""
    squared = vector.square().sum(-1, keepdim=True)
    small = squared < _SMALL
    angle = torch.where(small, torch.ones_like(squared), squared).sqrt()
    factor = torch.where(small, 0.5 - squared / 48, torch.sin(angle / 2) / angle)
    real = torch.where(small, 1 - squared / 8, torch.cos(angle / 2))
    return torch.cat([real, factor * vector], -1)


def quaternion_to_axis_angle(quaternion: Tensor) -> Tensor:
    """Rotation vector [..., 3] of at most pi radians, of a quaternion [..., 4] (real part first, any length)."""
    quaternion = F.normalize(quaternion, dim=-1)
    quaternion = torch.where(quaternion[..., :1] < 0, -quaternion, quaternion)
    real, imaginary = quaternion[..., :1], quaternion[..., 1:]
    squared = imaginary.square().sum(-1, keepdim=True)
    small = squared < _SMALL
    length = torch.where(small, torch.ones_like(squared), squared).sqrt()
    factor = torch.where(small, 2 / real.clamp_min(0.5), 2 * torch.atan2(length, real) / length)
    return factor * imaginary


def quaternion_to_matrix(quaternion: Tensor) -> Tensor:
    """Rotation matrix [..., 3, 3] of a quaternion [..., 4] (real part first, any length but 0)."""
    w, x, y, z = quaternion.unbind(-1)
    s = 2 / quaternion.square().sum(-1)
    rows = [
        1 - s * (y * y + z * z),
        s * (x * y - z * w),
        s * (x * z + y * w),
        s * (x * y + z * w),
        1 - s * (x * x + z * z),
        s * (y * z - x * w),
        s * (x * z - y * w),
        s * (y * z + x * w),
        1 - s * (x * x + y * y),
    ]
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def matrix_to_quaternion(matrix: Tensor) -> Tensor:
    """Unit quaternion [..., 4] with a real part of at least 0, of a rotation matrix [..., 3, 3] (Shepperd 1978)."""
    m = matrix
    xx, yy, zz = m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]
    wx, wy, wz = m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]
    xy, xz, yz = m[..., 1, 0] + m[..., 0, 1], m[..., 2, 0] + m[..., 0, 2], m[..., 2, 1] + m[..., 1, 2]
    # Row k is four times the k-th component times the quaternion; that of the largest component is well conditioned.
    outer = torch.stack(
        [
            torch.stack([1 + xx + yy + zz, wx, wy, wz], -1),
            torch.stack([wx, 1 + xx - yy - zz, xy, xz], -1),
            torch.stack([wy, xy, 1 - xx + yy - zz, yz], -1),
            torch.stack([wz, xz, yz, 1 - xx - yy + zz], -1),
        ],
        -2,
    )
    best = outer.diagonal(dim1=-2, dim2=-1).argmax(-1)
    row = torch.gather(outer, -2, best[..., None, None].expand(*best.shape, 1, 4))[..., 0, :]
    row = F.normalize(row, dim=-1)
    return torch.where(row[..., :1] < 0, -row, row)


def axis_angle_to_matrix(vector: Tensor) -> Tensor:
    """Rotation matrix [..., 3, 3], the exponential of ``[vector]x``, of a rotation vector [..., 3] in radians."""
    return quaternion_to_matrix(axis_angle_to_quaternion(vector))


def matrix_to_axis_angle(matrix: Tensor) -> Tensor:
    """Rotation vector [..., 3] of at most pi radians, the logarithm of a rotation matrix [..., 3, 3]."""
    return quaternion_to_axis_angle(matrix_to_quaternion(matrix))


def rotation_6d_to_matrix(vectors: Tensor) -> Tensor:
    """Rotation matrix [..., 3, 3] of two vectors [..., 6]: its first two rows after Gram-Schmidt.

    Zhou et al., "On the continuity of rotation representations in neural networks", CVPR 2019, section 4.2.
    """
    first = F.normalize(vectors[..., :3], dim=-1)
    second = vectors[..., 3:]
    second = F.normalize(second - (first * second).sum(-1, keepdim=True) * first, dim=-1)
    return torch.stack([first, second, torch.linalg.cross(first, second)], -2)


def matrix_to_rotation_6d(matrix: Tensor) -> Tensor:
    """The first two rows [..., 6] of a rotation matrix [..., 3, 3]."""
    return matrix[..., :2, :].flatten(-2)


def make_pose(rotation: Tensor, translation: Tensor) -> Tensor:
    """The matrix [..., 4, 4] of a rotation [..., 3, 3] and a translation [..., 3]."""
    upper = torch.cat([rotation, translation[..., None]], -1)
    last = upper.new_tensor([0.0, 0.0, 0.0, 1.0]).expand(*upper.shape[:-2], 1, 4)
    return torch.cat([upper, last], -2)


def invert_pose(pose: Tensor) -> Tensor:
    """Inverse of rigid motions [..., 4, 4]: camera-to-world to world-to-camera and back."""
    rotation = pose[..., :3, :3].transpose(-1, -2)
    return make_pose(rotation, -(rotation @ pose[..., :3, 3:])[..., 0])


def _left_jacobian_terms(squared: Tensor) -> tuple[Tensor, Tensor]:
    """``(1 - cos a) / a^2`` and ``(a - sin a) / a^3`` for squared angles, by their series near 0."""
    small = squared < 1e-4
    safe = torch.where(small, torch.ones_like(squared), squared)
    angle = safe.sqrt()
    first = torch.where(small, 0.5 - squared / 24 + squared**2 / 720, 2 * torch.sin(angle / 2) ** 2 / safe)
    second = torch.where(small, 1 / 6 - squared / 120 + squared**2 / 5040, (angle - torch.sin(angle)) / (safe * angle))
    return first, second


def _left_jacobian(vector: Tensor) -> Tensor:
    first, second = _left_jacobian_terms(vector.square().sum(-1)[..., None, None])
    cross = skew(vector)
    return torch.eye(3, dtype=vector.dtype, device=vector.device) + first * cross + second * (cross @ cross)


def se3_exp(twist: Tensor) -> Tensor:
    """Rigid motion [..., 4, 4] of a twist [..., 6]: rotation vector (radians), then translation part.

    Barfoot, "State Estimation for Robotics", section 7.1.
    """
    vector, part = twist[..., :3], twist[..., 3:]
    return make_pose(axis_angle_to_matrix(vector), (_left_jacobian(vector) @ part[..., None])[..., 0])


def se3_log(pose: Tensor) -> Tensor:
    """Twist [..., 6] of a rigid motion [..., 4, 4]; inverse of :func:`se3_exp` for angles below pi."""
    vector = matrix_to_axis_angle(pose[..., :3, :3])
    part = torch.linalg.solve(_left_jacobian(vector), pose[..., :3, 3:])[..., 0]
    return torch.cat([vector, part], -1)


def interpolate_poses(first: Tensor, second: Tensor, fraction: float | Tensor) -> Tensor:
    """Pose [..., 4, 4] between two: the rotation at constant speed on the shortest arc, the centre on the line.

    Args:
        first, second: [..., 4, 4].
        fraction: 0 gives ``first``, 1 ``second``; a number or a tensor of the batch shape.
    """
    share = torch.as_tensor(fraction, dtype=first.dtype, device=first.device)[..., None]
    turn = matrix_to_axis_angle(first[..., :3, :3].transpose(-1, -2) @ second[..., :3, :3])
    rotation = first[..., :3, :3] @ axis_angle_to_matrix(share * turn)
    centre = torch.lerp(first[..., :3, 3], second[..., :3, 3], share.expand(*first.shape[:-2], 3))
    return make_pose(rotation, centre)


@dataclass(frozen=True)
class Similarity:
    """``x -> scale * rotation @ x + translation``, an element of Sim(3).

    Attributes:
        scale: positive number.
        rotation: [3, 3] float64.
        translation: [3] float64.
    """

    scale: float
    rotation: np.ndarray
    translation: np.ndarray

    def apply(self, points: np.ndarray) -> np.ndarray:
        """Move points [..., 3]."""
        return self.scale * np.asarray(points, dtype=np.float64) @ self.rotation.T + self.translation

    def apply_to_poses(self, poses: np.ndarray) -> np.ndarray:
        """Move camera-to-world matrices [N, 4, 4]; their rotations stay rotations."""
        poses = np.asarray(poses, dtype=np.float64)
        moved = np.tile(np.eye(4), (len(poses), 1, 1))
        moved[:, :3, :3] = self.rotation @ poses[:, :3, :3]
        moved[:, :3, 3] = self.apply(poses[:, :3, 3])
        return moved

    def inverse(self) -> Similarity:
        """The similarity that undoes this one."""
        rotation = self.rotation.T
        return Similarity(1 / self.scale, rotation, -(rotation @ self.translation) / self.scale)

    def __matmul__(self, other: Similarity) -> Similarity:
        """First ``other``, then this one."""
        return Similarity(
            self.scale * other.scale, self.rotation @ other.rotation, self.apply(other.translation[None])[0]
        )

    def matrix(self) -> np.ndarray:
        """[4, 4] homogeneous matrix."""
        matrix = np.eye(4)
        matrix[:3, :3], matrix[:3, 3] = self.scale * self.rotation, self.translation
        return matrix


def _point_sets(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.asarray(source, dtype=np.float64), np.asarray(target, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 2 or first.shape[1] != 3 or len(first) < 1:
        raise InputError(f"alignment needs two lists of points [N, 3] of one length, got {first.shape}, {second.shape}")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise InputError("alignment needs finite points; leave out the frames that have no pose")
    return first, second


def _rotation_between(covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rotation that maximises ``trace(R^T covariance)`` and the signed singular values."""
    left, values, right = np.linalg.svd(covariance)
    sign = np.array([1.0, 1.0, np.sign(np.linalg.det(left) * np.linalg.det(right))])
    return (left * sign) @ right, values * sign


def align_points(source: np.ndarray, target: np.ndarray, *, with_scale: bool = True) -> Similarity:
    """The similarity that moves ``source`` onto ``target`` with the least squared distance (Umeyama, PAMI 1991).

    Args:
        source, target: [N, 3] corresponding points. Three or more that are not on one line give a unique answer.
        with_scale: False keeps the scale 1.

    Raises:
        InputError: shapes that differ, values that are not finite, or a ``source`` that is a single point.
    """
    first, second = _point_sets(source, target)
    mean_first, mean_second = first.mean(0), second.mean(0)
    centred = first - mean_first
    variance = float((centred**2).sum(1).mean())
    if with_scale and variance == 0:
        raise InputError("the points to be aligned all lie in one place, so their scale is unknown")
    rotation, values = _rotation_between((second - mean_second).T @ centred / len(first))
    scale = float(values.sum() / variance) if with_scale else 1.0
    if scale <= 0:
        raise InputError("the target points all lie in one place, so no scale can be found")
    return Similarity(scale, rotation, mean_second - scale * rotation @ mean_first)


def align_poses(source: np.ndarray, target: np.ndarray, *, with_scale: bool = True) -> Similarity:
    """:func:`align_points` on the camera centres of camera-to-world matrices [N, 4, 4]."""
    first, second = np.asarray(source, dtype=np.float64), np.asarray(target, dtype=np.float64)
    return align_points(first[:, :3, 3], second[:, :3, 3], with_scale=with_scale)


def _pose_points(poses: np.ndarray, forward: float) -> np.ndarray:
    poses = np.asarray(poses, dtype=np.float64)
    centers = poses[:, :3, 3]
    return centers if forward == 0 else np.concatenate([centers, centers + forward * poses[:, :3, 2]])


def align_poses_procrustes(source: np.ndarray, target: np.ndarray, *, forward: float = 0.0) -> Similarity:
    """Procrustes alignment of camera centres with the scale from RMS radii, as BARF measures (arXiv 2104.06405).

    Args:
        source, target: [N, 4, 4] camera-to-world.
        forward: also align the points at this distance in front of each camera (0: only the centres). A straight
            trajectory leaves the rotation about its line free; these points settle it.

    Raises:
        InputError: shapes that differ, or centres that all lie in one place.
    """
    first, second = _point_sets(_pose_points(source, forward), _pose_points(target, forward))
    mean_first, mean_second = first.mean(0), second.mean(0)
    radius_first = float(np.sqrt(((first - mean_first) ** 2).sum(1).mean()))
    radius_second = float(np.sqrt(((second - mean_second) ** 2).sum(1).mean()))
    if radius_first == 0 or radius_second == 0:
        raise InputError("the camera centres all lie in one place, so their scale is unknown")
    rotation, _ = _rotation_between((second - mean_second).T @ (first - mean_first))
    scale = radius_second / radius_first
    return Similarity(scale, rotation, mean_second - scale * rotation @ mean_first)
