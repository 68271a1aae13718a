# SPDX-License-Identifier: Apache-2.0
"""Error figures of depth maps (Eigen et al., NeurIPS 2014) and of normal maps (Fouhey et al., ICCV 2013).

Both are sums and counts over pixels that merge without rounding, as in :mod:`vision3d.evaluation.metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from vision3d.errors import InputError
from vision3d.evaluation.metrics import exact_mean
from vision3d.evaluation.quantiles import ErrorHistogram

DELTAS = (1, 2, 3)
ANGLES = (5.0, 7.5, 11.25, 22.5, 30.0)
_DEPTH_SUMS = ("abs_rel", "sq_rel", "mae", "squared", "squared_log", "log10")


@dataclass
class DepthMetrics:
    """Depth errors over pixels with a positive finite truth inside ``depth_range``.

    Predictions that are not positive and finite count as wrong for delta and ``density``, and are left out of the
    averages (there is no error to average); see ``density`` beside them.

    Attributes:
        depth_range: (least, largest) truth that counts, both included; None: all.
        clamp: move predictions into ``depth_range`` first.
        pixels, answered: number of counted pixels, and of those with a prediction.
        sums: name -> exact sum.
        within: pixels with ``max(p/g, g/p) < 1.25^k`` for k = 1, 2, 3.
    """

    depth_range: tuple[float, float] | None = None
    clamp: bool = False
    pixels: int = 0
    answered: int = 0
    sums: dict[str, Fraction] = field(default_factory=lambda: dict.fromkeys(_DEPTH_SUMS, Fraction(0)))
    within: list[int] = field(default_factory=lambda: [0] * len(DELTAS))

    def update(
        self, prediction: np.ndarray, truth: np.ndarray, mask: np.ndarray | None = None, *, align_median: bool = False
    ) -> None:
        """Add one image.

        Args:
            prediction, truth: [H, W] depth in one unit, invalid = NaN, infinite or not positive.
            mask: [H, W] bool, True where the pixel shall count.
            align_median: first scale the prediction by ``median(truth) / median(prediction)`` over the counted pixels.

        Raises:
            InputError: arrays of different shapes.
        """
        predicted, true = np.asarray(prediction, dtype=np.float64), np.asarray(truth, dtype=np.float64)
        _check_shapes(predicted, true, mask)
        counted = np.isfinite(true) & (true > 0)
        if self.depth_range is not None:
            counted &= (true >= self.depth_range[0]) & (true <= self.depth_range[1])
        if mask is not None:
            counted &= np.asarray(mask, dtype=bool)
        predicted, true = predicted[counted], true[counted]
        known = np.isfinite(predicted) & (predicted > 0)
        self.pixels += true.size
        self.answered += int(known.sum())
        predicted, true = predicted[known], true[known]
        if align_median and true.size:
            predicted = predicted * (np.median(true) / np.median(predicted))
        if self.clamp and self.depth_range is not None:
            predicted = np.clip(predicted, *self.depth_range)
        self._add(predicted, true)

    def _add(self, predicted: np.ndarray, true: np.ndarray) -> None:
        error = np.abs(predicted - true)
        logs = np.log(predicted / true)
        values = {
            "abs_rel": error / true,
            "sq_rel": np.square(error) / true,
            "mae": error,
            "squared": np.square(error),
            "squared_log": np.square(logs),
            "log10": np.abs(logs) / np.log(10),
        }
        for name, value in values.items():
            self.sums[name] += Fraction(float(value.sum()))
        ratio = np.maximum(predicted / true, true / predicted)
        for index, power in enumerate(DELTAS):
            self.within[index] += int((ratio < 1.25**power).sum())

    def merge(self, other: DepthMetrics) -> DepthMetrics:
        """The figures over the pixels of both.

        Raises:
            InputError: they were counted with different settings.
        """
        if (self.depth_range, self.clamp) != (other.depth_range, other.clamp):
            raise InputError("only depth metrics with the same range and clamping can be merged")
        return DepthMetrics(
            depth_range=self.depth_range,
            clamp=self.clamp,
            pixels=self.pixels + other.pixels,
            answered=self.answered + other.answered,
            sums={name: self.sums[name] + other.sums[name] for name in _DEPTH_SUMS},
            within=[sum(pair) for pair in zip(self.within, other.within, strict=True)],
        )

    def compute(self) -> dict[str, float]:
        """``abs_rel``, ``sq_rel`` and ``mae`` and ``rmse`` (unit of the depth), ``rmse_log`` (natural logarithm),
        ``rmse_log10``, ``log10``; ``delta1`` ... ``delta3`` and ``density`` in percent; ``pixels``. NaN if none.
        """
        mean = {name: exact_mean(total, self.answered) for name, total in self.sums.items()}
        count = self.pixels or float("nan")
        rmse, logs = mean.pop("squared") ** 0.5, mean.pop("squared_log") ** 0.5
        figures = {**mean, "rmse": rmse, "rmse_log": logs, "rmse_log10": logs / float(np.log(10))}
        for power, number in zip(DELTAS, self.within, strict=True):
            figures[f"delta{power}"] = 100.0 * number / count
        return {**figures, "density": 100.0 * self.answered / count, "pixels": self.pixels}


@dataclass
class NormalMetrics:
    """Angles between predicted and true normals, degrees, over the pixels with a truth.

    A prediction that is not finite or has no length is left out (see ``density``) and wrong for every threshold.

    Attributes:
        thresholds: angles in degrees.
        pixels: number of counted pixels.
        angles, squared: exact sums over the pixels with a prediction.
        within: pixels below each threshold.
        histogram: for the median, which is known to one part in 1024.
    """

    thresholds: Sequence[float] = ANGLES
    pixels: int = 0
    angles: Fraction = Fraction(0)
    squared: Fraction = Fraction(0)
    within: list[int] = field(default_factory=list)
    histogram: ErrorHistogram = field(default_factory=ErrorHistogram, repr=False)

    def __post_init__(self) -> None:
        self.thresholds = tuple(self.thresholds)
        self.within = self.within or [0] * len(self.thresholds)

    def update(self, prediction: np.ndarray, truth: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Add one image.

        Args:
            prediction, truth: [H, W, 3] normals of any length, NaN or zero where unknown.
            mask: [H, W] bool, True where the pixel shall count.

        Raises:
            InputError: arrays of different shapes, or not [H, W, 3].
        """
        predicted, true = np.asarray(prediction, dtype=np.float64), np.asarray(truth, dtype=np.float64)
        if predicted.ndim != 3 or predicted.shape[2] != 3:
            raise InputError(f"normals must be [H, W, 3], got shape {predicted.shape}")
        _check_shapes(predicted, true, None)
        counted = _has_direction(true)
        if mask is not None:
            _check_shapes(counted, counted, mask)
            counted &= np.asarray(mask, dtype=bool)
        angle = angle_between(predicted[counted], true[counted])
        known = np.isfinite(angle)
        self.pixels += angle.size
        self.angles += Fraction(float(angle[known].sum()))
        self.squared += Fraction(float(np.square(angle[known]).sum()))
        self.histogram.update(angle[known])
        for index, threshold in enumerate(self.thresholds):
            self.within[index] += int((angle[known] < threshold).sum())

    def merge(self, other: NormalMetrics) -> NormalMetrics:
        """The figures over the pixels of both.

        Raises:
            InputError: they were counted with different thresholds.
        """
        if self.thresholds != other.thresholds:
            raise InputError("only normal metrics with the same thresholds can be merged")
        return NormalMetrics(
            thresholds=self.thresholds,
            pixels=self.pixels + other.pixels,
            angles=self.angles + other.angles,
            squared=self.squared + other.squared,
            within=[sum(pair) for pair in zip(self.within, other.within, strict=True)],
            histogram=self.histogram.merge(other.histogram),
        )

    def compute(self) -> dict[str, float]:
        """``mean``, ``median`` and ``rmse`` in degrees, ``within5`` ... ``within30`` and ``density`` in percent,
        ``pixels``. NaN if none.
        """
        answered, count = self.histogram.total, self.pixels or float("nan")
        figures = {
            "mean": exact_mean(self.angles, answered),
            "median": self.histogram.quantile(50),
            "rmse": exact_mean(self.squared, answered) ** 0.5,
        }
        for threshold, number in zip(self.thresholds, self.within, strict=True):
            figures[f"within{threshold:g}"] = 100.0 * number / count
        return {**figures, "density": 100.0 * answered / count, "pixels": self.pixels}


def angle_between(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Angles [...] in degrees between vectors [..., 3] of any length; NaN where one has none or is not finite.

    ``atan2(|a x b|, a . b)``, which stays accurate for nearly equal and nearly opposite vectors.
    """
    cross = np.linalg.norm(np.cross(first, second), axis=-1)
    angle = np.degrees(np.arctan2(cross, np.sum(first * second, axis=-1)))
    return np.asarray(np.where(_has_direction(first) & _has_direction(second), angle, np.nan))


def _has_direction(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(np.isfinite(vectors).all(axis=-1) & (np.abs(vectors).max(axis=-1, initial=0) > 1e-12))


def _check_shapes(prediction: np.ndarray, truth: np.ndarray, mask: np.ndarray | None) -> None:
    if prediction.shape != truth.shape:
        raise InputError(f"the prediction has shape {prediction.shape}, the truth {truth.shape}: they must be one size")
    if mask is not None and np.shape(mask) != truth.shape:
        raise InputError(f"the mask has shape {np.shape(mask)}, the truth {truth.shape}: they must be one size")
