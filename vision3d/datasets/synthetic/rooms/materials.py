# SPDX-License-Identifier: Apache-2.0
"""Materials of rooms, and the atlas that holds their textures at every scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np

from vision3d.datasets.synthetic.textures import TEXTURE_SIZE, fractal_noise, recolor, texture_library

_LEVELS = 8  # 512, 256 ... 4
_TILE = (TEXTURE_SIZE, TEXTURE_SIZE + TEXTURE_SIZE // 2)  # rows, columns of one texture with its smaller copies
_TILES_A_ROW = 6
_GAMMA = 2.2


@dataclass(frozen=True)
class Material:
    """How a surface looks.

    Attributes:
        texture: number of the texture in the room's atlas.
        density: texels a metre.
        tint: factor on the texture's linear colour.
        specular: strength of the highlights, 0 for a matt surface.
        shininess: exponent of the highlights.
        mirror: share of the light that comes by mirror reflection.
        glass: share of the light that comes through the surface, undistorted.
        emission: light that the surface gives itself, as a factor on its colour.
    """

    texture: int = 0
    density: float = 256.0
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)
    specular: float = 0.0
    shininess: float = 30.0
    mirror: float = 0.0
    glass: float = 0.0
    emission: float = 0.0


class TextureAtlas:
    """Textures in one picture, each with its halved copies, so that one call samples any mixture of them.

    Args:
        textures: [512, 512, 3] uint8 sRGB; they repeat by reflection.
    """

    def __init__(self, textures: Sequence[np.ndarray]) -> None:
        rows = -(-len(textures) // _TILES_A_ROW)
        self.picture = np.zeros((rows * _TILE[0], min(len(textures), _TILES_A_ROW) * _TILE[1], 3), np.uint8)
        for number, texture in enumerate(textures):
            top, left = (number // _TILES_A_ROW) * _TILE[0], (number % _TILES_A_ROW) * _TILE[1]
            level = texture
            for size, x, y in zip(*_level_places(), strict=True):
                self.picture[top + y : top + y + size, left + x : left + x + size] = level
                level = cv2.resize(level, (max(size // 2, 1), max(size // 2, 1)), interpolation=cv2.INTER_AREA)

    def sample(self, texture: np.ndarray, uv: np.ndarray, footprint: np.ndarray) -> np.ndarray:
        """Linear colour [N, 3] float32 in 0..1.

        Args:
            texture: [N] numbers of textures.
            uv: [N, 2] texels.
            footprint: [N] width of a pixel in texels, which chooses the scale.
        """
        level = np.clip(np.log2(np.maximum(footprint, 1e-3)), 0, _LEVELS - 1.001).astype(np.float32)
        lower = level.astype(np.int32)
        weight = (level - lower)[:, None]
        near = self._at(texture, uv, lower)
        far = self._at(texture, uv, lower + 1)
        return np.asarray(near + weight * (far - near), np.float32)

    def _at(self, texture: np.ndarray, uv: np.ndarray, level: np.ndarray) -> np.ndarray:
        sizes, xs, ys = (np.array(values, np.int32) for values in _level_places())
        size = sizes[level].astype(np.float32)
        place = []
        for axis, corner, tile, count in ((0, xs, _TILE[1], True), (1, ys, _TILE[0], False)):
            inside = np.abs(np.mod(uv[:, axis] / TEXTURE_SIZE, 2.0) - 1.0)  # a reflected repetition
            number = texture % _TILES_A_ROW if count else texture // _TILES_A_ROW
            place.append(np.clip(inside * size - 0.5, 0, size - 1) + corner[level] + number * tile)
        x, y = (values.astype(np.float32) for values in place)
        width = 4096  # cv2 wants a picture, not a list
        padded = -(-len(x) // width) * width
        maps = [np.pad(values, (0, padded - len(x))).reshape(-1, width) for values in (x, y)]
        colors = cv2.remap(self.picture, maps[0], maps[1], cv2.INTER_LINEAR).reshape(-1, 3)[: len(x)]
        return _linear_table()[colors]


@lru_cache(maxsize=1)
def _linear_table() -> np.ndarray:
    return ((np.arange(256, dtype=np.float32) / 255.0) ** _GAMMA).astype(np.float32)


@lru_cache(maxsize=1)
def _level_places() -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Side, x and y inside its tile of each level."""
    sizes = tuple(TEXTURE_SIZE >> level for level in range(_LEVELS))
    xs = (0, *([TEXTURE_SIZE] * (_LEVELS - 1)))
    ys, y = [0], 0
    for size in sizes[1:]:
        ys.append(y)
        y += size
    return sizes, xs, tuple(ys)


@lru_cache(maxsize=1)
def _grounds() -> dict[str, tuple[np.ndarray, ...]]:
    """Bright grey textures of common surfaces, the same in every process; a tint colours them."""
    rng = np.random.default_rng(77_041)
    return {
        "paint": tuple(_paint(rng, strength) for strength in (2, 4, 8, 14)),
        "plaster": tuple(_paint(rng, strength) for strength in (10, 22, 36)),
        "wood": tuple(_wood(rng, planks) for planks in (1, 1, 4, 6, 8)),
        "cloth": tuple(_cloth(rng) for _ in range(5)),
    }


