# SPDX-License-Identifier: Apache-2.0
"""Adaptive aggregation of a cost-volume pyramid (AANet, Xu & Zhang, CVPR 2020, arXiv 2004.09548).

Six fusion steps; each has one bottleneck a scale (the last three with a modulated deformable convolution, DCNv2,
arXiv 1811.11168) and a sum over all scales.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vision3d.ops import deform_conv2d

SLOPE = 0.2
FUSIONS = 6
DEFORMABLE_FUSIONS = 3
DEFORMABLE_GROUPS = 2
SCALE_BINS = (64, 32, 16, 8)
_TAPS = 9


class _Weight(nn.Module):
    """Holder of the weight of a convolution that an op computes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, channels, 3, 3))


class DeformableConv(nn.Module):
    """Modulated deformable 3x3 convolution, dilation 2, whose offsets and masks a grouped convolution makes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.deform_conv = _Weight(channels)
        outputs = 3 * _TAPS * DEFORMABLE_GROUPS
        self.offset_conv = nn.Conv2d(channels, outputs, 3, 1, 2, dilation=2, groups=DEFORMABLE_GROUPS)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to the same."""
        made = self.offset_conv(x)
        offset, mask = made.split([2 * _TAPS * DEFORMABLE_GROUPS, _TAPS * DEFORMABLE_GROUPS], dim=1)
        return deform_conv2d(x, offset, self.deform_conv.weight, mask=2.0 * mask.sigmoid(), padding=2, dilation=2)


class Bottleneck(nn.Module):
    """1x1, 3x3 (plain or deformable), 1x1 with an identity shortcut, all of one width."""

    def __init__(self, channels: int, deformable: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        plain = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.conv2: nn.Module = DeformableConv(channels) if deformable else plain
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to the same."""
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        return F.relu(self.bn3(self.conv3(y)) + x, inplace=True)


def _path(source: int, target: int) -> nn.Module:
    """The layers that bring scale ``source`` to scale ``target`` (0 = finest)."""
    inputs, outputs = SCALE_BINS[source], SCALE_BINS[target]
    if source == target:
        return nn.Identity()
    if source > target:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
    links = []
    for step in range(target - source):
        last = step == target - source - 1
        width = outputs if last else inputs
        layers: list[nn.Module] = [nn.Conv2d(inputs, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width)]
        links.append(nn.Sequential(*layers if last else [*layers, nn.LeakyReLU(SLOPE, inplace=True)]))
    return nn.Sequential(*links)


class Fusion(nn.Module):
    """One aggregation step: a bottleneck on each scale, then each scale takes the sum of all of them."""

    def __init__(self, scales: int, deformable: bool) -> None:
        super().__init__()
        bins = SCALE_BINS[:scales]
        self.branches = nn.ModuleList(nn.Sequential(Bottleneck(width, deformable)) for width in bins)
        self.fuse_layers = nn.ModuleList(
            nn.ModuleList(_path(source, target) for source in range(scales)) for target in range(scales)
        )

    def forward(self, volumes: list[Tensor]) -> list[Tensor]:
        """One [B, D_s, H_s, W_s] a scale to the same; there may be fewer volumes than scales."""
        branches = [self.branches[scale](volume) for scale, volume in enumerate(volumes)]
        return [self._fuse(target, branches) for target in range(len(branches))]

    def paths(self) -> list[list[nn.Module]]:
        """The layers from each scale (inner list) to each scale (outer list), finest first."""
        return [list(paths.children()) for paths in self.fuse_layers]

    def _fuse(self, target: int, branches: list[Tensor]) -> Tensor:
        paths = self.paths()[target]
        total = paths[0](branches[0])
        for source in range(1, len(branches)):
            moved = paths[source](branches[source])
            if moved.shape[-2:] != total.shape[-2:]:
                moved = F.interpolate(moved, total.shape[-2:], mode="bilinear", align_corners=False)
            total = total + moved
        return F.leaky_relu(total, SLOPE)


class AdaptiveAggregation(nn.Module):
    """Six fusion steps and one 1x1 convolution a scale.

    Args:
        scales: number of scales of the fusion steps.
        heads: number of final convolutions; the authors' extracted networks keep four, whatever their scales.
    """

    def __init__(self, scales: int, heads: int = len(SCALE_BINS)) -> None:
        super().__init__()
        self.fusions = nn.ModuleList(Fusion(scales, step >= FUSIONS - DEFORMABLE_FUSIONS) for step in range(FUSIONS))
        self.final_conv = nn.ModuleList(nn.Conv2d(width, width, 1) for width in SCALE_BINS[:heads])

    def forward(self, volumes: list[Tensor]) -> list[Tensor]:
        """One similarity volume [B, D_s, H_s, W_s] a scale, finest first, to scores of the same shapes."""
        for fusion in self.fusions:
            volumes = fusion(volumes)
        return [self.final_conv[scale](volume) for scale, volume in enumerate(volumes)]
