# SPDX-License-Identifier: Apache-2.0
"""Stereo pairs of rooms with exact disparity, occlusion and normals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from vision3d.datasets.synthetic.photometric import photometric_change
from vision3d.datasets.synthetic.rooms.layout import make_room
from vision3d.datasets.synthetic.rooms.options import RoomOptions
from vision3d.datasets.synthetic.rooms.poses import inside_pose, move_right
from vision3d.datasets.synthetic.rooms.raycast import hidden
from vision3d.datasets.synthetic.rooms.room import Room
from vision3d.datasets.synthetic.rooms.views import PinholeRays, ViewRender, camera_center, expose, render_view
from vision3d.errors import InputError, check_option_names
from vision3d.types import Camera, StereoRig, StereoSample

_SAME_POINT = 2e-4  # share of the distance, and metres, below which two hits are the same point


def random_rig(rng: np.random.Generator, height: int, width: int, options: RoomOptions) -> StereoRig:
    """A rig with the principal point in the middle; the default options give that of IRS (f = width / 2, 0.1 m)."""
    focal, baseline = (
        float(np.exp(rng.uniform(np.log(low), np.log(high)))) if low < high else low
        for low, high in (options.focal, options.baseline)
    )
    pixels = focal * width
    intrinsics = np.array([[pixels, 0, (width - 1) / 2], [0, pixels, (height - 1) / 2], [0, 0, 1.0]])
    camera = Camera(intrinsics, width, height)
    return StereoRig(camera, camera, baseline)


def render_stereo(
    room: Room, rig: StereoRig, world_to_left: np.ndarray, options: RoomOptions | None = None
) -> tuple[ViewRender, ViewRender]:
    """Both views of a rig whose left camera is at ``world_to_left`` [4, 4]."""
    cameras = (
        replace(rig.left, world_to_camera=world_to_left),
        replace(rig.right, world_to_camera=move_right(world_to_left, rig.baseline)),
    )
    left, right = (render_view(room, PinholeRays(camera), options) for camera in cameras)
    return left, right


def find_occlusion(room: Room, view: ViewRender, other: Camera) -> np.ndarray:
    """[H, W] bool: the pixel's point is outside of the other camera's image, or something hides it there.

    Args:
        room: the scene.
        view: a rendered view.
        other: the other camera with its pose and image size.
    """
    shape = view.distance.shape
    points = view.points.reshape(-1, 3)
    seen = (points @ other.world_to_camera[:3, :3].T + other.world_to_camera[:3, 3]) @ other.intrinsics.T
    with np.errstate(invalid="ignore", divide="ignore"):
        x, y = seen[:, 0] / seen[:, 2], seen[:, 1] / seen[:, 2]
        margin = 1e-3
        inside = (seen[:, 2] > 0) & (x >= -margin) & (x <= (other.width or 0) - 1 + margin)
        inside &= (y >= -0.5) & (y <= (other.height or 0) - 0.5)
    center = camera_center(other.world_to_camera)
    away = np.linalg.norm(points - center, axis=1)
    end = 1 - _SAME_POINT - _SAME_POINT / np.maximum(away, 1e-3)
    index = np.flatnonzero(inside)
    result = ~inside
    start = np.broadcast_to(center.astype(np.float32), (len(index), 3))
    result[index] = hidden(room, start, points[index].astype(np.float32), end[index])
    return np.asarray(result.reshape(shape))


def make_room_stereo(
    seed: int,
    height: int = 540,
    width: int = 960,
    rig: StereoRig | None = None,
    options: RoomOptions | None = None,
) -> StereoSample:
    """Make the stereo pair of a seed inside the room of that seed.

    Args:
        seed: the same seed, size, rig and options give the same pair.
        height, width: image size, pixels, at least 16 x 32.
        rig: the cameras, of this image size; None: drawn from ``options.baseline`` and ``options.focal``, by default
            the rig of IRS (f = width / 2, principal point in the middle, 0.1 m).
        options: what rooms look like.

    Returns:
        Sample with exact ``disparity`` (also in occluded pixels), ``right_disparity``, ``occlusion``, ``normals`` and
        ``rig``.

    Raises:
        InputError: the size is too small, or not that of the rig.
        MissingExtraError: Open3D is not installed.
    """
    if height < 16 or width < 32:
        raise InputError(f"a synthetic room needs at least 16 x 32 pixels (height x width), got {height} x {width}")
    if rig is not None and rig.size != (width, height):
        raise InputError(f"the rig is for images of {rig.size}, asked are {(width, height)}: use StereoRig.resized")
    options = options or RoomOptions()
    room = make_room(seed, options)
    rng = np.random.default_rng([seed, 31_337])
    rig = rig or random_rig(rng, height, width, options)
    pose = inside_pose(room, rng, rig.left, reach=rig.baseline)
    left, right = render_stereo(room, rig, pose, options)
    images = expose([left.color, right.color], room.effects)
    left_image, right_image = photometric_change(images[0], images[1], rng, options.photometric)
    product = rig.left.fx * rig.baseline
    return StereoSample(
        left=left_image,
        right=right_image,
        disparity=(product / left.depth - rig.doffs).astype(np.float32),
        occlusion=find_occlusion(room, left, replace(rig.right, world_to_camera=move_right(pose, rig.baseline))),
        right_disparity=(product / right.depth - rig.doffs).astype(np.float32),
        normals=left.normals,
        rig=rig,
        scene=f"room_{seed:08d}",
    )


class RoomStereo(Dataset[StereoSample]):
    """Stereo pairs of rooms made on the fly, numbered by their seed.

    Args:
        height, width: size of the pairs.
        seed: the first room's number.
        scenes: how many there are; None: no end, no room is seen twice.
        options: those of :class:`RoomOptions`.

    Attributes:
        scenes: the names, or None where there is no end.

    Raises:
        ConfigError: unknown option, or a value out of range.
    """

    name = "synthetic_rooms"

    def __init__(
        self, height: int = 256, width: int = 512, seed: int = 0, scenes: int | None = None, **options: Any
    ) -> None:
        check_option_names(self.name, RoomOptions.__dataclass_fields__, options)
        self.height, self.width, self.seed, self.count = height, width, seed, scenes
        self.scenes = None if scenes is None else [f"room_{seed + index:08d}" for index in range(scenes)]
        self.options = RoomOptions(**options)

    def __len__(self) -> int:
        if self.count is None:
            raise TypeError("these rooms have no end")
        return self.count

    def __getitem__(self, index: int) -> StereoSample:
        """Make the pair of seed ``self.seed + index``."""
        if self.count is not None and not 0 <= index < self.count:
            raise IndexError(index)
        return make_room_stereo(self.seed + index, self.height, self.width, options=self.options)
