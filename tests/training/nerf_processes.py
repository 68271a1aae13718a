# SPDX-License-Identifier: Apache-2.0
"""A stage on the small scene, run by one of several processes or by one alone."""

from __future__ import annotations

import torch
import torch.distributed as dist
from nerf_scene import tiny_model

from vision3d.training.nerf.optimization import StageOptimizer
from vision3d.training.nerf.stages import LearningRate, Stage


def run_stage(shares: int | None) -> dict[str, torch.Tensor]:
    """Four steps in float64 (rounding stays rounding there): all parameters, and the loss."""
    model, images = tiny_model(field_options={"levels": 2, "log2_rows": 8, "coarsest": 4, "finest": 8, "width": 8})
    rate = LearningRate(1e-3)
    stage = Stage("x", 4, network=rate, focal=rate, pose=LearningRate(0.1), rays_per_step=31, density_noise=0.1)
    run = StageOptimizer(model.double(), images, stage, 1, shares=shares)
    run.run()
    return {**model.state_dict(), "loss": torch.tensor(run.loss)}


def worker(rank: int, processes: int, meeting: str, out: str) -> None:
    """Run the stage as one of several gloo processes and save what came out."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    torch.save(run_stage(None), f"{out}/{rank}.pt")
    dist.destroy_process_group()
