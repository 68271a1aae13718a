# SPDX-License-Identifier: Apache-2.0
"""A small scene with exact colours: a striped sphere in front of a coloured wall, seen by cameras on an arc."""

from __future__ import annotations

import torch

from vision3d.geometry.poses import axis_angle_to_matrix, make_pose
from vision3d.models.nerf.cameras import CameraParameters, pixel_grid
from vision3d.models.nerf.cfnerf import CFNeRF
from vision3d.training.nerf.images import ImagePyramid

VIEWS, SIZE = 8, 24
_SPHERE = torch.tensor([0.0, 0.0, 2.2])
_RADIUS, _WALL = 0.7, 3.2


def true_poses() -> torch.Tensor:
    """Camera-to-world [8, 4, 4]: the first is the identity, the others move to the right and turn left."""
    share = torch.linspace(0, 1, VIEWS)
    centers = torch.stack([0.9 * share, 0.25 * torch.sin(4 * share), 0.1 * share], 1)
    turns = torch.stack([0.05 * torch.sin(3 * share), -0.3 * share, 0 * share], 1)
    return make_pose(axis_angle_to_matrix(turns), centers)


def _colors(points: torch.Tensor, rates: tuple[float, float, float]) -> torch.Tensor:
    phases = points * torch.tensor(rates)
    mixed = torch.stack([phases.sum(-1), phases[..., 0] - phases[..., 1], phases[..., 1] + 1], -1)
    return 0.5 + 0.45 * torch.sin(mixed)


def exact_images(cameras: CameraParameters) -> torch.Tensor:
    """[8, 3, H, W], four rays a pixel."""
    pixels = pixel_grid(cameras.height, cameras.width)
    images = torch.zeros(VIEWS, 3, len(pixels))
    for view in range(VIEWS):
        for offset in ((-0.25, -0.25), (0.25, -0.25), (-0.25, 0.25), (0.25, 0.25)):
            with torch.no_grad():
                rays = cameras.rays(torch.full((len(pixels),), view), pixels + torch.tensor(offset))
            images[view] += _trace(*rays).T / 4
    return images.view(VIEWS, 3, cameras.height, cameras.width)


def _trace(origins: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    wall = origins + directions * ((_WALL - origins[:, 2:]) / directions[:, 2:])
    square, half = directions.square().sum(1), (directions * (origins - _SPHERE)).sum(1)
    root = half**2 - square * ((origins - _SPHERE).square().sum(1) - _RADIUS**2)
    hit = root > 0
    distance = (-half - root.clamp_min(0).sqrt()) / square
    sphere = origins + directions * distance[:, None]
    return torch.where(hit[:, None], _colors(sphere, (4.0, 5.0, 3.0)), _colors(wall, (2.0, 2.5, 0.0)))


def tiny_model(field: str = "hash_grid", seed: int = 0, **options: object) -> tuple[CFNeRF, ImagePyramid]:
    """A model with the true cameras, and the images of the scene."""
    torch.manual_seed(seed)
    if field == "hash_grid" and "field_options" not in options:
        options["field_options"] = {"levels": 5, "log2_rows": 13, "coarsest": 8, "finest": 64, "width": 16}
    elif "field_options" not in options:
        options["field_options"] = {"depth": 4, "width": 32, **({} if field == "siren" else {"skips": (1,)})}
    model = CFNeRF(
        field,  # type: ignore[arg-type]
        VIEWS,
        SIZE,
        SIZE,
        rendering={"near": 0.5, "far": 4.0, "samples": 24},
        **options,  # type: ignore[arg-type]
    )
    model.cameras.set_poses(true_poses())
    return model, ImagePyramid(exact_images(model.cameras))
