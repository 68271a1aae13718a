# SPDX-License-Identifier: Apache-2.0
"""Callbacks of a training run: metrics file and log, checkpoints, pictures."""

from __future__ import annotations

import csv
import io
import logging
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from vision3d.training.curve import read_metrics
from vision3d.training.task import TrainingTask

logger = logging.getLogger(__name__)
COLUMNS = ("step", "split", "loss", "lr", "grad_norm", "seconds")  # and the metrics of the task before the last


def _step_ended(task: TrainingTask, batch_idx: int) -> bool:
    return (batch_idx + 1) % task.config.trainer.accumulate == 0


def validation_due(trainer: Trainer, task: TrainingTask) -> bool:
    """True if a validation follows the optimiser step that has just ended."""
    every = task.config.trainer.val_every_steps
    return bool(trainer.enable_validation and every and trainer.global_step % every == 0)


class MetricsFile(Callback):
    """Writes ``metrics.csv`` (a row a step, a row a validation) and a log line every few steps.

    ``loss``, ``lr`` and ``grad_norm`` are those of the step itself (in the first process); ``seconds`` is the time
    since the previous row. A resume drops the rows after its checkpoint. ``TrainingTask.metric_names`` and
    ``extra_metrics`` get columns of their own.
    """

    def __init__(self, path: Path, log_every: int) -> None:
        self.path, self.log_every = path, log_every
        self.columns: tuple[str, ...] = COLUMNS
        self._time = time.perf_counter()
        self._recent: list[tuple[float, float]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingTask)
        self.columns = (*COLUMNS[:-1], *pl_module.metric_names, *pl_module.extra_metrics, COLUMNS[-1])
        if trainer.is_global_zero:
            kept = read_metrics(self.path, trainer.global_step) if trainer.global_step else []
            buffer = io.StringIO()
            writer = csv.DictWriter(buffer, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(kept)
            temporary = self.path.with_name(f".{self.path.name}.tmp")
            temporary.write_text(buffer.getvalue(), encoding="utf-8")
            os.replace(temporary, self.path)
        self._time = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        task = pl_module
        assert isinstance(task, TrainingTask)
        if not trainer.is_global_zero or not _step_ended(task, batch_idx):
            return
        seconds = self._lap()
        values = {name: float(value) for name, value in task.last.items()}
        step = trainer.global_step
        self._write({"step": step, "split": "train", **values, "seconds": round(seconds, 4)})
        self._recent.append((values["loss"], seconds))
        if step % self.log_every == 0 or step == trainer.max_steps:
            loss, pace = np.mean(self._recent, axis=0)
            self._recent = []
            logger.info(
                "step %d/%d  loss %.4f  lr %.2e  grad %.2f  %.3f s/step",
                *(step, trainer.max_steps, loss, values["lr"], values["grad_norm"], pace),
            )
            for log in trainer.loggers:
                log.log_metrics({f"train/{name}": value for name, value in values.items()}, step)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingTask)
        if not trainer.is_global_zero or trainer.sanity_checking:
            return
        metrics, step = pl_module.validation_metrics, trainer.global_step
        seconds = self._lap()
        self._write({"step": step, "split": "validation", **metrics, "seconds": round(seconds, 4)})
        text = "  ".join(f"{name} {value:.3f}" for name, value in metrics.items())
        logger.info("step %d/%d  validation  %s  (%.1f s)", step, trainer.max_steps, text, seconds)
        for log in trainer.loggers:
            log.log_metrics({f"validation/{name}": value for name, value in metrics.items()}, step)

    def _lap(self) -> float:
        now = time.perf_counter()
        seconds, self._time = now - self._time, now
        return seconds

    def _write(self, row: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self.columns, extrasaction="ignore", lineterminator="\n").writerow(row)


class Checkpoints(Callback):
    """Writes ``last.ckpt`` every few steps and at the end, and ``best.ckpt`` by ``TrainingTask.selection``.

    Each is written beside its target and renamed, so that a killed run leaves whole files only. A checkpoint that is
    due at the step of a validation is written after it, so that a resume never loses the validation.
    """

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every, self.best = folder, every, math.inf

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]

    def _due(self, trainer: Trainer) -> bool:
        return trainer.global_step % self.every == 0 or trainer.global_step == trainer.max_steps

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingTask)
        if _step_ended(pl_module, batch_idx) and self._due(trainer) and not validation_due(trainer, pl_module):
            self.save(trainer, "last.ckpt")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingTask)
        if trainer.sanity_checking:
            return
        error = pl_module.selection
        if error < self.best:
            self.best = error
            self.save(trainer, "best.ckpt")
        if self._due(trainer):
            self.save(trainer, "last.ckpt")

    def save(self, trainer: Trainer, name: str) -> None:
        """Write a checkpoint atomically; every process of the run must call it."""
        temporary = self.folder / f".{name}.tmp"
        trainer.save_checkpoint(temporary, weights_only=False)
        if trainer.is_global_zero:
            os.replace(temporary, self.folder / name)
        trainer.strategy.barrier()


class Previews(Callback):
    """Writes pictures of validation samples: image, truth, prediction and error, at the task's fixed ranges.

    Args:
        folder: where ``step_00001000_0.png`` go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingTask)
        if not trainer.is_global_zero or trainer.sanity_checking:
            return
        from vision3d.io.images import write_image

        for number, (batch, prediction) in enumerate(pl_module.previews):
            maps = pl_module.preview_maps(batch, prediction)
            picture = preview(*maps, pl_module.preview_range, pl_module.preview_error)
            self.folder.mkdir(parents=True, exist_ok=True)
            write_image(self.folder / f"step_{trainer.global_step:08d}_{number}.png", picture)


def preview(
    image: torch.Tensor, truth: torch.Tensor, prediction: torch.Tensor, largest: float, error: float = 5.0
) -> np.ndarray:
    """[2 H, 2 W, 3] uint8 RGB: image and truth above, prediction and error below; unknown is black.

    Args:
        image: [3, H, W] in [0, 1].
        truth, prediction: [H, W].
        largest, error: the ends of the colour ranges of the maps and of their difference.
    """
    from vision3d.visualization import colorize

    picture = (image.float().cpu().numpy().transpose(1, 2, 0) * 255 + 0.5).astype(np.uint8)
    want, have = (value.float().cpu().numpy() for value in (truth, prediction))
    rows = [
        [picture, colorize(want, 0.0, largest)],
        [colorize(have, 0.0, largest), colorize(np.abs(have - want), 0.0, error)],
    ]
    return np.vstack([np.hstack(row) for row in rows])
