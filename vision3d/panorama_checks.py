# SPDX-License-Identifier: Apache-2.0
"""Is a picture an equirectangular panorama, and which faults of cropping does it have?

The left and right borders of a whole turn continue each other, and the first and last row show one point each. Limits
were set on real panoramas and on ordinary photographs: a border counts as broken if it is 1.4 times as sharp as the
sharpest hundredth of the columns; the poles count as varied if both rows vary more than 0.35 times as much as the usual
row, or one of them more than 1.2 times.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import cv2
import numpy as np

from vision3d.errors import InputError

MIN_ROWS = 16
_STRETCH = 0.02  # of the width; up to it the sides are taken for rounded
_WIDEST = 4.2  # times the height; beyond it less than 43 degrees are seen
_BLACK = 8  # codes
_LEAST_CAP = 0.01  # of the height
_VARIED, _ONE_VARIED = 0.35, 1.2  # of the usual variation of a row


@dataclass
class CheckedPanorama:
    """A picture as a whole panorama.

    Attributes:
        image: [H, 2H, 3] uint8.
        known: [H, 2H] bool, False where the picture shows nothing (cut or black caps).
        warnings: what was found and done, one sentence each.
    """

    image: np.ndarray
    known: np.ndarray
    warnings: list[str] = field(default_factory=list)


def check_panorama_image(image: np.ndarray, name: str, *, strict: bool = True) -> CheckedPanorama:
    """Turn a picture into a whole panorama of 2:1.

    Sides that are rounded are resampled; a panorama without its upper and lower caps is put into the middle of a whole
    one, where the caps are unknown; black caps are unknown as well.

    Args:
        image: [H, W, 3] uint8.
        name: how messages call it.
        strict: refuse pictures that cannot be panoramas; False: warn.

    Raises:
        InputError: no panorama: too small, not a full turn, two panoramas, fisheye circles, an ordinary picture, black.
    """
    height, width = image.shape[:2]
    found: list[str] = []
    if height < MIN_ROWS or width < 2 * MIN_ROWS:
        raise InputError(f"{name}: {width}x{height} is too small for a panorama: at least {2 * MIN_ROWS}x{MIN_ROWS}")
    if not (image > _BLACK).any():
        raise InputError(f"{name}: the picture is black, there is nothing to see: check the file")
    whole = _whole(image, name, found)
    _refuse_layouts(whole, name)
    wide = width > (2 + 2 * _STRETCH) * height
    doubt, sure = _doubt(image, poles=not wide)
    if doubt:
        if strict and (sure or wide):
            raise InputError(
                f"{name}: is no equirectangular panorama: {doubt}; pass one of 2:1, or run all the same (--force, or "
                "check_image=False)"
            )
        found.append(f"{doubt}: is this a whole equirectangular panorama?")
    known = np.ones(whole.shape[:2], dtype=bool)
    for rows, place in zip(_black_caps(whole), ("top", "bottom"), strict=True):
        if rows:
            known[slice(None, rows) if place == "top" else slice(-rows, None)] = False
            found.append(f"{rows} rows at the {place} show nothing: the depth there is unknown")
    return _filled(whole, known, height, width, found)


def _whole(image: np.ndarray, name: str, found: list[str]) -> np.ndarray:
    """The picture as 2:1, with black caps where it lacks some."""
    height, width = image.shape[:2]
    ratio = width / height
    if ratio == 2:
        return image
    target = round(width / 2)
    if abs(width - 2 * height) <= _STRETCH * width:
        found.append(f"{width}x{height} is not 2:1: resampled to {2 * target}x{target}")
        return cv2.resize(image, (2 * target, target), interpolation=cv2.INTER_AREA)
    halves = (
        _alike(image[: height // 2], image[height - height // 2 :]),
        _alike(image[:, : width // 2], image[:, width - width // 2 :]),
    )
    if 0.9 < ratio < 1.1 and halves[0]:
        raise InputError(f"{name}: two panoramas one above the other (stereo): pass its upper or lower half")
    if 3.8 < ratio < 4.2 and halves[1]:
        raise InputError(f"{name}: two panoramas side by side (stereo): pass its left or right half")
    if not 2 < ratio <= _WIDEST:
        raise InputError(
            f"{name}: {width}x{height} is no equirectangular panorama, which is twice as wide as high and shows a full "
            "turn: convert it (cube maps and fisheye pictures too), or pad what is missing"
        )
    top = (target - height) // 2
    padded = np.zeros((target, 2 * target, 3), dtype=np.uint8)
    padded[top : top + height] = image if width == 2 * target else cv2.resize(image, (2 * target, height))
    found.append(
        f"{width}x{height} is wider than 2:1: taken for a full turn without its caps, the horizon in the middle"
    )
    return padded


def _alike(one: np.ndarray, two: np.ndarray) -> bool:
    small = [cv2.resize(part, (64, 32), interpolation=cv2.INTER_AREA).astype(np.float32) for part in (one, two)]
    return bool(np.abs(small[0] - small[1]).mean() < 0.35 * max(float(small[0].std()), 1.0))


def _refuse_layouts(image: np.ndarray, name: str) -> None:
    """Refuse two fisheye circles: black corners of both halves, while the rows in between are not black."""
    height = image.shape[0]
    size = max(1, height // 12)
    dark = image.max(axis=2) <= _BLACK
    corners = [
        half[rows, columns].mean()
        for half in (dark[:, :height], dark[:, height:])
        for rows in (slice(None, size), slice(-size, None))
        for columns in (slice(None, size), slice(-size, None))
    ]
    middle = dark[:size, height // 2 - size : height // 2 + size].mean()
    if min(corners) > 0.9 and middle < 0.5:
        raise InputError(f"{name}: shows two fisheye circles: stitch them to an equirectangular panorama first")


def _doubt(image: np.ndarray, poles: bool) -> tuple[str, bool]:
    """What speaks against an equirectangular panorama ("": nothing), and whether that is sure.

    Args:
        image: [H, W, 3] uint8.
        poles: it claims to reach them.
    """
    rows = image.max(axis=(1, 2)) > _BLACK
    picture = image[rows].astype(np.float32)
    if len(picture) < MIN_ROWS // 2:
        return "", False
    height = len(picture)
    middle = picture[height // 6 : height - height // 6]
    seam = np.abs(middle[:, 0] - middle[:, -1]).mean()
    steps = np.abs(np.diff(middle, axis=1)).mean(axis=(0, 2))
    broken = seam > max(1.4 * np.percentile(steps, 99), 12.0)
    spread = picture.std(axis=1).mean(axis=1)
    usual = max(float(np.median(spread)), 1.0)
    ends = [float(spread[row]) / usual for row in (0, -1) if poles and rows[row]]
    varied = len(ends) == 2 and min(ends) > _VARIED
    if broken and varied:
        return "its left and right borders do not continue each other, and its first and last row vary", True
    if broken:
        return "its left and right borders do not continue each other", False
    if varied:
        return "its first and last row, one point each on the sphere, vary much", False
    if max(ends, default=0.0) > _ONE_VARIED:
        return "its first or last row, one point on the sphere, varies much", False
    return "", False


def _black_caps(image: np.ndarray) -> tuple[int, int]:
    """Black rows at the top and at the bottom; 0 below a hundredth of the height."""
    black = (image.max(axis=2) <= _BLACK).mean(axis=1) > 0.99
    least = max(1, round(_LEAST_CAP * len(black)))
    lit = np.flatnonzero(~black)
    caps = (int(lit[0]), int(len(black) - 1 - lit[-1])) if len(lit) else (0, 0)
    return tuple(rows if rows >= least else 0 for rows in caps)  # type: ignore[return-value]


def _filled(image: np.ndarray, known: np.ndarray, height: int, width: int, found: list[str]) -> CheckedPanorama:
    """Repeat the outermost known row into unknown caps, so that the network sees no black ceiling."""
    rows = np.flatnonzero(known.any(axis=1))
    if len(rows) == len(known):
        return CheckedPanorama(image, known, found)
    nearest = np.clip(np.arange(len(known)), rows[0], rows[-1])
    return CheckedPanorama(np.ascontiguousarray(image[nearest]), known, found)
