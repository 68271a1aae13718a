# SPDX-License-Identifier: Apache-2.0
"""Small valid trees of every multi-view data set, with exact depth, written in the exact file formats.

The scene is ray-cast: a sphere in a closed room, all surfaces textured smoothly. Lengths are of the order of 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from vision3d.datasets.dtu import CROP_LEFT, CROP_TOP, FULL_SIZE, IMAGE_SIZE, LOW_SIZE
from vision3d.datasets.multiview import scale_camera
from vision3d.datasets.multiview_pool import write_multiview_pool
from vision3d.errors import UnknownNameError
from vision3d.geometry.view_selection import rank_sources, score_poses
from vision3d.io.camera_json import PosedImage, write_cameras_json, write_transforms
from vision3d.io.cameras import write_mvsnet_camera, write_pairs, write_trajectory_log
from vision3d.io.colmap import (
    ColmapCamera,
    ColmapImage,
    ColmapModel,
    ColmapPoints,
    colmap_from_camera,
    quaternion_from_rotation,
    write_colmap,
    write_colmap_depth,
)
from vision3d.io.files import atomic_write, ensure_folder
from vision3d.io.images import write_image
from vision3d.io.pfm import write_pfm
from vision3d.types import Camera, MultiViewSample

_ROOM = np.array([[-1.0, -0.8, -1.1], [1.0, 0.7, 0.9]])
_SPHERE_CENTER, _SPHERE_RADIUS = np.array([0.03, -0.02, 0.68]), 0.1
_FOCUS = np.array([0.0, 0.0, 0.75])


@dataclass(frozen=True)
class ToyView:
    """A rendered view: image [H, W, 3] uint8, its camera, exact z-depth [H, W] float32."""

    image: np.ndarray
    camera: Camera
    depth: np.ndarray


def cast_rays(origin: np.ndarray, directions: np.ndarray, wavelength: float = 0.3) -> tuple[np.ndarray, ...]:
    """Meet the scene along rays from one origin.

    Args:
        origin: [3], inside the room.
        directions: [..., 3], of any length.
        wavelength: of the texture's coarsest wave.

    Returns:
        The multiple of the direction where the ray ends [...], the colour [..., 3] in [0, 1], and the unit normal
        [..., 3], which points towards the origin.
    """
    multiple, axis, hit = _meet(origin, directions)
    points = origin + multiple[..., None] * directions
    walls = -np.sign(directions) * (np.arange(3) == axis[..., None])
    normals = np.where(hit[..., None], (points - _SPHERE_CENTER) / _SPHERE_RADIUS, walls)
    return multiple, _texture(points, wavelength), normals


def _rays(camera: Camera, top: int, bottom: int) -> tuple[np.ndarray, np.ndarray]:
    """Centre of the camera, and world directions of z = 1 (multiples of them are z-depths) of the rows of a band."""
    columns, rows = np.meshgrid(np.arange(camera.width or 0), np.arange(top, bottom))
    pixels = np.stack([columns, rows, np.ones(columns.shape)], axis=-1)
    rotation, translation = camera.world_to_camera[:3, :3], camera.world_to_camera[:3, 3]
    return -rotation.T @ translation, pixels @ (np.linalg.inv(camera.intrinsics).T @ rotation)


def _meet(origin: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Multiple of each direction where the ray ends, the axis of the wall behind, and whether it ends on the sphere."""
    with np.errstate(divide="ignore"):
        ends = (np.where(directions > 0, _ROOM[1], _ROOM[0]) - origin) / directions
    axis = np.argmin(np.where(directions == 0, np.inf, ends), axis=-1)
    room = np.take_along_axis(ends, axis[..., None], axis=-1)[..., 0]
    offset = origin - _SPHERE_CENTER
    a, b = np.sum(directions**2, axis=-1), directions @ offset
    root = b**2 - a * (offset @ offset - _SPHERE_RADIUS**2)
    sphere = (-b - np.sqrt(np.maximum(root, 0))) / a
    hit = (root > 0) & (sphere > 0) & (sphere < room)
    return np.where(hit, sphere, room), axis, hit


