# SPDX-License-Identifier: Apache-2.0
"""I1: the batch-norm indicator of BN-NAS (arXiv 2108.07375) on a supernet of nested widths and kernels."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vision3d.errors import InputError
from vision3d.models.stereo.easnet import FULL_SPACE, EASNetSupernet, Setting, sample_setting
from vision3d.types import StereoBatch


class PrivateNorms(nn.Module):
    """In place of the last batch norm of a block: one of its own for each kernel and expand ratio.

    Args:
        shared: the layer whose values all of them start with.
    """

    def __init__(self, shared: nn.BatchNorm2d) -> None:
        super().__init__()
        self.norms = nn.ModuleDict()
        for kernel in FULL_SPACE.kernels:
            for ratio in FULL_SPACE.expand_ratios:
                norm = nn.BatchNorm2d(shared.num_features)
                norm.load_state_dict(shared.state_dict())
                self.norms[f"{kernel} {ratio}"] = norm
        self.active = f"{FULL_SPACE.kernels[-1]} {FULL_SPACE.expand_ratios[-1]}"

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to the same, by the active layer."""
        return self.norms[self.active](x)


class PrivateNormIndicator:
    """I1: mean |scale| of private last batch norms after a short training of them alone. Higher is better.

    Everything else is frozen; each step draws a sub-network uniformly. The score sums over the active blocks.

    Args:
        supernet: with its trained weights; it stays as it is.
        batches: with ground truth, gone through in turn.
        steps: of the training (Adam).
        seed: of the draws.
        learning_rate: of Adam.
        progress: is told each step and its loss.

    Raises:
        InputError: no batch, or fewer than 1 step.
    """

    def __init__(
        self,
        supernet: EASNetSupernet,
        batches: Sequence[StereoBatch],
        steps: int = 200,
        seed: int = 0,
        learning_rate: float = 1e-3,
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        if not batches or steps < 1:
            raise InputError("the private batch norms need at least one batch and one step of training")
        network = copy.deepcopy(supernet).requires_grad_(False).train()
        pyramid: Any = network.feature_extractor
        blocks: list[Any] = list(pyramid)
        for block in blocks:
            block.conv.point_linear.bn = PrivateNorms(block.conv.point_linear.bn.bn)
        norms: list[PrivateNorms] = [block.conv.point_linear.bn for block in blocks]
        self.losses = _train(network, norms, batches, steps, random.Random(seed), learning_rate, progress)
        self.table = [
            {key: float(norm.weight.detach().abs().mean()) for key, norm in private.norms.items()}  # type: ignore[operator]
            for private in norms
        ]

    def score(self, setting: Setting) -> float:
        """The score of a sub-network; compare within equal depths and scales."""
        return sum(self.table[b][f"{setting.kernels[b]} {setting.expand_ratios[b]}"] for b in setting.active_blocks)


def _train(
    network: EASNetSupernet,
    norms: list[PrivateNorms],
    batches: Sequence[StereoBatch],
    steps: int,
    rng: random.Random,
    learning_rate: float,
    progress: Callable[[int, float], None] | None,
) -> list[float]:
    from vision3d.training.losses import create_loss

    parameters = [value.requires_grad_() for norm in norms for value in norm.parameters()]
    optimizer, criterion, losses = torch.optim.Adam(parameters, lr=learning_rate), create_loss("easnet"), []
    for step in range(steps):
        setting = network.set_active(sample_setting(rng, network.search_space))
        for block, norm in enumerate(norms):
            norm.active = f"{setting.kernels[block]} {setting.expand_ratios[block]}"
        batch = batches[step % len(batches)]
        loss, _ = criterion(network(batch.left, batch.right), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if progress is not None:
            progress(step, losses[-1])
    return losses
