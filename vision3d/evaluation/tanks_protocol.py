# SPDX-License-Identifier: Apache-2.0
"""The F-score of Tanks and Temples (Knapitsch et al., SIGGRAPH 2017) for scenes with public ground truth.

As the benchmark's toolbox: the cloud is aligned by its cameras, refined by ICP with scale against the ground truth in
three rounds, cropped to the scene's volume, and thinned to half the threshold; precision and recall are the shares of
points with a neighbour nearer than the threshold. Differences: least squares over all cameras instead of RANSAC.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vision3d.errors import FileFormatError, InputError
from vision3d.geometry.pointcloud import voxel_downsample
from vision3d.geometry.poses import align_points
from vision3d.geometry.view_selection import camera_center
from vision3d.io.files import read_bytes
from vision3d.types import PointCloud

THRESHOLDS = {
    "Barn": 0.01,
    "Caterpillar": 0.005,
    "Church": 0.025,
    "Courthouse": 0.025,
    "Ignatius": 0.003,
    "Meetingroom": 0.01,
    "Truck": 0.005,
}
"""Distance threshold of each training scene, metres."""

_MAX_POINTS = 4_000_000


@dataclass(frozen=True)
class CropVolume:
    """A prism: a polygon in two axes, an interval in the third.

    Attributes:
        axis: 0, 1 or 2, the axis of the interval.
        low, high: the interval.
        polygon: [N, 2] corners in the two other axes, in their order.
    """

    axis: int
    low: float
    high: float
    polygon: np.ndarray

    def contains(self, points: np.ndarray) -> np.ndarray:
        """[N] bool of points [N, 3]."""
        others = [axis for axis in range(3) if axis != self.axis]
        along = points[:, self.axis]
        return (along >= self.low) & (along <= self.high) & _in_polygon(points[:, others], self.polygon)


@dataclass(frozen=True)
class TanksScore:
    """Figures of one scene, in percent.

    Attributes:
        precision, recall, fscore: see the module's text.
        threshold: the distance.
        alignment: [4, 4] from the evaluated cloud to the ground truth, scale included.
        points, truth_points: number of compared points.
    """

    precision: float
    recall: float
    fscore: float
    threshold: float
    alignment: np.ndarray
    points: int
    truth_points: int


def read_crop_volume(path: str | os.PathLike[str]) -> CropVolume:
    """Read a scene's ``.json`` (Open3D's SelectionPolygonVolume).

    Raises:
        FileFormatError: missing or damaged file.
    """
    try:
        content = json.loads(read_bytes(path, FileFormatError, "a crop volume"))
        axis = "XYZ".index(str(content["orthogonal_axis"]).upper())
        corners = np.asarray(content["bounding_polygon"], dtype=np.float64).reshape(-1, 3)
        low, high = float(content["axis_min"]), float(content["axis_max"])
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"{path}: no crop volume of Tanks and Temples ({error}): download it again") from error
    return CropVolume(axis, low, high, np.delete(corners, axis, axis=1))


def evaluate_tanks(
    points: np.ndarray,
    truth: np.ndarray,
    volume: CropVolume,
    threshold: float,
    *,
    alignment: np.ndarray | None = None,
    refine: bool = True,
) -> TanksScore:
    """Score a cloud [N, 3] against the ground truth [M, 3] of its scene.

    Args:
        points, truth: the clouds.
        volume: where the ground truth is complete, in its axes.
        threshold: distance in the unit of the ground truth, see :data:`THRESHOLDS`.
        alignment: [4, 4] first alignment, see :func:`align_cameras`; None: the cloud lies in the axes of the truth.
        refine: refine it by ICP.

    Raises:
        InputError: empty or malformed clouds, or a threshold that is not positive.
    """
    for name, cloud in (("evaluated", points), ("true", truth)):
        if np.ndim(cloud) != 2 or np.shape(cloud)[1] != 3 or not len(cloud) or not np.isfinite(cloud).all():
            raise InputError(f"the {name} cloud must be [N, 3] finite points, got shape {np.shape(cloud)}")
    if not threshold > 0:
        raise InputError(f"the threshold must be positive, got {threshold}")
    matrix = np.eye(4) if alignment is None else np.asarray(alignment, dtype=np.float64)
    if refine:
        for voxel, reach in ((threshold, 80 * threshold), (threshold / 2, 20 * threshold), (0.0, 2 * threshold)):
            matrix = _refine(points, truth, volume, matrix, voxel, reach)
    source = _thinned(_cropped(transform(points, matrix), volume), threshold / 2)
    target = _thinned(_cropped(np.asarray(truth, dtype=np.float64), volume), threshold / 2)
    precision, recall = _share(source, target, threshold), _share(target, source, threshold)
    total = precision + recall
    fscore = 2 * precision * recall / total if total > 0 else 0.0
    return TanksScore(precision, recall, fscore, threshold, matrix, len(source), len(target))


def align_cameras(
    estimated: Sequence[np.ndarray], true: Sequence[np.ndarray], truth_transform: np.ndarray | None = None
) -> np.ndarray:
    """[4, 4] similarity that moves the camera centres of estimated poses onto those of true ones (least squares).

    Args:
        estimated, true: world-to-camera matrices [4, 4] of the same images in the same order.
        truth_transform: [4, 4] that moves the axes of the true poses (``{scene}_COLMAP_SfM.log``) to those of the
            scanned cloud (``{scene}_trans.txt``), or None where they agree.

    Raises:
        InputError: fewer than 3 poses, or numbers that differ.
    """
    if len(estimated) != len(true) or len(true) < 3:
        raise InputError(f"{len(estimated)} and {len(true)} poses: 3 or more of the same images are needed")
    first, second = (np.array([camera_center(pose) for pose in poses]) for poses in (estimated, true))
    return align_points(first, second if truth_transform is None else transform(second, truth_transform)).matrix()


def transform(points: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Points [N, 3] moved by a matrix [4, 4]."""
    return np.asarray(points, dtype=np.float64) @ matrix[:3, :3].T + matrix[:3, 3]


