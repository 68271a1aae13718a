# SPDX-License-Identifier: Apache-2.0
"""How well a confidence ranks the errors: sparsification curves (Ilg et al., ECCV 2018; Hu and Mordohai, PAMI 2012).

The least confident pixels are removed step by step; the mean error of those that are left should fall. The oracle
removes the largest errors first; removing at random leaves the error as it is. AUSE is the area between the curve and
the oracle's, AURG the area between random and the curve, AUC the area below the curve; all over the share removed,
0 to 1, so that AUSE has the unit of the error. Among equal confidences the expected value of a random order is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vision3d.errors import InputError

STEPS = 100
SHARES = np.arange(STEPS) / STEPS  # removed shares 0, 0.01 ... 0.99


def sparsification_curve(errors: np.ndarray, confidence: np.ndarray) -> np.ndarray:
    """Mean error of the pixels left after removing each of ``SHARES`` of the least confident ones: [100].

    Args:
        errors: [N] error of each pixel.
        confidence: [N], larger is better; NaN ranks last.

    Raises:
        InputError: no pixel, or arrays of different lengths.

    Example:
        >>> curve = sparsification_curve(np.array([1.0, 3.0]), np.array([0.9, 0.1]))
        >>> float(curve[0]), float(curve[50])
        (2.0, 1.0)
    """
    values, ranks = np.ravel(errors).astype(np.float64), np.ravel(confidence).astype(np.float64)
    if values.size == 0 or values.shape != ranks.shape:
        raise InputError(f"as many confidences as errors are needed, at least one: got {ranks.size} and {values.size}")
    ranks = np.where(np.isnan(ranks), -np.inf, ranks)
    _, group, counts = np.unique(-ranks, return_inverse=True, return_counts=True)  # most confident first
    means = np.bincount(group, weights=values) / counts
    running = np.concatenate([[0.0], np.cumsum(means * counts)])
    ends = np.concatenate([[0], np.cumsum(counts)])
    kept = np.maximum(np.round(values.size * (1 - SHARES)), 1)
    return np.asarray(np.interp(kept, ends, running) / kept)


def area(curve: np.ndarray) -> float:
    """Area below a curve over ``SHARES``, continued flat from 0.99 to 1."""
    inner = np.sum((curve[1:] + curve[:-1]) / 2 * np.diff(SHARES))
    return float(inner + curve[-1] * (1 - SHARES[-1]))


@dataclass
class Sparsification:
    """Sparsification of many images: each image's curves, averaged with equal weight. Scores merge.

    Attributes:
        curves, oracles: one [100] each image.
        checks: (share of pixels that the left-right check keeps, their mean error, mean error of the same number of
            most confident pixels) of each image that has such a mask and keeps any pixel.
    """

    curves: list[np.ndarray] = field(default_factory=list)
    oracles: list[np.ndarray] = field(default_factory=list)
    checks: list[tuple[float, float, float]] = field(default_factory=list)

    def update(
        self,
        disparity: np.ndarray,
        truth: np.ndarray,
        confidence: np.ndarray,
        occlusion: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> dict[str, float]:
        """Add one image and return its ``ause``, ``aurg`` and ``auc`` (pixels), all [H, W]; {} if no pixel counts.

        Args:
            disparity, truth: pixels; only pixels with both finite count.
            confidence: larger is better.
            occlusion: True where the left-right check rejects the pixel.
            mask: True where the pixel shall count.
        """
        counted = np.isfinite(disparity) & np.isfinite(truth)
        if mask is not None:
            counted &= mask
        if not counted.any():
            return {}
        errors = np.abs(disparity[counted].astype(np.float64) - truth[counted])
        curve, oracle = sparsification_curve(errors, confidence[counted]), sparsification_curve(errors, -errors)
        self.curves.append(curve)
        self.oracles.append(oracle)
        if occlusion is not None and not occlusion[counted].all():
            kept = ~occlusion[counted]
            share = float(kept.mean())
            self.checks.append((share, float(errors[kept].mean()), float(np.interp(1 - share, SHARES, curve))))
        return {"ause": area(curve - oracle), "aurg": area(curve[0] - curve), "auc": area(curve)}

    def merge(self, other: Sparsification) -> Sparsification:
        """The images of both."""
        return Sparsification(
            [*self.curves, *other.curves], [*self.oracles, *other.oracles], [*self.checks, *other.checks]
        )

    def compute(self) -> dict[str, Any]:
        """Means over images: ``ause``, ``aurg``, ``auc``, ``ause_relative`` (AUSE / mean error), ``random`` (the mean
        error, which removing at random leaves), the curves over ``removed``, and ``left_right_check`` with the ``kept``
        share, the ``error`` of what it keeps and the ``confidence_error`` at the same share. {} without an image.
        """
        if not self.curves:
            return {}
        curve, oracle = _mean(self.curves), _mean(self.oracles)
        ause = area(curve - oracle)
        figures = {
            "images": len(self.curves),
            "ause": ause,
            "ause_relative": ause / curve[0] if curve[0] else 0.0,
            "aurg": area(curve[0] - curve),
            "auc": area(curve),
            "auc_oracle": area(oracle),
            "random": float(curve[0]),
            "removed": SHARES.tolist(),
            "curve": curve.tolist(),
            "oracle": oracle.tolist(),
        }
        if self.checks:
            shares = [math.fsum(column) / len(self.checks) for column in zip(*self.checks, strict=True)]
            figures["left_right_check"] = dict(zip(("kept", "error", "confidence_error"), shares, strict=True))
        return figures


def _mean(curves: list[np.ndarray]) -> np.ndarray:
    """The mean curve, rounded once, so that the order of the images does not matter."""
    return np.array([math.fsum(column) / len(curves) for column in zip(*curves, strict=True)])
