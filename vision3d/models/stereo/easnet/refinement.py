# SPDX-License-Identifier: Apache-2.0
"""Refinement of a disparity map at one resolution (StereoDRNet, arXiv 1904.02251, as AANet uses it)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vision3d.ops import resize_disparity, warp_by_disparity

SLOPE = 0.2
DILATIONS = (1, 2, 4, 8, 1, 1)
WIDTH = 32


def _unit(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(SLOPE, inplace=True)
    )


class DilatedBlock(nn.Module):
    """Two dilated 3x3 convolutions with an identity shortcut."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, 1, dilation, dilation, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, dilation, dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to the same."""
        y = F.leaky_relu(self.bn1(self.conv1(x)), SLOPE, inplace=True)
        return F.leaky_relu(self.bn2(self.conv2(y)) + x, SLOPE, inplace=True)


class Refinement(nn.Module):
    """A residual from the error of the warped pair, after enlarging the map.

    Args:
        warp_mode: "official" warps as the public weights were trained (up to half a pixel beside x - d, see
            :func:`vision3d.ops.warp_by_disparity`); "exact" samples at x - d.
    """

    def __init__(self, warp_mode: str = "official") -> None:
        super().__init__()
        self.warp_mode = warp_mode
        self.conv1 = _unit(6, WIDTH // 2)
        self.conv2 = _unit(1, WIDTH // 2)
        self.dilated_blocks = nn.Sequential(*(DilatedBlock(WIDTH, dilation) for dilation in DILATIONS))
        self.final_conv = nn.Conv2d(WIDTH, 1, 3, 1, 1)

    def forward(self, disparity: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """The refined map, at least float32.

        Args:
            disparity: [B, 1, h, w], pixels of its own size.
            left, right: [B, 3, H, W], normalised views.

        Returns:
            [B, 1, H, W], pixels of that size, not negative.
        """
        disparity = resize_disparity(disparity, (left.shape[-2], left.shape[-1]))
        warped = warp_by_disparity(right, disparity, align_corners=self.warp_mode == "exact")
        error = self.conv1(torch.cat([warped - left, left], 1))
        x = torch.cat([error, self.conv2(disparity.to(left.dtype))], 1)
        residual = self.final_conv(self.dilated_blocks(x))
        return F.relu(disparity + residual.to(disparity.dtype))
