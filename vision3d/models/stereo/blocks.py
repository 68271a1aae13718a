# SPDX-License-Identifier: Apache-2.0
"""Building blocks of the FADNet family (arXiv 2003.10758, 2110.02582). Names inside follow the authors' state dicts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from vision3d.ops._checks import without_autocast

LEAKY_SLOPE = 0.1


def convolution(in_channels: int, out_channels: int, stride: int = 1, kernel: int = 3) -> nn.Sequential:
    """Convolution with bias, padding ``(kernel - 1) / 2``, then LeakyReLU(0.1)."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, stride, (kernel - 1) // 2), nn.LeakyReLU(LEAKY_SLOPE)
    )


def deconvolution(in_channels: int, out_channels: int) -> nn.Sequential:
    """Transposed 4x4 convolution of stride 2 without bias, then LeakyReLU(0.1): doubles the size."""
    return nn.Sequential(nn.ConvTranspose2d(in_channels, out_channels, 4, 2, 1, bias=False), nn.LeakyReLU(LEAKY_SLOPE))


def fusion(in_channels: int, out_channels: int) -> nn.ConvTranspose2d:
    """Transposed 3x3 convolution of stride 1 with bias and no activation (``iconv``): keeps the size."""
    return nn.ConvTranspose2d(in_channels, out_channels, 3, 1, 1)


class Predictor(nn.Conv2d):
    """3x3 convolution to one disparity map (or ``out_channels`` maps), without bias (``pred_flow``, ``pred_res``).

    It leaves autocast: a disparity of 100 px has steps of 0.5 px in bfloat16.
    """

    def __init__(self, in_channels: int, out_channels: int = 1) -> None:
        super().__init__(in_channels, out_channels, 3, 1, 1, bias=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        with without_autocast(input):
            return super().forward(input.to(self.weight.dtype))


class DisparityUpsampler(nn.ConvTranspose2d):
    """Learned transposed 4x4 convolution of one map, stride 2, without bias (``upflow``), in full precision."""

    def __init__(self) -> None:
        super().__init__(1, 1, 4, 2, 1, bias=False)

    def forward(self, input: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        with without_autocast(input):
            return super().forward(input.to(self.weight.dtype), output_size)


class ResBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, and a 1x1 shortcut where stride or width change; ReLU after the sum."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, in, H, W] -> [B, out, H / stride, W / stride]."""
        main = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(main + (x if self.shortcut is None else self.shortcut(x)))


class DynamicConv2d(nn.Module):
    """Convolution without bias that uses as many input channels of its weight as the input has."""

    def __init__(self, max_in_channels: int, out_channels: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(max_in_channels, out_channels, kernel, padding=kernel // 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, n, H, W] -> [B, out, H, W] with n at most ``max_in_channels``."""
        return F.conv2d(x, self.conv.weight[:, : x.shape[1]], padding=self.conv.padding)


class DynamicResBlock(nn.Module):
    """:class:`ResBlock` of stride 1 whose input width may vary (FADNet++: one set of weights for any search range)."""

    def __init__(self, max_in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = DynamicConv2d(max_in_channels, out_channels, 3)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential(DynamicConv2d(max_in_channels, out_channels, 1), nn.BatchNorm2d(out_channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, n, H, W] -> [B, out, H, W] with n at most ``max_in_channels``."""
        main = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(main + self.shortcut(x))


def initialize_kaiming(network: nn.Module) -> None:
    """Kaiming-normal (fan-in) on every convolution, biases 0, batch norms 1 and 0, as in the public code."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def error_norm(difference: torch.Tensor, epsilon: float = 0.0) -> torch.Tensor:
    """L2 norm over channels, [B, C, H, W] -> [B, 1, H, W]; with ``epsilon`` 0 the gradient at 0 is 0, not NaN."""
    if epsilon > 0:
        return (difference.square().sum(dim=1, keepdim=True) + epsilon).sqrt()
    return torch.linalg.vector_norm(difference, dim=1, keepdim=True)
