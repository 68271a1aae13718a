# SPDX-License-Identifier: Apache-2.0
"""Evaluation of panorama networks, and what rotations of the camera do to their answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from panoramas import RedIsDepth, RowIsDepth, box_panorama

from vision3d.cli.main import main
from vision3d.datasets.panorama_pool import write_panorama_pool
from vision3d.datasets.toy_panorama import write_panorama_tree
from vision3d.errors import InputError, UnknownNameError
from vision3d.evaluation import panorama_rotations
from vision3d.evaluation.panorama_metrics import PanoramaMetrics
from vision3d.evaluation.panorama_rotations import (
    measure_rotations,
    rotation_report,
    rotation_table,
    seam_step,
    write_rotation_table,
)
from vision3d.evaluation.panoramas import evaluate_panoramas, predict_sample
from vision3d.geometry.panorama_rotation import rotation_matrix
from vision3d.models.panorama.spheredepth import spheredepth_tiny
from vision3d.types import PanoramaSample

CPU = torch.device("cpu")


def red_room(height: int = 64) -> PanoramaSample:
    """A panorama whose red channel tells its depth, as ``RedIsDepth`` reads it."""
    sample = box_panorama(height)
    codes = np.clip(np.rint((sample.depth - 1) / 4 * 255), 0, 255).astype(np.uint8)
    return replace(sample, image=np.dstack([codes, sample.image[..., 1:]]))


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    write_panorama_pool(tmp_path / "pool", [replace(red_room(), scene=name) for name in "ab"])
    return tmp_path / "pool"


def test_figures_are_those_of_the_metrics(pool: Path) -> None:
    report = evaluate_panoramas(RedIsDepth(), "panorama_pool", pool, height=64)
    sample, metrics = red_room(), PanoramaMetrics()
    expected = metrics.update(1 + 4 * (sample.image[..., 0] / np.float32(255)), sample.depth)
    assert [row["scene"] for row in report["scenes"]] == ["a", "b"]
    for name in ("abs_rel", "rmse", "delta1", "sphere_abs_rel"):
        assert report["mean"][name] == pytest.approx(expected[name], rel=1e-4)
    assert report["mean"]["abs_rel"] < 0.01
    assert report["mean"]["images"] == 2
    assert report["protocol"]["name"] == "all"
    assert report["warnings"] == []
    assert json.dumps(report)


def test_median_alignment_removes_the_scale(pool: Path) -> None:
    class Twice(RedIsDepth):
        def forward(self, image: torch.Tensor):
            output = super().forward(image)
            return replace(output, depth=2 * output.depth)

    plain, aligned = (
        evaluate_panoramas(Twice(), "panorama_pool", pool, height=64, alignment=name)["mean"]["abs_rel"]
        for name in ("none", "median")
    )
    assert plain == pytest.approx(1, abs=0.02)
    assert aligned < 0.02
    with pytest.raises(InputError, match="alignment"):
        evaluate_panoramas(Twice(), "panorama_pool", pool, alignment="scale")


def test_public_sets_have_their_protocol_and_wrong_units_are_said(tmp_path: Path) -> None:
    write_panorama_tree("stanford2d3d", tmp_path / "s")
    report = evaluate_panoramas(RowIsDepth(), "stanford2d3d", tmp_path / "s", split="all")
    assert report["protocol"]["name"] == "hohonet"
    assert len(report["scenes"]) == 3
    write_panorama_tree("panorama_list", tmp_path / "l")
    options: dict[str, object] = {"list_file": "list.csv"}
    assert (
        "millimetres"
        in evaluate_panoramas(RowIsDepth(), "panorama_list", tmp_path / "l", options=options)["warnings"][0]
    )
    options["depth_scale"] = 0.001
    assert evaluate_panoramas(RowIsDepth(), "panorama_list", tmp_path / "l", options=options)["warnings"] == []


def test_unusable_sets(pool: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError):
        evaluate_panoramas(RowIsDepth(), "kitti2015", pool)
    with pytest.raises(UnknownNameError, match="unifuse"):
        evaluate_panoramas(RowIsDepth(), "panorama_pool", pool, protocol="unifus")
    with pytest.raises(InputError, match="no end"):
        evaluate_panoramas(RowIsDepth(), "synthetic_panoramas")


def test_an_answer_that_turns_along_changes_by_resampling_alone() -> None:
    rotations = {"yaw": rotation_matrix(yaw=90), "pitch": rotation_matrix(pitch=90)}
    network = RedIsDepth()
    rows, step = measure_rotations(
        lambda sample: predict_sample(network, sample, CPU, 64), [red_room()], "red", rotations
    )
    yaw, pitch = rows
    assert yaw.change == pytest.approx(0, abs=1e-4)
    assert yaw.resampling == 0
    assert 0 < pitch.change < 3
    assert pitch.resampling == pytest.approx(pitch.change, rel=0.5)
    assert pitch.truth_after < 0.03
    assert step < 2


def test_an_answer_of_the_row_does_not_turn_with_a_pitch() -> None:
    network = RowIsDepth()
    rows, _ = measure_rotations(lambda sample: predict_sample(network, sample, CPU), [box_panorama(64)], "row")
    change = {row.rotation: row.change for row in rows}
    assert change["yaw 45"] == pytest.approx(0, abs=1e-4)
    assert change["pitch 90"] > change["pitch 45"] > change["pitch 15"] > 1
    poles = {row.rotation: row.poles for row in rows}
    assert poles["roll 90"] > change["roll 90"]
    with pytest.raises(InputError, match="no panorama"):
        measure_rotations(lambda sample: sample.depth, [])


def test_a_break_at_the_border_is_seen() -> None:
    ramp = np.tile(np.exp(np.linspace(0, 1, 64)), (32, 1))
    assert seam_step(ramp) == pytest.approx(63)
    wave = np.tile(np.exp(np.sin(np.arange(64) * 2 * np.pi / 64)), (32, 1))
    assert seam_step(wave) == pytest.approx(np.pi / 2, rel=0.05)  # the steepest step of a sine by its mean one


def test_tables_are_markdown(tmp_path: Path) -> None:
    rows, step = measure_rotations(
        lambda sample: np.asarray(sample.image[..., 0], np.float32) + 1, [box_panorama(16)], "x"
    )
    write_rotation_table(tmp_path / "t.md", rows, {"x": step})
    text = (tmp_path / "t.md").read_text()
    assert text == rotation_table(rows, {"x": step})
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(rows)
    assert len({line.count("|") for line in table}) == 1
    assert len(rotation_report(rows, {"x": step})["rows"]) == len(rows)


def test_the_commands(pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    torch.save(spheredepth_tiny().state_dict(), tmp_path / "weights.pth")
    common = ["--dataset", "panorama_pool", "--root", str(pool), "--limit", "1"]
    weights = ["--model", "spheredepth_tiny", "--weights", str(tmp_path / "weights.pth")]
    assert main(["evaluate", *common, *weights, "--alignment", "median", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["task"] == "panorama"
    assert report["protocol"]["alignment"] == "median"
    assert main(["evaluate", *common, *weights]) == 0
    assert "mean, per area" in capsys.readouterr().out
    for wrong in (["--scale", "0.5"], ["--baseline", "bm"], ["--confidence"]):
        assert main(["evaluate", *common, *weights, *wrong]) == 2
        assert "panoramas" in capsys.readouterr().err
    assert main(["evaluate", "--dataset", "folder", "--task", "panorama"]) == 2
    assert main(["evaluate", "--dataset", "folder", "--root", str(pool), "--height", "64"]) == 2
    capsys.readouterr()
    model = ["--model", f"spheredepth_tiny={tmp_path / 'weights.pth'}", "--out", str(tmp_path / "t.md")]
    assert main(["benchmark", "rotation", *common, *model, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 8
    assert "| spheredepth_tiny | pitch 90 |" in (tmp_path / "t.md").read_text()


def test_two_checkpoints_of_a_network_keep_apart(
    pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panorama_rotations, "ROTATIONS", {"yaw": rotation_matrix(yaw=90)})
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        torch.save(spheredepth_tiny().state_dict(), tmp_path / f"{seed}.pth")
        models += ["--model", f"spheredepth_tiny={tmp_path / f'{seed}.pth'}"]
    assert main(["benchmark", "rotation", "--dataset", "panorama_pool", "--root", str(pool), "--limit", "1",
                 *models, "--json"]) == 0  # fmt: skip
    report = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in report["rows"]] == models[1::2]
    assert list(report["seam_step"]) == models[1::2]


@pytest.mark.real
def test_the_sample_panoramas_are_read(shared: Path) -> None:
    root = shared / "data" / "pano_sample" / "synthetic_room"
    report = evaluate_panoramas(RowIsDepth(), "stanford2d3d", root, split="all")
    assert len(report["scenes"]) == 2
    assert report["warnings"] == []
    assert 0.9 < report["mean"]["density"] / 100 <= 1
