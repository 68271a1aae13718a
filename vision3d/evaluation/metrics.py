# SPDX-License-Identifier: Apache-2.0
"""Error figures of disparity maps, as the stereo benchmarks define them.

EPE is the mean absolute error in pixels, bad-k the percentage of pixels that are off by more than k pixels
(Scharstein and Szeliski 2002), D1 the percentage that are off by more than 3 pixels and by more than 5 % of the truth
(Menze and Geiger 2015), A-q the q-th percentile of the absolute error (Middlebury version 3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from vision3d.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

THRESHOLDS = (0.5, 1.0, 2.0, 3.0, 4.0)
QUANTILES = (50, 90, 95, 99)
D1_PIXELS, D1_FRACTION = 3.0, 0.05
_LARGEST = 1e30  # a prediction beyond it counts as absent


def _array(values: np.ndarray | torch.Tensor, name: str) -> np.ndarray:
    """A map as [H, W] (leading axes of length one are dropped)."""
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    while array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 2:
        raise InputError(f"{name} must be one map [H, W], got shape {array.shape}")
    return array


@dataclass
class DisparityMetrics:
    """Sums and counts over pixels. They merge, so that images, processes and machines can be added up in any order.

    The counts are integers and the sums of each image are added as fractions, without rounding: the figures of merged
    parts equal those of the whole to the last bit.

    A pixel counts if its truth is finite and the mask, if any, is True there. A prediction that is not finite is wrong
    for every bad-k and for D1; for EPE and RMS its hole is filled first as the KITTI development kit does
    (``vision3d.geometry.disparity.fill_invalid``), or with 0 if the whole map is empty.

    Attributes:
        thresholds: the values k of bad-k, pixels.
        quantiles: also keep every single error, for exact A50, A90, A95 and A99 (4 bytes a pixel; for large sets see
            ``vision3d.evaluation.quantiles.ErrorHistogram``).
        smooth_l1: also the mean of the smooth L1 loss, which FADNet calls EPE.
        pixels, absent: number of counted pixels, and of those without a prediction.
        absolute, squared, smooth: sums of the absolute, the squared and the smooth L1 error.
        bad, d1: number of wrong pixels for each threshold, and for D1.
    """

    thresholds: Sequence[float] = THRESHOLDS
    quantiles: bool = False
    smooth_l1: bool = False
    pixels: int = 0
    absent: int = 0
    absolute: Fraction = Fraction(0)
    squared: Fraction = Fraction(0)
    smooth: Fraction = Fraction(0)
    bad: list[int] = field(default_factory=list)
    d1: int = 0
    errors: list[np.ndarray] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.thresholds = tuple(self.thresholds)
        self.bad = self.bad or [0] * len(self.thresholds)

    def update(
        self,
        prediction: np.ndarray | torch.Tensor,
        truth: np.ndarray | torch.Tensor,
        mask: np.ndarray | torch.Tensor | None = None,
    ) -> None:
        """Add one image.

        Args:
            prediction, truth: [H, W] disparity in pixels, invalid = NaN (or infinite).
            mask: [H, W] bool, True where the pixel shall count; None counts all pixels with truth.

        Raises:
            InputError: maps of different sizes.
        """
        predicted, true = _array(prediction, "prediction"), _array(truth, "truth")
        counted = np.isfinite(true)
        if mask is not None:
            chosen = _array(mask, "mask").astype(bool)
            if chosen.shape != true.shape:
                raise InputError(f"the mask is {chosen.shape[1]}x{chosen.shape[0]}, the truth {_size(true)}")
            counted = counted & chosen
        if predicted.shape != true.shape:
            raise InputError(f"the prediction is {_size(predicted)}, the truth {_size(true)}: they must be one size")
        absent = ~(np.abs(predicted) <= _LARGEST)
        values = _filled(predicted.astype(np.float64), absent)[counted]
        wanted = true[counted].astype(np.float64)
        self._add(np.abs(values - wanted), wanted, absent[counted])

    def _add(self, error: np.ndarray, truth: np.ndarray, absent: np.ndarray) -> None:
        self.pixels += error.size
        self.absent += int(absent.sum())
        self.absolute += Fraction(float(error.sum()))
        self.squared += Fraction(float(np.square(error).sum()))
        if self.smooth_l1:
            self.smooth += Fraction(float(np.where(error < 1, 0.5 * np.square(error), error - 0.5).sum()))
        for index, threshold in enumerate(self.thresholds):
            self.bad[index] += int(((error > threshold) | absent).sum())
        self.d1 += int((((error > D1_PIXELS) & (error > D1_FRACTION * np.abs(truth))) | absent).sum())
        if self.quantiles:
            self.errors.append(error.astype(np.float32))

    def merge(self, other: DisparityMetrics) -> DisparityMetrics:
        """The figures over the pixels of both.

        Raises:
            InputError: they were counted with different settings.
        """
        mine, theirs = ((part.thresholds, part.quantiles, part.smooth_l1) for part in (self, other))
        if mine != theirs:
            raise InputError("only metrics with the same thresholds and quantiles can be merged")
        return DisparityMetrics(
            thresholds=self.thresholds,
            quantiles=self.quantiles,
            smooth_l1=self.smooth_l1,
            pixels=self.pixels + other.pixels,
            absent=self.absent + other.absent,
            absolute=self.absolute + other.absolute,
            squared=self.squared + other.squared,
            smooth=self.smooth + other.smooth,
            bad=[sum(pair) for pair in zip(self.bad, other.bad, strict=True)],
            d1=self.d1 + other.d1,
            errors=[*self.errors, *other.errors],
        )

    def compute(self) -> dict[str, float]:
        """The figures: ``epe`` and ``rms`` (pixels), ``bad0.5`` ... and ``d1`` (percent), ``density`` (percent of the
        counted pixels that have a prediction), ``pixels``; if asked for, ``a50`` ... and ``smooth_l1`` (pixels).

        Without a single counted pixel all but ``pixels`` are NaN.
        """
        count = self.pixels or float("nan")
        figures = {"epe": exact_mean(self.absolute, self.pixels), "rms": exact_mean(self.squared, self.pixels) ** 0.5}
        if self.smooth_l1:
            figures["smooth_l1"] = exact_mean(self.smooth, self.pixels)
        for threshold, bad in zip(self.thresholds, self.bad, strict=True):
            figures[f"bad{threshold:g}"] = 100.0 * bad / count
        figures["d1"] = 100.0 * self.d1 / count
        figures["density"] = 100.0 * (self.pixels - self.absent) / count
        if self.quantiles:
            errors = np.concatenate(self.errors) if self.pixels else np.array([np.nan])
            for quantile, value in zip(QUANTILES, np.percentile(errors, QUANTILES), strict=True):
                figures[f"a{quantile}"] = float(value)
        figures["pixels"] = self.pixels
        return figures


def disparity_errors(
    prediction: np.ndarray | torch.Tensor,
    truth: np.ndarray | torch.Tensor,
    mask: np.ndarray | torch.Tensor | None = None,
    *,
    quantiles: bool = False,
) -> dict[str, float]:
    """The error figures of one map; arguments as in :meth:`DisparityMetrics.update`, result as in ``compute``.

    Example:
        >>> errors = disparity_errors(np.array([[1.0, 9.0]]), np.array([[1.0, 5.0]]))
        >>> errors["epe"], errors["bad3"], errors["d1"]
        (2.0, 50.0, 50.0)
    """
    metrics = DisparityMetrics(quantiles=quantiles)
    metrics.update(prediction, truth, mask)
    return metrics.compute()


def exact_mean(total: Fraction, count: int) -> float:
    """``total / count``, correctly rounded; NaN if there is nothing."""
    return float(total / count) if count else float("nan")


def _size(array: np.ndarray) -> str:
    return f"{array.shape[1]}x{array.shape[0]}"


def _filled(prediction: np.ndarray, absent: np.ndarray) -> np.ndarray:
    if not absent.any():
        return prediction
    if absent.all():
        return np.zeros_like(prediction)
    from vision3d.geometry.disparity import fill_invalid

    return np.asarray(fill_invalid(np.where(absent, np.nan, prediction)))
