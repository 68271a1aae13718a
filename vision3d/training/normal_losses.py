# SPDX-License-Identifier: Apache-2.0
"""Losses of surface normals."""

from __future__ import annotations

import torch
from torch import Tensor

from vision3d.errors import InputError


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
    if prediction.shape != truth.shape:
        raise InputError(f"predicted normals {list(prediction.shape)} do not fit the truth {list(truth.shape)}")
    valid = truth.abs() <= 1  # False for NaN
    # where() before the difference: NaN truth must reach neither the value nor the gradient.
    difference = torch.where(valid, prediction.float() - torch.where(valid, truth.float(), 0.0), 0.0)
    return 3.0 * difference.square().sum() / valid.sum().clamp(min=1)
