# SPDX-License-Identifier: Apache-2.0
"""Stages of a joint optimisation as data, and those of CF-NeRF, NeRFmm and BARF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vision3d.errors import ConfigError

Schedule = Literal["siren", "relu"]


@dataclass(frozen=True)
class LearningRate:
    """A step size that is multiplied by ``factor`` after every ``every`` steps."""

    start: float
    factor: float = 1.0
    every: int = 1

    def __post_init__(self) -> None:
        if not (self.start > 0 and self.factor > 0 and self.every >= 1 and math.isfinite(self.start)):
            raise ConfigError(
                f"learning rate {self.start} x {self.factor} every {self.every} steps: all must be positive"
            )

    def at(self, step: int) -> float:
        """The step size of a step, counted from 0."""
        return self.start * self.factor ** (step // self.every)

    @classmethod
    def exponential(cls, start: float, end: float, steps: int) -> LearningRate:
        """Fall evenly (in the logarithm) from ``start`` to ``end`` in ``steps`` steps."""
        return cls(start, (end / start) ** (1 / max(steps, 1)) if start > 0 else 1.0)


@dataclass(frozen=True)
class Stage:
    """One run of the optimiser over some frames.

    Attributes:
        name: for messages.
        steps: number of optimiser steps.
        views: the frames, or None for all.
        network, focal, rotation, translation: the step size of each kind of parameters; None keeps it fixed.
        pose: instead of rotation and translation, a step size for both in pixels of the stage's images
            (:mod:`vision3d.training.nerf.pose_steps`).
        rays_per_step: pixels in a step (at most those of the images), drawn without replacement.
        views_per_step: frames that the pixels of one step are drawn from, in equal parts; None: all of the stage.
        shuffle: visit the frames in random order, anew in each pass.
        pyramid_level: halvings of the images.
        window: shares of the steps (start, end) between which the coarse-to-fine window opens; None: it stays open.
        density_noise: standard deviation of the noise on raw densities.
        jitter_pixels: rays pass anywhere in their pixel instead of its centre.
        precision: "bfloat16" runs the networks in mixed precision.
        patience: end early when the smoothed loss falls by less than the share ``least_gain`` in so many steps.
        least_gain: see ``patience``.
    """

    name: str
    steps: int
    views: tuple[int, ...] | None = None
    network: LearningRate | None = None
    focal: LearningRate | None = None
    rotation: LearningRate | None = None
    translation: LearningRate | None = None
    pose: LearningRate | None = None
    rays_per_step: int = 2048
    views_per_step: int | None = 1
    shuffle: bool = True
    pyramid_level: int = 0
    window: tuple[float, float] | None = None
    density_noise: float = 1.0
    jitter_pixels: bool = True
    precision: Literal["float32", "bfloat16"] = "float32"
    patience: int | None = None
    least_gain: float = 0.005

    def __post_init__(self) -> None:
        numbers = {
            "steps": self.steps,
            "rays_per_step": self.rays_per_step,
            "views_per_step": self.views_per_step if self.views_per_step is not None else 1,
            "patience": self.patience if self.patience is not None else 1,
        }
        for name, value in numbers.items():
            if value < 1:
                raise ConfigError(f"stage '{self.name}': {name} is {value}, it must be at least 1")
        if self.views is not None and (not self.views or len(set(self.views)) < len(self.views)):
            raise ConfigError(f"stage '{self.name}': views {list(self.views)} must be different frames, at least one")
        if self.pyramid_level < 0 or self.density_noise < 0 or self.precision not in ("float32", "bfloat16"):
            raise ConfigError(
                f"stage '{self.name}': pyramid_level {self.pyramid_level} and density_noise {self.density_noise} must "
                f"not be negative, precision '{self.precision}' be float32 or bfloat16"
            )
        if self.window is not None and not 0 <= self.window[0] < self.window[1] <= 1:
            raise ConfigError(f"stage '{self.name}': window {self.window} must be two growing shares in [0, 1]")
        if self.pose is not None and (self.rotation is not None or self.translation is not None):
            raise ConfigError(f"stage '{self.name}': give a step size for pose, or for rotation and translation")
        if not self.learning_rates:
            raise ConfigError(f"stage '{self.name}': nothing is optimised; give at least one learning rate")

    @property
    def learning_rates(self) -> dict[str, LearningRate]:
        """Those that are set, by kind: network, focal, rotation, translation, pose."""
        rates = {kind: getattr(self, kind) for kind in ("network", "focal", "rotation", "translation", "pose")}
        return {kind: rate for kind, rate in rates.items() if rate is not None}

    def progress(self, step: int) -> float | None:
        """Coarse-to-fine window of a step in [0, 1], or None where it stays as it is."""
        if self.window is None:
            return None
        start, end = self.window
        return min(max((step / self.steps - start) / (end - start), 0.0), 1.0)


_RATE = 1e-3


def network_rate(schedule: Schedule = "siren") -> LearningRate:
    """The published step size of the network: of SIREN and Gaussian fields, or of the ReLU field."""
    return LearningRate(_RATE, 0.9954, 200 if schedule == "siren" else 20)


def camera_rate(schedule: Schedule = "siren") -> LearningRate:
    """The published step size of focal length, rotations and centres."""
    return LearningRate(_RATE, 0.9, 2000 if schedule == "siren" else 100)


def cfnerf_stage(
    kind: Literal["init", "local", "part", "global"],
    views: Sequence[int],
    epochs: int,
    *,
    schedule: Schedule = "siren",
    rays_per_step: int = 2048,
    pyramid_level: int = 0,
) -> Stage:
    """A stage of CF-NeRF (arXiv 2312.08760); an epoch is one step for each frame.

    Free parameters: ``init`` network, focal length, centres; ``local`` (the newest frame against the frozen map)
    rotations and centres; ``part`` (the last frames) these and the network; ``global`` everything.

    Raises:
        ConfigError: an unknown kind.
    """
    network, camera = network_rate(schedule), camera_rate(schedule)
    free = {
        "init": {"network": network, "focal": camera, "translation": camera},
        "local": {"rotation": camera, "translation": camera},
        "part": {"network": network, "rotation": camera, "translation": camera},
        "global": {"network": network, "focal": camera, "rotation": camera, "translation": camera},
    }
    if kind not in free:
        raise ConfigError(f"unknown stage '{kind}': choose {', '.join(free)}")
    return Stage(
        kind,
        epochs * len(views),
        tuple(views),
        network=free[kind].get("network"),
        focal=free[kind].get("focal"),
        rotation=free[kind].get("rotation"),
        translation=free[kind].get("translation"),
        rays_per_step=rays_per_step,
        pyramid_level=pyramid_level,
    )


def nerfmm_stage(steps: int, *, views: Sequence[int] | None = None, rays_per_step: int = 1024) -> Stage:
    """NeRF-- (arXiv 2102.07064): everything at once on all frames, from identity poses.

    The published step sizes, 1e-3 falling by 0.9954 (network) and 0.9 (cameras) every 10 and 100 passes of 10,000, are
    stretched over ``steps``.
    """
    every = max(round(steps / 1000), 1), max(round(steps / 100), 1)
    camera = LearningRate(_RATE, 0.9, every[1])
    return Stage(
        "nerfmm",
        steps,
        None if views is None else tuple(views),
        network=LearningRate(_RATE, 0.9954, every[0]),
        focal=camera,
        rotation=camera,
        translation=camera,
        rays_per_step=rays_per_step,
    )


def barf_stage(
    steps: int, *, views: Sequence[int] | None = None, rays_per_step: int = 2048, free_focal: bool = True
) -> Stage:
    """BARF (arXiv 2104.06405): like NeRF--, with encodings that open from coarse to fine and rays from all frames.

    Step sizes as published: network 1e-3 to 1e-4, poses 3e-3 to 1e-5; the window opens from 10 % to 50 % of the steps.
    BARF itself knows the focal length; ``free_focal`` learns it too.
    """
    pose = LearningRate.exponential(3e-3, 1e-5, steps)
    return replace(
        nerfmm_stage(steps, views=views, rays_per_step=rays_per_step),
        name="barf",
        network=LearningRate.exponential(1e-3, 1e-4, steps),
        focal=LearningRate.exponential(1e-3, 1e-5, steps) if free_focal else None,
        rotation=pose,
        translation=pose,
        views_per_step=None,
        window=(0.1, 0.5),
        density_noise=0.0,
    )
