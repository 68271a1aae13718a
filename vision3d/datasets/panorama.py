# SPDX-License-Identifier: Apache-2.0
"""Panorama data sets with depth: what their readers share, lists of one's own, and plain folders.

Depth is the distance along the ray in metres; pixel mapping and axes are those of :mod:`vision3d.geometry.panorama`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch.utils.data import Dataset

from vision3d.datasets.multiview import check_split, resize_nearest
from vision3d.datasets.pairs import images_in, join, printable, read_skip_file
from vision3d.errors import ConfigError, DisparityError, FileFormatError, ImageError
from vision3d.geometry.panorama import panorama_rays
from vision3d.io.disparity import read_disparity
from vision3d.io.exr import read_exr
from vision3d.io.files import read_bytes
from vision3d.io.images import load_pil, read_image
from vision3d.types import PanoramaSample

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class PanoramaEntry:
    """The files of one panorama.

    Attributes:
        scene: its name inside the data set.
        image, depth, normals, mask: the files; None where there is none. Where the mask is 0, depth is unknown.
        yaw: degrees by which the files are turned about the vertical axis (content moves to the right).
    """

    scene: str
    image: str
    depth: str | None = None
    normals: str | None = None
    mask: str | None = None
    yaw: float = 0.0

    def files(self) -> list[str]:
        """Every file of the panorama."""
        return [path for path in (self.image, self.depth, self.normals, self.mask) if path is not None]


class PanoramaDataset(Dataset[PanoramaSample]):
    """A panorama data set in folders.

    Args:
        root: the folder of the data set.
        split: one of ``splits``.
        height: rows to reduce to (width = 2 * height): averaging for colours, nearest for the maps. None: keep.
        max_depth: metres; larger depths become unknown. None: all are kept.
        normals: read the normals too, where the set has them.
        skip_file: text file with scenes to leave out, one a line.

    Attributes:
        name: registered name.
        entries: the files of each panorama.
        scenes: their names.

    Raises:
        FileFormatError: the folder is missing or holds no panorama, or files are missing.
        ConfigError: illegal option.
    """

    name: ClassVar[str] = ""
    splits: ClassVar[tuple[str, ...]] = ("all",)
    tree: ClassVar[str] = ""
    normal_axes: ClassVar[str] = "world"

    def __init__(
        self,
        root: PathLike,
        split: str = "all",
        *,
        height: int | None = None,
        max_depth: float | None = None,
        normals: bool = False,
        skip_file: PathLike | None = None,
    ) -> None:
        self.root, self.split = Path(root), check_split(self.name, split, self.splits)
        if (height is not None and height < 1) or (max_depth is not None and not max_depth > 0):
            raise ConfigError(f"{self.name}: height and max_depth must be positive")
        if not self.root.is_dir():
            raise FileFormatError(f"{printable(root)}: no such folder; give the folder of {self.name}: {self.tree}")
        self.height, self.max_depth, self.read_normal_maps = height, max_depth, normals
        left_out = read_skip_file(skip_file) if skip_file is not None else frozenset()
        self.entries = [entry for entry in self.list_entries() if entry.scene not in left_out]
        if not self.entries:
            raise FileFormatError(
                f"{printable(root)}: holds no panorama of {self.name} ({self.split}); expected: {self.tree}"
            )
        lacking = [file for entry in self.entries for file in entry.files() if not os.path.isfile(file)]
        if lacking:
            raise FileFormatError(
                f"{printable(lacking[0])}: no such file ({len(lacking)} files are missing); complete the data set, or "
                "leave panoramas out with skip_file"
            )

    def list_entries(self) -> Iterable[PanoramaEntry]:
        """The panoramas below ``self.root``, in a fixed order."""
        raise NotImplementedError

    def read_depth(self, path: str) -> np.ndarray:
        """[H, 2H] float32 metres, NaN where unknown."""
        raise NotImplementedError

    def read_normals(self, path: str) -> np.ndarray:
        """[H, 2H, 3] float32, unit, NaN where unknown."""
        raise NotImplementedError

    @property
    def scenes(self) -> list[str]:
        """Name of each panorama."""
        return [entry.scene for entry in self.entries]

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> PanoramaSample:
        """Read a panorama.

        Raises:
            ImageError, DisparityError: a file that cannot be used or does not fit the others.
        """
        entry = self.entries[range(len(self.entries))[index]]
        image = read_image(entry.image)
        height, width = image.shape[:2]
        if width != 2 * height:
            raise ImageError(f"{entry.image}: is {width}x{height}; a panorama is twice as wide as high: replace it")
        depth = None if entry.depth is None else self._depth(entry, (height, width))
        normals = None
        if entry.normals is not None and self.read_normal_maps:
            normals = _checked(entry.normals, self.read_normals(entry.normals), (height, width))
        image, depth, normals = self._resize(image, depth, normals)
        return PanoramaSample(
            image=turn(image, entry.yaw),
            depth=None if depth is None else turn(depth, entry.yaw),
            normals=None if normals is None else self._turn_normals(normals, entry.yaw),
            normal_axes=self.normal_axes,
            scene=entry.scene,
        )

    def _depth(self, entry: PanoramaEntry, size: tuple[int, int]) -> np.ndarray:
        path = str(entry.depth)
        depth = _checked(path, self.read_depth(path), size)
        limit = np.inf if self.max_depth is None else self.max_depth
        with np.errstate(invalid="ignore"):
            depth = np.where((depth > 0) & (depth <= limit) & np.isfinite(depth), depth, np.float32(np.nan))
        if entry.mask is not None:
            mask = _checked(entry.mask, np.asarray(load_pil(entry.mask).convert("L")), size)
            depth = np.where(mask > 0, depth, np.float32(np.nan))
        return depth

    def _resize(
        self, image: np.ndarray, depth: np.ndarray | None, normals: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        if self.height is None or self.height == image.shape[0]:
            return image, depth, normals
        import cv2

        size = (2 * self.height, self.height)
        method = cv2.INTER_AREA if self.height < image.shape[0] else cv2.INTER_LINEAR
        maps = [None if values is None else resize_nearest(values, *size) for values in (depth, normals)]
        return cv2.resize(image, size, interpolation=method), maps[0], maps[1]

    def _turn_normals(self, normals: np.ndarray, yaw: float) -> np.ndarray:
        turned = turn(normals, yaw)
        if not yaw or self.normal_axes == "world":
            return turned
        cos, sin = np.cos(np.radians(yaw)), np.sin(np.radians(yaw))
        return turned @ np.array([[cos, 0, -sin], [0, 1, 0], [sin, 0, cos]], dtype=np.float32)


class PanoramaList(PanoramaDataset):
    """Panoramas of a list file: lines ``image depth [mask]``, separated by commas or blanks, ``#`` begins a comment.

    Args:
        root: folder that the paths are relative to.
        list_file: the list, relative to the root; None: every image below the root, without depth.
        depth_scale: metres of one unit of the depth files (16-bit PNG in millimetres: 0.001).
        missing_value: code of unknown depth, besides 0, NaN and infinity.
        depth_kind: ``"distance"`` along the ray, or ``"z-cube"``: z of the cube face that a pixel lies on.
        options: see :class:`PanoramaDataset`.

    Depth files are 16-bit PNG, ``.npy``, ``.npz``, ``.pfm`` or ``.exr``.
    """

    name = "panorama_list"
    tree = "a list of lines 'image depth [mask]', or images of 2H x H"

    def __init__(
        self,
        root: PathLike,
        *,
        list_file: PathLike | None = None,
        depth_scale: float = 1.0,
        missing_value: float | None = None,
        depth_kind: str = "distance",
        **options: Any,
    ) -> None:
        if depth_kind not in ("distance", "z-cube") or not depth_scale > 0:
            raise ConfigError("panorama_list: depth_kind is distance or z-cube, depth_scale a positive number")
        self.list_file, self.depth_scale = list_file, depth_scale
        self.missing_value, self.depth_kind = missing_value, depth_kind
        super().__init__(root, **options)

    def list_entries(self) -> Iterable[PanoramaEntry]:
        """One entry a line, or one an image."""
        if self.list_file is None:
            for folder in (self.root, self.root / "images"):
                for name in images_in(folder):
                    yield PanoramaEntry(os.path.splitext(name)[0], join(folder, name))
            return
        for number, words in read_path_list(self.root / self.list_file):
            if len(words) > 3:
                raise FileFormatError(f"{self.list_file}: 'image depth [mask]' expected (line {number})")
            paths = [join(self.root, word) for word in words]
            scene = os.path.splitext(words[0])[0]
            mask = paths[2] if len(paths) > 2 else None
            yield PanoramaEntry(scene, paths[0], paths[1] if len(paths) > 1 else None, mask=mask)

    def read_depth(self, path: str) -> np.ndarray:
        """Any of the formats, in metres along the ray."""
        if path.lower().endswith(".exr"):
            values = one_channel(path)
            if self.missing_value is not None:
                values = np.where(values == np.float32(self.missing_value), np.float32(np.nan), values)
        else:
            picture = path.lower().endswith((".png", ".tif", ".tiff"))
            missing = "none" if self.missing_value is None else self.missing_value
            values = read_disparity(path, "uint16" if picture else None, 1.0, missing)
        values = values * np.float32(self.depth_scale)
        if self.depth_kind == "distance":
            return values
        rays = np.abs(panorama_rays(*values.shape)).max(axis=-1)
        return (values / rays).astype(np.float32)


def read_path_list(path: PathLike) -> list[tuple[int, list[str]]]:
    """The words of each line of a list (commas or blanks between them), with its number; blank lines are left out.

    Raises:
        FileFormatError: missing, empty or binary file.
    """
    try:
        lines = read_bytes(path, FileFormatError, "a list of files").decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as problem:
        raise FileFormatError(f"{path}: not a text file; write one panorama a line") from problem
    split = [line.partition("#")[0] for line in lines]
    words = [line.split(",") if "," in line else line.split() for line in split]
    stripped = [[word.strip() for word in row if word.strip()] for row in words]
    return [(number, row) for number, row in enumerate(stripped, 1) if row]


def read_codes16(path: str, per_metre: float, missing: float) -> np.ndarray:
    """[H, W] metres of a 16-bit PNG with ``per_metre`` codes a metre; 0 and ``missing`` are unknown."""
    depth = read_disparity(path, "uint16", per_metre, missing)
    return np.where(depth > 0, depth, np.float32(np.nan))


def decode_normals(path: str, center: float, scale: float, missing: tuple[int, int, int] | None) -> np.ndarray:
    """[H, W, 3] unit normals of an 8-bit picture: ``(code - center) / scale``; ``missing`` codes become NaN."""
    codes = read_image(path)
    values = (codes.astype(np.float32) - np.float32(center)) / np.float32(scale)
    length = np.linalg.norm(values, axis=-1, keepdims=True)
    unknown = length[..., 0] < 0.1
    if missing is not None:
        unknown |= (codes == np.array(missing, dtype=np.uint8)).all(axis=-1)
    normals = values / np.maximum(length, np.float32(1e-6))
    normals[unknown] = np.nan
    return normals


def one_channel(path: str) -> np.ndarray:
    """[H, W] float32 of an EXR file of depth: its only channel, or the first of Z, Y, V, R.

    Raises:
        DisparityError: no such channel, or a damaged file. MissingExtraError: the package OpenEXR is not installed.
    """
    channels = read_exr(path)
    names = list(channels) if len(channels) == 1 else [name for name in ("Z", "Y", "V", "R") if name in channels]
    if not names:
        raise DisparityError(f"{path}: holds the channels {', '.join(channels)}; one of Z, Y, V or R is expected")
    return channels[names[0]]


def three_channels(path: str) -> np.ndarray:
    """[H, W, 3] unit normals of an EXR file with the channels R, G, B (or X, Y, Z), NaN where they are no unit vectors.

    Raises:
        DisparityError: no such channels, or a damaged file. MissingExtraError: the package OpenEXR is not installed.
    """
    channels = read_exr(path)
    names = next((names for names in ("RGB", "XYZ") if set(names) <= channels.keys()), None)
    if names is None:
        raise DisparityError(f"{path}: holds the channels {', '.join(channels)}; R, G, B are needed")
    values = np.stack([channels[name] for name in names], axis=-1)
    length = np.linalg.norm(values, axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(length - 1) < 0.1, values / np.maximum(length, np.float32(1e-6)), np.float32(np.nan))


def turn(values: np.ndarray, yaw: float) -> np.ndarray:
    """A panorama [H, W, ...] turned about the vertical axis: content moves right by ``W * yaw / 360`` pixels."""
    return values if not yaw else np.roll(values, round(values.shape[1] * yaw / 360), axis=1)


def _checked(path: str, values: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if values.shape[:2] != size:
        raise DisparityError(
            f"{path}: the map is {values.shape[1]}x{values.shape[0]}, the image is {size[1]}x{size[0]}; replace it"
        )
    return values
