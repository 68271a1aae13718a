# SPDX-License-Identifier: Apache-2.0
"""A scene for multi-view stereo: its images, cameras, source views and depth ranges, read when asked."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from vision3d.datasets.multiview import MultiViewDataset, View, ViewEntry
from vision3d.datasets.pairs import images_in
from vision3d.errors import FileFormatError, InputError
from vision3d.geometry.view_selection import camera_center
from vision3d.inference import resize_image
from vision3d.io.cameras import DepthLine
from vision3d.types import Camera

_PAIR_FILES = ("pair.txt", "cams/pair.txt")
_UNITS = (0.1, 5000.0)  # range of depths that networks with constants in their formulas are made for
_USUAL_DEPTH = 100.0


@dataclass
class Scene:
    """One scene.

    Attributes:
        folder: where it lies.
        data: the reader of its files.
        entries: reference views by their number.
        names: image name of each view.
        unit: unit of cameras and depths.
        size: (width, height) that all views are brought to.
        half_pixel: how the intrinsics follow a resize, see :meth:`vision3d.types.Camera.resized`.
        ranges: depth range of each reference view.
        factor: lengths times this are of a usual size for a network.
        warnings: what the user should know.
    """

    folder: Path
    data: MultiViewDataset
    entries: dict[int, ViewEntry]
    names: dict[int, str]
    unit: str
    size: tuple[int, int]
    half_pixel: bool
    ranges: dict[int, tuple[float, float]]
    factor: float = 1.0
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._read = lru_cache(maxsize=16)(self._read_view)

    @property
    def references(self) -> list[int]:
        """Numbers of the views that have sources, in order."""
        return [number for number, entry in self.entries.items() if entry.sources]

    def sources(self, number: int, count: int | None = None) -> list[int]:
        """The best source views of a view."""
        return list(self.entries[number].sources[:count])

    def image(self, number: int) -> np.ndarray:
        """[H, W, 3] uint8 RGB of a view at ``size``."""
        return self._read(number)[0]

    def camera(self, number: int) -> Camera:
        """Camera of a view at ``size``."""
        return self._read(number)[1]

    def _read_view(self, number: int) -> tuple[np.ndarray, Camera]:
        view = _read(self.data, self.entries, number)
        if view.camera is None:
            raise InputError(f"{self.folder}: view {number} has no camera; multi-view stereo needs the poses")
        camera = replace(view.camera, width=view.image.shape[1], height=view.image.shape[0])
        return resize_image(view.image, *self.size), camera.resized(*self.size, half_pixel=self.half_pixel)


def open_scene(
    folder: str | os.PathLike[str],
    *,
    size: tuple[int, int] | None = None,
    half_pixel: bool = True,
    depth_range: tuple[float, float] | None = None,
    depth_line: DepthLine = "auto",
    **options: Any,
) -> Scene:
    """Open a folder: MVSNet's layout where there is a ``pair.txt``, else COLMAP, ``cameras.json``, transforms.json.

    Args:
        folder: the folder of the scene.
        size: (height, width) to bring all views to; None: the most frequent size of the images.
        half_pixel: how the intrinsics follow a resize.
        depth_range: depth range of all views instead of that of the files.
        depth_line: meaning of MVSNet depth lines of 2 numbers.
        options: of :class:`vision3d.datasets.posed_images.PosedImages`.

    Raises:
        FileFormatError and its kinds: missing or damaged files. InputError: fewer than two views that see a common
        place, or an illegal range or size.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileFormatError(f"{root}: no such folder; give the folder of a scene (COLMAP, MVSNet or cameras.json)")
    if depth_range is not None and not 0 < depth_range[0] < depth_range[1] < np.inf:
        raise InputError(f"the depth range must be 0 < min < max, got {depth_range[0]:g} to {depth_range[1]:g}")
    if size is not None and min(size) < 16:
        raise InputError(f"a size of {size[0]}x{size[1]} is too small: 16x16 at least")
    data = _open_data(root, depth_line, options)
    entries = {entry.reference: entry for entry in data.entries}
    views = _all_views(entries)
    if len(views) < 2 or not any(entry.sources for entry in entries.values()):
        raise InputError(f"{root}: {len(views)} view(s) with a common place; multi-view stereo needs two or more")
    warnings = _unused_images(root, data, entries)
    facts = {number: _facts(data, entries, number) for number in views}
    chosen = _common_size({number: fact.size for number, fact in facts.items()}, size, warnings)
    ranges = _ranges(entries, facts, depth_range, warnings)
    lonely = [facts[number].name for number, entry in entries.items() if not entry.sources]
    if lonely:
        warnings.append(f"{len(lonely)} view(s) see no place in common with others: {_some(lonely)}")
    middle = float(np.median([np.sqrt(near * far) for near, far in ranges.values()]))
    factor = 1.0 if _UNITS[0] <= middle <= _UNITS[1] else _USUAL_DEPTH / middle
    names = {number: fact.name for number, fact in facts.items()}
    unit = getattr(data, "unit", "unknown")
    return Scene(root, data, entries, names, unit, chosen, half_pixel, ranges, factor, warnings)


