# SPDX-License-Identifier: Apache-2.0
"""The DTU score of a point cloud: accuracy, completeness and their mean, as the benchmark's MATLAB code computes them.

Jensen et al., "Large Scale Multi-view Stereopsis Evaluation", CVPR 2014; Aanaes et al., IJCV 2016. Units millimetres.
Differences from MATLAB: the random order of the thinning (a fixed seed here).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vision3d.errors import FileFormatError, InputError
from vision3d.io.files import read_bytes
from vision3d.io.pointcloud import read_pointcloud

DENSITY = 0.2
"""Evaluated clouds are thinned until no two points are this near, mm."""

SEARCH = 60.0
"""Neighbours are looked for up to this distance, in cells of this edge, mm."""

OUTLIER = 20.0
"""Distances from here on are left out of the means, mm."""

_CHUNK = 50_000


@dataclass(frozen=True)
class DtuTruth:
    """The reference of one scan.

    Attributes:
        points: [N, 3] the scanned surface (``stl%03d_total.ply``).
        mask: [X, Y, Z] bool, the cells that were observed.
        box: [2, 3] least and largest corner of the cells.
        resolution: edge of a cell.
        plane: [4] points with ``plane . (x, y, z, 1) > 0`` lie above the table.
    """

    points: np.ndarray
    mask: np.ndarray
    box: np.ndarray
    resolution: float
    plane: np.ndarray


@dataclass(frozen=True)
class DtuScore:
    """Figures of one scan, mm.

    Attributes:
        accuracy, completeness: mean distances from the evaluated cloud to the reference, and back.
        overall: their mean.
        accuracy_median, completeness_median: medians of the same distances.
        evaluated, reference: number of points inside the mask, and above the plane (outliers among them).
    """

    accuracy: float
    completeness: float
    overall: float
    accuracy_median: float
    completeness_median: float
    evaluated: int
    reference: int


def read_dtu_truth(root: str | os.PathLike[str], scan: int) -> DtuTruth:
    """Read the reference of a scan from ``SampleSet/MVS Data`` (or its parents) and ``Points/stl``.

    Raises:
        FileFormatError: a file is missing or damaged.
    """
    base = Path(root)
    names = (f"ObsMask/ObsMask{scan}_10.mat", f"ObsMask/Plane{scan}.mat", f"Points/stl/stl{scan:03d}_total.ply")
    places = (base, base / "MVS Data", base / "SampleSet/MVS Data")
    files = [next((place / name for place in places if (place / name).is_file()), base / name) for name in names]
    mask, plane = _read_mat(files[0], ("ObsMask", "BB", "Res")), _read_mat(files[1], ("P",))
    sizes = {name: np.size(part[name]) for part, name in ((mask, "BB"), (mask, "Res"), (plane, "P"))}
    if sizes != {"BB": 6, "Res": 1, "P": 4} or np.ndim(mask["ObsMask"]) != 3 or not np.ravel(mask["Res"])[0] > 0:
        raise FileFormatError(f"{files[0]}, {files[1]}: a mask, a box, a cell size and a plane are expected: {sizes}")
    return DtuTruth(
        points=read_pointcloud(files[2]).points.astype(np.float64),
        mask=np.asarray(mask["ObsMask"]).astype(bool),
        box=np.asarray(mask["BB"], dtype=np.float64).reshape(2, 3),
        resolution=float(np.ravel(mask["Res"])[0]),
        plane=np.asarray(plane["P"], dtype=np.float64).ravel(),
    )


def evaluate_dtu(
    points: np.ndarray, truth: DtuTruth, *, density: float = DENSITY, outlier: float = OUTLIER, seed: int = 0
) -> DtuScore:
    """Score a cloud [N, 3] against the reference of its scan.

    Args:
        points: the evaluated cloud, mm.
        truth: see :func:`read_dtu_truth`.
        density: thinning of the evaluated cloud (0: none; the reference is thinned already).
        outlier: see :data:`OUTLIER`.
        seed: of the order of the thinning.

    Raises:
        InputError: no points, not [N, 3], or not finite. (Where no distance counts, a mean is NaN.)
    """
    data = np.asarray(points, dtype=np.float64)
    if data.ndim != 2 or data.shape[1] != 3 or not len(data) or not np.isfinite(data).all():
        raise InputError(f"the evaluated cloud must be [N, 3] finite points, got shape {data.shape}")
    if density > 0:
        data = data[thin_points(data, density, seed)]
    to_reference = box_distances(data, truth.points, truth.box)[points_in_mask(data, truth)]
    above = np.column_stack([truth.points, np.ones(len(truth.points))]) @ truth.plane > 0
    to_data = box_distances(truth.points, data, truth.box)[above]
    accuracy, accuracy_median = _statistics(to_reference[to_reference < outlier])
    completeness, completeness_median = _statistics(to_data[to_data < outlier])
    return DtuScore(
        accuracy=accuracy,
        completeness=completeness,
        overall=(accuracy + completeness) / 2,
        accuracy_median=accuracy_median,
        completeness_median=completeness_median,
        evaluated=len(to_reference),
        reference=len(to_data),
    )


def average_scores(scores: Mapping[int, DtuScore]) -> dict[str, float]:
    """Means over scans of accuracy, completeness and overall, as papers report them; NaN for none."""
    names = ("accuracy", "completeness", "overall")
    if not scores:
        return dict.fromkeys(names, float("nan"))
    return {name: float(np.mean([getattr(score, name) for score in scores.values()])) for name in names}


def thin_points(points: np.ndarray, distance: float, seed: int = 0) -> np.ndarray:
    """[N] bool: which points stay; visited in random order, each drops all others within ``distance`` (inclusive)."""
    from scipy.spatial import cKDTree

    tree, kept = cKDTree(points), np.ones(len(points), dtype=bool)
    order = np.random.default_rng(seed).permutation(len(points))
    for start in range(0, len(order), _CHUNK):
        part = order[start : start + _CHUNK]
        for index, near in zip(part, tree.query_ball_point(points[part], distance), strict=True):
            if kept[index] and len(near) > 1:
                kept[near] = False
                kept[index] = True
    return kept


def box_distances(points: np.ndarray, target: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Distance of each point to the nearest of ``target``, :data:`SEARCH` where that is farther.

    Points outside of the cells of edge :data:`SEARCH` that begin at ``box[0]`` and cover the box count as
    :data:`SEARCH` as well.
    """
    from scipy.spatial import cKDTree

    cells = np.floor((box[1] - box[0]) / SEARCH) + 1
    inside = np.all((points >= box[0]) & (points < box[0] + cells * SEARCH), axis=1)
    distances = np.full(len(points), SEARCH)
    if len(target) and inside.any():
        found, _ = cKDTree(target).query(points[inside], distance_upper_bound=SEARCH)
        distances[inside] = np.minimum(found, SEARCH)
    return distances


def points_in_mask(points: np.ndarray, truth: DtuTruth) -> np.ndarray:
    """[N] bool: the cell of the point, ``round((x - box[0]) / resolution)``, exists and was observed."""
    # MATLAB rounds halves away from zero.
    cells = np.floor((points - truth.box[0]) / truth.resolution + 0.5).astype(np.int64)
    exists = np.all((cells >= 0) & (cells < truth.mask.shape), axis=1)
    seen = np.zeros(len(points), dtype=bool)
    seen[exists] = truth.mask[tuple(cells[exists].T)]
    return seen


def _statistics(distances: np.ndarray) -> tuple[float, float]:
    if not distances.size:
        return float("nan"), float("nan")
    return float(distances.mean()), float(np.median(distances))


def _read_mat(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    import io
    import zlib

    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    content = read_bytes(path, FileFormatError, "a file of the DTU evaluation")
    try:
        found: dict[str, Any] = loadmat(io.BytesIO(content))
    except (MatReadError, ValueError, TypeError, NotImplementedError, OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"{path}: no MATLAB file that can be read ({error}): download it again") from error
    missing = [name for name in names if name not in found]
    if missing:
        raise FileFormatError(f"{path}: holds no {', '.join(missing)}: it is another file than the evaluation's")
    return found
