# SPDX-License-Identifier: Apache-2.0
"""Depth maps, point cloud and mesh of a folder of posed images, view by view; memory does not grow with the views.

Example:
    >>> from vision3d import predict_mvs  # doctest: +SKIP
    >>> result = predict_mvs("scan1", out="scan1_out", views=5)  # doctest: +SKIP
    >>> result.cloud_path  # doctest: +SKIP
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vision3d import inference
from vision3d.errors import InputError
from vision3d.geometry.fusion import Consistency, check_consistency, kept_points
from vision3d.io.files import atomic_write
from vision3d.io.ply_stream import write_ply_stream
from vision3d.io.pointcloud import read_pointcloud
from vision3d.multiview.filters import FilterSettings, official_settings
from vision3d.multiview.scene import Scene, open_scene
from vision3d.multiview.store import Store, scene_digest, weights_digest
from vision3d.pipelines import load_stereo_model
from vision3d.types import PointCloud

DEFAULT_MVS_MODEL = "dispmvs_tiny"
DEFAULT_VIEWS = 5
Progress = Callable[[str, int, int], None]


@dataclass
class MultiViewResult:
    """What :func:`predict_mvs` leaves behind.

    Attributes:
        folder: the result folder.
        scene: the scene, for cameras and images at the size of the maps.
        store: the depth and confidence maps.
        views: numbers of the views that have depth maps.
        cloud_path: the point cloud.
        points: its number of points.
        mesh_path: the mesh, or None.
        model: name of the network.
        kept: share of the pixels of each view that passed the filters.
        seconds: of the networks' passes, and of everything.
        reused: depth maps that an earlier run had finished.
        settings: of the filters.
        warnings: what the user should know.
    """

    folder: Path
    scene: Scene
    store: Store
    views: list[int]
    cloud_path: Path
    points: int = 0
    mesh_path: Path | None = None
    model: str = ""
    kept: dict[int, float] = field(default_factory=dict)
    seconds: tuple[float, float] = (0.0, 0.0)
    reused: int = 0
    settings: FilterSettings = field(default_factory=FilterSettings)
    warnings: list[str] = field(default_factory=list)

    def depth(self, number: int) -> np.ndarray:
        """[H, W] z-depth of a view in the unit of its cameras, NaN where unknown."""
        return self.store.depth(number)

    def confidence(self, number: int) -> np.ndarray:
        """[H, W] confidence of a view."""
        return self.store.confidence(number)

    def pointcloud(self) -> PointCloud:
        """The whole cloud, world axes."""
        return read_pointcloud(self.cloud_path)

    def report(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {
            "model": self.model,
            "folder": str(self.scene.folder),
            "size": list(self.scene.size),
            "unit": self.scene.unit,
            "views": [
                {"view": number, "name": self.scene.names[number], "kept": round(self.kept[number], 4)}
                for number in self.views
            ],
            "points": self.points,
            "filter": self.settings.describe(),
            "seconds": {"depth": round(self.seconds[0], 3), "total": round(self.seconds[1], 3)},
            "reused": self.reused,
            "warnings": self.warnings,
            "output": {"cloud": str(self.cloud_path), "mesh": None if self.mesh_path is None else str(self.mesh_path)},
        }


def predict_mvs(
    folder: str | os.PathLike[str],
    model: str | nn.Module | None = None,
    out: str | os.PathLike[str] = "vision3d_mvs",
    *,
    views: int = DEFAULT_VIEWS,
    size: tuple[int, int] | None = None,
    weights: str | os.PathLike[str] | None = None,
    filtering: FilterSettings | str = "default",
    mesh: bool = False,
    voxel_size: float | None = None,
    depth_range: tuple[float, float] | None = None,
    depth_line: str = "auto",
    device: str | torch.device | None = None,
    overwrite: bool = False,
    pictures: bool = True,
    check_memory: bool = True,
    progress: Progress | None = None,
) -> MultiViewResult:
    """Reconstruct a scene: depth and confidence of each view, and a coloured point cloud with normals.

    A run that was killed goes on where it stopped: finished depth maps in ``out`` are kept if their settings agree.

    Args:
        folder: a COLMAP model with its images, MVSNet's layout, ``cameras.json`` or ``transforms.json``.
        model: a registered network of the task "mvs", a module, or None for the default network.
        out: the folder of the results.
        views: views that go into a depth map, the reference among them.
        size: (height, width) of the network's images and of the maps; None: that of the images.
        weights: a checkpoint or tag instead of the shipped weights.
        filtering: settings, ``"default"`` (one for all scenes), or ``"official"`` (tuned by DispMVS's authors for the
            test scenes of DTU and Tanks and Temples; found by the name of the folder).
        mesh: also write ``mesh.ply`` (Open3D).
        voxel_size: of the mesh, in the unit of the cameras; None: two pixels at the median depth.
        depth_range: (least, largest) depth of all views instead of the files'.
        depth_line: see :func:`vision3d.io.cameras.read_mvsnet_camera`.
        device: None takes CUDA where there is one.
        overwrite: throw away depth maps of other settings in ``out``.
        pictures: write PNG pictures of all maps.
        check_memory: refuse images that would not fit into the free memory.
        progress: called with what is done, how many are done, and of how many.

    Raises:
        FileFormatError and its kinds: files that are missing or damaged. InputError: illegal options, fewer than two
        usable views. OutputError: ``out`` is not writable or holds other results. WeightsError, UnknownNameError: see
        ``create_model``. MissingExtraError: a mesh without Open3D.
    """
    start = time.perf_counter()
    if views < 2:
        raise InputError(f"views is {views}: a depth map needs the reference and at least one source view")
    settings = filtering if isinstance(filtering, FilterSettings) else _settings(filtering, Path(folder))
    network, name, home = load_mvs_model(model, weights, device)
    half_pixel = bool(getattr(network, "half_pixel_intrinsics", True))
    scene = open_scene(
        folder,
        size=size,
        half_pixel=half_pixel,
        depth_range=depth_range,
        depth_line=depth_line,  # type: ignore[arg-type]
    )
    if check_memory:
        _check_memory(network, scene, home)
    facts = {
        "model": name,
        "weights": weights_digest(network),
        "views": views,
        "size": list(scene.size),
        "iterations": list(getattr(network, "iterations", ())),
        "scene": scene_digest(scene),
    }
    store = Store(Path(out), facts, overwrite)
    tell = progress or (lambda text, done, total: None)
    done = estimate_depths(network, scene, store, views, home, tell)
    passes = time.perf_counter() - start
    result = MultiViewResult(
        store.folder, scene, store, scene.references, store.folder / "cloud.ply", model=name, settings=settings
    )
    result.reused, result.warnings = len(scene.references) - done, scene.warnings + _few_sources(scene, settings)
    result.points = write_ply_stream(result.cloud_path, _clouds(result, tell, pictures))
    if result.points == 0:
        result.warnings.append(
            "no depth passed the filters: the cloud is empty; relax them, or check cameras and range"
        )
    if mesh:
        result.mesh_path = _write_mesh(result, voxel_size, tell)
    store.save_lists(scene, result.views)
    result.seconds = passes, time.perf_counter() - start
    return result


def _few_sources(scene: Scene, settings: FilterSettings) -> list[str]:
    """A warning about views that have fewer sources than the filter wants."""
    wanted = settings.rule.min_views
    few = [number for number in scene.references if len(scene.sources(number)) < wanted]
    if not few:
        return []
    what = "none of their depths is kept" if settings.sources is None else "all of them must confirm a depth"
    return [f"{len(few)} view(s) have fewer than {wanted} source views: {what}"]


def load_mvs_model(
    model: str | nn.Module | None = None,
    weights: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
) -> tuple[nn.Module, str, torch.device]:
    """The network, its name and the device it lies on; see ``load_stereo_model``.

    Raises:
        InputError: a network of another task.
    """
    from vision3d.registry import find_model

    name = model or DEFAULT_MVS_MODEL
    if isinstance(name, str) and find_model(name.partition(".")[0]).task != "mvs":
        raise InputError(f"{name} is no network of multi-view stereo: see vision3d models --task mvs")
    return load_stereo_model(name, weights, device)


def estimate_depths(
    network: nn.Module, scene: Scene, store: Store, views: int, device: torch.device, progress: Progress
) -> int:
    """Depth and confidence of all reference views that the store lacks; return their number."""
    references = scene.references
    done = 0
    for place, number in enumerate(references):
        progress("depth maps", place, len(references))
        if store.finished(number, scene.size):
            continue
        store.save(number, *estimate_depth(network, scene, number, views, device), scene)
        done += 1
    progress("depth maps", len(references), len(references))
    return done


def estimate_depth(
    network: nn.Module, scene: Scene, number: int, views: int, device: torch.device
) -> tuple[np.ndarray, np.ndarray]:
    """Depth [H, W] (NaN where the network gives no positive finite number) and confidence [H, W] of a view."""
    used = [number, *scene.sources(number, views - 1)]
    images = torch.from_numpy(np.stack([scene.image(view) for view in used]))
    cameras = [scene.camera(view) for view in used]
    poses = np.stack([camera.world_to_camera for camera in cameras])
    poses = poses @ np.linalg.inv(poses[0])  # so that numbers are small, wherever the scene lies
    poses[:, :3, 3] *= scene.factor
    span = torch.tensor([scene.ranges[number]], dtype=torch.float64) * scene.factor
    with torch.inference_mode():
        network.eval()
        answer = network(
            images.permute(0, 3, 1, 2)[None].to(device).float().div_(255.0),
            torch.from_numpy(np.stack([camera.intrinsics for camera in cameras]))[None].to(device),
            torch.from_numpy(poses)[None].to(device),
            span.float().to(device),
        )
    depth = answer.depth[0, 0].double().cpu().numpy() / scene.factor
    usable = np.isfinite(depth) & (depth > 0)
    confidence = np.ones(depth.shape, np.float32)
    if answer.confidence is not None:
        confidence = np.nan_to_num(answer.confidence[0, 0].float().cpu().numpy(), nan=0.0)
    return np.where(usable, depth, np.nan).astype(np.float32), np.where(usable, confidence, np.float32(0))


def filter_view(scene: Scene, store: Store, number: int, settings: FilterSettings) -> Consistency:
    """Which depths of a view are kept; views without a depth map of their own confirm nothing."""
    known = set(scene.references)
    sources = [source for source in scene.sources(number, settings.sources) if source in known]
    rule = settings.rule
    if settings.sources is not None:  # published settings stay as they are
        rule = replace(rule, min_views=min(rule.min_views, max(1, len(sources))))
    result = check_consistency(
        store.depth(number),
        scene.camera(number),
        _Maps(store, sources),  # type: ignore[arg-type]
        [scene.camera(source) for source in sources],
        rule,
        scene.ranges[number],
    )
    if settings.min_confidence is None:
        return result
    return replace(result, kept=result.kept & (store.confidence(number) > settings.min_confidence))


class _Maps:
    """Depth maps of some views, read when asked."""

    def __init__(self, store: Store, numbers: list[int]) -> None:
        self.store, self.numbers = store, numbers

    def __getitem__(self, index: int) -> np.ndarray:
        return self.store.depth(self.numbers[index])

    def __len__(self) -> int:
        return len(self.numbers)


def _clouds(result: MultiViewResult, progress: Progress, pictures: bool) -> Iterator[PointCloud]:
    """The kept points of one view after the other; their maps and pictures are written on the way."""
    scene, store = result.scene, result.store
    for place, number in enumerate(result.views):
        progress("fusion", place, len(result.views))
        found = filter_view(scene, store, number, result.settings)
        store.save_filtered(number, np.where(found.kept, found.depth, np.float32(np.nan)))
        result.kept[number] = float(found.kept.mean())
        if pictures:
            store.save_pictures(number, scene.image(number), _display_span(store.depth(number)), scene.unit)
        yield kept_points(found, scene.camera(number), scene.image(number), store.depth(number))
    progress("fusion", len(result.views), len(result.views))


def _display_span(depth: np.ndarray) -> tuple[float, float]:
    finite = depth[np.isfinite(depth)]
    if not finite.size:
        return 0.0, 1.0
    low, high = (float(value) for value in np.percentile(finite, [1, 99]))
    return low, max(high, low * (1 + 1e-3))


def _write_mesh(result: MultiViewResult, voxel_size: float | None, progress: Progress) -> Path | None:
    from vision3d.geometry.tsdf import fuse_tsdf

    scene, store = result.scene, result.store
    if voxel_size is None:
        edges = []
        for number in result.views:
            kept = store.filtered(number)
            if np.isfinite(kept).any():
                edges.append(2 * float(np.nanmedian(kept)) / scene.camera(number).fx)
        if not edges:
            return None
        voxel_size = float(np.median(edges))

    def parts() -> Iterator[tuple[np.ndarray, Any, np.ndarray]]:
        for place, number in enumerate(result.views):
            progress("mesh", place, len(result.views))
            yield store.filtered(number), scene.camera(number), scene.image(number)

    surface = fuse_tsdf(parts(), voxel_size)
    import open3d

    path = result.folder / "mesh.ply"
    silent = open3d.utility.VerbosityContextManager(open3d.utility.VerbosityLevel.Error)  # it warns on stdout
    with atomic_write(path) as temporary, silent:
        open3d.io.write_triangle_mesh(temporary, surface)
    return path


def _settings(name: str, folder: Path) -> FilterSettings:
    if name == "official":
        return official_settings(folder.resolve().name)
    if name != "default":
        raise InputError(f"filtering '{name}' is unknown: choose default or official, or pass FilterSettings")
    return FilterSettings()


def _check_memory(network: nn.Module, scene: Scene, device: torch.device) -> None:
    needed, free = inference.estimate_memory(network, *scene.size), inference.available_memory(device)
    if free is not None and needed > free:
        share = (0.8 * free / needed) ** 0.5
        width, height = (max(16, int(side * share) // 16 * 16) for side in scene.size)
        raise InputError(
            f"images of {scene.size[0]}x{scene.size[1]} need about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} "
            f"are free: reduce them (--size {height}x{width}), or force the run (--force, or check_memory=False)"
        )
