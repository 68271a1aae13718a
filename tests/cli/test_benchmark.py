# SPDX-License-Identifier: Apache-2.0
"""``vision3d benchmark ops``: its table, its JSON object and its errors."""

from __future__ import annotations

import json

import pytest

from vision3d.cli.benchmark import main


def test_json_holds_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--only", "convex", "--seconds", "0.001", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (row,) = report["rows"]
    assert row["op"] == "convex_upsample"
    assert row["forward_ratio"] == pytest.approx(row["forward_loop_ms"] / row["forward_ms"], rel=0.05)
    assert row["difference"] < 1e-4
    assert "torch" in report["machine"]
    assert "minimum" in report["protocol"]


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--only", "regression", "--seconds", "0.001"]) == 0
    assert "disparity_regression" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["--only", "nothing"], ["--threads", "0"], ["--seconds", "-1"]])
def test_wrong_arguments_are_one_line(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "vision3d: error:" in error
