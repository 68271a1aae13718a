# SPDX-License-Identifier: Apache-2.0
"""The shell of a room: floor, ceiling, walls with windows, doorways and niches, pillars and skirting boards."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vision3d.datasets.synthetic.rooms.materials import Material, Palette
from vision3d.datasets.synthetic.rooms.meshes import Mesh, box, merged, quad, turn


@dataclass(frozen=True)
class Opening:
    """A recess of a wall: a niche, doorway or window; metres along the wall, up, and deep."""

    kind: str
    left: float
    right: float
    bottom: float
    top: float
    depth: float


@dataclass(frozen=True)
class Wall:
    """A wall seen from inside: its left lower corner, the direction along it, and the direction into the room."""

    origin: tuple[float, float]
    along: tuple[float, float]
    inward: tuple[float, float]
    length: float
    opening: Opening | None = None

    @property
    def angle(self) -> float:
        """Turn of a piece that faces -y so that its back is at this wall."""
        return float(np.arctan2(self.inward[1], self.inward[0]) + np.pi / 2)

    def point(self, along: float, inward: float = 0.0, z: float = 0.0) -> tuple[float, float, float]:
        """World point at metres along and in front of the wall."""
        x = self.origin[0] + along * self.along[0] + inward * self.inward[0]
        y = self.origin[1] + along * self.along[1] + inward * self.inward[1]
        return x, y, z


def room_walls(width: float, depth: float) -> list[Wall]:
    """The four walls of a floor [0, width] x [0, depth]; ``along`` runs to the right as seen from inside."""
    return [
        Wall((0.0, depth), (1.0, 0.0), (0.0, -1.0), width),
        Wall((width, depth), (0.0, -1.0), (-1.0, 0.0), depth),
        Wall((width, 0.0), (-1.0, 0.0), (0.0, 1.0), width),
        Wall((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), depth),
    ]


def random_opening(rng: np.random.Generator, kind: str, length: float, height: float) -> Opening | None:
    """An opening that fits a wall, or None."""
    wide = {"window": (0.8, 2.4), "doorway": (0.75, 1.1), "niche": (0.4, 1.4)}[kind]
    width = min(float(rng.uniform(*wide)), length - 0.6)
    if width < 0.4:
        return None
    left = float(rng.uniform(0.3, length - width - 0.3 + 1e-9))
    if kind == "doorway":
        bottom, top, depth = 0.0, min(2.05, height - 0.2), float(rng.uniform(0.8, 3.0))
    elif kind == "window":
        bottom, top, depth = (
            float(rng.uniform(0.4, 1.0)),
            height - float(rng.uniform(0.2, 0.5)),
            float(rng.uniform(0.1, 0.3)),
        )
    else:
        bottom, depth = float(rng.uniform(0.3, 1.2)), float(rng.uniform(0.12, 0.45))
        top = min(bottom + float(rng.uniform(0.4, 1.2)), height - 0.2)
    return Opening(kind, left, left + width, bottom, top, depth)


def _panel(wall: Wall, u0: float, u1: float, z0: float, z1: float, inward: float = 0.0) -> Mesh:
    """A piece of the wall that faces the room (``along x up`` points inward)."""
    up = (0.0, 0.0, z1 - z0)
    first = ((u1 - u0) * wall.along[0], (u1 - u0) * wall.along[1], 0.0)
    return quad(wall.point(u0, inward, z0), first, up)


def wall_mesh(wall: Wall, height: float) -> tuple[Mesh, Mesh | None]:
    """The wall with the inner sides of its opening, and the back of the opening."""
    hole = wall.opening
    if hole is None:
        return _panel(wall, 0, wall.length, 0, height), None
    meshes = [_panel(wall, 0, hole.left, 0, height), _panel(wall, hole.right, wall.length, 0, height)]
    if hole.bottom > 0:
        meshes.append(_panel(wall, hole.left, hole.right, 0, hole.bottom))
    meshes.append(_panel(wall, hole.left, hole.right, hole.top, height))
    deep = (-hole.depth * wall.inward[0], -hole.depth * wall.inward[1], 0.0)
    back_to_front = tuple(-value for value in deep)
    up, wide = (0.0, 0.0, hole.top - hole.bottom), hole.right - hole.left
    along = (wide * wall.along[0], wide * wall.along[1], 0.0)
    meshes += [
        quad(wall.point(hole.left, 0, hole.bottom), deep, up),
        quad(wall.point(hole.right, -hole.depth, hole.bottom), back_to_front, up),
        quad(wall.point(hole.left, 0, hole.bottom), along, deep),
        quad(wall.point(hole.left, -hole.depth, hole.top), along, back_to_front),
    ]
    return merged(meshes), _panel(wall, hole.left, hole.right, hole.bottom, hole.top, -hole.depth)


def window_frame(wall: Wall, hole: Opening, palette: Palette) -> Mesh:
    """Bars in front of a window's back."""
    rng, width, height = palette.rng, hole.right - hole.left, hole.top - hole.bottom
    thick = float(rng.uniform(0.03, 0.07))
    uprights = np.linspace(thick / 2, width - thick / 2, int(rng.integers(2, 5)))
    bars = [box(thick, 0.04, height).moved(x - width / 2) for x in uprights]
    levels = np.linspace(0, height - thick, int(rng.integers(2, 4)))
    bars += [box(width, 0.035, thick).moved(z=z) for z in levels]
    middle = wall.point((hole.left + hole.right) / 2, -hole.depth + 0.03, hole.bottom)
    return merged(bars).moved(*middle, rotation=turn(wall.angle))


def skirting(walls: list[Wall], size: float) -> Mesh:
    """Thin boards along the foot of the walls, interrupted at doorways."""
    boards = []
    for wall in walls:
        spans = [(0.0, wall.length)]
        if wall.opening is not None and wall.opening.bottom < size:
            spans = [(0.0, wall.opening.left), (wall.opening.right, wall.length)]
        for start, end in spans:
            sides = sorted((wall.point(start), wall.point(end, 0.015)))
            (x0, y0, _), (x1, y1, _) = sides
            boards.append(box(abs(x1 - x0), abs(y1 - y0), size).moved((x0 + x1) / 2, (y0 + y1) / 2))
    return merged(boards)


def outdoor_light(palette: Palette) -> Material:
    """The bright view through a window."""
    bright = float(palette.rng.uniform(1.5, 6.0))
    return replace(palette.material("pattern", "plaster", glossy=0.0), tint=(0.85, 0.95, 1.0), emission=bright)