def make_camera_ring(count: int, intrinsics: np.ndarray, width: int, height: int, step: float = 0.06) -> list[Camera]:
    """Cameras side by side, about 0.75 before the sphere, that look at the same point."""
    cameras = []
    for index in range(count):
        center = np.array([(index - (count - 1) / 2) * step, 0.02 * (index % 2) - 0.01, 0.01 * (index % 3)])
        forward = (_FOCUS - center) / np.linalg.norm(_FOCUS - center)
        right = np.cross([0.0, 1.0, 0.0], forward)
        right /= np.linalg.norm(right)
        pose = np.eye(4)
        pose[:3, :3] = np.stack([right, np.cross(forward, right), forward])
        pose[:3, 3] = -pose[:3, :3] @ center
        cameras.append(Camera(intrinsics, width, height, None, pose))
    return cameras


def render_view(camera: Camera, wavelength: float = 0.3) -> ToyView:
    """Render the scene exactly at the pixel centres; the camera must know its size."""
    depth, colors, _ = cast_rays(*_rays(camera, 0, camera.height or 0), wavelength)
    return ToyView(np.rint(255 * colors).astype(np.uint8), camera, depth.astype(np.float32))


def render_depth(camera: Camera) -> np.ndarray:
    """Exact z-depth [H, W] float32 of the scene, in bands of rows, so that large maps need little memory."""
    height = camera.height or 0
    bands = [(top, min(top + 100, height)) for top in range(0, height, 100)]
    return np.concatenate([_meet(*_rays(camera, *band))[0].astype(np.float32) for band in bands])


def make_toy_views(count: int = 4, width: int = 96, height: int = 72) -> list[ToyView]:
    """Small views of the scene, principal point off the centre, fx and fy different."""
    intrinsics = np.array([[1.5 * width, 0, 0.52 * width], [0, 1.55 * width, 0.47 * height], [0, 0, 1.0]])
    return [render_view(camera) for camera in make_camera_ring(count, intrinsics, width, height)]


def list_multiview_layouts() -> list[str]:
    """The names that ``write_multiview_tree`` takes."""
    return sorted(_WRITERS)


def write_multiview_tree(name: str, root: str | os.PathLike[str], count: int = 4) -> list[ToyView]:
    """Write a small tree that the reader ``name`` reads; return its views (of its first scene).

    ``posed_images`` becomes a binary COLMAP model; for the other forms of posed images see :func:`write_posed_images`.

    Raises:
        UnknownNameError: no such layout. OutputError: the place is not writable.
    """
    if name not in _WRITERS:
        raise UnknownNameError("layout", name, list_multiview_layouts())
    return _WRITERS[name](ensure_folder(root), count)


def write_mvsnet_scene(
    folder: Path,
    views: Sequence[ToyView],
    *,
    images: str = "images/{:08d}.png",
    cameras: str = "cams/{:08d}_cam.txt",
    pairs: str = "pair.txt",
    depths: str | None = "depths/{:08d}.pfm",
    numbers: int = 4,
) -> None:
    """Write one scene in MVSNet's layout; ``numbers`` of the depth line: 2 (range), -2 (interval), 3 or 4."""
    for index, view in enumerate(views):
        names = [images, cameras] + ([depths] if depths else [])
        paths = [folder / name.format(index) for name in names]
        for path in paths:
            ensure_folder(path.parent)
        write_image(paths[0], view.image)
        write_mvsnet_camera(paths[1], view.camera, depth_line(view, numbers))
        if depths:
            depth = view.depth.copy()
            depth[:2, :3] = 0  # unknown
            write_pfm(paths[2], depth)
    ensure_folder((folder / pairs).parent)
    write_pairs(folder / pairs, _pairs(views))


def depth_line(view: ToyView, numbers: int) -> list[float]:
    """The depth line of a view in one of its forms (2, -2, 3 or 4), with 192 planes."""
    near, far = 0.95 * float(view.depth.min()), 1.05 * float(view.depth.max())
    interval = (far - near) / 191
    return {2: [near, far], -2: [near, interval], 3: [near, interval, 192], 4: [near, interval, 192, far]}[numbers]


