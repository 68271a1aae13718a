# SPDX-License-Identifier: Apache-2.0
"""Training recipes: typed data classes, read from YAML, with overrides ``key.sub=value``. See docs/training.md."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vision3d.errors import ConfigError
from vision3d.training.config_checks import check_values
from vision3d.training.config_parsing import apply_override, check_keys, field_types, wrong_type
from vision3d.training.distributed.options import CommunicationConfig


@dataclass
class ModelConfig:
    """The network: registered name, its keyword arguments, and start weights (True, a tag, or a file).

    Networks of the task "normals" also take ``stage_one``, the start weights of their disparity stage (a network's
    name, ``name.tag``, or a file), and ``freeze_stage_one``, which keeps that stage as it is.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    pretrained: bool | str = False
    stage_one: str = ""
    freeze_stage_one: bool = False


@dataclass
class SourceConfig:
    """One data set: its kind, folder, further arguments of its reader, and how often each pair counts in an epoch.

    ``kind`` is a name of ``vision3d data list``, or a mixture such as ``sceneflow + 2*kitti2015``; ``root`` may be
    empty where the folder is configured (datasets/README.md).
    """

    kind: str
    root: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    repeat: int = 1


@dataclass
class AugmentConfig:
    """One random transform: its name in ``vision3d.datasets.augment.TRANSFORMS``, and its options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class DataConfig:
    """Where pairs come from and how they are cut.

    Attributes:
        train: the training pairs; several sets are chained.
        validation: the validation pairs (may be empty).
        crop: (height, width) of the training crop.
        crop_top: crops begin below this share of the free height (KITTI recipes: 0.25).
        augment: random transforms in their order. ``crop`` among them marks where the crop is cut; without it the crop
            comes first. ``resize`` stands before the crop.
        color: colour augmentation of each view by itself: none, or published (that of FADNet).
        vertical_flip: share of the crops that are turned upside down.
        validation_crop: (height, width) cut from the centre, or null for the whole pair.
        validation_pairs: at most so many validation pairs.
        workers: loader processes; 0 loads in the training process.
    """

    train: list[SourceConfig]
    validation: list[SourceConfig] = field(default_factory=list)
    crop: tuple[int, int] = (256, 512)
    crop_top: float = 0.0
    augment: list[AugmentConfig] = field(default_factory=list)
    color: Literal["none", "published"] = "none"
    vertical_flip: float = 0.0
    validation_crop: tuple[int, int] | None = None
    validation_pairs: int | None = None
    workers: int = 0


@dataclass
class RoundConfig:
    """A round of training with its own loss weights; the learning-rate schedule starts anew in each."""

    weights: list[float] | None = None
    epochs: int | None = None
    steps: int | None = None


@dataclass
class LossConfig:
    """The loss: registered name, its keyword arguments, and the rounds."""

    name: str = "multiscale_smooth_l1"
    options: dict[str, Any] = field(default_factory=dict)
    rounds: list[RoundConfig] = field(default_factory=list)


@dataclass
class OptimizerConfig:
    """The optimiser. ``eps`` null takes 1e-8 (Adam, AdamW) or 1e-6 (LAMB). ``momentum`` is that of SGD.

    Parameters whose name contains an entry of ``no_decay`` (``[bn, bias]``, say) have no weight decay.
    """

    name: Literal["adam", "adamw", "lamb", "sgd"] = "adam"
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float | None = None
    weight_decay: float = 0.0
    amsgrad: bool = False
    momentum: float = 0.0
    no_decay: list[str] = field(default_factory=list)


@dataclass
class ScheduleConfig:
    """The factor on the learning rate.

    Attributes:
        name: constant; halving (each ``period``); steps (``factors[i]`` from ``milestones[i]`` on); cosine or linear
            (down to ``final_factor`` at the end).
        unit: what ``period`` and ``milestones`` count.
        warmup_steps: optimiser steps of linear warm-up.
        hold_epochs: epochs at the full rate before cosine or linear begin.
        restart: start anew in each round (as published), or run over the whole training.
    """

    name: Literal["constant", "halving", "steps", "cosine", "linear"] = "constant"
    unit: Literal["epochs", "steps"] = "epochs"
    period: int = 10
    milestones: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    warmup_steps: int = 0
    hold_epochs: int = 0
    final_factor: float = 0.0
    restart: bool = True


@dataclass
class TrainerConfig:
    """How the loop runs. Everything is counted in optimiser steps.

    Attributes:
        output: the run folder.
        max_steps: stop there; null: the sum of the rounds.
        batch_size: pairs a process and step.
        accumulate: batches summed into one step.
        precision: 32, or bf16 (autocast).
        threads: CPU threads a process; 0 leaves the default.
        ema_decay: decay of the moving average of the weights; 0 turns it off.
        clip_norm: largest gradient norm; null does not clip.
        non_finite: a loss or gradient that is not finite stops the training (error) or costs one step (skip).
        val_every_steps, checkpoint_every_steps, log_every_steps: periods; val_every_steps 0 turns validation off.
        images: validation pairs drawn as PNG at each validation.
        accelerator, devices, nodes, strategy: as in Lightning; more than one device uses DDP. Strategy fsdp2 shards the
            parameters.
        sync_batchnorm: normalise over the batches of all processes.
        export_fp16: also write ``weights.fp16.safetensors``.
        freeze_batchnorm: keep the running statistics of batch normalisation (fine-tuning with tiny batches).
    """

    output: str = "runs/train"
    max_steps: int | None = None
    batch_size: int = 4
    accumulate: int = 1
    precision: Literal["32", "bf16"] = "32"
    threads: int = 0
    seed: int = 1024
    ema_decay: float = 0.0
    clip_norm: float | None = None
    non_finite: Literal["error", "skip"] = "error"
    val_every_steps: int = 1000
    checkpoint_every_steps: int = 500
    log_every_steps: int = 20
    images: int = 2
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps", "tpu"] = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    sync_batchnorm: bool = False
    export_fp16: bool = False
    freeze_batchnorm: bool = False


@dataclass
class ElasticConfig:
    """Training of all sub-networks of a supernet at once (EASNet, arXiv 2207.09796); off with 0 sub-networks a step.

    Attributes:
        subnets_per_step: sub-networks drawn for each step; their gradients on the same batch are summed.
        kernel, expand, depth, scale: the values that are open in this stage.
        sort_channels: order the channels by importance before the first step (where expand is opened).
        sandwich: the first sub-network of each step is the largest and the last the smallest of the open ones.
        distillation: weight of the smooth L1 distance to the answer of the largest open sub-network; 0 turns it off.
        calibration_pairs, calibration_batch: training pairs that batch-norm statistics are measured with before a
            validation, and pairs a batch of these.
        validation: settings ({ks, e, d, s}) to validate; their mean error counts. Empty: the published three, each
            value moved to the nearest open one.
    """

    subnets_per_step: int = 0
    kernel: list[int] = field(default_factory=lambda: [3, 5, 7])
    expand: list[int] = field(default_factory=lambda: [2, 4, 6, 8])
    depth: list[int] = field(default_factory=lambda: [2, 3, 4])
    scale: list[int] = field(default_factory=lambda: [2, 3, 4])
    sort_channels: bool = False
    sandwich: bool = False
    distillation: float = 0.0
    calibration_pairs: int = 200
    calibration_batch: int = 20
    validation: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class TrainConfig:
    """A whole recipe."""

    model: ModelConfig
    data: DataConfig
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    communication: CommunicationConfig = field(default_factory=CommunicationConfig)
    elastic: ElasticConfig = field(default_factory=ElasticConfig)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a recipe.

    Args:
        path: YAML file.
        overrides: ``key.sub=value`` (value in YAML), applied in order.

    Raises:
        ConfigError: a missing file, bad YAML, an unknown key (the message names the nearest) or an illegal value.
    """
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: the recipe cannot be read ({error.strerror}): check the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a recipe is a mapping with the keys {', '.join(field_types(TrainConfig))}")
    for override in overrides:
        apply_override(content, override)
    return config_from_dict(content, str(path))


def config_from_dict(content: dict[str, Any], where: str = "recipe") -> TrainConfig:
    """Check a nested dictionary and turn it into a recipe; see ``load_config``."""
    from jsonargparse import ArgumentError, ArgumentParser

    check_keys(content, TrainConfig, where)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(TrainConfig, "recipe")
    try:
        instantiate = getattr(parser, "instantiate", None) or parser.instantiate_classes  # the name before 4.49
        parsed = instantiate(parser.parse_object({"recipe": copy.deepcopy(content)}))
    except (ArgumentError, TypeError, ValueError) as error:
        if wrong := wrong_type(content, TrainConfig):
            raise ConfigError(f"{where}: {wrong}") from error
        text = " ".join(str(error).replace('"recipe.', '"').replace("recipe.", "").split())
        raise ConfigError(f"{where}: {text[:400]}") from error
    recipe = parsed.recipe
    check_values(recipe, where)
    return recipe


def config_to_dict(config: TrainConfig) -> dict[str, Any]:
    """The recipe as nested dictionaries and lists that YAML can hold."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    return plain(dataclasses.asdict(config))
