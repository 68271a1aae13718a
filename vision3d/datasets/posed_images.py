# SPDX-License-Identifier: Apache-2.0
"""One's own images: with poses (COLMAP, transforms.json, cameras.json, Middlebury ``*_par.txt``) or without."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vision3d.datasets.multiview import MultiViewDataset, View, ViewEntry, read_depth_pfm
from vision3d.datasets.pairs import images_in, list_folder
from vision3d.errors import CameraFileError, ConfigError, DisparityError, FileFormatError, ImageError
from vision3d.geometry.view_selection import (
    borrow_ranges,
    depth_range_of_points,
    rank_sources,
    score_poses,
    score_views,
)
from vision3d.io.camera_json import PosedImage, read_cameras_json, read_transforms
from vision3d.io.cameras import read_middlebury_parameters
from vision3d.io.colmap import ColmapModel, camera_from_colmap, find_colmap_model, read_colmap, read_colmap_depth
from vision3d.io.disparity import read_depth_png16
from vision3d.io.images import load_pil, read_image
from vision3d.types import Camera

Distortion = Literal["undistort", "refuse", "ignore"]
PoseSource = Literal["auto", "colmap", "transforms", "json", "middlebury"]

_SUFFIXES = (".png", ".jpg", ".jpeg", ".JPG", ".PNG", ".webp")


@dataclass(frozen=True)
class _Scene:
    images: list[PosedImage]
    scores: np.ndarray
    folder: Path
    unit: str


class PosedImages(MultiViewDataset):
    """A folder of images with known poses; each image is the reference of one sample.

    Images are sorted by name and numbered from 0. Sources are ranked by MVSNet's score of common sparse points, or
    where there are no points by :func:`vision3d.geometry.view_selection.score_poses`. The depth range is that of
    ``cameras.json``, else 1 % to 99 % of the image's sparse points widened by ``margin``, else None.

    Depth maps are read where they exist: ``stereo/depth_maps/NAME.geometric.bin`` (COLMAP), ``depths/STEM.pfm``,
    ``depth/STEM.png`` (16-bit millimetres, for scenes in metres) beside the images' folder.

    Args:
        root: the folder.
        poses: where the poses come from; ``"auto"``: the first of ``cameras.json``, ``transforms.json``, a COLMAP model
            (``sparse``, ``sparse/0``, ``dense/sparse``), ``*_par.txt``.
        poses_file: file (or COLMAP folder) to read instead, e.g. ``transforms_train.json``.
        images: folder of the images of COLMAP and Middlebury, relative to the root; None: ``images``, ``dense/images``
            or the root itself.
        distortion: images of cameras with distortion are ``"undistort"``-ed (bilinear, same K), ``"refuse"``-d, or the
            coefficients are ``"ignore"``-d, as the public MVSNet converters do.
        unit: overrides the unit of the poses ("unknown" for COLMAP and transforms.json).
        margin: factors on the two ends of the depth range of sparse points.
        options: see :class:`MultiViewDataset`.

    Raises:
        FileFormatError: missing folder, poses or images. ConfigError: illegal option.
    """

    name = "posed_images"
    tree = "ROOT/images and a COLMAP model in sparse, or transforms.json, cameras.json or *_par.txt"

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        poses: PoseSource = "auto",
        poses_file: str | os.PathLike[str] | None = None,
        images: str | None = None,
        distortion: Distortion = "undistort",
        unit: str | None = None,
        margin: tuple[float, float] = (0.8, 1.25),
        **options: Any,
    ) -> None:
        if distortion not in ("undistort", "refuse", "ignore"):
            raise ConfigError(f"posed_images: distortion '{distortion}': choose undistort, refuse or ignore")
        self.distortion, self.margin, self._images, self._unit = distortion, margin, images, unit
        self._poses, self._poses_file = poses, None if poses_file is None else Path(poses_file)
        super().__init__(root, "all", **options)

    def list_entries(self) -> Iterable[ViewEntry]:
        """One entry for each image."""
        self._scene = self._read_scene()
        self.unit = self._scene.unit if self._unit is None else self._unit
        self.cameras = [image.camera for image in self._scene.images]
        self.image_names = [image.name for image in self._scene.images]
        sources = rank_sources(self._scene.scores)
        ranges = borrow_ranges([image.depth_range for image in self._scene.images], sources)
        self.depth_ranges = ranges
        for number, ranked in enumerate(sources):
            yield ViewEntry(self.root.resolve().name, number, tuple(ranked))

    def read_view(self, entry: ViewEntry, number: int) -> View:
        """Read an image, without distortion."""
        posed = self._scene.images[number]
        path = _existing(self._scene.folder / posed.name)
        image, camera = read_image(path), posed.camera
        height, width = image.shape[:2]
        if (camera.width or width, camera.height or height) != (width, height):
            raise ImageError(
                f"{path}: is {width}x{height}, its camera is of {camera.width}x{camera.height}; give the images that "
                "the poses were made with"
            )
        camera = replace(camera, width=width, height=height)
        if camera.distortion is not None:
            image, camera = self._straighten(path, image, camera)
        return View(image, camera, posed.name, self.depth_ranges[number])

    def read_truth(self, entry: ViewEntry, view: View) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Read the depth map of the reference view, if there is one."""
        shape = view.image.shape[:2]
        stem = os.path.splitext(view.name.split("/", 1)[-1] if view.name.startswith("images/") else view.name)[0]
        flat = Path(stem).name
        for base in dict.fromkeys((self._scene.folder.parent, self._scene.folder, self.root, self.root / "dense")):
            dense = base / "stereo/depth_maps" / f"{view.name}.geometric.bin"
            if dense.is_file():
                return _of_shape(dense, read_colmap_depth(dense), shape), None
            for folder in ("depths", "depth"):
                if (file := base / folder / f"{flat}.pfm").is_file():
                    return read_depth_pfm(file, shape), None
                if self.unit != "mm" and (file := base / folder / f"{flat}.png").is_file():
                    return _of_shape(file, read_depth_png16(file), shape), None
        return None, None

    def _straighten(self, path: Path, image: np.ndarray, camera: Camera) -> tuple[np.ndarray, Camera]:
        if self.distortion == "refuse":
            raise CameraFileError(f"{path}: its camera has distortion; undistort the images first")
        plain = replace(camera, distortion=None)
        if self.distortion == "ignore":
            return image, plain
        import cv2

        return cv2.undistort(image, camera.intrinsics, np.asarray(camera.distortion)), plain

    def _read_scene(self) -> _Scene:
        kind, path = self._find_poses()
        if kind == "colmap":
            return self._from_colmap(path)
        unit = "unknown"
        if kind == "transforms":
            images = read_transforms(path, lambda name: load_pil(_existing(path.parent / name)).size)
            folder = path.parent
        elif kind == "json":
            (images, unit), folder = read_cameras_json(path), path.parent
        else:
            cameras = read_middlebury_parameters(path)
            images, folder, unit = [PosedImage(name, camera) for name, camera in cameras.items()], path.parent, "m"
            folder = folder / "images" if self._images is None and (folder / "images").is_dir() else folder
        if self._images is not None:
            folder = self.root / self._images
        images = sorted(images, key=lambda image: image.name)
        return _Scene(images, score_poses([image.camera.world_to_camera for image in images]), folder, unit)

    def _find_poses(self) -> tuple[str, Path]:
        if self._poses_file is not None:
            path = self._poses_file if self._poses_file.exists() else self.root / self._poses_file
            kind = "colmap" if path.is_dir() else "transforms" if "transforms" in path.name else "json"
            kind = "middlebury" if path.name.endswith("_par.txt") else kind
            return (kind if self._poses == "auto" else self._poses), path
        parameters = [name for name in list_folder(self.root)[1] if name.endswith("_par.txt")]
        found: dict[str, Path | None] = {
            "json": self.root / "cameras.json",
            "transforms": self.root / "transforms.json",
            "colmap": find_colmap_model(self.root),
            "middlebury": self.root / parameters[0] if parameters else None,
        }
        for kind, file in found.items():
            if file is not None and file.exists() and self._poses in ("auto", kind):
                return kind, file
        if self._poses not in ("auto", *found):
            raise ConfigError(f"posed_images: poses '{self._poses}' is unknown: choose auto, {', '.join(found)}")
        raise FileFormatError(f"{self.root}: holds no poses; expected: {self.tree}")

    def _from_colmap(self, path: Path) -> _Scene:
        model = read_colmap(path)
        rows = sorted(model.images.values(), key=lambda image: image.name)
        cameras = [camera_from_colmap(path, model.cameras[row.camera_id], row.world_to_camera) for row in rows]
        visible = _visibility(model, [row.point_ids for row in rows])
        ranges = []
        for camera, seen in zip(cameras, visible, strict=True):
            points = model.points.positions[seen]
            depths = points @ camera.world_to_camera[2, :3] + camera.world_to_camera[2, 3]
            ranges.append(depth_range_of_points(depths, self.margin))
        poses = [camera.world_to_camera for camera in cameras]
        scores = score_views(model.points.positions, visible, poses)
        scores = scores if np.any(scores) else score_poses(poses)
        images = [PosedImage(row.name, camera, span) for row, camera, span in zip(rows, cameras, ranges, strict=True)]
        names = (self._images,) if self._images is not None else ("images", "dense/images", "dense/0/images", ".")
        folder = next((self.root / name for name in names if _holds(self.root / name, images)), self.root / names[0])
        return _Scene(images, scores, folder, "unknown")


