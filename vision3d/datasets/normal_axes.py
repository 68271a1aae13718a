# SPDX-License-Identifier: Apache-2.0
"""Whether the normals of a data set have the axes of this library: compared with the normals of the disparity."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from vision3d.geometry.normals import fit_normals
from vision3d.types import StereoRig, StereoSample

CHECKED_PAIRS = 4
_RADIUS = 2  # pixels, of the planes fitted to the true disparity
_FLAT = 2.0  # degrees between the planes of two radii, below which a pixel is used
_LEAST_PIXELS = 200
_MOST_PIXELS = 20_000  # a pair
_FAR_OFF = 25.0  # mean degrees from which the axes may be wrong ...
_BETTER = 0.5  # ... if another convention has less than this share of them


@dataclass(frozen=True)
class AxesFinding:
    """How the stored normals fit the disparity.

    Attributes:
        angle: mean angle in degrees to the normals of the disparity, as stored.
        best: the convention that fits best, e.g. ``("x", "-y", "-z")``: the stored components that make up x right,
            y down, z forward.
        best_angle: its mean angle in degrees.
        pixels: how many were compared.
    """

    angle: float
    best: tuple[str, str, str]
    best_angle: float
    pixels: int

    @property
    def wrong(self) -> bool:
        """Whether another convention fits clearly better."""
        return self.angle > _FAR_OFF and self.best_angle < _BETTER * self.angle

    @property
    def message(self) -> str:
        """The finding in one sentence."""
        if not self.wrong:
            return f"normals are {self.angle:.1f} degrees from those of the disparity: their axes fit"
        return (
            f"normals are {self.angle:.0f} degrees from those of the disparity, but {self.best_angle:.1f} with "
            f"{_describe(self.best)}: convert them to x right, y down, z forward as ({', '.join(self.best)})"
        )


@dataclass
class _Sums:
    """Sums over pixels of angles for every signed permutation of the axes."""

    angles: dict[tuple[str, str, str], float] = field(default_factory=dict)
    pixels: int = 0


def check_normal_axes(samples: Iterable[StereoSample], pairs: int = CHECKED_PAIRS) -> AxesFinding | None:
    """Compare the normals of the first ``pairs`` samples with those of their disparity, for all 48 axis conventions.

    Only pixels on flat surfaces count. Normals pointing away from the camera are a convention of their own (all signs
    turned). None where the samples do not say: no normals, disparity or calibration, or too few flat pixels.

    Example:
        >>> from vision3d.datasets.registry import open_dataset  # doctest: +SKIP
        >>> check_normal_axes(open_dataset("irs", "data/irs", "test")).message  # doctest: +SKIP
        'normals are 6.1 degrees from those of the disparity: their axes fit'
    """
    sums = _Sums()
    for sample in itertools.islice(samples, pairs):
        if sample.normals is not None and sample.disparity is not None and sample.rig is not None:
            _add(sums, sample.normals, sample.disparity, sample.rig)
    if sums.pixels < _LEAST_PIXELS:
        return None
    means = {name: total / sums.pixels for name, total in sums.angles.items()}
    best = min(means, key=lambda name: (round(means[name], 6), name != ("x", "y", "z")))
    return AxesFinding(means["x", "y", "z"], best, means[best], sums.pixels)


def spread_indices(length: int | None, count: int = CHECKED_PAIRS) -> list[int]:
    """``count`` indices spread over a data set of ``length`` (None: without end)."""
    if length is None:
        return list(range(count))
    return sorted({index * length // count for index in range(count)}) if length else []


def _add(sums: _Sums, normals: np.ndarray, disparity: np.ndarray, rig: StereoRig) -> None:
    disparity = np.asarray(disparity, np.float64)
    options = {"doffs": rig.doffs, "edge_aware": False}
    near, far = (
        np.asarray(fit_normals(disparity, rig.left, radius, **options))  # type: ignore[arg-type]
        for radius in (_RADIUS, 2 * _RADIUS)
    )
    stored = np.asarray(normals, np.float64)
    with np.errstate(invalid="ignore"):
        flat = (near * far).sum(axis=2) > np.cos(np.radians(_FLAT))
        usable = flat & (np.abs(np.linalg.norm(stored, axis=2) - 1) < 0.05)
    usable &= np.isfinite(stored).all(axis=2)
    truth, given = near[usable], stored[usable]
    step = max(1, len(truth) // _MOST_PIXELS)
    truth, given = truth[::step], given[::step]
    sums.pixels += len(truth)
    for order in itertools.permutations(range(3)):
        for signs in itertools.product((1.0, -1.0), repeat=3):
            cosine = (truth * given[:, order] * signs).sum(axis=1)
            name = tuple(("" if sign > 0 else "-") + "xyz"[axis] for axis, sign in zip(order, signs, strict=True))
            angle = float(np.degrees(np.arccos(np.clip(cosine, -1, 1))).sum())
            sums.angles[name] = sums.angles.get(name, 0.0) + angle  # type: ignore[index,arg-type]


def _describe(convention: tuple[str, str, str]) -> str:
    """The convention in words: which axes are exchanged and which turned around."""
    if convention == ("-x", "-y", "-z"):
        return "all three turned around (they point away from the camera)"
    order = [name[-1] for name in convention]
    turned = [name[-1] for name in convention if name.startswith("-")]
    moved = [axis for axis, name in zip("xyz", order, strict=True) if axis != name]
    parts = [f"{' and '.join(moved)} exchanged"] if len(moved) == 2 else []
    parts += ["x, y and z in another order"] if len(moved) == 3 else []
    parts += [f"{' and '.join(turned)} turned around"] if turned else []
    return " and ".join(parts) or "the same axes"
