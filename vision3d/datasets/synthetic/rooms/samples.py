# SPDX-License-Identifier: Apache-2.0
"""Panoramas and multi-view sets of rooms with exact truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vision3d.datasets.synthetic.photometric import apply_tone, degrade, tone_table
from vision3d.datasets.synthetic.rooms.layout import make_room
from vision3d.datasets.synthetic.rooms.options import RoomOptions
from vision3d.datasets.synthetic.rooms.poses import free_point, inside_pose, look_at, move_right
from vision3d.datasets.synthetic.rooms.raycast import trace
from vision3d.datasets.synthetic.rooms.room import Room
from vision3d.datasets.synthetic.rooms.stereo import random_rig
from vision3d.datasets.synthetic.rooms.views import EquirectangularRays, PinholeRays, camera_center, expose, render_view
from vision3d.errors import InputError
from vision3d.types import Camera, MultiViewSample, PanoramaSample


def make_room_panorama(
    seed: int, height: int = 256, options: RoomOptions | None = None, tilt: float = 0.0
) -> PanoramaSample:
    """Make the panorama of a seed: the camera stands clear of furniture inside the room of that seed.

    Args:
        seed: the same seed, height, options and tilt give the same panorama.
        height: rows; twice as many columns.
        options: what rooms look like.
        tilt: standard deviation of the camera's tilt about both level axes, radians; 0: its y axis points down.

    Returns:
        Sample with exact ``depth`` (distance along the ray), ``normals`` in camera axes and ``world_to_camera`` (world
        z up, metres).

    Raises:
        InputError: height below 8, or a negative tilt.
        MissingExtraError: Open3D is not installed.
    """
    if height < 8 or not tilt >= 0:
        raise InputError(f"a panorama of a room has at least 8 rows and tilt >= 0, got {height} and {tilt}")
    options = options or RoomOptions()
    room = make_room(seed, options)
    rng = np.random.default_rng([seed, 31_339])
    center = free_point(room, rng, 0.4, (1.0, 1.8))
    heading = float(rng.uniform(0, 2 * np.pi))
    roll, pitch = (float(value) for value in rng.normal(0, 1, 2) * tilt)
    ahead = np.array([np.cos(heading) * np.cos(pitch), np.sin(heading) * np.cos(pitch), np.sin(pitch)])
    pose = look_at(center, center + ahead, roll)
    view = render_view(room, EquirectangularRays(height, pose), options)
    (picture,) = expose([view.color], room.effects)
    (image,) = photographs([picture], rng, options.photometric, panorama=True)
    return PanoramaSample(
        image=image,
        depth=view.distance.astype(np.float32),
        normals=view.normals,
        world_to_camera=pose,
        scene=f"room_{seed:08d}",
    )


def make_room_views(
    seed: int, views: int = 5, height: int = 256, width: int = 320, options: RoomOptions | None = None
) -> MultiViewSample:
    """Make the multi-view set of a seed: cameras that look at the same place of the room of that seed.

    Args:
        seed: the same arguments give the same set.
        views: number of views, the reference (view 0) among them; the others come in order of their distance.
        height, width: size of the images, pixels.
        options: what rooms look like; ``focal`` is used.

    Returns:
        Sample in metres with exact z-``depth`` of the reference and its ``depth_range`` (0.9 of the least, 1.1 of the
        largest depth).

    Raises:
        InputError: fewer than 2 views, or images below 16 x 32.
        MissingExtraError: Open3D is not installed.
    """
    if views < 2 or height < 16 or width < 32:
        raise InputError(f"a multi-view set has at least 2 views of 16 x 32, got {views} views of {height} x {width}")
    options = options or RoomOptions()
    room = make_room(seed, options)
    rng = np.random.default_rng([seed, 31_341])
    camera = random_rig(rng, height, width, options).left
    reference = replace(camera, world_to_camera=inside_pose(room, rng, camera, reach=0.15))
    cameras = [reference, *_sources(room, rng, reference, views - 1)]
    renders = [render_view(room, PinholeRays(item), options) for item in cameras]
    pictures = expose([render.color for render in renders], room.effects)
    images = photographs(pictures, rng, options.photometric)
    depth = renders[0].depth.astype(np.float32)
    return MultiViewSample(
        images=images,
        cameras=cameras,
        view_ids=list(range(views)),
        unit="m",
        depth=depth,
        depth_range=(0.9 * float(np.nanmin(depth)), 1.1 * float(np.nanmax(depth))),
        names=[f"{index:08d}.png" for index in range(views)],
        scene=f"room_{seed:08d}",
    )


def photographs(
    pictures: list[np.ndarray], rng: np.random.Generator, strength: float, *, panorama: bool = False
) -> list[np.ndarray]:
    """One tone for all views, a small one and degradations for each: [H, W, 3] float32 in 0..255 to uint8."""
    if strength <= 0:
        return [np.clip(np.rint(picture), 0, 255).astype(np.uint8) for picture in pictures]
    common = tone_table(rng, strength)
    own = (apply_tone(apply_tone(picture, common), tone_table(rng, 0.25 * strength)) for picture in pictures)
    return [degrade(picture, rng, strength, panorama=panorama) for picture in own]


def _sources(room: Room, rng: np.random.Generator, reference: Camera, count: int) -> list[Camera]:
    """Cameras around the reference that look at what it looks at, the nearest first, none inside a thing."""
    center = camera_center(reference.world_to_camera)
    rotation = reference.world_to_camera[:3, :3]
    view = PinholeRays(reference)
    u, v = np.meshgrid(np.linspace(0, view.width - 1, 12), np.linspace(0, view.height - 1, 8))
    hits = trace(room, center, view.directions(u, v).reshape(-1, 3) @ rotation)
    middle = float(np.median(hits.distance[hits.found])) if hits.found.any() else 2.0
    target = center + middle * rotation[2]
    found: list[tuple[float, np.ndarray]] = []
    reach = 0.12 * middle
    for attempt in range(40 * count):
        if len(found) == count:
            break
        if attempt % 10 == 9:
            reach *= 0.93  # a full corner of the room: nearer to the reference
        step = rng.normal(0, 1, 3) * np.array([1.0, 0.5, 0.5]) * reach
        place = center + step @ rotation
        way = np.linalg.norm(step)
        blocked = trace(room, center, (place - center)[None] / max(way, 1e-9)).distance[0] < way + 0.15
        if way < 0.25 * reach or blocked:
            continue
        aim = target + rng.normal(0, 0.05 * middle, 3)
        found.append((float(way), look_at(place, aim, float(rng.normal(0, 0.05)))))
    while len(found) < count:
        found.append((9.0, move_right(reference.world_to_camera, 0.01 * (len(found) + 1))))
    found.sort(key=lambda item: item[0])
    return [replace(reference, world_to_camera=pose) for _, pose in found]
