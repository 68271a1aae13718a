# SPDX-License-Identifier: Apache-2.0
"""Whether a disparity map explains the other view of its pair, however the two views are exposed.

Patches of 9x9 pixels of the left image are compared with the right image at ``x - d`` by zero-mean normalised
cross-correlation, which does not change with brightness and contrast; pixels that the map itself shows to be hidden are
left out. The same is done for wrong maps made from the given one (zero, negated, halved, doubled, upside down,
mirrored), each at the pixels where it differs by more than 2 pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

MIN_SIMILARITY = 0.35
"""Mean correlation below which a map does not explain the other view."""
MIN_MARGIN = 0.1
"""How much better a right map must be than the zero, negated, halved and doubled one."""
FLIP_MARGIN = -0.03
"""The same for flipped maps. They may be similar to the right one, so only a clearly better one counts."""

_RADIUS = 4
_MIN_TEXTURE = 3.0
_MIN_DIFFERENCE = 2.0
_MIN_POINTS = 50
_MIN_SHARE = 0.05
_MAX_OUTSIDE = 0.75

WRONG_MAPS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, str]] = {
    "zero": (np.zeros_like, MIN_MARGIN, "the views fit better without any shift"),
    "negated": (
        np.negative,
        MIN_MARGIN,
        "fits x + d better than x - d: are the views swapped, or is the sign flipped?",
    ),
    "halved": (lambda d: d / 2, MIN_MARGIN, "the map fits better when halved: its scale is wrong"),
    "doubled": (lambda d: d * 2, MIN_MARGIN, "the map fits better when doubled: its scale is wrong"),
    "upside down": (lambda d: d[::-1], FLIP_MARGIN, "the map fits better when turned upside down"),
    "mirrored": (lambda d: d[:, ::-1], FLIP_MARGIN, "the map fits better when mirrored"),
}
"""How wrong maps are made, the margin that the right one must have, and what it means if it does not."""


@dataclass(frozen=True)
class Explanation:
    """How well a map explains the other view.

    Attributes:
        similarity: mean correlation over the compared pixels, in [-1, 1].
        margin: how much it is above a wrong map, both at the pixels where they differ: the most critical one.
        rival: the name of that map.
        points: the number of compared pixels.
        outside: share of the known pixels whose match lies outside of the other image.
    """

    similarity: float
    margin: float
    rival: str
    points: int
    outside: float

    @property
    def problem(self) -> str | None:
        """What is wrong in a few words, or None."""
        if self.outside > _MAX_OUTSIDE:
            return f"{self.outside:.0%} of the pixels have their match outside of the other image"
        if not self.points:
            return None
        if self.margin < FLIP_MARGIN:
            return WRONG_MAPS[self.rival][2]
        if self.similarity < MIN_SIMILARITY or self.margin < WRONG_MAPS[self.rival][1]:
            return "the map does not explain the other view (it may belong to another pair)"
        return None


def explain(
    left: np.ndarray,
    right: np.ndarray,
    disparity: np.ndarray,
    occlusion: np.ndarray | None = None,
    max_points: int = 3000,
) -> Explanation | None:
    """Compare the views through the disparity map, and through wrong ones.

    Args:
        left, right: [H, W, 3] uint8.
        disparity: [H, W] pixels of ``left``, NaN where unknown.
        occlusion: [H, W] bool, pixels to leave out, or None.
        max_points: about how many pixels are compared (evenly spread).

    Returns:
        None if there is nothing to compare: too small, no texture, or no wrong map that differs.
    """
    known = np.isfinite(disparity)
    with np.errstate(invalid="ignore"):
        match = np.arange(disparity.shape[1]) - disparity
        inside = known & (match >= 0) & (match <= disparity.shape[1] - 1)
    outside = float(1 - inside.sum() / max(known.sum(), 1))
    if outside > _MAX_OUTSIDE and known.any():
        return Explanation(-1.0, -1.0, "", 0, outside)
    first, second = _grey(left), _grey(right)
    usable = inside & _textured(first) & ~_hidden(disparity, inside)
    usable[:_RADIUS] = usable[-_RADIUS:] = False
    usable[:, :_RADIUS] = usable[:, -_RADIUS:] = False
    if occlusion is not None:
        usable &= ~occlusion
    places = np.flatnonzero(usable)
    places = places[:: max(1, len(places) // max_points)]
    y, x = np.divmod(places, disparity.shape[1])
    if len(places) < _MIN_POINTS:
        return None
    truth = disparity[y, x]
    similarity = _correlation(first, second, y, x, truth)
    gains = {}
    for name, (change, _, _) in WRONG_MAPS.items():
        wrong = change(disparity)[y, x]
        apart = np.isfinite(wrong) & (np.abs(wrong - truth) > _MIN_DIFFERENCE)
        if apart.sum() >= max(_MIN_POINTS, _MIN_SHARE * len(places)):
            other = _correlation(first, second, y[apart], x[apart], wrong[apart])
            gains[name] = float((similarity[apart] - other).mean())
    if not gains:
        return None
    rival = min(gains, key=lambda name: gains[name] - WRONG_MAPS[name][1])
    return Explanation(float(similarity.mean()), gains[rival], rival, len(places), outside)


def _grey(image: np.ndarray) -> np.ndarray:
    return image.mean(axis=2, dtype=np.float32)


def _textured(grey: np.ndarray) -> np.ndarray:
    """[H, W] bool: the patch around the pixel has some contrast."""
    import cv2

    size = (2 * _RADIUS + 1, 2 * _RADIUS + 1)
    mean = cv2.blur(grey, size)
    return np.asarray(cv2.blur(grey * grey, size) - mean * mean > _MIN_TEXTURE**2)


def _hidden(disparity: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """[H, W] bool: another pixel of the row, with a disparity larger by more than 1, matches the same right pixel."""
    rows, columns = np.nonzero(inside)
    known = disparity[rows, columns]
    target = rows * disparity.shape[1] + np.rint(columns - known).astype(np.int64)
    nearest = np.full(disparity.size, -np.inf, dtype=np.float32)
    np.maximum.at(nearest, target, known)
    hidden = np.zeros(disparity.shape, dtype=bool)
    hidden[rows, columns] = nearest[target] > known + 1
    return hidden


def _correlation(left: np.ndarray, right: np.ndarray, y: np.ndarray, x: np.ndarray, d: np.ndarray) -> np.ndarray:
    """[N] correlation of the patches of ``left`` at (x, y) and of ``right`` at (x - d, y), linear between columns."""
    steps = np.arange(-_RADIUS, _RADIUS + 1)
    rows, columns = y[:, None, None] + steps[:, None], x[:, None, None] + steps
    last = right.shape[1] - 1
    shifted = np.clip(columns - d[:, None, None], 0, last).astype(np.float32)
    low = np.floor(shifted).astype(np.int64)
    share = shifted - low
    one = left[rows, columns].reshape(len(y), -1)
    two = (right[rows, low] * (1 - share) + right[rows, np.minimum(low + 1, last)] * share).reshape(len(y), -1)
    one = one - one.mean(axis=1, keepdims=True)
    two = two - two.mean(axis=1, keepdims=True)
    power = (one * one).sum(axis=1) * (two * two).sum(axis=1)
    return np.asarray((one * two).sum(axis=1) / np.sqrt(power + one.shape[1]))
