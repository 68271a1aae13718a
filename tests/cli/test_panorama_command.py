# SPDX-License-Identifier: Apache-2.0
"""``vision3d panorama``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from panoramas import box_panorama, picture
from PIL import Image

from vision3d.cli.main import main
from vision3d.models.panorama.spheredepth import spheredepth_tiny


@pytest.fixture
def weights(tmp_path: Path) -> list[str]:
    torch.manual_seed(0)
    torch.save(spheredepth_tiny(level=4, texture=0).state_dict(), tmp_path / "weights.pth")
    return ["--model", "spheredepth_tiny", "--texture", "0", "--weights", str(tmp_path / "weights.pth")]


def test_one_panorama(tmp_path: Path, weights: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(box_panorama(64).image).save(tmp_path / "room.png")
    out = tmp_path / "out"
    assert main(["panorama", str(tmp_path / "room.png"), *weights, "--level", "4", "--out", str(out), "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["mesh_level"] == 4
    assert report["model"] == "spheredepth_tiny"
    assert np.load(report["output"]["depth.npy"]).shape == (64, 128)
    assert all(Path(path).is_file() for path in report["output"].values())
    assert "view.html" in captured.err
    assert main(["view", str(out), "--no-open"]) == 0


def test_several_panoramas_one_of_them_wrong(
    tmp_path: Path, weights: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b").mkdir()
    for path in (tmp_path / "room.png", tmp_path / "b" / "room.png"):
        Image.fromarray(box_panorama(32).image).save(path)
    Image.fromarray(picture(60, 80)).save(tmp_path / "photo.png")
    names = ["room.png", "photo.png", "b/room.png"]
    slim = ["--cloud-format", "none", "--no-mesh", "--no-view"]
    code = main(["panorama", *(str(tmp_path / name) for name in names), *weights, "--level", "4", *slim,
                 "--out", str(tmp_path / "out"), "--json"])  # fmt: skip
    captured = capsys.readouterr()
    reports = json.loads(captured.out)["panoramas"]
    assert code == 2
    assert "equirectangular" in reports[1]["error"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"room", "room_2"}
    assert set(reports[0]["output"]) == {"depth.npy", "depth.png", "distance.png", "faces.npz", "report.json"}


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (["none.png", "--level", "4"], "no such file"),
        (["photo.png", "--level", "4"], "equirectangular"),
        (["photo.png", "--level", "4", "--model", "covonet"], "no network for panoramas"),
        (["photo.png", "--level", "4", "--model", "panoramadepth_tiny"], "level"),
        (["photo.png", "--level", "9"], "level must be"),
        (["photo.png", "--texture", "1"], "weights"),
    ],
)
def test_errors_are_one_line(
    wish: list[str], words: str, tmp_path: Path, weights: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(picture(60, 80)).save(tmp_path / "photo.png")
    arguments = [*weights, "--out", str(tmp_path / "out"), str(tmp_path / wish[0]), *wish[1:]]
    assert main(["panorama", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
