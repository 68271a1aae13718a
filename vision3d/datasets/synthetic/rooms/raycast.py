# SPDX-License-Identifier: Apache-2.0
"""Rays into a room: what they hit, and the light that comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vision3d.datasets.synthetic.rooms.room import Light, Room

_LIFT = 3e-3  # metres that shadow and mirror rays start above a surface
_SKY = np.array([[0.35, 0.1, 0.93], [-0.3, 0.45, 0.84], [-0.1, -0.5, 0.86]], np.float32)  # ambient light from above


@dataclass
class Hits:
    """What N rays hit.

    Attributes:
        distance: [N] float64 metres along the ray, infinite where nothing is hit.
        face: [N] number of the triangle (0 where nothing is hit).
        points: [N, 3] float32.
        normals, flat_normals: [N, 3] float32 towards the viewer; of the smooth surface, and of the triangle.
        uv: [N, 2] float32 metres.
        directions: [N, 3] float32 of the unit rays.
        backward: [N] bool, the triangle is seen from its inner side.
    """

    distance: np.ndarray
    face: np.ndarray
    points: np.ndarray
    normals: np.ndarray
    flat_normals: np.ndarray
    uv: np.ndarray
    directions: np.ndarray
    backward: np.ndarray

    @property
    def found(self) -> np.ndarray:
        """[N] bool."""
        return np.isfinite(self.distance)


def _dot(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """[N] inner products of [N, 3] vectors (several times faster than a sum over an axis of 3)."""
    return np.asarray(np.einsum("ij,ij->i", first, second))


def _rays(origins: np.ndarray, directions: np.ndarray) -> Any:
    import open3d

    tensor: Any = open3d.core.Tensor
    rays = np.empty((len(directions), 6), np.float32)
    rays[:, :3], rays[:, 3:] = origins, directions
    return tensor(rays)


def trace(room: Room, origins: np.ndarray, directions: np.ndarray) -> Hits:
    """Cast rays.

    Args:
        room: what to hit.
        origins: [3] or [N, 3] world points.
        directions: [N, 3] unit vectors, world axes.
    """
    answer = room.caster.cast_rays(_rays(origins, directions), nthreads=1)
    distance = answer["t_hit"].numpy().astype(np.float64)
    found = np.isfinite(distance)
    face = np.where(found, answer["primitive_ids"].numpy(), 0).astype(np.int64)
    second, third = answer["primitive_uvs"].numpy().T
    weights = np.stack([1 - second - third, second, third], axis=1)
    directions32 = directions.astype(np.float32)
    level = answer["primitive_normals"].numpy()
    normals = np.einsum("ij,ijk->ik", weights, room.normals[face])
    normals /= np.sqrt(np.maximum(_dot(normals, normals), 1e-12))[:, None]
    backward = _dot(level, directions32) > 0
    sign = np.where(backward, np.float32(-1), np.float32(1))[:, None]
    normals, level = normals * sign, level * sign
    away = _dot(normals, directions32) > -1e-3  # a smooth normal beyond the outline
    normals[away] = level[away]
    reach = np.where(found, distance, 0.0)[:, None]
    return Hits(
        distance, face, (origins + reach * directions).astype(np.float32), normals, level,
        np.einsum("ij,ijk->ik", weights, room.uv[face]), directions32, backward & found,
    )  # fmt: skip


def hidden(room: Room, points: np.ndarray, target: np.ndarray, end: np.ndarray | float = 1.0) -> np.ndarray:
    """[N] bool: something lies on the way from points [N, 3] to ``target`` [3] or [N, 3], up to a share of the way."""
    way = target - points
    length = np.asarray(end, np.float32)
    rays = _rays(points, way * (length[:, None] if length.ndim else length))
    answer = room.caster.test_occlusions(rays, tnear=0.0, tfar=1.0, nthreads=1).numpy()
    return np.asarray(answer, bool)


def irradiance(room: Room, hits: Hits, shadows: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Diffuse light and highlights at hits: [N, 3] and [N, 3] float32, linear."""
    parts = room.part_of_face[hits.face]
    lifted = hits.points + _LIFT * hits.flat_normals
    diffuse = _ambient(room, hits, lifted, shadows)
    highlight = np.zeros_like(diffuse)
    strength = room.materials["specular"][parts]
    for light in room.lights:
        facing, way, distance = _facing(light, hits)
        index = np.flatnonzero(facing > 0.01)
        if shadows and len(index):
            end = np.maximum(1 - light.radius / distance[index], 0.02)
            index = index[~hidden(room, lifted[index], np.array(light.position, np.float32), end)]
        if not len(index):
            continue
        power = np.array(light.color, np.float32) / (distance[index] ** 2 + 0.25)[:, None]
        diffuse[index] += power * facing[index, None]
        shiny = np.flatnonzero(strength[index] > 0)
        if len(shiny):
            where = index[shiny]
            half = way[where] - hits.directions[where]
            half /= np.sqrt(np.maximum(_dot(half, half), 1e-12))[:, None]
            exponent = room.materials["shininess"][parts[where]]
            lobe = np.clip(_dot(half, hits.normals[where]), 0, 1) ** exponent
            highlight[where] += power[shiny] * (strength[where] * lobe * (exponent + 8) / 30)[:, None]
    return diffuse, highlight


