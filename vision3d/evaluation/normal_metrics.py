# SPDX-License-Identifier: Apache-2.0
"""Angular errors of a set of normal maps, with the validity rule of normal data sets (IRS, arXiv 1912.09678)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vision3d.errors import InputError
from vision3d.evaluation.depth_metrics import ANGLES, NormalMetrics
from vision3d.geometry.normals import UNIT_TOLERANCE

_RANGE = 1.0 + 1e-6  # components of normals decoded from files


def unit_normal_mask(normals: Tensor, unit_tolerance: float | None = UNIT_TOLERANCE) -> Tensor:
    """Where [B, 3, H, W] holds unit normals, [B, 1, H, W] bool; the rule is that of :func:`valid_normals`."""
    inside = (normals.abs() <= _RANGE).all(dim=1, keepdim=True)  # False for NaN
    length = torch.linalg.vector_norm(torch.where(inside, normals, 0.0), dim=1, keepdim=True)
    if unit_tolerance is None:
        return inside & (length > 1e-12)
    return inside & ((length - 1.0).abs() <= unit_tolerance)


def valid_normals(normals: np.ndarray, unit_tolerance: float | None = UNIT_TOLERANCE) -> np.ndarray:
    """Where a map holds unit normals, [H, W] bool.

    Args:
        normals: [H, W, 3]. NaN, infinity, zero and components outside [-1, 1] (the code of IRS) are invalid.
        unit_tolerance: largest deviation of the length from 1; None: any length above 0, as the public code.

    Raises:
        InputError: not [H, W, 3].
    """
    if normals.ndim != 3 or normals.shape[2] != 3:
        raise InputError(f"normals must be [H, W, 3], got shape {normals.shape}")
    values = torch.from_numpy(normals.astype(np.float64)).permute(2, 0, 1)[None]
    return np.asarray(unit_normal_mask(values, unit_tolerance)[0, 0].numpy())


@dataclass
class NormalSetMetrics:
    """Angles in degrees between predicted and true normals, pooled over all valid pixels and image by image.

    Attributes:
        thresholds: angles in degrees.
        unit_tolerance: see :func:`valid_normals`; applied to the truth. Predictions are normalised.
        pooled: the figures over all pixels.
        image_means: the mean angle of every image that has one.
        images: number of images.
        invalid_truth, invalid_prediction: pixels left out for their truth, and valid ones without a usable prediction.
    """

    thresholds: Sequence[float] = ANGLES
    unit_tolerance: float | None = UNIT_TOLERANCE
    pooled: NormalMetrics = field(init=False)
    image_means: list[float] = field(default_factory=list)
    images: int = 0
    invalid_truth: int = 0
    invalid_prediction: int = 0

    def __post_init__(self) -> None:
        self.pooled = NormalMetrics(self.thresholds)

    def update(self, prediction: np.ndarray, truth: np.ndarray, mask: np.ndarray | None = None) -> dict[str, float]:
        """Add one image and return its figures (as :meth:`vision3d.evaluation.depth_metrics.NormalMetrics.compute`).

        Args:
            prediction, truth: [H, W, 3].
            mask: [H, W] bool, True where the pixel shall count.

        Raises:
            InputError: arrays of different shapes, or not [H, W, 3].
        """
        if np.shape(prediction) != np.shape(truth):
            raise InputError(f"the prediction has shape {np.shape(prediction)}, the truth {np.shape(truth)}: resize it")
        wanted = np.ones(truth.shape[:2], bool) if mask is None else np.asarray(mask, dtype=bool)
        valid = valid_normals(truth, self.unit_tolerance)
        single = NormalMetrics(self.thresholds)
        single.update(prediction, truth, wanted & valid)
        figures = single.compute()
        self.pooled = self.pooled.merge(single)
        self.images += 1
        self.invalid_truth += int((wanted & ~valid).sum())
        self.invalid_prediction += single.pixels - single.histogram.total
        if np.isfinite(figures["mean"]):
            self.image_means.append(figures["mean"])
        return figures

    def merge(self, other: NormalSetMetrics) -> NormalSetMetrics:
        """The figures over the images of both.

        Raises:
            InputError: they were counted with different settings.
        """
        if self.unit_tolerance != other.unit_tolerance:
            raise InputError("only normal metrics with the same unit tolerance can be merged")
        merged = NormalSetMetrics(self.thresholds, self.unit_tolerance)
        merged.pooled = self.pooled.merge(other.pooled)
        merged.image_means = [*self.image_means, *other.image_means]
        merged.images = self.images + other.images
        merged.invalid_truth = self.invalid_truth + other.invalid_truth
        merged.invalid_prediction = self.invalid_prediction + other.invalid_prediction
        return merged

    def compute(self) -> dict[str, float]:
        """The pooled ``mean``, ``median``, ``rmse`` (degrees), ``within5`` ... ``within30``, ``density`` (percent) and
        ``pixels``; ``image_mean``, the mean over images of their mean angle; ``images``, ``invalid_truth``,
        ``invalid_prediction``.
        """
        return {
            **self.pooled.compute(),
            "image_mean": float(np.mean(self.image_means)) if self.image_means else float("nan"),
            "images": self.images,
            "invalid_truth": self.invalid_truth,
            "invalid_prediction": self.invalid_prediction,
        }
