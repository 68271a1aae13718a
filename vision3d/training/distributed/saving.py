# SPDX-License-Identifier: Apache-2.0
"""The memories of a sparsified hook beside the checkpoints: a file a process, for the checkpoints that exist."""

from __future__ import annotations

import logging
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from vision3d.errors import WeightsError
from vision3d.io.files import atomic_write, ensure_folder
from vision3d.training.distributed.sparse import SparseState

logger = logging.getLogger(__name__)
FOLDER = "communication"
_CHECKPOINTS = ("last.ckpt", "best.ckpt")


def state_path(folder: Path, step: int, rank: int) -> Path:
    """The file of a process at a step: its memories are as large as the parameters in float32."""
    return folder / f"step_{step:08d}_rank{rank}.pt"


def save_state(state: SparseState, folder: Path, step: int) -> None:
    """Write the state of this process, and remove its files of steps that no checkpoint beside the folder is of.

    The checkpoint of ``step`` itself is written later, so that a kill in between leaves a pair of each kind.
    """
    rank = state.wire.rank
    with atomic_write(state_path(ensure_folder(folder), step, rank)) as temporary:
        torch.save(state.state_dict(), temporary)
    kept = {step, *(_step_of(folder.parent / name) for name in _CHECKPOINTS)}
    for path in folder.glob(f"step_*_rank{rank}.pt"):
        if int(path.name.split("_")[1]) not in kept:
            path.unlink(missing_ok=True)


def _step_of(checkpoint: Path) -> int | None:
    if not checkpoint.is_file():
        return None
    return torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)["global_step"]


def load_state(state: SparseState, folder: Path, step: int) -> str | None:
    """Go on from the files of a checkpoint's step.

    Returns:
        What a user should know: None if the run goes on exactly, else one line.

    Raises:
        WeightsError: a file that is broken or of another network.
    """
    found = {}
    for path in folder.glob(f"step_{step:08d}_rank*.pt"):
        match = re.fullmatch(r".*_rank(\d+)", path.stem)
        if match:
            found[int(match[1])] = path
    if not found:
        return (
            f"{folder}: no residuals of step {step}: the gradients that were not yet sent are lost, and this run "
            "starts without any (the loss may rise for about 1/density steps)"
        )
    states = [_read(found[rank]) for rank in sorted(found)]
    world = states[0]["world"]
    if sorted(found) != list(range(world)):
        return (
            f"{folder}: residuals of step {step} by {len(found)} of {world} processes: a part of them is missing, so "
            "none is used, and this run starts without any"
        )
    state.load_state_dicts(states)
    if world != state.wire.size:
        return (
            f"residuals of {world} processes, {state.wire.size} now: each takes 1/{state.wire.size} of their sum, so "
            "that nothing is lost; the run goes on, but not as if uninterrupted"
        )
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(
            f"{path}: not the residuals of a process ({message}): remove the file to start without them"
        ) from error


class CommunicationState(Callback):
    """Saves the state of a sparsified hook with each checkpoint, and loads it on resume.

    Args:
        folder: the run folder.
        resume: the checkpoint that the run goes on from, or None.
    """

    def __init__(self, folder: Path, resume: Path | None) -> None:
        self.folder, self.resume = folder / FOLDER, resume

    def _state(self, trainer: Trainer) -> SparseState | None:
        communication = getattr(trainer.strategy, "communication", None)
        return None if communication is None else communication.sparse

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Runs in every process, before the first one writes the checkpoint."""
        state = self._state(trainer)
        if state is not None:
            save_state(state, self.folder, trainer.global_step)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the state of the checkpoint's step."""
        state = self._state(trainer)
        if self.resume is None:
            return
        if state is None:
            communication = getattr(trainer.strategy, "communication", None)
            if communication is not None and communication.name == "powersgd" and trainer.is_global_zero:
                logger.warning("PowerSGD's error memory is not saved: it starts anew, with its uncompressed steps")
            return
        note = load_state(state, self.resume.parent / FOLDER, trainer.global_step)
        if note is not None and trainer.is_global_zero:
            logger.warning("%s", note)
