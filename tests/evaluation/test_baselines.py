# SPDX-License-Identifier: Apache-2.0
"""The classical matchers against independently made figures on real images."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from vision3d.errors import ConfigError, InputError, UnknownNameError
from vision3d.evaluation.baselines import match_baseline, search_range
from vision3d.evaluation.metrics import disparity_errors

# Their names in the file of reference figures.
REFERENCE_NAMES = {"bm": "bm", "sgbm": "sgbm_3way", "sgbm_hh": "sgbm_hh_pad"}
CONTRIB = pytest.param(
    "sgbm_wls", marks=pytest.mark.skipif(not hasattr(cv2, "ximgproc"), reason="needs opencv-contrib")
)
ALL = [*REFERENCE_NAMES, CONTRIB]
SCENES = ("middlebury2001/tsukuba", "middlebury2003/cones", "eth3d/playground_1l", "kitti2015/000000_10")


@pytest.mark.parametrize(("pixels", "expected"), [(None, 192), (64, 64), (65, 80), (1, 16), (0.5, 16)])
def test_search_range(pixels: float | None, expected: int) -> None:
    assert search_range(pixels) == expected


@pytest.mark.parametrize("name", ALL)
def test_finds_the_shift_of_a_textured_plane(name: str) -> None:
    texture = np.random.default_rng(0).integers(0, 256, (64, 200, 3), dtype=np.uint8)
    disparity = match_baseline(name, texture[:, :160], texture[:, 9:169], 32)
    assert disparity.shape == (64, 160)
    assert np.median(disparity) == 9.0
    assert np.isfinite(disparity).all()


@pytest.mark.parametrize("name", ALL)
def test_an_image_narrower_than_the_search_range_has_an_answer(name: str) -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 40, 3), dtype=np.uint8)
    assert np.isfinite(match_baseline(name, image, image, 64)).all()


def test_wrong_arguments() -> None:
    image = np.zeros((32, 64, 3), dtype=np.uint8)
    with pytest.raises(UnknownNameError, match="did you mean sgbm"):
        match_baseline("sgm", image, image)
    with pytest.raises(InputError, match="one size"):
        match_baseline("bm", image, image[:, 1:])


def test_the_filter_needs_opencv_contrib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cv2, "ximgproc", raising=False)
    image = np.zeros((32, 64, 3), dtype=np.uint8)
    with pytest.raises(ConfigError, match="opencv-contrib-python-headless"):
        match_baseline("sgbm_wls", image, image, 16)


@pytest.mark.real
@pytest.mark.parametrize("name", REFERENCE_NAMES)
@pytest.mark.parametrize("scene", SCENES)
def test_reproduces_the_reference_figures(name: str, scene: str, shared: Path) -> None:
    from vision3d.datasets.folder import FolderStereo

    root = shared / "data" / "stereo"
    ndisp = json.loads((root / "index.json").read_text())[scene]["ndisp"]
    reference = json.loads((root / "baselines.json").read_text())["scenes"][scene][REFERENCE_NAMES[name]]
    data = FolderStereo(root)
    sample = next(sample for sample in (data[index] for index in range(len(data))) if sample.scene == scene)
    assert sample.disparity is not None
    errors = disparity_errors(match_baseline(name, sample.left, sample.right, ndisp), sample.disparity)
    assert errors["pixels"] == reference["pixels"]
    assert errors["epe"] == pytest.approx(reference["epe"], rel=2e-3)
    for figure in ("bad1", "bad2", "bad3", "d1"):
        assert errors[figure] == pytest.approx(reference[figure], rel=1e-2, abs=0.01)
