# SPDX-License-Identifier: Apache-2.0
"""BlendedMVS and BlendedMVG (Yao et al., CVPR 2020): rendered views and depth of reconstructed scenes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vision3d.datasets.multiview import MVSNetScenes, View, ViewEntry
from vision3d.datasets.pairs import list_folder
from vision3d.errors import ConfigError, FileFormatError
from vision3d.io.files import read_bytes

VALIDATION_SCENES = (
    "5b7a3890fc8fcf6781e2593a",
    "5c189f2326173c3a09ed7ef3",
    "5b950c71608de421b1e7318f",
    "5a6400933d809f1d8200af15",
    "59d2657f82ca7774b1ec081d",
    "5ba19a8a360c7c30c1c169df",
    "59817e4a1bd4b175e7038d19",
)
_SCENE = re.compile(r"[0-9a-f]{24}")
_LISTS = {"train": ("training_list.txt",), "validation": ("validation_list.txt",)}


class BlendedMvs(MVSNetScenes):
    """BlendedMVS scenes, low or high resolution.

    Samples whose camera has no positive depth range are left out when the set is opened (``check="cameras"``), with
    ``check="maps"`` also those whose depth map is empty. The mask keeps depths inside the range of the camera file.

    Args:
        root: holds the scene folders of 24 hexadecimal digits.
        split: ``train``, ``validation`` (7 scenes) or ``all``. ``training_list.txt`` and ``validation_list.txt`` in the
            root decide where they exist, else the published list.
        scene_list: a file with the scenes to use instead, one a line (``BlendedMVG_list.txt``).
        masked: read the images without background.
        check: ``"none"``, ``"cameras"`` or ``"maps"`` (reads every depth map once).
        normalize: factor-free scale: lengths of each scene are multiplied by ``normalize`` / its least d_min, e.g. 100
            (IterMVS; there the first file read decides). None keeps the arbitrary scale of the files (DispMVS).
        options: see :class:`MultiViewDataset`; DispMVS trains with ``min_sources=4``.

    Raises:
        FileFormatError: missing folder or files. ConfigError: illegal option.
    """

    name = "blendedmvs"
    splits = ("train", "validation", "all")
    tree = "ROOT/{PID}/blended_images/%08d.jpg, cams/%08d_cam.txt, cams/pair.txt, rendered_depth_maps/%08d.pfm"
    image_folders = ("blended_images",)
    camera_folders = ("cams",)
    pair_files = ("cams/pair.txt", "pair.txt")
    depth_folders = ("rendered_depth_maps",)
    depth_required = True

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "train",
        *,
        scene_list: str | os.PathLike[str] | None = None,
        masked: bool = False,
        check: str = "cameras",
        normalize: float | None = None,
        **options: Any,
    ) -> None:
        if check not in ("none", "cameras", "maps"):
            raise ConfigError(f"blendedmvs: check '{check}' is unknown: choose none, cameras or maps")
        if normalize is not None and not normalize > 0:
            raise ConfigError(f"blendedmvs: normalize must be a positive number, got {normalize}")
        self.scene_list, self.masked, self.check, self.normalize = scene_list, masked, check, normalize
        self._factors: dict[str, float] = {}
        super().__init__(root, split, **options)

    def scene_folders(self) -> dict[str, Path]:
        """The scenes of the split that lie in the root (also nested PID/PID/PID, as the archives unpack)."""
        on_disk = [name for name in list_folder(self.root)[0] if _SCENE.fullmatch(name)]
        wanted = self._wanted(on_disk)
        return {name: _unnest(self.root / name) for name in wanted if name in on_disk}

    def list_entries(self) -> Iterable[ViewEntry]:
        """The reference views with a positive depth range."""
        for entry in super().list_entries():
            if self.check == "none":
                yield entry
                continue
            if self.read_camera(entry, entry.reference).depth_range is None:
                continue
            if self.check == "maps":
                view = super().read_view(entry, entry.reference)
                depth, mask = self.read_truth(entry, view)
                if depth is None or mask is None or not mask.any():
                    continue
            yield entry

    def image_stem(self, number: int) -> str:
        """``%08d`` or ``%08d_masked``."""
        return f"{number:08d}_masked" if self.masked else f"{number:08d}"

    def read_view(self, entry: ViewEntry, number: int) -> View:
        """Read a view; its lengths are scaled with ``normalize``."""
        view, factor = super().read_view(entry, number), self._factor(entry.scene)
        if factor == 1 or view.camera is None:
            return view
        pose = view.camera.world_to_camera.copy()
        pose[:3, 3] *= factor
        span = None if view.depth_range is None else (view.depth_range[0] * factor, view.depth_range[1] * factor)
        interval = None if view.depth_interval is None else view.depth_interval * factor
        return replace(
            view, camera=replace(view.camera, world_to_camera=pose), depth_range=span, depth_interval=interval
        )

    def read_truth(self, entry: ViewEntry, view: View) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Read the rendered depth; the mask is the camera's range."""
        depth, _ = super().read_truth(entry, view)
        if depth is None:
            return None, None
        factor = self._factor(entry.scene)
        depth = depth if factor == 1 else depth * np.float32(factor)
        if view.depth_range is None:
            return depth, np.zeros(depth.shape, dtype=bool)
        with np.errstate(invalid="ignore"):
            return depth, (depth >= view.depth_range[0]) & (depth <= view.depth_range[1])

    def _factor(self, scene: str) -> float:
        """Scale of a scene: from the least positive d_min of its cameras, whatever the order of reading."""
        if self.normalize is None:
            return 1.0
        if scene not in self._factors:
            folder = self._folder(scene, self.camera_folders, "no folder of cameras")
            numbers = [int(name[:8]) for name in list_folder(folder)[1] if re.fullmatch(r"\d{8}_cam\.txt", name)]
            cameras = [self.read_camera(ViewEntry(scene, number, ()), number) for number in numbers]
            least = min((camera.depth_min for camera in cameras if camera.depth_range is not None), default=None)
            self._factors[scene] = 1.0 if least is None else self.normalize / least
        return self._factors[scene]

    def _wanted(self, on_disk: list[str]) -> list[str]:
        lists = [self.root / name for name in _LISTS.get(self.split, ()) if (self.root / name).is_file()]
        if self.scene_list is not None:
            lists = [Path(self.scene_list)]
        if lists:
            text = read_bytes(lists[0], FileFormatError, "a list of scenes").decode("utf-8", errors="replace")
            return text.split()
        if self.split == "all":
            return on_disk
        return [name for name in on_disk if (name in VALIDATION_SCENES) == (self.split == "validation")]


def _unnest(folder: Path) -> Path:
    for _ in range(3):
        if (folder / "cams").is_dir() or not (folder / folder.name).is_dir():
            break
        folder = folder / folder.name
    return folder
