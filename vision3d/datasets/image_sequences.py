# SPDX-License-Identifier: Apache-2.0
"""Ordered images of one moving camera: a folder, a scene with reference poses, or a video."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vision3d.datasets.pairs import IMAGE_SUFFIXES, images_in, list_folder, printable
from vision3d.datasets.posed_images import PosedImages
from vision3d.errors import CameraFileError, FileFormatError, ImageError, InputError
from vision3d.io.colmap import find_colmap_model
from vision3d.io.files import read_bytes
from vision3d.io.images import read_image
from vision3d.types import Camera

PathLike = str | os.PathLike[str]

_POSE_FILES = ("cameras.json", "transforms.json")
_BOUNDS = "poses_bounds.npy"
_ASPECT = 0.02  # largest relative difference of two sides' ratios that counts as rounding


@dataclass(frozen=True)
class ImageSequence:
    """The frames of one camera in the order of their capture.

    Attributes:
        names: file names, or ``frame_000012`` for frame 12 of a video.
        images: [H, W, 3] uint8 RGB, all of one size.
        cameras: reference camera of each frame for images of this size (None where the reference lacks the frame), or
            None where the folder holds no poses. A pose-free fit must not use them.
        source: the folder or video.
    """

    names: list[str]
    images: list[np.ndarray]
    cameras: list[Camera | None] | None
    source: Path

    def __len__(self) -> int:
        return len(self.names)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the images."""
        height, width = self.images[0].shape[:2]
        return height, width


def read_sequence(
    path: PathLike,
    *,
    every: int = 1,
    max_frames: int | None = None,
    size: tuple[int, int] | None = None,
    images: str | None = None,
) -> ImageSequence:
    """Read the frames of a folder or video.

    A folder holds the images itself or in ``images``; where it also holds poses (a COLMAP model as in the layouts of
    NeRFBuster and LLFF, ``transforms.json``, ``cameras.json``, or LLFF's ``poses_bounds.npy``), they become the
    reference cameras. Names are sorted with numbers as numbers, so that 2.png comes before 10.png; names with leading
    zeros keep the order of an ordinary sort.

    Alpha is dropped. Lens distortion of the reference stays in its cameras; the images are not changed.

    Args:
        path: the folder or video.
        every: keep every n-th frame, the first among them.
        max_frames: keep at most so many of those.
        size: (height, width) that the images are resized to, of the same proportions; None keeps them.
        images: folder of the images inside ``path``, e.g. ``images_8``.

    Raises:
        ImageError: no frame, an unreadable one, one of another size, or a video that cannot be decoded.
        CameraFileError: damaged poses, or those of images of other proportions.
        InputError: an illegal argument.
    """
    if every < 1 or (max_frames is not None and max_frames < 1):
        raise InputError(f"every ({every}) and max_frames ({max_frames}) must be at least 1")
    root = Path(path)
    if root.is_dir():
        folder = _image_folder(root, images)
        names = _ordered(folder)[::every][:max_frames]
        frames = _resized(((folder / name, read_image(folder / name)) for name in names), size)
        shape = (frames[0].shape[0], frames[0].shape[1])
        return ImageSequence(names, frames, _reference(root, folder, names, shape), root)
    if images is not None:
        raise InputError(f"{path}: is no folder, so it has no '{images}' in it; leave the option out")
    if root.suffix.lower() in IMAGE_SUFFIXES and root.is_file():
        raise ImageError(f"{path}: is a single image; give the folder of a sequence, or a video")
    numbers: list[int] = []
    frames = _resized(_video_frames(root, every, max_frames, numbers), size)
    return ImageSequence([f"frame_{number:06d}" for number in numbers], frames, None, root)


