# SPDX-License-Identifier: Apache-2.0
"""The feature pyramid of EASNet: inverted residual blocks in four stages, elastic in the supernet, else fixed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vision3d.models.stereo.easnet.dynamic import (
    DynamicBatchNorm,
    DynamicDepthwiseConv,
    DynamicPointConv,
    SqueezeExcitation,
)
from vision3d.models.stereo.easnet.settings import BLOCK_SHAPES, STAGE_BLOCKS, BlockShape, Setting

_LARGEST_RATIO = 8


def _copy(target: Tensor, source: Tensor) -> None:
    target.data.copy_(source.detach())


def _copy_norm(target: nn.BatchNorm2d, source: nn.BatchNorm2d) -> None:
    """Copy the first entries of every parameter and statistic."""
    n = target.num_features
    for name in ("weight", "bias", "running_mean", "running_var"):
        _copy(getattr(target, name), getattr(source, name)[:n])
    if target.num_batches_tracked is not None and source.num_batches_tracked is not None:
        target.num_batches_tracked.copy_(source.num_batches_tracked)


def _squeeze_convs(part: nn.Module) -> Any:
    return part.get_submodule("se.fc")


class ConvNorm(nn.Module):
    """A convolution without bias, and its normalisation (and squeeze-and-excitation, in ``se``, where it is added)."""

    conv: Any
    bn: Any

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, C', ceil(H / stride), ceil(W / stride)]."""
        return self.bn(self.conv(x))


class InvertedResidual(nn.Module):
    """1x1 expansion, depthwise KxK, squeeze-and-excitation where the stage has it, 1x1 projection, of fixed size."""

    def __init__(self, shape: BlockShape, kernel: int, expand_ratio: int) -> None:
        super().__init__()
        middle = shape.middle(expand_ratio)
        self.inverted_bottleneck = ConvNorm(shape.inputs, middle)
        self.depth_conv = ConvNorm(middle, middle, kernel, shape.stride, middle)
        if shape.squeeze:
            self.depth_conv.add_module("se", SqueezeExcitation(middle, shape.hidden(expand_ratio)))
        self.point_linear = ConvNorm(middle, shape.outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs, H, W] to [B, outputs, ceil(H / stride), ceil(W / stride)]."""
        x = F.relu(self.inverted_bottleneck(x), inplace=True)
        x = F.relu(self.depth_conv(x), inplace=True)
        squeeze = getattr(self.depth_conv, "se", None)
        return self.point_linear(x if squeeze is None else squeeze(x))


class Block(nn.Module):
    """An inverted residual block of fixed size, with its identity shortcut where input and output have one shape."""

    def __init__(self, shape: BlockShape, kernel: int, expand_ratio: int) -> None:
        super().__init__()
        self.residual = shape.position > 0
        self.conv = InvertedResidual(shape, kernel, expand_ratio)

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs, H, W] to [B, outputs, ceil(H / stride), ceil(W / stride)]."""
        return self.conv(x) + x if self.residual else self.conv(x)