@dataclass(frozen=True)
class _Facts:
    """What is kept of a view beside its files."""

    name: str
    size: tuple[int, int]
    camera: Camera
    depth_range: tuple[float, float] | None


def _open_data(root: Path, depth_line: DepthLine, options: dict[str, Any]) -> MultiViewDataset:
    if not any((root / name).is_file() for name in _PAIR_FILES):
        from vision3d.datasets.posed_images import PosedImages

        return PosedImages(root, min_sources=0, **options)
    from vision3d.datasets.multiview import MVSNetFolder

    return MVSNetFolder(root, depth_line=depth_line, min_sources=0, **options)


def _all_views(entries: dict[int, ViewEntry]) -> list[int]:
    return sorted(set(entries) | {source for entry in entries.values() for source in entry.sources})


def _read(data: MultiViewDataset, entries: dict[int, ViewEntry], number: int) -> View:
    entry = entries.get(number) or next(iter(entries.values()))
    return data.read_view(entry, number)


def _facts(data: MultiViewDataset, entries: dict[int, ViewEntry], number: int) -> _Facts:
    """Read a view once, so that all files are known to be good before hours of work; its pixels are not kept."""
    view = _read(data, entries, number)
    if view.camera is None:
        raise InputError(f"{view.name}: has no camera; multi-view stereo needs the poses")
    return _Facts(view.name, (view.image.shape[1], view.image.shape[0]), view.camera, view.depth_range)


def _common_size(
    sizes: dict[int, tuple[int, int]], wanted: tuple[int, int] | None, warnings: list[str]
) -> tuple[int, int]:
    if wanted is not None:
        return wanted[1], wanted[0]
    counted = Counter(sizes.values())
    chosen = max(counted, key=lambda item: (counted[item], item))
    if len(counted) > 1:
        others = sum(counted.values()) - counted[chosen]
        warnings.append(f"images of {len(counted)} sizes: {others} are resized to {chosen[0]}x{chosen[1]}")
    return chosen


def _ranges(
    entries: dict[int, ViewEntry],
    facts: dict[int, _Facts],
    given: tuple[float, float] | None,
    warnings: list[str],
) -> dict[int, tuple[float, float]]:
    ranges, guessed = {}, []
    for number, entry in entries.items():
        if not entry.sources:
            continue
        found = given or facts[number].depth_range
        if found is None:
            found = range_from_baselines(facts[number].camera, [facts[source].camera for source in entry.sources[:4]])
            guessed.append(facts[number].name)
        ranges[number] = found
    if guessed:
        warnings.append(
            f"{len(guessed)} view(s) have no depth range, it is taken from the baselines; give one (--depth-range MIN "
            f"MAX, or depth_range): {_some(guessed)}"
        )
    return ranges


def range_from_baselines(camera: Camera, sources: Sequence[Camera]) -> tuple[float, float]:
    """A generous depth range where nothing is known: disparities from half an image width down to 2 pixels.

    Args:
        camera: reference view, of known width.
        sources: source views.

    Raises:
        InputError: all cameras stand at one place.
    """
    center = camera_center(camera.world_to_camera)
    baseline = float(np.median([np.linalg.norm(camera_center(s.world_to_camera) - center) for s in sources]))
    if not baseline > 0:
        raise InputError("the cameras of a view and its sources stand at one place: no depth can be found")
    return 2 * camera.fx * baseline / (camera.width or 2 * camera.cx), 0.5 * camera.fx * baseline


def _unused_images(root: Path, data: MultiViewDataset, entries: dict[int, ViewEntry]) -> list[str]:
    """A warning that names the images of the scene's folder that have no camera or no pairs."""
    used = {Path(name).name for name in getattr(data, "image_names", ())}
    numbers = {f"{number:08d}" for number in _all_views(entries)}
    folder = next((root / name for name in ("images", "dense/images") if (root / name).is_dir()), None)
    found = [] if folder is None else images_in(folder)
    unused = [name for name in found if name not in used and (used or os.path.splitext(name)[0] not in numbers)]
    if not unused:
        return []
    return [f"{len(unused)} image(s) without camera or pairs are left out: {_some(unused)}"]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