def write_dtu_training(
    root: Path,
    count: int = 3,
    *,
    scans: Sequence[int] = (2,),
    lights: int = 7,
    cameras: str = "train",
    depths: str = "raw",
) -> list[ToyView]:
    """Write DTU training scans (millimetres); return the views of 640 x 512.

    Args:
        root: target folder.
        count: number of views. scans: their numbers. lights: how many of the 7 lights.
        cameras: ``"train"`` (160 x 128, interval form), ``"full"`` (1600 x 1200) or ``"range"`` (``Cameras_1``).
        depths: ``"raw"`` (1600 x 1200), ``"low"`` (160 x 128) or ``"renamed"`` (raw maps under ``Depths/scan{S}``).
    """
    full = np.array([[2892.33, 0, 823.205], [0, 2883.175, 619.071], [0, 0, 1.0]])
    ring = make_camera_ring(count, full, *FULL_SIZE, step=0.05)
    used = [scale_camera(camera, 0.5, CROP_LEFT, CROP_TOP) for camera in ring]
    views = [render_view(replace(camera, width=IMAGE_SIZE[0], height=IMAGE_SIZE[1]), 0.12) for camera in used]
    for scan in scans:
        for index, view in enumerate(views):
            _write_dtu_images(ensure_folder(root / f"Rectified/scan{scan}_train"), index, view, lights)
            _write_dtu_depth(root, scan, index, _to_millimetres(ring[index]), depths)
            folder = {"train": "Cameras/train", "full": "Cameras", "range": f"Cameras_1/scan{scan}_train"}[cameras]
            camera = ring[index] if cameras == "full" else scale_camera(used[index], 0.25)
            line = [425.0, 937.5] if cameras == "range" else [425.0, 2.5]
            write_mvsnet_camera(ensure_folder(root / folder) / f"{index:08d}_cam.txt", _to_millimetres(camera), line)
    write_pairs(ensure_folder(root / "Cameras") / "pair.txt", _pairs(views))
    return [ToyView(view.image, _to_millimetres(view.camera), view.depth * 1000) for view in views]


def write_posed_images(root: str | os.PathLike[str], form: str, count: int = 4) -> list[ToyView]:
    """Write posed images as ``"colmap"`` (binary), ``"colmap_text"``, ``"transforms"`` or ``"json"``.

    Raises:
        UnknownNameError: no such form. OutputError: the place is not writable.
    """
    folder, views = ensure_folder(root), make_toy_views(count)
    for index, view in enumerate(views):
        write_image(ensure_folder(folder / "images") / f"{index:04d}.png", view.image)
    images = [PosedImage(f"images/{index:04d}.png", view.camera) for index, view in enumerate(views)]
    if form == "transforms":
        write_transforms(folder / "transforms.json", images)
    elif form == "json":
        spans = [(0.4, 2.0)] * count
        posed = [replace(image, depth_range=span) for image, span in zip(images, spans, strict=True)]
        write_cameras_json(folder / "cameras.json", posed, "m")
    elif form in ("colmap", "colmap_text"):
        write_colmap(ensure_folder(folder / "sparse/0"), make_colmap_model(views), binary=form == "colmap")
        for index, view in enumerate(views):
            maps = ensure_folder(folder / "stereo/depth_maps")
            write_colmap_depth(maps / f"{index:04d}.png.geometric.bin", view.depth)
    else:
        raise UnknownNameError("form of posed images", form, ["colmap", "colmap_text", "transforms", "json"])
    return views


