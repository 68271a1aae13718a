# SPDX-License-Identifier: Apache-2.0
"""Layers whose width and kernel are chosen at each call: the first channels, and transformed kernel centres.

Cai et al., "Once-for-All", ICLR 2020, arXiv 1908.09791. The names of the entries are those of its code, in which each
layer is wrapped once (``conv.conv``, ``bn.bn``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LARGEST_KERNEL = 7


class PrefixBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation of the first n of its channels, n being the channels of the input.

    In training mode the first n running statistics are updated; there are no statistics for each width.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[B, n, H, W] of at most ``num_features`` channels."""
        n = x.shape[1]
        if n == self.num_features:
            return super().forward(x)
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        mean, variance = _first(self.running_mean, n), _first(self.running_var, n)
        momentum = 0.0 if self.momentum is None else self.momentum
        return F.batch_norm(x, mean, variance, self.weight[:n], self.bias[:n], self.training, momentum, self.eps)


class DynamicBatchNorm(nn.Module):
    """The wrapper of a :class:`PrefixBatchNorm2d`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn = PrefixBatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, n, H, W] to the same."""
        return self.bn(x)


class DynamicPointConv(nn.Module):
    """1x1 convolution of the first input channels to the first output channels, without bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)

    def active_weight(self, inputs: int, outputs: int) -> Tensor:
        """[outputs, inputs, 1, 1]."""
        return self.conv.weight[:outputs, :inputs].contiguous()

    def forward(self, x: Tensor, outputs: int) -> Tensor:
        """[B, n, H, W] to [B, outputs, H, W]."""
        return F.conv2d(x, self.active_weight(x.shape[1], outputs))


class DynamicDepthwiseConv(nn.Module):
    """Depthwise 7x7 convolution that can act with 5x5 or 3x3 kernels, made from the centre of the next larger one.

    The matrices ``7to5_matrix`` [25, 25] and ``5to3_matrix`` [9, 9] map a flattened centre to the smaller kernel; all
    channels share them. They start as the identity.

    Args:
        channels: the largest number of channels.
        stride: of the convolution.
        transformed: False leaves the matrices out (a network with 7x7 kernels alone).
    """

    def __init__(self, channels: int, stride: int, transformed: bool = True) -> None:
        super().__init__()
        self.stride = stride
        if transformed:
            self.register_parameter("5to3_matrix", nn.Parameter(torch.eye(9)))
            self.register_parameter("7to5_matrix", nn.Parameter(torch.eye(25)))
        self.conv = nn.Conv2d(channels, channels, _LARGEST_KERNEL, stride, 3, groups=channels, bias=False)

    def active_weight(self, channels: int, kernel: int) -> Tensor:
        """[channels, 1, kernel, kernel]."""
        weight = self.conv.weight[:channels]
        for size in (5, 3):
            if kernel > size:
                break
            centre = weight[:, :, 1:-1, 1:-1].reshape(channels, size * size)
            matrix = getattr(self, f"{size + 2}to{size}_matrix")
            weight = F.linear(centre, matrix).view(channels, 1, size, size)
        return weight.contiguous()

    def forward(self, x: Tensor, kernel: int) -> Tensor:
        """[B, n, H, W] to [B, n, ceil(H / stride), ceil(W / stride)]."""
        channels = x.shape[1]
        weight = self.active_weight(channels, kernel)
        return F.conv2d(x, weight, None, self.stride, kernel // 2, groups=channels)


class SqueezeConvs(nn.Module):
    """The two 1x1 convolutions of a squeeze-and-excitation, with a chosen number of hidden channels."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, hidden, 1)
        self.expand = nn.Conv2d(hidden, channels, 1)

    def forward(self, x: Tensor, hidden: int) -> Tensor:
        """[B, n, 1, 1] to the same."""
        n = x.shape[1]
        if n == self.expand.out_channels and hidden == self.reduce.out_channels:
            return self.expand(F.relu(self.reduce(x)))
        x = F.conv2d(x, self.reduce.weight[:hidden, :n].contiguous(), _first(self.reduce.bias, hidden))
        return F.conv2d(F.relu(x), self.expand.weight[:n, :hidden].contiguous(), _first(self.expand.bias, n))


def _first(values: Tensor | None, number: int) -> Tensor | None:
    return None if values is None else values[:number]


class SqueezeExcitation(nn.Module):
    """Channels weighted by a hard sigmoid of their means (MobileNetV3, arXiv 1905.02244)."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.fc = SqueezeConvs(channels, hidden)

    def forward(self, x: Tensor, hidden: int | None = None) -> Tensor:
        """[B, n, H, W] to the same; ``hidden`` None takes all hidden channels."""
        hidden = self.fc.reduce.out_channels if hidden is None else hidden
        means = x.mean(3, keepdim=True).mean(2, keepdim=True)
        return x * (F.relu6(self.fc(means, hidden) + 3.0) / 6.0)
