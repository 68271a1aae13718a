# SPDX-License-Identifier: Apache-2.0
"""The arguments of ``vision3d train``; whole runs are tested in tests/training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from vision3d.cli.main import main
from vision3d.cli.train import main as script
from vision3d.training import config, runner


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], str | None]]:
    """Recipe, overrides and checkpoint of each call instead of a training."""
    seen: list[tuple[str, list[str], str | None]] = []

    def load(path: str, overrides: Sequence[str]) -> tuple[str, list[str]]:
        return path, list(overrides)

    def train(recipe: tuple[str, list[str]], resume: str | None) -> Path:
        seen.append((*recipe, resume))
        return Path("weights")

    monkeypatch.setattr(config, "load_config", load)
    monkeypatch.setattr(runner, "train", train)
    return seen


@pytest.mark.parametrize(
    "arguments",
    [
        ["r.yaml", "--set.a.b=1", "--set", "c=[2, 3]", "--resume", "auto"],
        ["--set.a.b=1", "--set", "c=[2, 3]", "--resume", "auto", "r.yaml"],
        ["--resume=auto", "--set=a.b=1", "r.yaml", "--set.c=[2, 3]"],
    ],
)
def test_overrides_stand_anywhere(arguments: list[str], calls: list[object]) -> None:
    assert main(["train", *arguments]) == 0
    assert script(arguments) == 0
    assert calls == [(Path("r.yaml"), ["a.b=1", "c=[2, 3]"], "auto")] * 2


def test_a_value_may_hold_any_text(calls: list[object]) -> None:
    assert main(["train", "r.yaml", "--set.model.pretrained=--set.x=-1"]) == 0
    assert calls == [(Path("r.yaml"), ["model.pretrained=--set.x=-1"], None)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: CONFIG"),
        (["r.yaml", "--resum", "auto"], "unrecognized arguments: --resum auto"),
        (["r.yaml", "--set"], "--set: expected one argument"),
        (["r.yaml", "b.yaml"], "unrecognized arguments: b.yaml"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], message: str, calls: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("vision3d: error: ")
    assert message in captured.err
    assert captured.err.endswith("(see vision3d train --help)\n")
    assert calls == []


def test_help_lists_the_options(calls: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["r.yaml", "-h"]):
        assert main(["train", *arguments]) == 0
        shown = capsys.readouterr().out
        assert "usage: vision3d train" in shown
        assert all(name in shown for name in ("CONFIG", "--set", "--resume"))
    assert calls == []