def make_colmap_model(views: Sequence[ToyView], step: int = 6) -> ColmapModel:
    """A sparse model: points of every ``step``-th pixel of each view, seen by the views that see them."""
    points = np.concatenate([_lift(view, step) for view in views])
    observations = [_observe(view, points) for view in views]
    seen_by = np.sum([seen for seen, _ in observations], axis=0) >= 2
    points = points[seen_by]
    identities = np.arange(len(points)) + 1
    tracks: list[list[tuple[int, int]]] = [[] for _ in points]
    images = {}
    for index, (view, (seen, pixels)) in enumerate(zip(views, observations, strict=True)):
        visible = seen[seen_by]
        for place, point in enumerate(np.flatnonzero(visible)):
            tracks[point].append((index + 1, place))
        pose = view.camera.world_to_camera
        quaternion = quaternion_from_rotation(pose[:3, :3])
        kept = pixels[seen_by][visible] + 0.5
        name = f"{index:04d}.png"
        images[index + 1] = ColmapImage(name, index + 1, quaternion, pose[:3, 3], kept, identities[visible])
    cameras: dict[int, ColmapCamera] = {i + 1: colmap_from_camera(view.camera) for i, view in enumerate(views)}
    colors = np.rint(255 * _texture(points, 0.3)).astype(np.uint8)
    arrays = [np.array(track, dtype=np.int32).reshape(-1, 2) for track in tracks]
    return ColmapModel(cameras, images, ColmapPoints(identities, points, colors, np.full(len(points), 0.5), arrays))


def _texture(points: np.ndarray, wavelength: float) -> np.ndarray:
    """[..., 3] colours in [0, 1]: waves in different directions, so that every surface shows them."""
    waves = np.array([[1.0, 0.7, 0.4], [-0.6, 1.1, 0.5], [0.3, -0.5, 1.2]]) * (2 * np.pi / wavelength)
    phases = points @ waves.T
    fine = np.sin(1.7 * np.roll(phases, 1, axis=-1) + [0.3, 1.1, 2.0])
    return np.clip(0.5 + 0.28 * np.sin(phases) + 0.18 * fine, 0, 1)


def _pairs(views: Sequence[ToyView]) -> dict[int, list[tuple[int, float]]]:
    scores = 1000 * score_poses([view.camera.world_to_camera for view in views])
    return {
        view: [(source, round(float(scores[view, source]), 4)) for source in ranked]
        for view, ranked in enumerate(rank_sources(scores))
    }


def _lift(view: ToyView, step: int) -> np.ndarray:
    """World points of every ``step``-th pixel: [N, 3]."""
    rows, columns = np.mgrid[: view.depth.shape[0] : step, : view.depth.shape[1] : step]
    depth = view.depth[rows, columns].astype(np.float64)
    pixels = np.stack([columns * depth, rows * depth, depth], axis=-1).reshape(-1, 3)
    pose = view.camera.world_to_camera
    return (pixels @ np.linalg.inv(view.camera.intrinsics).T - pose[:3, 3]) @ pose[:3, :3]


