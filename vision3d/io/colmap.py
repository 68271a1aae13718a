# SPDX-License-Identifier: Apache-2.0
"""COLMAP sparse models (cameras, images, points3D; text and binary) and dense depth maps.

COLMAP puts the centre of the first pixel at (0.5, 0.5); the numbers in :class:`ColmapCamera` and the observations stay
in that convention, :func:`camera_from_colmap` subtracts the half pixel. Quaternions are (w, x, y, z), world to camera.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from vision3d.errors import CameraFileError, DisparityError, InputError
from vision3d.io.camera_json import PosedImage, trim_distortion
from vision3d.io.cameras import make_camera
from vision3d.io.files import atomic_write, read_bytes
from vision3d.types import Camera

PathLike = str | os.PathLike[str]

# Name and number of parameters of each model, by number.
CAMERA_MODELS: dict[int, tuple[str, int]] = {
    0: ("SIMPLE_PINHOLE", 3),
    1: ("PINHOLE", 4),
    2: ("SIMPLE_RADIAL", 4),
    3: ("RADIAL", 5),
    4: ("OPENCV", 8),
    5: ("OPENCV_FISHEYE", 8),
    6: ("FULL_OPENCV", 12),
    7: ("FOV", 5),
    8: ("SIMPLE_RADIAL_FISHEYE", 4),
    9: ("RADIAL_FISHEYE", 5),
    10: ("THIN_PRISM_FISHEYE", 12),
}
MODEL_SIZES = dict(CAMERA_MODELS.values())

_ONE_FOCAL = ("SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL")
_UNSUPPORTED = ("OPENCV_FISHEYE", "FOV", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE", "THIN_PRISM_FISHEYE")
_MAX_DEPTH_VALUES = 200_000_000


@dataclass(frozen=True)
class ColmapCamera:
    """One row of ``cameras``: the model's name, the image size and the parameters in COLMAP's order."""

    model: str
    width: int
    height: int
    params: np.ndarray


@dataclass(frozen=True)
class ColmapImage:
    """One entry of ``images``.

    Attributes:
        name: file name relative to the image folder.
        camera_id: its camera.
        quaternion: (w, x, y, z), world to camera, as in the file.
        translation: [3].
        points2d: [N, 2] float64 observations in COLMAP's pixel convention.
        point_ids: [N] int64, the 3-D point of each observation, -1 for none.
    """

    name: str
    camera_id: int
    quaternion: np.ndarray
    translation: np.ndarray
    points2d: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))
    point_ids: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def world_to_camera(self) -> np.ndarray:
        """[4, 4] float64."""
        pose = np.eye(4)
        pose[:3, :3] = rotation_from_quaternion(self.quaternion)
        pose[:3, 3] = self.translation
        return pose


@dataclass(frozen=True)
class ColmapPoints:
    """The 3-D points, sorted as in the file.

    Attributes:
        ids: [P] int64.
        positions: [P, 3] float64.
        colors: [P, 3] uint8.
        errors: [P] float64, mean reprojection error, pixels.
        tracks: each point's [T, 2] int32 pairs (image id, index of the observation).
    """

    ids: np.ndarray
    positions: np.ndarray
    colors: np.ndarray
    errors: np.ndarray
    tracks: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class ColmapModel:
    """A sparse model: cameras and images by their id, and the points."""

    cameras: dict[int, ColmapCamera]
    images: dict[int, ColmapImage]
    points: ColmapPoints


def find_colmap_model(root: PathLike) -> Path | None:
    """The folder of the sparse model at or below ``root`` (itself, sparse, sparse/0, dense/sparse), or None."""
    for name in (".", "sparse", "sparse/0", "dense/sparse", "dense/sparse/0", "dense/0/sparse"):
        folder = Path(root) / name
        if any((folder / f"images{suffix}").is_file() for suffix in (".bin", ".txt")):
            return folder
    return None


def read_colmap(folder: PathLike) -> ColmapModel:
    """Read a sparse model, binary where ``images.bin`` exists, else text. Points may be missing; rigs are ignored.

    Raises:
        CameraFileError: a missing, truncated or damaged file, or an image that names an unknown camera.
    """
    from vision3d.io import colmap_binary, colmap_text

    root = Path(folder)
    binary = (root / "images.bin").is_file()
    reader, suffix = (colmap_binary, ".bin") if binary else (colmap_text, ".txt")
    if not (root / f"images{suffix}").is_file():
        raise CameraFileError(f"{folder}: no COLMAP model (images.bin or images.txt) here; give its folder")
    cameras = reader.read_cameras(root / f"cameras{suffix}")
    images = reader.read_images(root / f"images{suffix}")
    for image in images.values():
        if image.camera_id not in cameras:
            raise CameraFileError(
                f"{root / f'images{suffix}'}: '{image.name}' uses camera {image.camera_id}, which is missing; "
                "export the model again"
            )
    points_file = root / f"points3D{suffix}"
    points = reader.read_points(points_file) if points_file.is_file() else empty_points()
    return ColmapModel(cameras, images, points)


def write_colmap(folder: PathLike, model: ColmapModel, *, binary: bool = True) -> None:
    """Write ``cameras``, ``images`` and ``points3D`` into an existing folder.

    Raises:
        OutputError: the place is not writable.
    """
    from vision3d.io import colmap_binary, colmap_text

    root = Path(folder)
    writer, suffix = (colmap_binary, ".bin") if binary else (colmap_text, ".txt")
    for name, data in (
        ("cameras", writer.pack_cameras(model.cameras)),
        ("images", writer.pack_images(model.images)),
        ("points3D", writer.pack_points(model.points)),
    ):
        with atomic_write(root / f"{name}{suffix}") as temporary:
            temporary.write_bytes(data)


def camera_from_colmap(
    path: PathLike,
    camera: ColmapCamera,
    world_to_camera: np.ndarray | None = None,
    distortion: Literal["keep", "refuse", "ignore"] = "keep",
) -> Camera:
    """Our camera of a COLMAP camera: half a pixel subtracted from the centre.

    SIMPLE_RADIAL, RADIAL, OPENCV and FULL_OPENCV are OpenCV's own distortion, so their coefficients are kept exactly.
    The fisheye models and FOV are no pinhole with distortion and are refused: undistort the images first
    (``colmap image_undistorter``).

    Args:
        path: the file, for messages.
        camera: the row of ``cameras``.
        world_to_camera: pose [4, 4]; identity if None.
        distortion: ``"keep"`` the coefficients, ``"refuse"`` cameras that have some, or ``"ignore"`` them, as the
            public MVSNet converters do.

    Raises:
        CameraFileError: a model that cannot be expressed, refused distortion, or illegal numbers.
    """
    if distortion not in ("keep", "refuse", "ignore"):
        raise InputError(f"distortion must be 'keep', 'refuse' or 'ignore', got '{distortion}'")
    if camera.model in _UNSUPPORTED:
        raise CameraFileError(
            f"{path}: a camera of model {camera.model} is no pinhole camera; undistort the images first (colmap "
            "image_undistorter)"
        )
    values = np.asarray(camera.params, dtype=np.float64)
    if camera.model in _ONE_FOCAL:
        values = np.concatenate([values[:1], values])
    fx, fy, cx, cy = values[:4]
    radial = np.zeros(8)
    radial[: len(values) - 4] = values[4:]
    coefficients = trim_distortion(radial)
    if coefficients is not None and distortion == "refuse":
        raise CameraFileError(f"{path}: a camera of model {camera.model} has distortion; undistort the images first")
    intrinsics = np.array([[fx, 0, cx - 0.5], [0, fy, cy - 0.5], [0, 0, 1]])
    pose = np.eye(4) if world_to_camera is None else world_to_camera
    kept = coefficients if distortion == "keep" else None
    return make_camera(path, intrinsics, pose, (camera.width, camera.height), kept)


def colmap_from_camera(camera: Camera) -> ColmapCamera:
    """The PINHOLE, OPENCV or FULL_OPENCV row of one of our cameras (of known size).

    Raises:
        InputError: unknown size, skew, or more than 8 coefficients.
    """
    if camera.width is None or camera.height is None or camera.intrinsics[0, 1]:
        raise InputError("a COLMAP camera needs the size of the image and no skew")
    params = [camera.fx, camera.fy, camera.cx + 0.5, camera.cy + 0.5]
    coefficients = [] if camera.distortion is None else np.ravel(camera.distortion).tolist()
    if len(coefficients) > 8:
        raise InputError(f"COLMAP models have at most 8 coefficients of distortion, got {len(coefficients)}")
    length = 0 if not coefficients else 4 if len(coefficients) <= 4 else 8
    params += coefficients + [0.0] * (length - len(coefficients))
    model = {0: "PINHOLE", 4: "OPENCV", 8: "FULL_OPENCV"}[length]
    return ColmapCamera(model, camera.width, camera.height, np.array(params))


def colmap_model(images: Sequence[PosedImage]) -> ColmapModel:
    """A sparse model of one shared PINHOLE camera, the images in their order from id 1, and no points."""
    rows = {}
    for number, image in enumerate(images, 1):
        pose = image.camera.world_to_camera
        rows[number] = ColmapImage(image.name, 1, quaternion_from_rotation(pose[:3, :3]), pose[:3, 3])
    return ColmapModel({1: colmap_from_camera(images[0].camera)}, rows, empty_points())


def read_colmap_depth(path: PathLike) -> np.ndarray:
    """Read a dense map ``stereo/depth_maps/*.bin`` of COLMAP: [H, W] float32 z-depth, NaN where it is not positive.

    The file is the text ``W&H&1&`` and then float32 little endian, row by row.

    Raises:
        DisparityError: missing or truncated file, or an illegal header.
    """
    content = read_bytes(path, DisparityError, "a COLMAP depth map")
    words = content[:64].split(b"&")
    if len(words) < 4 or not all(word.isdigit() for word in words[:3]):
        raise DisparityError(f"{path}: no COLMAP depth map, which begins with 'width&height&1&'; check the path")
    width, height, channels = (int(word) for word in words[:3])
    if channels != 1 or not 0 < width * height <= _MAX_DEPTH_VALUES:
        raise DisparityError(f"{path}: {width}x{height}x{channels} is no size of a depth map; the file is damaged")
    start = sum(len(word) + 1 for word in words[:3])
    if len(content) != start + 4 * width * height:
        raise DisparityError(
            f"{path}: {len(content) - start} bytes of data, {4 * width * height} expected; the file is truncated"
        )
    depth = np.frombuffer(content, dtype="<f4", offset=start).reshape(height, width).astype(np.float32)
    return np.where(np.isfinite(depth) & (depth > 0), depth, np.float32(np.nan))


def write_colmap_depth(path: PathLike, depth: np.ndarray) -> None:
    """Write [H, W] z-depth (NaN becomes 0) as a COLMAP depth map.

    Raises:
        InputError: not a map. OutputError: the place is not writable.
    """
    values = np.asarray(depth, dtype="<f4")
    if values.ndim != 2 or values.size == 0:
        raise InputError(f"a depth map HxW is expected, got shape {values.shape}")
    header = f"{values.shape[1]}&{values.shape[0]}&1&".encode("ascii")
    with atomic_write(path) as temporary:
        temporary.write_bytes(header + np.where(np.isfinite(values), values, 0).astype("<f4").tobytes())


def rotation_from_quaternion(quaternion: np.ndarray) -> np.ndarray:
    """Rotation matrix [3, 3] of a quaternion (w, x, y, z) of any positive length."""
    w, x, y, z = np.asarray(quaternion, dtype=np.float64) / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def quaternion_from_rotation(rotation: np.ndarray) -> np.ndarray:
    """Unit quaternion (w, x, y, z), w >= 0, of a rotation matrix [3, 3]."""
    from scipy.spatial.transform import Rotation

    x, y, z, w = Rotation.from_matrix(rotation).as_quat()
    return np.array([w, x, y, z]) * (1.0 if w >= 0 else -1.0)


def empty_points() -> ColmapPoints:
    """No points at all."""
    return ColmapPoints(np.zeros(0, np.int64), np.zeros((0, 3)), np.zeros((0, 3), np.uint8), np.zeros(0), [])


def check_camera(path: PathLike, identity: int, camera: ColmapCamera) -> ColmapCamera:
    """The camera itself, if its size and numbers are possible.

    Raises:
        CameraFileError: they are not.
    """
    if not (0 < camera.width <= 10**6 and 0 < camera.height <= 10**6):
        raise CameraFileError(f"{path}: camera {identity} has an impossible image size; the file is damaged")
    if len(camera.params) != MODEL_SIZES[camera.model] or not np.isfinite(camera.params).all():
        raise CameraFileError(
            f"{path}: camera {identity} of model {camera.model} needs {MODEL_SIZES[camera.model]} finite parameters, "
            f"got {len(camera.params)} or NaN; the file is damaged"
        )
    return camera


def check_image(path: PathLike, identity: int, image: ColmapImage) -> ColmapImage:
    """The image itself, if its pose is possible.

    Raises:
        CameraFileError: it is not.
    """
    numbers = np.concatenate([image.quaternion, image.translation])
    good = np.isfinite(numbers).all() and np.abs(image.quaternion).max() < 2
    length = float(np.linalg.norm(image.quaternion)) if good else 0.0
    if not 0.5 < length < 2 or not image.name:
        raise CameraFileError(
            f"{path}: image {identity} has no name, or no unit quaternion and finite translation; the file is damaged"
        )
    return image
