# SPDX-License-Identifier: Apache-2.0
"""Joint optimisation of a radiance field and its cameras: one stage, deterministic by seed, resumable at any step."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from vision3d.errors import ConfigError, InputError
from vision3d.models.nerf.cfnerf import CFNeRF
from vision3d.training.nerf.images import ImagePyramid
from vision3d.training.nerf.pose_steps import PoseAdam
from vision3d.training.nerf.stages import Stage

DEFAULT_SEED = 3407
_SMOOTHING = 50  # steps that the reported loss is averaged over


@dataclass(frozen=True)
class Progress:
    """What a callback sees after each step.

    Attributes:
        step: number of steps done.
        loss, squared_error: smoothed over the last steps.
        seconds: spent in steps of this process.
    """

    step: int
    loss: float
    squared_error: float
    seconds: float

    @property
    def psnr(self) -> float:
        """PSNR of the last steps' pixels, dB."""
        return -10 * math.log10(max(self.squared_error, 1e-12))


@dataclass
class StageReport:
    """The outcome of a stage.

    Attributes:
        stage: its name.
        steps: done in all.
        seconds: spent in steps of this process.
        loss: smoothed training loss at the end.
        view_psnr: frame -> PSNR of its whole rendered image, dB; empty if not asked for.
        finished: all steps were done, or the loss had settled.
    """

    stage: str
    steps: int
    seconds: float
    loss: float
    view_psnr: dict[int, float] = field(default_factory=dict)
    finished: bool = True

    @property
    def psnr(self) -> float:
        """Mean PSNR over the frames, dB (NaN where it was not asked for)."""
        values = list(self.view_psnr.values())
        return sum(values) / len(values) if values else math.nan


Callback = Callable[[Progress], bool | None]


