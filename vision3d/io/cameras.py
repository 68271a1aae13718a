# SPDX-License-Identifier: Apache-2.0
"""Camera files of multi-view stereo: MVSNet's ``cam.txt`` and ``pair.txt``, Middlebury ``*_par.txt``, ``.log``.

Extrinsics are world to camera with OpenCV axes; pixel centres lie at integer coordinates; lengths keep the file's unit.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vision3d.errors import CalibrationError, CameraFileError, InputError
from vision3d.io.files import atomic_write, read_bytes
from vision3d.types import Camera

PathLike = str | os.PathLike[str]
DepthLine = Literal["auto", "range", "interval"]

DEPTH_PLANES = 192
"""Planes of an MVSNet sweep where the file does not say their number."""

_MAX_VIEWS = 1_000_000
_ROTATION_TOLERANCE = 1e-2


@dataclass(frozen=True)
class MVSNetCamera:
    """Content of a ``cam.txt``.

    Attributes:
        camera: pose and intrinsics of the image that the file belongs to.
        depth_min, depth_max: range of depths, as the file says it (BlendedMVS has some that are not positive).
        depth_interval: step between planes, or None where the file gives a range only.
        depth_planes: number of planes, or None likewise.
    """

    camera: Camera
    depth_min: float
    depth_max: float
    depth_interval: float | None = None
    depth_planes: float | None = None

    @property
    def depth_range(self) -> tuple[float, float] | None:
        """(least, largest) depth, or None where the file's numbers are no positive range."""
        return (self.depth_min, self.depth_max) if 0 < self.depth_min < self.depth_max else None


def read_mvsnet_camera(
    path: PathLike,
    depth_line: DepthLine = "auto",
    *,
    planes: int = DEPTH_PLANES,
    interval_scale: float = 1.0,
    image_size: tuple[int, int] | None = None,
) -> MVSNetCamera:
    """Read ``%08d_cam.txt`` of MVSNet (Yao et al., ECCV 2018) and of the projects that follow it.

    The depth line holds ``min max`` or ``min interval`` (2 numbers), ``min interval planes`` (3) or ``min interval
    planes max`` (4). White space and line ends do not matter.

    Args:
        path: the file.
        depth_line: meaning of a line of 2 numbers: ``"range"``, ``"interval"``, or ``"auto"``: a range if the second
            number is the larger one, else an interval, with a warning.
        planes: number of planes of the 2-number interval form.
        interval_scale: factor on the interval of the interval forms (MVSNet's DTU range uses 1.06).
        image_size: (width, height) of the image, which the file does not say.

    Raises:
        CameraFileError: missing or truncated file, words that are no numbers, NaN, or no rigid pose.
    """
    tokens = read_text(path, "a camera file").split()
    extrinsic = matrix(path, tokens, "extrinsic", 0, 4, 4)
    intrinsics = matrix(path, tokens, "intrinsic", 17, 3, 3)
    numbers = parse_numbers(path, tokens[27:], "the depth line")
    if len(numbers) not in (2, 3, 4):
        raise CameraFileError(
            f"{path}: the depth line has {len(numbers)} numbers, 2 (min max, or min interval), 3 or 4 (min interval "
            "planes max) are expected; the file is truncated or of another format"
        )
    camera = make_camera(path, intrinsics, extrinsic, image_size)
    first, second = numbers[:2]
    if len(numbers) == 2 and _is_range(path, first, second, depth_line):
        return MVSNetCamera(camera, first, second)
    interval = second * interval_scale
    count = numbers[2] if len(numbers) > 2 else float(planes)
    last = numbers[3] if len(numbers) == 4 else first + interval * (count - 1)
    return MVSNetCamera(camera, first, last, interval, count)


def write_mvsnet_camera(path: PathLike, camera: Camera, depth_line: Sequence[float]) -> None:
    """Write a ``cam.txt``; ``depth_line`` holds the 2, 3 or 4 numbers of its last line.

    Raises:
        InputError: another number of numbers. OutputError: the place is not writable.
    """
    if len(depth_line) not in (2, 3, 4):
        raise InputError(f"the depth line of a camera file has 2, 3 or 4 numbers, got {len(depth_line)}")
    rows = ["extrinsic", *_rows(camera.world_to_camera), "", "intrinsic", *_rows(camera.intrinsics), ""]
    rows.append(" ".join(repr(float(value)) for value in depth_line))
    with atomic_write(path) as temporary:
        temporary.write_text("\n".join(rows) + "\n", encoding="ascii")


