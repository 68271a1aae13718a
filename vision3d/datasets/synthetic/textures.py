# SPDX-License-Identifier: Apache-2.0
"""Textures for synthetic scenes: the photographs inside the scikit-image wheel, and procedural patterns.

Every texture is a [S, S, 3] uint8 RGB image of side :data:`TEXTURE_SIZE` that repeats by reflection. The stereo pair
that scikit-image also ships is not used: it is a test scene.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import cv2
import numpy as np

TEXTURE_SIZE = 512
PROCEDURAL_TEXTURES = 96
_PHOTOGRAPHS = (
    "astronaut", "brick", "camera", "cat", "cell", "clock", "coffee", "coins", "grass", "gravel", "hubble_deep_field",
    "immunohistochemistry", "moon", "page", "retina", "rocket", "text",
)  # fmt: skip

Pattern = Callable[[np.random.Generator], np.ndarray]


def fractal_noise(rng: np.random.Generator, size: int, coarsest: int, octaves: int, persistence: float) -> np.ndarray:
    """Sum of smoothly interpolated random grids, each twice as fine as the last: [size, size] float32 in [0, 1]."""
    total = np.zeros((size, size), np.float32)
    amplitude = 1.0
    for octave in range(octaves):
        cells = min(coarsest * 2**octave, size)
        grid = rng.random((cells, cells), dtype=np.float32)
        total += amplitude * cv2.resize(grid, (size, size), interpolation=cv2.INTER_CUBIC)
        amplitude *= persistence
    low, high = float(total.min()), float(total.max())
    return (total - low) / max(high - low, 1e-6)


def _colors(rng: np.random.Generator, count: int) -> np.ndarray:
    colors = rng.uniform(0, 255, (count, 3)).astype(np.float32)
    grey = colors.mean(axis=1, keepdims=True)
    return grey + float(rng.random()) * (colors - grey)


def _blend(rng: np.random.Generator, weight: np.ndarray) -> np.ndarray:
    first, second = _colors(rng, 2)
    return first + weight[..., None] * (second - first)


def _noise(rng: np.random.Generator) -> np.ndarray:
    octaves = int(rng.integers(3, 8))
    channels = [
        fractal_noise(rng, TEXTURE_SIZE, int(rng.integers(2, 9)), octaves, float(rng.uniform(0.4, 0.95)))
        for _ in range(3)
    ]
    if rng.random() < 0.5:
        return _blend(rng, channels[0])
    return np.stack(channels, -1) * 255.0


def _weak(rng: np.random.Generator) -> np.ndarray:
    base = _colors(rng, 1)[0]
    noise = fractal_noise(rng, TEXTURE_SIZE, int(rng.integers(2, 6)), int(rng.integers(1, 8)), 0.8) - 0.5
    return base + noise[..., None] * float(rng.uniform(1.0, 24.0))


def _stripes(rng: np.random.Generator) -> np.ndarray:
    y, x = np.mgrid[0:TEXTURE_SIZE, 0:TEXTURE_SIZE].astype(np.float32)
    angle = float(rng.choice([0.0, np.pi / 2, rng.uniform(0, np.pi)]))
    phase = (x * np.cos(angle) + y * np.sin(angle)) * (2 * np.pi / float(rng.uniform(5, 60)))
    wave = np.sin(phase + float(rng.uniform(0, 3)) * fractal_noise(rng, TEXTURE_SIZE, 3, 2, 0.5))
    sharpness = float(rng.uniform(1, 8))
    return _blend(rng, np.clip(0.5 + 0.5 * sharpness * wave, 0, 1))


def _tiles(rng: np.random.Generator) -> np.ndarray:
    """Rows of bricks or tiles with joints, each with a tone of its own."""
    width, height = (int(v) for v in rng.integers(10, 80, 2))
    joint = int(rng.integers(1, 5))
    y, x = np.mgrid[0:TEXTURE_SIZE, 0:TEXTURE_SIZE]
    row = y // height
    x = x + (row % 2) * (width // 2) * int(rng.random() < 0.6)
    tone = rng.random((TEXTURE_SIZE // height + 2, TEXTURE_SIZE * 2 // width + 2), dtype=np.float32)
    value = 0.5 + float(rng.uniform(0, 0.6)) * (tone[row, x // width] - 0.5)
    value = np.where((x % width < joint) | (y % height < joint), 0.0, value).astype(np.float32)
    image = _blend(rng, value)
    return image + (fractal_noise(rng, TEXTURE_SIZE, 16, 5, 0.8)[..., None] - 0.5) * float(rng.uniform(0, 60))


def _checker(rng: np.random.Generator) -> np.ndarray:
    y, x = np.mgrid[0:TEXTURE_SIZE, 0:TEXTURE_SIZE]
    cell = int(rng.integers(4, 40))
    return _blend(rng, ((x // cell + y // cell) % 2).astype(np.float32))


def _dots(rng: np.random.Generator) -> np.ndarray:
    image = np.full((TEXTURE_SIZE, TEXTURE_SIZE, 3), _colors(rng, 1)[0], np.float32)
    largest = int(rng.integers(3, 25))
    for color in _colors(rng, int(rng.integers(100, 900))):
        center = tuple(int(v) for v in rng.integers(0, TEXTURE_SIZE, 2))
        cv2.circle(image, center, int(rng.integers(1, largest)), color.tolist(), -1, cv2.LINE_AA)
    return image


def _strokes(rng: np.random.Generator) -> np.ndarray:
    """Lines and letters on a smooth ground, as on posters and book covers."""
    image = np.ascontiguousarray(_blend(rng, fractal_noise(rng, TEXTURE_SIZE, 2, 2, 0.5)).astype(np.uint8))
    for color in _colors(rng, int(rng.integers(20, 120))):
        start, end = rng.integers(-50, TEXTURE_SIZE + 50, (2, 2))
        if rng.random() < 0.5:
            letters = "".join(chr(c) for c in rng.integers(33, 122, int(rng.integers(2, 9))))
            cv2.putText(image, letters, start.tolist(), int(rng.integers(0, 8)), float(rng.uniform(0.4, 2.5)),
                        color.tolist(), int(rng.integers(1, 4)), cv2.LINE_AA)  # fmt: skip
        else:
            cv2.line(image, start.tolist(), end.tolist(), color.tolist(), int(rng.integers(1, 7)), cv2.LINE_AA)
    return image


def _cells(rng: np.random.Generator) -> np.ndarray:
    """Voronoi cells, as in stone, foliage and cloth."""
    seeds = np.full((TEXTURE_SIZE, TEXTURE_SIZE), 255, np.uint8)
    count = int(rng.integers(60, 2000))
    rows, columns = rng.integers(0, TEXTURE_SIZE, (2, count))
    seeds[rows, columns] = 0
    distance, labels = cv2.distanceTransformWithLabels(seeds, cv2.DIST_L2, 3)
    palette = _blend(rng, rng.random(labels.max() + 1, dtype=np.float32))
    shade = np.clip(1.2 - distance / max(float(distance.max()), 1.0), 0, 1)[..., None]
    return palette[labels] * (shade if rng.random() < 0.7 else 1.0)


_PATTERNS: tuple[tuple[Pattern, float], ...] = (
    (_noise, 0.26), (_weak, 0.16), (_stripes, 0.1), (_tiles, 0.12), (_checker, 0.04), (_dots, 0.1), (_strokes, 0.12),
    (_cells, 0.1),
)  # fmt: skip


def _photographs() -> list[np.ndarray]:
    from skimage import data

    tiles = []
    for name in _PHOTOGRAPHS:
        image = getattr(data, name)()
        if image.ndim == 2:
            image = np.repeat(image[..., None], 3, axis=2)
        image = np.ascontiguousarray(image[..., :3])
        side = min(image.shape[:2])
        for top, left in {(0, 0), (image.shape[0] - side, image.shape[1] - side)}:
            square = image[top : top + side, left : left + side]
            tiles.append(cv2.resize(square, (TEXTURE_SIZE, TEXTURE_SIZE), interpolation=cv2.INTER_AREA))
    return tiles


@lru_cache(maxsize=1)
def texture_library() -> tuple[np.ndarray, ...]:
    """All textures, the same in every process (about 130 images, 100 MB, 2 s to make)."""
    rng = np.random.default_rng(20_030_758)
    weights = np.array([weight for _, weight in _PATTERNS])
    kinds = rng.choice(len(_PATTERNS), PROCEDURAL_TEXTURES, p=weights / weights.sum())
    made = [np.clip(_PATTERNS[kind][0](rng), 0, 255).astype(np.uint8) for kind in kinds]
    return tuple(_photographs() + made)


def recolor(texture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random member of a texture's family: channels permuted, contrast and tone changed by a look-up table."""
    ramp = np.arange(256, dtype=np.float32)
    contrast = float(rng.choice([1.0, rng.uniform(0.15, 1.3)]))
    offset = rng.uniform(-40, 40, 3) * float(rng.random() < 0.7)
    level = float(rng.uniform(40, 215)) if contrast < 0.8 else 128.0
    table = np.clip((ramp[:, None] - 128.0) * contrast + level + offset, 0, 255).astype(np.uint8)
    if rng.random() < 0.5:
        order = rng.permutation(3)
        permuted = np.empty_like(texture)
        cv2.mixChannels([texture], [permuted], [int(v) for pair in zip(order, range(3), strict=True) for v in pair])
        texture = permuted
    if rng.random() < 0.15:
        table = table[::-1]
    if rng.random() < 0.3:
        texture = cv2.cvtColor(cv2.extractChannel(texture, 0), cv2.COLOR_GRAY2RGB)
    return cv2.LUT(texture, np.ascontiguousarray(table)[:, None, :])
