# SPDX-License-Identifier: Apache-2.0
"""CF-NeRF's order of work: start with three frames, add the others one by one, refine all (arXiv 2312.08760).

The work is a list of units: the start, one for each further frame, one for each last stage. A unit depends on the state
before it and on the seed alone, so that a run that stops between two units goes on to the same result.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from vision3d.errors import InputError
from vision3d.geometry.poses import interpolate_poses, se3_exp
from vision3d.training.nerf.direct_alignment import align_first_frames, align_frame
from vision3d.training.nerf.images import ImagePyramid
from vision3d.training.nerf.optimization import Progress, StageOptimizer
from vision3d.training.nerf.run_folder import NerfRun, StageRecord, build_model
from vision3d.training.nerf.schedule import Schedule
from vision3d.training.nerf.stages import Stage

_TURN = 0.03  # radians, standard deviation of the turns that further tries of a frame start with
_WINDOW = 3  # frames that a new one is aligned with
_UNREMARKABLE = 1e-3  # colour difference of direct alignment that says nothing against a frame (0.045 for each pixel)
_LEAST_LOSSES = 3  # local losses that make a median
_REPORT_EVERY = 10  # steps


@dataclass(frozen=True)
class FitProgress:
    """Where a fit stands.

    Attributes:
        stage: name of the stage.
        step, steps: of the stage.
        unit, units: of the whole fit.
        registered: frames with a camera.
        frames: to register.
        psnr: of the last steps' pixels, dB.
        focal: focal length, pixels of the original images.
    """

    stage: str
    step: int
    steps: int
    unit: int
    units: int
    registered: int
    frames: int
    psnr: float
    focal: float


FitCallback = Callable[[FitProgress], None]


@dataclass(frozen=True)
class _Unit:
    kind: str  # init, frame, refine, joint
    number: int = 0  # the frame, or the number of the last stage


def work_units(schedule: Schedule, frames: list[int]) -> list[_Unit]:
    """What is to do for these frames, in order."""
    refine = [_Unit("refine", number) for number in range(len(schedule.levels))]
    if schedule.method != "incremental":
        return [_Unit("joint"), *refine]
    first = 1 if schedule.register_init else schedule.init_frames
    return [_Unit("init"), *(_Unit("frame", frame) for frame in frames[first:]), *refine]


class IncrementalFit:
    """Runs the units of a fit that are left.

    Args:
        run: what is known so far; changed in place.
        images: of all frames, held-out ones included.
        schedule: the settings.
        save: called with the run after each unit.
        callback: called every few steps.

    Raises:
        InputError: fewer frames than the start needs.
    """

    def __init__(
        self,
        run: NerfRun,
        images: ImagePyramid,
        schedule: Schedule,
        save: Callable[[NerfRun], None] | None = None,
        callback: FitCallback | None = None,
    ) -> None:
        self.run, self.images, self.schedule = run, images, schedule
        self.save, self.callback = save, callback
        self.frames = [frame for frame in range(len(images)) if frame not in run.held_out]
        self.units = work_units(schedule, self.frames)
        self.stages = 0  # of the present unit
        if len(self.frames) < schedule.init_frames:
            raise InputError(
                f"{len(self.frames)} frames to fit, but the start takes {schedule.init_frames}: give more images"
            )

    def work(self) -> NerfRun:
        """Do all that is left.

        Raises:
            InputError: the loss is not finite; what was saved last is kept.
        """
        while self.run.position < len(self.units):
            self.stages = 0
            unit = self.units[self.run.position]
            {"init": self._init, "frame": self._frame, "refine": self._refine, "joint": self._joint}[unit.kind](unit)
            self.run.position += 1
            self.run.finished = self.run.position == len(self.units)
            self.run.model.cameras.resize(*self.run.size)
            if self.save is not None:
                self.save(self.run)
        return self.run

    def _init(self, unit: _Unit) -> None:
        first = self.frames[: self.schedule.init_frames]
        if self.schedule.direct:
            began, cameras = time.perf_counter(), self.run.model.cameras
            level, share = self.schedule.pyramid_level, cameras.focal_share()
            poses, cost = align_first_frames(self.images, first, share, self._depth(), level)
            for frame, pose in zip(first, poses, strict=True):
                cameras.set_poses(pose[None], frame)
            self._note("init", first, cost, began)
        else:
            self._stage(self.schedule.stage("init", first, 0))
        self.run.registered = first[:1] if self.schedule.register_init else first

    def _frame(self, unit: _Unit) -> None:
        run, schedule, frame = self.run, self.schedule, unit.number
        before, last = len(run.registered), frame == self.frames[-1]
        fits = self._align(frame) if schedule.direct else self._localise(frame)
        if fits:
            run.registered.append(frame)
        else:
            run.skipped.append(frame)
            run.warnings.append(f"{run.names[frame]} does not fit the other frames and is left out")
        if schedule.direct:
            return
        if fits:
            self._stage(schedule.stage("part", run.registered[-schedule.part_frames :], before))
        if last or (fits and len(run.registered) % schedule.every == 0):
            self._stage(schedule.stage("global", run.registered, before))

    def _localise(self, frame: int) -> bool:
        """Find the pose of a frame against the frozen field, from several starts if need be; whether it fits."""
        cameras, stage = self.run.model.cameras, self.schedule.stage("local", [frame], len(self.run.registered))
        limit = self._loss_limit()
        best_loss, best_pose = float("inf"), torch.eye(4)
        for attempt in range(self.schedule.attempts):
            self._place(frame, attempt)
            record = self._stage(stage if attempt == 0 else replace(stage, steps=2 * stage.steps))
            if record.loss < best_loss:
                best_loss, best_pose = record.loss, cameras.camera_to_world()[frame].detach().clone()
            if best_loss <= limit or self.schedule.attempts == 1:
                return True
        cameras.set_poses(best_pose[None], frame)
        return False

    def _loss_limit(self) -> float:
        """The local loss above which a frame does not fit; infinite while too few frames say what is usual."""
        losses: dict[int, float] = {}
        for record in self.run.history:
            if record.stage == "local" and record.frames[0] in self.run.registered:
                losses[record.frames[0]] = min(record.loss, losses.get(record.frames[0], float("inf")))
        if len(losses) < _LEAST_LOSSES:
            return float("inf")
        return self.schedule.failure_ratio * statistics.median(losses.values())

    def _place(self, frame: int, attempt: int) -> None:
        """Start the pose of a frame: as the schedule says, then at the last frame, then turned a little from there."""
        schedule, cameras, known = self.schedule, self.run.model.cameras, self.run.registered
        if attempt == 0 and not schedule.overwrite_init and frame in self.frames[: schedule.init_frames]:
            return  # the first stage has placed it
        cameras.copy_pose(known[-1], frame)
        if attempt == 0 and schedule.extrapolate and len(known) > 1:
            before, last = known[-2:]
            poses = cameras.camera_to_world().detach()
            moved = interpolate_poses(poses[before], poses[last], (frame - before) / (last - before))
            cameras.set_poses(moved[None], frame)
        elif attempt > 1:
            generator = torch.Generator().manual_seed(self._seed())
            turn = _TURN * torch.randn(6, generator=generator) * torch.tensor([1.0, 1, 1, 0, 0, 0])
            poses = cameras.camera_to_world().detach()
            cameras.set_poses((poses[frame] @ se3_exp(turn).to(poses))[None], frame)

    def _align(self, frame: int) -> bool:
        """Find the pose of a frame by direct alignment with the last ones; whether it fits."""
        cameras, known = self.run.model.cameras, self.run.registered[-_WINDOW:]
        share, level = cameras.focal_share(), self.schedule.pyramid_level
        limit = max(self._loss_limit(), _UNREMARKABLE)
        began, best, pose = time.perf_counter(), math.inf, torch.eye(4)
        for attempt in range(self.schedule.attempts):
            starts = []
            for start in (0, 1) if attempt == 0 else (2, 2):
                self._place(frame, start)
                starts.append(cameras.camera_to_world()[frame].detach().clone())
                self.stages += 1
            poses = cameras.camera_to_world().detach()[known]
            found, cost = align_frame(self.images, known, poses, frame, share, self._depth(), level, starts)
            if cost < best:
                best, pose = cost, found
            if best <= limit and math.isfinite(best):
                break
        cameras.set_poses(pose[None], frame)
        self._note("local", [frame], best, began)
        return math.isfinite(best) and (best <= limit or self.schedule.attempts == 1)

    def _note(self, stage: str, frames: list[int], cost: float, began: float) -> None:
        """Enter a direct alignment into the history: no optimiser steps, the PSNR from the colour difference."""
        run, seconds = self.run, time.perf_counter() - began
        psnr = -10 * math.log10(max(2 * min(cost, 0.5), 1e-12))
        number = len(run.registered)
        run.history.append(
            StageRecord(stage, tuple(frames), number, 0, seconds, min(cost, 1.0), psnr, run.focal_length)
        )
        self._tell(stage, 1, 1, psnr)

    def _depth(self) -> float:
        """Geometric mean of the depths that are sampled."""
        settings = self.run.model.rendering
        return math.sqrt(max(settings.near, settings.far / 100) * settings.far)

    def _refine(self, unit: _Unit) -> None:
        run, level = self.run, self.schedule.levels[unit.number]
        stage = self.schedule.stage("refine", run.registered, len(run.registered), level)
        if unit.number == 0 and self.schedule.reset_map:
            fresh = build_model(1, run.size, run.model_options, self._seed())
            run.model.field.load_state_dict(fresh.field.state_dict())
            self._stage(self.schedule.map_stage(run.registered, level))
        self._stage(stage)

    def _joint(self, unit: _Unit) -> None:
        self._stage(self.schedule.joint_stage(self.frames))
        self.run.registered = list(self.frames)

    def _seed(self) -> int:
        return self.run.seed * 1_000_003 + self.run.position * 1009 + self.stages

    def _stage(self, stage: Stage) -> StageRecord:
        """Run a stage and note it."""
        run = self.run
        optimizer = StageOptimizer(run.model, self.images, stage, self._seed())
        self.stages += 1
        optimizer.run(callback=lambda progress: self._report(stage, progress))
        done = optimizer.progress()
        record = StageRecord(
            stage.name,
            tuple(optimizer.views),
            len(run.registered),
            done.step,
            done.seconds,
            done.loss,
            done.psnr,
            run.focal_length,
        )
        run.history.append(record)
        return record

    def _report(self, stage: Stage, done: Progress) -> None:
        if done.step % _REPORT_EVERY == 0 or done.step >= stage.steps:
            self._tell(stage.name, done.step, stage.steps, done.psnr)

    def _tell(self, stage: str, step: int, steps: int, psnr: float) -> None:
        if self.callback is None:
            return
        run, units, frames = self.run, len(self.units), len(self.frames)
        registered = len(run.registered)
        self.callback(FitProgress(stage, step, steps, run.position, units, registered, frames, psnr, run.focal_length))
