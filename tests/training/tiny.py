# SPDX-License-Identifier: Apache-2.0
"""A tiny network, pool and recipe for the training tests; as a script: the training command with that network known."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from vision3d.registry import register_model
from vision3d.types import StereoOutput, StereoSample


class Tiny(nn.Module):
    """Two stages of two maps each, with batch normalisation and dropout (so that resumes depend on all their state)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1))
        self.first, self.second = nn.Conv2d(8, 1, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, left: Tensor, right: Tensor) -> StereoOutput:
        features = self.body(torch.cat([left, right], 1))
        stages = [self.pyramid(self.first(features)), self.pyramid(self.second(features))]
        return StereoOutput(stages[-1][0], stages[-1], stages=stages if self.training else [])

    @staticmethod
    def pyramid(disparity: Tensor) -> list[Tensor]:
        return [disparity, nn.functional.avg_pool2d(disparity, 2)]


def tiny() -> nn.Module:
    return Tiny()


def register_tiny() -> None:
    """Make ``tiny`` known to the registry of this process."""
    register_model(task="stereo", family="tiny")(tiny)


def tiny_samples(count: int, height: int = 40, width: int = 72, seed: int = 0) -> Iterator[StereoSample]:
    """Noise images with a shift of 1 to 8 pixels; some truth is unknown."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        shift = int(generator.integers(1, 9))
        image = generator.integers(0, 256, (height, width + shift, 3), dtype=np.uint8)
        disparity = np.full((height, width), shift, dtype=np.float32)
        disparity[:, :shift] = np.nan
        yield StereoSample(image[:, :width], image[:, shift:], disparity, scene=f"scene{number}")


def tiny_recipe(folder: Path, **trainer: Any) -> Path:
    """Write a pool and a recipe of 24 steps into ``folder``; keyword arguments change the trainer's options."""
    from vision3d.datasets.cache import write_pool

    write_pool(folder / "pool", tiny_samples(10), shard_size=4)
    recipe = {
        "model": {"name": "tiny"},
        "data": {
            "train": [{"kind": "pool", "root": str(folder / "pool")}],
            "validation": [{"kind": "pool", "root": str(folder / "pool"), "options": {"shards": 1}}],
            "crop": [32, 64],
            "color": "published",
        },
        "loss": {
            "options": {"weights": [1.0, 0.5]},
            "rounds": [{"weights": [0.5, 1.0], "steps": 10}, {"weights": [1.0]}],
        },
        "optimizer": {"lr": 1e-2, "amsgrad": True},
        "schedule": {"name": "halving", "unit": "steps", "period": 5},
        "trainer": {
            "output": str(folder / "run"),
            "max_steps": 24,
            "batch_size": 2,
            "threads": 1,
            "ema_decay": 0.9,
            "clip_norm": 5.0,
            "val_every_steps": 6,
            "checkpoint_every_steps": 3,
            "log_every_steps": 6,
            "accelerator": "cpu",
            **trainer,
        },
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def kill_at(step: int) -> None:
    """Make this process kill itself (SIGKILL) in the forward pass of the given step."""
    forward, count = Tiny.forward, 0

    def counting(self: Tiny, left: Tensor, right: Tensor) -> StereoOutput:
        nonlocal count
        count += self.training
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return forward(self, left, right)

    Tiny.forward = counting  # type: ignore[method-assign]


def killed_runs(arguments: list[str], steps: list[int], weights: Path) -> None:
    """Run the command in a process of its own for each of ``steps``, each killed there; Lightning is loaded once.

    The processes are forked from this one, which has not trained anything: nothing is shared but the imported code.
    """
    import lightning.pytorch  # noqa: F401

    from vision3d.cli.train import main
    from vision3d.training import runner, stereo  # noqa: F401

    for step in steps:
        process = os.fork()
        if process == 0:
            kill_at(step)
            os._exit(main(arguments))
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code != -signal.SIGKILL or weights.exists():
            sys.exit(f"the run was not killed in step {step} of the process, but ended with {code}")


def dump_weights(folder: Path) -> None:
    """Make every process of a run save its task's state when the training ends."""
    from vision3d.training.stereo import StereoTask

    def on_train_end(self: StereoTask) -> None:
        torch.save(self.state_dict(), folder / f"rank{self.global_rank}.pt")

    StereoTask.on_train_end = on_train_end  # type: ignore[method-assign]


if __name__ == "__main__":
    from vision3d.cli.train import main

    register_tiny()

    if "KILL_AT" in os.environ:
        steps = [int(step) for step in os.environ["KILL_AT"].split(",")]
        killed_runs(sys.argv[1:], steps, Path(os.environ["WEIGHTS"]))
    if "DUMP_WEIGHTS" in os.environ:
        dump_weights(Path(os.environ["DUMP_WEIGHTS"]))
    sys.exit(main())
