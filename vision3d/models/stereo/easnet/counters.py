# SPDX-License-Identifier: Apache-2.0
"""Parameters and multiply-accumulates of EASNet settings, without building their networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from vision3d.models.stereo.easnet.aggregation import (
    DEFORMABLE_FUSIONS,
    DEFORMABLE_GROUPS,
    FUSIONS,
    SCALE_BINS,
    AdaptiveAggregation,
)
from vision3d.models.stereo.easnet.refinement import DILATIONS, WIDTH, Refinement
from vision3d.models.stereo.easnet.settings import BLOCK_SHAPES, STAGE_STRIDES, Setting, parse_setting

_TAPS = 9
_OFFSETS = 3 * _TAPS * DEFORMABLE_GROUPS


@dataclass(frozen=True)
class MacCount:
    """Multiply-accumulates of the convolutions for one pair, by part; both views count."""

    features: int
    aggregation: int
    refinement: int

    @property
    def total(self) -> int:
        """All parts."""
        return self.features + self.aggregation + self.refinement


def count_parameters(model: nn.Module) -> int:
    """Number of parameters, those of dead final convolutions included."""
    return sum(parameter.numel() for parameter in model.parameters())


def setting_parameters(setting: Setting | Mapping[str, Any]) -> int:
    """Parameters of the extracted network of a setting, as :func:`count_parameters` gives them.

    Raises:
        ConfigError: an illegal setting.
    """
    checked = parse_setting(setting)
    blocks = (_block_parameters(b, checked.kernels[b], checked.expand_ratios[b]) for b in checked.active_blocks)
    return sum(blocks) + _fixed_parameters(checked.scales)


def _block_parameters(block: int, kernel: int, expand_ratio: int) -> int:
    shape = BLOCK_SHAPES[block]
    middle, hidden = shape.middle(expand_ratio), shape.hidden(expand_ratio)
    squeeze = 2 * middle * hidden + hidden + middle if shape.squeeze else 0
    norms = 2 * (middle + middle + shape.outputs)
    return middle * (shape.inputs + kernel * kernel + shape.outputs) + norms + squeeze


@cache
def _fixed_parameters(scales: int) -> int:
    """Of aggregation and refinement."""
    with torch.device("meta"):
        return count_parameters(AdaptiveAggregation(scales)) + 2 * count_parameters(Refinement())


def scale_sizes(height: int, width: int, scales: int) -> list[tuple[int, int]]:
    """(height, width) of each scale of an image, finest (1/3) first."""
    sizes = []
    for stride in STAGE_STRIDES[:scales]:
        height, width = -(-height // stride), -(-width // stride)
        sizes.append((height, width))
    return sizes


def _block_layers(block: int, kernel: int, expand_ratio: int, size: tuple[int, int]) -> list[int]:
    shape = BLOCK_SHAPES[block]
    middle = shape.middle(expand_ratio)
    outside = (-(-size[0] // shape.stride)) * (-(-size[1] // shape.stride))
    squeeze = [middle * shape.hidden(expand_ratio)] * 2 if shape.squeeze else []
    first = size[0] * size[1] * shape.inputs * middle
    return [first, outside * middle * kernel * kernel, *squeeze, outside * middle * shape.outputs]


def block_macs(block: int, kernel: int, expand_ratio: int, size: tuple[int, int]) -> int:
    """Multiply-accumulates of one block for one view.

    Args:
        block: 0 to 15.
        kernel, expand_ratio: of the block.
        size: (height, width) of its input, pixels.
    """
    return sum(_block_layers(block, kernel, expand_ratio, size))


def _feature_layers(setting: Setting, height: int, width: int) -> Iterator[int]:
    sizes = [(height, width), *scale_sizes(height, width, setting.scales)]
    for block in setting.active_blocks:
        shape = BLOCK_SHAPES[block]
        size = sizes[shape.stage + (shape.position > 0)]
        yield from _block_layers(block, setting.kernels[block], setting.expand_ratios[block], size)


def _path_layers(source: int, target: int, sizes: list[tuple[int, int]]) -> Iterator[int]:
    inputs, outputs = SCALE_BINS[source], SCALE_BINS[target]
    height, width = sizes[source]
    if source > target:
        yield height * width * inputs * outputs
    for step in range(source, target):
        height, width = -(-height // 2), -(-width // 2)
        yield height * width * _TAPS * inputs * (outputs if step == target - 1 else inputs)


def _aggregation_layers(sizes: list[tuple[int, int]], deformable: bool) -> Iterator[int]:
    planes = [(height * width, bins) for (height, width), bins in zip(sizes, SCALE_BINS, strict=False)]
    for step in range(FUSIONS):
        plain = step < FUSIONS - DEFORMABLE_FUSIONS
        for area, bins in planes:
            yield area * bins * bins
            if plain or deformable:
                yield area * bins * bins * _TAPS
            if not plain:
                yield area * (bins // DEFORMABLE_GROUPS) * _OFFSETS * _TAPS
            yield area * bins * bins
        for target in range(len(sizes)):
            for source in range(len(sizes)):
                yield from _path_layers(source, target, sizes)
    for area, bins in planes:
        yield area * bins * bins


def aggregation_macs(sizes: list[tuple[int, int]]) -> int:
    """Multiply-accumulates of the aggregation of scales of the given (height, width), finest first."""
    return sum(_aggregation_layers(sizes, deformable=True))


def _refinement_layers(height: int, width: int) -> Iterator[int]:
    for area in ((height // 2) * (width // 2), height * width):
        yield area * _TAPS * 6 * (WIDTH // 2)
        yield area * _TAPS * (WIDTH // 2)
        for _ in range(2 * len(DILATIONS)):
            yield area * _TAPS * WIDTH * WIDTH
        yield area * _TAPS * WIDTH


def refinement_macs(height: int, width: int) -> int:
    """Multiply-accumulates of both refinement steps for an image size."""
    return sum(_refinement_layers(height, width))


def count_macs(setting: Setting | Mapping[str, Any], height: int, width: int) -> MacCount:
    """Multiply-accumulates of one pair: both views' features, and the deformable convolutions, are counted.

    Args:
        setting: of the sub-network.
        height, width: image size, pixels.

    Raises:
        ConfigError: an illegal setting.
    """
    checked = parse_setting(setting)
    features = 2 * sum(_feature_layers(checked, height, width))
    aggregation = aggregation_macs(scale_sizes(height, width, checked.scales))
    return MacCount(features, aggregation, refinement_macs(height, width))


def published_mac_count(setting: Setting | Mapping[str, Any], height: int, width: int) -> int:
    """The number that the authors' counter gives: for comparison with their logs, else use :func:`count_macs`.

    It counts the features of one view, leaves the deformable convolutions out, and adds up in float32, layer by layer.

    Args:
        setting: of the sub-network.
        height, width: image size, pixels.

    Raises:
        ConfigError: an illegal setting.
    """
    checked = parse_setting(setting)
    sizes = scale_sizes(height, width, checked.scales)
    parts = (
        _feature_layers(checked, height, width),
        _aggregation_layers(sizes, deformable=False),
        _refinement_layers(height, width),
    )
    total = np.float32(0)
    for layers in parts:
        for layer in layers:
            total += np.float32(layer)
    return int(total)
