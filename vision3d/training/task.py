# SPDX-License-Identifier: Apache-2.0
"""The training loop that all tasks share, as a Lightning module."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from vision3d.errors import ConfigError, InputError
from vision3d.training.config import TrainConfig
from vision3d.training.data import TrainingPairs
from vision3d.training.distributed.agreement import gather_trouble
from vision3d.training.losses import create_loss
from vision3d.training.optimizers import Round, create_optimizer, find_round, learning_rate_factor
from vision3d.types import StereoBatch
from vision3d.zoo import create_model

logger = logging.getLogger(__name__)


class NonFiniteError(InputError):
    """A loss or gradient that is not finite."""


class Mergeable(Protocol):
    """Metrics that can be added up."""

    def merge(self: Metrics, other: Metrics) -> Metrics:
        """The figures over the samples of both."""
        ...


Metrics = TypeVar("Metrics", bound="Mergeable")


def merge_over_processes(metrics: Metrics) -> Metrics:
    """The figures over the samples of all processes of the run, the same in each of them; exact, in any order."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return metrics
    parts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, metrics)
    merged: Metrics = functools.reduce(lambda one, other: one.merge(other), parts)
    return merged


class TrainingTask(LightningModule):
    """A network with its loss, optimiser, schedule and moving average.

    A task says how a loss comes from a batch (``compute_loss``), what is measured (``validation_step``) and drawn.

    Args:
        config: the recipe.
        rounds: its rounds in optimiser steps.
        steps_per_epoch: None if the data has no end.
        pairs: number of training samples, None if there is no end.

    Attributes:
        model: the network in training.
        average: the moving average of its weights, or None; part of the state dict, hence of every checkpoint.
    """

    metric_names: tuple[str, ...] = ()  # columns of the metrics file, keys of ``validation_metrics``
    extra_metrics: tuple[str, ...] = ()  # further ones
    preview_error = 1.0  # largest error in the colours of the pictures
    samples: type[TrainingPairs] = TrainingPairs  # the training samples
    collate: Callable[..., Any] = staticmethod(StereoBatch.collate)  # makes a batch of them

    def __init__(
        self, config: TrainConfig, rounds: list[Round], steps_per_epoch: int | None, pairs: int | None = None
    ) -> None:
        super().__init__()
        self.pairs = pairs
        self.config, self.rounds, self.steps_per_epoch = config, rounds, steps_per_epoch
        self.model = create_model(config.model.name, config.model.pretrained, **config.model.options).train()
        if config.trainer.sync_batchnorm:
            from vision3d.training.distributed.batch_norm import synchronize_batch_norm

            self.model = synchronize_batch_norm(self.model)
        self.average: nn.Module | None = None
        if config.trainer.ema_decay:
            self.average = copy.deepcopy(self.model).eval().requires_grad_(False)
        self.loss = create_loss(config.loss.name, **config.loss.options)
        if any(item.weights is not None for item in rounds) and not hasattr(self.loss, "weights"):
            raise ConfigError(f"loss {config.loss.name} takes no weights: remove them from loss.rounds")
        self.last: dict[str, Tensor | float] = {}
        self.validation_metrics: dict[str, float] = {}
        self.previews: list[tuple[Any, Tensor]] = []
        self._samples: list[tuple[list[str], Tensor]] = []  # of the step: scenes, and whether they are finite
        self._buffers_before: list[Tensor] = []
        self.train()  # Lightning keeps the modes that it finds

    @property
    def evaluated(self) -> nn.Module:
        """The network that validation and the exported weights use: the average where there is one."""
        return self.model if self.average is None else self.average

    def train(self, mode: bool = True) -> TrainingTask:
        """As usual, but the average always stays in eval mode, and so do frozen batch normalisations."""
        super().train(mode)
        if self.average is not None:
            self.average.eval()
        if mode and self.config.trainer.freeze_batchnorm:
            for module in self.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    @property
    def selection(self) -> float:
        """The validation figure that ``best.ckpt`` has least of."""
        raise NotImplementedError

    def compute_loss(self, batch: Any) -> tuple[Tensor, Any]:
        """The loss to minimise on a batch, and the answer it comes from."""
        raise NotImplementedError

    def checked_tensors(self, batch: Any, output: Any) -> tuple[Tensor, ...]:
        """Images and answers, [B, ...] each, that must be finite; they tell which sample spoils a step."""
        raise NotImplementedError

    def preview_maps(self, batch: Any, prediction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Image [3, H, W], truth and prediction [H, W] of the first sample, for a picture."""
        raise NotImplementedError

    @property
    def preview_range(self) -> float:
        """The largest value in the colours of the pictures."""
        raise NotImplementedError

    def keep_preview(self, batch: Any, prediction: Tensor) -> None:
        """Remember a batch for the pictures of this validation, up to the number that the recipe wants."""
        if self.global_rank == 0 and len(self.previews) < self.config.trainer.images:
            self.previews.append((batch, prediction))

    def configure_model(self) -> None:
        """Shard the network where the strategy asks for it (fsdp2)."""
        if self.config.trainer.strategy == "fsdp2":
            from vision3d.training.distributed.sharding import shard

            shard(self.model, self.device_mesh)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        return create_optimizer(self.model, self.config.optimizer)

    def _stream(self) -> dict[str, Any]:
        """What the order of the training pairs depends on."""
        settings = self.config.trainer
        size = settings.batch_size * settings.accumulate * settings.devices * settings.nodes
        return {"pairs": self.pairs, "pairs a step": size, "seed": settings.seed, "crop": list(self.config.data.crop)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["stream"] = self._stream()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Warn if the run goes on with other data than it began with."""
        for name, value in self._stream().items():
            before = checkpoint.get("stream", {}).get(name, value)
            if before != value:
                logger.warning(
                    "%s: %s before, %s now: the run goes on, but not as if uninterrupted", name, before, value
                )

    def learning_rate(self, step: int) -> float:
        """The learning rate of optimiser step ``step`` (from 0)."""
        current = find_round(self.rounds, step)
        if self.config.schedule.restart:
            local, total = step - current.start, current.stop - current.start
        else:
            local, total = step, self.rounds[-1].stop
        factor = learning_rate_factor(self.config.schedule, local, total, self.steps_per_epoch)
        return self.config.optimizer.lr * factor

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Set everything that depends on the step: the random state, the learning rate and the loss weights."""
        step = self.global_step
        micro = batch_idx % self.config.trainer.accumulate
        torch.manual_seed(hash((self.config.trainer.seed, step, micro, self.global_rank)) % 2**63)
        rate = self.learning_rate(step)
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = rate
        weights = find_round(self.rounds, step).weights
        if weights is not None:
            self.loss.weights = weights  # type: ignore[attr-defined]
        self.last["lr"] = rate

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.config.trainer.non_finite == "skip":
            self._buffers_before = [buffer.clone() for buffer in self.model.buffers()]
        loss, output = self.compute_loss(batch)
        if batch_idx % self.config.trainer.accumulate == 0:
            self._samples = []
        finite = torch.stack([part.flatten(1).isfinite().all(1) for part in self.checked_tensors(batch, output)]).all(0)
        self._samples.append((batch.scenes, finite))
        self.last["loss"] = loss.detach()
        return loss

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradient norm and check that it is finite in every process.

        Raises:
            NonFiniteError: it is not, and the recipe does not skip such steps; in all processes at the same step.
        """
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.clip_grad_norm_(
            parameters, self.config.trainer.clip_norm or float("inf"), error_if_nonfinite=False
        )
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of sharded parameters
        self.last["grad_norm"] = norm.detach()
        fine = torch.isfinite(norm) and torch.isfinite(torch.as_tensor(self.last["loss"]))
        trouble = gather_trouble(None if fine else self._describe_non_finite(float(norm)), self.device)
        if not trouble:
            return
        message = f"step {self.global_step + 1}: {'; '.join(trouble)}"
        if self.config.trainer.non_finite == "error":
            raise NonFiniteError(
                f"{message}: lower optimizer.lr, set trainer.clip_norm, mend the data, or set trainer.non_finite: skip"
            )
        logger.warning("%s: step skipped", message)
        for parameter in parameters:
            parameter.grad = None
        for buffer, before in zip(self.model.buffers(), self._buffers_before, strict=True):
            buffer.copy_(before)

    def _describe_non_finite(self, norm: float) -> tuple[bool, str]:
        """Whether samples of this process are known to be the cause, and the trouble in words."""
        bad = [
            scene
            for scenes, finite in self._samples
            for scene, good in zip(scenes, finite.tolist(), strict=True)
            if not good
        ]
        scenes = [scene for scenes, _ in self._samples for scene in scenes]
        where = ", ".join(bad) if bad else f"one of {', '.join(scenes)}"
        return bool(bad), f"not finite: loss {float(self.last['loss'])}, gradient norm {norm}, scene {where}"

    @torch.no_grad()
    def update_average(self) -> None:
        """Move the average towards the weights; called within each optimiser step."""
        if self.average is None:
            return
        # A young average would remember the random start: ramp the decay up as (1 + n) / (10 + n).
        step = self.global_step + 1
        decay = min(self.config.trainer.ema_decay, (1 + step) / (10 + step))
        for average, current in zip(self.average.state_dict().values(), self.model.state_dict().values(), strict=True):
            if average.is_floating_point():
                average.lerp_(current, 1 - decay)
            else:
                average.copy_(current)

    def optimizer_step(self, *arguments: Any, **options: Any) -> None:
        """Take the step and move the average with it (later hooks would come after the checkpoint of this step)."""
        super().optimizer_step(*arguments, **options)
        self.update_average()
