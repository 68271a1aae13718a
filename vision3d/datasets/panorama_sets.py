# SPDX-License-Identifier: Apache-2.0
"""Readers of the public panorama data sets: Stanford2D3D, Matterport3D, 360D / 3D60, Pano3D, Structured3D."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from vision3d.datasets.pairs import images_in, join, list_folder, walk
from vision3d.datasets.panorama import (
    PanoramaDataset,
    PanoramaEntry,
    PathLike,
    decode_normals,
    one_channel,
    read_codes16,
    read_path_list,
    three_channels,
)
from vision3d.errors import ConfigError, FileFormatError
from vision3d.io.disparity import read_disparity

_AREAS = ("1", "2", "3", "4", "5a", "5b", "6")
# Test areas of the three published folds (Armeni et al. 2017); the others train.
_FOLDS = {1: ("5a", "5b"), 2: ("2", "4"), 3: ("1", "3", "6")}
_STRUCTURED3D = {"train": (0, 2999), "validation": (3000, 3249), "test": (3250, 3499), "all": (0, 10**9)}
_PLACEMENTS = ("Left_Down", "Right", "Up")


class Stanford2D3D(PanoramaDataset):
    """Stanford 2D-3D-S panoramas (Armeni et al. 2017): 16-bit PNG, 512 codes a metre, 65535 unknown.

    Normals are in world axes. Poses are not read: how the panorama is turned within them is not documented well enough.

    Args:
        root: holds ``area_1`` ... ``area_6``, each with ``pano/{rgb,depth,normal}`` or ``{rgb,depth,normal}``.
        split: ``train``, ``test`` or ``all``.
        fold: 1 (test area 5), 2 (areas 2, 4) or 3 (areas 1, 3, 6).
        list_file: a list of lines ``rgb [depth]`` relative to the root, instead of the fold (UniFuse's lists).
        rgb_folder: name of the folder of images (some lists use a cleaned copy ``rgb_``).
        options: see :class:`PanoramaDataset`.
    """

    name = "stanford2d3d"
    splits = ("train", "test", "all")
    tree = "ROOT/area_1/pano/{rgb,depth,normal}/camera_*_equirectangular_domain_{rgb,depth,normals}.png"

    def __init__(
        self,
        root: PathLike,
        split: str = "train",
        *,
        fold: int = 1,
        list_file: PathLike | None = None,
        rgb_folder: str = "rgb",
        **options: Any,
    ) -> None:
        if fold not in _FOLDS:
            raise ConfigError(f"stanford2d3d: fold {fold}: choose 1, 2 or 3")
        self.fold, self.list_file, self.rgb_folder = fold, list_file, rgb_folder
        super().__init__(root, split, **options)

    def list_entries(self) -> Iterable[PanoramaEntry]:
        """The panoramas of the fold's areas, or of the list."""
        if self.list_file is not None:
            for _, words in read_path_list(self.list_file):
                yield self._entry(join(self.root, words[0]))
            return
        test = _FOLDS[self.fold]
        for area in _AREAS:
            if self.split == "all" or (area in test) == (self.split == "test"):
                for folder in (f"area_{area}/pano/{self.rgb_folder}", f"area_{area}/{self.rgb_folder}"):
                    for name in images_in(self.root / folder):
                        yield self._entry(join(self.root, folder, name))

    def read_depth(self, path: str) -> np.ndarray:
        """[H, W] metres."""
        return read_codes16(path, 512.0, 65535)

    def read_normals(self, path: str) -> np.ndarray:
        """[H, W, 3], world axes."""
        return decode_normals(path, 127.5, 127.5, (128, 128, 128))

    def _entry(self, image: str) -> PanoramaEntry:
        folder, name = os.path.split(image)
        parent, stem = os.path.dirname(folder), name.removesuffix("rgb.png")
        scene = os.path.relpath(join(parent, stem), self.root).replace(os.sep, "/").removesuffix("_")
        normals = join(parent, "normal", f"{stem}normals.png")
        depth = join(parent, "depth", f"{stem}depth.png")
        return PanoramaEntry(scene, image, depth, normals if os.path.isfile(normals) else None)


class Matterport3D(PanoramaDataset):
    """Matterport3D panoramas (Chang et al., 3DV 2017) with stitched depth. Results of the two stitchings differ.

    Args:
        root: the folder of the scenes.
        list_file: a list (the published splits are lists) of lines ``image [depth]`` relative to the root.
        stitching: ``"unifuse"``: ``<scene>/pano_skybox_color/<id>.jpg`` and ``pano_depth/<id>.png`` (4000 codes a
            metre); ``"bifuse"``: ``<scene>/<id>/color.jpg`` and ``depth.npy`` (metres, 0.01 unknown); ``"auto"``.
        options: see :class:`PanoramaDataset`; the protocols keep ``max_depth=10``.
    """

    name = "matterport3d"
    tree = "ROOT/<scene>/pano_skybox_color/<id>.jpg, pano_depth/<id>.png; or ROOT/<scene>/<id>/color.jpg, depth.npy"

    def __init__(
        self,
        root: PathLike,
        *,
        list_file: PathLike | None = None,
        stitching: str = "auto",
        **options: Any,
    ) -> None:
        if stitching not in ("auto", "unifuse", "bifuse"):
            raise ConfigError(f"matterport3d: stitching '{stitching}': choose auto, unifuse or bifuse")
        self.list_file, self.stitching = list_file, stitching
        super().__init__(root, **options)

    def list_entries(self) -> Iterable[PanoramaEntry]:
        """The panoramas of the list, or all."""
        if self.list_file is not None:
            for number, words in read_path_list(self.list_file):
                entry = self._entry(words[0].lstrip("/"))
                if entry is None:
                    raise FileFormatError(f"{self.list_file}: no path of a panorama of matterport3d (line {number})")
                yield entry
            return
        for folder, files in walk(self.root):
            for name in files:
                entry = self._entry(os.path.relpath(join(folder, name), self.root))
                if entry is not None:
                    yield entry

    def read_depth(self, path: str) -> np.ndarray:
        """[H, W] metres."""
        if path.endswith(".npy"):
            return read_disparity(path, "npy", invalid=0.01)
        return read_codes16(path, 4000.0, 0)

    def _entry(self, relative: str) -> PanoramaEntry | None:
        parts = relative.replace(os.sep, "/").split("/")
        stem = os.path.splitext(parts[-1])[0]
        image = join(self.root, *parts)
        if len(parts) >= 3 and parts[-2] == "pano_skybox_color" and self.stitching != "bifuse":
            scene = "/".join((*parts[:-2], stem))
            return PanoramaEntry(scene, image, join(self.root, *parts[:-2], "pano_depth", f"{stem}.png"))
        if len(parts) >= 2 and parts[-1] == "color.jpg" and self.stitching != "unifuse":
            return PanoramaEntry("/".join(parts[:-1]), image, join(self.root, *parts[:-1], "depth.npy"))
        return None


class Panorama3D60(PanoramaDataset):
    """360D (Zioulis et al., ECCV 2018) and 3D60 (3DV 2019): rendered, 256 x 512, EXR depth.

    A light at the camera makes brightness depend on depth, so results on this set are inflated. ``placement`` Left_Down
    is the centre view, which alone is 360D. Files are turned where a list names a yaw that is not on the disk.

    Args:
        root: the folder, searched in all sub-folders.
        list_file: a published list (of a split); the first path of each line with the placement's colour image counts.
        placement: ``"Left_Down"``, ``"Right"`` or ``"Up"``.
        max_depth: metres; larger depths are unknown.
        options: see :class:`PanoramaDataset`.
    """

    name = "panorama3d60"
    tree = "ROOT/**/<n>_<id>_{color,depth,normal}_0_Left_Down_0.0.{png,exr}"

    def __init__(
        self,
        root: PathLike,
        *,
        list_file: PathLike | None = None,
        placement: str = "Left_Down",
        max_depth: float | None = 10.0,
        **options: Any,
    ) -> None:
        if placement not in _PLACEMENTS:
            raise ConfigError(f"panorama3d60: placement '{placement}': choose {', '.join(_PLACEMENTS)}")
        self.list_file, self.placement = list_file, placement
        self._pattern = re.compile(rf"(.+)_color_0_{placement}_(\d+(?:\.\d+)?)\.png")
        super().__init__(root, max_depth=max_depth, **options)

    def list_entries(self) -> Iterable[PanoramaEntry]:
        """The panoramas of the list, or all."""
        if self.list_file is None:
            for folder, files in walk(self.root):
                yield from filter(None, (self._entry(join(folder, name)) for name in files))
            return
        for number, words in read_path_list(self.list_file):
            entries = filter(None, (self._entry(join(self.root, word.lstrip("./"))) for word in words))
            entry = next(entries, None)
            if entry is None:
                raise FileFormatError(f"{self.list_file}: no *_color_0_{self.placement}_*.png (line {number})")
            yield entry

    def read_depth(self, path: str) -> np.ndarray:
        """[H, W] metres."""
        return one_channel(path)

    def read_normals(self, path: str) -> np.ndarray:
        """[H, W, 3], axes of the files."""
        return three_channels(path)

    def _entry(self, image: str) -> PanoramaEntry | None:
        match = self._pattern.fullmatch(image)
        if match is None:
            return None
        stem, suffix = match.groups()
        scene = os.path.relpath(stem, self.root).replace(os.sep, "/") + f"/{suffix}"
        yaw = 0.0
        if not os.path.isfile(image):
            yaw, suffix = float(suffix), "0.0"
        ends = f"_0_{self.placement}_{suffix}"
        names = [f"{stem}_{kind}{ends}.exr" for kind in ("normal", "normal_map")]
        normals = next((name for name in names if os.path.isfile(name)), None)
        return PanoramaEntry(scene, f"{stem}_color{ends}.png", f"{stem}_depth{ends}.exr", normals, yaw=yaw)


class Pano3D(PanoramaDataset):
    """Pano3D (Albanis et al., CVPRW 2021): Matterport3D and GibsonV2 rendered anew, EXR depth up to 8 m.

    Args:
        root: the folder of the scenes.
        scene_list: a text file with one scene a line (the published splits are lists of scenes).
        max_depth: metres; larger depths are unknown.
        options: see :class:`PanoramaDataset`.
    """

    name = "pano3d"
    tree = "ROOT/<scene>/<n>_spherical_1_{emission,depth,normal_map}_center_0.{png,exr}"

    def __init__(
        self,
        root: PathLike,
        *,
        scene_list: PathLike | None = None,
        max_depth: float | None = 8.0,
        **options: Any,
    ) -> None:
        self.scene_list = scene_list
        super().__init__(root, max_depth=max_depth, **options)

    def list_entries(self) -> Iterable[PanoramaEntry]:
        """The panoramas of the scenes."""
        wanted = None if self.scene_list is None else {words[0] for _, words in read_path_list(self.scene_list)}
        for scene in list_folder(self.root)[0]:
            if wanted is None or scene in wanted:
                yield from self._scene(scene)

    def _scene(self, scene: str) -> Iterator[PanoramaEntry]:
        for name in images_in(self.root / scene):
            if name.endswith("_emission_center_0.png"):
                image = join(self.root, scene, name)
                paths = [image.replace("_emission_", f"_{kind}_")[:-3] + "exr" for kind in ("depth", "normal_map")]
                normals = paths[1] if os.path.isfile(paths[1]) else None
                yield PanoramaEntry(f"{scene}/{name.split('_')[0]}", image, paths[0], normals)

    def read_depth(self, path: str) -> np.ndarray:
        """[H, W] metres."""
        return one_channel(path)

    def read_normals(self, path: str) -> np.ndarray:
        """[H, W, 3], axes of the files."""
        return three_channels(path)


class Structured3D(PanoramaDataset):
    """Structured3D (Zheng et al., ECCV 2020): 512 x 1024 renderings, 16-bit PNG of millimetres, 0 unknown.

    Args:
        root: holds ``scene_00000`` ...
        split: ``train`` (scenes 0 to 2999), ``validation`` (to 3249), ``test`` (to 3499) or ``all``.
        furniture: ``"full"``, ``"simple"`` or ``"empty"`` rooms.
        light: ``"raw"``, ``"warm"`` or ``"cold"``.
        options: see :class:`PanoramaDataset`; give the errata list as ``skip_file`` (names ``scene_00000/room``).
    """

    name = "structured3d"
    splits = ("train", "validation", "test", "all")
    tree = "ROOT/scene_%05d/2D_rendering/<room>/panorama/full/{rgb_rawlight,depth,normal}.png"

    def __init__(
        self, root: PathLike, split: str = "train", *, furniture: str = "full", light: str = "raw", **options: Any
    ) -> None:
        if furniture not in ("full", "simple", "empty") or light not in ("raw", "warm", "cold"):
            raise ConfigError("structured3d: furniture is full, simple or empty; light is raw, warm or cold")
        self.furniture, self.light = furniture, light
        super().__init__(root, split, **options)

    def list_entries(self) -> Iterable[PanoramaEntry]:
        """Each room of the split's scenes."""
        first, last = _STRUCTURED3D[self.split]
        for scene in list_folder(self.root)[0]:
            match = re.fullmatch(r"scene_(\d{5})", scene)
            if match is None or not first <= int(match[1]) <= last:
                continue
            for room in list_folder(self.root / scene / "2D_rendering")[0]:
                folder = join(self.root, scene, "2D_rendering", room, "panorama", self.furniture)
                if os.path.isdir(folder):
                    image, normals = join(folder, f"rgb_{self.light}light.png"), join(folder, "normal.png")
                    known = normals if os.path.isfile(normals) else None
                    yield PanoramaEntry(f"{scene}/{room}", image, join(folder, "depth.png"), known)

    def read_depth(self, path: str) -> np.ndarray:
        """[H, W] metres."""
        return read_codes16(path, 1000.0, 0)

    def read_normals(self, path: str) -> np.ndarray:
        """[H, W, 3], world axes."""
        return decode_normals(path, 128.0, 128.0, None)
