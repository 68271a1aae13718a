# SPDX-License-Identifier: Apache-2.0
"""Scores that rank sub-networks by their batch-norm layers, without measuring their error.

BN-NAS (arXiv 2108.07375) ranks operations by the scales of their last batch norm. In EASNet all widths and kernels of a
block share that layer, so that its score has to be adapted (:class:`ScaleIndicator`), its layers made private
(:mod:`vision3d.search.private_norms`), or its statistics looked at (:class:`DriftIndicator`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from vision3d.errors import InputError
from vision3d.models.batch_norm import recalibrate_batch_norm
from vision3d.models.stereo.easnet import FULL_SPACE, EASNet, EASNetSupernet, Setting, largest_setting

_FEATURES = "feature_extractor."
_SCALES = 4


class ScaleIndicator:
    """I0: the scales of a finished supernet. Higher is better. Free: one table, no pass.

    With gB, gC the scales after the depthwise and the last convolution of block b, w its last weight, n the middle
    channels of ratio E and w_K the depthwise filter of kernel K:
    ``block(b) = mean |gC|``;
    ``width(b, E) = sum_{c<n} |gB_c| * ||w[:, c]||_1``, over the same for E = 8;
    ``kernel(b, K, E)`` = mean over the first n channels of ``||w_K||^2 / ||w_7||^2``;
    score = sum over active blocks of ``block * (width + kernel)``, plus for each scale j above the finest the sum, over
    fusions and finer scales i, of the mean |scale| of the last batch norm from j to i.

    Args:
        supernet: with its trained weights.

    Attributes:
        blocks: (block, kernel, ratio) -> its term.
        scales: term of each scale, the finest's is 0.
    """

    def __init__(self, supernet: EASNetSupernet) -> None:
        self.blocks: dict[tuple[int, int, int], float] = {}
        with torch.no_grad():
            pyramid: Any = supernet.feature_extractor
            for number, block in enumerate(pyramid):
                self.blocks.update({(number, *key): value for key, value in _block_terms(block.conv).items()})
            self.scales = [sum(_fusion_scales(supernet, scale)) for scale in range(_SCALES)]

    def score(self, setting: Setting) -> float:
        """The score of a sub-network; compare within equal depths and scales, as both add terms."""
        blocks = (self.blocks[b, setting.kernels[b], setting.expand_ratios[b]] for b in setting.active_blocks)
        return sum(blocks) + sum(self.scales[: setting.scales])


def _block_terms(block: Any) -> dict[tuple[int, int], float]:
    last = block.point_linear.bn.bn.weight.abs().mean()
    channel = block.depth_conv.bn.bn.weight.abs() * block.point_linear.conv.conv.weight.abs().sum((0, 2, 3))
    depthwise, terms = block.depth_conv.conv, {}
    for ratio in FULL_SPACE.expand_ratios:
        n = block.shape.middle(ratio)
        whole = depthwise.conv.weight[:n].square().sum((1, 2, 3)).clamp_min(1e-30)
        for kernel in FULL_SPACE.kernels:
            kept = depthwise.active_weight(n, kernel).square().sum((1, 2, 3)) / whole
            terms[kernel, ratio] = float(last * (channel[:n].sum() / channel.sum().clamp_min(1e-30) + kept.mean()))
    return terms


def _fusion_scales(supernet: EASNetSupernet, source: int) -> Iterable[float]:
    """Mean |scale| of the path from a scale to each finer one, for all fusions."""
    aggregation: Any = supernet.aggregation
    for fusion in aggregation.fusions:
        for target in range(source):
            yield float(fusion.fuse_layers[target][source][1].weight.abs().mean())


class DriftIndicator:
    """I2: how far the statistics of a sub-network lie from those of the largest one. Lower is better; no ground truth.

    The score is the sum over all batch-norm channels of KL(N(mean, var) || N(mean_0, var_0)), both measured on the same
    batches.

    Args:
        supernet: with its trained weights.
        batches: 2 to 4 batches of (left, right) for :func:`~vision3d.models.batch_norm.recalibrate_batch_norm`.
    """

    def __init__(self, supernet: EASNetSupernet, batches: list[Any]) -> None:
        if not batches:
            raise InputError("the drift of the statistics needs at least one batch")
        self.supernet, self.batches = supernet, batches
        reference = supernet.extract(largest_setting(supernet.search_space))
        recalibrate_batch_norm(reference, batches)
        self.reference = supernet_statistics(reference)

    def score(self, setting: Setting) -> float:
        """The score of a sub-network: one pass over the batches."""
        return self.drift(setting)[0]

    def drift(self, setting: Setting) -> tuple[float, int]:
        """The score, and the number of channels that it sums over: their ratio does not grow with the network."""
        network = self.supernet.extract(setting)
        recalibrate_batch_norm(network, self.batches)
        statistics = supernet_statistics(network)
        return statistics_drift(statistics, self.reference), sum(len(mean) for mean, _ in statistics.values())


def supernet_statistics(network: EASNet) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and variance of every batch norm, under the number that its block has in the supernet."""
    names = dict(enumerate(network.setting.active_blocks))
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d) and module.running_mean is not None:
            assert module.running_var is not None
            if name.startswith(_FEATURES):
                number, rest = name.removeprefix(_FEATURES).split(".", 1)
                name = f"{_FEATURES}{names[int(number)]}.{rest}"
            found[name] = module.running_mean, module.running_var
    return found


def statistics_drift(
    statistics: Mapping[str, tuple[Tensor, Tensor]], reference: Mapping[str, tuple[Tensor, Tensor]]
) -> float:
    """Sum over layers and channels of the Kullback-Leibler divergence of two normal distributions.

    Args:
        statistics: name -> (mean [n], variance [n]).
        reference: the same; layers may have more channels, of which the first n count.
    """
    total = 0.0
    for name, (mean, variance) in statistics.items():
        mean_0, variance_0 = (value[: len(mean)].double() for value in reference[name])
        variance, variance_0 = variance.double().clamp_min(1e-12), variance_0.clamp_min(1e-12)
        moved = (variance + (mean.double() - mean_0).square()) / variance_0
        total += float((0.5 * (moved - 1 - (variance / variance_0).log())).sum())
    return total
