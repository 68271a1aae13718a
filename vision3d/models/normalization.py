# SPDX-License-Identifier: Apache-2.0
"""Input normalisation as a submodule, so that a reference check can replace it by ``torch.nn.Identity()``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normalization(nn.Module):
    """``(x - mean) / std`` per channel of an RGB image in [0, 1], [B, 3, H, W]. Adds no state-dict entries."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return (image - self.mean) / self.std
