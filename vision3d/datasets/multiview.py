# SPDX-License-Identifier: Apache-2.0
"""What the readers of multi-view data sets share, and the reader of scenes in MVSNet's layout.

A reader lists :class:`ViewEntry` (reference view and its candidate sources); :class:`MultiViewDataset` chooses the
sources, reads the views and the truth, and resizes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torch.utils.data import Dataset

from vision3d.datasets.pairs import images_in, list_folder, printable
from vision3d.errors import CameraFileError, ConfigError, DisparityError, FileFormatError, ImageError
from vision3d.io.cameras import DepthLine, MVSNetCamera, read_mvsnet_camera, read_pairs
from vision3d.io.images import read_image
from vision3d.io.pfm import read_pfm
from vision3d.types import Camera, MultiViewSample

SourceChoice = Literal["best", "random"]
_SPLIT_NAMES = {"val": "validation", "valid": "validation", "training": "train", "testing": "test"}


@dataclass(frozen=True, slots=True)
class ViewEntry:
    """One sample: a reference view and the views that may serve as its sources, best first.

    Attributes:
        scene: the scene inside the data set.
        reference: number of the reference view.
        sources: numbers of the source views.
        light: index of the lighting, for sets that have several.
    """

    scene: str
    reference: int
    sources: tuple[int, ...]
    light: int | None = None

    @property
    def name(self) -> str:
        """``scene/reference`` or ``scene/reference/light``."""
        light = "" if self.light is None else f"/{self.light}"
        return f"{self.scene}/{self.reference:08d}{light}"


@dataclass(frozen=True)
class View:
    """One view as it was read: the camera knows the size of the image."""

    image: np.ndarray
    camera: Camera | None
    name: str
    depth_range: tuple[float, float] | None = None
    depth_interval: float | None = None


class MultiViewDataset(Dataset[MultiViewSample]):
    """A multi-view data set in folders.

    Args:
        root: the folder of the data set.
        split: one of ``splits``.
        views: number of views of a sample, the reference among them (fewer where there are no more sources); None: all.
        source_choice: ``"best"``: the first sources of the list; ``"random"``: drawn from the list, by ``seed``,
            :attr:`epoch` and the index (DispMVS's training).
        seed: of the random choice.
        size: (width, height) that images, cameras and truth are resized to, or None.
        min_sources: reference views with fewer sources are left out.

    Attributes:
        name: registered name.
        entries: the samples.
        scenes: their names.
        epoch: changes the random choice; set it at the start of each epoch.

    Raises:
        FileFormatError: the folder is missing or holds no sample, or files are missing.
        ConfigError: illegal option.
    """

    name: ClassVar[str] = ""
    splits: ClassVar[tuple[str, ...]] = ("all",)
    tree: ClassVar[str] = ""
    unit: str = "unknown"

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str,
        *,
        views: int | None = 5,
        source_choice: SourceChoice = "best",
        seed: int = 0,
        size: tuple[int, int] | None = None,
        min_sources: int = 1,
    ) -> None:
        self.root = Path(root)
        self.split = check_split(self.name, split, self.splits)
        if source_choice not in ("best", "random"):
            raise ConfigError(f"{self.name}: source_choice '{source_choice}' is unknown: choose best or random")
        if (views is not None and views < 1) or (size is not None and min(size) < 1) or min_sources < 0:
            raise ConfigError(f"{self.name}: views and size are at least 1, min_sources at least 0")
        if not self.root.is_dir():
            raise FileFormatError(f"{printable(root)}: no such folder; give the folder of {self.name}: {self.tree}")
        self.views, self.source_choice, self.seed, self.size = views, source_choice, seed, size
        self.epoch = 0
        self.entries = [entry for entry in self.list_entries() if len(entry.sources) >= min_sources]
        if not self.entries:
            raise FileFormatError(
                f"{printable(root)}: holds no sample of {self.name} ({self.split}); expected: {self.tree}"
            )

    def list_entries(self) -> Iterable[ViewEntry]:
        """The samples below ``self.root``, in a fixed order."""
        raise NotImplementedError

    def read_view(self, entry: ViewEntry, number: int) -> View:
        """Read a view of the entry's scene."""
        raise NotImplementedError

    def read_truth(self, entry: ViewEntry, view: View) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Depth [H, W] (NaN: unknown) and mask [H, W] of the reference view, None where the set has none."""
        return None, None

    @property
    def scenes(self) -> list[str]:
        """Name of each sample."""
        return [entry.name for entry in self.entries]

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> MultiViewSample:
        """Read a sample; view 0 is the reference.

        Raises:
            ImageError, DisparityError, CameraFileError: a file that cannot be used or does not fit the others.
        """
        place = range(len(self.entries))[index]
        entry = self.entries[place]
        numbers = [entry.reference, *self._sources(place, entry)]
        views = [self.read_view(entry, number) for number in numbers]
        depth, mask = self.read_truth(entry, views[0])
        if self.size is not None:
            views = [resize_view(view, *self.size) for view in views]
            depth = None if depth is None else resize_nearest(depth, *self.size)
            mask = None if mask is None else resize_nearest(mask, *self.size)
        return MultiViewSample(
            images=[view.image for view in views],
            cameras=[view.camera for view in views if view.camera is not None],
            view_ids=numbers,
            unit=self.unit,
            depth=depth,
            mask=mask,
            depth_range=views[0].depth_range,
            depth_interval=views[0].depth_interval,
            names=[view.name for view in views],
            scene=entry.name,
        )

    def _sources(self, index: int, entry: ViewEntry) -> list[int]:
        count = len(entry.sources) if self.views is None else min(self.views - 1, len(entry.sources))
        if self.source_choice == "best":
            return list(entry.sources[:count])
        generator = np.random.default_rng((self.seed, self.epoch, index))
        return [entry.sources[place] for place in generator.permutation(len(entry.sources))[:count]]


class MVSNetScenes(MultiViewDataset):
    """Scenes in MVSNet's layout: ``SCENE/<images>/%08d.*``, ``SCENE/<cams>/%08d_cam.txt``, ``pair.txt``.

    The names of the folders are class attributes; the first that exists is taken. A depth map is read where the
    folder of depth maps has one for the reference view.

    Args:
        root, split, options: see :class:`MultiViewDataset`.
        depth_line: meaning of depth lines of 2 numbers, see :func:`vision3d.io.cameras.read_mvsnet_camera`.
    """

    image_folders: ClassVar[tuple[str, ...]] = ("images",)
    camera_folders: tuple[str, ...] = ("cams", "cams_1")
    pair_files: ClassVar[tuple[str, ...]] = ("pair.txt", "cams/pair.txt")
    depth_folders: ClassVar[tuple[str, ...]] = ("depths", "rendered_depth_maps")
    depth_required: ClassVar[bool] = False

    def __init__(
        self, root: str | os.PathLike[str], split: str, *, depth_line: DepthLine = "auto", **options: Any
    ) -> None:
        self.depth_line = depth_line
        self._images: dict[str, dict[str, str]] = {}
        super().__init__(root, split, **options)

    def scene_folders(self) -> dict[str, Path]:
        """Folder of each scene of the split, by its name, in a fixed order."""
        raise NotImplementedError

    def list_entries(self) -> Iterable[ViewEntry]:
        """The reference views of each scene's ``pair.txt``."""
        self.folders = self.scene_folders()
        for scene, folder in self.folders.items():
            pair_file = _first(folder, self.pair_files, Path.is_file, f"{scene}: no list of view pairs")
            pairs = read_pairs(pair_file)
            self._check_views(scene, pair_file, pairs)
            for reference, sources in pairs.items():
                yield ViewEntry(scene, reference, tuple(number for number, _ in sources))

    def read_view(self, entry: ViewEntry, number: int) -> View:
        """Read ``%08d.*`` and ``%08d_cam.txt``."""
        image_path = self.image_path(entry, number)
        image = read_image(image_path)
        camera = self.read_camera(entry, number, (image.shape[1], image.shape[0]))
        return View(image, camera.camera, image_path.name, camera.depth_range, camera.depth_interval)

    def read_truth(self, entry: ViewEntry, view: View) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Read ``%08d.pfm`` where there is one."""
        folders = [self.folders[entry.scene] / name for name in self.depth_folders]
        files = [folder / f"{entry.reference:08d}.pfm" for folder in folders]
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            if self.depth_required:
                raise FileFormatError(f"{files[0]}: no such file; complete the data set")
            return None, None
        return read_depth_pfm(file, view.image.shape[:2]), None

    def image_path(self, entry: ViewEntry, number: int) -> Path:
        """The image of a view.

        Raises:
            ImageError: there is none.
        """
        scene = entry.scene
        folder = self._folder(scene, self.image_folders, "no folder of images")
        if scene not in self._images:
            self._images[scene] = {os.path.splitext(name)[0]: name for name in images_in(folder)}
        stem = self.image_stem(number)
        if stem not in self._images[scene]:
            raise ImageError(f"{folder / stem}.*: no such image; complete the scene or its pair.txt")
        return folder / self._images[scene][stem]

    def image_stem(self, number: int) -> str:
        """File name of an image without its suffix."""
        return f"{number:08d}"

    def camera_path(self, entry: ViewEntry, number: int) -> Path:
        """The ``cam.txt`` of a view."""
        return self._folder(entry.scene, self.camera_folders, "no folder of cameras") / f"{number:08d}_cam.txt"

    def read_camera(self, entry: ViewEntry, number: int, image_size: tuple[int, int] | None = None) -> MVSNetCamera:
        """Read the camera of a view."""
        return read_mvsnet_camera(self.camera_path(entry, number), self.depth_line, image_size=image_size)

    def _folder(self, scene: str, names: tuple[str, ...], problem: str) -> Path:
        return _first(self.folders[scene], names, Path.is_dir, f"{scene}: {problem}")

    def _check_views(self, scene: str, pair_file: Path, pairs: dict[int, list[tuple[int, float]]]) -> None:
        """Every view of the list has an image and a camera."""
        numbers = sorted(pairs.keys() | {number for sources in pairs.values() for number, _ in sources})
        if not numbers:
            return
        entry = ViewEntry(scene, numbers[0], ())
        cameras = set(list_folder(self.camera_path(entry, numbers[0]).parent)[1])
        for number in numbers:
            self.image_path(entry, number)
            path = self.camera_path(entry, number)
            if path.name not in cameras:
                raise CameraFileError(f"{path}: no such file, {pair_file.name} names view {number}; complete the scene")


class MVSNetFolder(MVSNetScenes):
    """One scene, or a folder of scenes, in MVSNet's layout (what ``colmap2mvsnet`` writes).

    Args:
        root: ``ROOT/{images,cams,pair.txt}`` or ``ROOT/<scene>/{images,cams,pair.txt}``.
        unit: unit of the cameras and depths, carried along.
        options: see :class:`MultiViewDataset` and :class:`MVSNetScenes`.

    Example:
        >>> data = MVSNetFolder("scan")  # doctest: +SKIP
        >>> data[0].depth_range  # doctest: +SKIP
    """

    name = "mvsnet_folder"
    tree = "ROOT/[SCENE/]images/%08d.jpg, cams/%08d_cam.txt, pair.txt, optional depths/%08d.pfm"

    def __init__(self, root: str | os.PathLike[str], *, unit: str = "unknown", **options: Any) -> None:
        self.unit = unit
        super().__init__(root, "all", **options)

    def scene_folders(self) -> dict[str, Path]:
        """The root itself, or its sub-folders that hold a list of pairs."""
        if self._is_scene(self.root):
            return {self.root.resolve().name: self.root}
        folders = {name: self.root / name for name in list_folder(self.root)[0]}
        return {name: folder for name, folder in folders.items() if self._is_scene(folder)}

    def _is_scene(self, folder: Path) -> bool:
        return any((folder / name).is_file() for name in self.pair_files)


def check_split(name: str, split: str, splits: Iterable[str]) -> str:
    """The split's full name.

    Raises:
        ConfigError: the set has no such split.
    """
    full = _SPLIT_NAMES.get(split.lower(), split.lower())
    if full not in splits:
        raise ConfigError(f"split '{split}' of {name}: choose {', '.join(splits)}")
    return full


def read_depth_pfm(path: str | os.PathLike[str], shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Read a PFM depth map: [H, W] float32, NaN where it is not finite or not positive.

    Args:
        path: the file.
        shape: (height, width) that it must have, or None.

    Raises:
        DisparityError: the file cannot be used, has 3 channels, or is of another size.
    """
    depth = read_pfm(path)
    if depth.ndim != 2:
        raise DisparityError(f"{path}: a colour PFM with 3 channels is no depth map; 1 channel is expected")
    if shape is not None and depth.shape != tuple(shape):
        raise DisparityError(
            f"{path}: the depth map is {depth.shape[1]}x{depth.shape[0]}, its image {shape[1]}x{shape[0]}; replace it"
        )
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(depth) & (depth > 0), depth, np.float32(np.nan))


