#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Seconds that each radiance field needs to reach a PSNR on a folder of images with known poses.

Processor seconds of one thread, scoring not counted. Poses and focal length are fixed; half of the images (every second
one) are fitted, the others are scored.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass

import numpy as np
import torch

from vision3d.datasets.posed_images import PosedImages
from vision3d.models.nerf.cfnerf import FIELDS, CFNeRF
from vision3d.training.nerf.images import ImagePyramid
from vision3d.training.nerf.optimization import StageOptimizer, view_psnr
from vision3d.training.nerf.stages import LearningRate, Stage


@dataclass(frozen=True)
class Scene:
    """Images and poses relative to the first frame."""

    images: ImagePyramid
    poses: torch.Tensor
    focal: float


def read_scene(root: str) -> Scene:
    """Read a folder of posed images."""
    data = PosedImages(root, views=1)
    samples = [data[number] for number in range(len(data))]
    cameras = [sample.cameras[0] for sample in samples]
    poses = np.stack([cameras[0].world_to_camera @ np.linalg.inv(camera.world_to_camera) for camera in cameras])
    images = ImagePyramid([sample.images[0] for sample in samples])
    return Scene(images, torch.from_numpy(poses), cameras[0].fx)


def measure(scene: Scene, name: str, arguments: argparse.Namespace) -> dict[str, object]:
    """Fit one field for some seconds and score it every few steps."""
    torch.manual_seed(0)
    count = len(scene.images)
    rendering = {"far": arguments.far, "samples": arguments.samples}
    model = CFNeRF(name, count, *scene.images.size(0), rendering=rendering)  # type: ignore[arg-type]
    model.cameras.set_focal_length(scene.focal)
    model.cameras.set_poses(scene.poses)
    rate = arguments.rate or (1e-2 if name == "hash_grid" else 1e-3)
    stage = Stage(
        name,
        1_000_000,
        tuple(range(0, count, 2)),
        network=LearningRate(rate),
        rays_per_step=arguments.rays,
        views_per_step=None,
        pyramid_level=arguments.level,
        density_noise=0.0,
    )
    run = StageOptimizer(model, scene.images, stage)
    held_out = list(range(1, count, 2))
    curve: list[tuple[float, int, float]] = []
    seconds, limit = 0.0, arguments.seconds
    while seconds < limit:
        started, share = time.process_time(), limit / arguments.points
        run.run(callback=lambda _, end=started + share: time.process_time() >= end)
        seconds += time.process_time() - started
        scores = view_psnr(model, run.level, held_out[:: arguments.score_every])
        curve.append((round(seconds, 2), run.step, round(float(np.mean(list(scores.values()))), 2)))
    reached = {str(bar): next((row[0] for row in curve if row[2] >= bar), None) for bar in arguments.psnr}
    return {"field": name, "ms_per_step": round(1e3 * seconds / run.step, 1), "seconds_to": reached, "curve": curve}


def main() -> None:
    """Print one JSON line a field."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", help="folder of images with poses")
    parser.add_argument("--fields", nargs="+", default=list(FIELDS), choices=list(FIELDS))
    parser.add_argument("--seconds", type=float, default=40.0, help="training time of each field")
    parser.add_argument("--level", type=int, default=2, help="halvings of the images")
    parser.add_argument("--rays", type=int, default=512)
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--far", type=float, default=6.0)
    parser.add_argument("--rate", type=float, help="learning rate of the field (1e-3, hash_grid 1e-2)")
    parser.add_argument("--psnr", type=float, nargs="+", default=[20.0, 22.0, 24.0, 26.0, 28.0])
    parser.add_argument("--points", type=int, default=10, help="how often the field is scored")
    parser.add_argument("--score-every", type=int, default=2, help="of the held-out images, score every n-th")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    scene = read_scene(arguments.root)
    for name in arguments.fields:
        print(json.dumps(measure(scene, name, arguments)), flush=True)


if __name__ == "__main__":
    main()
