# SPDX-License-Identifier: Apache-2.0
"""Triangle meshes of simple solids, as lists of triangles (metres, z up, outward normals)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class Mesh:
    """Triangles.

    Attributes:
        corners: [F, 3, 3] the corners of each triangle, anticlockwise seen from outside.
        normals: [F, 3, 3] unit normal at each corner; those of smooth solids are the normals of the smooth surface.
        uv: [F, 3, 2] texture coordinates in metres, or None: each face is textured along its main axes.
    """

    corners: np.ndarray
    normals: np.ndarray
    uv: np.ndarray | None = None

    def moved(self, x: float = 0.0, y: float = 0.0, z: float = 0.0, *, rotation: np.ndarray | None = None) -> Mesh:
        """The mesh rotated, then moved."""
        corners, normals = self.corners, self.normals
        if rotation is not None:
            corners, normals = corners @ rotation.T, normals @ rotation.T
        return replace(self, corners=corners + np.array([x, y, z]), normals=normals)

    def scaled(self, x: float, y: float, z: float) -> Mesh:
        """The mesh stretched along the axes (positive factors); normals follow."""
        factors = np.array([x, y, z])
        return replace(self, corners=self.corners * factors, normals=_unit(self.normals / factors))

    def textured_from(self, u: float, v: float) -> Mesh:
        """The mesh with its texture moved by metres."""
        return replace(self, uv=self.texture_coordinates() + np.array([u, v]))

    def texture_coordinates(self) -> np.ndarray:
        """[F, 3, 2] metres."""
        if self.uv is not None:
            return self.uv
        axis = np.abs(face_normals(self.corners)).argmax(axis=1)
        columns = np.array([[1, 2], [0, 2], [0, 1]])[axis]
        return np.take_along_axis(self.corners, columns[:, None, :].repeat(3, axis=1), axis=2)


def _cross(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The cross product of [..., 3] vectors; numpy's own is several times slower on few of them."""
    a, b, c = first[..., 0], first[..., 1], first[..., 2]
    x, y, z = second[..., 0], second[..., 1], second[..., 2]
    return np.stack([b * z - c * y, c * x - a * z, a * y - b * x], axis=-1)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def face_normals(corners: np.ndarray) -> np.ndarray:
    """[F, 3] unit normals of flat triangles [F, 3, 3]."""
    return _unit(_cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]))


def flat(corners: np.ndarray) -> Mesh:
    """A mesh of flat faces."""
    return Mesh(corners, face_normals(corners)[:, None].repeat(3, axis=1))


def merged(meshes: Sequence[Mesh]) -> Mesh:
    """One mesh of several."""
    corners, normals = (np.concatenate([getattr(mesh, name) for mesh in meshes]) for name in ("corners", "normals"))
    return Mesh(corners, normals, np.concatenate([mesh.texture_coordinates() for mesh in meshes]))


def turn(angle: float, axis: int = 2) -> np.ndarray:
    """[3, 3] rotation about an axis (0 = x, 1 = y, 2 = z), radians."""
    c, s = np.cos(angle), np.sin(angle)
    a, b = (axis + 1) % 3, (axis + 2) % 3
    rotation = np.eye(3)
    rotation[a, a], rotation[a, b], rotation[b, a], rotation[b, b] = c, -s, s, c
    return rotation


def quad(origin: Sequence[float], first: Sequence[float], second: Sequence[float]) -> Mesh:
    """A rectangle from a corner along two edges; its normal is ``first x second``."""
    o, a, b = (np.asarray(value, dtype=np.float64) for value in (origin, first, second))
    mesh = flat(np.array([[o, o + a, o + a + b], [o, o + a + b, o + b]]))
    if np.count_nonzero(a) == 1 and np.count_nonzero(b) == 1:
        return mesh  # textured in world axes, so that pieces of one wall fit
    width, height = np.linalg.norm(a), np.linalg.norm(b)
    return replace(mesh, uv=np.array([[[0, 0], [width, 0], [width, height]], [[0, 0], [width, height], [0, height]]]))


def box(width: float, depth: float, height: float) -> Mesh:
    """A box centred in x and y that stands on z = 0."""
    x, y = width / 2, depth / 2
    return merged([
        quad((-x, -y, height), (width, 0, 0), (0, depth, 0)), quad((-x, y, 0), (width, 0, 0), (0, -depth, 0)),
        quad((-x, -y, 0), (width, 0, 0), (0, 0, height)), quad((x, y, 0), (-width, 0, 0), (0, 0, height)),
        quad((-x, y, 0), (0, -depth, 0), (0, 0, height)), quad((x, -y, 0), (0, depth, 0), (0, 0, height)),
    ])  # fmt: skip


