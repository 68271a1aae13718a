# SPDX-License-Identifier: Apache-2.0
"""Figures of a radiance field's run: cameras against a reference, and rendered against true images.

Held-out frames have no camera of their own, so their figures depend on the poses that they are rendered from; every row
of the views names them:

- ``interpolated``: between the registered neighbours in time, no look at the frame;
- ``reference``: the reference pose, moved into the field's axes by the Sim(3) alignment, no look at the frame;
- ``refined``: starting from ``interpolated``, rotation and centre fitted to the frame itself with the field frozen
  (test-time optimisation, as NeRF-- and BARF report).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from vision3d.datasets.image_sequences import reread_images
from vision3d.errors import InputError
from vision3d.evaluation.image_metrics import psnr, ssim
from vision3d.evaluation.pose_metrics import TrajectoryErrors, focal_error, trajectory_errors
from vision3d.models.nerf.cfnerf import CFNeRF
from vision3d.models.nerf.views import with_cameras
from vision3d.radiance_render import all_poses, registered_frames, render_poses
from vision3d.training.nerf.images import ImagePyramid
from vision3d.training.nerf.optimization import DEFAULT_SEED, optimize
from vision3d.training.nerf.run_folder import NerfRun
from vision3d.training.nerf.stages import LearningRate, Stage
from vision3d.types import Camera

ReadImages = Callable[[Sequence[int]], Sequence[np.ndarray]]
PoseMode = Literal["fitted", "interpolated", "reference", "refined"]

_FEWEST = 3  # cameras that a similarity is fitted to
_STRAIGHT = 0.02  # breadth below which a trajectory counts as a straight line
_RATE = 1e-3


@dataclass(frozen=True)
class Refinement:
    """How poses are fitted to their own frames at test time.

    Attributes:
        steps: of Adam with step size 1e-3 on rotation and centre.
        rays: pixels a step.
        seed: of the random numbers.
    """

    steps: int = 300
    rays: int = 2048
    seed: int = DEFAULT_SEED


@dataclass(frozen=True)
class CameraErrors:
    """Cameras of a run against reference cameras.

    Attributes:
        frames: that were compared, in the order of capture.
        trajectory: errors after Sim(3) alignment, lengths in the unit of the reference.
        radius: RMS distance of the reference centres from their mean, to compare scenes of any scale.
        breadth: of the reference trajectory as a share of its length; near 0 it is a straight line, about which the
            alignment may turn freely, so that rotations mean nothing.
        focal, reference_focal: pixels of the original images.
    """

    frames: list[int]
    trajectory: TrajectoryErrors
    radius: float
    breadth: float
    focal: float
    reference_focal: float

    def summary(self) -> dict[str, Any]:
        """All figures by name; ``*_normalized``: in units of ``radius``."""
        errors = self.trajectory
        return {
            "alignment": "sim3",
            "frames": len(self.frames),
            **errors.summary(),
            "ate_rmse_normalized": errors.ate_rmse / self.radius,
            "ate_mean_normalized": errors.ate_mean / self.radius,
            "breadth": self.breadth,
            "focal": self.focal,
            "reference_focal": self.reference_focal,
            "focal_error": focal_error(self.focal, self.reference_focal),
        }


@dataclass(frozen=True)
class ViewScores:
    """Likeness of rendered frames.

    Attributes:
        frames: those scored.
        poses: which poses they were rendered from.
        psnr, ssim: of each frame, dB and [0, 1].
    """

    frames: list[int]
    poses: PoseMode
    psnr: list[float]
    ssim: list[float]

    def summary(self, names: Sequence[str]) -> dict[str, Any]:
        """Means, and the figures of each frame."""
        rows = zip(self.frames, self.psnr, self.ssim, strict=True)
        return {
            "set": "train" if self.poses == "fitted" else "held-out",
            "poses": self.poses,
            "test_time_optimization": self.poses == "refined",
            "frames": len(self.frames),
            "psnr": float(np.mean(self.psnr)),
            "ssim": float(np.mean(self.ssim)),
            "per_frame": [{"name": names[frame], "psnr": first, "ssim": second} for frame, first, second in rows],
        }


def camera_errors(run: NerfRun, reference: Sequence[Camera | None]) -> CameraErrors:
    """Compare the registered frames with their reference cameras.

    Relative errors are between frames that follow each other among those compared.

    Args:
        run: the radiance field.
        reference: one camera for each frame of the run, of images of its original size, or None.

    Raises:
        InputError: fewer than 3 registered frames with a reference, or cameras in one place.
    """
    frames = [frame for frame in registered_frames(run) if reference[frame] is not None]
    if len(frames) < _FEWEST:
        raise InputError(
            f"only {len(frames)} registered frames have a reference camera; the alignment needs {_FEWEST} or more"
        )
    cameras = [camera for frame in frames if (camera := reference[frame]) is not None]
    truth = np.stack([np.linalg.inv(camera.world_to_camera) for camera in cameras])
    errors = trajectory_errors(run.camera_to_world()[frames], truth)
    centers = truth[:, :3, 3]
    spread = np.linalg.svd(centers - centers.mean(0), compute_uv=False)
    radius, breadth = float(np.sqrt((spread**2).sum() / len(centers))), float(spread[1] / spread[0])
    focal = float(np.mean([(camera.fx + camera.fy) / 2 for camera in cameras]))
    return CameraErrors(frames, errors, radius, breadth, run.focal_length, focal)


def refine_pose(model: CFNeRF, pose: np.ndarray, image: torch.Tensor, refinement: Refinement) -> np.ndarray:
    """Fit a pose to an image with the field and the focal length frozen.

    Args:
        model: the field; unchanged.
        pose: [4, 4] camera-to-world to start from.
        image: [3, H, W] RGB in [0, 1].
        refinement: steps and rays.

    Returns:
        [4, 4] camera-to-world.
    """
    shown = with_cameras(model, torch.from_numpy(pose[None]), (image.shape[1], image.shape[2]))
    rate = LearningRate(_RATE)
    stage = Stage(
        "pose", refinement.steps, rotation=rate, translation=rate, rays_per_step=refinement.rays, density_noise=0.0
    )
    optimize(shown, image[None], stage, seed=refinement.seed, psnr=False)
    with torch.no_grad():
        return np.asarray(shown.cameras.camera_to_world()[0].double().cpu().numpy())


def score_views(
    model: CFNeRF, frames: Sequence[int], poses: np.ndarray, images: torch.Tensor, mode: PoseMode
) -> ViewScores:
    """PSNR and SSIM of whole frames.

    Args:
        model: the field.
        frames: their numbers, for the report.
        poses: [M, 4, 4] camera-to-world.
        images: [M, 3, H, W] true images in [0, 1], of the size that is rendered.
        mode: what the poses are.

    Raises:
        InputError: images below 11 x 11 pixels.
    """
    peaks, likeness = [], []
    for view, truth in zip(render_poses(model, poses, (images.shape[2], images.shape[3])), images, strict=True):
        rendered, expected = (item.permute(1, 2, 0).cpu().numpy() for item in (view.rgb, truth))
        peaks.append(psnr(rendered, expected))
        likeness.append(ssim(rendered, expected))
    return ViewScores(list(frames), mode, peaks, likeness)


def image_reader(run: NerfRun, path: str | os.PathLike[str] | None = None) -> ReadImages:
    """A function that reads the true images of some frames of a run, ascending; a video is decoded once.

    Args:
        run: the radiance field.
        path: where its frames are now; None: where the fit found them.
    """
    source = run.images_source if path is None else path
    if source is None or not Path(source).is_file():
        return lambda frames: reread_images(source, run.names, run.size, frames)
    video = reread_images(source, run.names, run.size, range(len(run.names)))
    return lambda frames: [video[frame] for frame in frames]


def evaluate_run(
    run: NerfRun,
    *,
    reference: Sequence[Camera | None] | None = None,
    read_images: ReadImages | None = None,
    refinement: Refinement | None = Refinement(),
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """All figures of a run.

    Images are compared at the size of the fit's last stages.

    Args:
        run: the radiance field.
        reference: one camera for each frame or None, see :func:`camera_errors`; None leaves the cameras out.
        read_images: the true images [H, W, 3] uint8 of some frames at the run's original size (:func:`image_reader`);
            None leaves the views out.
        refinement: of held-out poses at test time; None leaves that row out.
        progress: called with what is being done, the number done and the number in all.

    Returns:
        ``run`` (schedule and frames), ``cameras`` (see :meth:`CameraErrors.summary`) or None, ``views`` (a row for each
        set of frames and kind of poses), ``image_size``, ``refinement`` and ``warnings``.

    Raises:
        InputError: nothing is registered, or too few frames have a reference.
    """
    report: dict[str, Any] = {"run": run.report(), "cameras": None, "views": [], "refinement": None, "warnings": []}
    errors = None
    if reference is not None:
        errors = camera_errors(run, reference)
        report["cameras"] = errors.summary()
        if errors.breadth < _STRAIGHT:
            report["warnings"].append(
                f"the reference trajectory is nearly straight (breadth {errors.breadth:.3f} of its length): the "
                "alignment hardly fixes the rotation about it, so that the rotation error is not reliable"
            )
    if read_images is None:
        return report
    tell = progress or (lambda text, done, total: None)
    rows = [_training_row(run, read_images, tell)]
    if run.held_out:
        rows += _held_out_rows(run, reference, errors, read_images, refinement, tell)
        if refinement is not None:
            report["refinement"] = {"steps": refinement.steps, "rays": refinement.rays, "rate": _RATE}
    report["views"] = [row.summary(run.names) for row in rows]
    report["image_size"] = list(_level(run, read_images(registered_frames(run)[:1])).shape[2:])
    return report


def _training_row(run: NerfRun, read_images: ReadImages, tell: Callable[[str, int, int], None]) -> ViewScores:
    frames = registered_frames(run)
    poses = run.camera_to_world()
    parts = []
    for number, frame in enumerate(frames):  # one by one, so that large images need little memory
        images = _level(run, read_images([frame]))
        parts.append(score_views(run.model, [frame], poses[[frame]], images, "fitted"))
        tell("training views", number + 1, len(frames))
    return _joined(parts)


def _held_out_rows(
    run: NerfRun,
    reference: Sequence[Camera | None] | None,
    errors: CameraErrors | None,
    read_images: ReadImages,
    refinement: Refinement | None,
    tell: Callable[[str, int, int], None],
) -> list[ViewScores]:
    """One row for each kind of poses."""
    between = all_poses(run)
    rows: dict[PoseMode, list[ViewScores]] = {"interpolated": [], "reference": [], "refined": []}
    frames = sorted(run.held_out)
    for number, frame in enumerate(frames):
        images = _level(run, read_images([frame]))
        poses: dict[PoseMode, np.ndarray] = {"interpolated": between[frame]}
        camera = None if reference is None else reference[frame]
        if camera is not None and errors is not None:
            back = errors.trajectory.alignment.inverse()
            poses["reference"] = back.apply_to_poses(np.linalg.inv(camera.world_to_camera)[None])[0]
        if refinement is not None:
            poses["refined"] = refine_pose(run.model, between[frame], images[0], refinement)
        for mode, pose in poses.items():
            rows[mode].append(score_views(run.model, [frame], pose[None], images, mode))
        tell("held-out views", number + 1, len(frames))
    return [_joined(parts) for parts in rows.values() if parts]


def _level(run: NerfRun, images: Sequence[np.ndarray]) -> torch.Tensor:
    """[M, 3, H, W] at the size of the fit's last stages, on the device of the field."""
    return ImagePyramid(images).level(run.pyramid_level).to(run.model.cameras.t.device)


def _joined(parts: Sequence[ViewScores]) -> ViewScores:
    return ViewScores(
        [frame for part in parts for frame in part.frames],
        parts[0].poses,
        [value for part in parts for value in part.psnr],
        [value for part in parts for value in part.ssim],
    )
