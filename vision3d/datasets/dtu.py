# SPDX-License-Identifier: Apache-2.0
"""DTU robot image data (Jensen et al., CVPR 2014; Aanaes et al., IJCV 2016) as prepared for MVSNet; millimetres."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vision3d.datasets.multiview import MultiViewDataset, MVSNetScenes, View, ViewEntry, read_depth_pfm, scale_camera
from vision3d.errors import CameraFileError, ConfigError, DisparityError, FileFormatError, ImageError
from vision3d.io.cameras import DEPTH_PLANES, DepthLine, read_mvsnet_camera, read_pairs
from vision3d.io.images import load_pil, read_image
from vision3d.types import Camera

TEST_SCANS = (1, 4, 9, 10, 11, 12, 13, 15, 23, 24, 29, 32, 33, 34, 48, 49, 62, 75, 77, 110, 114, 118)
VALIDATION_SCANS = (3, 5, 17, 21, 28, 35, 37, 38, 40, 43, 56, 59, 66, 67, 82, 86, 106, 117)
TRAIN_SCANS = (
    *(2, 6, 7, 8, 14, 16, 18, 19, 20, 22, 30, 31, 36, 39, 41, 42, 44, 45, 46, 47, 50, 51, 52, 53, 55, 57, 58, 60, 61),
    *(63, 64, 65, 68, 69, 70, 71, 72, 74, 76, 83, 84, 85, 87, 88, 89, 90, 91, 92, 93, 94, 95, 96, 97, 98, 99, 100),
    *(101, 102, 103, 104, 105, 107, 108, 109, 111, 112, 113, 115, 116, 119, 120, 121, 122, 123, 124, 125, 126, 127),
    128,
)
MASK_LEVEL = 10
"""``depth_visual`` codes above this are valid (IterMVS, CasMVSNet; DispMVS takes all above 0)."""

FULL_SIZE = (1600, 1200)
IMAGE_SIZE = (640, 512)
LOW_SIZE = (160, 128)
CROP_LEFT, CROP_TOP = 80, 44
"""First column and row that the 640 x 512 images keep of the halved 800 x 600 ones."""

_LIGHTS = 7
_SCANS = {"train": TRAIN_SCANS, "validation": VALIDATION_SCANS, "all": (*TRAIN_SCANS, *VALIDATION_SCANS)}


class DtuTraining(MultiViewDataset):
    """DTU training and validation scans in MVSNet's layout, 640 x 512, every reference view under 7 lights.

    Cameras are searched in ``Cameras_1/scan{S}_train``, ``Cameras_1/train``, ``Cameras/train`` and ``Cameras``; the
    size of the image that a camera file belongs to (1600 x 1200, 640 x 512 or 160 x 128) is told from its centre, and
    ``K`` is brought to 640 x 512 as MVSNet did it (halve, crop 80 columns and 44 rows; no half-pixel term). Depths are
    searched in ``Depths_raw/scan{S}``, ``Depths/scan{S}`` and ``Depths/scan{S}_train``: maps of 1600 x 1200 are halved
    (nearest) and cropped, maps of 160 x 128 fill the pixels (4 i, 4 j) and leave the others unknown.

    Args:
        root: holds ``Cameras*``, ``Rectified`` and ``Depths*``.
        split: ``train`` (79 scans), ``validation`` (18) or ``all``; scans that are not on the disk are left out with a
            warning that counts them.
        lights: the lights to use, 0 to 6.
        mask_level: ``depth_visual`` codes above it are valid.
        depth_line, planes, interval_scale: the meaning of the depth line of interval files; MVSNet's own range (425 to
            931.15 mm) has 192 planes and scale 1.06.
        options: see :class:`MultiViewDataset`.

    Raises:
        FileFormatError: missing folder or files. ConfigError: illegal option.
    """

    name = "dtu"
    splits = ("train", "validation", "all")
    tree = (
        "ROOT/Cameras/pair.txt, Rectified/scan{S}_train/rect_%03d_{L}_r5000.png, Depths_raw/scan{S}/depth_map_%04d.pfm"
    )
    unit = "mm"

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "train",
        *,
        lights: Iterable[int] = range(_LIGHTS),
        mask_level: int = MASK_LEVEL,
        depth_line: DepthLine = "auto",
        planes: int = DEPTH_PLANES,
        interval_scale: float = 1.06,
        **options: Any,
    ) -> None:
        self.lights = tuple(lights)
        if not self.lights or not set(self.lights) <= set(range(_LIGHTS)):
            raise ConfigError(f"dtu: lights {list(self.lights)}: choose some of 0 to {_LIGHTS - 1}")
        self.mask_level = mask_level
        self._camera_options = {"depth_line": depth_line, "planes": planes, "interval_scale": interval_scale}
        super().__init__(root, split, **options)

    def list_entries(self) -> Iterable[ViewEntry]:
        """Scans x reference views x lights."""
        pair_files = [self.root / folder / "pair.txt" for folder in ("Cameras", "Cameras_1")]
        pair_file = next((file for file in pair_files if file.is_file()), pair_files[0])
        pairs = read_pairs(pair_file)
        scans = [scan for scan in _SCANS[self.split] if self._image_folder(f"scan{scan}").is_dir()]
        missing = len(_SCANS[self.split]) - len(scans)
        if missing and scans:
            warnings.warn(f"{self.root}: {missing} scans of dtu ({self.split}) are not on the disk", stacklevel=2)
        for scan in scans:
            for reference, sources in pairs.items():
                numbers = tuple(number for number, _ in sources)
                for light in self.lights:
                    yield ViewEntry(f"scan{scan}", reference, numbers, light)

    def read_view(self, entry: ViewEntry, number: int) -> View:
        """Read ``rect_%03d_{L}_r5000.png`` (numbered from 1) and its camera."""
        path = self._image_folder(entry.scene) / f"rect_{number + 1:03d}_{entry.light}_r5000.png"
        image = read_image(path)
        if image.shape[:2] != IMAGE_SIZE[::-1]:
            raise ImageError(
                f"{path}: is {image.shape[1]}x{image.shape[0]}, 640x512 expected; use MVSNet's training set"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "425 2.5" is this set's well-known interval form
            file = read_mvsnet_camera(self._camera_path(entry.scene, number), **self._camera_options)  # type: ignore[arg-type]
        return View(image, training_camera(file.camera), path.name, file.depth_range, file.depth_interval)

    def read_truth(self, entry: ViewEntry, view: View) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Read ``depth_map_%04d.pfm`` and ``depth_visual_%04d.png``."""
        folder = self._depth_folder(entry.scene)
        path = folder / f"depth_map_{entry.reference:04d}.pfm"
        depth = training_map(path, read_depth_pfm(path), np.float32(np.nan))
        visual_path = folder / f"depth_visual_{entry.reference:04d}.png"
        visual = np.asarray(load_pil(visual_path).convert("L"))
        return depth, training_map(visual_path, visual, np.uint8(0)) > self.mask_level

    def _image_folder(self, scan: str) -> Path:
        return self.root / "Rectified" / f"{scan}_train"

    def _camera_path(self, scan: str, number: int) -> Path:
        folders = (f"Cameras_1/{scan}_train", "Cameras_1/train", "Cameras/train", "Cameras")
        files = [self.root / folder / f"{number:08d}_cam.txt" for folder in folders]
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            raise CameraFileError(f"{files[2]}: no such file; complete the folder Cameras")
        return file

    def _depth_folder(self, scan: str) -> Path:
        folders = [self.root / name for name in (f"Depths_raw/{scan}", f"Depths/{scan}", f"Depths/{scan}_train")]
        found = next((folder for folder in folders if folder.is_dir()), None)
        if found is None:
            raise FileFormatError(
                f"{folders[0]}: no such folder; download Depths_raw, or Depths of MVSNet's training set"
            )
        return found


