# SPDX-License-Identifier: Apache-2.0
"""``vision3d nerf render``, ``export`` and ``evaluate`` on a saved run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from radiance_runs import exact_run, write_images

from vision3d.cli.main import main
from vision3d.io.colmap import read_colmap
from vision3d.io.images import read_image
from vision3d.models.nerf.cfnerf import make_field
from vision3d.radiance_export import export_run
from vision3d.training.nerf.run_folder import save_run


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run of a coloured fog with true cameras, its images, and a reference that knows all frames."""
    run = exact_run(held_out=(3,))
    images = tmp_path / "scene"
    write_images(run, images)
    export_run(exact_run(held_out=()), images, ["colmap"])
    torch.manual_seed(0)
    run.model_options["rendering"]["samples"] = 24
    run.model.field = make_field("relu", run.model_options["field_options"])
    with torch.no_grad():
        run.model.field.sigma_layers[0].bias.fill_(3.0)
    save_run(run, tmp_path / "run")
    return tmp_path / "run"


def test_render(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["nerf", "render", str(saved), "--out", str(tmp_path / "views"), "--size", "16x24"]
    assert main([*arguments, "--views", "path", "--count", "4", "--video", "--depth", "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["frames"] == ["path_0000", "path_0001", "path_0002", "path_0003"]
    assert report["size"] == [16, 24]
    assert Path(report["video"]).is_file()
    assert read_image(tmp_path / "views/path_0003.png").shape == (16, 24, 3)
    assert read_image(tmp_path / "views/path_0003_depth.png").shape == (16, 24, 3)
    assert "4 views of 24x16" in captured.err
    assert main([*arguments, "--views", "held-out"]) == 0
    assert (tmp_path / "views/0003.png").is_file()
    assert capsys.readouterr().out == ""


def test_export(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["nerf", "export", str(saved), "--out", str(out), "--json", "--format", "colmap-binary", "images",
                 "transforms", "depth", "cloud", "page"]) == 0  # fmt: skip
    report = json.loads(capsys.readouterr().out)
    assert set(report["files"]) == {"colmap-binary", "images", "transforms", "depth", "cloud", "page"}
    assert all(Path(path).exists() for path in report["files"].values())
    assert len(read_colmap(out / "sparse").images) == 7
    assert report["points"] > 1000
    assert main(["view", str(out), "--no-open"]) == 0


def test_evaluate(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = str(tmp_path / "scene")
    arguments = ["nerf", "evaluate", str(saved), "--reference", scene, "--refine-steps", "2", "--refine-rays", "64"]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["cameras"]["ate_rmse"] == pytest.approx(0, abs=1e-5)
    assert [row["poses"] for row in report["views"]] == ["fitted", "interpolated", "reference", "refined"]
    assert report["refinement"]["steps"] == 2
    assert main([*arguments, "--no-refinement", "--json", str(tmp_path / "figures.json")]) == 0
    table = capsys.readouterr().out
    written = json.loads((tmp_path / "figures.json").read_text())
    assert len(written["views"]) == 3
    for words in ("ATE RMSE", "between the neighbours", "reference, moved by Sim(3)", "test-time optimisation"):
        assert words in table
    assert f"{np.mean([row['psnr'] for row in written['views'][0]['per_frame']]):.2f}" in table
    assert main(["nerf", "evaluate", str(saved), "--reference", scene, "--no-views", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["views"] == []


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (["render", "nowhere", "--out", "x"], "no radiance field"),
        (["export", "nowhere", "--out", "x"], "no radiance field"),
        (["evaluate", "nowhere"], "no radiance field"),
        (["evaluate", "run", "--no-views"], "add --reference"),
        (["evaluate", "run", "--reference", "run"], "no reference poses"),
        (["evaluate", "run", "--images", "run"], "does not hold the images"),
        (["export", "run", "--out", "x", "--format", "obj"], "invalid choice"),
        (["export", "run", "--out", "run/run.json", "--format", "colmap"], "is a file"),
        (["render", "run", "--out", "x", "--views", "path", "--rate", "0", "--count", "1", "--video"], "a second"),
    ],
)
def test_errors_are_one_line(
    wish: list[str],
    words: str,
    saved: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["nerf", *wish]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
