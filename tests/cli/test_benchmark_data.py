# SPDX-License-Identifier: Apache-2.0
"""``vision3d benchmark data``: its figures, its memory run and its errors."""

from __future__ import annotations

import json

import pytest

from vision3d.cli.benchmark import main

SMALL = ["data", "--size", "48x64", "--seconds", "0.01", "--workers", "1"]


def test_figures_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--formats", "pfm", "png", "--memory", "40", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["format"] for row in report["rows"]] == ["pfm", "png"]
    for row in report["rows"]:
        assert row["ours"] > 0
        assert row["ratio"] == pytest.approx(row["ours_ms"] / row["plain_ms"])
    assert report["memory"][-1][0] == 40
    assert report["memory"][-1][1] > 10


@pytest.mark.parametrize("words", [["--formats", "gif"], ["--workers", "0"], ["--size", "9"], ["--memory", "-1"]])
def test_wrong_arguments_are_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
