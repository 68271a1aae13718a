# SPDX-License-Identifier: Apache-2.0
"""Losses of surface normals."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vision3d.errors import ConfigError, InputError
from vision3d.types import StereoBatch, StereoOutput


def normal_loss(prediction: Tensor, truth: Tensor) -> Tensor:
    """Three times the mean squared difference over the valid components (DTN-Net, arXiv 1912.09678, public code).

    With unit vectors and every component valid this is the mean of ``2 (1 - cos angle)``.

    Args:
        prediction: [B, 3, H, W], unit.
        truth: [B, 3, H, W]; a component is invalid where it is NaN or outside [-1, 1].

    Returns:
        A scalar; 0 where nothing is valid.

    Raises:
        InputError: shapes that differ.
    """
    _check(prediction, truth)
    valid = truth.abs() <= 1  # False for NaN
    # where() before the difference: NaN truth must reach neither the value nor the gradient.
    difference = torch.where(valid, prediction.float() - torch.where(valid, truth.float(), 0.0), 0.0)
    return 3.0 * difference.square().sum() / valid.sum().clamp(min=1)


def angular_loss(prediction: Tensor, truth: Tensor) -> Tensor:
    """Mean angle in radians over the pixels with three valid components; its gradient vanishes below about 0.1 degrees.

    The squared difference weighs pixels beside depth edges most, where no answer is sure; the angle weighs all alike.

    Args:
        prediction, truth: as for :func:`normal_loss`.

    Raises:
        InputError: shapes that differ.
    """
    _check(prediction, truth)
    valid = (truth.abs() <= 1).all(dim=1, keepdim=True)
    truth = torch.where(valid, truth.float(), 0.0)
    sine = (torch.linalg.cross(prediction.float(), truth, dim=1).square().sum(dim=1, keepdim=True) + 1e-6).sqrt()
    cosine = (prediction.float() * truth).sum(dim=1, keepdim=True)
    angles = torch.where(valid, torch.atan2(sine, torch.where(valid, cosine, 1.0)), 0.0)
    return angles.sum() / valid.sum().clamp(min=1)


def _check(prediction: Tensor, truth: Tensor) -> None:
    if prediction.shape != truth.shape:
        raise InputError(f"predicted normals {list(prediction.shape)} do not fit the truth {list(truth.shape)}")


class DisparityAndNormals:
    """``L_disp + normal * L_norm + angular * mean angle`` (DTN-Net, arXiv 1912.09678: L_disp + L_norm).

    Args:
        disparity: name of the loss of the disparity stage, or "none" where that stage is frozen or missing.
        disparity_options: its keyword arguments. Where it takes ``weights``, those of the rounds reach it.
        normal: weight of :func:`normal_loss`.
        angular: weight of :func:`angular_loss`; 0 as published.
    """

    def __init__(
        self,
        disparity: str = "multiscale_smooth_l1",
        disparity_options: dict[str, Any] | None = None,
        normal: float = 1.0,
        angular: float = 0.0,
    ) -> None:
        from vision3d.training.losses import create_loss

        if disparity == "disparity_and_normals":
            raise ConfigError("loss disparity_and_normals: disparity names the loss of the disparity alone")
        self.inner = None if disparity == "none" else create_loss(disparity, **(disparity_options or {}))
        self.normal, self.angular = float(normal), float(angular)

    @property
    def weights(self) -> tuple[float, ...]:
        """Those of the disparity's loss, where it has some."""
        return self.inner.weights  # type: ignore[union-attr, no-any-return]

    @weights.setter
    def weights(self, weights: tuple[float, ...]) -> None:
        self.inner.weights = weights  # type: ignore[union-attr]

    def __call__(self, output: StereoOutput, batch: StereoBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the total and its parts.

        Raises:
            InputError: the network answers no normals, or the batch has none.
        """
        if output.normals is None:
            raise InputError("the network answers no normals: choose another loss, or a network of the task normals")
        if batch.normals is None:
            raise InputError(f"{', '.join(batch.scenes)}: no true normals here: choose data that has them")
        total = batch.left.new_zeros(())
        parts: dict[str, Tensor] = {}
        if self.inner is not None:
            total, parts = self.inner(output, batch)
        squared, angle = normal_loss(output.normals, batch.normals), angular_loss(output.normals, batch.normals)
        parts.update(loss_normal=squared.detach(), loss_angle=angle.detach())
        return total + self.normal * squared + self.angular * angle, parts
