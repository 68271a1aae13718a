# SPDX-License-Identifier: Apache-2.0
"""Figures of runs against SciPy's alignment, scikit-image's PSNR and SSIM, and exact truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from radiance_runs import FOCAL, HEIGHT, WIDTH, exact_run, poses, write_images
from scipy.spatial.transform import Rotation
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from vision3d.datasets.image_sequences import read_reference
from vision3d.errors import CameraFileError, InputError
from vision3d.evaluation.pose_metrics import rotation_errors
from vision3d.evaluation.radiance_fields import (
    Refinement,
    camera_errors,
    evaluate_run,
    image_reader,
    refine_pose,
    score_views,
)
from vision3d.radiance_export import export_run
from vision3d.radiance_render import all_poses, picture, render_poses
from vision3d.types import Camera


def make_reference(noise: float = 0.0, focal: float = FOCAL) -> list[Camera]:
    """The true cameras in another unit and other axes, with noise on centres and rotations."""
    generator = np.random.default_rng(0)
    turn = Rotation.from_rotvec([0.4, -1.1, 0.7]).as_matrix()
    cameras = []
    for pose in poses().double().numpy():
        moved = np.eye(4)
        moved[:3, :3] = turn @ pose[:3, :3] @ Rotation.from_rotvec(generator.normal(0, noise, 3)).as_matrix()
        moved[:3, 3] = 2.5 * turn @ pose[:3, 3] + [3, -1, 7] + generator.normal(0, 2.5 * noise, 3)
        lens = np.array([[focal, 0, WIDTH / 2 - 0.5], [0, focal, HEIGHT / 2 - 0.5], [0, 0, 1]])
        cameras.append(Camera(lens, WIDTH, HEIGHT, None, np.linalg.inv(moved)))
    return cameras


def test_exact_cameras_in_another_frame() -> None:
    figures = camera_errors(exact_run(held_out=(3,), skipped=(6,)), make_reference()).summary()
    assert figures["frames"] == 6
    assert figures["scale"] == pytest.approx(2.5, rel=1e-5)
    for name in ("ate_rmse", "ate_mean", "rpe_translation", "focal_error"):
        assert figures[name] == pytest.approx(0, abs=1e-5), name
    for name in ("rotation_mean_deg", "rpe_rotation_deg"):
        assert figures[name] == pytest.approx(0, abs=1e-3), name


def test_camera_errors_against_scipy() -> None:
    run, reference = exact_run(held_out=(), skipped=(2,)), make_reference(noise=0.02, focal=50.0)
    figures = camera_errors(run, [*reference[:5], None, *reference[6:]]).summary()
    frames = [0, 1, 3, 4, 6, 7]
    own = poses().double().numpy()[frames]
    truth = np.stack([np.linalg.inv(reference[frame].world_to_camera) for frame in frames])
    first, second = (item[:, :3, 3] - item[:, :3, 3].mean(0) for item in (own, truth))
    rotation = Rotation.align_vectors(second, first)[0].as_matrix()
    scale = (second * (first @ rotation.T)).sum() / (first**2).sum()  # least squares with the rotation known
    distances = np.linalg.norm(scale * first @ rotation.T - second, axis=1)
    assert figures["scale"] == pytest.approx(scale, rel=1e-6)
    assert figures["ate_rmse"] == pytest.approx(np.sqrt((distances**2).mean()), rel=1e-5)
    assert figures["ate_mean"] == pytest.approx(distances.mean(), rel=1e-5)
    radius = np.sqrt((second**2).sum(1).mean())
    assert figures["ate_rmse_normalized"] == pytest.approx(figures["ate_rmse"] / radius)
    aligned = Rotation.from_matrix(rotation @ own[:, :3, :3])
    angles = np.degrees((aligned.inv() * Rotation.from_matrix(truth[:, :3, :3])).magnitude())
    assert figures["rotation_mean_deg"] == pytest.approx(angles.mean(), rel=1e-5)
    assert figures["rotation_mean_deg"] > 0.5
    assert figures["focal_error"] == pytest.approx(0.1, rel=1e-5)
    assert (figures["focal"], figures["reference_focal"]) == pytest.approx((45, 50))


def test_too_few_references() -> None:
    with pytest.raises(InputError, match="only 2 registered"):
        camera_errors(exact_run(), [*make_reference()[:2], *([None] * 6)])


def test_scores_are_those_of_scikit_image() -> None:
    run = exact_run()
    images = torch.rand(2, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))
    scores = score_views(run.model, [1, 4], poses().numpy()[[1, 4]], images, "fitted")
    for number, view in enumerate(render_poses(run.model, poses().numpy()[[1, 4]], (HEIGHT, WIDTH))):
        first, second = (item.permute(1, 2, 0).double().numpy() for item in (view.rgb, images[number]))
        assert scores.psnr[number] == pytest.approx(peak_signal_noise_ratio(second, first, data_range=1), abs=1e-6)
        likeness = structural_similarity(
            first,
            second,
            data_range=1.0,
            channel_axis=2,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
        assert scores.ssim[number] == pytest.approx(likeness, abs=1e-6)


def test_refinement_finds_the_pose_and_keeps_the_field() -> None:
    run = exact_run(blur=0.03)
    truth = poses().double().numpy()[3]
    image = next(render_poses(run.model, truth[None], (HEIGHT, WIDTH))).rgb
    start = truth.copy()
    start[:3, :3] = truth[:3, :3] @ Rotation.from_rotvec([0.015, -0.02, 0.02]).as_matrix()
    start[:3, 3] += [0.03, -0.03, 0.02]
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    found = refine_pose(run.model, start, image, Refinement(steps=120, rays=128))
    assert rotation_errors(found[:3, :3], truth[:3, :3]) < 0.3 * rotation_errors(start[:3, :3], truth[:3, :3])
    assert np.linalg.norm(found[:3, 3] - truth[:3, 3]) < 0.3 * np.linalg.norm(start[:3, 3] - truth[:3, 3])
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.requires_grad for parameter in run.model.parameters())


def test_all_rows_of_a_run(tmp_path: Path) -> None:
    """The held-out frame is off the line between its neighbours, so looking at it must help."""
    run = exact_run(held_out=(3,), skipped=(5,), blur=0.03)
    images = write_images(run, tmp_path)
    moved = all_poses(run)[3]
    moved[:3, 3] += [0.02, 0.04, 0.0]
    images[3] = picture(next(render_poses(run.model, moved[None], run.size)))
    reference = make_reference()
    pose = np.linalg.inv(reference[3].world_to_camera)
    pose[:3, 3] += 2.5 * Rotation.from_rotvec([0.4, -1.1, 0.7]).as_matrix() @ [0.02, 0.04, 0.0]
    reference[3] = replace(reference[3], world_to_camera=np.linalg.inv(pose))
    asked: list[int] = []

    def read(frames: Sequence[int]) -> list[np.ndarray]:
        asked.extend(frames)
        return [images[frame] for frame in frames]

    report = evaluate_run(run, reference=reference, read_images=read, refinement=Refinement(120, 128))
    rows = {row["poses"]: row for row in report["views"]}
    assert list(rows) == ["fitted", "interpolated", "reference", "refined"]
    assert [row["test_time_optimization"] for row in rows.values()] == [False, False, False, True]
    assert [row["set"] for row in rows.values()] == ["train", "held-out", "held-out", "held-out"]
    assert [entry["name"] for entry in rows["fitted"]["per_frame"]] == [f"{n:04d}.png" for n in (0, 1, 2, 4, 6, 7)]
    assert set(asked) == {0, 1, 2, 3, 4, 6, 7}
    assert rows["fitted"]["psnr"] > 50  # rounding to 8 bits alone
    assert rows["interpolated"]["psnr"] < rows["refined"]["psnr"] - 3
    assert rows["reference"]["psnr"] > rows["interpolated"]["psnr"] + 3
    assert report["image_size"] == [HEIGHT, WIDTH]
    assert report["refinement"] == {"steps": 120, "rays": 128, "rate": 1e-3}
    assert report["cameras"]["frames"] == 6


def test_reduced_images_and_missing_parts(tmp_path: Path) -> None:
    run = exact_run(held_out=(), level=1)
    write_images(run, tmp_path)
    report = evaluate_run(run, read_images=image_reader(run))
    assert report["cameras"] is None
    assert report["image_size"] == [18, 24]
    assert [row["poses"] for row in report["views"]] == ["fitted"]
    assert report["views"][0]["psnr"] > 20
    assert evaluate_run(run, reference=make_reference())["views"] == []


def test_reference_from_files(tmp_path: Path) -> None:
    run = exact_run(held_out=(3,))
    write_images(run, tmp_path)
    export_run(run, tmp_path, ["colmap"])
    found = read_reference(tmp_path, run.names, run.size)
    assert [camera is None for camera in found] == [frame == 3 for frame in range(8)]
    assert camera_errors(run, found).summary()["ate_rmse"] < 1e-6
    with pytest.raises(CameraFileError, match="no reference poses"):
        read_reference(tmp_path / "images", run.names, run.size)


def test_straight_trajectories_are_told() -> None:
    run, reference = exact_run(held_out=()), make_reference()
    assert evaluate_run(run, reference=reference)["warnings"] == []
    straight = []
    for number, camera in enumerate(reference):
        pose = np.linalg.inv(camera.world_to_camera)
        pose[:3, 3] = [number, 2 * number, 0.01 * number**2]
        straight.append(replace(camera, world_to_camera=np.linalg.inv(pose)))
    (warning,) = evaluate_run(run, reference=straight)["warnings"]
    assert "nearly straight" in warning
