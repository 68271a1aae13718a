# SPDX-License-Identifier: Apache-2.0
"""Files of a fitted radiance field for other programs: cameras, depth maps, a cloud, a mesh, a page."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vision3d.datasets.image_sequences import reread_images
from vision3d.datasets.pairs import IMAGE_SUFFIXES
from vision3d.errors import ConfigError, InputError
from vision3d.geometry.pointcloud import depth_edge_mask, depth_to_pointcloud, voxel_downsample
from vision3d.io.camera_json import PosedImage, write_cameras_json, write_transforms
from vision3d.io.colmap import colmap_model, write_colmap
from vision3d.io.files import atomic_write, ensure_folder
from vision3d.io.images import write_image
from vision3d.io.pfm import write_pfm
from vision3d.io.pointcloud import write_pointcloud
from vision3d.radiance_render import (
    MIN_OPACITY,
    Progress,
    image_stem,
    known_depth,
    picture,
    registered_frames,
    render_poses,
    training_size,
)
from vision3d.training.nerf.run_folder import NerfRun
from vision3d.types import Camera, PointCloud

FORMATS = ("colmap", "colmap-binary", "transforms", "images", "depth", "cloud", "mesh", "page")
VOXEL_SIZE = 0.02
"""Edge of the mesh's voxels, unit of the scene; distances are cut off at four voxels."""

_UNIT = "unknown"  # the scale of a pose-free scene is that of its near and far


@dataclass(frozen=True)
class RenderedFrame:
    """What the field shows from a registered frame.

    Attributes:
        name: of the frame.
        camera: its camera for maps of this size.
        image: [H, W, 3] uint8 RGB, rendered.
        depth: [H, W] float32 z-depth, NaN where the field is transparent.
    """

    name: str
    camera: Camera
    image: np.ndarray
    depth: np.ndarray


def frame_cameras(run: NerfRun, size: tuple[int, int] | None = None) -> list[PosedImage]:
    """Name and camera of each registered frame, in the order of capture.

    Args:
        run: the radiance field.
        size: (height, width) of the images; None: the original ones. The focal length follows.

    Raises:
        InputError: no frame is registered.
    """
    cameras = copy.deepcopy(run.model.cameras).double()
    cameras.resize(*(size or run.size))
    return [PosedImage(file_name(run.names[frame]), cameras.camera(frame)) for frame in registered_frames(run)]


def file_name(name: str) -> str:
    """The name of a frame as that of an image file: frames of videos get ``.png``."""
    return name if name.lower().endswith(IMAGE_SUFFIXES) else f"{name}.png"


def render_frames(
    run: NerfRun,
    size: tuple[int, int] | None = None,
    *,
    min_opacity: float = MIN_OPACITY,
    progress: Progress | None = None,
) -> list[RenderedFrame]:
    """Render picture and depth of every registered frame in (height, width); None: the size of the fit's last stages.

    Raises:
        InputError: no frame is registered, or an opacity outside 0 to 1.
    """
    if not 0 <= min_opacity <= 1:
        raise InputError(f"the smallest opacity must lie in 0 to 1, got {min_opacity}")
    size = size or training_size(run)
    posed = frame_cameras(run, size)
    poses = run.camera_to_world()[registered_frames(run)]
    frames = []
    for image, view in zip(posed, render_poses(run.model, poses, size), strict=True):
        depth = known_depth(view, run.model.rendering, min_opacity)
        frames.append(RenderedFrame(image.name, image.camera, picture(view), depth))
        if progress is not None:
            progress("depth", len(frames), len(posed))
    return frames


def fused_cloud(frames: Sequence[RenderedFrame], voxel_size: float | None = None) -> PointCloud:
    """The coloured points of all depth maps in world axes, without those at depth edges.

    Args:
        frames: see :func:`render_frames`.
        voxel_size: keep one point a cube of this edge, or None for all.

    Raises:
        InputError: no depth is known anywhere, or an illegal voxel size.
    """
    clouds = []
    for frame in frames:
        cloud = depth_to_pointcloud(frame.depth, frame.camera, frame.image, ~depth_edge_mask(frame.depth))
        to_world = np.linalg.inv(frame.camera.world_to_camera)
        points = cloud.points @ to_world[:3, :3].T + to_world[:3, 3]
        clouds.append(PointCloud(points.astype(np.float32), cloud.colors))
    colors = [cloud.colors for cloud in clouds if cloud.colors is not None]
    whole = PointCloud(np.concatenate([cloud.points for cloud in clouds]), np.concatenate(colors))
    if not len(whole):
        raise InputError("the field is transparent everywhere, so there is no depth: fit it for longer")
    return whole if voxel_size is None else voxel_downsample(whole, voxel_size)


def write_surface(path: str | os.PathLike[str], frames: Sequence[RenderedFrame], voxel_size: float) -> int:
    """Fuse the depth maps to a coloured mesh (PLY, world axes and unit); return the number of triangles.

    Raises:
        MissingExtraError: Open3D is not installed. InputError: an illegal voxel size, or no surface was found.
        OutputError: the place is not writable.
    """
    from vision3d.geometry.tsdf import fuse_tsdf

    surface = fuse_tsdf(((frame.depth, frame.camera, frame.image) for frame in frames), voxel_size)
    if not len(surface.triangles):
        raise InputError(f"no surface was found with voxels of {voxel_size}; fit for longer, or change the voxel size")
    import open3d

    silent = open3d.utility.VerbosityContextManager(open3d.utility.VerbosityLevel.Error)  # it warns on stdout
    with atomic_write(path) as temporary, silent:
        open3d.io.write_triangle_mesh(temporary, surface)
    return len(surface.triangles)


