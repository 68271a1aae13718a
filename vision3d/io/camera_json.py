# SPDX-License-Identifier: Apache-2.0
"""Posed images listed in JSON: NeRF's ``transforms.json`` and the project's own ``cameras.json``."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vision3d.errors import CameraFileError
from vision3d.io.cameras import check_pose, invert_pose, make_camera, read_text, shorten
from vision3d.io.files import atomic_write
from vision3d.types import Camera

PathLike = str | os.PathLike[str]

ImageSize = Callable[[str], tuple[int, int]]

_FORMAT = "vision3d-cameras"
_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
_DISTORTION = ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")


@dataclass(frozen=True)
class PosedImage:
    """An image with its camera.

    Attributes:
        name: path of the image relative to the list's folder, with "/" between folders.
        camera: its camera; the size is None where the list does not say it.
        depth_range: (least, largest) depth, or None.
    """

    name: str
    camera: Camera
    depth_range: tuple[float, float] | None = None


def read_transforms(path: PathLike, image_size: ImageSize | None = None) -> list[PosedImage]:
    """Read ``transforms.json`` (NeRF, instant-ngp, nerfstudio): camera-to-world, OpenGL axes (x right, y up, z back).

    Focal lengths come from ``fl_x`` / ``fl_y`` or ``camera_angle_x`` / ``camera_angle_y``, of the frame or of the file;
    the centre defaults to the middle of the image. These files count pixels from the image corner (centre of the first
    pixel at 0.5), so 0.5 is subtracted from ``cx`` and ``cy``. ``k1 k2 p1 p2 k3..k6`` become the camera's distortion.

    Args:
        path: the file.
        image_size: gives the (width, height) of an image by its name, for files without ``w``, ``h`` (Blender scenes).

    Raises:
        CameraFileError: missing file, no JSON, missing or illegal entries, or a fisheye camera.
    """
    content = _load(path)
    frames = content.get("frames")
    if not isinstance(frames, list) or not frames:
        raise CameraFileError(f"{path}: holds no list 'frames'; a transforms.json of NeRF is expected")
    return [_read_frame(path, {**content, **_object(path, frame, "a frame")}, image_size) for frame in frames]


def write_transforms(path: PathLike, images: Sequence[PosedImage]) -> None:
    """Write posed images as ``transforms.json`` (instant-ngp's form, intrinsics in each frame).

    Raises:
        OutputError: the place is not writable.
    """
    frames = []
    for image in images:
        camera = image.camera
        pose = invert_pose(camera.world_to_camera) @ _OPENGL
        frame = {"file_path": image.name, "transform_matrix": pose.tolist(), "w": camera.width, "h": camera.height}
        frame |= {"fl_x": camera.fx, "fl_y": camera.fy, "cx": camera.cx + 0.5, "cy": camera.cy + 0.5}
        coefficients = [] if camera.distortion is None else np.ravel(camera.distortion).tolist()
        frames.append({**frame, **dict(zip(_DISTORTION, coefficients, strict=False))})
    _store(path, {"frames": frames})


def read_cameras_json(path: PathLike) -> tuple[list[PosedImage], str]:
    """Read the project's ``cameras.json``; return the images and the unit of length.

    The form: ``{"format": "vision3d-cameras", "version": 1, "unit": "m", "images": [{"name", "width", "height",
    "intrinsics" 3x3, "world_to_camera" 4x4, "distortion" or null, "depth_range" [min, max] or null}]}``; pixel centres
    at integers, OpenCV axes.

    Raises:
        CameraFileError: missing file, another format, or missing or illegal entries.
    """
    content = _load(path)
    if content.get("format") != _FORMAT or content.get("version") != 1:
        raise CameraFileError(f'{path}: no list of posed images ("format": "{_FORMAT}", "version": 1 expected)')
    images = content.get("images")
    unit = content.get("unit", "unknown")
    if not isinstance(images, list) or not images or not isinstance(unit, str):
        raise CameraFileError(f"{path}: a list 'images' and a text 'unit' are expected; correct the file")
    return [_read_entry(path, _object(path, entry, "an entry of 'images'")) for entry in images], unit


def write_cameras_json(path: PathLike, images: Sequence[PosedImage], unit: str = "m") -> None:
    """Write posed images; :func:`read_cameras_json` gives back the same numbers.

    Raises:
        OutputError: the place is not writable.
    """
    entries = []
    for image in images:
        camera = image.camera
        distortion = None if camera.distortion is None else np.ravel(camera.distortion).tolist()
        entry = {"name": image.name, "width": camera.width, "height": camera.height, "distortion": distortion}
        entry |= {"intrinsics": camera.intrinsics.tolist(), "world_to_camera": camera.world_to_camera.tolist()}
        entries.append({**entry, "depth_range": image.depth_range and list(image.depth_range)})
    _store(path, {"format": _FORMAT, "version": 1, "unit": unit, "images": entries})


def _read_frame(path: PathLike, frame: dict[str, Any], image_size: ImageSize | None) -> PosedImage:
    name = _name(path, frame, "file_path")
    model = frame.get("camera_model", "OPENCV")
    if frame.get("is_fisheye") or model not in ("OPENCV", "PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL"):
        raise CameraFileError(f"{path}: {name} has a camera of model {model!s:.40}; undistort the images first")
    pose = _array(path, frame, "transform_matrix", (4, 4))
    pose = invert_pose(check_pose(path, pose @ _OPENGL))
    size = _size(path, frame, "w", "h") or (image_size and image_size(name))
    width, height = size or (None, None)
    fx = _focal(path, frame, "fl_x", "camera_angle_x", width)
    fy = _focal(path, frame, "fl_y", "camera_angle_y", height)
    if not fx and not fy:
        raise CameraFileError(f"{path}: {name} has neither fl_x nor camera_angle_x; add one of them")
    fx, fy = fx or fy, fy or fx
    cx, cy = _number(path, frame, "cx"), _number(path, frame, "cy")
    if width is None or height is None:
        raise CameraFileError(f"{path}: {name} has no w and h; add the size of the image")
    cx, cy = width / 2 if cx is None else cx, height / 2 if cy is None else cy
    intrinsics = np.array([[fx, 0, cx - 0.5], [0, fy, cy - 0.5], [0, 0, 1]], dtype=np.float64)
    coefficients = np.array([_number(path, frame, key) or 0.0 for key in _DISTORTION])
    return PosedImage(name, make_camera(path, intrinsics, pose, size, trim_distortion(coefficients)))


def trim_distortion(coefficients: np.ndarray) -> np.ndarray | None:
    """OpenCV's 4, 5 or 8 coefficients without zeros at the end, or None where all are zero."""
    for length in (0, 4, 5, 8):
        if not np.any(coefficients[length:]):
            return coefficients[:length].copy() if length else None
    return coefficients


def _read_entry(path: PathLike, entry: dict[str, Any]) -> PosedImage:
    name = _name(path, entry, "name")
    intrinsics = _array(path, entry, "intrinsics", (3, 3))
    pose = _array(path, entry, "world_to_camera", (4, 4))
    distortion = None
    if entry.get("distortion") is not None:
        distortion = _array(path, entry, "distortion", None)
        if distortion.size not in (4, 5, 8, 12, 14):
            raise CameraFileError(
                f"{path}: {name} has {distortion.size} coefficients of distortion, 4, 5 or 8 expected"
            )
    depth_range = None
    if entry.get("depth_range") is not None:
        near, far = _array(path, entry, "depth_range", (2,)).tolist()
        if not 0 < near < far:
            raise CameraFileError(f"{path}: the depth range of {name} must be 0 < min < max, got {near} to {far}")
        depth_range = (near, far)
    camera = make_camera(path, intrinsics, pose, _size(path, entry, "width", "height"), distortion)
    return PosedImage(name, camera, depth_range)


def _load(path: PathLike) -> dict[str, Any]:
    text = read_text(path, "a list of posed images")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise CameraFileError(f"{path}: not a JSON file ({shorten(problem)}); correct it") from problem
    return _object(path, content, "the file")


def _store(path: PathLike, content: dict[str, Any]) -> None:
    with atomic_write(path) as temporary:
        Path(temporary).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _object(path: PathLike, value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CameraFileError(f"{path}: {what} must be a JSON object, got {type(value).__name__}; correct it")
    return value


def _name(path: PathLike, entry: dict[str, Any], key: str) -> str:
    name = entry.get(key)
    if not isinstance(name, str) or not name or "\0" in name:
        raise CameraFileError(f"{path}: an image has no '{key}'; add the path of its file")
    return name.replace("\\", "/").removeprefix("./")


def _array(path: PathLike, entry: dict[str, Any], key: str, shape: tuple[int, ...] | None) -> np.ndarray:
    try:
        array = np.asarray(entry.get(key), dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as problem:
        raise CameraFileError(f"{path}: '{key}' must hold numbers ({shorten(problem)}); correct it") from problem
    if (shape is not None and array.shape != shape) or array.ndim == 0 or not np.isfinite(array).all():
        expected = "x".join(map(str, shape)) if shape else "list of"
        raise CameraFileError(f"{path}: '{key}' must be {expected} finite numbers, got shape {array.shape}; correct it")
    return array


def _number(path: PathLike, entry: dict[str, Any], key: str) -> float | None:
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e15:
        raise CameraFileError(f"{path}: '{key}' must be a finite number, got {str(value)[:40]}; correct it")
    return float(value)


def _size(path: PathLike, entry: dict[str, Any], *keys: str) -> tuple[int, int] | None:
    width, height = (_number(path, entry, key) for key in keys)
    if width is None or height is None:
        return None
    if not (1 <= width <= 10**6 and 1 <= height <= 10**6) or width % 1 or height % 1:
        raise CameraFileError(f"{path}: the image size {width:g}x{height:g} is impossible; correct it")
    return int(width), int(height)


def _focal(path: PathLike, entry: dict[str, Any], key: str, angle_key: str, side: int | None) -> float | None:
    focal, angle = _number(path, entry, key), _number(path, entry, angle_key)
    if focal is not None:
        return focal
    if angle is None or side is None:
        return None
    if not 0 < angle < math.pi:
        raise CameraFileError(f"{path}: '{angle_key}' must lie between 0 and pi, got {angle}; correct it")
    return 0.5 * side / math.tan(angle / 2)