def resize_view(view: View, width: int, height: int) -> View:
    """The view resampled to ``width`` x ``height`` (averaging where it shrinks), its camera with it."""
    import cv2

    old_height, old_width = view.image.shape[:2]
    if (old_width, old_height) == (width, height):
        return view
    shrinks = width <= old_width and height <= old_height
    image = cv2.resize(view.image, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
    camera = None if view.camera is None else view.camera.resized(width, height)
    return replace(view, image=image, camera=camera)


def resize_nearest(values: np.ndarray, width: int, height: int) -> np.ndarray:
    """A map [H, W] resampled without mixing: each pixel takes the value of the nearest old pixel centre."""
    old_height, old_width = values.shape[:2]
    rows = np.clip(np.rint((np.arange(height) + 0.5) * old_height / height - 0.5).astype(int), 0, old_height - 1)
    columns = np.clip(np.rint((np.arange(width) + 0.5) * old_width / width - 0.5).astype(int), 0, old_width - 1)
    return np.ascontiguousarray(values[rows[:, None], columns[None]])


def scale_camera(camera: Camera, factor: float, left: int = 0, top: int = 0) -> Camera:
    """The camera of MVSNet's resampling: ``K`` times ``factor`` without half-pixel term, then a crop at (left, top)."""
    intrinsics = camera.intrinsics.copy()
    intrinsics[:2] *= factor
    intrinsics[:2, 2] -= left, top
    return replace(camera, intrinsics=intrinsics)


def _first(folder: Path, names: Iterable[str], check: Any, problem: str) -> Path:
    names = list(names)
    found = next((folder / name for name in names if check(folder / name)), None)
    if found is None:
        raise FileFormatError(f"{printable(folder)}: {problem} ({' or '.join(names)} expected); complete the scene")
    return found
