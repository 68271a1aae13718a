# SPDX-License-Identifier: Apache-2.0
"""Random transforms of panoramas by name, as recipes list them.

Distances along the ray stay what they are under any rotation about the camera. The usual choice (UniFuse, HoHoNet) is a
turn about the vertical axis, a mirror image, and changed colours. Normals and poses are dropped: training needs none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vision3d.errors import ConfigError, UnknownNameError, check_option_names
from vision3d.geometry.panorama_rotation import rotate_panorama, rotation_matrix
from vision3d.types import PanoramaSample

Generator = np.random.Generator


@dataclass(frozen=True)
class Turn:
    """A turn about the vertical axis by any number of whole columns: exact."""

    p: float = 1.0

    def apply(self, sample: PanoramaSample, generator: Generator) -> PanoramaSample:
        """Roll image and depth."""
        columns = int(generator.integers(sample.image.shape[1]))
        return _changed(sample, lambda values, depth: np.roll(values, columns, axis=1))


@dataclass(frozen=True)
class Mirror:
    """Left and right exchanged."""

    p: float = 0.5

    def apply(self, sample: PanoramaSample, generator: Generator) -> PanoramaSample:
        """Mirror image and depth."""
        return _changed(sample, lambda values, depth: values[:, ::-1])


@dataclass(frozen=True)
class Tilt:
    """A camera that does not stand upright: rotations about both level axes with this deviation, degrees."""

    p: float = 1.0
    degrees: float = 3.0

    def apply(self, sample: PanoramaSample, generator: Generator) -> PanoramaSample:
        """Resample the image bilinearly and the depth by the nearest pixel."""
        pitch, roll = (float(value) for value in generator.normal(0, self.degrees, 2))
        rotation = rotation_matrix(pitch=pitch, roll=roll)
        return _changed(sample, lambda values, depth: rotate_panorama(values, rotation, nearest=depth))


@dataclass(frozen=True)
class Colors:
    """Brightness, contrast and saturation by factors of 1 +- each, gamma by up to 1 + gamma or its inverse."""

    p: float = 0.5
    brightness: float = 0.2
    contrast: float = 0.2
    saturation: float = 0.2
    gamma: float = 0.2

    def apply(self, sample: PanoramaSample, generator: Generator) -> PanoramaSample:
        """Change the colours of the image."""
        limits = (self.brightness, self.contrast, self.saturation)
        bright, contrast, saturation = (1 + generator.uniform(-limit, limit) for limit in limits)
        gamma = float((1 + generator.uniform(0, self.gamma)) ** generator.choice((-1, 1)))
        image = sample.image.astype(np.float32) * np.float32(bright / 255)
        image = (image - image.mean()) * np.float32(contrast) + image.mean()
        grey = image @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
        image = (image - grey[..., None]) * np.float32(saturation) + grey[..., None]
        codes = np.rint(255 * np.clip(image, 0, 1) ** np.float32(gamma)).astype(np.uint8)
        return dataclasses.replace(sample, image=codes)


PanoramaTransform = Turn | Mirror | Tilt | Colors
TRANSFORMS: dict[str, type[PanoramaTransform]] = {"turn": Turn, "mirror": Mirror, "tilt": Tilt, "colors": Colors}
"""The transforms by name."""


class PanoramaAugmentation:
    """Transforms one after another, all drawing from one generator."""

    def __init__(self, steps: Sequence[PanoramaTransform]) -> None:
        self.steps = list(steps)

    def __call__(self, sample: PanoramaSample, generator: Generator) -> PanoramaSample:
        """Apply each to its share of the samples."""
        for step in self.steps:
            if step.p >= 1 or generator.random() < step.p:
                sample = step.apply(sample, generator)
        return sample


def panorama_augmentation(steps: Sequence[tuple[str, dict[str, Any]]]) -> PanoramaAugmentation:
    """The transforms of a recipe.

    Raises:
        UnknownNameError: no such transform. ConfigError: an option that it does not have, or an illegal value.
    """
    made: list[PanoramaTransform] = []
    for name, options in steps:
        if name not in TRANSFORMS:
            raise UnknownNameError("transform of panoramas", name, TRANSFORMS)
        known = [item.name for item in dataclasses.fields(TRANSFORMS[name])]
        check_option_names(f"transform {name}", known, options)
        for key, value in options.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise ConfigError(f"transform {name}: {key} must be a number of at least 0, got {value!r}")
            if key != "degrees" and value > 1:
                raise ConfigError(f"transform {name}: {key} must lie in [0, 1], got {value}")
        made.append(TRANSFORMS[name](**options))
    return PanoramaAugmentation(made)


def _changed(sample: PanoramaSample, change: Callable[[np.ndarray, bool], np.ndarray]) -> PanoramaSample:
    """The sample with ``change(values, is_depth)`` of its image and depth."""
    depth = None if sample.depth is None else np.ascontiguousarray(change(sample.depth, True))
    image = np.ascontiguousarray(change(sample.image, False))
    return PanoramaSample(image=image, depth=depth, scene=sample.scene)
