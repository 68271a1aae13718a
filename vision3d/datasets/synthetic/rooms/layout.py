# SPDX-License-Identifier: Apache-2.0
"""Random furnished rooms: what stands where."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vision3d.datasets.synthetic.rooms import things, walls
from vision3d.datasets.synthetic.rooms.furniture import FURNITURE, Piece, Top
from vision3d.datasets.synthetic.rooms.materials import Material, Palette
from vision3d.datasets.synthetic.rooms.meshes import Mesh, box, curtain, cylinder, lathe, quad, sphere, tube, turn
from vision3d.datasets.synthetic.rooms.options import RoomOptions
from vision3d.datasets.synthetic.rooms.room import Light, Part, Room, assemble
from vision3d.datasets.synthetic.rooms.walls import Wall

_ATTEMPTS = 12
_GAP = 0.06  # metres between pieces


def make_room(seed: int, options: RoomOptions | None = None) -> Room:
    """Make the furnished room of a seed.

    Args:
        seed: the same seed and options give the same room.
        options: what rooms look like.

    Returns:
        A closed room; z is up, the floor is [0, size x] x [0, size y] at z = 0.
    """
    return _Builder(seed, options or RoomOptions()).build()


class _Builder:
    """Collects the parts of one room."""

    def __init__(self, seed: int, options: RoomOptions) -> None:
        self.seed, self.options = seed, options
        self.rng = rng = np.random.default_rng([seed, 90_217])
        self.palette = Palette(rng, options.weak_texture, options.specular)
        self.width, self.depth = (float(rng.uniform(*options.width)) for _ in range(2))
        self.height = float(rng.uniform(*options.height))
        self.parts: list[Part] = []
        self.objects = ["room"]
        self.lights: list[Light] = []
        self.taken: list[tuple[float, float, float, float]] = []
        self.glass = things.glass_material(self.palette) if rng.random() < options.glass else None

    def build(self) -> Room:
        self.walls = walls.room_walls(self.width, self.depth)
        self._choose_openings()
        self._shell()
        self._ceiling_lamps()
        self._furnish()
        self._decorate_walls()
        self._loose_things()
        rng, options = self.rng, self.options
        level = float(np.exp(rng.uniform(np.log(0.12), np.log(0.6))))
        ambient = level * (1 + rng.uniform(-0.08, 0.08, 3))
        return assemble(
            self.parts, self.palette.textures, self.lights, ambient, self.objects,
            size=(self.width, self.depth, self.height), effects=_draw_effects(rng, options), seed=self.seed,
        )  # fmt: skip

    def _add(self, name: str, parts: list[tuple[Mesh, Material]]) -> None:
        if name:
            self.objects.append(name)
        for mesh, material in parts:
            offset = self.rng.uniform(0, 4, 2)
            self.parts.append(Part(mesh.textured_from(*offset), material, len(self.objects) - 1 if name else 0))

    def _choose_openings(self) -> None:
        rng = self.rng
        for index, wall in enumerate(self.walls):
            kind = str(rng.choice(["window", "doorway", "niche", ""], p=_shares(self.options.window)))
            if kind:
                opening = walls.random_opening(rng, kind, wall.length, self.height)
                self.walls[index] = replace(wall, opening=opening)

    def _shell(self) -> None:
        rng, palette = self.rng, self.palette
        w, d, h = self.width, self.depth, self.height
        ground = palette.material("wood", "wood", "pattern", "cloth", "plaster", "any")
        paint = palette.material("plaster", "plaster", "paint", "any", glossy=0.1)
        second = palette.material("pattern", "plaster", "any", glossy=0.2) if rng.random() < 0.5 else paint
        above = replace(palette.material("paint", "plaster", glossy=0.0), tint=(0.8, 0.8, 0.78))
        self._add(
            "", [(quad((0, 0, 0), (w, 0, 0), (0, d, 0)), ground), (quad((0, d, h), (w, 0, 0), (0, -d, 0)), above)]
        )
        special = int(rng.integers(4))
        for index, wall in enumerate(self.walls):
            mesh, back = walls.wall_mesh(wall, h)
            self._add("", [(mesh, second if index == special else paint)])
            if back is not None and wall.opening is not None:
                self._opening(wall, wall.opening, back)
        if rng.random() < 0.7:
            self._add(
                "skirting",
                [(walls.skirting(self.walls, float(rng.uniform(0.04, 0.12))), palette.material("wood", "paint"))],
            )
        if rng.random() < 0.2:
            self._pillar()

    def _opening(self, wall: Wall, hole: walls.Opening, back: Mesh) -> None:
        rng, palette = self.rng, self.palette
        if hole.kind != "window":
            self._add("", [(back, palette.material("any", "plaster", "pattern"))])
            if hole.kind == "doorway":
                self._keep_free(wall, hole)
            return
        view = walls.outdoor_light(palette)
        self._add(
            "window", [(back, view), (walls.window_frame(wall, hole, palette), palette.material("wood", "paint"))]
        )
        x, y, z = wall.point((hole.left + hole.right) / 2, 0.25, (hole.bottom + hole.top) / 2)
        strength = float(rng.uniform(0.5, 2.0)) * view.emission / 2
        self.lights.append(Light((x, y, z), (0.9 * strength, strength, 1.1 * strength), 0.3))
        if rng.random() < 0.5:
            cloth = palette.material("cloth", "pattern", "any", glossy=0.1)
            length = self.height - 0.15 - (0.05 if rng.random() < 0.6 else hole.bottom - 0.1)
            for side in (hole.left - 0.15, hole.right + 0.15):
                wide = float(rng.uniform(0.3, 0.6))
                if wide / 2 < side < wall.length - wide / 2:
                    sheet = curtain(rng, wide, length).moved(rotation=turn(wall.angle))
                    self._add("curtain", [(sheet.moved(*wall.point(side, 0.1, self.height - 0.1 - length)), cloth)])

    def _keep_free(self, wall: Wall, hole: walls.Opening) -> None:
        (x0, y0, _), (x1, y1, _) = wall.point(hole.left, 0), wall.point(hole.right, 0.8)
        self.taken.append((min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)))

    def _pillar(self) -> None:
        rng, side = self.rng, float(self.rng.uniform(0.2, 0.45))
        x, y = float(rng.uniform(0.8, self.width - 0.8)), float(rng.uniform(0.8, self.depth - 0.8))
        mesh = box(side, side, self.height) if rng.random() < 0.6 else cylinder(side / 2, self.height, 48)
        self._add("pillar", [(mesh.moved(x, y), self.palette.material("plaster", "any"))])
        self.taken.append((x - side / 2, y - side / 2, x + side / 2, y + side / 2))

    def _ceiling_lamps(self) -> None:
        rng, palette = self.rng, self.palette
        count = int(rng.integers(1, 4))
        warm = np.array([1.0, float(rng.uniform(0.75, 0.98)), float(rng.uniform(0.5, 0.98))])
        glow = replace(
            palette.material("paint", glossy=0.0), tint=(1.0, 0.92, 0.8), emission=float(rng.uniform(1.5, 4.0))
        )
        hanging, radius = rng.random() < 0.6, float(rng.uniform(0.1, 0.25))
        for _ in range(count):
            x, y = float(rng.uniform(0.2, 0.8)) * self.width, float(rng.uniform(0.2, 0.8)) * self.depth
            drop = float(rng.uniform(0.3, 0.8)) if hanging else radius * 0.3
            z = self.height - drop
            parts = [(sphere(radius, 3).scaled(1, 1, 0.35 if not hanging else 1).moved(x, y, z), glow)]
            if hanging:
                parts.append((tube(np.array([[x, y, z], [x, y, self.height]]), 0.006), palette.material("metal")))
                if rng.random() < 0.6:
                    shade = lathe([(radius * 1.5, 0.0), (radius * 0.3, radius * 1.2)], 40).moved(x, y, z)
                    parts = [
                        (shade, palette.material("paint", "metal")),
                        (sphere(0.05, 3).moved(x, y, z), glow),
                        parts[1],
                    ]
            self._add("lamp", parts)
            color = warm * float(rng.uniform(1.2, 3.5)) / count**0.6 * (self.width * self.depth / 12)
            red, green, blue = color.tolist()
            self.lights.append(Light((x, y, z - 0.02), (red, green, blue), radius * 1.6 + 0.05))

    def _furnish(self) -> None:
        rng = self.rng
        weights = np.array([weight for _, weight in FURNITURE])
        low, high = self.options.furniture
        if rng.random() < 0.4:
            w, d = float(rng.uniform(0.8, self.width - 0.8)), float(rng.uniform(0.8, self.depth - 0.8))
            rug = box(w, d, 0.012).moved(self.width / 2, self.depth / 2)
            self._add("rug", [(rug, self.palette.material("cloth", "pattern", glossy=0.0))])
        for _ in range(int(rng.integers(low, high + 1))):
            kind = FURNITURE[int(rng.choice(len(FURNITURE), p=weights / weights.sum()))][0]
            self._place(kind(self.palette))
        if self.glass is not None and rng.random() < 0.5:
            pane = things.glass_pane(self.palette, float(rng.uniform(0.7, 1.4)), float(rng.uniform(1.0, 2.0)))
            self._place(pane)

    def _place(self, piece: Piece) -> None:
        """Put a piece where it fits, or leave it out."""
        rng = self.rng
        for _ in range(_ATTEMPTS):
            if piece.wall:
                wall = self.walls[int(rng.integers(4))]
                if wall.length < piece.size[0] + 0.1:
                    continue
                along = float(rng.uniform(piece.size[0] / 2 + 0.03, wall.length - piece.size[0] / 2 - 0.03))
                angle = wall.angle
                x, y, _ = wall.point(along, piece.size[1] / 2 + 0.03)
            else:
                angle = float(rng.integers(4)) * np.pi / 2 + float(rng.normal(0, 0.3)) * float(rng.random() < 0.5)
                x, y = float(rng.uniform(0.3, self.width - 0.3)), float(rng.uniform(0.3, self.depth - 0.3))
            a, b = abs(np.cos(angle)), abs(np.sin(angle))
            half = (piece.size[0] * a + piece.size[1] * b) / 2, (piece.size[1] * a + piece.size[0] * b) / 2
            spot = (x - half[0], y - half[1], x + half[0], y + half[1])
            if self._is_free(spot):
                self.taken.append(spot)
                self._put(piece.placed(x, y, 0.0, angle))
                return

    def _is_free(self, spot: tuple[float, float, float, float]) -> bool:
        x0, y0, x1, y1 = spot
        if x0 < 0.015 or y0 < 0.015 or x1 > self.width - 0.015 or y1 > self.depth - 0.015:
            return False
        return all(x1 + _GAP < a or x0 - _GAP > c or y1 + _GAP < b or y0 - _GAP > d for a, b, c, d in self.taken)

    def _put(self, piece: Piece) -> None:
        self._add(piece.name, piece.parts)
        for lamp in piece.lamps:
            color = (lamp.strength, 0.8 * lamp.strength, 0.55 * lamp.strength)
            if len(self.lights) < 5:
                self.lights.append(Light(lamp.position, color, lamp.radius))
        for top in piece.tops:
            self._load(top)

    def _load(self, top: Top) -> None:
        """Put small things on a level place."""
        rng = self.rng
        spots: list[tuple[float, float, float]] = []
        area = 4 * top.half_width * top.half_depth
        for _ in range(int(rng.integers(0, 2 + min(int(area * 9), 6)))):
            thing = things.small_thing(self.palette, min(top.headroom, self.height - top.z - 0.05), self.glass)
            radius = max(thing.size) / 2
            if radius > min(top.half_width, top.half_depth) + 0.06:
                continue
            x, y = (float(rng.uniform(-1, 1)) * max(half - radius, 0.0) for half in (top.half_width, top.half_depth))
            if all(np.hypot(x - a, y - b) > radius + r for a, b, r in spots):
                spots.append((x, y, radius))
                self._put(thing.placed(top.x + x, top.y + y, top.z, float(rng.uniform(-0.6, 0.6))))

    def _decorate_walls(self) -> None:
        rng = self.rng
        mirror = rng.random() < self.options.mirror
        for wall in self.walls:
            hanging: list[tuple[float, float]] = []
            for _ in range(int(rng.integers(0, 4))):
                width, height = float(rng.uniform(0.2, 1.1)), float(rng.uniform(0.2, 0.9))
                along = float(rng.uniform(0.2, wall.length - 0.2))
                span = (along - width / 2, along + width / 2)
                hole = wall.opening
                blocked = [] if hole is None else [(hole.left - 0.05, hole.right + 0.05)]
                if (
                    span[0] < 0.05
                    or span[1] > wall.length - 0.05
                    or any(span[0] < b and span[1] > a for a, b in hanging + blocked)
                ):
                    continue
                hanging.append(span)
                z = float(rng.uniform(0.9, max(self.height - height - 0.15, 0.95)))
                make, mirror = (things.mirror if mirror else things.picture), False
                self._put(make(self.palette, width, height).placed(*wall.point(along, 0.0005, z), wall.angle))

    def _loose_things(self) -> None:
        """Cables on the floor, and now and then one that hangs through the room."""
        rng = self.rng
        for _ in range(int(rng.integers(0, 3))):
            s = np.linspace(0, 1, 24)[:, None]
            ends = rng.uniform((0.2, 0.2), (self.width - 0.2, self.depth - 0.2), (2, 2))
            wave = 0.15 * np.sin(s * rng.uniform(4, 12, 2) + rng.uniform(0, 6, 2))
            path = np.concatenate([ends[0] + s * (ends[1] - ends[0]) + wave, np.full_like(s, 0.02)], axis=1)
            path[:, :2] = np.clip(path[:, :2], 0.05, (self.width - 0.05, self.depth - 0.05))
            radius = float(rng.uniform(0.003, 0.008))
            if rng.random() < 0.3:
                sag = float(rng.uniform(0.1, 0.4))
                path[:, 2] = self.height - 0.1 - sag * 4 * (s * (1 - s))[:, 0]
            self._add("cable", [(tube(path, radius), self.palette.material("paint", "metal"))])


def _shares(window: float) -> list[float]:
    """Probabilities of a window, a doorway, a niche and nothing at one wall, so that windows come up as asked."""
    share = 1 - (1 - window) ** 0.25
    rest = 1 - share
    return [share, 0.16 * rest, 0.12 * rest, 0.72 * rest]


def _draw_effects(rng: np.random.Generator, options: RoomOptions) -> dict[str, float]:
    """Brightness of the photograph, strength of the glow and of the ghosts."""
    kind = float(rng.random())
    level = float(rng.uniform(0.3, 0.5))
    if kind < options.dark:
        level = float(rng.uniform(0.04, 0.14))
    elif kind < options.dark + options.over_exposed:
        level = float(rng.uniform(0.8, 1.6))
    glow = float(rng.uniform(0.1, 0.4)) if rng.random() < options.bloom else 0.0
    flare = float(rng.uniform(0.1, 0.4)) if rng.random() < options.lens_flare else 0.0
    return {"level": level, "bloom": glow, "flare": flare}