def export_run(
    run: NerfRun,
    folder: str | os.PathLike[str],
    formats: Collection[str] = ("colmap", "transforms", "cloud", "page"),
    *,
    size: tuple[int, int] | None = None,
    images: str | os.PathLike[str] | None = None,
    voxel_size: float | None = None,
    min_opacity: float = MIN_OPACITY,
    title: str = "radiance field",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write files of a run.

    ``colmap`` and ``colmap-binary``: ``sparse/`` (for the original images); ``transforms``: ``transforms.json``;
    ``images``: the registered frames themselves, ``images/``, which these two expect; ``depth``: ``depth_maps/*.pfm``
    (z-depth, infinity where unknown) with their ``cameras.json``; ``cloud``: ``cloud.ply``; ``mesh``: ``mesh.ply``
    (extra ``3d``); ``page``: ``view.html`` with the cloud and the cameras. The unit is that of the scene.

    Args:
        run: the radiance field.
        folder: is created.
        formats: of :data:`FORMATS`.
        size: (height, width) of the maps, the cloud and the mesh; None: that of the last stages of the fit.
        images: where the frames are now; None: where the fit found them.
        voxel_size: of the mesh (None: 0.02), and edge of the cubes that keep one point of the cloud (None: all points).
        min_opacity: smallest opacity of a known depth.
        title: of the page.
        progress: called while rendering.

    Returns:
        ``files`` (format -> path), ``size``, ``frames``, ``focal`` (pixels of the original images), and ``points`` and
        ``triangles`` where they were made.

    Raises:
        ConfigError: an unknown format. InputError: nothing to export. OutputError: the folder cannot be written.
    """
    unknown = sorted(set(formats) - set(FORMATS))
    if unknown or not formats:
        raise ConfigError(f"unknown format '{' '.join(unknown)}': choose of {', '.join(FORMATS)}")
    registered_frames(run)
    out = ensure_folder(folder)
    files = _write_cameras(run, out, formats, images)
    report: dict[str, Any] = {"files": files, "frames": len(run.registered), "focal": run.focal_length}
    if not set(formats) & {"depth", "cloud", "mesh", "page"}:
        return report
    frames = render_frames(run, size, min_opacity=min_opacity, progress=progress)
    report["size"] = list(frames[0].depth.shape)
    if "depth" in formats:
        files["depth"] = _write_depths(ensure_folder(out / "depth_maps"), frames)
    if "mesh" in formats:
        files["mesh"] = out / "mesh.ply"
        report["triangles"] = write_surface(out / "mesh.ply", frames, VOXEL_SIZE if voxel_size is None else voxel_size)
    if set(formats) & {"cloud", "page"}:
        cloud = fused_cloud(frames, voxel_size)
        report["points"] = len(cloud)
        if "cloud" in formats:
            files["cloud"] = out / "cloud.ply"
            write_pointcloud(out / "cloud.ply", cloud)
        if "page" in formats:
            files["page"] = out / "view.html"
            _write_page(out / "view.html", cloud, [frame.camera for frame in frames], run, title)
    return report


def _write_cameras(
    run: NerfRun, out: Path, formats: Collection[str], images: str | os.PathLike[str] | None
) -> dict[str, Path]:
    files: dict[str, Path] = {}
    posed = frame_cameras(run)
    if "images" in formats:
        files["images"] = ensure_folder(out / "images")
        frames = registered_frames(run)
        pixels = reread_images(images or run.images_source, run.names, run.size, frames)
        for image, frame in zip(posed, pixels, strict=True):
            write_image(files["images"] / image.name, frame)
    for name in ("colmap", "colmap-binary"):
        if name in formats:
            files[name] = ensure_folder(out / "sparse")
            write_colmap(files[name], colmap_model(posed), binary=name == "colmap-binary")
    if "transforms" in formats:
        files["transforms"] = out / "transforms.json"
        write_transforms(files["transforms"], [PosedImage(f"images/{image.name}", image.camera) for image in posed])
    return files


def _write_depths(folder: Path, frames: Sequence[RenderedFrame]) -> Path:
    for frame in frames:
        write_pfm(folder / f"{image_stem(frame.name)}.pfm", np.where(np.isfinite(frame.depth), frame.depth, np.inf))
    write_cameras_json(folder / "cameras.json", [PosedImage(frame.name, frame.camera) for frame in frames], unit=_UNIT)
    return folder


def _write_page(path: Path, cloud: PointCloud, cameras: list[Camera], run: NerfRun, title: str) -> None:
    from vision3d.viewer import write_cloud_view

    report = {
        "model": f"radiance field, {run.schedule_name}",
        "width": run.size[1],
        "height": run.size[0],
        "cameras": f"{len(run.registered)} of {len(run.names)} frames",
        "focal_length": f"{run.focal_length:.2f} px",
        "warnings": list(run.warnings),
    }
    write_cloud_view(path, cloud, title, cameras=cameras, report=report, metric=False)
