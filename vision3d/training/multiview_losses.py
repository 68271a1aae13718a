# SPDX-License-Identifier: Apache-2.0
"""Losses of multi-view stereo for the training task: callables ``loss(output, batch) -> (total, parts)``."""

from __future__ import annotations

import torch
from torch import Tensor

from vision3d.errors import ConfigError
from vision3d.models.mvs.dispmvs_loss import dispmvs_loss
from vision3d.types import DepthOutput, MultiViewBatch


class DispMVSLoss:
    """:func:`vision3d.models.mvs.dispmvs_loss.dispmvs_loss` of a network's answer to a batch.

    Args:
        gamma: weight ratio of neighbouring iterations of a stage.
        gamma_order: "first_heavy", as published, or "last_heavy".

    Raises:
        ConfigError: an option out of range.
    """

    def __init__(self, gamma: float = 0.9, gamma_order: str = "first_heavy") -> None:
        if not 0 < gamma <= 1:
            raise ConfigError(f"loss dispmvs: gamma must lie in (0, 1], got {gamma}")
        if gamma_order not in ("first_heavy", "last_heavy"):
            raise ConfigError(f"loss dispmvs: gamma_order '{gamma_order}': choose first_heavy or last_heavy")
        self.gamma, self.gamma_order = gamma, gamma_order

    def __call__(self, output: DepthOutput, batch: MultiViewBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and ``loss_last``: the last map's mean absolute error in shares of the range."""
        maps = [item.float() for item in output.iterations]
        total = dispmvs_loss(maps, batch.depth, batch.depth_range, gamma=self.gamma, gamma_order=self.gamma_order)
        with torch.no_grad():
            last = dispmvs_loss(maps[-1:], batch.depth, batch.depth_range)
        return total, {"loss_last": last}