class ImageFolder(MultiViewDataset):
    """Images without poses (for pose-free methods): sample i is image i and its neighbours in the order of names.

    Args:
        root: the folder, or one that holds ``images``.
        options: see :class:`MultiViewDataset`; ``views=None`` gives the whole sequence with each sample.

    Raises:
        FileFormatError: no image. ConfigError: illegal option.
    """

    name = "image_folder"
    tree = "ROOT/*.png or ROOT/images/*.png"

    def __init__(self, root: str | os.PathLike[str], *, min_sources: int = 0, **options: Any) -> None:
        super().__init__(root, "all", min_sources=min_sources, **options)

    def list_entries(self) -> Iterable[ViewEntry]:
        """One entry for each image; the sources are the nearest in the order of names."""
        self.folder = self.root / "images" if images_in(self.root / "images") else self.root
        self.image_names = images_in(self.folder)
        numbers = range(len(self.image_names))
        for number in numbers:
            others = sorted((other for other in numbers if other != number), key=lambda other: abs(other - number))
            yield ViewEntry(self.root.resolve().name, number, tuple(others))

    def read_view(self, entry: ViewEntry, number: int) -> View:
        """Read an image."""
        name = self.image_names[number]
        return View(read_image(self.folder / name), None, name)


def _visibility(model: ColmapModel, observed: list[np.ndarray]) -> np.ndarray:
    """[N, P] bool: which image sees which point; observations of points that the model lacks are left out."""
    order = np.argsort(model.points.ids, kind="stable")
    ordered = model.points.ids[order]
    visible = np.zeros((len(observed), len(ordered)), dtype=bool)
    for row, identities in enumerate(observed):
        places = np.searchsorted(ordered, identities)
        inside = places < len(ordered)
        places, wanted = places[inside], identities[inside]
        visible[row, order[places[ordered[places] == wanted]]] = True
    return visible


def _existing(path: Path) -> Path:
    """The file itself, or with the suffix that the list left out (Blender scenes).

    Raises:
        ImageError: no such file.
    """
    candidates = [path, *(path.with_name(path.name + suffix) for suffix in _SUFFIXES)]
    found = next((file for file in candidates if file.is_file()), None)
    if found is None:
        raise ImageError(f"{path}: no such image, though the poses name it; complete the folder or say images=FOLDER")
    return found


def _holds(folder: Path, images: list[PosedImage]) -> bool:
    return bool(images) and (folder / images[0].name).is_file()


def _of_shape(path: Path, depth: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if depth.shape != tuple(shape):
        raise DisparityError(
            f"{path}: the depth map is {depth.shape[1]}x{depth.shape[0]}, its image {shape[1]}x{shape[0]}; replace it"
        )
    return depth
