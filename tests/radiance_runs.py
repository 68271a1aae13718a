# SPDX-License-Identifier: Apache-2.0
"""A radiance field with exact geometry and cameras: a coloured ball in front of a coloured wall."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vision3d.geometry.poses import axis_angle_to_matrix, make_pose
from vision3d.models.nerf.cfnerf import CFNeRF
from vision3d.models.nerf.networks import Field
from vision3d.training.nerf.run_folder import NerfRun

VIEWS, HEIGHT, WIDTH, FOCAL = 8, 36, 48, 45.0
NEAR, FAR, SAMPLES = 0.5, 4.0, 200
BALL, RADIUS, WALL = torch.tensor([0.3, 0.0, 2.2]), 0.6, 3.2
INTERVAL = (FAR - NEAR) / (SAMPLES - 1)


class ExactField(Field):
    """Solid where the ball and the wall are, empty elsewhere.

    Args:
        blur: width of the surfaces; 0: none, and then the density has no gradient.
    """

    def __init__(self, blur: float = 0.0) -> None:
        super().__init__()
        self.blur = blur

    def forward(self, points: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        outside = torch.minimum((points - BALL).norm(dim=-1) - RADIUS, WALL - points[..., 2])
        phases = points * torch.tensor([4.0, 5.0, 3.0])
        mixed = torch.stack([phases.sum(-1), phases[..., 0] - phases[..., 1], phases[..., 1] + 1], -1)
        density = torch.where(outside < 0, 1e4, 0.0) if not self.blur else 100 * torch.sigmoid(-outside / self.blur)
        return 0.5 + 0.45 * torch.sin(mixed), density


def poses(count: int = VIEWS) -> Tensor:
    """Camera-to-world [count, 4, 4]: an arc to the right with a steady turn to the left."""
    share = torch.linspace(0, 1, count)
    turns = torch.stack([0.05 * share, -0.3 * share, 0.04 * share], 1)
    return make_pose(axis_angle_to_matrix(turns), torch.stack([0.9 * share, 0.2 * share, 0.25 * share**2], 1))


def exact_run(
    held_out: tuple[int, ...] = (3,), skipped: tuple[int, ...] = (), level: int = 0, blur: float = 0.0
) -> NerfRun:
    """A finished run; frames that are held out or skipped have no pose."""
    rendering = {"near": NEAR, "far": FAR, "samples": 80 if blur else SAMPLES}
    options = {"field": "relu", "field_options": {"depth": 1, "width": 4, "skips": ()}, "rendering": rendering}
    model = CFNeRF(views=VIEWS, height=HEIGHT, width=WIDTH, **options)  # type: ignore[arg-type]
    model.field = ExactField(blur)
    model.cameras.set_focal_length(FOCAL)
    placed = poses()
    missing = [*held_out, *skipped]
    placed[missing] = torch.eye(4)
    model.cameras.set_poses(placed)
    return NerfRun(
        model=model,
        names=[f"{number:04d}.png" for number in range(VIEWS)],
        size=(HEIGHT, WIDTH),
        schedule={"name": "fast", "final_level": level},
        model_options=options,
        registered=[frame for frame in range(VIEWS) if frame not in missing],
        skipped=list(skipped),
        held_out=list(held_out),
        finished=True,
    )


def true_depth(camera_to_world: np.ndarray, intrinsics: np.ndarray, height: int, width: int) -> np.ndarray:
    """z-depth [H, W] of the scene, by ray casting in NumPy."""
    rows, columns = np.mgrid[:height, :width]
    rays = np.stack([columns, rows, np.ones((height, width))], -1) @ np.linalg.inv(intrinsics).T
    rays = rays @ camera_to_world[:3, :3].T
    origin = camera_to_world[:3, 3]
    wall = (WALL - origin[2]) / rays[..., 2]
    offset = origin - BALL.numpy()
    square, half = (rays**2).sum(-1), rays @ offset
    root = half**2 - square * (offset @ offset - RADIUS**2)
    ball = (-half - np.sqrt(np.maximum(root, 0))) / square
    return np.where(root > 0, ball, wall)


def write_images(run: NerfRun, folder: Path) -> list[np.ndarray]:
    """Images of the scene from the true poses, in ``folder/images``; the run finds them there."""
    from vision3d.io.files import ensure_folder
    from vision3d.io.images import write_image
    from vision3d.radiance_render import picture, render_poses

    ensure_folder(folder / "images")
    images = [picture(view) for view in render_poses(run.model, poses().numpy(), run.size)]
    for name, image in zip(run.names, images, strict=True):
        write_image(folder / "images" / name, image)
    run.images_source = str(folder)
    return images
