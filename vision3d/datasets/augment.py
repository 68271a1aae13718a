# SPDX-License-Identifier: Apache-2.0
"""Random transforms of stereo samples by name, as recipes list them.

Each draws only from the generator it is given, so a sample is a function of the generator's seed. ``p`` is the share of
the samples that it changes. The geometry lies in :mod:`vision3d.datasets.transforms`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from vision3d.datasets import transforms
from vision3d.errors import ConfigError, MissingExtraError, UnknownNameError
from vision3d.types import StereoSample

Generator = np.random.Generator
Transform = Callable[[StereoSample, Generator], StereoSample]
Range = tuple[float, float]


@dataclass(frozen=True)
class RandomTransform:
    """Base: ``apply`` on the share ``p`` of the samples."""

    p: float = 1.0

    changes_size: ClassVar[bool] = False

    def __call__(self, sample: StereoSample, generator: Generator) -> StereoSample:
        """Draw whether to change the sample, and change it."""
        return self.apply(sample, generator) if self.p >= 1 or generator.random() < self.p else sample

    def apply(self, sample: StereoSample, generator: Generator) -> StereoSample:
        """Change the sample."""
        raise NotImplementedError


@dataclass(frozen=True)
class Crop(RandomTransform):
    """A window of (height, width) at a random place; see ``transforms.random_crop``."""

    size: tuple[int, int] = (256, 512)
    top: float = 0.0

    def apply(self, sample: StereoSample, generator: Generator) -> StereoSample:
        return transforms.random_crop(sample, *self.size, generator, self.top)


@dataclass(frozen=True)
class Resize(RandomTransform):
    """Scale by 2 to a power drawn from ``octaves``, and the width by a further one from ``stretch``.

    The result is at least ``least`` (height, width).
    """

    octaves: Range = (-0.2, 0.4)
    stretch: Range = (0.0, 0.0)
    least: tuple[int, int] = (1, 1)

    changes_size: ClassVar[bool] = True

    def apply(self, sample: StereoSample, generator: Generator) -> StereoSample:
        scale = 2 ** generator.uniform(*self.octaves)
        wide = scale * 2 ** generator.uniform(*self.stretch)
        height, width = sample.left.shape[:2]
        return transforms.resize(
            sample, max(round(height * scale), self.least[0]), max(round(width * wide), self.least[1])
        )


@dataclass(frozen=True)
class Misalign(RandomTransform):
    """Imperfect rectification of the right view: shift in pixels, angle in degrees."""

    shift: Range = (-1.0, 1.0)
    angle: Range = (-0.1, 0.1)

    def apply(self, sample: StereoSample, generator: Generator) -> StereoSample:
        shift, angle = generator.uniform(*self.shift), generator.uniform(*self.angle)
        return transforms.misalign_right(sample, shift, angle)


@dataclass(frozen=True)
class FlipSwap(RandomTransform):
    """Horizontal flip with view swap; samples without right disparity are an error, or kept as they are."""

    p: float = 0.5
    missing: Literal["error", "keep"] = "error"

    def apply(self, sample: StereoSample, generator: Generator) -> StereoSample:
        if sample.right_disparity is None and self.missing == "keep":
            return sample
        return transforms.horizontal_flip_swap(sample)


@dataclass(frozen=True)
class VerticalFlip(RandomTransform):
    """Turn the pair upside down."""

    p: float = 0.5

    def apply(self, sample: StereoSample, generator: Generator) -> StereoSample:
        return transforms.vertical_flip(sample)


@dataclass(frozen=True)
class ShiftDisparity(RandomTransform):
    """Add a whole number of pixels to all disparities by moving the right view."""

    pixels: tuple[int, int] = (-16, 16)

    def apply(self, sample: StereoSample, generator: Generator) -> StereoSample:
        return transforms.shift_disparity(sample, int(generator.integers(self.pixels[0], self.pixels[1] + 1)))


@dataclass(frozen=True)
class Occlude(RandomTransform):
    """Cover windows of one view: a number from ``count``, edges from ``size`` (pixels)."""

    p: float = 0.5
    count: tuple[int, int] = (1, 2)
    size: tuple[int, int] = (50, 100)
    view: Literal["right", "left"] = "right"

    def apply(self, sample: StereoSample, generator: Generator) -> StereoSample:
        image = getattr(sample, self.view)
        for _ in range(int(generator.integers(self.count[0], self.count[1] + 1))):
            height, width = (int(edge) for edge in generator.integers(self.size[0], self.size[1] + 1, 2))
            top = int(generator.integers(0, max(image.shape[0] - height, 0) + 1))
            left = int(generator.integers(0, max(image.shape[1] - width, 0) + 1))
            image = transforms.occlude(image, top, left, height, width)
        return dataclasses.replace(sample, **{self.view: image})


@dataclass(frozen=True)
class Published(RandomTransform):
    """The colours of FADNet, drawn for each view by itself."""

    def apply(self, sample: StereoSample, generator: Generator) -> StereoSample:
        return transforms.published_colors(sample, generator)


@dataclass(frozen=True)
class Photometric(RandomTransform):
    """Brightness, contrast, saturation, hue, gamma, noise and blur by albumentations (extra ``train``).

    Attributes:
        asymmetric: share of the changed samples whose views are drawn by themselves (two pipelines); the others get
            the same change in both views.
        brightness, contrast, saturation, hue: largest relative change; gamma: range in percent.
        noise: standard deviation as a share of 255; blur: largest kernel; shares of images: noise_p, blur_p.
    """

    asymmetric: float = 0.2
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    gamma: Range = (80.0, 120.0)
    noise: Range = (0.0, 0.02)
    noise_p: float = 0.2
    blur: int = 5
    blur_p: float = 0.1
    _pipelines: list[Any] = field(default_factory=list, repr=False, compare=False)

    def apply(self, sample: StereoSample, generator: Generator) -> StereoSample:
        if not self._pipelines:
            self._pipelines.extend((self._pipeline(), self._pipeline()))
        seeds = [int(seed) for seed in generator.integers(0, 2**31, 2)]
        if generator.random() < self.asymmetric:
            left, right = (
                self._draw(pipeline, seed, image)
                for pipeline, seed, image in zip(self._pipelines, seeds, (sample.left, sample.right), strict=True)
            )
        else:
            both = self._draw(self._pipelines[0], seeds[0], np.concatenate([sample.left, sample.right]))
            left, right = both[: len(sample.left)], both[len(sample.left) :]
        return dataclasses.replace(sample, left=left, right=right)

    @staticmethod
    def _draw(pipeline: Any, seed: int, image: np.ndarray) -> np.ndarray:
        pipeline.set_random_seed(seed)
        return np.ascontiguousarray(pipeline(image=np.ascontiguousarray(image))["image"])

    def _pipeline(self) -> Any:
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        try:
            import albumentations
        except ImportError as error:
            raise MissingExtraError("albumentations", "train", "the transform photometric") from error
        return albumentations.Compose(
            [
                albumentations.ColorJitter(
                    brightness=(1 - self.brightness, 1 + self.brightness),
                    contrast=(1 - self.contrast, 1 + self.contrast),
                    saturation=(1 - self.saturation, 1 + self.saturation),
                    hue=(-self.hue, self.hue),
                    p=1.0,
                ),
                albumentations.RandomGamma(gamma_limit=self.gamma, p=1.0),
                albumentations.GaussNoise(std_range=self.noise, p=self.noise_p),
                albumentations.GaussianBlur(blur_limit=(3, max(self.blur, 3)), p=self.blur_p),
            ]
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pipelines": []}


TRANSFORMS: dict[str, type[RandomTransform]] = {
    "crop": Crop,
    "resize": Resize,
    "misalign": Misalign,
    "flip_swap": FlipSwap,
    "vertical_flip": VerticalFlip,
    "shift_disparity": ShiftDisparity,
    "occlude": Occlude,
    "published": Published,
    "photometric": Photometric,
}
"""The transforms by name."""


class Compose:
    """Transforms one after another, all drawing from one generator.

    Example:
        >>> augment = Compose([Misalign(), Occlude()])
        >>> augment(sample, np.random.default_rng(7))  # doctest: +SKIP
    """

    def __init__(self, steps: Sequence[Transform]) -> None:
        self.steps = list(steps)

    def __call__(self, sample: StereoSample, generator: Generator) -> StereoSample:
        """Apply all of them."""
        for step in self.steps:
            sample = step(sample, generator)
        return sample


def make_transform(name: str, options: dict[str, Any] | None = None) -> RandomTransform:
    """A transform by name.

    Raises:
        UnknownNameError: no such transform. ConfigError: an option that it does not have, or an illegal value.
    """
    if name not in TRANSFORMS:
        raise UnknownNameError("transform", name, TRANSFORMS)
    kind = TRANSFORMS[name]
    known = {item.name: item for item in dataclasses.fields(kind) if not item.name.startswith("_")}
    values: dict[str, Any] = {}
    for key, value in (options or {}).items():
        if key not in known:
            raise ConfigError(f"transform {name}: unknown option '{key}': choose {', '.join(known)}")
        values[key] = tuple(value) if isinstance(value, list) else value
        _check_option(name, key, values[key], known[key].default)
    return kind(**values)


def _check_option(name: str, key: str, value: Any, default: Any) -> None:
    """Refuse values of another kind than the default, shares outside of [0, 1], and ranges upside down."""
    if isinstance(default, tuple):
        numbers = isinstance(value, tuple) and len(value) == 2 and all(isinstance(item, (int, float)) for item in value)
        if not numbers or (value[0] > value[1] and key not in ("size", "least")):
            raise ConfigError(f"transform {name}: {key} must be two numbers [low, high], got {value}")
    elif isinstance(default, str):
        choices = {"view": ("right", "left"), "missing": ("error", "keep")}[key]
        if value not in choices:
            raise ConfigError(f"transform {name}: {key} must be {' or '.join(choices)}, got {value!r}")
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"transform {name}: {key} must be a number, got {value!r}")
    elif key in ("p", "asymmetric", "noise_p", "blur_p") and not 0 <= value <= 1:
        raise ConfigError(f"transform {name}: {key} must lie in [0, 1], got {value}")


def training_augmentation(
    steps: Sequence[tuple[str, dict[str, Any]]], crop: tuple[int, int], crop_top: float
) -> Compose:
    """The transforms of a recipe around its training crop.

    ``crop`` in the list marks where the recipe's crop is cut; without it the crop comes first. A ``resize`` must stand
    before the crop and never makes the pair smaller than it.

    Raises:
        UnknownNameError, ConfigError: see ``make_transform``; or ``resize`` behind the crop, or two crops.
    """
    names = [name for name, _ in steps]
    if names.count("crop") > 1:
        raise ConfigError("data.augment: 'crop' stands twice; keep one")
    place = names.index("crop") if "crop" in names else -1
    made: list[Transform] = [] if place >= 0 else [Crop(size=crop, top=crop_top)]
    for number, (name, options) in enumerate(steps):
        if name == "crop":
            if options:
                raise ConfigError("data.augment: 'crop' takes no options here; set data.crop and data.crop_top")
            made.append(Crop(size=crop, top=crop_top))
            continue
        if name == "resize":
            if number > place:
                raise ConfigError("data.augment: 'resize' must be followed by 'crop', else sizes would differ")
            options = {"least": list(crop), **options}
        made.append(make_transform(name, options))
    return Compose(made)