def reread_images(
    path: PathLike | None, names: Sequence[str], size: tuple[int, int], frames: Sequence[int]
) -> list[np.ndarray]:
    """Some frames of a sequence that was read before.

    Args:
        path: its folder or video, or the folder that holds copies of the images; None raises.
        names: of all frames, as :func:`read_sequence` gave them.
        size: (height, width) that they had.
        frames: numbers of the wanted ones, ascending.

    Raises:
        InputError: no path. ImageError: the images are not there, or cannot be used.
    """
    if path is None:
        raise InputError("the images of this sequence were arrays: give the folder that holds them")
    root, wanted = Path(path), [names[frame] for frame in frames]
    if root.is_dir():
        places = [root / "images", root, *(root / name for name in list_folder(root)[0])]
        folder = next((place for place in places if all((place / name).is_file() for name in wanted)), None)
        if folder is None:
            raise ImageError(f"{root}: does not hold the images {wanted[0]} ...; give the folder that they are in now")
        return _resized(((folder / name, read_image(folder / name)) for name in wanted), size)
    numbers = [int(name.rpartition("_")[2]) if name.startswith("frame_") else 0 for name in names]
    every = max(numbers[1] - numbers[0], 1) if len(numbers) > 1 else 1
    stream = _video_frames(root, every, len(names), [])
    return _resized((frame for number, frame in enumerate(stream) if number in set(frames)), size)


def read_reference(path: PathLike, names: Sequence[str], size: tuple[int, int]) -> list[Camera | None]:
    """The reference cameras of a sequence (see :func:`read_sequence`), by the names of its frames without suffix.

    Args:
        path: folder with the poses.
        names: of the frames.
        size: (height, width) of their images; the cameras are rescaled to it.

    Returns:
        A camera for each frame, None where the reference lacks it.

    Raises:
        CameraFileError: no poses, damaged ones, or those of other images.
    """
    root = Path(path)
    found = _reference(root, _image_folder(root, None), list(names), size)
    if found is None:
        raise CameraFileError(
            f"{path}: holds no reference poses (a COLMAP model in sparse, transforms.json, cameras.json or "
            "poses_bounds.npy); give the folder of the scene"
        )
    return found


def natural_order(names: Sequence[str]) -> list[str]:
    """Names sorted with runs of digits as numbers: ``["1.png", "2.png", "10.png"]``."""
    return sorted(names, key=lambda name: ([_part(part) for part in re.split(r"(\d+)", name)], name))


def _part(text: str) -> tuple[int, int, str]:
    return (0, int(text), "") if text.isdecimal() else (1, 0, text)


def _image_folder(root: Path, images: str | None) -> Path:
    if images is not None:
        if not images_in(root / images):
            raise ImageError(f"{root / images}: holds no images; name a folder inside {printable(root)}")
        return root / images
    return root / "images" if images_in(root / "images") else root


def _ordered(folder: Path) -> list[str]:
    """The names of all images in the order of capture.

    Raises:
        ImageError: none, or two that differ in the suffix alone.
    """
    names = natural_order(images_in(folder))
    if not names:
        folders = list_folder(folder)[0]
        hint = f" (it has the folders {', '.join(folders[:4])})" if folders else ""
        raise ImageError(
            f"{printable(folder)}: holds no images ({' '.join(IMAGE_SUFFIXES)}){hint}; give the folder of the frames"
        )
    stems: dict[str, str] = {}
    for name in names:
        other = stems.setdefault(Path(name).stem, name)
        if other != name:
            raise ImageError(f"{folder}: '{other}' and '{name}' are one frame in two formats; keep one of them")
    return names


def _resized(frames: Iterator[tuple[Path, np.ndarray]], size: tuple[int, int] | None) -> list[np.ndarray]:
    """The images, checked to be of one size, then resized one by one."""
    import cv2

    kept: list[np.ndarray] = []
    first: tuple[int, int] | None = None
    for path, image in frames:
        height, width = image.shape[:2]
        first = first or (height, width)
        if (height, width) != first:
            raise ImageError(
                f"{path}: is {width}x{height}, the first image {first[1]}x{first[0]}; one camera gives one size: "
                "leave it out or make all alike"
            )
        if size is not None and (height, width) != size:
            if min(size) < 1 or not _alike(size, (height, width)):
                raise InputError(
                    f"size {size[0]}x{size[1]} has other proportions than the images ({height}x{width}); the fit has "
                    f"one focal length: choose e.g. {size[0]}x{max(round(size[0] * width / height), 1)}"
                )
            smaller = size[0] < height
            method = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
            image = cv2.resize(image, (size[1], size[0]), interpolation=method)
        kept.append(image)
    return kept