def refine_alignment(source: np.ndarray, target: np.ndarray, reach: float, iterations: int = 20) -> np.ndarray:
    """[4, 4] similarity from ``source`` to ``target`` by ICP, point to point, with pairs nearer than ``reach``."""
    from scipy.spatial import cKDTree

    matrix = np.eye(4)
    if len(source) < 3 or len(target) < 3:
        return matrix
    tree, error = cKDTree(target), np.inf
    for _ in range(iterations):
        moved = transform(source, matrix)
        distance, index = tree.query(moved, distance_upper_bound=reach)
        near = np.isfinite(distance)
        if len(np.unique(index[near])) < 3:
            return matrix
        matrix = align_points(source[near], target[index[near]]).matrix()
        before, error = error, float(np.sqrt(np.square(distance[near]).mean()))
        if abs(before - error) < 1e-6 * reach:
            break
    return matrix


def _refine(
    points: np.ndarray, truth: np.ndarray, volume: CropVolume, matrix: np.ndarray, voxel: float, reach: float
) -> np.ndarray:
    """One round of the toolbox: crop and thin both clouds, then ICP. Voxel 0: every n-th point up to 4 million."""
    source = _cropped(transform(points, matrix), volume)
    target = _cropped(np.asarray(truth, dtype=np.float64), volume)
    if voxel > 0:
        source, target = _thinned(source, voxel), _thinned(target, voxel)
    else:
        source, target = (cloud[:: max(1, round(len(cloud) / _MAX_POINTS))] for cloud in (source, target))
    return refine_alignment(source, target, reach) @ matrix


def _cropped(points: np.ndarray, volume: CropVolume) -> np.ndarray:
    return points[volume.contains(points)]


def _thinned(points: np.ndarray, size: float) -> np.ndarray:
    return voxel_downsample(PointCloud(points), size).points.astype(np.float64)


def _share(points: np.ndarray, target: np.ndarray, threshold: float) -> float:
    """Percent of the points with a neighbour nearer than the threshold."""
    from scipy.spatial import cKDTree

    if not len(points) or not len(target):
        return 0.0
    distances, _ = cKDTree(target).query(points)
    return 100.0 * float(np.mean(distances < threshold))


def _in_polygon(points: np.ndarray, polygon: np.ndarray) -> np.ndarray:
    """[N] bool by the even-odd rule."""
    inside = np.zeros(len(points), dtype=bool)
    x, y = points.T
    for (x0, y0), (x1, y1) in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        if y0 == y1:
            continue
        crossing = (y0 > y) != (y1 > y)
        inside ^= crossing & (x < x0 + (y - y0) * (x1 - x0) / (y1 - y0))
    return inside
