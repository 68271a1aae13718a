# SPDX-License-Identifier: Apache-2.0
"""Errors of camera trajectories: ATE, RPE, rotation and focal length.

Trajectories are camera-to-world matrices [N, 4, 4] of the same frames. A method that knows no scale is aligned by
Sim(3) first; say so beside every figure. Definitions: Sturm et al., "A benchmark for the evaluation of RGB-D SLAM
systems", IROS 2012; Zhang and Scaramuzza, "A tutorial on quantitative trajectory evaluation", IROS 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from vision3d.errors import ConfigError, InputError
from vision3d.geometry.poses import Similarity, align_poses, align_poses_procrustes

Alignment = Literal["sim3", "se3", "procrustes", "none"]


@dataclass(frozen=True)
class TrajectoryErrors:
    """Errors after alignment; lengths in the unit of the true trajectory, angles in degrees.

    Attributes:
        alignment: from the estimate to the truth.
        translation: [N] distance of each camera centre from the true one.
        rotation: [N] angle between each orientation and the true one.
        relative_translation, relative_rotation: [N - delta] errors of the motion over ``delta`` frames.
    """

    alignment: Similarity
    translation: np.ndarray
    rotation: np.ndarray
    relative_translation: np.ndarray
    relative_rotation: np.ndarray

    @property
    def ate_rmse(self) -> float:
        """Root mean square of the centres' distances (the usual ATE)."""
        return float(np.sqrt(np.mean(self.translation**2)))

    @property
    def ate_mean(self) -> float:
        """Mean of the centres' distances."""
        return float(np.mean(self.translation))

    @property
    def rotation_mean(self) -> float:
        """Mean angle, degrees."""
        return float(np.mean(self.rotation))

    @property
    def rpe_translation(self) -> float:
        """Mean relative translation error (NaN for a single frame)."""
        return float(np.mean(self.relative_translation)) if len(self.relative_translation) else float("nan")

    @property
    def rpe_rotation(self) -> float:
        """Mean relative rotation error in degrees (NaN for a single frame)."""
        return float(np.mean(self.relative_rotation)) if len(self.relative_rotation) else float("nan")

    def summary(self) -> dict[str, float]:
        """All figures by name."""
        return {
            "ate_rmse": self.ate_rmse,
            "ate_mean": self.ate_mean,
            "rotation_mean_deg": self.rotation_mean,
            "rpe_translation": self.rpe_translation,
            "rpe_rotation_deg": self.rpe_rotation,
            "scale": self.alignment.scale,
        }


def rotation_angle(rotations: np.ndarray) -> np.ndarray:
    """Angle in degrees, [0, 180], of rotation matrices [..., 3, 3]; exact near 0 and 180 too."""
    matrix = np.asarray(rotations, dtype=np.float64)
    axis = np.stack(
        [
            matrix[..., 2, 1] - matrix[..., 1, 2],
            matrix[..., 0, 2] - matrix[..., 2, 0],
            matrix[..., 1, 0] - matrix[..., 0, 1],
        ],
        -1,
    )
    cosine = np.trace(matrix, axis1=-2, axis2=-1) - 1
    return np.degrees(np.arctan2(np.linalg.norm(axis, axis=-1), cosine))


def rotation_errors(estimated: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Angle in degrees between corresponding rotations [..., 3, 3]."""
    first, second = np.asarray(estimated, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    return rotation_angle(np.swapaxes(first, -1, -2) @ second)


def relative_pose_errors(estimated: np.ndarray, truth: np.ndarray, delta: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Error of the motion from each frame to the one ``delta`` later (RPE).

    Args:
        estimated, truth: [N, 4, 4] camera-to-world, the estimate with its scale set already.
        delta: frames between the two.

    Returns:
        Lengths and angles (degrees), each [max(N - delta, 0)].

    Raises:
        InputError: trajectories of different shapes, or ``delta`` below 1.
    """
    first, second = _trajectories(estimated, truth)
    if delta < 1:
        raise InputError(f"relative pose errors over {delta} frames: give at least 1")
    moves = [np.linalg.inv(poses[:-delta]) @ poses[delta:] for poses in (first, second)]
    error = np.linalg.inv(moves[1]) @ moves[0]
    return np.linalg.norm(error[:, :3, 3], axis=-1), rotation_angle(error[:, :3, :3])


def trajectory_errors(
    estimated: np.ndarray, truth: np.ndarray, *, alignment: Alignment = "sim3", delta: int = 1
) -> TrajectoryErrors:
    """Align an estimated trajectory to the true one and measure it.

    Args:
        estimated, truth: [N, 4, 4] camera-to-world.
        alignment: "sim3" (Umeyama on the camera centres, rotations by the same rotation), "se3" (no scale),
            "procrustes" (the BARF family's: scale from RMS radii) or "none".
        delta: frames of the relative errors.

    Raises:
        InputError: trajectories that differ in length, are not finite, or stand still.
        ConfigError: an unknown alignment.
    """
    first, second = _trajectories(estimated, truth)
    if alignment == "procrustes":
        motion = align_poses_procrustes(first, second)
    elif alignment in ("sim3", "se3"):
        motion = align_poses(first, second, with_scale=alignment == "sim3")
    elif alignment == "none":
        motion = Similarity(1.0, np.eye(3), np.zeros(3))
    else:
        raise ConfigError(f"unknown alignment '{alignment}': choose sim3, se3, procrustes or none")
    aligned = motion.apply_to_poses(first)
    relative = relative_pose_errors(aligned, second, delta)
    distances = np.linalg.norm(aligned[:, :3, 3] - second[:, :3, 3], axis=-1)
    return TrajectoryErrors(motion, distances, rotation_errors(aligned[:, :3, :3], second[:, :3, :3]), *relative)


def normalize_trajectory(poses: np.ndarray) -> np.ndarray:
    """The trajectory [N, 4, 4] with its centres' mean at 0 and their RMS radius 1, to compare scenes of any scale.

    Raises:
        InputError: a trajectory that stands still.
    """
    poses = np.array(poses, dtype=np.float64)
    poses[:, :3, 3] -= poses[:, :3, 3].mean(0)
    radius = np.sqrt((poses[:, :3, 3] ** 2).sum(1).mean())
    if radius == 0:
        raise InputError("the trajectory stands still, so it has no scale to set to 1")
    poses[:, :3, 3] /= radius
    return poses


def focal_error(estimated: float, truth: float) -> float:
    """Relative error ``|f - f_true| / f_true`` of a focal length."""
    return abs(estimated - truth) / truth


def _trajectories(estimated: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.asarray(estimated, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 3 or first.shape[1:] != (4, 4) or not len(first):
        raise InputError(
            f"trajectories must be two lists of camera-to-world matrices [N, 4, 4] of the same frames, got "
            f"{first.shape} and {second.shape}"
        )
    return first, second
