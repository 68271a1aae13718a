# SPDX-License-Identifier: Apache-2.0
"""Tanks and Temples (Knapitsch et al., SIGGRAPH 2017), intermediate and advanced sets as prepared for MVSNet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from vision3d.datasets.multiview import MVSNetScenes, ViewEntry
from vision3d.datasets.pairs import list_folder
from vision3d.errors import ConfigError
from vision3d.io.cameras import read_trajectory_log

SCENES = {
    "intermediate": ("Family", "Francis", "Horse", "Lighthouse", "M60", "Panther", "Playground", "Train"),
    "advanced": ("Auditorium", "Ballroom", "Courtroom", "Museum", "Palace", "Temple"),
}
_CAMERAS = ("auto", "short", "range", "long")


class TanksAndTemples(MVSNetScenes):
    """Images and cameras (no public depth) of the benchmark's scenes, about 1920 x 1080.

    Args:
        root: holds ``intermediate`` and ``advanced``, or is one of them.
        split: ``intermediate``, ``advanced`` or ``test`` (both).
        cameras: ``"short"``: ``cams_{scene}`` of the short-range archive; ``"range"``: ``cams_1``; ``"long"``:
            ``cams``; ``"auto"``: the first of these that exists.
        min_sources: reference views with fewer sources are left out (DispMVS needs 2).
        options: see :class:`MultiViewDataset`; DispMVS tests with ``views=7, size=(1920, 1024)``.

    Raises:
        FileFormatError: missing folder or files. ConfigError: illegal option.
    """

    name = "tanks_and_temples"
    splits = ("test", "intermediate", "advanced", "all")
    tree = "ROOT/intermediate/{scene}/images/%08d.jpg, cams/%08d_cam.txt (or cams_1, cams_{scene}), pair.txt"
    depth_folders = ()

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "test",
        *,
        cameras: str = "auto",
        min_sources: int = 2,
        **options: Any,
    ) -> None:
        if cameras not in _CAMERAS:
            raise ConfigError(f"tanks_and_temples: cameras '{cameras}' is unknown: choose {', '.join(_CAMERAS)}")
        self.cameras = cameras
        super().__init__(root, split, min_sources=min_sources, **options)

    def scene_folders(self) -> dict[str, Path]:
        """The scenes on the disk, in the benchmark's order."""
        folders = {}
        for part, scenes in SCENES.items():
            if self.split not in ("test", "all", part):
                continue
            parent = self.root / part if (self.root / part).is_dir() else self.root
            known = set(list_folder(parent)[0])
            folders.update({f"{part}/{scene}": parent / scene for scene in scenes if scene in known})
        return folders

    def camera_path(self, entry: ViewEntry, number: int) -> Path:
        """The ``cam.txt`` of a view from the chosen folder."""
        short = f"cams_{entry.scene.split('/')[1].lower()}"
        folder = self.folders[entry.scene]
        exact = next((name for name in list_folder(folder)[0] if name.lower() == short), short)
        names = {"short": (exact,), "range": ("cams_1",), "long": ("cams",)}
        choices = names.get(self.cameras, (exact, "cams_1", "cams"))
        return self._folder(entry.scene, choices, "no folder of cameras") / f"{number:08d}_cam.txt"

    def read_trajectory(self, scene: str) -> list[np.ndarray]:
        """World-to-camera matrices of ``{scene}.log``, which a submission to the benchmark must repeat.

        Raises:
            CameraFileError: there is no such file, or it is damaged.
        """
        return read_trajectory_log(self.folders[scene] / f"{scene.split('/')[1]}.log")
