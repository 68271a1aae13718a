# SPDX-License-Identifier: Apache-2.0
"""Pictures of disparity, depth and confidence maps: colour maps, colour bars, fixed ranges."""

from __future__ import annotations

import math

import cv2
import numpy as np

_MAPS = {
    "turbo": cv2.COLORMAP_TURBO,
    "viridis": cv2.COLORMAP_VIRIDIS,
    "inferno": cv2.COLORMAP_INFERNO,
    "magma": cv2.COLORMAP_MAGMA,
}
_STEPS = (1, 1.5, 2, 3, 4, 6, 8)


def nice_ceiling(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 4, 6, 8 times a power of ten, so that ranges of like pictures are mostly the same.

    Example:
        >>> nice_ceiling(57.0), nice_ceiling(64.1), nice_ceiling(0.02)
        (60.0, 80.0, 0.02)
    """
    if not math.isfinite(value) or value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for step in (*_STEPS, 10):
        if value <= step * power * (1 + 1e-9):
            return float(f"{step * power:.6g}")
    return 10 * power


def display_range(values: np.ndarray) -> tuple[float, float]:
    """(0, a rounded number above the 99th percentile of the finite values): the range of a picture."""
    finite = values[np.isfinite(values)]
    return 0.0, nice_ceiling(float(np.percentile(finite, 99))) if finite.size else 1.0


def color_table(colormap: str = "turbo") -> np.ndarray:
    """The 256 colours [256, 3] uint8 RGB of a colour map (turbo, viridis, inferno or magma)."""
    ramp = np.arange(256, dtype=np.uint8)[:, None]
    return np.ascontiguousarray(cv2.applyColorMap(ramp, _MAPS[colormap])[:, 0, ::-1])


def colorize(
    values: np.ndarray,
    low: float,
    high: float,
    colormap: str = "turbo",
    invalid: tuple[int, int, int] = (0, 0, 0),
) -> np.ndarray:
    """Colours of a map.

    Args:
        values: [H, W]; NaN and infinity take the colour ``invalid``.
        low, high: values of the first and last colour; beyond them the colours saturate.

    Returns:
        [H, W, 3] uint8 RGB.
    """
    finite = np.isfinite(values)
    position = (np.where(finite, values, low).astype(np.float32) - low) / max(high - low, 1e-12)
    picture = color_table(colormap)[np.clip(position * 255.0 + 0.5, 0, 255).astype(np.uint8)]
    picture[~finite] = invalid
    return picture


def with_color_bar(
    picture: np.ndarray, low: float, high: float, unit: str = "px", colormap: str = "turbo"
) -> np.ndarray:
    """The picture [H, W, 3] with a labelled colour bar at its right: [H, W + bar, 3] uint8 RGB."""
    height = picture.shape[0]
    font = float(np.clip(height / 900.0, 0.35, 1.4))
    ticks = np.linspace(low, high, 5 if height >= 120 else 2)
    labels = [f"{tick:.4g}" for tick in ticks]
    labels[-1] += f" {unit}"
    text_width = max(cv2.getTextSize(label, cv2.FONT_HERSHEY_SIMPLEX, font, 1)[0][0] for label in labels)
    gap, bar_width = round(12 * font) + 2, round(36 * font)
    strip = np.full((height, bar_width + text_width + 3 * gap, 3), 24, dtype=np.uint8)
    ramp = np.linspace(high, low, height, dtype=np.float32)[:, None].repeat(bar_width, axis=1)
    strip[:, gap : gap + bar_width] = colorize(ramp, low, high, colormap)
    for index, label in enumerate(labels):
        text_height = cv2.getTextSize(label, cv2.FONT_HERSHEY_SIMPLEX, font, 1)[0][1]
        row = (height - 1) * (1 - index / (len(labels) - 1)) + text_height / 2
        row = int(np.clip(row, text_height + 2, max(text_height + 2, height - 3)))
        place = (2 * gap + bar_width, row)
        cv2.putText(strip, label, place, cv2.FONT_HERSHEY_SIMPLEX, font, (235, 235, 235), 1, cv2.LINE_AA)
    return np.concatenate([picture, strip], axis=1)


def disparity_picture(disparity: np.ndarray, high: float | None = None) -> np.ndarray:
    """Turbo picture of a disparity map [H, W] over (0, ``high``) with its colour bar, RGB uint8.

    Args:
        high: disparity of the last colour, pixels; None takes ``display_range``.
    """
    low, top = display_range(disparity)
    top = top if high is None else high
    return with_color_bar(colorize(disparity, low, top), low, top)


def normals_picture(normals: np.ndarray) -> np.ndarray:
    """The usual picture of normals [H, W, 3] (left camera axes): [H, W, 3] uint8 RGB, black where unknown.

    Red grows to the right, green upwards, blue towards the camera, ``(component + 1) / 2``: a wall that faces the
    camera is lilac (128, 128, 255), a floor green, a ceiling magenta.
    """
    parts = np.stack([normals[..., 0], -normals[..., 1], -normals[..., 2]], axis=-1)
    known = np.isfinite(parts).all(axis=-1)
    picture = np.clip((np.where(known[..., None], parts, 0.0) + 1) * 127.5 + 0.5, 0, 255).astype(np.uint8)
    picture[~known] = 0
    return picture


def unit_picture(values: np.ndarray) -> np.ndarray:
    """Grey picture [H, W] uint8 of a map in [0, 1]; NaN is black."""
    return np.clip(np.nan_to_num(values, nan=0.0) * 255.0 + 0.5, 0, 255).astype(np.uint8)


def error_picture(disparity: np.ndarray, truth: np.ndarray, high: float = 5.0) -> np.ndarray:
    """Inferno picture of ``|disparity - truth|`` over (0, ``high``) pixels with its colour bar, RGB uint8."""
    error = np.abs(disparity - truth)
    return with_color_bar(colorize(error, 0.0, high, "inferno", invalid=(40, 60, 90)), 0.0, high, "px", "inferno")
