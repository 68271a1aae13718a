# SPDX-License-Identifier: Apache-2.0
"""Small valid trees of every panorama data set, with exact distances, written in the exact file formats."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from vision3d.datasets.toy_multiview import cast_rays
from vision3d.errors import UnknownNameError
from vision3d.geometry.panorama import panorama_rays
from vision3d.io.exr import write_exr
from vision3d.io.files import atomic_write, ensure_folder
from vision3d.io.images import write_image
from vision3d.types import PanoramaSample

_UNKNOWN = (slice(0, 2), slice(0, 4))  # pixels that the toy maps mark as unknown


def render_panorama(height: int = 32, center: tuple[float, float, float] = (0.1, 0.05, -0.1)) -> PanoramaSample:
    """The room of :mod:`vision3d.datasets.toy_multiview` from its inside; camera axes are the world's axes."""
    distance, colors, normals = cast_rays(np.array(center), panorama_rays(height), 0.6)
    depth = distance.astype(np.float32)
    depth[_UNKNOWN] = np.nan
    normals = normals.astype(np.float32)
    normals[_UNKNOWN] = np.nan
    pose = np.eye(4)
    pose[:3, 3] = -np.array(center)
    return PanoramaSample(np.rint(255 * colors).astype(np.uint8), depth, normals, "camera", pose)


def list_panorama_layouts() -> list[str]:
    """The names that ``write_panorama_tree`` takes."""
    return sorted([*_WRITERS, "panorama_pool"])


def write_panorama_tree(name: str, root: str | os.PathLike[str], height: int = 32) -> list[PanoramaSample]:
    """Write a small tree that the reader ``name`` reads; return its panoramas in the reader's order of ``split="all"``.

    ``matterport3d`` is UniFuse's stitching, ``matterport3d_bifuse`` BiFuse's.

    Raises:
        UnknownNameError: no such layout. OutputError: the place is not writable. MissingExtraError: EXR files without
        the package OpenEXR.
    """
    if name not in list_panorama_layouts():
        raise UnknownNameError("layout", name, list_panorama_layouts())
    samples = [render_panorama(height), render_panorama(height, (-0.4, 0.1, 0.2)), render_panorama(height, (0.5, 0, 0))]
    folder = ensure_folder(root)
    if name == "panorama_pool":
        from vision3d.datasets.panorama_pool import write_panorama_pool

        samples = [replace(sample, scene=f"room_{number}") for number, sample in enumerate(samples)]
        write_panorama_pool(folder, samples)
        return samples
    return [replace(sample, scene=_WRITERS[name](folder, number, sample)) for number, sample in enumerate(samples)]


def write_codes16(path: Path, depth: np.ndarray, per_metre: float, missing: int) -> None:
    """Write [H, W] metres as a 16-bit PNG with ``per_metre`` codes a metre."""
    from PIL import Image

    codes = np.rint(np.where(np.isfinite(depth), depth, 0).astype(np.float64) * per_metre)
    picture = Image.fromarray(np.where(np.isfinite(depth), codes, missing).astype(np.uint16))
    with atomic_write(path) as temporary:
        picture.save(temporary, format="PNG")


def write_normals(path: Path, normals: np.ndarray, center: float, scale: float) -> None:
    """Write unit normals [H, W, 3] as ``round(center + scale * n)``; unknown ones become (128, 128, 128)."""
    codes = np.clip(np.rint(center + scale * np.where(np.isfinite(normals), normals, 0)), 0, 255)
    write_image(path, np.where(np.isfinite(normals), codes, 128).astype(np.uint8))


def _stanford2d3d(root: Path, number: int, sample: PanoramaSample) -> str:
    area = ("area_1", "area_4", "area_5a")[number]
    stem = f"camera_{number:032x}_office_{number}_frame_equirectangular_domain"
    folders = {kind: ensure_folder(root / area / "pano" / kind) for kind in ("rgb", "depth", "normal")}
    write_image(folders["rgb"] / f"{stem}_rgb.png", sample.image)
    write_codes16(folders["depth"] / f"{stem}_depth.png", _depth(sample), 512, 65535)
    write_normals(folders["normal"] / f"{stem}_normals.png", _normals(sample), 127.5, 127.5)
    return f"{area}/pano/{stem}"


