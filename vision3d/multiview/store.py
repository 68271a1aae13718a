# SPDX-License-Identifier: Apache-2.0
"""The result folder of a scene: depth maps that are kept between runs, and pictures of them.

A view is finished once its confidence map exists, which is written after its depth map. ``settings.json`` says what the
maps were made with; a run with other settings is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vision3d.errors import DisparityError, OutputError
from vision3d.io.cameras import write_mvsnet_camera, write_pairs
from vision3d.io.files import atomic_write, ensure_folder
from vision3d.io.images import write_image
from vision3d.io.pfm import read_pfm, write_pfm
from vision3d.multiview.scene import Scene
from vision3d.visualization import colorize, unit_picture, with_color_bar

_FOLDERS = ("depth_est", "confidence", "depth_filtered", "pictures", "cams")
_SETTINGS = "settings.json"


class Store:
    """The maps of a result folder, read when asked; a few are kept in memory.

    Args:
        folder: created where it is missing.
        settings: what depth maps depend on; plain JSON values.
        overwrite: throw away maps that were made with other settings.

    Raises:
        OutputError: the folder is not writable, or holds maps of other settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        self.folder = ensure_folder(folder)
        for name in _FOLDERS:
            ensure_folder(self.folder / name)
        self._check_settings(dict(settings), overwrite)
        self._depth = lru_cache(maxsize=12)(self._read_depth)

    def _check_settings(self, settings: dict[str, Any], overwrite: bool) -> None:
        path = self.folder / _SETTINGS
        settings = json.loads(json.dumps(settings))
        before = _load(path)
        different = [key for key in settings.keys() | (before or {}).keys() if (before or {}).get(key) != settings[key]]
        if before is not None and different and not overwrite:
            key = sorted(different)[0]
            raise OutputError(
                f"{path}: the depth maps there were made with another {key} ({before.get(key)!s:.60}, now "
                f"{settings.get(key)!s:.60}): choose another folder, or overwrite them (--overwrite)"
            )
        if before is None or different:
            for kind in ("confidence", "depth_est", "depth_filtered"):
                for file in (self.folder / kind).glob("*.pfm"):
                    file.unlink()
            with atomic_write(path) as temporary:
                temporary.write_text(json.dumps(settings, indent=1), encoding="utf-8")

    def path(self, kind: str, number: int, suffix: str = ".pfm") -> Path:
        """File of a view: ``depth_est``, ``confidence``, ``depth_filtered`` or ``pictures``."""
        return self.folder / kind / f"{number:08d}{suffix}"

    def finished(self, number: int, size: tuple[int, int]) -> bool:
        """Whether the maps of a view are there, whole and of (width, height)."""
        try:
            shapes = {read_pfm(self.path(kind, number)).shape for kind in ("depth_est", "confidence")}
        except DisparityError:
            return False
        return shapes == {(size[1], size[0])}

    def save(self, number: int, depth: np.ndarray, confidence: np.ndarray, scene: Scene) -> None:
        """Write the maps and the camera of a view."""
        write_mvsnet_camera(
            self.folder / "cams" / f"{number:08d}_cam.txt", scene.camera(number), scene.ranges.get(number, (0.0, 0.0))
        )
        write_pfm(self.path("depth_est", number), np.where(np.isfinite(depth), depth, np.float32(0)))
        write_pfm(self.path("confidence", number), confidence)
        self._depth.cache_clear()

    def depth(self, number: int) -> np.ndarray:
        """[H, W] float32, NaN where unknown."""
        return self._depth(number)

    def confidence(self, number: int) -> np.ndarray:
        """[H, W] float32."""
        return read_pfm(self.path("confidence", number))

    def _read_depth(self, number: int) -> np.ndarray:
        depth = read_pfm(self.path("depth_est", number))
        return np.where(depth > 0, depth, np.float32(np.nan))

    def save_filtered(self, number: int, depth: np.ndarray) -> None:
        """Write the kept depths of a view; NaN where nothing is kept."""
        write_pfm(self.path("depth_filtered", number), np.where(np.isfinite(depth), depth, np.float32(0)))

    def filtered(self, number: int) -> np.ndarray:
        """[H, W] float32 kept depths, NaN elsewhere."""
        depth = read_pfm(self.path("depth_filtered", number))
        return np.where(depth > 0, depth, np.float32(np.nan))

    def save_pictures(self, number: int, image: np.ndarray, span: tuple[float, float], unit: str) -> None:
        """Write PNG pictures of a view: image, depth before and after the filter over one range, and confidence."""
        unit = "" if unit == "unknown" else unit
        for name, depth in (("depth", self.depth(number)), ("filtered", self.filtered(number))):
            picture = with_color_bar(colorize(depth, *span), *span, unit)
            write_image(self.path("pictures", number, f"_{name}.png"), picture)
        grey = unit_picture(self.confidence(number))
        write_image(self.path("pictures", number, "_confidence.png"), np.repeat(grey[..., None], 3, axis=2))
        write_image(self.path("pictures", number, "_image.png"), image)

    def save_lists(self, scene: Scene, numbers: Sequence[int]) -> None:
        """Write ``pair.txt`` and ``names.txt``, so that the folder can be read as MVSNet's layout."""
        pairs = {number: [(source, 1.0) for source in scene.sources(number)] for number in numbers}
        write_pairs(self.folder / "pair.txt", pairs)
        rows = [f"{number:08d} {scene.names[number]}\n" for number in numbers]
        with atomic_write(self.folder / "names.txt") as temporary:
            temporary.write_text("".join(rows), encoding="utf-8")


def weights_digest(network: torch.nn.Module) -> str:
    """A short checksum of a network's parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in network.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().float().numpy().tobytes())
    return digest.hexdigest()[:16]


def scene_digest(scene: Scene) -> str:
    """A short checksum of names, cameras, sources and ranges of a scene."""
    digest = hashlib.sha256()
    for number, entry in scene.entries.items():
        digest.update(f"{number} {scene.names[number]} {entry.sources} {scene.ranges.get(number)}".encode())
        digest.update(scene.camera(number).intrinsics.tobytes())
        digest.update(scene.camera(number).world_to_camera.tobytes())
    return digest.hexdigest()[:16]


def _load(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: damaged ({error}); remove the folder or choose another one") from error
    if not isinstance(content, dict):
        raise OutputError(f"{path}: no settings of a run; remove the file or choose another folder")
    return content
