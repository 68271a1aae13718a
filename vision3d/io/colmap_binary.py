# SPDX-License-Identifier: Apache-2.0
"""Binary files of COLMAP sparse models (little endian); use them through :mod:`vision3d.io.colmap`."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

import numpy as np

from vision3d.errors import CameraFileError
from vision3d.io.colmap import (
    CAMERA_MODELS,
    ColmapCamera,
    ColmapImage,
    ColmapPoints,
    check_camera,
    check_image,
    empty_points,
)
from vision3d.io.files import read_bytes

PathLike = str | os.PathLike[str]

_OBSERVATION = np.dtype([("xy", "<f8", 2), ("point", "<i8")])
_CAMERA_HEAD = struct.Struct("<iiQQ")
_IMAGE_HEAD = struct.Struct("<i7di")
_POINT_HEAD = struct.Struct("<Q3d3BdQ")
_MODEL_NUMBERS = {name: number for number, (name, _) in CAMERA_MODELS.items()}


class _Cursor:
    """The bytes of a file, read in order; nothing is allocated for data that the file does not hold."""

    def __init__(self, path: PathLike, what: str) -> None:
        self.path = path
        self.data = read_bytes(path, CameraFileError, what)
        self.position = 0

    def truncated(self) -> CameraFileError:
        return CameraFileError(f"{self.path}: ends at byte {len(self.data)} inside an entry; the file is truncated")

    def unpack(self, form: struct.Struct) -> tuple[int | float, ...]:
        if self.position + form.size > len(self.data):
            raise self.truncated()
        values = form.unpack_from(self.data, self.position)
        self.position += form.size
        return values

    def count(self, smallest: int, what: str) -> int:
        """A uint64 number of entries of at least ``smallest`` bytes each, which the rest of the file can hold."""
        value = int(self.unpack(struct.Struct("<Q"))[0])
        if value * smallest > len(self.data) - self.position:
            raise CameraFileError(
                f"{self.path}: claims {value} {what}, more than the file holds; it is truncated or no COLMAP file"
            )
        return value

    def array(self, dtype: np.dtype | str, count: int) -> np.ndarray:
        kind = np.dtype(dtype)
        if self.position + count * kind.itemsize > len(self.data):
            raise self.truncated()
        values = np.frombuffer(self.data, dtype=kind, count=count, offset=self.position)
        self.position += count * kind.itemsize
        return values

    def text(self) -> str:
        end = self.data.find(b"\0", self.position)
        if end < 0:
            raise self.truncated()
        raw = self.data[self.position : end]
        self.position = end + 1
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as problem:
            raise CameraFileError(f"{self.path}: an image name is no UTF-8 text; the file is damaged") from problem

    def finish(self) -> None:
        if self.position != len(self.data):
            raise CameraFileError(
                f"{self.path}: {len(self.data) - self.position} bytes follow the last entry; the file is damaged"
            )


def read_cameras(path: PathLike) -> dict[int, ColmapCamera]:
    """Read ``cameras.bin``: cameras by id.

    Raises:
        CameraFileError: missing, truncated or damaged file.
    """
    cursor = _Cursor(path, "COLMAP cameras")
    cameras = {}
    for _ in range(cursor.count(_CAMERA_HEAD.size + 24, "cameras")):
        identity, number, width, height = (int(value) for value in cursor.unpack(_CAMERA_HEAD))
        if number not in CAMERA_MODELS:
            raise CameraFileError(f"{path}: camera {identity} is of the unknown model {number}; undistort the images")
        model, size = CAMERA_MODELS[number]
        params = cursor.array("<f8", size).astype(np.float64)
        cameras[identity] = check_camera(path, identity, ColmapCamera(model, width, height, params))
    cursor.finish()
    return cameras


def read_images(path: PathLike) -> dict[int, ColmapImage]:
    """Read ``images.bin``: images by id.

    Raises:
        CameraFileError: missing, truncated or damaged file.
    """
    cursor = _Cursor(path, "COLMAP images")
    images = {}
    for _ in range(cursor.count(_IMAGE_HEAD.size + 9, "images")):
        values = cursor.unpack(_IMAGE_HEAD)
        identity, camera = int(values[0]), int(values[8])
        name = cursor.text()
        observations = cursor.array(_OBSERVATION, cursor.count(_OBSERVATION.itemsize, "observations"))
        image = ColmapImage(
            name,
            camera,
            np.array(values[1:5]),
            np.array(values[5:8]),
            observations["xy"].astype(np.float64),
            observations["point"].astype(np.int64),
        )
        images[identity] = check_image(path, identity, image)
    cursor.finish()
    return images


def read_points(path: PathLike) -> ColmapPoints:
    """Read ``points3D.bin``.

    Raises:
        CameraFileError: missing, truncated or damaged file.
    """
    cursor = _Cursor(path, "COLMAP points")
    heads, tracks = [], []
    for _ in range(cursor.count(_POINT_HEAD.size, "points")):
        head = cursor.unpack(_POINT_HEAD)
        length = int(head[8])
        if length * 8 > len(cursor.data) - cursor.position:
            raise cursor.truncated()
        tracks.append(cursor.array("<i4", 2 * length).reshape(-1, 2).astype(np.int32))
        heads.append(head)
    cursor.finish()
    if not heads:
        return empty_points()
    if max(head[0] for head in heads) >= 1 << 63:
        raise CameraFileError(f"{path}: the id of a point exceeds 63 bits; the file is damaged")
    positions = np.array([head[1:4] for head in heads], dtype=np.float64)
    if not np.isfinite(positions).all():
        raise CameraFileError(f"{path}: the position of a point is NaN or infinite; the file is damaged")
    colors = np.array([head[4:7] for head in heads], dtype=np.uint8)
    ids = np.array([head[0] for head in heads], dtype=np.int64)
    return ColmapPoints(ids, positions, colors, np.array([head[7] for head in heads], dtype=np.float64), tracks)


def pack_cameras(cameras: Mapping[int, ColmapCamera]) -> bytes:
    """The bytes of ``cameras.bin``."""
    parts = [struct.pack("<Q", len(cameras))]
    for identity, camera in cameras.items():
        parts.append(_CAMERA_HEAD.pack(identity, _MODEL_NUMBERS[camera.model], camera.width, camera.height))
        parts.append(np.asarray(camera.params, dtype="<f8").tobytes())
    return b"".join(parts)


def pack_images(images: Mapping[int, ColmapImage]) -> bytes:
    """The bytes of ``images.bin``."""
    parts = [struct.pack("<Q", len(images))]
    for identity, image in images.items():
        parts.append(_IMAGE_HEAD.pack(identity, *image.quaternion, *image.translation, image.camera_id))
        observations = np.zeros(len(image.point_ids), dtype=_OBSERVATION)
        observations["xy"], observations["point"] = image.points2d, image.point_ids
        parts += [image.name.encode("utf-8"), b"\0", struct.pack("<Q", len(observations)), observations.tobytes()]
    return b"".join(parts)


def pack_points(points: ColmapPoints) -> bytes:
    """The bytes of ``points3D.bin``."""
    parts = [struct.pack("<Q", len(points))]
    for row, track in enumerate(points.tracks):
        head = (int(points.ids[row]), *points.positions[row], *map(int, points.colors[row]), points.errors[row])
        parts += [_POINT_HEAD.pack(*head, len(track)), np.asarray(track, dtype="<i4").tobytes()]
    return b"".join(parts)
