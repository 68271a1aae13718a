# SPDX-License-Identifier: Apache-2.0
"""How a radiance field is fitted, as data: the published schedule of CF-NeRF, a fast one, and two baselines.

``published`` counts steps and step sizes as CF-NeRF (arXiv 2312.08760) does. ``fast`` keeps its order of work and
changes what it is done with: a hash grid, rays of all frames in every step, pose steps in pixels.
``nerfmm`` and ``barf`` fit all frames at once from equal poses.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_type_hints

from vision3d.errors import ConfigError, UnknownNameError, check_option_names
from vision3d.models.nerf.cameras import DEFAULT_FIELD_OF_VIEW, FocalForm
from vision3d.models.nerf.cfnerf import FieldName
from vision3d.models.nerf.rendering import Rendering
from vision3d.training.nerf.stages import LearningRate, Stage, barf_stage, cfnerf_stage, nerfmm_stage

Kind = Literal["init", "local", "part", "global", "refine"]
_EARLY = 4  # frames; while fewer were registered before, a published stage takes ``early`` epochs


@dataclass(frozen=True)
class Schedule:
    """The settings of a fit. Numbers of steps are epochs (one step for each frame) where ``epochs`` is set.

    Attributes:
        name: published, fast, nerfmm, barf.
        method: frame by frame, or all frames at once.
        model_field, field_options, rendering, focal, field_of_view: of the model (see
            :class:`vision3d.models.nerf.cfnerf.CFNeRF`).
        epochs: steps are counted for each frame, step sizes are the published ones, and a step sees one frame.
        init_frames: frames that start the scene.
        init, early, local, part, full, refine: length of the stages: the start; local, part and global stages of the
            first frames (published: while fewer than four were registered); those of later frames; the last stages.
        part_frames: newest frames of a partial adjustment.
        every: a global adjustment follows every so many registered frames, and the last one.
        pyramid_level: halvings of the images until all frames are registered.
        longest_side: instead, pixels: the fewest halvings that leave no longer side than this; 0: ``pyramid_level``.
        reset_map: before the last stages the field starts anew from the poses (a variant of the published runs), with
            a stage of its own in which they stay as they are.
        refine_levels: last stages on all frames, each at half the halvings of the one before: levels
            ``pyramid_level``, ``pyramid_level - 1`` ... (not below 0).
        rays: pixels in a step.
        overwrite_init: frames 1 and 2 start again where frame 0 is, as in the published program, which so throws away
            the positions that its first stage found. Otherwise they go on from there.
        register_init: the frames of the first stage pass through registration too (published); otherwise they count as
            registered.
        direct: the pose of each frame comes from direct image alignment with the last ones
            (:mod:`vision3d.training.nerf.direct_alignment`), and the field begins once all frames have one: there are
            no init, local, part and global stages.
        extrapolate: a new frame starts with the motion of the last two; otherwise where the last one is.
        focal_from: registered frames from which the focal length is free.
        network_rate, focal_rate: step sizes (``epochs`` unset), falling to ``rate_end`` times it in a stage.
        pose_rate: step size of the poses in pixels.
        rate_end: see above.
        window: share of the first stage in which the coarse-to-fine window opens; 0 leaves it open.
        full_window: the same of global stages before all frames are registered.
        patience: end a stage when its loss settles for so many steps (see ``Stage``); 0 never.
        attempts: how often a frame is tried that does not fit; 1: the first try is taken as it is.
        failure_ratio: a frame does not fit when its local loss is above so many times the median of the others.
    """

    name: str
    method: Literal["incremental", "nerfmm", "barf"] = "incremental"
    model_field: FieldName = "siren"
    field_options: Mapping[str, Any] = field(default_factory=dict)
    rendering: Mapping[str, Any] = field(default_factory=dict)
    focal: FocalForm = "square"
    field_of_view: float = DEFAULT_FIELD_OF_VIEW
    epochs: bool = True
    init_frames: int = 3
    init: int = 3000
    early: int = 3000
    local: int = 900
    part: int = 900
    full: int = 900
    refine: int = 900
    part_frames: int = 3
    every: int = 5
    pyramid_level: int = 2
    longest_side: int = 0
    refine_levels: int = 3
    reset_map: bool = False
    rays: int = 2048
    overwrite_init: bool = False
    register_init: bool = True
    direct: bool = False
    extrapolate: bool = False
    focal_from: int = 0
    network_rate: float = 1e-3
    focal_rate: float = 1e-3
    pose_rate: float = 0.05
    rate_end: float = 0.1
    window: float = 0.0
    full_window: float = 0.0
    patience: int = 0
    attempts: int = 1
    failure_ratio: float = 3.0

    def __post_init__(self) -> None:
        least = {
            "init_frames": 2,
            "pyramid_level": 0,
            "refine_levels": 0,
            "focal_from": 0,
            "patience": 0,
            "longest_side": 0,
        }
        for item in fields(self):
            value = getattr(self, item.name)
            if item.type == "int" and value < least.get(item.name, 1):
                raise ConfigError(f"schedule {self.name}: {item.name} is {value}, at least {least.get(item.name, 1)}")
            if item.type == "float" and not value >= 0:
                raise ConfigError(f"schedule {self.name}: {item.name} is {value}, it must not be negative")
        check_option_names("rendering", [item.name for item in fields(Rendering)], self.rendering)
        Rendering(**self.rendering)

    @property
    def levels(self) -> list[int]:
        """Pyramid levels of the last stages."""
        return [max(self.pyramid_level - number, 0) for number in range(self.refine_levels)]

    @property
    def final_level(self) -> int:
        """The smallest number of halvings that is used."""
        return min([self.pyramid_level, *self.levels])

    def fitted_to(self, size: tuple[int, int]) -> Schedule:
        """The schedule with the pyramid level that ``longest_side`` means for images of (height, width)."""
        level, side = 0, max(size)
        while self.longest_side and side > self.longest_side:
            level, side = level + 1, (side + 1) // 2
        return replace(self, pyramid_level=level, longest_side=0) if self.longest_side else self

    def model_options(self) -> dict[str, Any]:
        """Keyword arguments of ``CFNeRF``, without views and size."""
        return {
            "field": self.model_field,
            "field_options": dict(self.field_options),
            "rendering": dict(self.rendering),
            "focal": self.focal,
            "field_of_view": self.field_of_view,
        }

    def plain(self) -> dict[str, Any]:
        """The settings as plain values."""
        return {**asdict(self), "final_level": self.final_level}

    def stage(self, kind: Kind, views: Sequence[int], registered: int, level: int | None = None) -> Stage:
        """A stage of the incremental fit.

        Args:
            kind: which.
            views: its frames.
            registered: frames registered before it.
            level: halvings of the images; None: ``pyramid_level``.
        """
        lengths = {"init": self.init, "local": self.local, "part": self.part, "global": self.full}
        length = self.refine if kind == "refine" else lengths[kind]
        if kind in ("local", "part", "global") and registered < _EARLY:
            length = self.early if self.epochs else max(length, self.early)
        level = self.pyramid_level if level is None else level
        if self.epochs:
            rates: Literal["relu", "siren"] = "relu" if self.model_field == "relu" else "siren"
            name: Any = "global" if kind == "refine" else kind
            stage = cfnerf_stage(name, views, length, schedule=rates, rays_per_step=self.rays, pyramid_level=level)
            return replace(stage, name=kind, patience=self.patience or None)
        return self._fast_stage(kind, views, length, level)

    def _fast_stage(self, kind: Kind, views: Sequence[int], steps: int, level: int) -> Stage:
        first = kind == "init"
        share = 1.0 if first else 0.5 if kind in ("global", "refine") else 0.3
        window = self.window if first else self.full_window if kind == "global" else 0.0
        falling = (self.rate_end, steps)

        def rate(start: float) -> LearningRate:
            return LearningRate.exponential(start, start * falling[0], falling[1])

        free_focal = kind in ("init", "global", "refine") and len(views) >= self.focal_from
        return Stage(
            kind,
            steps,
            tuple(views),
            network=None if kind == "local" else rate(self.network_rate * share),
            focal=rate(self.focal_rate * share) if free_focal else None,
            pose=rate(self.pose_rate if kind != "part" else self.pose_rate * share),
            rays_per_step=self.rays,
            views_per_step=None,
            pyramid_level=level,
            window=(0.0, window) if window else None,
            density_noise=0.0,
            jitter_pixels=False,
            patience=self.patience or None,
        )

    def map_stage(self, views: Sequence[int], level: int) -> Stage:
        """The stage of a field that starts anew from the poses, which stay as they are."""
        if self.epochs:
            stage = self.stage("refine", views, len(views), level)
            return replace(stage, name="map", focal=None, rotation=None, translation=None)
        network = LearningRate.exponential(self.network_rate, self.network_rate * self.rate_end, self.init)
        stage = self._fast_stage("refine", views, self.init, level)
        window = (0.0, self.window) if self.window else None
        return replace(stage, name="map", network=network, focal=None, pose=None, window=window)

    def joint_stage(self, views: Sequence[int]) -> Stage:
        """The one stage of ``nerfmm`` and ``barf``."""
        make = nerfmm_stage if self.method == "nerfmm" else barf_stage
        stage = make(self.full, views=views, rays_per_step=self.rays)
        return replace(stage, pyramid_level=self.pyramid_level, patience=self.patience or None)


def iterations(schedule: Schedule, frames: int) -> int:
    """Optimiser steps of a whole incremental fit without failures or early ends.

    Raises:
        ConfigError: a schedule of another method.
    """
    if schedule.method != "incremental":
        raise ConfigError(f"schedule {schedule.name}: fits all frames at once, in {schedule.full} steps")
    refine = [schedule.stage("refine", range(frames), frames, level) for level in schedule.levels]
    if schedule.reset_map and refine:
        refine.append(schedule.map_stage(range(frames), schedule.levels[0]))
    last = sum(stage.steps for stage in refine)
    if schedule.direct:
        return last
    total = last + schedule.stage("init", range(schedule.init_frames), 0).steps
    done = 1 if schedule.register_init else schedule.init_frames
    for registered in range(done + 1, frames + 1):
        newest = range(max(registered - schedule.part_frames, 0), registered)
        total += schedule.stage("local", [registered - 1], registered - 1).steps
        total += schedule.stage("part", newest, registered - 1).steps
        if registered % schedule.every == 0 or registered == frames:
            total += schedule.stage("global", range(registered), registered - 1).steps
    return total


_GRID = {"half_size": 3.0, "center": [0.0, 0.0, 3.0], "levels": 6, "finest": 255, "log2_rows": 18}
_RAYS = {"near": 1.0, "far": 8.0, "samples": 24, "importance_samples": 16, "in_disparity": True}

SCHEDULES: dict[str, Schedule] = {
    "published": Schedule("published"),
    "fast": Schedule(
        "fast",
        model_field="hash_grid",
        field_options=_GRID,
        rendering=_RAYS,
        focal="ratio",
        epochs=False,
        init=300,
        early=50,
        local=50,
        part=50,
        full=150,
        refine=600,
        reset_map=True,
        refine_levels=2,
        every=3,
        longest_side=128,
        rays=512,
        register_init=False,
        direct=True,
        extrapolate=True,
        focal_from=6,
        network_rate=1e-2,
        focal_rate=3e-3,
        window=0.7,
        attempts=3,
    ),
}
_JOINT = {"model_field": "hash_grid", "field_options": _GRID, "rendering": _RAYS, "focal": "ratio", "epochs": False}
SCHEDULES["nerfmm"] = Schedule("nerfmm", "nerfmm", **_JOINT, longest_side=128, refine_levels=0, rays=512, full=2200)  # type: ignore[arg-type]
SCHEDULES["barf"] = Schedule("barf", "barf", **_JOINT, longest_side=128, refine_levels=0, rays=512, full=2200)  # type: ignore[arg-type]


def make_schedule(name: str | Schedule, options: Mapping[str, Any] | None = None) -> Schedule:
    """A schedule by name, with some settings changed.

    Args:
        name: published, fast, nerfmm, barf, or a schedule.
        options: settings by name: those of :class:`Schedule` (``rays``, ``full`` ...), those of ``Rendering``
            (``near``, ``far``, ``samples`` ...), ``field.NAME`` for those of the field. Values may be text.

    Raises:
        UnknownNameError: no such schedule. ConfigError: an unknown setting or an illegal value.
    """
    if isinstance(name, str) and name not in SCHEDULES:
        raise UnknownNameError("schedule", name, SCHEDULES)
    schedule = SCHEDULES[name] if isinstance(name, str) else name
    own = get_type_hints(Schedule)
    rays = get_type_hints(Rendering)
    plain = [key for key in own if key not in ("name", "method", "field_options", "rendering")]
    for key, value in (options or {}).items():
        if key.startswith("field."):
            schedule = replace(schedule, field_options={**schedule.field_options, key[6:]: _parsed(key, value, None)})
        elif key in rays:
            given = {**schedule.rendering, key: _parsed(key, value, rays[key])}
            schedule = replace(schedule, rendering=given)
        else:
            check_option_names(f"schedule {schedule.name}", [*plain, *rays], [key])
            changed: dict[str, Any] = {key: _parsed(key, value, own[key])}
            if key == "pyramid_level":
                changed["longest_side"] = 0
            if key == "model_field" and changed[key] != schedule.model_field:
                changed["field_options"] = {}
            schedule = replace(schedule, **changed)
    return schedule


def _parsed(key: str, value: Any, kind: Any) -> Any:
    """A value of the type of a setting; text is read as JSON where it is JSON."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    whole = isinstance(value, int) and not isinstance(value, bool)
    fits = {int: whole, float: whole or isinstance(value, float), bool: isinstance(value, bool) or value in (0, 1)}
    if kind in fits and not fits[kind]:
        raise ConfigError(f"{key} is {value!r}: give a {'number' if kind is float else kind.__name__}")
    return kind(value) if kind in fits else value
