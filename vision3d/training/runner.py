# SPDX-License-Identifier: Apache-2.0
"""One training run: from a recipe to a folder with metrics, checkpoints, pictures and weights."""

from __future__ import annotations

import logging
import pickle
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vision3d.errors import ConfigError, MissingExtraError, OutputError, WeightsError
from vision3d.io.files import atomic_write, ensure_folder
from vision3d.registry import find_model
from vision3d.training.config import TrainConfig, config_to_dict
from vision3d.training.data import TrainingPairs, data_length, open_sources, train_loader, validation_loader
from vision3d.training.distributed.agreement import check_launch
from vision3d.training.optimizers import plan_rounds

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from vision3d.training.task import TrainingTask

logger = logging.getLogger(__name__)


def train(config: TrainConfig, resume: str | Path | None = None) -> Path:
    """Train as the recipe says.

    Args:
        config: the recipe.
        resume: a checkpoint, or "auto" for the run folder's ``last.ckpt`` where there is one.

    Returns:
        The exported weights (``weights.safetensors`` in the run folder).

    Raises:
        MissingExtraError: Lightning is not installed.
        ConfigError, WeightsError, OutputError, InputError: see their messages.
    """
    try:
        from lightning.pytorch.utilities import disable_possible_user_warnings
    except ImportError as error:
        raise MissingExtraError("lightning", "train", "training") from error
    disable_possible_user_warnings()
    warnings.filterwarnings("ignore", message=r".*LeafSpec.* is deprecated")
    settings = config.trainer
    check_launch(settings.devices, settings.nodes)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    folder = Path(settings.output)
    checkpoint = find_checkpoint(folder, resume)
    world = settings.devices * settings.nodes
    kind = _task_class(config)
    pairs = kind.samples(open_sources(config.data.train), config.data, settings.seed)
    steps_per_epoch, length = None, data_length(pairs.dataset)
    if length is not None:
        steps_per_epoch = max(1, length // (settings.batch_size * settings.accumulate * world))
    rounds = plan_rounds(config.loss.rounds, settings.max_steps, steps_per_epoch)
    total = min(rounds[-1].stop, settings.max_steps or rounds[-1].stop)

    _refuse_used_folder(folder, fresh=resume is None)
    torch.manual_seed(settings.seed)
    task = kind(config, rounds, steps_per_epoch, length)
    if checkpoint is not None:
        _check_checkpoint(checkpoint, task)
    trainer = _make_trainer(config, folder, total, checkpoint)
    _write_recipe(folder, config)
    _attach_loaders(task, pairs)
    if trainer.is_global_zero:
        logger.info("%s: %d steps into %s, from %s", config.model.name, total, folder, checkpoint or "the start")
    trainer.fit(task, ckpt_path=checkpoint, weights_only=True)
    weights = folder / "weights.safetensors"
    state = _whole_state(task)
    if trainer.is_global_zero:
        export_weights(task, weights, state=state)
        if settings.export_fp16:
            export_weights(task, folder / "weights.fp16.safetensors", torch.float16, state)
        logger.info("weights: %s", weights)
    return weights


def _task_class(config: TrainConfig) -> type[TrainingTask]:
    """The task of a recipe, by its network."""
    task = find_model(config.model.name.partition(".")[0]).task
    if config.elastic.subnets_per_step:
        from vision3d.training.elastic import ElasticTask

        return ElasticTask
    if task == "normals":
        from vision3d.training.normals import NormalsTask

        return NormalsTask
    if task == "panorama":
        from vision3d.training.panorama import PanoramaTask

        return PanoramaTask
    if task == "mvs":
        from vision3d.training.multiview import MultiViewTask

        return MultiViewTask
    from vision3d.training.stereo import StereoTask

    return StereoTask


def _whole_state(task: TrainingTask) -> dict[str, torch.Tensor]:
    """The state dict of the evaluated network; every process takes part in putting sharded tensors together."""
    state = task.evaluated.state_dict()
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in state.items()}


def find_checkpoint(folder: Path, resume: str | Path | None) -> Path | None:
    """The checkpoint to go on from, or None to start anew.

    Raises:
        ConfigError: the named file does not exist.
    """
    if resume is None:
        return None
    if str(resume) == "auto":
        last = folder / "last.ckpt"
        return last if last.exists() else None
    if not Path(resume).is_file():
        raise ConfigError(f"{resume}: no such checkpoint: check --resume (auto takes last.ckpt of the run folder)")
    return Path(resume)