class DtuTest(MVSNetScenes):
    """The 22 DTU test scans, 1600 x 1200 (``ROOT/scan{S}/{images,cams_1 or cams,pair.txt}``).

    Args:
        root: holds the scans; those that are not on the disk are left out.
        options: see :class:`MultiViewDataset`; DispMVS tests with ``size=(1600, 1152)``.
    """

    name = "dtu_test"
    splits = ("test",)
    tree = "ROOT/scan{S}/images/%08d.jpg, cams_1/%08d_cam.txt or cams/%08d_cam.txt, pair.txt"
    unit = "mm"
    camera_folders = ("cams_1", "cams")

    def __init__(self, root: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(root, "test", **options)

    def scene_folders(self) -> dict[str, Path]:
        """The scans on the disk, in the order of their numbers."""
        folders = {f"scan{scan}": self.root / f"scan{scan}" for scan in TEST_SCANS}
        return {name: folder for name, folder in folders.items() if folder.is_dir()}


def training_camera(camera: Camera) -> Camera:
    """The camera of the 640 x 512 image from one of 1600 x 1200, 640 x 512 or 160 x 128 (told from its centre)."""
    sizes: dict[tuple[int, int], tuple[float, int, int]] = {
        FULL_SIZE: (0.5, CROP_LEFT, CROP_TOP),
        IMAGE_SIZE: (1.0, 0, 0),
        LOW_SIZE: (4.0, 0, 0),
    }
    size = min(sizes, key=lambda size: abs(np.log(max(camera.cx, 1e-6) / (size[0] / 2))))
    factor, left, top = sizes[size]
    return replace(scale_camera(camera, factor, left, top), width=IMAGE_SIZE[0], height=IMAGE_SIZE[1])


def training_map(path: str | os.PathLike[str], values: np.ndarray, unknown: np.generic) -> np.ndarray:
    """Bring a map of 1600 x 1200, 640 x 512 or 160 x 128 to 640 x 512 without mixing values.

    Raises:
        DisparityError: another size.
    """
    size = (values.shape[1], values.shape[0])
    if size == FULL_SIZE:
        width, height = IMAGE_SIZE
        return np.ascontiguousarray(values[::2, ::2][CROP_TOP : CROP_TOP + height, CROP_LEFT : CROP_LEFT + width])
    if size == LOW_SIZE:
        full = np.full(IMAGE_SIZE[::-1], unknown, dtype=values.dtype)
        full[::4, ::4] = values
        return full
    if size != IMAGE_SIZE:
        raise DisparityError(
            f"{path}: the map is {values.shape[1]}x{values.shape[0]}, 1600x1200, 640x512 or 160x128 expected"
        )
    return values