def _grey(value: np.ndarray) -> np.ndarray:
    return np.repeat(np.clip(value, 0, 255).astype(np.uint8)[..., None], 3, axis=2)


def _paint(rng: np.random.Generator, strength: float) -> np.ndarray:
    coarse = fractal_noise(rng, TEXTURE_SIZE, 3, 7, 0.75) - 0.5
    return _grey(228 + strength * (2.2 * coarse + 0.35 * rng.standard_normal((TEXTURE_SIZE, TEXTURE_SIZE))))


def _wood(rng: np.random.Generator, planks: int) -> np.ndarray:
    size = TEXTURE_SIZE
    result = np.zeros((size, size), np.float32)
    height = -(-size // planks)
    for start in range(0, size, height):
        noise = fractal_noise(rng, size, 4, 6, 0.7)
        grain = cv2.resize(noise[:, : size // 10], (size, size), interpolation=cv2.INTER_LINEAR)
        rings = 0.5 + 0.5 * np.sin(grain * float(rng.uniform(25, 60)))
        rows = slice(start, min(start + height, size))
        result[rows] = (float(rng.uniform(150, 215)) + 30 * grain + 22 * rings)[rows]
        if planks > 1:
            result[start : start + 2] *= 0.35
            joint = int(rng.integers(0, size))
            result[rows, joint : joint + 2] *= 0.4
    return _grey(result)


def _cloth(rng: np.random.Generator) -> np.ndarray:
    y, x = np.mgrid[0:TEXTURE_SIZE, 0:TEXTURE_SIZE].astype(np.float32)
    period = float(rng.uniform(4, 9))
    weave = np.sin(2 * np.pi * x / period) * np.sin(2 * np.pi * y / period)
    stripes = np.sign(np.sin(2 * np.pi * x / float(rng.uniform(30, 120)))) * float(rng.choice([0, 0, 14, 30]))
    return _grey(200 + 14 * weave + stripes + 40 * (fractal_noise(rng, TEXTURE_SIZE, 6, 6, 0.8) - 0.5))


class Palette:
    """The textures and colours of a room; pieces of furniture draw their materials from it.

    Args:
        rng: the room's generator.
        weak_texture: share of plain paint.
        specular: probability of highlights.
        patterns: textures taken from the library.
    """

    def __init__(self, rng: np.random.Generator, weak_texture: float, specular: float, patterns: int = 12) -> None:
        self.rng, self.weak_texture, self.specular = rng, weak_texture, specular
        self.textures: list[np.ndarray] = []
        self.kinds: dict[str, list[int]] = {}
        for kind, choices in _grounds().items():
            self.kinds[kind] = []
            for index in rng.permutation(len(choices))[:2]:
                self.kinds[kind].append(self._append(choices[int(index)]))
        library = texture_library()
        chosen = rng.permutation(len(library))[:patterns]
        self.kinds["pattern"] = [self._append(recolor(library[int(index)], rng)) for index in chosen]

    def _append(self, texture: np.ndarray) -> int:
        self.textures.append(texture)
        return len(self.textures) - 1

    def color(self, kind: str) -> tuple[float, float, float]:
        """A plausible linear colour: brown wood, pale walls, anything for paint."""
        rng = self.rng
        if kind == "wood":
            value, warm = float(np.exp(rng.uniform(np.log(0.12), np.log(0.95)))), float(rng.uniform(0.4, 1.0))
            return value, value * (1 - 0.35 * warm), value * (1 - 0.65 * warm)
        value = float(rng.uniform(0.45, 1.0) if kind == "plaster" else np.exp(rng.uniform(np.log(0.06), 0.0)))
        strength = float(rng.beta(1.2, 4.0) if kind == "plaster" else rng.beta(1.2, 1.6))
        hue = np.clip(np.abs((rng.uniform(0, 6) + np.array([0.0, 4.0, 2.0])) % 6 - 3) - 1, 0, 1)
        red, green, blue = (value * (1 - strength + strength * hue)).tolist()
        return red, green, blue

    def material(self, *kinds: str, glossy: float | None = None) -> Material:
        """A material of one of the kinds (paint, plaster, wood, cloth, pattern, metal, any)."""
        rng = self.rng
        kind = str(rng.choice(kinds))
        if kind == "any":
            other = str(rng.choice(["pattern", "pattern", "wood", "cloth"]))
            kind = "paint" if rng.random() < self.weak_texture else other
        gloss = self.specular if glossy is None else glossy
        specular = float(rng.uniform(0.05, 0.6)) if rng.random() < gloss else 0.0
        shininess = float(np.exp(rng.uniform(np.log(8), np.log(200))))
        if kind == "metal":
            grey = float(rng.uniform(0.04, 0.6))
            return Material(self._pick("paint"), 300.0, (grey, grey, grey), 0.5 if gloss else 0.0, shininess)
        density = float(np.exp(rng.uniform(np.log(150), np.log(900))))
        tint = (1.0, 1.0, 1.0) if kind == "pattern" else self.color(kind)
        return Material(self._pick(kind), density, tint, specular, shininess)

    def _pick(self, kind: str) -> int:
        return int(self.rng.choice(self.kinds[kind]))