def _matterport3d(root: Path, number: int, sample: PanoramaSample) -> str:
    color, depth = (ensure_folder(root / "house" / kind) for kind in ("pano_skybox_color", "pano_depth"))
    write_image(color / f"{number:04x}.jpg", sample.image)
    write_codes16(depth / f"{number:04x}.png", _depth(sample), 4000, 0)
    return f"house/{number:04x}"


def _matterport3d_bifuse(root: Path, number: int, sample: PanoramaSample) -> str:
    folder = ensure_folder(root / "house" / f"{number:04x}")
    write_image(folder / "color.jpg", sample.image)
    with atomic_write(folder / "depth.npy") as temporary:
        np.save(temporary, np.where(np.isfinite(_depth(sample)), _depth(sample), np.float32(0.01)))
    return f"house/{number:04x}"


def _panorama3d60(root: Path, number: int, sample: PanoramaSample) -> str:
    folder, end = ensure_folder(root / "Matterport3D"), "0_Left_Down_0.0"
    write_image(folder / f"{number}_abc_color_{end}.png", sample.image)
    depth = np.where(np.isfinite(_depth(sample)), _depth(sample), np.inf)
    write_exr(folder / f"{number}_abc_depth_{end}.exr", {"Y": depth})
    normals = np.nan_to_num(_normals(sample))
    write_exr(folder / f"{number}_abc_normal_{end}.exr", {name: normals[..., i] for i, name in enumerate("RGB")})
    return f"Matterport3D/{number}_abc/0.0"


def _pano3d(root: Path, number: int, sample: PanoramaSample) -> str:
    folder = ensure_folder(root / "scene_a")
    write_image(folder / f"{number}_spherical_1_emission_center_0.png", sample.image)
    depth = np.where(np.isfinite(_depth(sample)), _depth(sample), np.float32(8.01))
    write_exr(folder / f"{number}_spherical_1_depth_center_0.exr", {"R": depth, "G": depth, "B": depth})
    normals = np.nan_to_num(_normals(sample))
    path = folder / f"{number}_spherical_1_normal_map_center_0.exr"
    write_exr(path, {name: normals[..., i] for i, name in enumerate("RGB")})
    return f"scene_a/{number}"


def _structured3d(root: Path, number: int, sample: PanoramaSample) -> str:
    scene = ("scene_00000", "scene_03000", "scene_03250")[number]
    folder = ensure_folder(root / scene / "2D_rendering/485142/panorama/full")
    write_image(folder / "rgb_rawlight.png", sample.image)
    write_codes16(folder / "depth.png", _depth(sample), 1000, 0)
    write_normals(folder / "normal.png", _normals(sample), 128, 128)
    return f"{scene}/485142"


def _panorama_list(root: Path, number: int, sample: PanoramaSample) -> str:
    write_image(root / f"{number}.png", sample.image)
    write_codes16(root / f"{number}_depth.png", _depth(sample), 1000, 0)
    lines = [f"{index}.png, {index}_depth.png\n" for index in range(number + 1)]
    with atomic_write(root / "list.csv") as temporary:
        temporary.write_text("# image, depth\n" + "".join(lines), encoding="ascii")
    return str(number)


def _depth(sample: PanoramaSample) -> np.ndarray:
    return np.asarray(sample.depth)


def _normals(sample: PanoramaSample) -> np.ndarray:
    return np.asarray(sample.normals)


_WRITERS: dict[str, Callable[[Path, int, PanoramaSample], str]] = {
    "stanford2d3d": _stanford2d3d,
    "matterport3d": _matterport3d,
    "matterport3d_bifuse": _matterport3d_bifuse,
    "panorama3d60": _panorama3d60,
    "pano3d": _pano3d,
    "structured3d": _structured3d,
    "panorama_list": _panorama_list,
}
