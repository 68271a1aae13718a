# SPDX-License-Identifier: Apache-2.0
"""Multi-view training samples keyed by their position in the run (see :mod:`vision3d.training.data`).

The images of multi-view sets are not cropped: the option ``size`` of a reader says how large they are. The sources are
drawn by the reader (``source_choice: random``) anew in each epoch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from vision3d.errors import ConfigError, UnknownNameError, check_option_names
from vision3d.training.config import DataConfig
from vision3d.training.data import TrainingPairs, data_length
from vision3d.types import MultiViewSample

Transform = Callable[[MultiViewSample, np.random.Generator], MultiViewSample]
_STEREO_ONLY = ("crop", "crop_top", "color", "vertical_flip", "validation_crop")


def jitter(
    sample: MultiViewSample, generator: np.random.Generator, *, brightness: float = 0.5, contrast: float = 0.5
) -> MultiViewSample:
    """Change brightness and contrast of each image by itself (factors 1 - x to 1 + x, as DispMVS's public code can)."""
    images = []
    for image in sample.images:
        values = np.asarray(image, dtype=np.float32) * generator.uniform(1 - brightness, 1 + brightness)
        mean = float(values.mean())
        values = (values - mean) * generator.uniform(1 - contrast, 1 + contrast) + mean
        images.append(np.clip(np.rint(values), 0, 255).astype(np.uint8))
    return replace(sample, images=images)


def widen_range(sample: MultiViewSample, generator: np.random.Generator, *, factor: float = 4.0) -> MultiViewSample:
    """Divide the near end of the depth range and multiply the far end by factors drawn from 1 to ``factor``."""
    if sample.depth_range is None:
        return sample
    near, far = sample.depth_range
    below, above = np.exp(generator.uniform(0, np.log(factor), 2))
    return replace(sample, depth_range=(near / float(below), far * float(above)))


TRANSFORMS: dict[str, Callable[..., MultiViewSample]] = {"jitter": jitter, "widen_range": widen_range}
"""Random transforms of multi-view samples by the names that recipes use."""

_LIMITS = {"brightness": (0.0, 1.0), "contrast": (0.0, 1.0), "factor": (1.0, 1000.0)}


class MultiViewTraining(TrainingPairs):
    """Multi-view training samples by their position in the run.

    Raises:
        ConfigError, UnknownNameError: options that multi-view recipes do not have, or an endless set.
    """

    def __init__(self, dataset: Dataset, config: DataConfig, seed: int) -> None:
        check_multiview_data(config)
        self.dataset, self.config, self.seed = dataset, config, seed
        self.length = data_length(dataset)
        if self.length is None:
            raise ConfigError("data.train: an endless set has no multi-view samples; name a multi-view data set")
        self.steps = [(TRANSFORMS[step.name], step.options) for step in config.augment]
        self._order: tuple[int, np.ndarray] | None = None

    def __getitem__(self, position: int) -> MultiViewSample:  # type: ignore[override]
        set_epoch(self.dataset, position // (self.length or 1))
        sample = self.dataset[self.index_of(position)]
        generator = np.random.default_rng([self.seed, 2, position])
        for transform, options in self.steps:
            sample = transform(sample, generator, **options)
        return sample


def set_epoch(dataset: Any, epoch: int) -> None:
    """Tell a multi-view set, or all sets of a chain or mixture, the epoch that its random sources depend on."""
    parts = getattr(dataset, "datasets", None) or getattr(dataset, "parts", None)
    for part in parts or ():
        set_epoch(part, epoch)
    if hasattr(dataset, "epoch"):
        dataset.epoch = epoch


def check_multiview_data(config: DataConfig) -> None:
    """Refuse options of stereo recipes, unknown transforms and their options.

    Raises:
        ConfigError, UnknownNameError: see above.
    """
    defaults = {item.name: item.default for item in fields(DataConfig)}
    for name in _STEREO_ONLY:
        value = getattr(config, name)
        if (tuple(value) if isinstance(value, list) else value) != defaults[name]:
            raise ConfigError(
                f"data.{name}: multi-view recipes take whole images: remove it (the option size of a data set resizes)"
            )
    for step in config.augment:
        if step.name not in TRANSFORMS:
            raise UnknownNameError("multi-view transform", step.name, TRANSFORMS)
        known = list(inspect.signature(TRANSFORMS[step.name]).parameters)[2:]
        check_option_names(f"data.augment {step.name}", known, step.options)
        for name, value in step.options.items():
            low, high = _LIMITS[name]
            if not isinstance(value, (int, float)) or not low <= value <= high:
                raise ConfigError(f"data.augment {step.name}: {name} must lie in {low:g} to {high:g}, got {value!r}")
