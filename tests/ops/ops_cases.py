# SPDX-License-Identifier: Apache-2.0
"""Inputs shared by the tests of the ops."""

from __future__ import annotations

import torch

# batch, channels, height, width, bins: odd sizes, one pixel, empty batch, bins beyond the width, several tiles
SHAPES = [
    (2, 6, 3, 11, 5),
    (1, 4, 1, 1, 1),
    (1, 4, 1, 1, 3),
    (2, 4, 3, 7, 12),
    (0, 4, 3, 7, 4),
    (1, 4, 9, 2, 1),
    (1, 2, 2, 160, 20),
    (1, 4, 2, 131, 70),
    (1, 4, 2, 67, 80),
]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 3e-2}


def pair(
    batch: int, channels: int, height: int, width: int, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two normal feature maps, the same in every run; rounded to ``dtype``."""
    generator = torch.Generator().manual_seed(7)
    left, right = torch.randn((2, batch, channels, height, width), generator=generator, dtype=torch.float64)
    return left.to(dtype), right.to(dtype)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """The same shape, and values within ``tolerance`` (absolute and relative)."""
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)
