# SPDX-License-Identifier: Apache-2.0
"""``vision3d nerf fit``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from vision3d.cli.main import main
from vision3d.io.images import write_image
from vision3d.training.nerf.run_folder import load_run

FEW = {
    "field.levels": 2,
    "field.log2_rows": 8,
    "field.coarsest": 4,
    "field.finest": 8,
    "samples": 4,
    "importance_samples": 0,
    "rays": 16,
    "init": 2,
    "early": 1,
    "local": 1,
    "part": 1,
    "full": 1,
    "refine": 1,
}
SET = [argument for key, value in FEW.items() for argument in ("--set", f"{key}={value}")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five crops that move over one picture."""
    picture = np.random.default_rng(0).integers(0, 255, (24, 40, 3), dtype=np.uint8)
    (tmp_path / "images").mkdir()
    for number in range(5):
        write_image(tmp_path / "images" / f"{number}.png", picture[:, number : number + 32])
    return tmp_path / "images"


def test_fit_and_go_on(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["nerf", "fit", str(folder), "--out", str(tmp_path / "run"), "--device", "cpu", "--json", *SET]
    assert main([*arguments, "--hold-out", "4"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["registered"] == 4
    assert report["held_out"] == ["2.png"]
    assert report["finished"]
    assert "4 of 5 images registered, focal length" in captured.err
    run = load_run(tmp_path / "run")
    assert run.focal_length == pytest.approx(report["focal"])
    assert run.schedule["rays"] == 16
    assert run.schedule["pyramid_level"] == 0
    assert run.images_source == str(folder)
    assert main([*arguments, "--hold-out", "4"]) == 0  # finished: nothing is done again
    assert json.loads(capsys.readouterr().out) == report
    assert main(arguments) == 2
    assert "another held-out frames" in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--schedule", "barf", "--max-frames", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["schedule"] == "barf"


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--set", "rays"], "write KEY=VALUE"),
        (["--set", "ray=3"], "did you mean 'rays'"),
        (["--max-frames", "2"], "2 images to fit"),
        (["--hold-out", "1"], "hold_out is 1"),
        (["--schedule", "slow"], "invalid choice"),
    ],
)
def test_wrong_command_lines(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], problem: str
) -> None:
    assert main(["nerf", "fit", str(folder), "--out", str(tmp_path / "run"), *more]) == 2
    message = capsys.readouterr().err
    assert problem in message
    assert message.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_actions_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nerf", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(action in text for action in ("fit", "render", "export", "evaluate"))
