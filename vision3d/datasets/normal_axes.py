# SPDX-License-Identifier: Apache-2.0
"""Whether the normals of a data set have the axes of this library: compared with the normals of the disparity."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from vision3d.geometry.normals import UNIT_TOLERANCE, fit_normals
from vision3d.types import StereoRig, StereoSample

CHECKED_PAIRS = 4  # of a large set
FEW_PAIRS = 8  # a set of up to so many is checked as a whole
_RADIUS = 2  # pixels, of the planes fitted to the true disparity
_FLAT = 2.0  # degrees between the planes of two radii, below which a pixel is used
_LEAST_PIXELS = 200  # a pair, to judge it for itself
_NAMED_SCENES = 3
Convention = tuple[str, str, str]
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
        scenes: the pairs that this was found for.
        checked: how many pairs were looked at.
    """

    angle: float
    best: Convention
    best_angle: float
    pixels: int
    scenes: tuple[str, ...] = ()
    checked: int = 0

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
            f"{_describe(self.best)}: convert them to x right, y down, z forward as ({', '.join(self.best)}); "
            f"{self._where}"
        )

    @property
    def _where(self) -> str:
        """How many of the checked pairs these are, and their names."""
        names = ", ".join(name or "without a name" for name in self.scenes[:_NAMED_SCENES])
        more = f" and {len(self.scenes) - _NAMED_SCENES} more" if len(self.scenes) > _NAMED_SCENES else ""
        return f"{len(self.scenes)} of {self.checked} checked pairs: {names}{more}"


@dataclass
class _Sums:
    """Sums over pixels of angles for every signed permutation of the axes."""

    scenes: tuple[str, ...] = ()
    angles: dict[Convention, float] = field(default_factory=dict)
    pixels: int = 0

    def finding(self, checked: int) -> AxesFinding:
        """The convention that fits best; needs at least one pixel."""
        means = {name: total / self.pixels for name, total in self.angles.items()}
        best = min(means, key=lambda name: (round(means[name], 6), name != ("x", "y", "z")))
        return AxesFinding(means["x", "y", "z"], best, means[best], self.pixels, self.scenes, checked)


def find_axes(samples: Iterable[StereoSample], pairs: int = FEW_PAIRS) -> list[AxesFinding]:
    """Compare the normals of the first ``pairs`` samples with those of their disparity, for all 48 axis conventions.

    Only pixels on flat surfaces count. Normals pointing away from the camera are a convention of their own (all signs
    turned). Each pair is judged for itself, so that a single wrong one shows.

    Returns:
        One finding for each wrong convention, over the pairs that have it, those of most pairs first. Without any, one
        over all pairs. None (an empty list) where the samples do not say: no normals, disparity or calibration, or too
        few flat pixels.
    """
    sums = [
        _measure(sample.scene, sample.normals, sample.disparity, sample.rig)
        for sample in itertools.islice(samples, pairs)
        if sample.normals is not None and sample.disparity is not None and sample.rig is not None
    ]
    wrong: dict[Convention, list[_Sums]] = {}
    for one in sums:
        if one.pixels >= _LEAST_PIXELS and (finding := one.finding(1)).wrong:
            wrong.setdefault(finding.best, []).append(one)
    if wrong:
        groups = sorted(wrong.values(), key=len, reverse=True)
        return [_pooled(group).finding(len(sums)) for group in groups]
    every = _pooled(sums)
    return [every.finding(len(sums))] if every.pixels >= _LEAST_PIXELS else []


def check_normal_axes(samples: Iterable[StereoSample], pairs: int = FEW_PAIRS) -> AxesFinding | None:
    """The first of :func:`find_axes`, or None.

    Example:
        >>> from vision3d.datasets.registry import open_dataset  # doctest: +SKIP
        >>> check_normal_axes(open_dataset("irs", "data/irs", "test")).message  # doctest: +SKIP
        'normals are 6.1 degrees from those of the disparity: their axes fit'
    """
    return next(iter(find_axes(samples, pairs)), None)


def spread_indices(length: int | None, count: int = CHECKED_PAIRS) -> list[int]:
    """``count`` indices spread over a data set of ``length`` (None: without end); all of up to ``FEW_PAIRS``."""
    if length is None:
        return list(range(count))
    if length <= FEW_PAIRS:
        return list(range(length))
    return sorted({index * length // count for index in range(count)})


def _pooled(parts: list[_Sums]) -> _Sums:
    """The sums over several pairs."""
    total = _Sums(tuple(name for part in parts for name in part.scenes))
    for part in parts:
        total.pixels += part.pixels
        for name, angle in part.angles.items():
            total.angles[name] = total.angles.get(name, 0.0) + angle
    return total


def _measure(scene: str, normals: np.ndarray, disparity: np.ndarray, rig: StereoRig) -> _Sums:
    """The sums of one pair."""
    disparity = np.asarray(disparity, np.float64)
    options = {"doffs": rig.doffs, "edge_aware": False}
    near, far = (
        np.asarray(fit_normals(disparity, rig.left, radius, **options))  # type: ignore[arg-type]
        for radius in (_RADIUS, 2 * _RADIUS)
    )
    stored = np.asarray(normals, np.float64)
    with np.errstate(invalid="ignore"):
        flat = (near * far).sum(axis=2) > np.cos(np.radians(_FLAT))
        usable = flat & (np.abs(np.linalg.norm(stored, axis=2) - 1) <= UNIT_TOLERANCE)
    usable &= np.isfinite(stored).all(axis=2)
    truth, given = near[usable], stored[usable]
    step = max(1, len(truth) // _MOST_PIXELS)
    truth, given = truth[::step], given[::step]
    sums = _Sums((scene,), pixels=len(truth))
    for order in itertools.permutations(range(3)):
        for signs in itertools.product((1.0, -1.0), repeat=3):
            cosine = (truth * given[:, order] * signs).sum(axis=1)
            name = tuple(("" if sign > 0 else "-") + "xyz"[axis] for axis, sign in zip(order, signs, strict=True))
            sums.angles[name] = float(np.degrees(np.arccos(np.clip(cosine, -1, 1))).sum())  # type: ignore[index]
    return sums


def _describe(convention: Convention) -> str:
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
