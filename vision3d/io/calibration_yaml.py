# SPDX-License-Identifier: Apache-2.0
"""Stereo calibrations in YAML: OpenCV's FileStorage (``M1 D1 M2 D2 R T`` or ``P1 P2``) and ROS pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from vision3d.errors import CalibrationError
from vision3d.io.calibration_text import Draft

_RECTIFY = "rectify first: the pair must be free of distortion and rotation"

# Names in use for the matrices of one file with both views.
_NAMES = {
    "K1": (
        "M1",
        "K1",
        "cameraMatrix1",
        "camera_matrix_1",
        "camera_matrix_left",
        "cameraMatrixLeft",
        "left_camera_matrix",
    ),
    "K2": (
        "M2",
        "K2",
        "cameraMatrix2",
        "camera_matrix_2",
        "camera_matrix_right",
        "cameraMatrixRight",
        "right_camera_matrix",
    ),
    "D1": ("D1", "distCoeffs1", "dist_coeffs_1", "distortion_left", "distCoeffsLeft", "left_distortion"),
    "D2": ("D2", "distCoeffs2", "dist_coeffs_2", "distortion_right", "distCoeffsRight", "right_distortion"),
    "R": ("R", "rotation"),
    "T": ("T", "translation"),
    "P1": ("P1",),
    "P2": ("P2",),
    "R1": ("R1",),
    "R2": ("R2",),
}


class _Loader(yaml.SafeLoader):
    """Safe YAML with OpenCV's tag for matrices."""


