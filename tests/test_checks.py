# SPDX-License-Identifier: Apache-2.0
"""Checks of a pair: real rectified pairs pass, swapped and shifted ones are caught."""

from __future__ import annotations

import json
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from vision3d.checks import check_same_channels, check_same_size, measure_pair, pair_warnings
from vision3d.errors import InputError
from vision3d.io.images import read_image


def textured(height: int = 300, width: int = 500, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).integers(0, 255, (height // 4, width // 4, 3), dtype=np.uint8)
    return cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)


def pair(disparity: int = 12, vertical: int = 0) -> tuple[np.ndarray, np.ndarray]:
    wide = textured(340, 600)
    return wide[20:320, 50:550], wide[20 - vertical : 320 - vertical, 50 + disparity : 550 + disparity]


def test_a_good_pair_is_measured_and_passes() -> None:
    left, right = pair(12)
    geometry = measure_pair(left, right)
    assert geometry.matches > 100
    assert geometry.disparity == pytest.approx(12, abs=0.5)
    assert geometry.vertical_error < 0.5
    assert pair_warnings(left, right) == []


def test_swapped_pair_is_named() -> None:
    left, right = pair(12)
    (warning,) = pair_warnings(right, left)
    assert "swapped" in warning
    assert "exchange" in warning


@pytest.mark.parametrize("vertical", [3, -3, 12])
def test_vertical_shift_is_measured_with_its_sign(vertical: int) -> None:
    left, right = pair(12, vertical)
    (warning,) = pair_warnings(left, right)
    assert f"{abs(vertical)}.0 px apart" in warning
    assert f"{vertical:+d}.0 px" in warning
    assert "rectify" in warning


def test_rolled_camera_is_caught() -> None:
    left, right = pair(12)
    turn = cv2.getRotationMatrix2D((250, 150), 2.0, 1)
    rolled = cv2.warpAffine(right, turn, (500, 300), borderMode=cv2.BORDER_REFLECT)
    assert "rectified" in pair_warnings(left, rolled)[0]


def test_offset_of_the_principal_points_makes_negative_disparities_legal() -> None:
    left, right = pair(-12)
    assert "swapped" in pair_warnings(left, right)[0]
    assert pair_warnings(left, right, doffs=20.0) == []


@pytest.mark.parametrize("shape", [(1, 1, 3), (40, 900, 3), (200, 200, 3), (2000, 64, 3)])
def test_nothing_is_said_without_texture(shape: tuple[int, int, int]) -> None:
    assert pair_warnings(np.full(shape, 90, np.uint8), np.full(shape, 90, np.uint8)) == []


def test_unrelated_images_give_no_verdict() -> None:
    assert pair_warnings(textured(seed=1), textured(seed=2)) == []


def test_sizes_and_channels_are_named() -> None:
    with pytest.raises(InputError, match=r"a\.png is 6x4 but b\.png is 5x4"):
        check_same_size(np.zeros((4, 6, 3)), np.zeros((4, 5, 3)), "a.png", "b.png")
    with pytest.raises(InputError, match=r"a\.png has 3 channels but b\.png has 1 channels"):
        check_same_channels(3, 1, "a.png", "b.png")


@pytest.mark.real
def test_all_real_pairs(shared: Path) -> None:
    root = shared / "data" / "stereo"
    index = json.loads((root / "index.json").read_text(encoding="utf-8"))
    assert len(index) >= 32
    slowest = 0.0
    for scene, entry in index.items():
        left, right = read_image(root / scene / entry["left"]), read_image(root / scene / entry["right"])
        start = time.process_time()
        assert pair_warnings(left, right) == [], scene
        slowest = max(slowest, time.process_time() - start)
        assert any("swapped" in text for text in pair_warnings(right, left)), scene
        (warning,) = pair_warnings(left, np.roll(right, 3, axis=0))
        assert "rectified" in warning, scene
    assert slowest < 0.5  # seconds of the processor, the largest image has 1.4 megapixels
