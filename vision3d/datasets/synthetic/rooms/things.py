# SPDX-License-Identifier: Apache-2.0
"""Small things that stand on furniture, and flat things on walls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vision3d.datasets.synthetic.rooms.furniture import Lamp, Piece
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


def _vase(rng: np.random.Generator, height: float) -> Mesh:
    r = height * float(rng.uniform(0.2, 0.45))
    z = np.linspace(0, 1, 12)
    profile = r * (0.55 + 0.35 * np.sin(float(rng.uniform(2, 5)) * z + float(rng.uniform(0, 3))) + 0.1 * z)
    return lathe([(float(a), float(b)) for a, b in zip(np.maximum(profile, 0.1 * r), z * height, strict=True)], 40)


def _stack(palette: Palette, headroom: float) -> list[tuple[Mesh, Material]]:
    """Lying books or boxes, one on the other."""
    rng, z = palette.rng, 0.0
    parts = []
    width, depth = float(rng.uniform(0.12, 0.26)), float(rng.uniform(0.1, 0.2))
    for _ in range(int(rng.integers(1, 6))):
        thick = float(rng.uniform(0.01, 0.06))
        if z + thick > headroom:
            break
        mesh = box(width * float(rng.uniform(0.7, 1)), depth, thick).moved(rotation=turn(float(rng.normal(0, 0.2))))
        parts.append((mesh.moved(z=z), palette.material("any", "pattern")))
        z += thick
    return parts


def _screen(palette: Palette, height: float) -> list[tuple[Mesh, Material]]:
    rng = palette.rng
    width = height * 1.5
    dark = replace(palette.material("metal"), tint=(0.03, 0.03, 0.03))
    frame = merged([box(width, 0.03, height * 0.8).moved(z=height * 0.2), cylinder(height * 0.25, 0.012, 24),
                    box(0.04, 0.02, height * 0.25).moved(0, 0.02)])  # fmt: skip
    picture = replace(palette.material("pattern"), emission=float(rng.choice([0.0, 0.5, 1.2])), specular=0.3)
    return [(frame, dark), (box(width * 0.95, 0.002, height * 0.74).moved(0, -0.016, height * 0.23), picture)]


def small_thing(palette: Palette, headroom: float, glass: Material | None) -> Piece:
    """A ball, vase, box, cup, bottle, stack of books, ring, blob, screen, table lamp ... at most ``headroom`` high."""
    rng = palette.rng
    height = min(float(np.exp(rng.uniform(np.log(0.05), np.log(0.38)))), headroom * 0.95)
    kinds = ["ball", "vase", "box", "can", "stack", "stack", "blob", "ring", "cup", "capsule", "round_box"]
    kind = str(rng.choice([*kinds, *(["screen", "lamp", "twigs"] if headroom > 0.35 else [])]))
    material = palette.material("any")
    if kind in ("vase", "can", "cup") and glass is not None and rng.random() < 0.5:
        material = glass
    half = height / 2
    if kind == "stack":
        return Piece("books", _stack(palette, headroom), (0.26, 0.2))
    if kind == "screen":
        height = min(float(rng.uniform(0.3, 0.5)), headroom)
        return Piece("screen", _screen(palette, height), (height * 1.5, 0.2))
    if kind == "lamp":
        return _table_lamp(palette, min(0.5, headroom))
    if kind == "twigs":
        return _twigs(palette, min(0.6, headroom))
    if kind == "cup":
        height = min(height, 0.14)
        r = height * 0.4
        handle = torus(height * 0.25, 2).moved(rotation=turn(np.pi / 2, 0)).moved(r, 0, height * 0.5)
        hollow = lathe([(r * 0.8, 0.0), (r, height), (r * 0.92, height), (r * 0.75, height * 0.1)], 32)
        return Piece("cup", [(merged([hollow, handle]), material)], (3 * r, 2 * r))
    mesh, width = {
        "ball": lambda: (sphere(half, 4).moved(z=half), height),
        "vase": lambda: (_vase(rng, height), height * 0.9),
        "box": lambda: (box(height * float(rng.uniform(0.4, 1.6)), height * 0.8, height), height * 1.6),
        "can": lambda: (cylinder(height * 0.3, height), height * 0.6),
        "blob": lambda: (blob(rng, half).moved(z=half * 0.95), height * 1.1),
        "ring": lambda: (torus(half * 0.75).moved(z=half * 0.225), height),
        "capsule": lambda: (capsule(height * 0.28, 3).moved(z=height * 0.49), height * 0.6),
        "round_box": lambda: (rounded_box(height, height * 0.7, height * 0.6, height * 0.12), height),
    }[kind]()
    return Piece(kind, [(mesh.moved(rotation=turn(float(rng.uniform(0, 6.3)))), material)], (width, width))


def _table_lamp(palette: Palette, height: float) -> Piece:
    rng = palette.rng
    r = height * 0.3
    shade = lathe([(r, 0.0), (r * 0.6, height * 0.4)], 36).moved(z=height * 0.55)
    glow = replace(palette.material("paint", glossy=0.0), tint=(1.0, 0.8, 0.55), emission=float(rng.uniform(0.6, 2.5)))
    foot = merged([_vase(rng, height * 0.4), cylinder(0.008, height * 0.7, 10)])
    lamp = Lamp((0.0, 0.0, height * 0.72), r + height * 0.25, float(rng.uniform(0.05, 0.2)))
    return Piece("lamp", [(foot, palette.material("any")), (shade, glow)], (2 * r, 2 * r), lamps=[lamp])


def _twigs(palette: Palette, height: float) -> Piece:
    """A vase with thin bare rods."""
    rng = palette.rng
    rods = []
    for _ in range(int(rng.integers(4, 12))):
        lean = rng.normal(0, 0.12, 2)
        s = np.linspace(0, 1, 6)[:, None]
        path = np.array([*lean, 0.0]) * s**1.5 + np.array([0, 0, height]) * s
        rods.append(tube(path, float(rng.uniform(0.0012, 0.004)), 5))
    vase = _vase(rng, height * 0.4)
    return Piece("twigs", [(vase, palette.material("any")), (merged(rods), palette.material("wood"))], (0.2, 0.2))


def picture(palette: Palette, width: float, height: float) -> Piece:
    """A framed picture whose back is y = 0 and whose lower edge is z = 0."""
    rng = palette.rng
    deep, rim = float(rng.uniform(0.008, 0.03)), float(rng.uniform(0.01, 0.05))
    frame = box(width, deep, height).moved(0, -deep / 2)
    paper = box(width - 2 * rim, 0.002, height - 2 * rim).moved(0, -deep - 0.001, rim)
    image = replace(palette.material("pattern", "pattern", "any"), density=500.0 / max(width, height))
    return Piece("picture", [(frame, palette.material("wood", "paint", "metal")), (paper, image)], (width, deep))


def mirror(palette: Palette, width: float, height: float) -> Piece:
    """A mirror in a frame, as :func:`picture`."""
    share = float(palette.rng.uniform(0.75, 0.95))
    silver = Material(palette.kinds["paint"][0], 200.0, (0.05, 0.05, 0.05), mirror=share)
    frame = box(width, 0.02, height).moved(0, -0.01)
    plate = box(width - 0.06, 0.002, height - 0.06).moved(0, -0.021, 0.03)
    return Piece("mirror", [(frame, palette.material("wood", "metal")), (plate, silver)], (width, 0.02))


def glass_pane(palette: Palette, width: float, height: float) -> Piece:
    """A standing pane of glass with a thin frame."""
    clear = glass_material(palette)
    bars = [box(0.03, 0.03, height).moved(s * width / 2) for s in (-1, 1)]
    bars += [box(width, 0.03, 0.03).moved(z=z) for z in (0.0, height - 0.03)]
    pane = box(width - 0.03, 0.006, height - 0.06).moved(z=0.03)
    return Piece("glass", [(merged(bars), palette.material("metal", "wood")), (pane, clear)], (width, 0.1))


def glass_material(palette: Palette) -> Material:
    """Clear or slightly tinted glass."""
    rng = palette.rng
    red, green, blue = rng.uniform(0.4, 1.0, 3).tolist()
    return Material(palette.kinds["paint"][0], 200.0, (red, green, blue), 0.6, 150.0,
                    float(rng.uniform(0.05, 0.2)), float(rng.uniform(0.55, 0.8)))  # fmt: skip
