# SPDX-License-Identifier: Apache-2.0
"""Checks of a stereo pair before it goes into a network: sizes, swapped views, missing rectification, calibration.

Whether the views are swapped or not rectified is judged from ORB matches. The vertical offset of a pair is fitted as
``dy = a + b x + c y`` by random sampling, so that a tilted camera is seen as well as a shifted one; a verdict is given
only where enough matches agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np

from vision3d.errors import InputError

MATCHING_WIDTH = 1280  # larger images are reduced to this width before matching
MIN_MATCHES = 30  # fewer agreeing matches give no verdict
MAX_VERTICAL_OFFSET = 1.5  # pixels; rectified real pairs stay below 0.7
_MIN_SIDE = 64  # pixels; smaller images hold no ORB patch away from their border
_MAX_TILT = 0.15  # pixels of vertical offset a pixel of position
_ONE_PAIR = "a stereo pair has one size, pass the two views of one rectified pair"
_INLIER = 1.5  # pixels from the fitted offset


@dataclass(frozen=True)
class PairGeometry:
    """What the matches of a pair say about it.

    Attributes:
        matches: number of matches that agree on one vertical offset; the other fields mean little where it is small.
        agreement: their share of all matches.
        vertical_offset: median of ``y_right - y_left``, pixels, signed.
        vertical_error: median of its magnitude, pixels.
        disparity: median of ``x_left - x_right``, pixels.
        negative: share of the matches with negative disparity.
        resolution: pixels of the image a pixel of the matched (possibly reduced) image.
    """

    matches: int
    agreement: float = 0.0
    vertical_offset: float = 0.0
    vertical_error: float = 0.0
    disparity: float = 0.0
    negative: float = 0.0
    resolution: float = 1.0


def describe_input(value: object, side: str) -> str:
    """How an error message names an input: its path, or "the left image"."""
    return str(value) if isinstance(value, (str, Path)) else f"the {side} image"


def check_same_size(left: np.ndarray, right: np.ndarray, left_name: str, right_name: str) -> None:
    """Raise InputError, naming both files and sizes, unless both images [H, W, C] have one height and width."""
    if left.shape[:2] != right.shape[:2]:
        sizes = [f"{name} is {a.shape[1]}x{a.shape[0]}" for name, a in ((left_name, left), (right_name, right))]
        raise InputError(f"{sizes[0]} but {sizes[1]}: {_ONE_PAIR}")


def check_same_channels(left: int, right: int, left_name: str, right_name: str) -> None:
    """Raise InputError, naming both files, unless both images have the same number of channels."""
    if left != right:
        raise InputError(f"{left_name} has {left} channels but {right_name} has {right} channels: {_ONE_PAIR}")


def measure_pair(left: np.ndarray, right: np.ndarray) -> PairGeometry:
    """Measure the vertical offset and the sign of the disparity of a pair.

    Args:
        left, right: [H, W, 3] uint8 RGB of one size.
    """
    resolution = max(1.0, left.shape[1] / MATCHING_WIDTH, left.shape[0] / MATCHING_WIDTH)
    matched = _match(_grey(left, resolution), _grey(right, resolution))
    if len(matched) < MIN_MATCHES:
        return PairGeometry(len(matched), resolution=resolution)
    inliers = _fit_vertical_offset(matched)
    picked = matched[inliers]
    if len(picked) == 0:
        return PairGeometry(0, resolution=resolution)
    vertical = (picked[:, 3] - picked[:, 1]) * resolution
    disparity = (picked[:, 0] - picked[:, 2]) * resolution
    return PairGeometry(
        matches=len(picked),
        agreement=len(picked) / len(matched),
        vertical_offset=float(np.median(vertical)),
        vertical_error=float(np.median(np.abs(vertical))),
        disparity=float(np.median(disparity)),
        negative=float(np.mean(disparity < -0.5 * resolution)),
        resolution=resolution,
    )


def pair_warnings(left: np.ndarray, right: np.ndarray, doffs: float = 0.0) -> list[str]:
    """Warnings about a pair that is swapped or not rectified; empty where all is well or nothing can be said.

    Args:
        left, right: [H, W, 3] uint8 RGB of one size.
        doffs: ``cx_right - cx_left`` of the calibration, pixels: disparities down to ``-doffs`` are legal.
    """
    geometry = measure_pair(left, right)
    if geometry.matches < MIN_MATCHES or geometry.agreement < 0.25:
        return []
    warnings = []
    tolerance = max(MAX_VERTICAL_OFFSET, 0.8 * geometry.resolution)
    if geometry.vertical_error > tolerance:
        warnings.append(
            f"the pair does not look rectified: matching points lie {geometry.vertical_error:.1f} px apart vertically "
            f"(right minus left {geometry.vertical_offset:+.1f} px): rectify it first (OpenCV: stereoRectify)"
        )
    shifted = replace(geometry, disparity=geometry.disparity + doffs)
    if shifted.disparity < -1.0 and geometry.negative > 0.75:
        warnings.append(
            f"the pair looks swapped: matching points have a disparity of {geometry.disparity:.1f} px, which must be "
            "positive: exchange the left and the right image"
        )
    return warnings


def _grey(image: np.ndarray, resolution: float) -> np.ndarray:
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    if resolution <= 1.0:
        return grey
    size = (max(1, round(image.shape[1] / resolution)), max(1, round(image.shape[0] / resolution)))
    return cv2.resize(grey, size, interpolation=cv2.INTER_AREA)


def _match(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Mutual nearest ORB matches, [N, 4] as x_left, y_left, x_right, y_right, near one row of the image."""
    if min(left.shape) < _MIN_SIDE:
        return np.zeros((0, 4))
    detector = cv2.ORB.create(1500, fastThreshold=10)
    left_points, left_codes = detector.detectAndCompute(left, None)
    right_points, right_codes = detector.detectAndCompute(right, None)
    if left_codes is None or right_codes is None:
        return np.zeros((0, 4))
    pairs = cv2.BFMatcher(cv2.NORM_HAMMING, crossCheck=True).match(left_codes, right_codes)
    rows = [(*left_points[m.queryIdx].pt, *right_points[m.trainIdx].pt) for m in pairs if m.distance < 80]
    matched = np.array(rows, dtype=np.float64).reshape(-1, 4)
    return matched[np.abs(matched[:, 3] - matched[:, 1]) < max(20.0, 0.08 * left.shape[0])]


def _fit_vertical_offset(matched: np.ndarray, rounds: int = 300) -> np.ndarray:
    """[N] bool: the largest set of matches whose vertical offset is one linear function of the position."""
    generator = np.random.default_rng(0)
    position = np.column_stack([np.ones(len(matched)), matched[:, 0], matched[:, 1]])
    offset = matched[:, 3] - matched[:, 1]
    sample = generator.integers(0, len(matched), size=(rounds, 3))
    systems = position[sample]
    usable = np.abs(np.linalg.det(systems)) > 100.0  # twice the area of the triangle of the three points
    constant = np.column_stack([offset, np.zeros_like(offset), np.zeros_like(offset)])[sample[:, 0]]
    models = constant
    if usable.any():
        tilted = np.linalg.solve(systems[usable], offset[sample[usable]][..., None])[..., 0]
        models = np.concatenate([constant, tilted[(np.abs(tilted[:, 1:]) < _MAX_TILT).all(axis=1)]])
    residual = np.abs(offset[None] - models @ position.T)
    # a tilted model has two more degrees of freedom: it must win by a margin
    score = (residual < _INLIER).sum(axis=1).astype(np.float64)
    score[len(constant) :] *= 0.9
    return residual[int(np.argmax(score))] < _INLIER