def _matrix(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    return loader.construct_mapping(node, deep=True) if isinstance(node, yaml.MappingNode) else None


_Loader.add_constructor("tag:yaml.org,2002:opencv-matrix", _matrix)
_Loader.add_constructor("tag:yaml.org,2002:opencv-nd-matrix", _matrix)


def sibling(path: Path) -> Path | None:
    """The right view's file beside that of the left view (``left`` in its name), or None."""
    if "left" not in path.name:
        return None
    other = path.with_name(path.name.replace("left", "right"))
    return other if other.is_file() else None


def parse(path: Path, text: str, second: Path | None, second_text: str | None) -> Draft:
    """Read one file with both views, or the two files of a pair.

    Raises:
        CalibrationError: no YAML, missing matrices, or views that are not rectified.
    """
    content = _load(path, text)
    if second is not None and second_text is not None:
        other = _load(second, second_text)
        if "camera_matrix" in content or "projection_matrix" in content:
            return _from_ros(path, content, second, other)
        return _from_opencv(path, {**content, **other})
    if "left" in content and "right" in content and isinstance(content["left"], dict):
        return _from_ros(path, content["left"], path, content["right"])
    if "camera_matrix" in content or "projection_matrix" in content:
        raise CalibrationError(f"{path}: holds one camera only; give the pair of files (--calib LEFT --calib RIGHT)")
    return _from_opencv(path, content)


def _load(path: Path, text: str) -> dict[str, Any]:
    lines = text.splitlines()
    if lines and lines[0].startswith("%YAML"):  # OpenCV writes "%YAML:1.0", which is not YAML
        lines[0] = ""
    try:
        content = yaml.load("\n".join(lines), Loader=_Loader)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        message = " ".join(str(error).split())
        raise CalibrationError(f"{path}: not legal YAML, or truncated ({message}); write it again") from error
    if not isinstance(content, dict):
        raise CalibrationError(f"{path}: no keys with matrices; an OpenCV or ROS calibration is expected")
    return content


def _array(path: Path, key: str, value: Any, shapes: tuple[tuple[int, int], ...] = ()) -> np.ndarray:
    """The float64 matrix of ``{rows, cols, data}``, nested or flat lists, of one of the legal ``shapes``."""
    if isinstance(value, dict):
        value = value.get("data")
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise CalibrationError(f"{path}: '{key}' is not a matrix of numbers; correct it") from error
    if not np.isfinite(array).all():
        raise CalibrationError(f"{path}: '{key}' holds numbers that are not finite; correct it")
    if not shapes:
        return array.ravel()
    for shape in shapes:
        if array.size == shape[0] * shape[1]:
            return array.reshape(shape)
    expected = " or ".join(str(rows * columns) for rows, columns in shapes)
    raise CalibrationError(f"{path}: '{key}' has {array.size} numbers, {expected} expected; correct it")


def _require_rectified(
    path: Path, content: dict[str, Any], distortions: tuple[str, ...], rotations: tuple[str, ...]
) -> None:
    for key in distortions:
        if content.get(key) is not None and np.abs(_array(path, key, content[key])).max(initial=0) > 0:
            raise CalibrationError(f"{path}: '{key}' says that the images are distorted; {_RECTIFY}")
    for key in rotations:
        if content.get(key) is not None:
            rotation = _array(path, key, content[key], ((3, 3), (3, 1)))
            identity = np.eye(3) if rotation.shape == (3, 3) else 0.0
            if np.abs(rotation - identity).max() > 1e-6:
                raise CalibrationError(f"{path}: '{key}' says that the views are rotated to each other; {_RECTIFY}")


def _from_opencv(path: Path, content: dict[str, Any]) -> Draft:
    """``P1``/``P2`` of rectified views, or ``M1 M2 T`` without distortion and rotation."""
    found = {name: content[key] for name, keys in _NAMES.items() for key in keys if content.get(key) is not None}
    _require_rectified(path, found, ("D1", "D2"), ("R", "R1", "R2"))
    size = _size(path, content)
    if "P1" in found and "P2" in found:
        left, right = (_array(path, key, found[key], ((3, 4),)) for key in ("P1", "P2"))
        return _from_projections(path, left, right, size)
    missing = [name for name in ("K1", "K2", "T") if name not in found]
    if missing:
        keys = ", ".join("/".join(_NAMES[name][:3]) for name in missing)
        raise CalibrationError(f"{path}: missing {keys}; an OpenCV stereo file holds M1, M2, T or P1, P2")
    left, right = (_array(path, key, found[key], ((3, 3),)) for key in ("K1", "K2"))
    translation = _array(path, "T", found["T"], ((3, 1),)).ravel()
    if np.abs(translation[1:]).max() > 1e-3 * abs(translation[0]):
        raise CalibrationError(f"{path}: 'T' is not along the x axis (rows of the views do not match); {_RECTIFY}")
    return Draft(left, right, -float(translation[0]), size=size)


def _from_ros(path: Path, left: dict[str, Any], second: Path, right: dict[str, Any]) -> Draft:
    """``camera_info`` pair: the baseline is in the right view's projection matrix."""
    for file, content in ((path, left), (second, right)):
        if not isinstance(content, dict) or "projection_matrix" not in content:
            raise CalibrationError(f"{file}: 'projection_matrix' is missing; give the camera_info of a calibrated pair")
        _require_rectified(file, content, ("distortion_coefficients",), ("rectification_matrix",))
    sizes = [_size(path, left), _size(second, right)]
    if sizes[0] != sizes[1] and None not in sizes:
        raise CalibrationError(
            f"{path}: the views have different sizes ({sizes[0]} and {sizes[1]}); both must have one"
        )
    matrices = [
        _array(file, "projection_matrix", content["projection_matrix"], ((3, 4),))
        for file, content in ((path, left), (second, right))
    ]
    return _from_projections(path, matrices[0], matrices[1], sizes[0] or sizes[1])


def _from_projections(path: Path, left: np.ndarray, right: np.ndarray, size: tuple[int, int] | None) -> Draft:
    if left[0, 0] <= 0 or right[0, 0] <= 0:
        raise CalibrationError(f"{path}: focal lengths must be positive, got {left[0, 0]:g} and {right[0, 0]:g}")
    baseline = float(left[0, 3] / left[0, 0] - right[0, 3] / right[0, 0])
    return Draft(left[:, :3], right[:, :3], baseline, size=size)


def _size(path: Path, content: dict[str, Any]) -> tuple[int, int] | None:
    for keys in (("image_width", "image_height"), ("width", "height")):
        if all(content.get(key) is not None for key in keys):
            try:
                return int(content[keys[0]]), int(content[keys[1]])
            except (TypeError, ValueError) as error:
                raise CalibrationError(
                    f"{path}: '{keys[0]}' and '{keys[1]}' must be whole numbers; correct them"
                ) from error
    for key in ("imageSize", "image_size", "size"):
        if content.get(key) is not None:
            values = _array(path, key, content[key], ((2, 1),)).ravel()
            return round(values[0]), round(values[1])
    return None