def _facing(light: Light, hits: Hits) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cosine at the surface, unit way to the light, distance."""
    way = np.array(light.position, np.float32) - hits.points
    distance = np.sqrt(_dot(way, way))
    way /= np.maximum(distance, 1e-4)[:, None]
    return _dot(way, hits.normals), way, distance


def _ambient(room: Room, hits: Hits, lifted: np.ndarray, shadows: bool) -> np.ndarray:
    """Light from everywhere: more from above, less in corners and under things."""
    up = hits.normals[:, 2]
    factor = 0.72 + 0.28 * up
    if room.size is not None:
        for axis, size in enumerate(room.size):
            value = hits.points[:, axis]
            gap = np.clip(np.minimum(value, np.float32(size) - value), 0, None)
            factor = factor * (1 - 0.4 * np.exp(-3.0 * gap) * (1 - np.abs(hits.normals[:, axis])))
    if shadows:
        covered = np.zeros(len(up), np.float32)
        for direction in _SKY:
            index = np.flatnonzero(hits.normals @ direction > 0.02)
            # things within 1.5 m above take ambient light away
            blocked = hidden(room, lifted[index], lifted[index] + np.float32(1.5) * direction)
            ceiling = room.size is not None and blocked & (lifted[index, 2] + 1.5 * direction[2] > room.size[2])
            covered[index] += blocked & ~np.asarray(ceiling)
        factor = factor * (1 - 0.2 * covered)
    return np.asarray(factor[:, None] * room.ambient, np.float32)


def shade(
    room: Room, hits: Hits, spread: float, shadows: bool = True, bounces: int = 2
) -> tuple[np.ndarray, np.ndarray]:
    """Light that comes back along the rays.

    Args:
        room: the scene.
        hits: what the rays hit.
        spread: angle between the rays of neighbouring pixels, radians, which chooses the scale of the textures.
        shadows: cast shadow rays.
        bounces: how often a ray may go on behind mirrors and glass.

    Returns:
        Linear colour [N, 3] and the diffuse light on the surface alone [N] (for finding edges of shadows), float32.
    """
    parts = room.part_of_face[hits.face]
    materials = room.materials
    density = materials["density"][parts]
    slant = np.sqrt(np.clip(-_dot(hits.normals, hits.directions), 0.05, 1))
    reach = np.where(hits.found, hits.distance, 0).astype(np.float32)
    footprint = reach * spread * density / slant
    albedo = room.atlas.sample(materials["texture"][parts], hits.uv * density[:, None], footprint)
    albedo *= materials["tint"][parts]
    diffuse, highlight = irradiance(room, hits, shadows)
    color = albedo * (diffuse + materials["emission"][parts][:, None]) + highlight
    color[~hits.found] = 0
    if bounces > 0:
        _go_on(room, hits, parts, color, spread, shadows, bounces)
    return color, diffuse.mean(axis=1)


def _go_on(
    room: Room, hits: Hits, parts: np.ndarray, color: np.ndarray, spread: float, shadows: bool, bounces: int
) -> None:
    """Add what is seen in mirrors and through glass."""
    for kind in ("mirror", "glass"):
        share = room.materials[kind][parts] * hits.found
        index = np.flatnonzero(share > 0)
        if not len(index):
            continue
        directions, normals = hits.directions[index], hits.normals[index]
        start = hits.points[index] - _LIFT * hits.flat_normals[index]
        if kind == "mirror":
            cosine = _dot(directions, normals)[:, None]
            directions = directions - 2 * cosine * normals
            start = hits.points[index] + _LIFT * hits.flat_normals[index]
        seen, _ = shade(room, trace(room, start, directions), spread, shadows, bounces - 1)
        tint = room.materials["tint"][parts[index]] if kind == "glass" else 1.0
        share = share[index, None]
        color[index] = (1 - share) * color[index] + share * seen * tint
