# SPDX-License-Identifier: Apache-2.0
"""The figures of ``evaluate --task normals``; oracle: an exact corner."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corner import CornerNetwork, corner_rig, corner_sample
from matcher import Constant

from vision3d.cli import main
from vision3d.datasets.cache import write_pool
from vision3d.errors import InputError, UnknownNameError
from vision3d.evaluation.normals import baseline_normals, evaluate_normals


def evaluate(folder: Path, network: Any = None, **options: Any) -> dict[str, Any]:
    return evaluate_normals(network or CornerNetwork(corner_rig()), "pool", folder, **options)


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    samples = []
    for number in range(2):
        sample = corner_sample(scene=f"corner{number}")
        sample.normals[:3] = 0  # type: ignore[index]
        sample.normals[3:5] *= 1.5  # type: ignore[index]
        samples.append(sample)
    write_pool(tmp_path, samples)
    return tmp_path


def test_an_exact_network_has_no_error_and_invalid_truth_is_counted(pool: Path) -> None:
    report = evaluate(pool)
    pooled = report["pooled"]
    assert pooled["mean"] < 0.1
    assert pooled["median"] < 0.1
    assert pooled["within11.25"] == 100
    assert pooled["invalid_truth"] == 2 * 5 * 128
    assert pooled["pixels"] == 2 * 59 * 128
    assert [row["scene"] for row in report["scenes"]] == ["corner0", "corner1"]
    assert report["disparity"]["epe"] < 1e-3
    assert report["axes"]["wrong"] is False
    assert set(report["baselines"]) == {"plane fitting", "finite differences"}
    assert all(part["pooled"]["median"] < 0.1 for part in report["baselines"].values())


def test_the_angle_of_a_tilted_network(pool: Path) -> None:
    tilted = evaluate(pool, CornerNetwork(corner_rig(), tilt=15.0))
    # both walls turn by the whole angle; the floor's normal is the axis and does not move
    truth = corner_sample().normals[5:]  # type: ignore[index]
    floor = (truth[..., 1] == -1).mean()
    assert 0.05 < floor < 0.45
    assert tilted["pooled"]["median"] == pytest.approx(15.0, abs=0.2)
    assert tilted["pooled"]["mean"] == pytest.approx(15.0 * (1 - floor), abs=0.2)
    assert tilted["pooled"]["within11.25"] == pytest.approx(100 * floor, abs=0.5)
    assert tilted["pooled"]["within22.5"] == 100
    assert tilted["pooled"]["image_mean"] == pytest.approx(tilted["pooled"]["mean"], abs=1e-3)


def test_a_network_without_normals_is_measured_by_plane_fitting(pool: Path) -> None:
    report = evaluate(pool, Constant(10.0))
    assert report["normals_from"] == "plane fitting"
    assert report["pooled"]["mean"] == report["baselines"]["plane fitting"]["pooled"]["mean"]
    assert report["pooled"]["mean"] > 20  # everything faces the camera in its answer


def test_a_network_without_disparity_is_measured_by_its_normals_alone(pool: Path) -> None:
    network = CornerNetwork(corner_rig())
    network.stage_one_name = ""
    network.register_forward_hook(
        lambda *call: replace(call[-1], disparity=torch.full_like(call[-1].disparity, np.nan))
    )
    report = evaluate(pool, network)
    assert report["pooled"]["mean"] < 0.1
    assert report["normals_from"] == "network"
    assert report["disparity"] is None
    assert report["baselines"] == {}


def test_wrong_axes_are_reported(tmp_path: Path) -> None:
    sample = corner_sample()
    write_pool(tmp_path, [replace(sample, normals=sample.normals * np.float32([1, -1, -1]))])
    axes = evaluate(tmp_path)["axes"]
    assert axes["wrong"]
    assert axes["best"] == ["x", "-y", "-z"]
    assert "y and z turned around" in axes["message"]


def test_left_out_truth_gives_a_warning_and_a_set_without_any_an_error(tmp_path: Path) -> None:
    bad, good = corner_sample(scene="bad"), corner_sample(scene="good")
    write_pool(tmp_path / "one", [replace(bad, normals=bad.normals * 2), good])
    report = evaluate(tmp_path / "one")
    assert report["pooled"]["pixels"] == 64 * 128
    assert [text.partition(":")[0] for text in report["warnings"]] == ["bad"]
    assert "100 % of the true normals" in report["warnings"][0]
    write_pool(tmp_path / "all", [replace(bad, normals=bad.normals * 2)])
    with pytest.raises(InputError, match=r"no pixel of any scene \(1\) has a valid true normal"):
        evaluate(tmp_path / "all")


@pytest.mark.parametrize(("missing", "reason"), [("normals", "no true normals"), ("rig", "no calibration")])
def test_sets_without_normals_or_calibration_are_refused(tmp_path: Path, missing: str, reason: str) -> None:
    write_pool(tmp_path, [replace(corner_sample(), **{missing: None})])
    with pytest.raises(InputError, match=reason):
        evaluate(tmp_path)


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError):
        evaluate_normals(Constant(1.0), "dtu")
    with pytest.raises(UnknownNameError):
        baseline_normals("guess", np.ones((4, 4)), corner_rig(), 2)


def test_limit_and_exclude(pool: Path) -> None:
    assert len(evaluate(pool, limit=1)["scenes"]) == 1
    assert evaluate(pool, exclude=["corner0"])["scenes"][0]["scene"] == "corner1"


def test_the_command(pool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["evaluate", "--task", "normals", "--dataset", "pool", "--root", str(pool), "--limit", "1"]
    assert main.main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"] == "covonet"
    assert report["normals_from"] == "plane fitting"
    assert main.main(arguments) == 0
    assert "split all, 1 scene measured" in " ".join(capsys.readouterr().out.split())
    assert main.main([*arguments, "--baseline", "bm"]) == 2
    assert "--baseline does not go with --task normals" in capsys.readouterr().err
    assert main.main(["evaluate", "--task", "normals"]) == 2
    assert "--dataset irs" in capsys.readouterr().err
