# SPDX-License-Identifier: Apache-2.0
"""Schedules, the incremental fit and its folder, on a tiny scene."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from nerf_processes import run_stage, worker
from nerf_scene import VIEWS, exact_images, tiny_model, true_poses

from vision3d import fit_radiance_field
from vision3d.errors import ConfigError, FileFormatError, InputError, OutputError, UnknownNameError, WeightsError
from vision3d.evaluation.pose_metrics import rotation_errors
from vision3d.models.nerf.cameras import CameraParameters
from vision3d.training.nerf.direct_alignment import align_first_frames, align_frame
from vision3d.training.nerf.images import ImagePyramid
from vision3d.training.nerf.incremental import FitProgress
from vision3d.training.nerf.pose_steps import image_displacements, pixel_basis
from vision3d.training.nerf.run_folder import RUN_FILE, NerfRun, load_run, save_run
from vision3d.training.nerf.schedule import Schedule, iterations, make_schedule

TINY = {
    "field.levels": 2,
    "field.log2_rows": 8,
    "field.coarsest": 4,
    "field.finest": 8,
    "field.width": 8,
    "samples": 6,
    "importance_samples": 2,
    "rays": 48,
    "init": 6,
    "early": 2,
    "local": 2,
    "part": 2,
    "full": 3,
    "refine": 3,
    "pyramid_level": 0,
}


def frames(count: int = 6) -> list[np.ndarray]:
    model, _ = tiny_model()
    images = exact_images(model.cameras)[:count].permute(0, 2, 3, 1)
    return [np.asarray((255 * image).round().byte().numpy()) for image in images]


def state(run: NerfRun) -> torch.Tensor:
    return torch.cat([value.detach().double().flatten() for value in run.model.state_dict().values()])


def published(**changes: int) -> Schedule:
    return make_schedule("published", changes)


def test_the_published_schedule_takes_the_published_steps():
    def all_stages(epochs: int) -> dict[str, int]:
        return dict.fromkeys(("local", "part", "full", "refine"), epochs)

    assert iterations(published(every=5), 50) == 590_100
    assert iterations(published(every=10, **all_stages(600)), 53) == 376_800
    assert iterations(published(every=10, **all_stages(600)), 16) == 115_200
    assert iterations(published(every=5, refine_levels=1, **all_stages(100)), 16) == 53_000
    assert published(pyramid_level=2).levels == [2, 1, 0]


@pytest.mark.parametrize(
    "schedule",
    [
        make_schedule("fast", TINY),
        make_schedule("fast", {**TINY, "direct": 0, "reset_map": 0}),
        make_schedule(
            "published",
            {
                "model_field": "relu",
                "field.depth": 1,
                "field.width": 4,
                "field.skips": "[]",
                "samples": 4,
                "rays": 16,
                "init": 2,
                "early": 2,
                "local": 1,
                "part": 1,
                "full": 1,
                "refine": 1,
            },
        ),
    ],
    ids=["fast", "fast without direct alignment", "published"],
)
def test_a_fit_takes_the_steps_of_its_schedule(schedule, tmp_path):
    seen: list[FitProgress] = []
    run = fit_radiance_field(frames(6), tmp_path / "run", schedule, callback=seen.append, device="cpu")
    assert run.finished
    assert run.registered == list(range(6))
    assert run.report()["steps"] == iterations(schedule, 6)
    assert seen[-1].registered == seen[-1].frames == 6
    assert seen[-1].focal == pytest.approx(run.focal_length)
    assert math.isfinite(run.psnr)
    assert (run.model.cameras.height, run.model.cameras.width) == run.size == (24, 24)
    again = fit_radiance_field(frames(6), tmp_path / "run", schedule, device="cpu")
    assert torch.equal(state(again), state(run))
    assert again.history == run.history
    assert [path.name for path in (tmp_path / "run").glob("state_*")] == [f"state_{run.position:04d}.safetensors"]


class KilledError(Exception):
    pass


@pytest.mark.parametrize(("direct", "last"), [(1, 1), (1, 3), (0, 2)])
def test_a_killed_run_goes_on_to_the_same_result(direct, last, tmp_path):
    options = {**TINY, "direct": direct}
    whole = fit_radiance_field(frames(), None, "fast", options=options, hold_out=5, seed=4, device="cpu")

    def kill(now: FitProgress) -> None:
        if now.unit == last and (direct or now.stage != "local"):  # in the midst of a unit
            raise KilledError

    with pytest.raises(KilledError):
        fit_radiance_field(
            frames(), tmp_path / "run", "fast", options=options, hold_out=5, seed=4, device="cpu", callback=kill
        )
    saved = load_run(tmp_path / "run")
    assert saved.position == last
    assert not saved.finished
    run = fit_radiance_field(frames(), tmp_path / "run", "fast", options=options, hold_out=5, seed=4, device="cpu")
    assert torch.equal(state(run), state(whole))
    assert run.held_out == [2]
    assert run.registered == [0, 1, 3, 4, 5]
    other = fit_radiance_field(frames(), None, "fast", options=options, hold_out=5, seed=5, device="cpu")
    assert not torch.equal(state(other), state(whole))


@pytest.mark.parametrize("direct", [0, 1])
def test_a_frame_that_does_not_fit_is_left_out(direct):
    images = frames(8)
    images[6] = np.random.default_rng(0).integers(0, 255, images[6].shape, dtype=np.uint8)
    options = {**TINY, "init": 80, "local": 4, "part": 10, "full": 10, "rays": 128, "direct": direct}
    options |= {"failure_ratio": 3 if direct else 1.5, "init_frames": 3}
    run = fit_radiance_field(images, None, "fast", options=options, device="cpu")
    assert run.skipped == [6]
    assert run.registered == [0, 1, 2, 3, 4, 5, 7]
    assert "0006.png" in run.warnings[0]
    assert all(6 not in record.frames for record in run.history if record.stage != "local")
    tries = [record.steps for record in run.history if record.stage == "local" and record.frames == (6,)]
    assert tries == ([0] if direct else [4, 8, 8])


def test_a_loss_that_is_not_finite_ends_the_fit_and_keeps_the_last_state(tmp_path):
    with pytest.raises(InputError, match=r"stage 'map': the loss is (nan|inf)"):
        fit_radiance_field(frames(), tmp_path / "run", "fast", options={**TINY, "network_rate": 1e30}, device="cpu")
    kept = load_run(tmp_path / "run")
    assert kept.registered == [0, 1, 2, 3, 4, 5]
    assert not kept.finished
    assert torch.isfinite(state(kept)).all()


@pytest.mark.parametrize("name", ["nerfmm", "barf"])
def test_baselines_fit_all_frames_at_once(name):
    few = {key: value for key, value in TINY.items() if key not in ("refine", "pyramid_level")}
    run = fit_radiance_field(frames(4), None, name, options={**few, "pyramid_level": 0}, device="cpu")
    assert [(record.stage, record.steps) for record in run.history] == [(name, 3)]
    assert run.registered == [0, 1, 2, 3]


def test_pose_steps_are_measured_in_pixels():
    model, _ = tiny_model()
    cameras = model.cameras
    pixels = 24 * torch.rand(2, 5, 2, generator=torch.Generator().manual_seed(1))
    depths = torch.linspace(1.5, 3.0, 10).view(2, 5)
    found = image_displacements(model, [1, 6], depths, pixels)
    origins, directions = (
        part.view(2, 5, 3).detach() for part in cameras.rays(torch.tensor([1] * 5 + [6] * 5), pixels.view(-1, 2))
    )
    world = (origins + directions * depths[..., None]).double()
    focal = float(cameras.focal_length().detach())

    def seen(phi: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        local = (world - t[:, None]) @ cameras.to_rotations(phi)
        return (focal * local[..., :2] / local[..., 2:]).flatten(1)

    start = torch.cat([cameras.phi[[1, 6]], cameras.t[[1, 6]]], 1).detach().double()
    for number in range(6):
        step = torch.zeros(6, dtype=torch.float64)
        step[number] = 1e-5
        above, below = ((start + sign * step).split(3, 1) for sign in (1, -1))
        slope = (seen(*above) - seen(*below)) / 2e-5
        torch.testing.assert_close(found[..., number].double(), slope, rtol=1e-3, atol=1e-2)
    basis = pixel_basis(model, [1, 6], torch.Generator().manual_seed(0))
    moved = (found @ basis).square().mean(1).sqrt()
    assert 0.2 < float(moved.min()) < float(moved.max()) < 2.0  # pixels, for steps of length one


@pytest.mark.slow
def test_two_processes_give_the_result_of_one(tmp_path):
    """Each draws half of the rays; the sums of their gradients are those of one process that takes both halves."""
    meeting = f"file://{tmp_path}/meeting"
    torch.multiprocessing.spawn(worker, args=(2, meeting, str(tmp_path)), nprocs=2)
    alone = run_stage(2)
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, value in alone.items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)
    other = run_stage(1)  # the same rays with other random depths
    assert float(other["loss"]) == pytest.approx(float(alone["loss"]), rel=0.1)
    assert not torch.allclose(other["cameras.t"], alone["cameras.t"], rtol=1e-6, atol=1e-7)
    with pytest.raises(InputError, match="0 shares with 1 processes"):
        run_stage(0)


@pytest.mark.slow
def test_a_fit_in_two_processes(tmp_path):
    seen: list[FitProgress] = []
    options = {**TINY, "every": 100}
    run = fit_radiance_field(
        frames(4), tmp_path / "two", "fast", options=options, device="cpu", processes=2, callback=seen.append
    )
    assert run.finished
    assert run.registered == [0, 1, 2, 3]
    assert run.report()["steps"] == iterations(make_schedule("fast", options), 4)
    assert seen[-1].stage == "refine"
    with pytest.raises(InputError, match="the loss is"):
        fit_radiance_field(frames(4), None, "fast", options={**TINY, "network_rate": 1e30}, device="cpu", processes=2)


def test_wrong_images():
    images = frames(4)
    with pytest.raises(InputError, match="2 images to fit: give at least 3"):
        fit_radiance_field(images[:2])
    with pytest.raises(InputError, match="2 images to fit"):
        fit_radiance_field(images, hold_out=2)
    with pytest.raises(InputError, match=r"0002\.png: shows one colour only"):
        fit_radiance_field([*images[:2], np.zeros_like(images[0]), images[3]])
    with pytest.raises(InputError, match="all 4 images are the same"):
        fit_radiance_field([images[0]] * 4)
    with pytest.raises(InputError, match="one size"):
        fit_radiance_field([*images, images[0][:12]])
    with pytest.raises(InputError, match="image 0 is no"):
        fit_radiance_field([image.astype(np.float32) for image in images])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"ray": 5}, "did you mean 'rays'"),
        ({"rays": 0}, "rays is 0, at least 1"),
        ({"rays": "many"}, "rays is 'many': give a int"),
        ({"network_rate": -1}, "must not be negative"),
        ({"near": 9}, "near must lie in"),
        ({"model_field": "voxels"}, "unknown field 'voxels'"),
        ({"field.depths": 8}, "unknown option 'depths'"),
    ],
)
def test_wrong_settings(options, problem):
    with pytest.raises((ConfigError, InputError), match=problem):
        fit_radiance_field(frames(4), None, "fast", options=options)


def test_settings_may_be_text():
    schedule = make_schedule("fast", {"near": "0.5", "rays": "100", "field.finest": "64", "reset_map": "1"})
    assert schedule.rendering["near"] == 0.5
    assert schedule.rays == 100
    assert schedule.field_options["finest"] == 64
    assert schedule.reset_map is True
    with pytest.raises(UnknownNameError, match="published"):
        make_schedule("publish")


def saved_run(folder: Path) -> NerfRun:
    run = fit_radiance_field(frames(4), folder, "fast", options=TINY, device="cpu", seed=1)
    assert load_run(folder).report() == run.report()
    return run


def test_a_folder_of_another_run(tmp_path):
    saved_run(tmp_path / "run")
    for change, what in (
        ({"seed": 2}, "seed"),
        ({"hold_out": 4}, "held-out frames"),
        ({"schedule": "barf"}, "schedule"),
    ):
        settings = {"schedule": "fast", "seed": 1, "options": {**TINY, "refine": 3}, "device": "cpu", **change}
        with pytest.raises(OutputError, match=f"another {what}"):
            fit_radiance_field(frames(4), tmp_path / "run", **settings)  # type: ignore[arg-type]
    with pytest.raises(OutputError, match="another images"):
        fit_radiance_field(frames(5), tmp_path / "run", "fast", options=TINY, seed=1, device="cpu")
    with pytest.raises(OutputError, match="holds a run"):
        fit_radiance_field(frames(4), tmp_path / "run", "fast", options=TINY, seed=1, device="cpu", resume=False)
    other = fit_radiance_field(frames(4), tmp_path / "run", "fast", options=TINY, seed=2, device="cpu", overwrite=True)
    assert load_run(tmp_path / "run").seed == other.seed == 2
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="holds other files"):
        fit_radiance_field(frames(4), tmp_path / "full", "fast", options=TINY)


def test_damaged_runs(tmp_path):
    run = saved_run(tmp_path)
    path, weights = tmp_path / RUN_FILE, next(tmp_path.glob("state_*"))
    content, parameters = json.loads(path.read_text()), weights.read_bytes()

    def broken(text: str, match: str) -> None:
        path.write_text(text)
        with pytest.raises(FileFormatError, match=match):
            load_run(tmp_path)

    broken("{", "not JSON")
    broken("", "empty")
    broken("[]", "not a radiance field's run")
    broken(json.dumps({**content, "version": 99}), "format version 99")
    broken(json.dumps({key: value for key, value in content.items() if key != "names"}), "damaged")
    broken(json.dumps({**content, "size": None}), "damaged")
    path.write_text(json.dumps(content))
    weights.write_bytes(parameters[:-9])
    with pytest.raises(WeightsError):
        load_run(tmp_path)
    weights.unlink()
    with pytest.raises(WeightsError, match="no such weights file"):
        load_run(tmp_path)
    save_run(run, tmp_path)
    assert torch.equal(state(load_run(tmp_path)), state(run))
    with pytest.raises(FileFormatError, match="no radiance field"):
        load_run(tmp_path / "nothing")


def test_direct_alignment_finds_turn_and_step():
    """From standing still, on exact images of a scene with relief; the scale is free."""
    cameras = CameraParameters(VIEWS, 64, 64)
    truth = true_poses()
    cameras.set_poses(truth)
    images, share = ImagePyramid(exact_images(cameras)), cameras.focal_share()
    found, error = align_first_frames(images, [0, 2, 4], share, 2.5, 0)
    assert error < 2e-3
    angles = rotation_errors(found[:, :3, :3].numpy(), truth[[0, 2, 4], :3, :3].numpy())
    assert angles.max() < 1.0  # of 5 and 10 degrees
    steps = found[1:, :3, 3] / found[2, :3, 3].norm(), truth[[2, 4], :3, 3] / truth[4, :3, 3].norm()
    assert float((steps[0] - steps[1]).norm(dim=1).max()) < 0.1
    known = [1, 2, 3]
    pose, _ = align_frame(images, known, truth[known], 5, share, 2.5, 0, [truth[3]])
    assert rotation_errors(pose[None, :3, :3].numpy(), truth[5:6, :3, :3].numpy()) < 0.7  # of 4.9 degrees
    torch.testing.assert_close(pose[:3, 3], truth[5, :3, 3], rtol=0, atol=0.05)  # of 0.26


def test_direct_alignment_survives_a_change_of_exposure():
    cameras = CameraParameters(VIEWS, 64, 64)
    truth = true_poses()
    cameras.set_poses(truth)
    levels = exact_images(cameras)
    levels[5] = 0.9 * levels[5] + 0.05
    known = [1, 2, 3]
    pose, _ = align_frame(ImagePyramid(levels), known, truth[known], 5, cameras.focal_share(), 2.5, 0, [truth[3]])
    assert rotation_errors(pose[None, :3, :3].numpy(), truth[5:6, :3, :3].numpy()) < 0.7