def _check_checkpoint(path: Path, task: TrainingTask) -> None:
    """Raise WeightsError unless the file is a checkpoint of this recipe's network."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["state_dict"]
        shapes = {name: tuple(value.shape) for name, value in state.items()}
    except (OSError, EOFError, RuntimeError, KeyError, TypeError, pickle.UnpicklingError) as error:
        message = str(error).splitlines()[0]
        raise WeightsError(f"{path}: not a checkpoint of a training run ({message}): check --resume") from error
    expected = {name: tuple(value.shape) for name, value in task.state_dict().items()}
    wrong = sorted(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name))
    if wrong:
        raise WeightsError(
            f"{path}: a checkpoint of another recipe ({wrong[0]} differs): check --resume and model.name"
        )


def export_weights(
    task: TrainingTask, path: Path, dtype: torch.dtype = torch.float32, state: dict[str, torch.Tensor] | None = None
) -> None:
    """Write the evaluated network (the average where there is one) as safetensors, floats as ``dtype``.

    ``state`` takes the place of its state dict, which has but a part of each tensor where they are sharded.
    """
    from safetensors.torch import save

    converted = {
        name: (value.to(dtype) if value.is_floating_point() else value).detach().cpu().contiguous()
        for name, value in (task.evaluated.state_dict() if state is None else state).items()
    }
    with atomic_write(path) as temporary:
        temporary.write_bytes(save(converted, metadata={"model": task.config.model.name}))


def _refuse_used_folder(folder: Path, fresh: bool) -> None:
    if fresh and (folder / "last.ckpt").exists():
        raise OutputError(f"{folder}: holds a run already: go on with --resume auto, or set another trainer.output")


def _write_recipe(folder: Path, config: TrainConfig) -> None:
    import yaml

    with atomic_write(ensure_folder(folder) / "config.yaml") as temporary:
        temporary.write_text(yaml.safe_dump(config_to_dict(config), sort_keys=False), encoding="utf-8")


def _attach_loaders(task: TrainingTask, pairs: TrainingPairs) -> None:
    """Give the task its loaders as hooks: they are called once the processes know their rank."""
    settings, data = task.config.trainer, task.config.data

    def training() -> Any:
        trainer = task.trainer
        first = lambda: trainer.global_step * settings.accumulate  # noqa: E731
        place = trainer.global_rank, trainer.world_size
        return train_loader(pairs, first, settings.batch_size, data.workers, *place, task.collate)

    def validation() -> Any:
        place = task.trainer.global_rank, task.trainer.world_size
        loader = validation_loader(data, data.workers, *place, task.collate)
        return [] if loader is None else loader

    task.train_dataloader = training  # type: ignore[method-assign]
    task.val_dataloader = validation  # type: ignore[method-assign]


def _make_trainer(config: TrainConfig, folder: Path, total: int, checkpoint: Path | None) -> Trainer:
    """Lightning's trainer of a recipe.

    Raises:
        ConfigError: this machine cannot run the accelerator, devices or strategy of the recipe.
    """
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch import Trainer

    settings, options = config.trainer, _trainer_options(config, folder, total, checkpoint)
    try:
        return Trainer(**options)
    except (ValueError, ImportError, MisconfigurationException) as error:
        wish = f"accelerator {settings.accelerator}, devices {settings.devices}, strategy {settings.strategy}"
        raise ConfigError(
            f"trainer: this machine cannot run {wish} ({' '.join(str(error).split())[:300]}): change these options"
        ) from error


def _trainer_options(config: TrainConfig, folder: Path, total: int, checkpoint: Path | None) -> dict[str, Any]:
    from lightning.pytorch import Callback
    from lightning.pytorch.callbacks import RichProgressBar

    from vision3d.training.callbacks import Checkpoints, MetricsFile, Previews
    from vision3d.training.distributed.strategy import create_strategy

    settings = config.trainer
    validate = bool(settings.val_every_steps and config.data.validation)
    callbacks: list[Callback] = [
        MetricsFile(folder / "metrics.csv", settings.log_every_steps),
        Previews(folder / "images"),
        Checkpoints(folder, settings.checkpoint_every_steps),
    ]
    if settings.devices * settings.nodes > 1:
        callbacks += _communication_callbacks(folder, checkpoint)
    if sys.stderr.isatty():
        callbacks.append(RichProgressBar(console_kwargs={"stderr": True}))
    every = settings.val_every_steps * settings.accumulate
    return {
        "accelerator": settings.accelerator,
        "devices": settings.devices,
        "num_nodes": settings.nodes,
        "strategy": create_strategy(config),
        "precision": "bf16-mixed" if settings.precision == "bf16" else "32-true",
        "max_steps": total,
        "max_epochs": -1,
        "accumulate_grad_batches": settings.accumulate,
        "val_check_interval": every if validate else None,
        "check_val_every_n_epoch": None if validate else 1,
        "limit_val_batches": None if validate else 0,
        "num_sanity_val_steps": 0,
        "callbacks": callbacks,
        "logger": _make_logger(folder),
        "enable_progress_bar": sys.stderr.isatty(),
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "use_distributed_sampler": False,
        "default_root_dir": folder,
    }


def _communication_callbacks(folder: Path, checkpoint: Path | None) -> list[Any]:
    from vision3d.training.distributed.report import CommunicationReport
    from vision3d.training.distributed.saving import CommunicationState

    return [CommunicationState(folder, checkpoint), CommunicationReport(folder / "communication.json")]


def _make_logger(folder: Path) -> Any:
    from lightning.pytorch.loggers import TensorBoardLogger

    try:
        return TensorBoardLogger(folder, name="tensorboard", version="")
    except ModuleNotFoundError:
        logger.info("no TensorBoard here: metrics go to metrics.csv alone")
        return False
