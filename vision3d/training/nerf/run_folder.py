# SPDX-License-Identifier: Apache-2.0
"""The folder of a radiance field's run: ``run.json`` (what was done) and a safetensors file (field and cameras).

``run.json`` names the file of the parameters. That file is written first, under a new name, and ``run.json`` replaced
in one step after it: whenever a run is killed, the folder holds the last saved state, whole.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vision3d.errors import ConfigError, FileFormatError, OutputError
from vision3d.io.checkpoints import load_into, read_checkpoint
from vision3d.io.files import atomic_write, ensure_folder, read_bytes
from vision3d.models.nerf.cfnerf import CFNeRF
from vision3d.types import Camera

RUN_FORMAT = "vision3d radiance field"
RUN_VERSION = 1
RUN_FILE = "run.json"


@dataclass(frozen=True)
class StageRecord:
    """One stage of a run.

    Attributes:
        stage: its name (init, local, part, global, refine, nerfmm, barf).
        frames: those whose pixels were used.
        registered: number of registered frames at its end.
        steps: optimiser steps.
        seconds: spent in them.
        loss: smoothed training loss at the end.
        psnr: of the last steps' pixels, dB.
        focal: focal length at the end, pixels of the original images.
    """

    stage: str
    frames: tuple[int, ...]
    registered: int
    steps: int
    seconds: float
    loss: float
    psnr: float
    focal: float


@dataclass
class NerfRun:
    """A radiance field, its cameras, and how they came to be.

    Frames are counted from 0 in the order of ``names``. Frames that were never registered (held out, skipped, or not
    reached yet) have cameras without meaning.

    Attributes:
        model: field and cameras; the cameras have the size of the original images.
        names: of all images, held-out ones included.
        size: (height, width) of the original images.
        schedule: name and settings of the schedule, plain values.
        model_options: keyword arguments that ``CFNeRF`` was built with, without views and size.
        seed: of the random numbers.
        registered: frames with a camera, in the order of their registration.
        skipped: frames that could not be registered.
        held_out: frames that took no part in the fit.
        images_source: the folder or video, None for arrays.
        images_digest: checksum of the pixels.
        position: units of work done (see :mod:`vision3d.training.nerf.incremental`).
        history: the stages, in order.
        warnings: what the user should know.
        finished: nothing is left to do.
    """

    model: CFNeRF
    names: list[str]
    size: tuple[int, int]
    schedule: dict[str, Any]
    model_options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    registered: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    held_out: list[int] = field(default_factory=list)
    images_source: str | None = None
    images_digest: str = ""
    position: int = 0
    history: list[StageRecord] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    finished: bool = False

    @property
    def schedule_name(self) -> str:
        """fast, published, nerfmm, barf."""
        return str(self.schedule["name"])

    @property
    def pyramid_level(self) -> int:
        """Halvings of the images in the last stages."""
        return int(self.schedule.get("final_level", 0))

    @property
    def focal_length(self) -> float:
        """Pixels of the original images."""
        return self.model.cameras.focal_share() * sum(self.size) / 2

    @property
    def psnr(self) -> float:
        """Of the last stage's training pixels, dB; NaN before the first stage."""
        return self.history[-1].psnr if self.history else math.nan

    @property
    def seconds(self) -> float:
        """Spent in all stages."""
        return sum(record.seconds for record in self.history)

    def camera_to_world(self) -> np.ndarray:
        """Poses [N, 4, 4] of all frames (OpenCV axes), float64."""
        with torch.no_grad():
            return np.asarray(self.model.cameras.camera_to_world().double().cpu().numpy())

    def camera(self, frame: int) -> Camera:
        """Camera of a frame for the original images."""
        return self.model.cameras.camera(frame)

    def report(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {
            "schedule": self.schedule_name,
            "frames": len(self.names),
            "size": list(self.size),
            "registered": len(self.registered),
            "skipped": [self.names[frame] for frame in self.skipped],
            "held_out": [self.names[frame] for frame in self.held_out],
            "focal": self.focal_length,
            "psnr": self.psnr,
            "steps": sum(record.steps for record in self.history),
            "seconds": round(self.seconds, 2),
            "finished": self.finished,
            "warnings": self.warnings,
        }


_PLAIN = (
    "names",
    "size",
    "schedule",
    "model_options",
    "seed",
    "registered",
    "skipped",
    "held_out",
    "images_source",
    "images_digest",
    "position",
    "warnings",
    "finished",
)


def save_run(run: NerfRun, folder: str | os.PathLike[str]) -> None:
    """Save the run; a process killed on the way leaves the previous state.

    Raises:
        OutputError: the folder cannot be written.
    """
    from safetensors.torch import save_file

    target = ensure_folder(folder)
    state = target / f"state_{run.position:04d}.safetensors"
    tensors = {name: value.detach().cpu().contiguous() for name, value in run.model.state_dict().items()}
    with atomic_write(state) as temporary:
        save_file(tensors, temporary)
    content = {
        "format": RUN_FORMAT,
        "version": RUN_VERSION,
        "state": state.name,
        **{name: getattr(run, name) for name in _PLAIN},
        "history": [asdict(record) for record in run.history],
    }
    with atomic_write(target / RUN_FILE) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for old in target.glob("state_*.safetensors"):
        if old != state:
            old.unlink(missing_ok=True)


def is_run(folder: str | os.PathLike[str]) -> bool:
    """Whether the folder holds a run."""
    return (Path(folder) / RUN_FILE).is_file()


def load_run(folder: str | os.PathLike[str], device: str | torch.device = "cpu") -> NerfRun:
    """Read a run, finished or not.

    Raises:
        FileFormatError: no run, a damaged one, or one of another version of the format.
        WeightsError: the parameters are missing, damaged, or not those of the field.
    """
    path = Path(folder) / RUN_FILE
    if not path.is_file():
        raise FileFormatError(f"{folder}: no radiance field (no {RUN_FILE}): give the folder of 'vision3d nerf fit'")
    content = _parsed(path)
    try:
        run = _from_plain(content, device)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise FileFormatError(f"{path}: damaged ({type(error).__name__} {error}): fit the images again") from error
    load_into(run.model, read_checkpoint(path.with_name(Path(str(content["state"])).name)))
    run.model.cameras.resize(*run.size)
    return run


def _parsed(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_bytes(path, FileFormatError, "the description of a run"))
    except ValueError as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path}: not JSON ({error}): fit the images again") from error
    if not isinstance(content, dict) or content.get("format") != RUN_FORMAT:
        raise FileFormatError(f"{path}: not a radiance field's run: give the folder of 'vision3d nerf fit'")
    if content.get("version") != RUN_VERSION:
        raise FileFormatError(
            f"{path}: format version {content.get('version')}, this program reads {RUN_VERSION}: fit the images again"
        )
    return content


def _from_plain(content: Mapping[str, Any], device: str | torch.device) -> NerfRun:
    values = {name: content[name] for name in _PLAIN}
    values["size"] = int(content["size"][0]), int(content["size"][1])
    values["history"] = [StageRecord(**{**row, "frames": tuple(row["frames"])}) for row in content["history"]]
    if not isinstance(content["state"], str):
        raise TypeError("'state' names no file")
    model = build_model(len(values["names"]), values["size"], values["model_options"], values["seed"])
    return NerfRun(model=model.to(device), **values)


def build_model(views: int, size: tuple[int, int], options: Mapping[str, Any], seed: int) -> CFNeRF:
    """The model of a run at its start: its random parameters depend on the seed alone.

    Raises:
        ConfigError: an unknown or illegal option.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CFNeRF(views=views, height=size[0], width=size[1], **options)


def check_empty(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder that holds files of something else.

    Raises:
        OutputError: see above.
    """
    path = Path(folder)
    if path.is_dir() and not is_run(path) and any(path.iterdir()):
        raise OutputError(f"{folder}: holds other files: choose a new or an empty folder")
