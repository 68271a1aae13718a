# SPDX-License-Identifier: Apache-2.0
"""Optimisers, and learning-rate schedules and rounds as functions of the optimiser step (a resume needs no state)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vision3d.errors import ConfigError
from vision3d.training.config import OptimizerConfig, RoundConfig, ScheduleConfig


class Lamb(torch.optim.Optimizer):
    """LAMB as FADNet++ trains with (arXiv 1904.00962 without bias correction).

    ``m, v`` are moving averages; ``step = m / (sqrt(v) + eps) + weight_decay * w``; the trust ratio of a tensor is
    ``clamp(||w||, 0, 10) / ||step||``, or 1 if either is zero; ``w -= lr * ratio * step``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ConfigError(f"lamb: illegal lr {lr}, betas {betas}, eps {eps} or weight_decay {weight_decay}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take one step; parameters without a gradient stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        beta1, beta2 = group["betas"]
        gradient: Any = parameter.grad
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        step = mean / square.sqrt().add_(group["eps"])
        if group["weight_decay"]:
            step.add_(parameter, alpha=group["weight_decay"])
        weight_norm, step_norm = parameter.norm().clamp(0, 10), step.norm()
        usable = (weight_norm > 0) & (step_norm > 0)
        ratio = torch.where(usable, weight_norm / step_norm, torch.ones_like(weight_norm))
        parameter.sub_(step.mul_(ratio * group["lr"]))


def create_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Build the optimiser of a recipe over the trainable parameters of ``model``."""
    parameters = _parameter_groups(model, config.no_decay)
    if config.name == "sgd":
        return torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    common: dict[str, Any] = {"lr": config.lr, "betas": tuple(config.betas), "weight_decay": config.weight_decay}
    usual = 1e-6 if config.name == "lamb" else 1e-8
    common["eps"] = usual if config.eps is None else config.eps
    if config.name == "lamb":
        return Lamb(parameters, **common)
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    return kind(parameters, amsgrad=config.amsgrad, **common)


def _parameter_groups(model: nn.Module, no_decay: Sequence[str]) -> list[Any]:
    """The trainable parameters; in two groups, the second without weight decay, where names ask for it."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    free = [parameter for name, parameter in named if any(part in name for part in no_decay)]
    if not free:
        return [parameter for _, parameter in named]
    held = [parameter for name, parameter in named if not any(part in name for part in no_decay)]
    groups: list[dict[str, Any]] = [{"params": held}, {"params": free, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


@dataclass(frozen=True)
class Round:
    """A stretch of training: steps ``[start, stop)``, with its own loss weights (None: those of the loss)."""

    start: int
    stop: int
    weights: tuple[float, ...] | None


def plan_rounds(rounds: Sequence[RoundConfig], max_steps: int | None, steps_per_epoch: int | None) -> list[Round]:
    """Turn the rounds of a recipe (counted in epochs or steps) into ranges of optimiser steps.

    A last round without a length, or no round at all, fills up to ``max_steps``.

    Raises:
        ConfigError: the length of the training cannot be told.
    """
    planned: list[Round] = []
    start = 0
    for number, item in enumerate(rounds or [RoundConfig()], start=1):
        if item.steps is not None:
            length = item.steps
        elif item.epochs is not None:
            if steps_per_epoch is None:
                raise ConfigError(f"loss.rounds[{number}]: the data has no end, so count steps instead of epochs")
            length = item.epochs * steps_per_epoch
        elif max_steps is not None:
            length = max(0, max_steps - start)
        else:
            raise ConfigError(f"loss.rounds[{number}] has no length: set its epochs or steps, or trainer.max_steps")
        weights = None if item.weights is None else tuple(item.weights)
        planned.append(Round(start, start + length, weights))
        start += length
    return planned


def find_round(rounds: Sequence[Round], step: int) -> Round:
    """The round that ``step`` (from 0) lies in; the last one beyond its end."""
    return next((item for item in rounds if step < item.stop), rounds[-1])


def learning_rate_factor(config: ScheduleConfig, step: int, total: int, steps_per_epoch: int | None) -> float:
    """The factor on the base learning rate at ``step`` (from 0) of a stretch of ``total`` steps."""
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    if config.name == "constant":
        return 1.0
    if config.name in ("cosine", "linear"):
        if config.hold_epochs and steps_per_epoch is None:
            raise ConfigError("schedule.hold_epochs: the data has no end: set schedule.hold_epochs to 0")
        start = config.warmup_steps + config.hold_epochs * (steps_per_epoch or 0)
        progress = min(1.0, max(0, step - start) / max(1, total - start))
        shape = 0.5 * (1 + math.cos(math.pi * progress)) if config.name == "cosine" else 1 - progress
        return config.final_factor + (1 - config.final_factor) * shape
    if config.unit == "epochs":
        if steps_per_epoch is None:
            raise ConfigError("schedule.unit is epochs, but the data has no end: set schedule.unit to steps")
        step //= steps_per_epoch
    if config.name == "halving":
        return 0.5 ** (step // config.period)
    passed = sum(step >= milestone for milestone in config.milestones)
    return config.factors[passed - 1] if passed else 1.0