class FeaturePyramid(nn.ModuleList):
    """The blocks of one setting, numbered consecutively."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(
            Block(BLOCK_SHAPES[b], setting.kernels[b], setting.expand_ratios[b]) for b in setting.active_blocks
        )
        self.stage_lengths = setting.stage_lengths

    def forward(self, image: Tensor) -> list[Tensor]:
        """[B, 3, H, W] to one map a scale: 1/3, 1/6, 1/12, 1/24 (sizes rounded up)."""
        features, first = [image], 0
        for length in self.stage_lengths:
            x = features[-1]
            for index in range(first, first + length):
                x = self[index](x)
            first += length
            features.append(x)
        return features[1:]


class _DynamicPart(nn.Module):
    """Holder of the layers of one part of an elastic block, under the names of the public code."""

    conv: Any
    bn: Any

    def __init__(self, conv: nn.Module, channels: int) -> None:
        super().__init__()
        self.conv = conv
        self.bn = DynamicBatchNorm(channels)


class DynamicInvertedResidual(nn.Module):
    """An inverted residual whose kernel and width are chosen at each call."""

    def __init__(self, shape: BlockShape, transformed: bool = True) -> None:
        super().__init__()
        self.shape = shape
        middle = shape.middle(_LARGEST_RATIO)
        self.inverted_bottleneck = _DynamicPart(DynamicPointConv(shape.inputs, middle), middle)
        self.depth_conv = _DynamicPart(DynamicDepthwiseConv(middle, shape.stride, transformed), middle)
        if shape.squeeze:
            self.depth_conv.add_module("se", SqueezeExcitation(middle, shape.hidden(_LARGEST_RATIO)))
        self.point_linear = _DynamicPart(DynamicPointConv(middle, shape.outputs), shape.outputs)

    def forward(self, x: Tensor, kernel: int, expand_ratio: int) -> Tensor:
        """[B, inputs, H, W] to [B, outputs, ceil(H / stride), ceil(W / stride)]."""
        first, depthwise, last = self.inverted_bottleneck, self.depth_conv, self.point_linear
        x = F.relu(first.bn(first.conv(x, self.shape.middle(expand_ratio))), inplace=True)
        x = F.relu(depthwise.bn(depthwise.conv(x, kernel)), inplace=True)
        squeeze = getattr(depthwise, "se", None)
        if squeeze is not None:
            x = squeeze(x, self.shape.hidden(expand_ratio))
        return last.bn(last.conv(x, self.shape.outputs))

    @torch.no_grad()
    def export_to(self, target: InvertedResidual, kernel: int, expand_ratio: int) -> None:
        """Copy the active weights and statistics into a block of that size."""
        middle, shape = self.shape.middle(expand_ratio), self.shape
        _copy(target.inverted_bottleneck.conv.weight, self.inverted_bottleneck.conv.active_weight(shape.inputs, middle))
        _copy(target.depth_conv.conv.weight, self.depth_conv.conv.active_weight(middle, kernel))
        _copy(target.point_linear.conv.weight, self.point_linear.conv.active_weight(middle, shape.outputs))
        for name in ("inverted_bottleneck", "depth_conv", "point_linear"):
            _copy_norm(getattr(target, name).bn, getattr(self, name).bn.bn)
        if shape.squeeze:
            hidden = shape.hidden(expand_ratio)
            own, other = _squeeze_convs(self.depth_conv), _squeeze_convs(target.depth_conv)
            _copy(other.reduce.weight, own.reduce.weight[:hidden, :middle])
            _copy(other.reduce.bias, own.reduce.bias[:hidden])
            _copy(other.expand.weight, own.expand.weight[:middle, :hidden])
            _copy(other.expand.bias, own.expand.bias[:middle])

    @torch.no_grad()
    def sort_channels(self, boundaries: list[int]) -> None:
        """Order the middle channels by importance, and the hidden ones of the squeeze-and-excitation.

        The importance of a middle channel is the sum of the magnitudes of its projection weights.

        Args:
            boundaries: ends of the ranges of channels that are sorted each for itself, ascending; the last is the
                number of channels.
        """
        importance = self.point_linear.conv.conv.weight.abs().sum((0, 2, 3))
        order = _descending(importance, boundaries)
        _permute(self.point_linear.conv.conv.weight, order, 1)
        _permute(self.depth_conv.conv.conv.weight, order, 0)
        _permute(self.inverted_bottleneck.conv.conv.weight, order, 0)
        for norm in (self.depth_conv.bn.bn, self.inverted_bottleneck.bn.bn):
            for name in ("weight", "bias", "running_mean", "running_var"):
                _permute(getattr(norm, name), order, 0)
        if self.shape.squeeze:
            convs = _squeeze_convs(self.depth_conv)
            _permute(convs.expand.weight, order, 0)
            _permute(convs.expand.bias, order, 0)
            _permute(convs.reduce.weight, order, 1)
            hidden = convs.expand.weight.abs().sum((0, 2, 3))
            order = _descending(hidden, [len(hidden)])
            _permute(convs.expand.weight, order, 1)
            _permute(convs.reduce.weight, order, 0)
            _permute(convs.reduce.bias, order, 0)


def _descending(importance: Tensor, boundaries: list[int]) -> Tensor:
    parts, start = [], 0
    for end in boundaries:
        parts.append(start + importance[start:end].argsort(descending=True, stable=True))
        start = end
    return torch.cat(parts)


def _permute(tensor: Tensor, order: Tensor, dim: int) -> None:
    tensor.data.copy_(tensor.detach().index_select(dim, order))


class DynamicBlock(nn.Module):
    """An elastic block with its identity shortcut."""

    def __init__(self, shape: BlockShape, transformed: bool = True) -> None:
        super().__init__()
        self.residual = shape.position > 0
        self.conv = DynamicInvertedResidual(shape, transformed)

    def forward(self, x: Tensor, kernel: int, expand_ratio: int) -> Tensor:
        """[B, inputs, H, W] to [B, outputs, ceil(H / stride), ceil(W / stride)]."""
        y = self.conv(x, kernel, expand_ratio)
        return y + x if self.residual else y


class DynamicFeaturePyramid(nn.ModuleList):
    """All 16 blocks; ``setting`` says which act, and how.

    Args:
        setting: the first setting.
        transformed: False leaves the kernel matrices out.
    """

    def __init__(self, setting: Setting, transformed: bool = True) -> None:
        super().__init__(DynamicBlock(shape, transformed) for shape in BLOCK_SHAPES)
        self.setting = setting

    @property
    def stage_lengths(self) -> tuple[int, ...]:
        """Number of acting blocks of each active stage."""
        return self.setting.stage_lengths

    def forward(self, image: Tensor) -> list[Tensor]:
        """[B, 3, H, W] to one map an active scale: 1/3, 1/6, 1/12, 1/24 (sizes rounded up)."""
        setting, features = self.setting, [image]
        for stage, length in enumerate(self.stage_lengths):
            x = features[-1]
            for index in range(stage * STAGE_BLOCKS, stage * STAGE_BLOCKS + length):
                x = self[index](x, setting.kernels[index], setting.expand_ratios[index])
            features.append(x)
        return features[1:]

    def export_to(self, target: FeaturePyramid, setting: Setting) -> None:
        """Copy the active weights and statistics of ``setting`` into its pyramid."""
        for number, index in enumerate(setting.active_blocks):
            block: Any = self[index]
            fixed: Any = target[number]
            block.conv.export_to(fixed.conv, setting.kernels[index], setting.expand_ratios[index])

    def sort_channels(self, ranges: int, expand_ratios: tuple[int, ...]) -> None:
        """Sort the channels of every block; see ``EASNetSupernet.sort_channels``."""
        ends = sorted(expand_ratios)[:-1]
        blocks: Iterator[Any] = iter(self)
        for block in blocks:
            shape: BlockShape = block.conv.shape
            inner = {shape.middle(ratio) for ratio in ends[len(ends) - ranges :]} if ranges else set()
            block.conv.sort_channels(sorted(inner | {shape.middle(_LARGEST_RATIO)}))
