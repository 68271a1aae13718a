# SPDX-License-Identifier: Apache-2.0
"""Pictures, depth maps and videos of a fitted radiance field."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from vision3d.errors import ConfigError, InputError
from vision3d.geometry.camera_paths import fill_poses, interpolated_path, spiral_path
from vision3d.io.files import ensure_folder
from vision3d.io.images import write_image
from vision3d.io.video import write_video
from vision3d.models.nerf.cfnerf import CFNeRF, RenderedView
from vision3d.models.nerf.rendering import Rendering
from vision3d.models.nerf.views import with_cameras
from vision3d.training.nerf.run_folder import NerfRun

Views = Literal["held-out", "all", "path", "spiral"]
VIEWS: tuple[Views, ...] = ("held-out", "all", "path", "spiral")
MIN_OPACITY = 0.5

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the number done and the number in all."""


def training_size(run: NerfRun) -> tuple[int, int]:
    """(height, width) of the images that the last stages of the fit saw."""
    height, width = run.size
    for _ in range(run.pyramid_level):
        height, width = (height + 1) // 2, (width + 1) // 2
    return height, width


def registered_frames(run: NerfRun) -> list[int]:
    """The frames with a camera, in the order of capture.

    Raises:
        InputError: there is none.
    """
    if not run.registered:
        raise InputError("this radiance field has no registered frame: fit it first")
    return sorted(run.registered)


def all_poses(run: NerfRun) -> np.ndarray:
    """Poses [N, 4, 4] of all frames; those without a camera lie between their registered neighbours."""
    return fill_poses(run.camera_to_world(), registered_frames(run))


def image_stem(name: str) -> str:
    """The name of a frame without folder and suffix."""
    return Path(name).stem


def render_poses(model: CFNeRF, poses: np.ndarray, size: tuple[int, int]) -> Iterator[RenderedView]:
    """Render the field from each of the poses [M, 4, 4] in images of (height, width)."""
    shown = with_cameras(model, torch.from_numpy(np.asarray(poses, dtype=np.float64)), size)
    for view in range(len(poses)):
        yield shown.render_view(view)


def picture(view: RenderedView) -> np.ndarray:
    """[H, W, 3] uint8 RGB of a rendered view."""
    return np.asarray((view.rgb * 255).round().permute(1, 2, 0).byte().cpu().numpy())


def known_depth(view: RenderedView, rendering: Rendering, min_opacity: float = MIN_OPACITY) -> np.ndarray:
    """z-depth [H, W] float32 of a rendered view, NaN where the field is transparent or ends.

    Args:
        view: the rendered view.
        rendering: the model's settings; depths in the last interval before ``far`` show no surface.
        min_opacity: smallest opacity of a known depth.
    """
    depth = view.depth[0].float().cpu().numpy()
    last = rendering.far - (rendering.far - rendering.near) / rendering.samples
    seen = (view.opacity[0].cpu().numpy() >= min_opacity) & (depth < last) & (depth > 0)
    return np.where(seen, depth, np.float32(np.nan))


def choose_poses(run: NerfRun, views: Views, count: int = 60) -> tuple[list[str], np.ndarray]:
    """Names and poses [M, 4, 4] of the views to render.

    Args:
        run: the radiance field.
        views: "all": the registered frames; "held-out": the frames kept from the fit, between their neighbours;
            "path": ``count`` poses along the registered frames; "spiral": ``count`` poses around them.
        count: see ``views``.

    Raises:
        InputError: no such frames. ConfigError: an unknown choice.
    """
    if views not in VIEWS:
        raise ConfigError(f"views '{views}' are unknown: choose {', '.join(VIEWS)}")
    frames, poses = registered_frames(run), all_poses(run)
    if views in ("all", "held-out"):
        chosen = frames if views == "all" else sorted(run.held_out)
        if not chosen:
            raise InputError("no frame was held out of this fit: render --views all, path or spiral")
        return [image_stem(run.names[frame]) for frame in chosen], poses[chosen]
    if views == "path":
        path = interpolated_path(poses[frames], count)
    else:
        path = spiral_path(poses[frames], _focus(run, poses[frames[len(frames) // 2]]), count)
    return [f"{views}_{number:04d}" for number in range(count)], path


def _focus(run: NerfRun, pose: np.ndarray) -> float:
    """Median depth that a pose sees, in a small picture."""
    height, width = run.size
    share = min(64 / max(height, width), 1.0)
    size = max(round(height * share), 1), max(round(width * share), 1)
    depth = known_depth(next(render_poses(run.model, pose[None], size)), run.model.rendering)
    middle = (run.model.rendering.near + run.model.rendering.far) / 2
    return float(np.nanmedian(depth)) if np.isfinite(depth).any() else middle


def render_run(
    run: NerfRun,
    folder: str | os.PathLike[str],
    *,
    views: Views = "all",
    count: int = 60,
    size: tuple[int, int] | None = None,
    depth: bool = False,
    video: bool = False,
    rate: float = 10.0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Render views of a run to PNG files.

    Args:
        run: the radiance field.
        folder: is created; ``NAME.png``, with ``depth`` also ``NAME_depth.png`` (colours), with ``video`` also
            ``VIEWS.mp4``.
        views, count: see :func:`choose_poses`.
        size: (height, width) of the pictures; None: that of the last stages of the fit.
        depth, video: what else to write.
        rate: frames a second of the video.
        progress: see :data:`Progress`.

    Returns:
        ``views``, ``size``, ``frames`` (names) and ``video`` (path or None).

    Raises:
        InputError: no such frames. OutputError: the folder cannot be written.
    """
    names, poses = choose_poses(run, views, count)
    size = size or training_size(run)
    out = ensure_folder(folder)

    def pictures() -> Iterator[np.ndarray]:
        for number, (name, view) in enumerate(zip(names, render_poses(run.model, poses, size), strict=True)):
            image = picture(view)
            write_image(out / f"{name}.png", image)
            if depth:
                _write_depth_picture(out / f"{name}_depth.png", view, run.model.rendering)
            if progress is not None:
                progress("views", number + 1, len(names))
            yield image

    film = None
    if video:
        film = out / f"{views}.mp4"
        write_video(film, pictures(), rate)
    else:
        for _ in pictures():
            pass
    return {"views": views, "size": list(size), "frames": names, "video": film}


def _write_depth_picture(path: Path, view: RenderedView, rendering: Rendering) -> None:
    from vision3d.visualization import colorize

    write_image(path, colorize(known_depth(view, rendering), rendering.near, rendering.far))
