# SPDX-License-Identifier: Apache-2.0
"""Text files of COLMAP sparse models; use them through :mod:`vision3d.io.colmap`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from vision3d.errors import CameraFileError
from vision3d.io.cameras import parse_numbers, read_text
from vision3d.io.colmap import (
    MODEL_SIZES,
    ColmapCamera,
    ColmapImage,
    ColmapPoints,
    check_camera,
    check_image,
    empty_points,
)

PathLike = str | os.PathLike[str]


def read_cameras(path: PathLike) -> dict[int, ColmapCamera]:
    """Read ``cameras.txt``: cameras by id.

    Raises:
        CameraFileError: missing or damaged file.
    """
    cameras = {}
    for number, line in _lines(path, "COLMAP cameras"):
        words = line.split()
        if not words:
            continue
        place = f"line {number}"
        if len(words) < 5 or words[1] not in MODEL_SIZES:
            raise CameraFileError(
                f"{path}, {place}: 'ID MODEL W H PARAMS' with a known model is expected; undistort the images"
            )
        identity, width, height = _integers(path, (words[0], words[2], words[3]), place)
        camera = ColmapCamera(words[1], width, height, np.array(parse_numbers(path, words[4:], place)))
        cameras[identity] = check_camera(path, identity, camera)
    return cameras


def read_images(path: PathLike) -> dict[int, ColmapImage]:
    """Read ``images.txt``: images by id. The second line of an image may be empty; names may hold blanks.

    Raises:
        CameraFileError: missing or damaged file.
    """
    images = {}
    lines = iter(_lines(path, "COLMAP images"))
    for number, line in lines:
        if not line.strip():
            continue
        words = line.split(maxsplit=9)
        place = f"line {number}"
        if len(words) < 10:
            raise CameraFileError(
                f"{path}, {place}: {len(words)} words, 'ID QW QX QY QZ TX TY TZ CAMERA NAME' expected; it is damaged"
            )
        identity, camera = _integers(path, (words[0], words[8]), place)
        pose = parse_numbers(path, words[1:8], place)
        observations = next(lines, (number + 1, ""))[1].split()
        if len(observations) % 3:
            raise CameraFileError(f"{path}, line {number + 1}: triples 'X Y POINT' expected; the file is truncated")
        points2d = parse_numbers(path, [word for index, word in enumerate(observations) if index % 3 < 2], place)
        point_ids = _integers(path, observations[2::3], place)
        image = ColmapImage(
            words[9].strip(),
            camera,
            np.array(pose[:4]),
            np.array(pose[4:]),
            np.reshape(points2d, (-1, 2)),
            np.array(point_ids, dtype=np.int64),
        )
        images[identity] = check_image(path, identity, image)
    return images


def read_points(path: PathLike) -> ColmapPoints:
    """Read ``points3D.txt``.

    Raises:
        CameraFileError: missing or damaged file.
    """
    ids, rows, colors, tracks = [], [], [], []
    for number, line in _lines(path, "COLMAP points"):
        words = line.split()
        if not words:
            continue
        place = f"line {number}"
        if len(words) < 8 or len(words) % 2:
            raise CameraFileError(
                f"{path}, {place}: 'ID X Y Z R G B ERROR (IMAGE POINT2D)...' expected; the file is truncated"
            )
        ids.append(_integers(path, words[:1], place)[0])
        rows.append(parse_numbers(path, (*words[1:4], words[7]), place))
        color = _integers(path, words[4:7], place)
        if not all(0 <= value <= 255 for value in color):
            raise CameraFileError(f"{path}, {place}: colours lie between 0 and 255; correct it")
        colors.append(color)
        track = _integers(path, words[8:], place)
        if any(abs(value) >= 1 << 31 for value in track):
            raise CameraFileError(f"{path}, {place}: the number of an image exceeds 31 bits; it is damaged")
        tracks.append(np.array(track, dtype=np.int32).reshape(-1, 2))
    if not ids:
        return empty_points()
    values = np.array(rows)
    return ColmapPoints(
        np.array(ids, dtype=np.int64),
        values[:, :3].copy(),
        np.array(colors, dtype=np.uint8),
        values[:, 3].copy(),
        tracks,
    )


def pack_cameras(cameras: Mapping[int, ColmapCamera]) -> bytes:
    """The text of ``cameras.txt``."""
    lines = ["# CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]"]
    for identity, camera in cameras.items():
        lines.append(f"{identity} {camera.model} {camera.width} {camera.height} {_words(camera.params)}")
    return _join(lines)


def pack_images(images: Mapping[int, ColmapImage]) -> bytes:
    """The text of ``images.txt``."""
    lines = ["# IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME, then POINTS2D[] as (X, Y, POINT3D_ID)"]
    for identity, image in images.items():
        pose = _words([*image.quaternion, *image.translation])
        lines.append(f"{identity} {pose} {image.camera_id} {image.name}")
        observations = zip(image.points2d, image.point_ids, strict=True)
        lines.append(" ".join(f"{_words(position)} {int(point)}" for position, point in observations))
    return _join(lines)


def pack_points(points: ColmapPoints) -> bytes:
    """The text of ``points3D.txt``."""
    lines = ["# POINT3D_ID, X, Y, Z, R, G, B, ERROR, TRACK[] as (IMAGE_ID, POINT2D_IDX)"]
    for row, track in enumerate(points.tracks):
        color = " ".join(str(int(value)) for value in points.colors[row])
        pairs = " ".join(str(int(value)) for value in np.ravel(track))
        head = f"{int(points.ids[row])} {_words(points.positions[row])} {color} {_words(points.errors[row : row + 1])}"
        lines.append(f"{head} {pairs}".rstrip())
    return _join(lines)


def _lines(path: PathLike, what: str) -> list[tuple[int, str]]:
    """The numbered lines without comment lines (empty lines stay)."""
    lines = enumerate(read_text(path, what).split("\n"), 1)
    return [(number, line) for number, line in lines if not line.lstrip().startswith("#")]


def _integers(path: PathLike, words: Sequence[str], place: str) -> list[int]:
    try:
        values = [int(word) for word in words]
    except ValueError as problem:
        reason = " ".join(str(problem).split())[:120]
        raise CameraFileError(f"{path}, {place}: {reason}; a whole number is expected") from problem
    if any(not -(1 << 63) <= value < 1 << 63 for value in values):
        raise CameraFileError(f"{path}, {place}: a number exceeds 64 bits; the file is damaged")
    return values


def _words(values: Sequence[float] | np.ndarray) -> str:
    return " ".join(repr(float(value)) for value in values)


def _join(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("utf-8")
