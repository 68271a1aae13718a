# SPDX-License-Identifier: Apache-2.0
"""Whole runs of ``vision3d train`` in two and three gloo processes, as torchrun starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_recipe

pytest.importorskip("lightning")
SCRIPT = Path(__file__).with_name("launch.py")
ROOT = SCRIPT.parents[3]
pytestmark = pytest.mark.slow

PLAIN = ["loss.rounds=[]", "optimizer.amsgrad=false", "optimizer.name=sgd", "schedule.name=constant"]
SPARSE = ["communication.hook=gtopk", "communication.density=0.1", "communication.dense_below=0"]
RUNS: dict[str, dict[str, Any]] = {
    "dense": {"set": []},
    "whole": {"set": [*SPARSE, "communication.density=1.0"]},
    "sparse": {"set": SPARSE},
    "half": {"set": [*SPARSE, "trainer.max_steps=2"], "output": "resumed"},
    "resumed": {"set": SPARSE, "more": ["--resume", "auto"]},
    "three": {
        "set": [*SPARSE, "trainer.devices=3", "trainer.max_steps=5"],
        "output": "resumed",
        "more": ["--resume", "auto"],
        "world": 3,
    },
    "lags": {
        "set": [
            "communication.hook=lags",
            "communication.adapt_steps=1",
            "trainer.accumulate=2",
            "trainer.precision=bf16",
            "trainer.sync_batchnorm=true",
            "communication.momentum_correction=0.9",
        ]
    },
    "dense_momentum": {"set": ["optimizer.momentum=0.5"]},
    "fsdp": {"set": ["trainer.strategy=fsdp2", "optimizer.momentum=0.5", "trainer.max_steps=2"]},
    "fsdp_resumed": {
        "set": ["trainer.strategy=fsdp2", "optimizer.momentum=0.5"],
        "output": "fsdp",
        "more": ["--resume", "auto"],
    },
    "nan": {"set": SPARSE, "nan": [1, 3]},
    "nan_skipped": {"set": [*SPARSE, "trainer.non_finite=skip"], "nan": [1, 3]},
    "differ": {"set": SPARSE, "ranks": {"1": ["--set.communication.density=0.2"]}},
    "devices": {"set": ["trainer.devices=1"]},
    "average": {"set": ["trainer.strategy=fsdp2", "trainer.ema_decay=0.9"]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, dict[str, Any]]:
    """All runs, one after the other."""
    recipe = tiny_recipe(
        folder, max_steps=4, devices=2, batch_size=1, checkpoint_every_steps=2, val_every_steps=0, ema_decay=0.0
    )
    plan = []
    for name, run in RUNS.items():
        values = [*PLAIN, f"trainer.output={folder / run.get('output', name)}", *run["set"]]
        arguments = [str(recipe), *(f"--set.{value}" for value in values), *run.get("more", [])]
        plan.append({"arguments": arguments, **{key: run[key] for key in ("nan", "ranks", "world") if key in run}})
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), "2", str(folder / "plan.json")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(lines) == len(RUNS)
    return dict(zip(RUNS, lines, strict=True))


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """The trained parameters (running statistics are those of the first process)."""
    state = load_file(folder / name / "weights.safetensors")
    return {key: value for key, value in state.items() if not key.endswith(("mean", "var", "tracked"))}


def difference(folder: Path, one: str, other: str) -> float:
    first, second = weights(folder, one), weights(folder, other)
    return max(float((first[key] - second[key]).abs().max()) for key in first)


def logs(run: dict[str, Any], codes: list[int]) -> list[str]:
    assert run["codes"] == codes, run["logs"]
    return run["logs"]


def test_the_hook_is_called_on_the_cpu(done: dict[str, dict[str, Any]]) -> None:
    assert [log.splitlines()[-1] for log in logs(done["sparse"], [0, 0])] == ["hook calls: 4"] * 2
    assert [log.splitlines()[-1] for log in logs(done["dense"], [0, 0])] == ["hook calls: 0"] * 2
    assert [log.splitlines()[-1] for log in logs(done["lags"], [0, 0])] == ["hook calls: 4"] * 2  # 8 batches, 4 steps


def test_density_one_trains_as_plain_ddp(done: dict[str, dict[str, Any]], folder: Path) -> None:
    logs(done["whole"], [0, 0])
    assert difference(folder, "whole", "dense") < 1e-6
    logs(done["sparse"], [0, 0])
    assert difference(folder, "sparse", "dense") > 1e-4


def test_resume_is_exact(done: dict[str, dict[str, Any]], folder: Path) -> None:
    logs(done["half"], [0, 0])
    logs(done["resumed"], [0, 0])
    # ``three`` has gone on in the folder since: compare the checkpoint's residuals and the log instead of its weights.
    one, other = (folder / name / "communication" / "step_00000004_rank1.pt" for name in ("sparse", "resumed"))
    first, second = torch.load(one, weights_only=True), torch.load(other, weights_only=True)
    assert first["step"] == second["step"] == 4
    assert set(first["residual"]) == set(second["residual"])
    assert any(value.any() for value in first["residual"].values())
    assert all(torch.equal(value, second["residual"][name]) for name, value in first["residual"].items())


def test_resume_on_another_number_of_processes(done: dict[str, dict[str, Any]]) -> None:
    first = logs(done["three"], [0, 0, 0])[0]
    assert "residuals of 2 processes, 3 now: each takes 1/3 of their sum" in first
    assert "pairs a step: 2 before, 3 now" in first
    assert "step 5/5" in first


def test_fsdp2_trains_as_ddp_and_resumes(done: dict[str, dict[str, Any]], folder: Path) -> None:
    logs(done["fsdp"], [0, 0])
    logs(done["fsdp_resumed"], [0, 0])
    assert difference(folder, "fsdp", "dense_momentum") < 1e-5
    assert difference(folder, "fsdp", "dense") > 1e-4
    assert len(logs(done["average"], [2, 2])[0].splitlines()) <= 3
    assert "keeps no moving average: set trainer.ema_decay: 0" in done["average"]["logs"][0]


def test_a_nan_stops_all_processes_in_its_step_and_names_the_sample(done: dict[str, dict[str, Any]]) -> None:
    for log in logs(done["nan"], [2, 2]):
        message = next(line for line in log.splitlines() if line.startswith("vision3d: error"))
        assert "step 3: process 1: not finite" in message
        assert "scene scene" in message
        assert "hook calls: 3" in log


def test_a_nan_can_be_skipped(done: dict[str, dict[str, Any]], folder: Path) -> None:
    assert "step skipped" in logs(done["nan_skipped"], [0, 0])[0]
    assert all(torch.isfinite(value).all() for value in weights(folder, "nan_skipped").values())


def test_recipes_that_differ_are_found_at_the_start(done: dict[str, dict[str, Any]]) -> None:
    for log in logs(done["differ"], [2, 2]):
        assert "the processes disagree: communication.density is 0.1 in process 0 and 0.2 in process 1" in log


def test_a_wrong_number_of_devices_is_found(done: dict[str, dict[str, Any]]) -> None:
    for log in logs(done["devices"], [2, 2]):
        assert "torchrun has started 2 processes, but trainer.devices x trainer.nodes is 1 x 1" in log


def test_report(done: dict[str, dict[str, Any]], folder: Path) -> None:
    reports = json.loads((folder / "sparse" / "communication.json").read_text(encoding="utf-8"))
    assert [report["rank"] for report in reports] == [0, 1]
    size = sum(value.numel() for value in weights(folder, "sparse").values())
    for report in reports:
        assert report["hook"] == "gtopk"
        assert report["steps"] == 3
        assert report["samples_per_second"] > 0
        assert 0 < report["communication_share"] < 1
        assert report["bytes_per_step"] == 4 + 8 * int(0.1 * size)
        assert (report["joules_per_step"] is None) == (report["energy_missing"] is not None)
    dense = json.loads((folder / "dense" / "communication.json").read_text(encoding="utf-8"))
    assert dense[0]["bytes_per_step"] == 4 * size  # 2 (P-1)/P times 4 bytes
    text = logs(done["sparse"], [0, 0])[0]
    assert "process 1: " in text
    assert "samples/s" in text