class StageOptimizer:
    """Runs one :class:`Stage`: fresh Adam optimisers, smooth L1 between rendered and true colours, nothing else.

    The model's cameras are set to the size of the stage's pyramid level. All randomness comes from generators of its
    own, so that equal seeds give equal results on one machine, interrupted or not.

    A step's rays can be divided into shares, each with its own random depths. One process works on all of them in
    turn; the processes of an initialised ``torch.distributed`` group work on one share each and add up their gradients,
    with the same result.

    Args:
        model: field and cameras; changed in place.
        images: those of all frames of ``model.cameras``, or at least of the stage's.
        stage: what to do.
        seed: of the random numbers.
        shares: parts of a step's rays; None: as many as there are processes.

    Raises:
        InputError: frames without image or camera, or shares that are not as many as the processes.
    """

    def __init__(
        self,
        model: CFNeRF,
        images: ImagePyramid,
        stage: Stage,
        seed: int = DEFAULT_SEED,
        *,
        shares: int | None = None,
    ) -> None:
        self.model, self.images, self.stage = model, images, stage
        self.views = list(stage.views) if stage.views is not None else list(range(len(images)))
        known = min(len(images), len(model.cameras))
        if any(not 0 <= view < known for view in self.views):
            raise InputError(
                f"stage '{stage.name}': frames {self.views} asked for, but there are {len(images)} images and "
                f"{len(model.cameras)} cameras"
            )
        self.device = model.cameras.t.device
        self.level = images.level(stage.pyramid_level).to(self.device)
        model.cameras.resize(*images.size(stage.pyramid_level))
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.shares = _Shares(shares, seed, self.device)
        self.groups = _parameters(model)
        self.optimizers = {kind: self._optimizer(kind) for kind in stage.learning_rates}
        self.free = [parameter for kind in self.optimizers for parameter in self.groups[kind]]
        self.queue: list[int] = []
        self.step, self.seconds = 0, 0.0
        self.loss = self.squared_error = math.nan
        self.settled = False
        self._best = (math.inf, 0)

    @property
    def finished(self) -> bool:
        """No step is left to do."""
        return self.settled or self.step >= self.stage.steps

    def run(self, steps: int | None = None, callback: Callback | None = None) -> None:
        """Do ``steps`` steps (None: all that are left); a callback that returns True ends it earlier."""
        last = self.stage.steps if steps is None else min(self.step + steps, self.stage.steps)
        mode = self.model.training
        self.model.train()
        free = {id(parameter) for parameter in self.free}
        fixed = [p for p in self.model.parameters() if p.requires_grad and id(p) not in free]
        for parameter in fixed:
            parameter.requires_grad_(False)
        try:
            while self.step < last and not self.settled:
                started = time.perf_counter()
                self._advance()
                self.seconds += time.perf_counter() - started
                if callback is not None and callback(self.progress()):
                    break
        finally:
            self.model.train(mode)
            for parameter in fixed:
                parameter.requires_grad_(True)

    def progress(self) -> Progress:
        """Where the run stands."""
        return Progress(self.step, self.loss, self.squared_error, self.seconds)

    def report(self, *, psnr: bool = True) -> StageReport:
        """The outcome so far; ``psnr`` renders every frame of the stage."""
        scores = view_psnr(self.model, self.level, self.views) if psnr else {}
        return StageReport(self.stage.name, self.step, self.seconds, self.loss, scores, self.finished)

    def _advance(self) -> None:
        stage = self.stage
        window = stage.progress(self.step)
        if window is not None:
            self.model.field.set_progress(window)
        for kind, optimizer in self.optimizers.items():
            optimizer.param_groups[0]["lr"] = stage.learning_rates[kind].at(self.step)
            optimizer.zero_grad(set_to_none=True)
        rays = self._draw()
        sums = torch.zeros(2, device=self.device)
        for share, generator in self.shares.generators.items():
            sums += self._backward([part[share :: self.shares.count] for part in rays], len(rays[0]), generator)
        self.shares.add_up(self.free, sums)
        for optimizer in self.optimizers.values():
            optimizer.step()
        self.step += 1
        self._record(*sums.tolist())
        if self.step == stage.steps and window is not None:
            self.model.field.set_progress(stage.progress(stage.steps) or 0.0)

    def _backward(self, rays: list[Tensor], count: int, generator: torch.Generator) -> Tensor:
        """Add the gradients of some of a step's ``count`` rays; their parts [2] of the loss and the squared error."""
        views, pixels, colors = rays
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.stage.precision == "bfloat16"):
            rendered = self.model(
                views, pixels, density_noise=self.stage.density_noise, generator=generator
            ).rgb.float()
        loss = F.smooth_l1_loss(rendered, colors, reduction="sum") / (3 * count)
        loss.backward(inputs=self.free)
        rendered = rendered.detach()
        error = F.mse_loss(rendered.clamp(0, 1), colors, reduction="sum") / (3 * count)
        return torch.stack([loss.detach(), error])

    def _optimizer(self, kind: str) -> torch.optim.Adam | PoseAdam:
        field = self.model.field
        if kind == "pose":
            return PoseAdam(self.model, self.views, self.generator)
        if kind == "network":
            return torch.optim.Adam(self.groups[kind], betas=field.adam_betas, eps=field.adam_epsilon)
        return torch.optim.Adam(self.groups[kind])

    def _draw(self) -> tuple[Tensor, Tensor, Tensor]:
        """Frames [R], pixels [R, 2] and true colours [R, 3] of the next step."""
        height, width = self.level.shape[2:]
        chosen = self._next_views()
        share = max(min(self.stage.rays_per_step // len(chosen), height * width), 1)
        places = torch.cat(
            [torch.randperm(height * width, generator=self.generator, device=self.device)[:share] for _ in chosen]
        )
        views = torch.tensor(chosen, device=self.device).repeat_interleave(share)
        corners = torch.stack([places % width, places // width], 1).float()
        offsets: Tensor | float = 0.5
        if self.stage.jitter_pixels:
            offsets = torch.rand(corners.shape, generator=self.generator, device=self.device)
        return views, corners + offsets, self.level.flatten(2)[views, :, places]

    def _next_views(self) -> list[int]:
        wanted = self.stage.views_per_step
        if wanted is None or wanted >= len(self.views):
            return self.views
        while len(self.queue) < wanted:
            order = list(range(len(self.views)))
            if self.stage.shuffle:
                order = torch.randperm(len(order), generator=self.generator, device=self.device).tolist()
            self.queue += [self.views[place] for place in order]
        chosen, self.queue = self.queue[:wanted], self.queue[wanted:]
        return chosen

    def _record(self, loss: float, squared_error: float) -> None:
        if not math.isfinite(loss):
            raise InputError(
                f"stage '{self.stage.name}': the loss is {loss} after {self.step} steps; lower the learning rates"
            )
        share = max(1 / self.step, 1 / _SMOOTHING)
        self.loss = loss if self.step == 1 else (1 - share) * self.loss + share * loss
        self.squared_error = (
            squared_error if self.step == 1 else (1 - share) * self.squared_error + share * squared_error
        )
        best, since = self._best
        if self.loss < best * (1 - self.stage.least_gain):
            self._best = self.loss, self.step
        elif self.stage.patience is not None and self.step - since >= self.stage.patience:
            self.settled = True

    def state_dict(self) -> dict[str, Any]:
        """Everything that :meth:`load_state_dict` needs to go on, the model included; plain values and tensors."""
        state = {
            "stage": self.stage.name,
            "model": self.model.state_dict(),
            "optimizers": {kind: optimizer.state_dict() for kind, optimizer in self.optimizers.items()},
            "generator": self.generator.get_state(),
            "shares": [generator.get_state() for generator in self.shares.generators.values()],
            "queue": list(self.queue),
            "step": self.step,
            "loss": self.loss,
            "squared_error": self.squared_error,
            "settled": self.settled,
            "best": list(self._best),
        }
        return copy.deepcopy(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another run of the same stage stopped.

        Raises:
            ConfigError: the state is of another stage.
        """
        if state["stage"] != self.stage.name or set(state["optimizers"]) != set(self.optimizers):
            raise ConfigError(
                f"the saved state is of stage '{state['stage']}' ({', '.join(state['optimizers'])} free), not of "
                f"'{self.stage.name}' ({', '.join(self.optimizers)} free)"
            )
        self.model.load_state_dict(state["model"])
        for kind, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][kind])
        self.generator.set_state(state["generator"].cpu())
        for generator, saved in zip(self.shares.generators.values(), state["shares"], strict=True):
            generator.set_state(saved.cpu())
        self.queue = list(state["queue"])
        self.step, self.settled = int(state["step"]), bool(state["settled"])
        self.loss, self.squared_error = float(state["loss"]), float(state["squared_error"])
        self._best = float(state["best"][0]), int(state["best"][1])


def _parameters(model: CFNeRF) -> dict[str, list[nn.Parameter]]:
    cameras = model.cameras
    return {
        "network": list(model.field.parameters()),
        "focal": [cameras.f],
        "rotation": [cameras.phi],
        "translation": [cameras.t],
        "pose": [cameras.phi, cameras.t],
    }


class _Shares:
    """The parts of a step's rays that this process works on, and the sum over all processes."""

    def __init__(self, count: int | None, seed: int, device: torch.device) -> None:
        self.group = dist.is_available() and dist.is_initialized()
        processes = dist.get_world_size() if self.group else 1
        self.count = processes if count is None else count
        if self.count < 1 or (self.group and self.count != processes):
            raise InputError(f"a step cannot have {self.count} shares with {processes} processes: give as many")
        own = [dist.get_rank()] if self.group else range(self.count)
        self.generators = {share: torch.Generator(device).manual_seed(seed + 7919 * (share + 1)) for share in own}

    def add_up(self, parameters: list[nn.Parameter], sums: Tensor) -> None:
        """Replace the gradients, and ``sums``, by their sums over the processes."""
        if not self.group:
            return
        parts = [torch.zeros_like(value) if value.grad is None else value.grad for value in parameters]
        flat = torch.cat([part.flatten() for part in [*parts, sums]])
        dist.all_reduce(flat)
        found = flat.split([part.numel() for part in [*parts, sums]])
        for parameter, part in zip(parameters, found, strict=False):
            parameter.grad = part.view_as(parameter)
        sums.copy_(found[-1])


def view_psnr(model: CFNeRF, images: Tensor, views: Sequence[int]) -> dict[int, float]:
    """PSNR in dB of whole rendered frames against ``images`` [N, 3, H, W] of the cameras' present size."""
    scores = {}
    for view in views:
        error = F.mse_loss(model.render_view(view).rgb, images[view].to(model.cameras.t.device))
        scores[view] = -10 * math.log10(max(float(error), 1e-12))
    return scores


def optimize(
    model: CFNeRF,
    images: ImagePyramid | Tensor,
    stage: Stage,
    *,
    seed: int = DEFAULT_SEED,
    state: Mapping[str, Any] | None = None,
    callback: Callback | None = None,
    psnr: bool = True,
) -> StageReport:
    """Run a stage to its end and score it: the one call that pipelines and baselines need.

    Args:
        model: field and cameras, changed in place. What is free is the stage's business.
        images: of all frames, at full size.
        stage: steps, rays, step sizes, pyramid level, coarse-to-fine window.
        seed: of the random numbers.
        state: of :meth:`StageOptimizer.state_dict`, to go on from.
        callback: called after each step; True ends the stage.
        psnr: render and score every frame of the stage at the end.
    """
    run = StageOptimizer(model, images if isinstance(images, ImagePyramid) else ImagePyramid(images), stage, seed)
    if state is not None:
        run.load_state_dict(state)
    run.run(callback=callback)
    return run.report(psnr=psnr)