def read_pairs(path: PathLike) -> dict[int, list[tuple[int, float]]]:
    """Read ``pair.txt``: for each reference view its source views (number, score), best first as in the file.

    The view itself and sources with a score of 0 are left out (one public converter appends them).

    Raises:
        CameraFileError: missing or truncated file, absurd counts, or words that are no numbers.
    """
    tokens = read_text(path, "a list of view pairs").split()
    count = _count(path, tokens, 0, "the number of views")
    pairs: dict[int, list[tuple[int, float]]] = {}
    position = 1
    for _ in range(count):
        reference = _count(path, tokens, position, "the number of a reference view")
        sources = _count(path, tokens, position + 1, f"the number of sources of view {reference}")
        words = tokens[position + 2 : position + 2 + 2 * sources]
        if len(words) < 2 * sources:
            raise CameraFileError(f"{path}: the list ends inside view {reference}; the file is truncated")
        scores = parse_numbers(path, words[1::2], f"the scores of view {reference}")
        numbers = [_count(path, words, 2 * index, f"a source of view {reference}") for index in range(sources)]
        kept = [(number, score) for number, score in zip(numbers, scores, strict=True) if number != reference]
        if reference in pairs:
            raise CameraFileError(f"{path}: view {reference} is listed twice; remove one of its entries")
        pairs[reference] = [(number, score) for number, score in kept if score > 0]
        position += 2 + 2 * sources
    if position < len(tokens):
        raise CameraFileError(
            f"{path}: {len(tokens) - position} words follow the {count} views; correct the first line"
        )
    return pairs


def write_pairs(path: PathLike, pairs: Mapping[int, Sequence[tuple[int, float]]]) -> None:
    """Write ``pair.txt``; :func:`read_pairs` gives back the same.

    Raises:
        OutputError: the place is not writable.
    """
    lines = [str(len(pairs))]
    for reference, sources in pairs.items():
        words = [str(len(sources))] + [f"{number} {score!r}" for number, score in sources]
        lines += [str(reference), " ".join(words)]
    with atomic_write(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="ascii")


def read_middlebury_parameters(path: PathLike, image_size: tuple[int, int] | None = None) -> dict[str, Camera]:
    """Read ``*_par.txt`` of the Middlebury multi-view data (Seitz et al., CVPR 2006): image name to camera, metres.

    Raises:
        CameraFileError: missing or truncated file, or an illegal row.
    """
    lines = [line.split() for line in read_text(path, "a list of cameras").splitlines() if line.strip()]
    count = _count(path, lines[0] if lines else [], 0, "the number of cameras")
    if len(lines) != count + 1:
        raise CameraFileError(f"{path}: {len(lines) - 1} rows, {count} expected; the file is truncated or damaged")
    cameras = {}
    for words in lines[1:]:
        row = f"the row of {words[0][:60]}"
        values = parse_numbers(path, words[1:], row)
        if len(values) != 21:
            raise CameraFileError(f"{path}: {row} has {len(values)} numbers, 21 (K, R, t) expected")
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = np.reshape(values[9:18], (3, 3)), values[18:]
        cameras[words[0]] = make_camera(path, np.reshape(values[:9], (3, 3)), pose, image_size)
    return cameras


def read_trajectory_log(path: PathLike) -> list[np.ndarray]:
    """Read a Tanks and Temples ``.log``: the world-to-camera matrix [4, 4] of each image (the file holds the inverses).

    Raises:
        CameraFileError: missing or truncated file, or no rigid pose.
    """
    tokens = read_text(path, "a camera trajectory").split()
    if len(tokens) % 19:
        raise CameraFileError(f"{path}: {len(tokens)} words, a multiple of 19 expected; the file is truncated")
    poses = []
    for start in range(0, len(tokens), 19):
        values = parse_numbers(path, tokens[start : start + 19], f"image {start // 19}")
        poses.append(invert_pose(check_pose(path, np.reshape(values[3:], (4, 4)))))
    return poses


def write_trajectory_log(path: PathLike, world_to_camera: Sequence[np.ndarray]) -> None:
    """Write poses [4, 4] as a ``.log`` of camera-to-world matrices.

    Raises:
        OutputError: the place is not writable.
    """
    blocks = [[f"{index} {index} 0", *_rows(invert_pose(pose))] for index, pose in enumerate(world_to_camera)]
    with atomic_write(path) as temporary:
        temporary.write_text("".join(line + "\n" for block in blocks for line in block), encoding="ascii")


def invert_pose(pose: np.ndarray) -> np.ndarray:
    """Inverse of a rigid transform [4, 4]."""
    inverse = np.eye(4)
    inverse[:3, :3] = pose[:3, :3].T
    inverse[:3, 3] = -pose[:3, :3].T @ pose[:3, 3]
    return inverse


