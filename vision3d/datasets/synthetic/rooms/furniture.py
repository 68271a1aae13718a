# SPDX-License-Identifier: Apache-2.0
"""Pieces that stand on the floor: tables, chairs, shelves, cabinets, sofas, beds, plants, lamps, lumps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from vision3d.datasets.synthetic.rooms.materials import Material, Palette
from vision3d.datasets.synthetic.rooms.meshes import (
    Mesh,
    blob,
    box,
    capsule,
    cylinder,
    lathe,
    merged,
    rounded_box,
    sphere,
    torus,
    tube,
    turn,
)


@dataclass(frozen=True)
class Top:
    """A level rectangle that things stand on: centre, half sizes, height, free height above it, metres."""

    x: float
    y: float
    half_width: float
    half_depth: float
    z: float
    headroom: float = 0.6


@dataclass(frozen=True)
class Lamp:
    """A light of a piece: place, reach of its own shade (which casts no shadow of it), strength."""

    position: tuple[float, float, float]
    radius: float
    strength: float


@dataclass
class Piece:
    """A thing around the origin that stands on z = 0 and faces -y.

    Attributes:
        name: what it is.
        parts: meshes with their materials.
        size: (width, depth) of its place on the floor.
        tops: where small things can stand.
        lamps: its lights.
        wall: it stands with its back (+y) to a wall.
    """

    name: str
    parts: list[tuple[Mesh, Material]]
    size: tuple[float, float]
    tops: list[Top] = field(default_factory=list)
    lamps: list[Lamp] = field(default_factory=list)
    wall: bool = False

    def placed(self, x: float, y: float, z: float = 0.0, angle: float = 0.0) -> Piece:
        """The piece turned about z and moved."""
        rotation = turn(angle)
        tops = []
        for top in self.tops:
            cx, cy, _ = rotation @ (top.x, top.y, 0.0)
            a, b = abs(np.cos(angle)), abs(np.sin(angle))  # the largest level rectangle of right-angled turns
            half = (top.half_width * a + top.half_depth * b, top.half_depth * a + top.half_width * b)
            if min(a, b) > 0.05:
                half = (min(half) * 0.6, min(half) * 0.6)
            tops.append(replace(top, x=cx + x, y=cy + y, half_width=half[0], half_depth=half[1], z=top.z + z))
        lamps = []
        for lamp in self.lamps:
            px, py, pz = (rotation @ np.array(lamp.position) + (x, y, z)).tolist()
            lamps.append(replace(lamp, position=(px, py, pz)))
        parts = [(mesh.moved(x, y, z, rotation=rotation), material) for mesh, material in self.parts]
        return Piece(self.name, parts, self.size, tops, lamps, self.wall)


def _legs(width: float, depth: float, height: float, thickness: float, round_legs: bool) -> Mesh:
    x, y = width / 2 - thickness, depth / 2 - thickness
    leg = cylinder(thickness / 2, height, 16) if round_legs else box(thickness, thickness, height)
    return merged([leg.moved(sx * x, sy * y) for sx in (-1, 1) for sy in (-1, 1)])


def table(palette: Palette) -> Piece:
    """A table, desk or low table on thin legs, square or round."""
    rng = palette.rng
    width, depth = float(rng.uniform(0.6, 1.8)), float(rng.uniform(0.5, 0.95))
    height, thick = (
        float(rng.choice([rng.uniform(0.35, 0.5), rng.uniform(0.68, 0.78)])),
        float(rng.uniform(0.015, 0.05)),
    )
    surface, frame = palette.material("wood", "any"), palette.material("wood", "metal", "paint")
    leg = float(rng.uniform(0.02, 0.07))
    if rng.random() < 0.25:
        radius = width / 2.4
        plate = cylinder(radius, thick, 64).moved(z=height - thick)
        foot = lathe([(radius * 0.6, 0.0), (radius * 0.55, 0.03), (leg, 0.06), (leg * 0.7, height - thick)], 32)
        half = radius * 0.65
        return Piece(
            "table", [(plate, surface), (foot, frame)], (2 * radius, 2 * radius), [Top(0, 0, half, half, height)]
        )
    parts = [(box(width, depth, thick).moved(z=height - thick), surface)]
    parts.append((_legs(width, depth, height - thick, leg, rng.random() < 0.5), frame))
    if rng.random() < 0.4:  # an apron below the plate
        parts.append((box(width - 2 * leg, depth - 2 * leg, 0.08).moved(z=height - thick - 0.08), frame))
    return Piece("table", parts, (width, depth), [Top(0, 0, width / 2 - 0.05, depth / 2 - 0.05, height)])


def chair(palette: Palette) -> Piece:
    """A chair with a back of slats or a board, or a stool."""
    rng = palette.rng
    width, height = float(rng.uniform(0.38, 0.5)), float(rng.uniform(0.42, 0.48))
    leg = float(rng.uniform(0.018, 0.04))
    frame, seat = palette.material("wood", "metal", "paint"), palette.material("wood", "cloth", "any")
    parts = [(_legs(width, width, height, leg, rng.random() < 0.5), frame)]
    parts.append((rounded_box(width, width, 0.05, 0.02).moved(z=height - 0.01), seat))
    if rng.random() < 0.8:
        top = float(rng.uniform(0.35, 0.6))
        side = width / 2 - leg
        bends = np.array([[0, side, height], [0, side + 0.03, height + top * 0.6], [0, side + 0.07, height + top]])
        posts = [tube(bends + np.array([s * side, 0, 0]), leg / 2) for s in (-1, 1)]
        parts.append((merged(posts), frame))
        if rng.random() < 0.5:
            slats = [box(width - 2 * leg, 0.015, 0.06).moved(0, width / 2 - leg + 0.02, height + top * k)
                     for k in (0.3, 0.55, 0.8)]  # fmt: skip
            parts.append((merged(slats), frame))
        else:
            parts.append((box(width - leg, 0.03, top * 0.6).moved(0, width / 2 + 0.01, height + top * 0.4), seat))
    return Piece("chair", parts, (width, width + 0.1))


def _books(palette: Palette, width: float, depth: float, height: float) -> list[tuple[Mesh, Material]]:
    """A row of books from x = -width / 2."""
    rng = palette.rng
    covers = [palette.material("any", "pattern", "paint") for _ in range(4)]
    rows: list[list[Mesh]] = [[] for _ in covers]
    x = -width / 2
    while x < width / 2 - 0.05:
        thick = float(rng.uniform(0.012, 0.055))
        tall, deep = float(rng.uniform(0.65, 0.95)) * height, float(rng.uniform(0.6, 0.95)) * depth
        lean = turn(float(rng.uniform(0.08, 0.25)), 1) if rng.random() < 0.08 else None
        book = box(thick, deep, tall).textured_from(*rng.uniform(0, 3, 2)).moved(rotation=lean)
        rows[int(rng.integers(len(covers)))].append(book.moved(x + thick / 2, (depth - deep) / -2 * 0.6))
        x += thick + 0.001 + (float(rng.uniform(0.05, 0.2)) if rng.random() < 0.07 else 0.0)
    return [(merged(meshes), cover) for meshes, cover in zip(rows, covers, strict=True) if meshes]


def shelf(palette: Palette) -> Piece:
    """An open shelf with boards, books and free places."""
    rng = palette.rng
    width, depth = float(rng.uniform(0.6, 1.5)), float(rng.uniform(0.24, 0.42))
    boards, gap, thick = int(rng.integers(3, 7)), float(rng.uniform(0.26, 0.42)), float(rng.uniform(0.015, 0.03))
    material = palette.material("wood", "paint")
    height = boards * gap
    meshes = [box(width, depth, thick).moved(z=k * gap) for k in range(boards + 1)]
    meshes += [box(thick, depth, height + thick).moved(s * (width + thick) / 2) for s in (-1, 1)]
    parts = [(merged(meshes), material)]
    if rng.random() < 0.6:
        parts.append((box(width, 0.01, height).moved(0, depth / 2 - 0.005), material))
    tops = []
    for level in range(boards):
        z = level * gap + thick
        if rng.random() < 0.55:
            used = width * float(rng.uniform(0.3, 0.95))
            row = _books(palette, used, depth, gap - thick - 0.02)
            parts += [(mesh.moved((used - width) / 2 + 0.02, 0, z), cover) for mesh, cover in row]
            left = width - used
            if left > 0.25:
                tops.append(Top(used / 2, 0, left / 2 - 0.05, depth / 2 - 0.05, z, gap - thick - 0.03))
        else:
            tops.append(Top(0, 0, width / 2 - 0.06, depth / 2 - 0.04, z, gap - thick - 0.03))
    tops.append(Top(0, 0, width / 2 - 0.06, depth / 2 - 0.04, height + thick, 0.35))
    return Piece("shelf", parts, (width + 2 * thick, depth), tops, wall=True)


def cabinet(palette: Palette) -> Piece:
    """A cabinet or chest of drawers with doors and handles."""
    rng = palette.rng
    width, depth, height = (float(rng.uniform(a, b)) for a, b in ((0.45, 1.6), (0.35, 0.6), (0.5, 2.0)))
    body, front = palette.material("wood", "paint", "any"), palette.material("wood", "paint", "any")
    columns, rows = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    w, h = width / columns, (height - 0.08) / rows
    fronts, handles = [], []
    for column in range(columns):
        for row in range(rows):
            x, z = (column + 0.5) * w - width / 2, 0.06 + row * h
            fronts.append(box(w - 0.012, 0.018, h - 0.012).moved(x, -depth / 2 - 0.009, z))
            bar = cylinder(0.006, min(0.14, w * 0.5), 10).moved(z=-min(0.07, w * 0.25), rotation=None)
            handles.append(bar.moved(rotation=turn(np.pi / 2, 1)).moved(x, -depth / 2 - 0.035, z + h * 0.75))
    parts = [(box(width, depth, height), body), (merged(fronts), front)]
    parts.append((merged(handles), palette.material("metal")))
    tops = [Top(0, 0, width / 2 - 0.05, depth / 2 - 0.05, height)] if height < 1.6 else []
    return Piece("cabinet", parts, (width, depth + 0.08), tops, wall=True)


def sofa(palette: Palette) -> Piece:
    """A sofa or armchair of rounded boxes, with cushions."""
    rng = palette.rng
    seats = int(rng.integers(1, 4))
    seat, depth, arm = float(rng.uniform(0.55, 0.72)), float(rng.uniform(0.75, 0.95)), float(rng.uniform(0.1, 0.22))
    width, low, back = seats * seat + 2 * arm, float(rng.uniform(0.3, 0.42)), float(rng.uniform(0.65, 0.9))
    cover, cushion = palette.material("cloth", "any", "paint"), palette.material("cloth", "pattern", "any")
    soft = float(rng.uniform(0.03, 0.1))
    meshes = [rounded_box(width, depth, low * 0.75, 0.03).moved(z=0.05)]
    meshes += [rounded_box(seat - 0.01, depth - 0.22, 0.18, soft).moved((k - (seats - 1) / 2) * seat, -0.1, low * 0.75)
               for k in range(seats)]  # fmt: skip
    meshes += [rounded_box(arm, depth, low + 0.22, soft).moved(s * (width - arm) / 2, 0, 0.05) for s in (-1, 1)]
    meshes.append(rounded_box(width, 0.22, back - 0.05, soft).moved(0, depth / 2 - 0.11, 0.05))
    parts = [(merged(meshes), cover)]
    for _ in range(int(rng.integers(0, seats + 2))):
        pillow = rounded_box(0.42, 0.14, 0.42, 0.068).moved(rotation=turn(float(rng.uniform(-0.5, -0.2)), 0))
        x = float(rng.uniform(-0.5, 0.5)) * (seats * seat - 0.4)
        parts.append(
            (pillow.moved(x, depth / 2 - 0.38, low * 0.75 + 0.17, rotation=turn(float(rng.normal(0, 0.2)))), cushion)
        )
    return Piece("sofa", parts, (width, depth), wall=rng.random() < 0.7)


def bed(palette: Palette) -> Piece:
    """A bed with mattress, blanket and pillows."""
    rng = palette.rng
    width, length = float(rng.choice([0.9, 1.4, 1.8])), 2.0
    frame, sheet, blanket = (
        palette.material(*kinds) for kinds in (("wood", "paint"), ("paint", "cloth"), ("cloth", "pattern"))
    )
    parts = [
        (box(width + 0.08, length + 0.06, 0.28), frame),
        (box(width + 0.08, 0.05, 0.95).moved(0, length / 2 + 0.05), frame),
    ]
    parts.append((rounded_box(width, length, 0.22, 0.06).moved(z=0.26), sheet))
    parts.append((rounded_box(width + 0.1, length * 0.65, 0.12, 0.055).moved(0, -length * 0.18, 0.4), blanket))
    for k in range(1 if width < 1 else 2):
        x = 0.0 if width < 1 else (k - 0.5) * width * 0.5
        parts.append((rounded_box(min(0.65, width * 0.6), 0.42, 0.15, 0.07).moved(x, length / 2 - 0.28, 0.47), sheet))
    return Piece("bed", parts, (width + 0.1, length + 0.16), wall=True)


def plant(palette: Palette) -> Piece:
    """A pot with a plant of thin rods and leaves."""
    rng = palette.rng
    radius, pot = float(rng.uniform(0.1, 0.22)), float(rng.uniform(0.15, 0.4))
    parts = [(lathe([(radius * 0.7, 0.0), (radius, pot), (radius * 0.9, pot), (radius * 0.85, pot * 0.9)], 36),
              palette.material("paint", "any"))]  # fmt: skip
    green = (float(rng.uniform(0.02, 0.2)), float(rng.uniform(0.1, 0.45)), float(rng.uniform(0.01, 0.1)))
    leaf_material = replace(palette.material("cloth", "plaster"), tint=green)
    stems, leaves = [], []
    tall = float(rng.uniform(0.4, 1.2))
    for _ in range(int(rng.integers(5, 22))):
        angle, lean = float(rng.uniform(0, 6.3)), float(rng.uniform(0.05, 0.6)) * tall
        s = np.linspace(0, 1, 7)[:, None]
        out = np.array([np.cos(angle), np.sin(angle), 0.0])
        path = out * (lean * s**2) + np.array([0, 0, 1.0]) * (pot * 0.85 + tall * float(rng.uniform(0.6, 1)) * s)
        stems.append(tube(path, float(rng.uniform(0.002, 0.007)), 6))
        for t in rng.uniform(0.35, 1.0, int(rng.integers(2, 7))):
            size = float(rng.uniform(0.03, 0.1))
            leaf = sphere(1.0, 1).scaled(size, size * 0.4, 0.003).moved(rotation=turn(float(rng.normal(0, 0.6)), 1))
            spot = path[int(t * 6)] + out * size * 0.6
            leaves.append(leaf.moved(*spot, rotation=turn(angle + float(rng.normal(0, 0.7)))))
    parts += [(merged(stems), leaf_material), (merged(leaves), leaf_material)]
    return Piece("plant", parts, (2 * radius + 0.1, 2 * radius + 0.1))


def floor_lamp(palette: Palette) -> Piece:
    """A thin pole with a glowing shade."""
    rng = palette.rng
    height, radius = float(rng.uniform(1.2, 1.7)), float(rng.uniform(0.12, 0.22))
    pole = merged([cylinder(radius, 0.02, 36), cylinder(float(rng.uniform(0.006, 0.015)), height, 14)])
    shade = lathe([(radius, 0.0), (radius * float(rng.uniform(0.5, 1.0)), 0.24)], 36).moved(z=height - 0.12)
    glow = replace(palette.material("paint", glossy=0.0), tint=(1.0, 0.85, 0.6), emission=float(rng.uniform(0.8, 3.0)))
    lamp = Lamp((0.0, 0.0, height), radius + 0.16, float(rng.uniform(0.15, 0.5)))
    return Piece("lamp", [(pole, palette.material("metal")), (shade, glow)], (2 * radius, 2 * radius), lamps=[lamp])


def lump(palette: Palette) -> Piece:
    """A large ball, blob, crate, cone, ring or capsule on the floor."""
    rng = palette.rng
    r = float(rng.uniform(0.12, 0.42))
    kind = int(rng.integers(6))
    if kind == 0:
        mesh = sphere(r).moved(z=r)
    elif kind == 1:
        mesh = blob(rng, r).moved(z=r * 0.9)
    elif kind == 2:
        mesh = box(2 * r, 1.5 * r, 1.5 * r)
    elif kind == 3:
        mesh = lathe([(r, 0.0), (0.02, 2.2 * r)], 48)
    elif kind == 4:
        mesh = torus(r * 0.8, 3).moved(z=r, rotation=turn(np.pi / 2, 0)).moved(z=0.05)
    else:
        mesh = capsule(r * 0.5, 3).moved(z=r * 1.25)
    return Piece(
        ("ball", "blob", "crate", "cone", "ring", "capsule")[kind], [(mesh, palette.material("any"))], (2 * r, 2 * r)
    )


FURNITURE: tuple[tuple[Callable[[Palette], Piece], float], ...] = (
    (table, 0.2), (chair, 0.2), (shelf, 0.15), (cabinet, 0.14), (sofa, 0.1), (bed, 0.04), (plant, 0.07),
    (floor_lamp, 0.04), (lump, 0.06),
)  # fmt: skip