def _observe(view: ToyView, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which points a view sees [P], and at which pixels [P, 2]."""
    pose, (height, width) = view.camera.world_to_camera, view.depth.shape
    projected = (points @ pose[:3, :3].T + pose[:3, 3]) @ view.camera.intrinsics.T
    pixels = projected[:, :2] / np.maximum(projected[:, 2:], 1e-9)
    nearest = np.rint(pixels)
    inside = (projected[:, 2] > 0) & (nearest >= 0).all(axis=1) & (nearest < (width, height)).all(axis=1)
    columns, rows = np.where(inside[:, None], nearest, 0).astype(int).T
    return inside & (np.abs(projected[:, 2] / view.depth[rows, columns] - 1) < 0.02), pixels


def _to_millimetres(camera: Camera) -> Camera:
    pose = camera.world_to_camera.copy()
    pose[:3, 3] *= 1000
    return replace(camera, world_to_camera=pose)


def _write_dtu_images(folder: Path, index: int, view: ToyView, lights: int) -> None:
    for light in range(lights):
        image = np.rint(view.image * (1 - 0.05 * light)).astype(np.uint8)
        write_image(folder / f"rect_{index + 1:03d}_{light}_r5000.png", image)


def _write_dtu_depth(root: Path, scan: int, index: int, camera: Camera, depths: str) -> None:
    """Depth and mask; the first 100 rows (full size) are unknown."""
    folder = {"raw": f"Depths_raw/scan{scan}", "low": f"Depths/scan{scan}_train", "renamed": f"Depths/scan{scan}"}[
        depths
    ]
    metres = replace(camera, world_to_camera=camera.world_to_camera.copy())
    metres.world_to_camera[:3, 3] /= 1000
    if depths == "low":
        quarter = scale_camera(scale_camera(metres, 0.5, CROP_LEFT, CROP_TOP), 0.25)
        metres = replace(quarter, width=LOW_SIZE[0], height=LOW_SIZE[1])
    depth = render_depth(metres) * np.float32(1000)
    mask = np.full(depth.shape, 255, dtype=np.uint8)
    mask[: depth.shape[0] // 6] = 5  # a speck of compression, not valid at the default level
    place = ensure_folder(root / folder)
    write_pfm(place / f"depth_map_{index:04d}.pfm", depth)
    with atomic_write(place / f"depth_visual_{index:04d}.png") as temporary:
        Image.fromarray(mask).save(temporary)


def _write_dtu_test(root: Path, count: int) -> list[ToyView]:
    views = [ToyView(view.image, _to_millimetres(view.camera), view.depth * 1000) for view in make_toy_views(count)]
    for scan in (1, 118):
        scene = {"images": "images/{:08d}.jpg", "cameras": "cams_1/{:08d}_cam.txt", "depths": None, "numbers": 2}
        write_mvsnet_scene(root / f"scan{scan}", views, **scene)  # type: ignore[arg-type]
    return views


def _write_blendedmvs(root: Path, count: int) -> list[ToyView]:
    views = make_toy_views(count)
    names = ("5a3ca9cb270f0e3f14d0eddb", "5b7a3890fc8fcf6781e2593a")
    for name in names:
        write_mvsnet_scene(
            root / name,
            views,
            images="blended_images/{:08d}.jpg",
            pairs="cams/pair.txt",
            depths="rendered_depth_maps/{:08d}.pfm",
        )
        for index, view in enumerate(views):
            write_image(root / name / f"blended_images/{index:08d}_masked.jpg", view.image // 2)
    with atomic_write(root / "BlendedMVS_list.txt") as temporary:
        temporary.write_text("\n".join(names) + "\n", encoding="ascii")
    return views


def _write_tanks_and_temples(root: Path, count: int) -> list[ToyView]:
    views = make_toy_views(count)
    for scene in ("intermediate/Family", "advanced/Museum"):
        folder = root / scene
        write_mvsnet_scene(folder, views, images="images/{:08d}.jpg", depths=None)
        write_mvsnet_scene(
            folder, views, images="images/{:08d}.jpg", cameras="cams_1/{:08d}_cam.txt", depths=None, numbers=2
        )
        write_trajectory_log(folder / f"{folder.name}.log", [view.camera.world_to_camera for view in views])
    for index, view in enumerate(views):
        path = ensure_folder(root / "intermediate/Family/cams_family") / f"{index:08d}_cam.txt"
        write_mvsnet_camera(path, view.camera, [0.5, 1.5])
    return views


def _write_mvsnet_folder(root: Path, count: int) -> list[ToyView]:
    views = make_toy_views(count)
    write_mvsnet_scene(root, views, numbers=2)
    return views


def _write_pool(root: Path, count: int) -> list[ToyView]:
    """One sample of all views, view 0 being the reference."""
    views = make_toy_views(count)
    span = (0.9 * float(np.nanmin(views[0].depth)), 1.1 * float(np.nanmax(views[0].depth)))
    sample = MultiViewSample(
        images=[view.image for view in views],
        cameras=[view.camera for view in views],
        view_ids=list(range(count)),
        depth=views[0].depth,
        depth_range=span,
        scene="toy",
    )
    write_multiview_pool(root, [sample])
    return views


_WRITERS: dict[str, Callable[[Path, int], list[ToyView]]] = {
    "dtu": lambda root, count: write_dtu_training(root, count, lights=7),
    "dtu_test": _write_dtu_test,
    "blendedmvs": _write_blendedmvs,
    "tanks_and_temples": _write_tanks_and_temples,
    "mvsnet_folder": _write_mvsnet_folder,
    "multiview_pool": _write_pool,
    "posed_images": lambda root, count: write_posed_images(root, "colmap", count),
    "image_folder": lambda root, count: write_posed_images(root, "transforms", count),
}
