# SPDX-License-Identifier: Apache-2.0
"""The folder protocol on a made-up folder, with a network whose answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vision3d.errors import InputError, UnknownNameError
from vision3d.evaluation.folder import evaluate_folder
from vision3d.io.disparity import write_disparity
from vision3d.io.images import write_image
from vision3d.types import StereoOutput


class Constant(nn.Module):
    """Answers with 6 pixels everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.normalization = nn.Identity()

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> StereoOutput:
        disparity = torch.full_like(left[:, :1], 6.0)
        return StereoOutput(disparity, [disparity])


def write_scene(folder: Path, disparity: np.ndarray, mask: np.ndarray | None = None) -> None:
    folder.mkdir(parents=True)
    height, width = disparity.shape
    texture = np.random.default_rng(0).integers(0, 256, (height, width + 8, 3), dtype=np.uint8)
    write_image(folder / "left.png", texture[:, :width])
    write_image(folder / "right.png", texture[:, 8:])
    write_disparity(folder / "disp0.pfm", disparity)
    if mask is not None:
        write_image(folder / "nonocc.png", np.repeat(mask[..., None], 3, axis=2).astype(np.uint8) * 255)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three scenes of 8 px, 7 px (left half hidden: 2 px) and 6 px, and one without truth."""
    write_scene(tmp_path / "a" / "one", np.full((60, 100), 8.0, np.float32))
    half = np.full((60, 100), 7.0, np.float32)
    half[:, :50] = 2.0
    write_scene(tmp_path / "a" / "two", half, mask=half == 7.0)
    write_scene(tmp_path / "b" / "three", np.full((60, 100), 6.0, np.float32))
    write_scene(tmp_path / "c" / "four", np.full((60, 100), 6.0, np.float32))
    (tmp_path / "c" / "four" / "disp0.pfm").unlink()
    return tmp_path


def test_report(root: Path) -> None:
    seen: list[str] = []
    report = evaluate_folder(Constant(), root, progress=lambda number, total, scene: seen.append(scene))
    assert seen == ["a/one", "a/two", "b/three", "c/four"]
    assert [row["scene"] for row in report["scenes"]] == ["a/one", "a/two", "b/three"]
    assert [row["epe"] for row in report["scenes"]] == [2.0, 2.5, 0.0]
    assert [row["bad1"] for row in report["scenes"]] == [100.0, 50.0, 0.0]
    assert [row["d1"] for row in report["scenes"]] == [0.0, 50.0, 0.0]
    assert report["mean"]["epe"] == pytest.approx(1.5)
    assert report["sets"]["a"]["epe"] == pytest.approx(2.25)
    assert report["scenes"][1]["nonoccluded"]["epe"] == 1.0
    assert report["mean"]["nonoccluded"]["scenes"] == 1
    assert report["mean"]["seconds"] > 0
    assert [entry["scene"] for entry in report["skipped"]] == ["c/four"]
    assert {"model", "scenes", "mean"} <= report.keys()
    assert "baseline" not in report
    json.dumps(report, allow_nan=False)


def test_baseline_uses_the_search_range_of_the_index(root: Path) -> None:
    scene = {"left": "left.png", "right": "right.png", "gt": {"file": "disp0.pfm", "encoding": "pfm"}, "ndisp": 16}
    (root / "index.json").write_text(json.dumps({"a/one": scene}))
    report = evaluate_folder(Constant(), root, exclude=["a/two", "b", "c"], baseline="bm")
    assert report["baseline"]["name"] == "bm"
    assert report["baseline"]["scenes"][0]["epe"] == pytest.approx(0.0, abs=0.1)
    assert report["baseline"]["mean"]["bad1"] < 5


def test_the_baseline_without_a_range_searches_192_pixels_and_finds_nothing_in_small_images(root: Path) -> None:
    report = evaluate_folder(Constant(), root, exclude=["a/two", "b", "c"], baseline="sgbm")
    assert report["baseline"]["scenes"][0]["epe"] == 8.0


def test_errors(root: Path) -> None:
    with pytest.raises(UnknownNameError, match="baseline 'sgmb': did you mean sgbm"):
        evaluate_folder(Constant(), root, baseline="sgmb")
    with pytest.raises(UnknownNameError, match="set or scene"):
        evaluate_folder(Constant(), root, exclude=["nothing"])
    with pytest.raises(InputError, match="no scene with ground truth is left"):
        evaluate_folder(Constant(), root, exclude=["a", "b"])
