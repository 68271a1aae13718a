# SPDX-License-Identifier: Apache-2.0
"""The recipe's group ``communication``: how the processes of a run exchange gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vision3d.errors import ConfigError

if TYPE_CHECKING:
    from vision3d.training.config import TrainConfig

SPARSE_HOOKS = ("topk", "gtopk", "lags")


@dataclass
class CommunicationConfig:
    """How gradients are exchanged between processes (docs/distributed.md).

    Attributes:
        hook: none (DDP's all-reduce); fp16, bf16, powersgd (those of PyTorch); topk, gtopk, lags (sparsified, ours).
        density: share of the gradient entries that a process sends; for lags the least share of a layer.
        warmup_steps: optimiser steps over which the density falls from 1/4, by factors of 4, to ``density``.
        momentum_correction: momentum applied before the selection, as in DGC; 0 turns it off.
        rule: what becomes of values that gtopk rejects on its way: adopt (the process that rejects them keeps them),
            resum (only indices are agreed on, then their values are summed), paper (as published; loses some).
        dense_below: tensors with fewer elements (biases, normalisations) are summed densely.
        overlap: communicate in a thread of its own during back-propagation; null: for lags alone.
        adapt_steps: lags: steps that are timed before the ratios of the layers are set; 0 keeps ``density`` for all.
        bucket_mb: size of DDP's buckets in MiB; null: 25.
        powersgd_rank, powersgd_start: rank of PowerSGD, and the step from which it compresses (at least 2).
    """

    hook: Literal["none", "fp16", "bf16", "powersgd", "topk", "gtopk", "lags"] = "none"
    density: float = 0.01
    warmup_steps: int = 0
    momentum_correction: float = 0.0
    rule: Literal["adopt", "resum", "paper"] = "adopt"
    dense_below: int = 1024
    overlap: bool | None = None
    adapt_steps: int = 0
    bucket_mb: float | None = None
    powersgd_rank: int = 1
    powersgd_start: int = 1000

    @property
    def sparse(self) -> bool:
        """Whether the hook is one of the sparsified ones."""
        return self.hook in SPARSE_HOOKS


def sends_more_than_dense(options: CommunicationConfig, world: int) -> bool:
    """Whether a sparsified hook sends more bytes than the dense all-reduce that it is to replace.

    Elements cost 8 bytes against 4: an all-gather is cheaper below a density of 1/P, the tree (whose first process
    sends log2 P messages in a step) below (P-1) / (P log2 P).
    """
    if not options.sparse or world < 2:
        return False
    bound = (world - 1) / (world * math.log2(world)) if options.hook == "gtopk" else 1 / world
    return options.density > bound


def check_communication(config: TrainConfig, where: str) -> None:
    """Raise ConfigError for values that are illegal by themselves or beside the rest of the recipe."""
    options = config.communication
    if not 0 < options.density <= 1:
        raise ConfigError(f"{where}: communication.density must lie in (0, 1], got {options.density}")
    if not 0 <= options.momentum_correction < 1:
        raise ConfigError(
            f"{where}: communication.momentum_correction must lie in [0, 1), got {options.momentum_correction}"
        )
    least = {"warmup_steps": 0, "dense_below": 0, "adapt_steps": 0, "powersgd_rank": 1, "powersgd_start": 2}
    for name, bound in least.items():
        if getattr(options, name) < bound:
            raise ConfigError(f"{where}: communication.{name} must be at least {bound}, got {getattr(options, name)}")
    if options.bucket_mb is not None and not options.bucket_mb > 0:
        raise ConfigError(f"{where}: communication.bucket_mb must be positive, got {options.bucket_mb}")
    _check_together(config, where)


def _check_together(config: TrainConfig, where: str) -> None:
    options, optimizer, strategy = config.communication, config.optimizer, config.trainer.strategy
    if options.momentum_correction and not options.sparse:
        raise ConfigError(
            f"{where}: communication.momentum_correction needs the hook topk, gtopk or lags, not {options.hook}"
        )
    if options.momentum_correction and (optimizer.name != "sgd" or optimizer.momentum):
        raise ConfigError(
            f"{where}: communication.momentum_correction takes the place of the optimiser's momentum: set "
            "optimizer.name: sgd with optimizer.momentum: 0, or remove it"
        )
    if options.hook == "none":
        return
    if strategy.startswith("fsdp"):
        raise ConfigError(
            f"{where}: communication.hook: {options.hook} needs DDP: {strategy} shards the gradients by a "
            "reduce-scatter that takes no such hook: set trainer.strategy: ddp, or communication.hook: none"
        )
    if strategy not in ("auto", "ddp", "ddp_find_unused_parameters_true"):
        raise ConfigError(
            f"{where}: communication.hook: {options.hook} needs trainer.strategy: ddp (or auto, or "
            f"ddp_find_unused_parameters_true), not {strategy}"
        )
    if options.hook == "powersgd" and config.trainer.non_finite == "skip":
        raise ConfigError(
            f"{where}: communication.hook: powersgd keeps a gradient that is not finite in its error memory, so no "
            "step can be skipped: set trainer.non_finite: error, or choose another hook"
        )