def _alike(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether two sizes have the same proportions, up to the rounding of the smaller one."""
    ratio = first[0] * second[1] / (first[1] * second[0])
    return abs(ratio - 1) <= max(_ASPECT, 1 / min(*first, *second))


def _video_frames(
    path: Path, every: int, max_frames: int | None, numbers: list[int]
) -> Iterator[tuple[Path, np.ndarray]]:
    """The wanted frames; their numbers are appended to ``numbers``.

    Raises:
        ImageError: no file, no video, or no frame that can be decoded.
    """
    import cv2

    if not path.is_file() or path.stat().st_size == 0:
        read_bytes(path, ImageError, "a folder of images or a video")  # says what is wrong
    video = cv2.VideoCapture(os.fspath(path))
    try:
        number = 0
        while video.isOpened() and (max_frames is None or len(numbers) < max_frames):
            if not video.grab():
                break
            if number % every == 0:
                good, frame = video.retrieve()
                if not good or frame is None:
                    raise ImageError(f"{path}: frame {number} cannot be decoded; convert the video, or cut it before")
                numbers.append(number)
                yield path, cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
            number += 1
    finally:
        video.release()
    if not numbers:
        raise ImageError(
            f"{path}: no video that can be decoded; convert it to MP4 (H.264), or give a folder of its frames"
        )


def _reference(root: Path, folder: Path, names: list[str], size: tuple[int, int]) -> list[Camera | None] | None:
    """The reference cameras of the frames, for images of (height, width)."""
    if find_colmap_model(root) is not None or any((root / name).is_file() for name in _POSE_FILES):
        posed = PosedImages(root, min_sources=0)
        known = {Path(name).stem: camera for name, camera in zip(posed.image_names, posed.cameras, strict=True)}
    elif (root / _BOUNDS).is_file():
        known = _from_bounds(root / _BOUNDS, sorted(images_in(folder)))
    else:
        return None
    found = [known.get(Path(name).stem) for name in names]
    if not any(found):
        raise CameraFileError(f"{root}: its poses name none of the images in {folder}; give the poses of these images")
    return [None if camera is None else _fitted(root, camera, size) for camera in found]


def _fitted(root: Path, camera: Camera, size: tuple[int, int]) -> Camera:
    height, width = size
    if camera.width is None or camera.height is None:
        return Camera(camera.intrinsics, width, height, camera.distortion, camera.world_to_camera)
    if not _alike((camera.height, camera.width), size):
        raise CameraFileError(
            f"{root}: its poses are of images of {camera.width}x{camera.height}, the images here are {width}x{height}; "
            "give the images that the poses were made with, or reduced ones"
        )
    return camera.resized(width, height)


def _from_bounds(path: Path, names: list[str]) -> dict[str, Camera]:
    """Cameras of ``poses_bounds.npy`` (LLFF): 15 numbers of a 3x5 matrix and two depths for each image, by name.

    The matrix is camera-to-world with the axes (down, right, backwards), and (height, width, focal length).
    """
    try:
        rows = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise CameraFileError(f"{path}: cannot be read ({' '.join(str(error).split())}); copy it again") from error
    if rows.ndim != 2 or rows.shape[1] != 17 or not np.isfinite(rows).all():
        raise CameraFileError(f"{path}: finite numbers of shape Nx17 are expected, got {rows.shape}; copy it again")
    if len(rows) != len(names):
        raise FileFormatError(f"{path}: has {len(rows)} poses, but there are {len(names)} images; complete the folder")
    cameras = {}
    for name, row in zip(names, rows.astype(np.float64), strict=True):
        matrix = row[:15].reshape(3, 5)
        pose = np.eye(4)
        pose[:3] = np.stack([matrix[:, 1], matrix[:, 0], -matrix[:, 2], matrix[:, 3]], 1)
        height, width, focal = matrix[:, 4]
        if min(height, width, focal) <= 0 or abs(np.linalg.det(pose[:3, :3]) - 1) > 1e-2:
            raise CameraFileError(f"{path}: the entry of '{name}' is no camera; copy the file again")
        intrinsics = np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]])
        cameras[Path(name).stem] = Camera(intrinsics, int(width), int(height), None, np.linalg.inv(pose))
    return cameras
