# SPDX-License-Identifier: Apache-2.0
"""Calibration files of rectified stereo pairs, in the formats of the field, as a :class:`StereoRig` in metres.

The format is detected from the content: Middlebury/ETH3D ``calib.txt``, KITTI raw ``calib_cam_to_cam.txt``, KITTI
object/odometry ``P0..P3``, OpenCV or ROS YAML, plain text (intrinsics on one line, baseline on the next), our JSON.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vision3d.errors import CalibrationError, InputError
from vision3d.geometry.rig import fit_rig_to_image
from vision3d.io import calibration_yaml
from vision3d.io.calibration_text import Draft, Lines, numbers
from vision3d.io.files import atomic_write, read_bytes
from vision3d.types import Camera, StereoRig

_FORMATS = "Middlebury calib.txt, KITTI, OpenCV or ROS YAML, plain text (9 numbers, then the baseline) and JSON"
_JSON_FORMAT = "vision3d-calibration"

PathLike = str | os.PathLike[str]


def read_calibration(
    path: PathLike | Sequence[PathLike],
    image_size: tuple[int, int] | None = None,
    units: str = "auto",
) -> StereoRig:
    """Read the calibration of a rectified stereo pair.

    Args:
        path: the file, or the pair (left, right) of YAML files. ``left.yaml`` finds ``right.yaml`` itself.
        image_size: (width, height) of the images that it will be used with; a calibration of another size is refused.
        units: unit of the baseline: ``"m"``, ``"mm"`` or ``"auto"`` (Middlebury: mm, all others: m; implausible
            baselines are refused). Our JSON states metres (``baseline_m``), whatever is passed here.

    Returns:
        The rig, baseline in metres. Its size is that of the file, else ``image_size``, else unknown.

    Raises:
        CalibrationError: missing file, unknown format, missing or wrong rows, distortion or rotation left in the views,
            views that do not fit each other, or another image size.
    """
    if units not in ("auto", "m", "mm"):
        raise InputError(f"units must be 'auto', 'm' or 'mm', got '{units}'")
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if len(paths) not in (1, 2):
        raise InputError(f"one calibration file or the pair (left, right) is expected, got {len(paths)} files")
    name = str(paths[0])
    draft = _parse(Path(paths[0]), Path(paths[1]) if len(paths) == 2 else None)
    baseline = _baseline_in_metres(name, draft, units)
    width, height = draft.size or (None, None)
    try:
        left = Camera(draft.left, width=width, height=height)
        right = Camera(draft.right, width=width, height=height)
        rig = StereoRig(left, right, baseline)
    except CalibrationError as error:
        raise CalibrationError(f"{name}: {error}; correct the file") from error
    _check_views(name, rig, draft.doffs)
    return rig if image_size is None else fit_rig_to_image(rig, *image_size, source=name)


def write_calibration(path: PathLike, rig: StereoRig) -> None:
    """Write a rig as JSON (metres, pixels); :func:`read_calibration` gives back the same numbers.

    Raises:
        OutputError: the place is not writable.
    """
    content = {
        "format": _JSON_FORMAT,
        "version": 1,
        "width": rig.left.width,
        "height": rig.left.height,
        "baseline_m": float(rig.baseline),
        "left": {"intrinsics": rig.left.intrinsics.tolist()},
        "right": {"intrinsics": rig.right.intrinsics.tolist()},
    }
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _parse(path: Path, second: Path | None) -> Draft:
    """Detect the format from the content and read it."""
    text = _text(path)
    yaml_text = re.match(r"\s*%YAML", text) or re.search(r"^(camera_matrix|projection_matrix|M1|K1)\s*:", text, re.M)
    if second is not None and not yaml_text:
        raise CalibrationError(f"{path}: only YAML calibrations come as two files; give this one alone")
    if re.match(r"\s*\{", text):
        return _parse_json(path, text)
    if re.search(r"^\s*(cam[01]|baseline|doffs)\s*=", text, re.MULTILINE):
        return _parse_middlebury(Lines(path, text, "="))
    if re.search(r"^P_rect_0\d:", text, re.MULTILINE):
        return _parse_kitti_raw(Lines(path, text, ":"))
    if re.search(r"^P\d:\s*[-+.\d]", text, re.MULTILINE):
        return _parse_kitti_object(Lines(path, text, ":"))
    if re.match(r"\s*%YAML", text) or re.search(r"^\s*[A-Za-z_]\w*\s*:", text, re.MULTILINE):
        if second is None:
            second = calibration_yaml.sibling(path)
        return calibration_yaml.parse(path, text, second, None if second is None else _text(second))
    bare = re.sub(r"#.*", "", text)
    if re.fullmatch(r"[\s\d.eE+,;\[\]-]+", bare):
        return _parse_plain(path, bare)
    raise CalibrationError(f"{path}: unknown calibration format; {_FORMATS} are read")


def _text(path: Path) -> str:
    content = read_bytes(path, CalibrationError, "a calibration file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CalibrationError(f"{path}: not a text file; {_FORMATS} are read") from error
    if "\0" in text or not text.strip():
        raise CalibrationError(f"{path}: not a calibration file (blank or binary); {_FORMATS} are read")
    return text


def _parse_middlebury(lines: Lines) -> Draft:
    size = lines.values("width", 1) + lines.values("height", 1) if lines.has("width") or lines.has("height") else None
    return Draft(
        left=lines.matrix("cam0", 3, 3),
        right=lines.matrix("cam1", 3, 3),
        baseline=lines.values("baseline", 1)[0],
        unit="mm",
        size=None if size is None else (round(size[0]), round(size[1])),
        doffs=lines.values("doffs", 1)[0] if lines.has("doffs") else None,
    )


def _parse_kitti_raw(lines: Lines) -> Draft:
    size = None
    if lines.has("S_rect_02"):
        width, height = lines.values("S_rect_02", 2)
        if lines.has("S_rect_03") and lines.values("S_rect_03", 2) != [width, height]:
            raise CalibrationError(f"{lines.path}: S_rect_02 and S_rect_03 differ; both views must have one size")
        size = (round(width), round(height))
    return replace(_from_projections(lines, "P_rect_02", "P_rect_03"), size=size)


def _parse_kitti_object(lines: Lines) -> Draft:
    return _from_projections(lines, "P2", "P3")


def _from_projections(lines: Lines, left_key: str, right_key: str) -> Draft:
    """Intrinsics and baseline of two rectified projections ``K [I | t]`` (3x4)."""
    left, right = lines.matrix(left_key, 3, 4), lines.matrix(right_key, 3, 4)
    if left[0, 0] <= 0 or right[0, 0] <= 0:
        raise CalibrationError(f"{lines.where(left_key)}: focal lengths must be positive; correct the file")
    baseline = float(left[0, 3] / left[0, 0] - right[0, 3] / right[0, 0])
    return Draft(left[:, :3], right[:, :3], baseline)


def _parse_plain(path: Path, text: str) -> Draft:
    rows = [(i, numbers(path, i, line)) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(rows) == 4 and [len(row) for _, row in rows[:3]] == [3, 3, 3]:
        rows = [(rows[0][0], rows[0][1] + rows[1][1] + rows[2][1]), rows[3]]
    if len(rows) != 2:
        raise CalibrationError(
            f"{path}: {len(rows)} rows of numbers, 2 expected: the 9 numbers of the intrinsics, then the baseline [m]"
        )
    for (line, row), count, what in zip(rows, (9, 1), ("intrinsics", "baseline"), strict=True):
        if len(row) != count:
            raise CalibrationError(
                f"{path}: the {what} row has {len(row)} numbers, {count} expected ({path}, line {line})"
            )
    intrinsics = np.array(rows[0][1]).reshape(3, 3)
    return Draft(intrinsics, intrinsics.copy(), rows[1][1][0])


def _parse_json(path: Path, text: str) -> Draft:
    try:
        content = json.loads(text)
        if content.get("format") != _JSON_FORMAT:
            raise CalibrationError(f'{path}: this JSON has no "format": "{_JSON_FORMAT}"; {_FORMATS} are read')
        left = np.array(content["left"]["intrinsics"], dtype=np.float64)
        right = np.array(content["right"]["intrinsics"], dtype=np.float64)
        width, height = content.get("width"), content.get("height")
        size = None if width is None or height is None else (int(width), int(height))
        return Draft(left, right, float(content["baseline_m"]), unit="exact", size=size)
    except json.JSONDecodeError as error:
        raise CalibrationError(f"{path}: not a JSON file ({error}); write it again") from error
    except KeyError as error:
        raise CalibrationError(f"{path}: the key {error} is missing; write the file with write_calibration") from error
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        if isinstance(error, CalibrationError):
            raise
        raise CalibrationError(
            f"{path}: a value has the wrong type ({error}); write it with write_calibration"
        ) from error


def _baseline_in_metres(name: str, draft: Draft, units: str) -> float:
    """Convert, and refuse what betrays another unit."""
    value = draft.baseline
    if not np.isfinite(value) or value <= 0:
        hint = "the right camera must lie to the right of the left one: swap the views or correct the sign"
        raise CalibrationError(f"{name}: the baseline is {value:g}, a positive number is expected; {hint}")
    if draft.unit == "exact":
        return value
    unit = draft.unit if units == "auto" else units
    metres = value / 1000 if unit == "mm" else value
    if units == "auto" and draft.unit == "mm" and value < 1:
        raise CalibrationError(
            f"{name}: a baseline of {value:g} mm is implausible; if it is in metres, say --units m (units='m')"
        )
    if units == "auto" and draft.unit == "m" and value >= 10:
        raise CalibrationError(
            f"{name}: a baseline of {value:g} m is implausible; if it is in mm, say --units mm (units='mm'), else "
            "--units m (units='m')"
        )
    return metres


def _check_views(name: str, rig: StereoRig, doffs: float | None) -> None:
    """Rectified views share focal lengths and rows; a stated doffs must be that of the intrinsics."""
    left, right = rig.left, rig.right
    if abs(left.fx - right.fx) > 1e-3 * left.fx or abs(left.fy - right.fy) > 1e-3 * left.fy:
        raise CalibrationError(
            f"{name}: the focal lengths of the views differ ({left.fx:g}, {left.fy:g} and {right.fx:g}, {right.fy:g}); "
            "rectify first, so that both share one"
        )
    if abs(left.cy - right.cy) > 0.5:
        raise CalibrationError(
            f"{name}: the principal points of the views differ in rows ({left.cy:g} and {right.cy:g}); rectify first"
        )
    if rig.size is not None and min(rig.size) <= 0:
        raise CalibrationError(f"{name}: the image size {rig.size[0]}x{rig.size[1]} is illegal; correct the file")
    if doffs is not None and abs(doffs - rig.doffs) > 0.05:
        raise CalibrationError(
            f"{name}: doffs is {doffs:g}, but the principal points differ by {rig.doffs:g} px (cam1 cx - cam0 cx); "
            "correct one of them"
        )
