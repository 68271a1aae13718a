# SPDX-License-Identifier: Apache-2.0
"""Source views and depth ranges for multi-view stereo, from sparse points (MVSNet's rules) or from poses alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MIN_POINTS = 50
"""Views with fewer sparse points borrow their depth range from others."""

_BEST_ANGLE, _SIGMA_BELOW, _SIGMA_ABOVE = 5.0, 1.0, 10.0


def camera_center(world_to_camera: np.ndarray) -> np.ndarray:
    """Centre [3] of a camera in the world."""
    return -world_to_camera[:3, :3].T @ world_to_camera[:3, 3]


def score_views(points: np.ndarray, visible: np.ndarray, poses: Sequence[np.ndarray]) -> np.ndarray:
    """MVSNet's score of each pair of views (Yao et al., ECCV 2018, section 4.1).

    The sum over common points of ``exp(-(theta - 5)^2 / (2 sigma^2))``, theta being the angle in degrees between the
    rays to the two camera centres, sigma 1 up to 5 degrees and 10 above.

    Args:
        points: [P, 3] positions.
        visible: [N, P] bool, which view sees which point.
        poses: N world-to-camera matrices [4, 4].

    Returns:
        [N, N] float64, symmetric, 0 on the diagonal.
    """
    centers = np.array([camera_center(pose) for pose in poses]).reshape(-1, 3)
    count = len(poses)
    scores = np.zeros((count, count))
    for first in range(count):
        for second in range(first + 1, count):
            common = points[visible[first] & visible[second]]
            if not len(common):
                continue
            rays = centers[first] - common, centers[second] - common
            lengths = np.linalg.norm(rays[0], axis=1) * np.linalg.norm(rays[1], axis=1)
            cosine = np.sum(rays[0] * rays[1], axis=1) / np.maximum(lengths, 1e-300)
            theta = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
            sigma = np.where(theta <= _BEST_ANGLE, _SIGMA_BELOW, _SIGMA_ABOVE)
            scores[first, second] = np.exp(-((theta - _BEST_ANGLE) ** 2) / (2 * sigma**2)).sum()
    return scores + scores.T


def score_poses(poses: Sequence[np.ndarray]) -> np.ndarray:
    """A score of each pair of views where no points are known: near cameras that look the same way come first.

    ``1 / (1 + distance / median distance + angle / 30 degrees)``, 0 where the axes differ by 90 degrees or more.

    Args:
        poses: N world-to-camera matrices [4, 4].

    Returns:
        [N, N] float64, symmetric, 0 on the diagonal.
    """
    if not len(poses):
        return np.zeros((0, 0))
    centers = np.array([camera_center(pose) for pose in poses])
    axes = np.array([pose[2, :3] for pose in poses])
    distance = np.linalg.norm(centers[:, None] - centers[None], axis=-1)
    angle = np.degrees(np.arccos(np.clip(axes @ axes.T, -1, 1)))
    others = distance[~np.eye(len(poses), dtype=bool)]
    scale = max(float(np.median(others)), 1e-12) if others.size else 1.0
    scores = np.where(angle < 90, 1 / (1 + distance / scale + angle / 30), 0.0)
    np.fill_diagonal(scores, 0)
    return scores


def rank_sources(scores: np.ndarray) -> list[list[int]]:
    """For each view the others with a positive score, best first (ties: in the order of the views)."""
    ranked = []
    for row in scores:
        order = np.argsort(-row, kind="stable")
        ranked.append([int(view) for view in order if row[view] > 0])
    return ranked


def depth_range_of_points(depths: np.ndarray, margin: tuple[float, float] = (0.8, 1.25)) -> tuple[float, float] | None:
    """Depth range of a view: 1 % and 99 % of the z of its points, widened by ``margin``; None for too few points.

    MVSNet's converter takes the two quantiles as they are (``margin=(1, 1)``).
    """
    ordered = np.sort(depths[np.isfinite(depths) & (depths > 0)])
    if len(ordered) < MIN_POINTS:
        return None
    near = float(ordered[int(0.01 * len(ordered))]) * margin[0]
    far = float(ordered[int(0.99 * len(ordered))]) * margin[1]
    return (near, far) if near < far else None


def borrow_ranges(
    ranges: Sequence[tuple[float, float] | None], sources: Sequence[Sequence[int]]
) -> list[tuple[float, float] | None]:
    """Fill in missing ranges with the median of the view's sources, else of all views."""
    known = [span for span in ranges if span is not None]
    filled = []
    for span, neighbors in zip(ranges, sources, strict=True):
        near_by = [ranges[view] for view in neighbors[:10] if ranges[view] is not None] or known
        if span is None and near_by:
            near, far = np.median(np.array(near_by, dtype=np.float64), axis=0)
            span = (float(near), float(far))
        filled.append(span)
    return filled
