# SPDX-License-Identifier: Apache-2.0
"""Where cameras stand in a room: clear of furniture, looking at it."""

from __future__ import annotations

import numpy as np

from vision3d.datasets.synthetic.rooms.raycast import trace
from vision3d.datasets.synthetic.rooms.room import Room
from vision3d.datasets.synthetic.rooms.views import PinholeRays
from vision3d.errors import InputError
from vision3d.geometry.panorama import panorama_rays
from vision3d.types import Camera

_ATTEMPTS = 60


def look_at(center: np.ndarray, target: np.ndarray, roll: float = 0.0) -> np.ndarray:
    """[4, 4] world-to-camera pose at ``center`` that looks at ``target`` (z up, camera y down), turned by ``roll``."""
    forward = (target - center) / np.linalg.norm(target - center)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= max(float(np.linalg.norm(right)), 1e-9)
    down = np.cross(forward, right)
    c, s = np.cos(roll), np.sin(roll)
    rotation = np.stack([c * right + s * down, -s * right + c * down, forward])
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation, -rotation @ center
    return pose


def move_right(world_to_camera: np.ndarray, baseline: float) -> np.ndarray:
    """The pose of a camera ``baseline`` metres to the right along its own x axis."""
    moved = world_to_camera.copy()
    moved[0, 3] -= baseline
    return moved


def free_point(room: Room, rng: np.random.Generator, clearance: float, heights: tuple[float, float]) -> np.ndarray:
    """A random point inside the room with nothing nearer than ``clearance`` metres, outside of all furniture.

    Where the room is too full, the freest point that was tried.

    Raises:
        InputError: the room has no size.
    """
    if room.size is None:
        raise InputError("cameras can be placed in closed rooms only, this scene has no size")
    rays = panorama_rays(10).reshape(-1, 3)
    best, most = np.array(room.size) / 2, -1.0
    for _ in range(_ATTEMPTS):
        x, y = (float(rng.uniform(0.25, size - 0.25)) for size in room.size[:2])
        point = np.array([x, y, min(float(rng.uniform(*heights)), room.size[2] - 0.25)])
        hits = trace(room, point, rays)
        if hits.backward.any() or not hits.found.all():
            continue
        free = float(hits.distance.min())
        if free >= clearance:
            return point
        if free > most:
            best, most = point, free
    return best


def inside_pose(room: Room, rng: np.random.Generator, camera: Camera, reach: float = 0.0) -> np.ndarray:
    """A pose from which much of the room is seen.

    Args:
        room: a closed room.
        rng: random numbers.
        camera: intrinsics and image size.
        reach: metres around the camera that must be free as well (the baseline of a rig).
    """
    best, most = np.eye(4), -1.0
    view = PinholeRays(camera)
    u, v = np.meshgrid(np.linspace(0, view.width - 1, 24), np.linspace(0, view.height - 1, 16))
    rays = view.directions(u, v).reshape(-1, 3)
    for _ in range(8):
        center = free_point(room, rng, max(0.35, 1.3 * reach), (0.4, 1.8))
        for _ in range(4):
            size = np.array(room.size)
            target = np.array([*(rng.uniform(0.1, 0.9, 2) * size[:2]), float(rng.uniform(0.15, 0.55)) * size[2]])
            if np.linalg.norm(target[:2] - center[:2]) < 0.5:
                continue
            pose = look_at(center, target, float(rng.normal(0, 0.06)))
            hits = trace(room, center, rays @ pose[:3, :3])
            objects = len(np.unique(room.object_of_part[room.part_of_face[hits.face]]))
            near, middle = np.percentile(np.where(hits.found, hits.distance, 0), (3, 50))
            score = min(near, 0.5) * 4 + min(middle, 2.0) + min(objects, 12) / 6
            if near > max(0.45, 2 * reach) and middle > 1.2 and objects >= 7:
                return pose
            if score > most:
                best, most = pose, float(score)
    return best
