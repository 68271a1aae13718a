# SPDX-License-Identifier: Apache-2.0
"""Paths of a moving camera: between known poses and around them. Poses are camera-to-world [N, 4, 4], OpenCV axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vision3d.errors import InputError
from vision3d.geometry.poses import interpolate_poses


def fill_poses(poses: np.ndarray, known: Sequence[int]) -> np.ndarray:
    """Replace the poses of all other frames by those between their known neighbours.

    Before the first and after the last known frame the motion of the nearest two goes on at its speed.

    Args:
        poses: [N, 4, 4].
        known: frames whose pose is right.

    Raises:
        InputError: no known frame, or one that does not exist.
    """
    filled = _poses(poses).copy()
    frames = sorted(set(known))
    if not frames or frames[0] < 0 or frames[-1] >= len(filled):
        raise InputError(f"known frames must lie in 0 to {len(filled) - 1}, got {frames or 'none'}")
    if len(frames) == 1:
        filled[:] = filled[frames[0]]
        return filled
    for frame in sorted(set(range(len(filled))) - set(frames)):
        place = int(np.clip(np.searchsorted(frames, frame), 1, len(frames) - 1))
        before, after = frames[place - 1], frames[place]
        filled[frame] = _between(filled[before], filled[after], (frame - before) / (after - before))
    return filled


def interpolated_path(poses: np.ndarray, count: int) -> np.ndarray:
    """``count`` poses [count, 4, 4] that pass the given ones in equal times, from the first to the last.

    Raises:
        InputError: no pose, or a count below 1.
    """
    poses = _poses(poses)
    if count < 1:
        raise InputError(f"a path has at least 1 pose, got {count}")
    path = []
    for time in np.linspace(0, len(poses) - 1, count):
        first = min(int(time), max(len(poses) - 2, 0))
        second = min(first + 1, len(poses) - 1)
        path.append(_between(poses[first], poses[second], time - first))
    return np.stack(path)


def spiral_path(
    poses: np.ndarray, focus: float, count: int, *, turns: float = 2.0, radius: float | None = None
) -> np.ndarray:
    """A spiral around the middle of the poses that looks at a point in front of it.

    Args:
        poses: [N, 4, 4].
        focus: distance of that point, unit of the poses.
        count: number of poses of the path.
        turns: circles on the way there; the last pose would be the first one again.
        radius: of the circles; None: the RMS distance of the centres from their middle, at most a quarter of ``focus``
            and at least a twentieth.

    Raises:
        InputError: no pose, a count below 1 or a focus that is not positive.
    """
    poses = _poses(poses)
    if count < 1 or not focus > 0:
        raise InputError(f"a spiral needs 1 pose or more and a positive focus, got {count} and {focus}")
    middle = _middle(poses)
    if radius is None:
        spread = float(np.sqrt(((poses[:, :3, 3] - middle[:3, 3]) ** 2).sum(1).mean()))
        radius = float(np.clip(spread, focus / 20, focus / 4))
    path = []
    for share in np.arange(count) / count:
        angle = 2 * np.pi * turns * share
        offset = radius * np.array([np.cos(angle), 0.5 * np.sin(angle), 0.5 * np.sin(2 * np.pi * share)])
        forward = np.array([0.0, 0.0, focus]) - offset
        forward /= np.linalg.norm(forward)
        right = np.cross([0.0, 1.0, 0.0], forward)
        right /= np.linalg.norm(right)
        local = np.eye(4)
        local[:3] = np.stack([right, np.cross(forward, right), forward, offset], 1)
        path.append(middle @ local)
    return np.stack(path)


def _poses(poses: np.ndarray) -> np.ndarray:
    array = np.asarray(poses, dtype=np.float64)
    if array.ndim != 3 or array.shape[1:] != (4, 4) or not len(array):
        raise InputError(f"poses must be camera-to-world matrices [N, 4, 4], at least one, got {array.shape}")
    return array


def _between(first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
    return interpolate_poses(torch.from_numpy(first), torch.from_numpy(second), float(share)).numpy()


def _middle(poses: np.ndarray) -> np.ndarray:
    """The pose in the middle: the mean of the centres, and the mean of the rotations (chordal L2)."""
    left, _, right = np.linalg.svd(poses[:, :3, :3].mean(0))
    rotation = left @ np.diag([1, 1, np.linalg.det(left @ right)]) @ right
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation, poses[:, :3, 3].mean(0)
    return pose
