# SPDX-License-Identifier: Apache-2.0
"""Cameras as maps of rays, and the rendering of a view with its exact truth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import cv2
import numpy as np

from vision3d.datasets.synthetic.rooms.options import RoomOptions
from vision3d.datasets.synthetic.rooms.raycast import Hits, shade, trace
from vision3d.datasets.synthetic.rooms.room import Room
from vision3d.errors import InputError
from vision3d.geometry.panorama import panorama_rays
from vision3d.types import Camera


class RayMap(Protocol):
    """What the renderer needs to know of a camera.

    Attributes:
        height, width: image size.
        world_to_camera: [4, 4], metres.
        spread: angle between the rays of neighbouring pixels, radians.
        wraps: the right border continues at the left one.
    """

    height: int
    width: int
    world_to_camera: np.ndarray
    spread: float
    wraps: bool

    def directions(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Unit rays [..., 3] in camera axes at pixels (u, v)."""
        ...


class PinholeRays:
    """The rays of a pinhole camera without distortion.

    Raises:
        InputError: the camera has no image size, or has distortion.
    """

    wraps = False

    def __init__(self, camera: Camera) -> None:
        if camera.width is None or camera.height is None:
            raise InputError("the camera of a rendered view needs its image size")
        if camera.distortion is not None and np.any(camera.distortion):
            raise InputError("a rendered view has no lens distortion: pass a rectified camera")
        self.height, self.width = camera.height, camera.width
        self.world_to_camera = camera.world_to_camera
        self.spread = 1.0 / camera.fx
        self._inverse = np.linalg.inv(camera.intrinsics)

    def directions(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Unit rays [..., 3]."""
        rays = np.stack(np.broadcast_arrays(u, v, 1.0), axis=-1) @ self._inverse.T
        return np.asarray(rays / np.linalg.norm(rays, axis=-1, keepdims=True))


class EquirectangularRays:
    """The rays of a panorama (mapping: :mod:`vision3d.geometry.panorama`).

    Args:
        height: rows; twice as many columns.
        world_to_camera: [4, 4].
    """

    wraps = True

    def __init__(self, height: int, world_to_camera: np.ndarray) -> None:
        panorama_rays(height, 1)  # checks the size
        self.height, self.width = height, 2 * height
        self.world_to_camera = world_to_camera
        self.spread = np.pi / height

    def directions(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Unit rays [..., 3]."""
        lon = 2 * np.pi * ((u + 0.5) / self.width - 0.5)
        lat = np.pi * (0.5 - (v + 0.5) / self.height)
        return np.stack(
            np.broadcast_arrays(np.cos(lat) * np.sin(lon), -np.sin(lat), np.cos(lat) * np.cos(lon)), axis=-1
        )


@dataclass
class ViewRender:
    """A rendered view.

    Attributes:
        color: [H, W, 3] float32, linear light before exposure.
        distance: [H, W] float64 metres along the ray of each pixel centre, NaN where nothing is hit.
        depth: [H, W] float64, z in camera axes.
        normals: [H, W, 3] float32, unit, towards the camera, camera axes, NaN where nothing is hit.
        points: [H, W, 3] float64, world axes.
        object_ids: [H, W] int32, -1 where nothing is hit.
        faces: [H, W] int64 number of the triangle, -1 where nothing is hit.
        reflectivity: [H, W] float32, share of mirrored and transmitted light.
        backward: [H, W] bool, a triangle is seen from its inner side.
    """

    color: np.ndarray
    distance: np.ndarray
    depth: np.ndarray
    normals: np.ndarray
    points: np.ndarray
    object_ids: np.ndarray
    faces: np.ndarray
    reflectivity: np.ndarray
    backward: np.ndarray = field(repr=False)


def camera_center(world_to_camera: np.ndarray) -> np.ndarray:
    """[3] world position of a camera."""
    return np.asarray(-world_to_camera[:3, :3].T @ world_to_camera[:3, 3])


def render_view(room: Room, view: RayMap, options: RoomOptions | None = None, *, color: bool = True) -> ViewRender:
    """Render a view: the truth at each pixel centre, and the colour, smoothed at edges.

    Args:
        room: the scene.
        view: the camera.
        options: ``shadows`` and ``supersample`` are used.
        color: False: the truth alone, much faster; the colour is 0.
    """
    options = options or RoomOptions()
    center = camera_center(view.world_to_camera)
    v, u = np.mgrid[0 : view.height, 0 : view.width].astype(np.float64)
    rays = view.directions(u, v)
    rotation = view.world_to_camera[:3, :3]
    hits = trace(room, center, rays.reshape(-1, 3) @ rotation)
    shape = (view.height, view.width)
    distance = np.where(hits.found, hits.distance, np.nan).reshape(shape)
    normals = hits.normals @ rotation.T.astype(np.float32)
    normals[~hits.found] = np.nan
    parts = room.part_of_face[hits.face]
    share = 1 - (1 - room.materials["mirror"][parts]) * (1 - room.materials["glass"][parts])
    result = ViewRender(
        color=np.zeros((*shape, 3), np.float32),
        distance=distance,
        depth=distance * rays[..., 2],
        normals=normals.reshape(*shape, 3),
        points=center + distance[..., None] * (rays @ rotation),
        object_ids=np.where(hits.found, room.object_of_part[parts], -1).astype(np.int32).reshape(shape),
        faces=np.where(hits.found, hits.face, -1).reshape(shape),
        reflectivity=np.where(hits.found, share, 0).astype(np.float32).reshape(shape),
        backward=hits.backward.reshape(shape),
    )
    if color:
        image, light = shade(room, hits, view.spread, options.shadows)
        result.color[:] = image.reshape(*shape, 3)
        if options.supersample > 1:
            edges = _edges(hits, parts.reshape(shape), light.reshape(shape), view.wraps)
            _supersample(room, view, center, options, result.color, edges)
    return result


def _edges(hits: Hits, parts: np.ndarray, light: np.ndarray, wraps: bool) -> np.ndarray:
    """[H, W] bool: pixels beside an edge of a thing, of its shape, or of a shadow."""
    normals = hits.normals.reshape(*parts.shape, 3)
    edges = np.zeros(parts.shape, bool)
    for axis in (0, 1):
        step = (slice(None),) * axis
        a, b = (*step, slice(None, -1)), (*step, slice(1, None))
        differs = (parts[a] != parts[b]) | (np.einsum("ijk,ijk->ij", normals[a], normals[b]) < 0.95)
        differs |= np.abs(light[a] - light[b]) > 0.2 * np.maximum(light[a], light[b])
        edges[a] |= differs
        edges[b] |= differs
    if wraps:
        differs = parts[:, 0] != parts[:, -1]
        edges[:, 0] |= differs
        edges[:, -1] |= differs
    return edges


def _supersample(
    room: Room, view: RayMap, center: np.ndarray, options: RoomOptions, color: np.ndarray, edges: np.ndarray
) -> None:
    """Replace the colour of the marked pixels by the mean over a grid of sub-rays."""
    v, u = np.nonzero(edges)
    if not len(v):
        return
    count = options.supersample
    offsets = (np.arange(count) + 0.5) / count - 0.5
    dy, dx = (grid.ravel() for grid in np.meshgrid(offsets, offsets, indexing="ij"))
    rays = view.directions(u[:, None] + dx, v[:, None] + dy)
    hits = trace(room, center, rays.reshape(-1, 3) @ view.world_to_camera[:3, :3])
    samples, _ = shade(room, hits, view.spread, options.shadows)
    # lamps and highlights are limited, else one sub-ray of four would decide the pixel
    limit = 4 * float(np.percentile(color, 95)) + 1e-6
    color[v, u] = np.minimum(samples, limit).reshape(len(v), count * count, 3).mean(axis=1)


def expose(colors: list[np.ndarray], effects: dict[str, float]) -> list[np.ndarray]:
    """Photographs of linear pictures: one exposure for all, glow, tone curve; [H, W, 3] float32 in 0..255.

    Args:
        colors: [H, W, 3] linear; the first one sets the exposure.
        effects: ``level`` is the brightness of the middle tones, ``bloom`` and ``flare`` the strengths.
    """
    brightness = colors[0].mean(axis=-1)
    key = float(np.exp(np.log(np.maximum(brightness, 1e-4)).mean()))
    gain = effects.get("level", 0.4) / max(key, 1e-4)
    pictures = []
    for color in colors:
        scaled = np.ascontiguousarray(color * gain, dtype=np.float32)
        if effects.get("bloom", 0) > 0 or effects.get("flare", 0) > 0:
            scaled = _glow(scaled, effects.get("bloom", 0.0), effects.get("flare", 0.0))
        mapped = scaled * (1 + scaled / 9.0) / (1 + scaled)  # white at 9 times the middle
        pictures.append(cv2.pow(np.clip(mapped, 0, 1), 1 / 2.2) * 255.0)
    return pictures


def _glow(image: np.ndarray, bloom: float, flare: float) -> np.ndarray:
    """Light scattered around bright places, and ghosts of them mirrored at the centre of the picture."""
    height = image.shape[0]
    bright = np.clip(image - 2.5, 0, 12).astype(np.float32)
    result = image
    if bloom > 0:
        for sigma in (0.012, 0.05):
            result = result + bloom * cv2.GaussianBlur(bright, (0, 0), max(sigma * height, 0.6))
    if flare > 0:
        for size, colour in ((0.45, (1.0, 0.6, 0.4)), (0.8, (0.4, 0.8, 1.0)), (-0.3, (0.7, 1.0, 0.5))):
            rows, columns = image.shape[:2]
            matrix = np.array([[-size, 0, (1 + size) * columns / 2], [0, -size, (1 + size) * rows / 2]])
            ghost = cv2.warpAffine(bright, matrix, (columns, rows))
            ghost = cv2.GaussianBlur(ghost, (0, 0), 0.01 * height + 0.5)
            result = result + 0.12 * flare * ghost * np.array(colour, np.float32)
    return result
