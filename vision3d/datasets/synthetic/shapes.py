# SPDX-License-Identifier: Apache-2.0
"""Outlines of synthetic objects: anti-aliased rasters in left-view coordinates."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from vision3d.datasets.synthetic.textures import fractal_noise

_SHIFT = 4  # fractional bits of OpenCV's drawing functions


def _fixed(points: np.ndarray) -> np.ndarray:
    return np.round(points * (1 << _SHIFT)).astype(np.int32)


def _fill(mask: np.ndarray, points: np.ndarray, value: int = 255) -> None:
    cv2.fillPoly(mask, [_fixed(points)], value, cv2.LINE_AA, _SHIFT)


def _outline(rng: np.random.Generator, mask: np.ndarray, vertices: int, roughness: float) -> None:
    height, width = mask.shape
    angles = np.sort(rng.uniform(0, 2 * np.pi, vertices))
    radius = rng.uniform(1 - roughness, 1.0, vertices)
    x = width / 2 + radius * np.cos(angles) * (width / 2 - 2)
    y = height / 2 + radius * np.sin(angles) * (height / 2 - 2)
    _fill(mask, np.stack([x, y], -1))


def _polygon(rng: np.random.Generator, mask: np.ndarray) -> None:
    _outline(rng, mask, int(rng.integers(3, 9)), 0.5)


def _star(rng: np.random.Generator, mask: np.ndarray) -> None:
    _outline(rng, mask, int(rng.integers(10, 40)), 0.85)


def _ellipse(rng: np.random.Generator, mask: np.ndarray) -> None:
    angles = np.linspace(0, 2 * np.pi, 72, endpoint=False)
    height, width = mask.shape
    x = width / 2 + np.cos(angles) * (width / 2 - 2)
    y = height / 2 + np.sin(angles) * (height / 2 - 2)
    _fill(mask, np.stack([x, y], -1))


def _rectangle(rng: np.random.Generator, mask: np.ndarray) -> None:
    height, width = mask.shape
    angle = float(rng.choice([0.0, rng.uniform(-0.4, 0.4)]))
    scale = 0.5 / (abs(np.cos(angle)) + abs(np.sin(angle)))
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * np.array([width - 4, height - 4]) * scale
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    _fill(mask, corners @ turn.T + np.array([width / 2, height / 2]))


def _blob(rng: np.random.Generator, mask: np.ndarray) -> None:
    height, width = mask.shape
    side = max(height, width)
    noise = cv2.resize(fractal_noise(rng, 64, 3, 3, 0.5), (side, side), interpolation=cv2.INTER_CUBIC)[:height, :width]
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j].astype(np.float32)
    field = noise + 0.55 - (x**2 + y**2) * 0.9
    mask[:] = np.clip((field - 0.5) * side * 4 + 128, 0, 255).astype(np.uint8)


def _bars(rng: np.random.Generator, mask: np.ndarray) -> None:
    """Thin bars: poles, wires, fences, slats, spokes."""
    height, width = mask.shape
    center = np.array([width / 2, height / 2])
    reach = float(np.hypot(width, height))
    kind = rng.random()
    thickness = float(rng.uniform(1.2, 7.0))
    if kind < 0.3:  # spokes
        angles = np.arange(int(rng.integers(3, 14))) * np.pi / max(int(rng.integers(3, 14)), 3) + rng.uniform(0, 3)
        offsets: np.ndarray = np.zeros(len(angles))
    else:  # parallel bars, one direction or two
        count = int(rng.integers(1, 9))
        first = float(rng.choice([0.0, np.pi / 2, rng.uniform(0, np.pi)], p=[0.25, 0.4, 0.35]))
        offsets = (np.arange(count) - (count - 1) / 2) * max(thickness * rng.uniform(2, 7), 6.0)
        angles = np.full(count, first)
        if kind > 0.75:
            angles = np.concatenate([angles, angles + np.pi / 2])
            offsets = np.concatenate([offsets, offsets])
    for angle, offset in zip(angles, offsets, strict=True):
        along = np.array([np.cos(angle), np.sin(angle)])
        across = np.array([-along[1], along[0]])
        middle = center + offset * across
        ends = [middle - along * reach, middle + along * reach]
        half = across * thickness / 2
        _fill(mask, np.stack([ends[0] - half, ends[0] + half, ends[1] + half, ends[1] - half]))
    if rng.random() < 0.5:
        keep = np.zeros_like(mask)
        _ellipse(rng, keep)
        np.minimum(mask, keep, out=mask)


def _ring(rng: np.random.Generator, mask: np.ndarray) -> None:
    _ellipse(rng, mask)
    height, width = mask.shape
    inner = float(rng.uniform(0.6, 0.93))
    hole = np.zeros((max(int(height * inner), 4), max(int(width * inner), 4)), np.uint8)
    _ellipse(rng, hole)
    top, left = (height - hole.shape[0]) // 2, (width - hole.shape[1]) // 2
    view = mask[top : top + hole.shape[0], left : left + hole.shape[1]]
    np.minimum(view, 255 - hole, out=view)


def _punch_holes(rng: np.random.Generator, mask: np.ndarray) -> None:
    height, width = mask.shape
    for _ in range(int(rng.integers(1, 6))):
        h, w = int(height * rng.uniform(0.08, 0.35)), int(width * rng.uniform(0.08, 0.35))
        if min(h, w) < 6:
            continue
        hole = np.zeros((h, w), np.uint8)
        (_ellipse if rng.random() < 0.5 else _rectangle)(rng, hole)
        top, left = int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1))
        view = mask[top : top + h, left : left + w]
        np.minimum(view, 255 - hole, out=view)


_SHAPES: tuple[tuple[Callable[[np.random.Generator, np.ndarray], None], float], ...] = (
    (_polygon, 0.17), (_star, 0.07), (_ellipse, 0.16), (_rectangle, 0.22), (_blob, 0.12), (_bars, 0.2), (_ring, 0.06),
)  # fmt: skip
_WEIGHTS = np.array([weight for _, weight in _SHAPES]) / sum(weight for _, weight in _SHAPES)


def random_mask(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A random outline filling ``height`` x ``width``: uint8, 255 inside, 0 outside, grey on the edge."""
    mask = np.zeros((height, width), np.uint8)
    shape = _SHAPES[int(rng.choice(len(_SHAPES), p=_WEIGHTS))][0]
    shape(rng, mask)
    if rng.random() < 0.2 and shape is not _bars:
        _punch_holes(rng, mask)
    return mask