def read_text(path: PathLike, what: str) -> str:
    """The text of a camera file (a byte order mark is dropped).

    Raises:
        CameraFileError: missing, empty or binary file.
    """
    try:
        return read_bytes(path, CameraFileError, what).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise CameraFileError(f"{path}: {what} is a text file, this is binary or damaged; check the path") from problem


def parse_numbers(path: PathLike, words: Sequence[str], what: str) -> list[float]:
    """Finite numbers from words.

    Raises:
        CameraFileError: a word is no number, or it is NaN or infinite.
    """
    try:
        values = [float(word) for word in words]
    except ValueError as problem:
        raise CameraFileError(f"{path}: {what}: {shorten(problem)}; numbers are expected") from problem
    if not np.isfinite(values).all():
        raise CameraFileError(f"{path}: {what} holds NaN or an infinite number; write finite numbers")
    return values


def check_pose(path: PathLike, pose: np.ndarray) -> np.ndarray:
    """The pose [4, 4] itself, if it is rigid (rotation orthonormal to 1e-2, right-handed).

    Raises:
        CameraFileError: it is not.
    """
    rotation = pose[:3, :3]
    good = np.abs(pose[3] - (0, 0, 0, 1)).max() < 1e-6 and np.abs(rotation).max() < 2
    if not good or np.abs(rotation @ rotation.T - np.eye(3)).max() > _ROTATION_TOLERANCE or np.linalg.det(rotation) < 0:
        raise CameraFileError(
            f"{path}: a pose is no rigid motion (orthonormal right-handed 3x3, last row 0 0 0 1); correct it"
        )
    return pose


def make_camera(
    path: PathLike,
    intrinsics: np.ndarray,
    world_to_camera: np.ndarray,
    image_size: tuple[int, int] | None = None,
    distortion: np.ndarray | None = None,
) -> Camera:
    """A checked camera from the numbers of a file.

    Raises:
        CameraFileError: illegal intrinsics or pose.
    """
    width, height = image_size or (None, None)
    if np.abs(intrinsics[2] - (0, 0, 1)).max() > 1e-6 or abs(intrinsics[1, 0]) > 1e-6:
        raise CameraFileError(f"{path}: the intrinsics are no matrix [fx s cx; 0 fy cy; 0 0 1]; correct them")
    try:
        return Camera(intrinsics, width, height, distortion, check_pose(path, world_to_camera))
    except CalibrationError as problem:
        raise CameraFileError(f"{path}: {problem}; correct the file") from problem


def matrix(path: PathLike, tokens: Sequence[str], keyword: str, start: int, rows: int, columns: int) -> np.ndarray:
    """The matrix [rows, columns] that follows a keyword at a position of the words.

    Raises:
        CameraFileError: another word there, or too few numbers.
    """
    if tokens[start : start + 1] != [keyword]:
        found = f"'{tokens[start][:40]}'" if start < len(tokens) else "the end"
        raise CameraFileError(f"{path}: '{keyword}' expected as word {start + 1}, {found} found; the file is damaged")
    words = tokens[start + 1 : start + 1 + rows * columns]
    if len(words) < rows * columns:
        raise CameraFileError(f"{path}: {len(words)} of the {rows * columns} numbers of '{keyword}'; it is truncated")
    return np.reshape(parse_numbers(path, words, f"'{keyword}'"), (rows, columns))


def shorten(problem: BaseException) -> str:
    """The message of a low-level error as one short line."""
    return " ".join(str(problem).split())[:120] or type(problem).__name__


def _is_range(path: PathLike, first: float, second: float, depth_line: DepthLine) -> bool:
    if depth_line not in ("auto", "range", "interval"):
        raise InputError(f"depth_line must be 'auto', 'range' or 'interval', got '{depth_line}'")
    if depth_line != "auto":
        return depth_line == "range"
    if second <= first:
        warnings.warn(
            f"{os.path.dirname(os.fspath(path))}: depth lines of 2 numbers are taken as minimum and interval "
            f"({DEPTH_PLANES} planes); say depth_line='interval' or 'range'",
            stacklevel=3,
        )
    return second > first


def _count(path: PathLike, tokens: Sequence[str], position: int, what: str) -> int:
    try:
        value = int(tokens[position])
    except IndexError as problem:
        raise CameraFileError(f"{path}: {what} is missing; the file is truncated") from problem
    except ValueError as problem:
        raise CameraFileError(f"{path}: {what}: {shorten(problem)}; a whole number is expected") from problem
    if not 0 <= value <= _MAX_VIEWS:
        raise CameraFileError(f"{path}: {what} is {str(value)[:20]}, 0 to {_MAX_VIEWS} is possible; it is damaged")
    return value


def _rows(values: np.ndarray) -> list[str]:
    return [" ".join(repr(float(value)) for value in row) for row in np.asarray(values)]
