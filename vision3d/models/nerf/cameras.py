# SPDX-License-Identifier: Apache-2.0
"""Learnt cameras of an image sequence: one focal length, one pose a frame, and the rays of pixels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from vision3d.errors import ConfigError, InputError
from vision3d.geometry.poses import (
    axis_angle_to_matrix,
    invert_pose,
    make_pose,
    matrix_to_axis_angle,
    matrix_to_quaternion,
    matrix_to_rotation_6d,
    quaternion_to_matrix,
    rotation_6d_to_matrix,
)
from vision3d.types import Camera

RotationForm = Literal["axis_angle", "quaternion", "rotation_6d"]
FocalForm = Literal["square", "ratio", "exp"]

DEFAULT_FIELD_OF_VIEW = 53.13
"""Degrees along the mean of width and height: the focal length is then (W + H) / 2."""

_ROTATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], tuple[float, ...]]] = {
    "axis_angle": (axis_angle_to_matrix, matrix_to_axis_angle, (0.0, 0.0, 0.0)),
    "quaternion": (quaternion_to_matrix, matrix_to_quaternion, (1.0, 0.0, 0.0, 0.0)),
    "rotation_6d": (rotation_6d_to_matrix, matrix_to_rotation_6d, (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)),
}
_FOCALS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[float], float]]] = {
    "square": (torch.square, math.sqrt),
    "ratio": (lambda f: f, lambda share: share),
    "exp": (torch.exp, math.log),
}


class CameraParameters(nn.Module):
    """Camera-to-world poses of all frames and their common focal length (CF-NeRF, arXiv 2312.08760).

    Parameters: ``phi`` [N, 3] (or 4, 6) rotations, ``t`` [N, 3] camera centres, ``f`` [1]. The focal length in pixels
    is ``share(f) * (W + H) / 2``, the same for both axes, so that one ``f`` serves all image sizes. The principal point
    is the image centre, (W / 2, H / 2) measured from the image's corner.

    Args:
        views: number of frames.
        height, width: of the images, pixels.
        rotation: form of ``phi``.
        focal: form of ``f``: share = f^2 ("square"), f ("ratio") or exp(f) ("exp").
        field_of_view: start value, degrees, along (W + H) / 2.

    Raises:
        ConfigError: an illegal option.
    """

    size: Tensor

    def __init__(
        self,
        views: int = 1,
        height: int = 480,
        width: int = 640,
        *,
        rotation: RotationForm = "axis_angle",
        focal: FocalForm = "square",
        field_of_view: float = DEFAULT_FIELD_OF_VIEW,
    ) -> None:
        super().__init__()
        if rotation not in _ROTATIONS or focal not in _FOCALS:
            raise ConfigError(
                f"cameras: rotation '{rotation}' must be one of {', '.join(_ROTATIONS)} and focal '{focal}' one of "
                f"{', '.join(_FOCALS)}"
            )
        if not 0 < field_of_view < 180 or views < 1:
            raise ConfigError(
                f"cameras: field_of_view {field_of_view} must lie between 0 and 180 degrees, views {views} be positive"
            )
        self.rotation_form, self.focal_form = rotation, focal
        share = 0.5 / math.tan(math.radians(field_of_view) / 2)
        self.f = nn.Parameter(torch.tensor([_FOCALS[focal][1](share)]))
        self.phi = nn.Parameter(torch.tensor(_ROTATIONS[rotation][2]).repeat(views, 1))
        self.t = nn.Parameter(torch.zeros(views, 3))
        self.register_buffer("size", torch.zeros(2, dtype=torch.int64))
        self.resize(height, width)

    def __len__(self) -> int:
        return len(self.t)

    @property
    def height(self) -> int:
        """Of the images, pixels."""
        return int(self.size[0])

    @property
    def width(self) -> int:
        """Of the images, pixels."""
        return int(self.size[1])

    def resize(self, height: int, width: int) -> None:
        """Follow the images to another size; no parameter changes.

        Raises:
            ConfigError: a size below 1.
        """
        if height < 1 or width < 1:
            raise ConfigError(f"cameras: an image of {width}x{height} pixels has no pixels")
        self.size.copy_(torch.tensor([height, width]))

    def focal_length(self) -> Tensor:
        """Focal length [1] in pixels of the present size."""
        return _FOCALS[self.focal_form][0](self.f) * ((self.width + self.height) / 2)

    def focal_share(self) -> float:
        """Focal length over (W + H) / 2, the same at all sizes."""
        return float(_FOCALS[self.focal_form][0](self.f.detach()))

    def set_focal_length(self, pixels: float) -> None:
        """Set the focal length, in pixels of the present size.

        Raises:
            InputError: a number that is not positive.
        """
        if not (pixels > 0 and math.isfinite(pixels)):
            raise InputError(f"a focal length of {pixels} pixels is not a positive number")
        with torch.no_grad():
            self.f.fill_(_FOCALS[self.focal_form][1](2 * pixels / (self.width + self.height)))

    def intrinsics(self) -> Tensor:
        """K [3, 3] with the principal point (W / 2, H / 2), for pixels counted from the image's corner (COLMAP)."""
        focal = self.focal_length()[0]
        zero, one = torch.zeros_like(focal), torch.ones_like(focal)
        rows = [focal, zero, one * self.width / 2, zero, focal, one * self.height / 2, zero, zero, one]
        return torch.stack(rows).view(3, 3)

    def rotations(self) -> Tensor:
        """Camera-to-world rotations [N, 3, 3]."""
        return self.to_rotations(self.phi)

    def to_rotations(self, phi: Tensor) -> Tensor:
        """Rotation matrices [M, 3, 3] of parameters [M, 3] (or 4, 6) of the form of ``phi``."""
        return _ROTATIONS[self.rotation_form][0](phi)

    def camera_to_world(self) -> Tensor:
        """Poses [N, 4, 4], OpenCV axes."""
        return make_pose(self.rotations(), self.t)

    def set_poses(self, camera_to_world: Tensor, first: int = 0) -> None:
        """Overwrite the poses of frames ``first``, ``first + 1`` ... by [M, 4, 4] camera-to-world matrices.

        Raises:
            InputError: a wrong shape, or more poses than frames.
        """
        count = len(camera_to_world) if camera_to_world.dim() == 3 else 0
        if tuple(camera_to_world.shape[1:]) != (4, 4) or not 0 <= first <= len(self) - count:
            raise InputError(
                f"poses must be [M, 4, 4] for frames from {first} of {len(self)}, got {list(camera_to_world.shape)}"
            )
        poses = camera_to_world.detach().to(self.t)
        with torch.no_grad():
            self.phi[first : first + count] = _ROTATIONS[self.rotation_form][1](poses[:, :3, :3])
            self.t[first : first + count] = poses[:, :3, 3]

    def copy_pose(self, source: int, target: int) -> None:
        """Start a frame where another one is."""
        with torch.no_grad():
            self.phi[target], self.t[target] = self.phi[source].clone(), self.t[source].clone()

    def camera(self, view: int) -> Camera:
        """The camera of a frame in the project's convention (pixel centres at integers, hence W / 2 - 0.5)."""
        with torch.no_grad():
            intrinsics = self.intrinsics().double().cpu().numpy()
            pose = invert_pose(self.camera_to_world()[view].double()).cpu().numpy()
        intrinsics[:2, 2] -= 0.5
        return Camera(intrinsics, self.width, self.height, world_to_camera=np.asarray(pose))

    def rays(self, views: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Rays of pixels, differentiable in all camera parameters.

        Args:
            views: [R] int64, frame of each ray.
            pixels: [R, 2] (column, row), counted from the image's corner: the centre of the first pixel is (0.5, 0.5).
                (The published code gives integers and adds a random offset in training.)

        Returns:
            Origins and directions [R, 3] in the world. The directions are not of unit length: their z in the camera is
            1, so that distances along the ray are z-depths.
        """
        centre = pixels.new_tensor([self.width / 2, self.height / 2])
        plane = (pixels - centre) / self.focal_length()
        directions = torch.cat([plane, torch.ones_like(plane[:, :1])], -1)
        rotations = self.to_rotations(self.phi[views])
        return self.t[views], (rotations @ directions[..., None])[..., 0]


def pixel_grid(height: int, width: int, device: torch.device | None = None) -> Tensor:
    """Centres [H * W, 2] of all pixels (column, row) in row-major order, counted from the image's corner."""
    rows, columns = torch.meshgrid(
        torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij"
    )
    return torch.stack([columns, rows], -1).view(-1, 2).float() + 0.5
