# SPDX-License-Identifier: Apache-2.0
"""Checks of a whole stereo data set: files, sizes, values, and whether the views fit the disparities."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from vision3d.datasets.pairs import StereoPairs, read_pair
from vision3d.errors import FileFormatError
from vision3d.io.files import atomic_write
from vision3d.types import StereoSample


@dataclass(frozen=True)
class PairProblem:
    """A pair that should not be used, and why."""

    scene: str
    problem: str


def verify_pairs(
    data: StereoPairs,
    size: tuple[int, int] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[PairProblem]:
    """Read every pair and say which are wrong.

    Args:
        data: the set; pairs that were skipped when it was opened count as wrong.
        size: (width, height) that every pair must have (IRS: 960, 540), or None.
        progress: called before each pair with its number, the number of pairs, and its name.

    Returns:
        The wrong pairs, each with the first thing that is wrong with it.
    """
    problems = [PairProblem(scene, message) for scene, message in data.skipped.items()]
    for number, entry in enumerate(data.entries):
        if progress is not None:
            progress(number, len(data.entries), entry.scene)
        try:
            found = find_problem(read_pair(entry), size)
        except FileFormatError as error:
            found = str(error)
        if found is not None:
            problems.append(PairProblem(entry.scene, found))
    return problems


def find_problem(sample: StereoSample, size: tuple[int, int] | None = None) -> str | None:
    """The first thing that is wrong with a pair, or None.

    Checked: the size; some known disparity, all in (0, width); normals of unit length within 2 %; that the right view
    fits ``x - d`` better than ``x + d`` (swapped views, or the map of the other view).
    """
    height, width = sample.left.shape[:2]
    if size is not None and (width, height) != size:
        return f"is {width}x{height}, {size[0]}x{size[1]} is expected"
    if sample.disparity is None:
        return None
    known = sample.disparity[np.isfinite(sample.disparity)]
    if known.size == 0:
        return "has no known disparity"
    if known.min() < 0 or known.max() >= width:
        return f"has disparities {known.min():.4g} to {known.max():.4g}, within 0 and the width {width} are expected"
    if sample.normals is not None:
        lengths = np.linalg.norm(sample.normals, axis=-1)
        bad = int((np.abs(lengths[np.isfinite(lengths)] - 1) > 0.02).sum())
        if bad or not np.isfinite(lengths).any():
            return f"has {bad} normals whose length is not 1 within 2 %" if bad else "has no valid normal"
    right, wrong = (_difference(sample, sign) for sign in (-1, 1))
    if np.isfinite(right) and np.isfinite(wrong) and wrong + 2 < 0.7 * right:
        return f"fits x + d ({wrong:.1f} grey levels) better than x - d ({right:.1f}): are the views swapped?"
    return None


def _difference(sample: StereoSample, sign: int) -> float:
    """Mean absolute colour difference of the left view and the right view at ``x + sign * d``; NaN if nothing fits."""
    disparity = np.asarray(sample.disparity)
    x = np.rint(np.arange(disparity.shape[1]) + sign * disparity)
    inside = np.isfinite(x) & (x >= 0) & (x < disparity.shape[1])
    rows, columns = np.nonzero(inside)
    if rows.size == 0:
        return float("nan")
    other = sample.right[rows, x[inside].astype(int)].astype(np.float32)
    return float(np.abs(other - sample.left[rows, columns]).mean())


def write_skip_file(path: str | os.PathLike[str], problems: Iterable[PairProblem]) -> None:
    """Write a skip list for the option ``skip_file``: one scene a line, the reason behind ``#``.

    Raises:
        OutputError: the place is not writable.
    """
    lines = [f"{item.scene}  # {' '.join(item.problem.split())}" for item in problems]
    with atomic_write(path) as temporary:
        temporary.write_text("\n".join(["# scenes to leave out", *lines]) + "\n", encoding="utf-8")
