# SPDX-License-Identifier: Apache-2.0
"""Illegal values of recipes, which the types alone do not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vision3d.errors import ConfigError, UnknownNameError
from vision3d.training.distributed.options import check_communication

if TYPE_CHECKING:
    from vision3d.training.config import ModelConfig, ScheduleConfig, TrainConfig


def _check_kind(kind: str, where: str) -> None:
    from vision3d.datasets.mixture import parse_mixture
    from vision3d.datasets.registry import find_dataset

    try:
        for _, name in parse_mixture(kind):
            find_dataset(name)
    except (ConfigError, UnknownNameError) as error:
        raise ConfigError(f"{where}: {error}") from error


def check_values(config: TrainConfig, where: str) -> None:
    """Raise ConfigError, which begins with ``where``, for values that are illegal by themselves or together."""
    trainer, schedule = config.trainer, config.schedule
    positive = {
        "trainer.batch_size": trainer.batch_size,
        "trainer.accumulate": trainer.accumulate,
        "trainer.checkpoint_every_steps": trainer.checkpoint_every_steps,
        "trainer.log_every_steps": trainer.log_every_steps,
        "trainer.devices": trainer.devices,
        "trainer.nodes": trainer.nodes,
        "schedule.period": schedule.period,
        "data.crop": min(config.data.crop),
        "trainer.max_steps": 1 if trainer.max_steps is None else trainer.max_steps,
    }
    for name, value in positive.items():
        if value < 1:
            raise ConfigError(f"{where}: {name} must be at least 1, got {value}")
    if not 0 <= trainer.ema_decay < 1:
        raise ConfigError(f"{where}: trainer.ema_decay must lie in [0, 1), got {trainer.ema_decay}")
    _check_ranges(config, where)
    check_communication(config, where)
    _check_elastic(config, where)
    _check_schedule(schedule, where)
    _check_stage_one(config.model, where)
    if not config.data.train:
        raise ConfigError(f"{where}: data.train is empty: name at least one data set")
    for source in config.data.train + config.data.validation:
        _check_kind(source.kind, where)


def _check_ranges(config: TrainConfig, where: str) -> None:
    trainer, schedule = config.trainer, config.schedule
    optimizer, data = config.optimizer, config.data
    for name, number in {"optimizer.lr": optimizer.lr, "trainer.clip_norm": trainer.clip_norm}.items():
        if number is not None and not number > 0:
            raise ConfigError(f"{where}: {name} must be positive, got {number}")
    counts = {
        "trainer.threads": trainer.threads,
        "trainer.val_every_steps": trainer.val_every_steps,
        "trainer.images": trainer.images,
        "data.workers": data.workers,
        "schedule.warmup_steps": schedule.warmup_steps,
        "schedule.hold_epochs": schedule.hold_epochs,
    }
    for name, value in counts.items():
        if value < 0:
            raise ConfigError(f"{where}: {name} must not be negative, got {value}")
    for name, share in {"data.crop_top": data.crop_top, "data.vertical_flip": data.vertical_flip}.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"{where}: {name} must lie in [0, 1], got {share}")
    if optimizer.amsgrad and optimizer.name in ("lamb", "sgd"):
        raise ConfigError(
            f"{where}: optimizer.amsgrad has no meaning for {optimizer.name}: remove it, or choose adam or adamw"
        )
    if not 0 <= optimizer.momentum < 1:
        raise ConfigError(f"{where}: optimizer.momentum must lie in [0, 1), got {optimizer.momentum}")
    if optimizer.momentum and optimizer.name != "sgd":
        raise ConfigError(f"{where}: optimizer.momentum is an option of sgd: set optimizer.betas for {optimizer.name}")


def _check_elastic(config: TrainConfig, where: str) -> None:
    elastic = config.elastic
    if elastic.subnets_per_step < 0 or elastic.distillation < 0:
        raise ConfigError(f"{where}: elastic.subnets_per_step and elastic.distillation must not be negative")
    if not elastic.subnets_per_step and elastic != type(elastic)():
        raise ConfigError(f"{where}: elastic has no effect without elastic.subnets_per_step: set it to 1 or more")
    if elastic.sandwich and elastic.subnets_per_step < 2:
        raise ConfigError(f"{where}: elastic.sandwich needs elastic.subnets_per_step of at least 2")
    if elastic.subnets_per_step and config.trainer.sync_batchnorm:
        raise ConfigError(
            f"{where}: trainer.sync_batchnorm cannot normalise the widths of sub-networks: remove it, or elastic"
        )
    if min(elastic.calibration_pairs, elastic.calibration_batch) < 1:
        raise ConfigError(f"{where}: elastic.calibration_pairs and elastic.calibration_batch must be at least 1")


def _check_stage_one(model: ModelConfig, where: str) -> None:
    from vision3d.registry import find_model

    if (model.stage_one or model.freeze_stage_one) and find_model(model.name.partition(".")[0]).task != "normals":
        raise ConfigError(f"{where}: model.stage_one and freeze_stage_one are for networks of normals: remove them")


def _check_schedule(schedule: ScheduleConfig, where: str) -> None:
    if len(schedule.milestones) != len(schedule.factors):
        raise ConfigError(f"{where}: schedule.milestones and schedule.factors must have the same length")
    if schedule.name == "steps" and not schedule.milestones:
        raise ConfigError(f"{where}: schedule.name is steps, but there are no schedule.milestones and schedule.factors")
    if schedule.hold_epochs and schedule.name not in ("cosine", "linear"):
        raise ConfigError(f"{where}: schedule.hold_epochs is an option of cosine and linear, not of {schedule.name}")
    if schedule.milestones != sorted(schedule.milestones):
        raise ConfigError(f"{where}: schedule.milestones must ascend, got {schedule.milestones}")