def _grid_faces(points: np.ndarray, normals: np.ndarray, uv: np.ndarray | None = None) -> Mesh:
    """Triangles of a grid [R, C, 3] of points; outside is the side of d/dcolumn x d/drow."""

    def soup(grid: np.ndarray) -> np.ndarray:
        a, b, c, d = grid[:-1, :-1], grid[:-1, 1:], grid[1:, 1:], grid[1:, :-1]
        triangles = np.stack([np.stack([a, b, c], axis=2), np.stack([a, c, d], axis=2)], axis=2)
        return triangles.reshape(-1, 3, grid.shape[-1])

    corners = soup(points)
    area = np.linalg.norm(_cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    keep = area > 1e-12
    return Mesh(corners[keep], soup(normals)[keep], None if uv is None else soup(uv)[keep])


def lathe(profile: Sequence[tuple[float, float]], sides: int = 40, smooth: bool = True) -> Mesh:
    """A solid of revolution about z; profile of (radius, z) from the bottom up, outside to the right of it.

    Flat discs close it where the profile does not begin or end on the axis.
    """
    points = np.array(profile, dtype=np.float64)
    parts = []
    angle = np.linspace(0, 2 * np.pi, sides + 1)
    angle[-1] = 0.0  # the seam closes exactly
    ring = np.stack([np.cos(angle), np.sin(angle), np.zeros_like(angle)], axis=-1)
    steps = np.diff(points, axis=0)
    slopes = _unit(np.stack([steps[:, 1], -steps[:, 0]], axis=-1))
    along = np.concatenate([[0], np.cumsum(np.linalg.norm(steps, axis=1))])
    ends = np.concatenate([slopes[:1], _unit(slopes[:-1] + slopes[1:]), slopes[-1:]])
    mean_radius = max(float(points[:, 0].mean()), 1e-3)
    around = np.linspace(0, 2 * np.pi * mean_radius, sides + 1)
    spans = [(0, len(points))] if smooth else [(k, k + 2) for k in range(len(points) - 1)]
    for start, stop in spans:
        rows = points[start:stop]
        slope = ends[start:stop] if smooth else np.repeat(slopes[start : start + 1], 2, axis=0)
        grid = rows[:, :1, None] * ring[None] + rows[:, 1:, None] * np.array([0.0, 0.0, 1.0])
        normals = slope[:, :1, None] * ring[None] + slope[:, 1:, None] * np.array([0.0, 0.0, 1.0])
        uv = np.stack(np.broadcast_arrays(around[None], along[start:stop, None]), axis=-1)
        parts.append(_grid_faces(grid, normals, uv))
    for (radius, z), up in ((points[0], False), (points[-1], True)):
        if radius > 1e-6:
            rim = radius * ring + np.array([0.0, 0.0, z])
            first, second = (rim[:-1], rim[1:]) if up else (rim[1:], rim[:-1])
            centre = np.broadcast_to(np.array([0.0, 0.0, z]), first.shape)
            parts.append(flat(np.stack([centre, first, second], axis=1)))
    return merged(parts)


def cylinder(radius: float, height: float, sides: int = 40) -> Mesh:
    """A cylinder that stands on z = 0."""
    return lathe([(radius, 0.0), (radius, height)], sides)


def rounded_box(width: float, depth: float, height: float, radius: float, steps: int = 5) -> Mesh:
    """A box with rounded edges that stands on z = 0."""
    radius = min(radius, 0.499 * min(width, depth, height))
    quarter = np.linspace(0, np.pi / 2, steps + 1)
    theta = np.concatenate([quarter + k * np.pi / 2 for k in range(4)] + [[2 * np.pi]])
    phi = np.concatenate([quarter - np.pi / 2, quarter])
    # which of the eight corners each grid point belongs to
    middle = np.concatenate([np.full(steps + 1, (k + 0.5) * np.pi / 2) for k in range(4)] + [[np.pi / 4]])
    upper = np.repeat([-1.0, 1.0], steps + 1)
    normals = np.stack(np.broadcast_arrays(
        np.cos(phi)[:, None] * np.cos(theta), np.cos(phi)[:, None] * np.sin(theta), np.sin(phi)[:, None]
    ), axis=-1)  # fmt: skip
    signs = np.stack(np.broadcast_arrays(np.sign(np.cos(middle)), np.sign(np.sin(middle)), upper[:, None]), axis=-1)
    inner = np.array([width, depth, height]) / 2 - radius
    middle_z = np.array([0.0, 0.0, height / 2])
    sides = _grid_faces(signs * inner + radius * normals + middle_z, normals)
    x, y = inner[:2]
    lid = quad((-x, -y, height), (2 * x, 0, 0), (0, 2 * y, 0))
    floor = quad((-x, y, 0), (2 * x, 0, 0), (0, -2 * y, 0))
    return merged([sides, lid, floor])


@lru_cache(maxsize=16)
def _template(kind: str, detail: int) -> Mesh:
    import trimesh

    made = {
        "sphere": lambda: trimesh.creation.icosphere(subdivisions=detail, radius=1.0),
        "torus": lambda: trimesh.creation.torus(1.0, 0.1 * detail, 48, 24),
        "capsule": lambda: trimesh.creation.capsule(height=0.5 * detail, radius=1.0, count=(24, 24)),
    }[kind]()
    normals = made.vertices if kind == "sphere" else made.vertex_normals
    return Mesh(np.asarray(made.vertices[made.faces]), _unit(np.asarray(normals)[made.faces]))


def sphere(radius: float, detail: int = 4) -> Mesh:
    """A sphere around the origin of 20 * 4^detail triangles whose corners lie on it."""
    return _template("sphere", detail).scaled(radius, radius, radius)


def torus(radius: float, thickness: int = 3) -> Mesh:
    """A lying ring around the origin; its tube is ``thickness`` tenths of the radius."""
    return _template("torus", thickness).scaled(radius, radius, radius)


def capsule(radius: float, length: int = 3) -> Mesh:
    """A standing capsule with its centre in the origin; the straight part is ``length`` half radii."""
    return _template("capsule", length).scaled(radius, radius, radius)


def blob(rng: np.random.Generator, radius: float) -> Mesh:
    """A smooth lump around the origin: a sphere with a few waves."""
    template = _template("sphere", 4)
    direction = template.corners
    waves = [(rng.uniform(0.03, 0.12), rng.normal(0, 2.2, 3), rng.uniform(0, 6.3)) for _ in range(4)]
    factor = 1.0 + np.sum([a * np.sin(direction @ k + phase) for a, k, phase in waves], axis=0)
    slope = np.sum([(a * np.cos(direction @ k + phase))[..., None] * k for a, k, phase in waves], axis=0)
    tangent = slope - (slope * direction).sum(axis=-1, keepdims=True) * direction
    # r = f(n) n has the normal f n - grad f (the gradient on the unit sphere)
    return Mesh(radius * factor[..., None] * direction, _unit(factor[..., None] * direction - tangent))


def tube(path: np.ndarray, radius: float, sides: int = 8) -> Mesh:
    """A round rod along the points [N, 3] of a path."""
    tangent = _unit(np.gradient(path, axis=0))
    helper = np.array([0.31, 0.87, 0.38]) if abs(tangent[0, 2]) > 0.5 else np.array([0.03, 0.05, 1.0])
    first = _unit(_cross(tangent, helper))
    second = _cross(tangent, first)
    angle = np.linspace(0, 2 * np.pi, sides + 1)
    angle[-1] = 0.0
    normals = np.cos(angle)[None, :, None] * first[:, None] + np.sin(angle)[None, :, None] * second[:, None]
    along = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1))])
    uv = np.stack(np.broadcast_arrays(radius * np.linspace(0, 2 * np.pi, sides + 1)[None], along[:, None]), axis=-1)
    return _grid_faces(path[:, None] + radius * normals, normals, uv)


def curtain(rng: np.random.Generator, width: float, height: float) -> Mesh:
    """A wavy sheet from z = 0 up, along x, about y = 0, with two sides 4 mm apart."""
    x = np.linspace(0, width, 60)
    folds, depth = rng.uniform(5, 11) * width, rng.uniform(0.015, 0.04)
    y, slope = depth * np.sin(folds * x), depth * folds * np.cos(folds * x)
    along = np.concatenate([[0], np.cumsum(np.hypot(np.diff(x), np.diff(y)))])
    bottom = np.stack([x - width / 2, y, np.zeros_like(x)], axis=-1)
    front = _unit(np.stack([slope, -np.ones_like(x), np.zeros_like(x)], axis=-1))
    grid = np.stack([bottom, bottom + np.array([0, 0, height])])
    uv = np.stack(np.broadcast_arrays(along[None], np.array([[0.0], [height]])), axis=-1)
    normals = np.stack([front, front])
    back = _grid_faces((grid - 0.004 * normals)[:, ::-1], -normals[:, ::-1], uv[:, ::-1])
    return merged([_grid_faces(grid, normals, uv), back])
