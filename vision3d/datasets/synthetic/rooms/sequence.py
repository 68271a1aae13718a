# SPDX-License-Identifier: Apache-2.0
"""Image sequences of one camera that moves through a room, with exact poses and depth."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial.transform import Rotation

from vision3d.datasets.synthetic.rooms.layout import make_room
from vision3d.datasets.synthetic.rooms.options import RoomOptions
from vision3d.datasets.synthetic.rooms.poses import inside_pose
from vision3d.datasets.synthetic.rooms.raycast import trace
from vision3d.datasets.synthetic.rooms.room import Room
from vision3d.datasets.synthetic.rooms.samples import photographs
from vision3d.datasets.synthetic.rooms.stereo import random_rig
from vision3d.datasets.synthetic.rooms.views import PinholeRays, camera_center, expose, render_view
from vision3d.errors import InputError
from vision3d.geometry.panorama import panorama_rays
from vision3d.io.camera_json import PosedImage
from vision3d.io.colmap import colmap_model, write_colmap
from vision3d.io.disparity import write_depth_png16
from vision3d.io.files import ensure_folder
from vision3d.io.images import write_image
from vision3d.types import Camera

_ATTEMPTS = 40
_CLEARANCE = 0.35  # metres around every camera without a surface


@dataclass(frozen=True)
class RoomSequence:
    """A walk through a room.

    Attributes:
        images: [H, W, 3] uint8 RGB, in the order of capture.
        cameras: their cameras, metres; the principal point is the middle of the image.
        depths: [H, W] float32 z-depth, metres, NaN where nothing is (windows).
        name: of the scene.
    """

    images: list[np.ndarray]
    cameras: list[Camera]
    depths: list[np.ndarray]
    name: str


def make_room_sequence(
    seed: int,
    frames: int = 16,
    height: int = 120,
    width: int = 160,
    options: RoomOptions | None = None,
    *,
    turn: float = 1.0,
) -> RoomSequence:
    """Make the sequence of a seed: a sideways walk on an arc, in steps of 0.13 to 0.17 m.

    The camera turns 1 to 2 degrees a frame towards what it looks at (``turn`` = 1). Other values multiply the turn of
    each frame and leave room, start and centres as they are.

    Args:
        seed: the same arguments give the same sequence.
        frames: number of frames.
        height, width: size of the images, pixels.
        options: what the room looks like; ``focal`` is used.
        turn: factor on the rotation.

    Raises:
        InputError: no frame, images below 16 x 32, a turn of more than 45 degrees a frame, or a room in which no clear
            path was found (too many frames, or a small full room).
        MissingExtraError: Open3D is not installed.
    """
    if frames < 1 or height < 16 or width < 32 or not 0 <= turn <= 20:
        raise InputError(
            f"a sequence has at least 1 frame of 16 x 32 and a turn of 0 to 20, got {frames} frames of {height} x "
            f"{width} and a turn of {turn}"
        )
    options = options or RoomOptions()
    room = make_room(seed, options)
    rng = np.random.default_rng([seed, 77_003])
    camera = random_rig(rng, height, width, options).left
    cameras = _walk(room, rng, camera, frames, turn)
    renders = [render_view(room, PinholeRays(item), options) for item in cameras]
    pictures = expose([render.color for render in renders], room.effects)
    return RoomSequence(
        images=photographs(pictures, rng, options.photometric),
        cameras=cameras,
        depths=[render.depth.astype(np.float32) for render in renders],
        name=f"room_{seed:08d}",
    )


def write_room_sequence(folder: str | os.PathLike[str], sequence: RoomSequence) -> None:
    """Write ``images/%04d.png``, ``sparse/*.txt`` (COLMAP, one shared camera) and ``depth/%04d.png`` (16-bit mm).

    Raises:
        OutputError: the folder cannot be written.
    """
    root = ensure_folder(folder)
    images, depths = ensure_folder(root / "images"), ensure_folder(root / "depth")
    names = [f"{number:04d}.png" for number in range(len(sequence.images))]
    for name, image, depth in zip(names, sequence.images, sequence.depths, strict=True):
        write_image(images / name, image)
        write_depth_png16(depths / name, depth)
    model = colmap_model([PosedImage(*row) for row in zip(names, sequence.cameras, strict=True)])
    write_colmap(ensure_folder(root / "sparse"), model, binary=False)


def _walk(room: Room, rng: np.random.Generator, camera: Camera, frames: int, turn: float) -> list[Camera]:
    """Cameras on a clear path; the same for every ``turn`` but for their rotation."""
    for _ in range(_ATTEMPTS):
        start = inside_pose(room, rng, camera)
        side = float(rng.choice([-1.0, 1.0]))  # to the left or to the right
        bend, phase = float(rng.uniform(0.02, 0.05)), float(rng.uniform(0, 2 * np.pi))
        centers = _centers(start, frames, side, bend, phase)
        if _is_clear(room, centers):
            return [replace(camera, world_to_camera=pose) for pose in _poses(start, centers, turn, -side, phase)]
    raise InputError(f"found no clear path of {frames} frames in this room; take fewer frames, or another seed")


def _centers(start: np.ndarray, frames: int, side: float, bend: float, phase: float) -> np.ndarray:
    """[N, 3] camera centres: steps of 0.13 to 0.17 m to the side and forwards, bending, a little up and down."""
    number = np.arange(frames - 1)
    heading = 0.5 - bend * number  # radians from the side towards the view, at first forwards, later backwards
    lift = 0.12 * np.sin(0.5 * number + phase)
    steps = np.stack([side * np.cos(heading), lift, np.sin(heading)], 1)
    steps *= (0.15 + 0.02 * np.sin(0.7 * number + phase))[:, None] / np.linalg.norm(steps, axis=1, keepdims=True)
    path = np.concatenate([np.zeros((1, 3)), np.cumsum(steps, axis=0)])
    return np.asarray(camera_center(start) + path @ start[:3, :3])


def _poses(start: np.ndarray, centers: np.ndarray, turn: float, sign: float, phase: float) -> list[np.ndarray]:
    """World-to-camera poses: each turned against the one before by 1 to 2 degrees times ``turn``."""
    number = np.arange(len(centers) - 1)
    angles = np.radians(1.5 + 0.5 * np.sin(0.4 * number + phase))
    axes = np.stack([0.35 * np.cos(0.3 * number + phase), np.full(len(number), sign), 0.15 * np.sin(0.5 * number)], 1)
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    rotation = start[:3, :3]
    poses = []
    for frame, center in enumerate(centers):
        if frame:
            turned = Rotation.from_rotvec(turn * angles[frame - 1] * axes[frame - 1]).as_matrix()
            rotation = turned.T @ rotation
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = rotation, -rotation @ center
        poses.append(pose)
    return poses


def _is_clear(room: Room, centers: np.ndarray) -> bool:
    """Whether nothing is near the path, and no part of it lies in a thing or outside the room."""
    rays = panorama_rays(8).reshape(-1, 3)
    for center in centers:
        hits = trace(room, center, rays)
        if hits.backward.any() or not hits.found.all() or float(hits.distance.min()) < _CLEARANCE:
            return False
    return True
