# SPDX-License-Identifier: Apache-2.0
"""Random synthetic stereo scenes with exact ground truth, reproducible by seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from vision3d.datasets.synthetic.photometric import photometric_change
from vision3d.datasets.synthetic.render import Layer, find_occlusion, render_view
from vision3d.datasets.synthetic.shapes import random_mask
from vision3d.datasets.synthetic.surfaces import Surface, random_surface
from vision3d.datasets.synthetic.textures import recolor, texture_library
from vision3d.errors import InputError
from vision3d.types import StereoSample


@dataclass(frozen=True)
class SceneOptions:
    """What random scenes look like.

    Attributes:
        max_disparity: (smallest, largest) of the scene's nearest disparity, pixels; drawn log-uniformly. The largest is
            further limited to a third of the image width.
        objects: (fewest, most) objects before the background.
        photometric: 0 = both views identical in tone and free of noise, 1 = as real cameras differ.
        rectification_error: largest vertical misalignment of the right view, pixels (drawn for one scene in four).
    """

    max_disparity: tuple[float, float] = (6.0, 200.0)
    objects: tuple[int, int] = (4, 26)
    photometric: float = 1.0
    rectification_error: float = 0.0


def _texture(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    library = texture_library()
    texture = recolor(library[int(rng.integers(len(library)))], rng)
    scale = float(np.exp(rng.uniform(np.log(0.45), np.log(2.2))))
    angle = float(rng.choice([0.0, rng.uniform(0, 2 * np.pi)]))
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return texture, np.column_stack([turn, rng.uniform(0, 512, 2)])


def _shading(rng: np.random.Generator, height: int, width: int) -> tuple[float, float, float]:
    if rng.random() < 0.4:
        return 1.0, 0.0, 0.0
    gain_x, gain_y = rng.normal(0, 0.35, 2) / np.array([width, height])
    return float(rng.uniform(0.6, 1.1) - gain_x * width / 2 - gain_y * height / 2), float(gain_x), float(gain_y)


def _full_layer(rng: np.random.Generator, surface: Surface, height: int, width: int) -> Layer:
    return Layer(surface, *_texture(rng), shading=_shading(rng, height, width))


def _background(rng: np.random.Generator, far: float, near: float, height: int, width: int) -> list[Layer]:
    """A wall, a ground with a wall behind it, or a room; the z-buffer finds their edges."""
    slant = float(rng.uniform(-0.5, 0.5)) * far / width if rng.random() < 0.5 else 0.0
    surfaces = [Surface(far - slant * width / 2, slant)]
    kind = rng.random()
    if kind < 0.25:
        tilt = float(rng.uniform(-0.5, 0.5)) * far / height
        surfaces = [Surface(surfaces[0].a - tilt * height / 2, slant, tilt)]
    if kind > 0.45:
        horizon = float(rng.uniform(0.05, 0.75)) * height
        rise = float(rng.uniform(0.3, 1.0)) * (near - far) / (height - horizon)
        surfaces.append(Surface(far - rise * horizon, 0.0, rise))
    if kind > 0.75:
        for side in (-1.0, 1.0):
            if rng.random() < 0.7:
                edge = width * (0.5 + side * float(rng.uniform(0.1, 0.5)))
                slope = side * min(float(rng.uniform(0.2, 1.0)) * (near - far) / (width / 2), 0.45)
                surfaces.append(Surface(far - slope * edge, slope))
        if rng.random() < 0.4:
            edge = float(rng.uniform(0.0, 0.35)) * height
            fall = float(rng.uniform(0.3, 1.0)) * (near - far) / height
            surfaces.append(Surface(far + fall * edge, 0.0, -fall))
    return [_full_layer(rng, surface, height, width) for surface in surfaces]


def _object(rng: np.random.Generator, disparity: float, height: int, width: int) -> list[Layer]:
    extent = np.exp(rng.uniform(np.log(14.0), np.log(0.75 * height), 2))
    w, h = int(min(extent[0] * rng.uniform(0.7, 1.5), width)), int(extent[1])
    w, h = max(w, 8), max(h, 8)
    x0 = int(rng.uniform(-0.3 * w, width + disparity - 0.7 * w))
    y0 = int(rng.uniform(-0.4 * h, height - 0.6 * h))
    surface = random_surface(rng, disparity, (x0 + w / 2, y0 + h / 2), (w, h))
    texture, texture_map = _texture(rng)
    shading = _shading(rng, height, width)
    mask = random_mask(rng, h, w)
    layers = [Layer(surface, texture, texture_map, shading, mask, (x0, y0))]
    if rng.random() < 0.12:  # a row of equal objects: the classical trap of matching
        step = int(w * rng.uniform(1.05, 1.6)) + 1
        for index in range(1, int(rng.integers(2, 6))):
            shift = index * step
            moved = texture_map.copy()
            moved[:, 2] -= texture_map[:, 0] * shift
            plane = Surface(surface.a - surface.b * shift, surface.b, surface.c)
            layers.append(Layer(plane, texture, moved, shading, mask, (x0 + shift, y0)))
    return layers


def _order(layer: Layer, height: int, width: int) -> float:
    if layer.mask is None:
        return -1.0
    x = layer.origin[0] + layer.mask.shape[1] / 2
    y = layer.origin[1] + layer.mask.shape[0] / 2
    return float(layer.surface.disparity(np.asarray(x), np.asarray(y)))


def random_layers(rng: np.random.Generator, height: int, width: int, options: SceneOptions) -> list[Layer]:
    """Draw the layers of a scene, far ones first."""
    low, high = options.max_disparity[0], min(options.max_disparity[1], width / 3)
    near = float(np.exp(rng.uniform(np.log(min(low, high)), np.log(high))))
    far = max(near * float(rng.uniform(0.04, 0.6)), 0.6)
    layers = _background(rng, far, near, height, width)
    for _ in range(int(rng.integers(options.objects[0], options.objects[1] + 1))):
        layers += _object(rng, far + (near - far) * float(rng.random()) ** 1.2, height, width)
    return sorted(layers, key=lambda layer: _order(layer, height, width))


def make_scene(seed: int, height: int = 256, width: int = 512, options: SceneOptions | None = None) -> StereoSample:
    """Make the synthetic scene of a seed.

    Args:
        seed: the same seed, size and options give the same scene.
        height, width: image size, pixels, at least 16 x 32.
        options: what scenes look like.

    Returns:
        Sample with exact sub-pixel ``disparity`` (also in occluded pixels), ``occlusion`` (hidden in, or outside
        of, the right view) and ``right_disparity``.

    Raises:
        InputError: the size is too small.
    """
    if height < 16 or width < 32:
        raise InputError(f"a synthetic scene needs at least 16 x 32 pixels (height x width), got {height} x {width}")
    options = options or SceneOptions()
    rng = np.random.default_rng([seed, 7_411])
    layers = random_layers(rng, height, width, options)
    offset = tilt = 0.0
    if options.rectification_error > 0 and rng.random() < 0.25:
        offset = float(rng.uniform(-1, 1)) * options.rectification_error
        tilt = float(rng.uniform(-0.5, 0.5)) * options.rectification_error / width
    left, disparity = render_view(layers, height, width, right_view=False)
    right, right_disparity = render_view(layers, height, width, True, offset, tilt)
    occlusion = find_occlusion(layers, disparity)
    left_image, right_image = photometric_change(left, right, rng, options.photometric)
    return StereoSample(left_image, right_image, disparity, occlusion, right_disparity, scene=f"synthetic_{seed:08d}")


class SyntheticStereo(IterableDataset):  # type: ignore[type-arg]
    """An endless stream of synthetic scenes: seeds ``seed``, ``seed + 1``, ... divided over data-loader workers.

    Args:
        height, width: image size, pixels.
        seed: first seed.
        options: what scenes look like.
        length: stop after this many scenes, None for endless.
    """

    def __init__(
        self,
        height: int = 256,
        width: int = 512,
        seed: int = 0,
        options: SceneOptions | None = None,
        length: int | None = None,
    ) -> None:
        self.height, self.width, self.seed, self.length = height, width, seed, length
        self.options = options or SceneOptions()

    def __iter__(self) -> Iterator[StereoSample]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        index = first
        while self.length is None or index < self.length:
            yield make_scene(self.seed + index, self.height, self.width, self.options)
            index += step
