# SPDX-License-Identifier: Apache-2.0
"""Depth errors of multi-view stereo: mean errors and shares of pixels below absolute and relative thresholds."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from vision3d.errors import InputError
from vision3d.evaluation.metrics import exact_mean

ABSOLUTE = (1.0, 2.0, 4.0)
"""Thresholds in the unit of the depth (millimetres on DTU, as DispMVS reports)."""

RELATIVE = (1.0, 2.0, 5.0)
"""Thresholds in percent of the true depth."""


@dataclass
class MultiViewMetrics:
    """Sums and counts over the pixels of known truth (positive and finite); they merge without rounding.

    A pixel without a positive finite answer lies above every threshold and is left out of the means.
    """

    pixels: int = 0
    answered: int = 0
    error: Fraction = field(default_factory=Fraction)
    relative: Fraction = field(default_factory=Fraction)
    below: list[int] = field(default_factory=lambda: [0] * (len(ABSOLUTE) + len(RELATIVE)))

    @staticmethod
    def names() -> tuple[str, ...]:
        """Names of the figures of :meth:`compute`."""
        within = [f"below{value:g}" for value in ABSOLUTE] + [f"rel{value:g}" for value in RELATIVE]
        return ("abs_error", "abs_rel", *within)

    def update(self, prediction: np.ndarray, truth: np.ndarray) -> None:
        """Add one image.

        Args:
            prediction, truth: [H, W] depth in one unit; NaN, infinite or not positive: unknown.

        Raises:
            InputError: different shapes.
        """
        if prediction.shape != truth.shape:
            raise InputError(f"a depth map of {prediction.shape} does not fit a truth of {truth.shape}")
        known = np.isfinite(truth) & (truth > 0)
        answer, true = (np.asarray(item[known], dtype=np.float64) for item in (prediction, truth))
        usable = np.isfinite(answer) & (answer > 0)
        error = np.abs(answer[usable] - true[usable])
        share = error / true[usable]
        self.pixels += int(known.sum())
        self.answered += int(usable.sum())
        self.error += Fraction(float(error.sum()))
        self.relative += Fraction(float(share.sum()))
        counts = [int((error < value).sum()) for value in ABSOLUTE]
        counts += [int((share < value / 100).sum()) for value in RELATIVE]
        self.below = [old + new for old, new in zip(self.below, counts, strict=True)]

    def merge(self, other: MultiViewMetrics) -> MultiViewMetrics:
        """The figures over the pixels of both."""
        return MultiViewMetrics(
            self.pixels + other.pixels,
            self.answered + other.answered,
            self.error + other.error,
            self.relative + other.relative,
            [first + second for first, second in zip(self.below, other.below, strict=True)],
        )

    def compute(self) -> dict[str, float]:
        """``abs_error`` (unit of the depth), ``abs_rel``, and in percent of the known pixels ``below1`` ... (unit of
        the depth), ``rel1`` ... (percent of the depth) and ``density``; NaN where nothing is known.
        """
        means = (exact_mean(self.error, self.answered), exact_mean(self.relative, self.answered))
        count = self.pixels or float("nan")
        shares = [100.0 * number / count for number in self.below]
        figures = dict(zip(self.names(), (*means, *shares), strict=True))
        return {**figures, "density": 100.0 * self.answered / count, "pixels": float(self.pixels)}
