# SPDX-License-Identifier: Apache-2.0
"""A fitted field seen from other places."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from vision3d.models.nerf.cameras import CameraParameters
from vision3d.models.nerf.cfnerf import CFNeRF


def with_cameras(model: CFNeRF, camera_to_world: Tensor, size: tuple[int, int] | None = None) -> CFNeRF:
    """The same field (shared, not copied) with other cameras of the same lens.

    Args:
        model: field and cameras; unchanged.
        camera_to_world: [M, 4, 4] poses of the new cameras, OpenCV axes.
        size: (height, width) of the new images; None: that of the model's cameras. The focal length follows.

    Raises:
        InputError: poses of another shape. ConfigError: a size below 1.
    """
    old = model.cameras
    height, width = size or (old.height, old.width)
    cameras = CameraParameters(
        max(len(camera_to_world), 1), height, width, rotation=old.rotation_form, focal=old.focal_form
    ).to(old.t)
    cameras.set_poses(camera_to_world)
    with torch.no_grad():
        cameras.f.copy_(old.f)
    other = copy.copy(model)
    other._modules = dict(model._modules)
    other.cameras = cameras
    return other
