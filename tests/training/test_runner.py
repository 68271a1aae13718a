# SPDX-License-Identifier: Apache-2.0
"""Whole runs of a tiny network: exact resume after SIGKILL, two processes, moving average, non-finite values."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import Tiny, tiny_recipe

pytest.importorskip("lightning")
from vision3d.cli.train import main
from vision3d.errors import ConfigError, OutputError, WeightsError
from vision3d.training.callbacks import preview, read_metrics
from vision3d.training.config import TrainConfig, load_config
from vision3d.training.runner import train
from vision3d.training.stereo import NonFiniteError, error_sums, metrics_from_sums

SCRIPT = Path(__file__).with_name("tiny.py")
ROOT = SCRIPT.parents[2]


def command(recipe: Path, *arguments: str, kill_at: int | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if kill_at is not None:
        environment["KILL_AT"] = str(kill_at)
    parts = [sys.executable, str(SCRIPT), str(recipe), *arguments]
    return subprocess.run(parts, env=environment, capture_output=True, text=True, timeout=300, check=False)


def rows(folder: Path) -> list[dict[str, str]]:
    """The metrics without the times."""
    return [
        {key: value for key, value in row.items() if key != "seconds"} for row in read_metrics(folder / "metrics.csv")
    ]


def recipe_in(folder: Path, *overrides: str, **trainer: object) -> TrainConfig:
    return load_config(tiny_recipe(folder, **trainer), overrides)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train(recipe_in(folder))
    torch.set_num_threads(threads)
    return folder / "run"


def test_outputs(whole: Path) -> None:
    written = rows(whole)
    assert [int(row["step"]) for row in written if row["split"] == "train"] == list(range(1, 25))
    assert [int(row["step"]) for row in written if row["split"] == "validation"] == [6, 12, 18, 24]
    assert all(np.isfinite(float(row["loss"])) for row in written if row["split"] == "train")
    rates = [float(row["lr"]) for row in written if row["split"] == "train"]
    assert rates[:12] == [0.01] * 5 + [0.005] * 5 + [0.01] * 2  # halved each 5 steps, anew in the second round
    assert {path.name for path in whole.glob("*.*")} >= {"config.yaml", "last.ckpt", "best.ckpt", "weights.safetensors"}
    assert len(list((whole / "images").glob("*.png"))) == 8
    assert not list(whole.glob(".*"))
    best = torch.load(whole / "best.ckpt", weights_only=True)
    errors = {int(row["step"]): float(row["epe"]) for row in written if row["split"] == "validation"}
    assert errors[best["global_step"]] == min(errors.values())


def test_exported_weights_are_the_average(whole: Path) -> None:
    exported = load_file(whole / "weights.safetensors")
    state = torch.load(whole / "last.ckpt", weights_only=True)["state_dict"]
    model = Tiny()
    model.load_state_dict(exported)
    assert all(torch.equal(value, state[f"average.{name}"]) for name, value in exported.items())
    assert not torch.equal(exported["first.weight"], state["model.first.weight"])


@pytest.mark.slow
def test_resume_after_sigkill_is_exact(whole: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    # Killed in step 8 (last checkpoint: step 6, written after a validation), then in step 17 (step 15, second round).
    for arguments, forwards in (((), 8), (("--resume", "auto"), 11)):
        killed = command(recipe, *arguments, kill_at=forwards)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not (tmp_path / "run" / "weights.safetensors").exists()
    resumed = command(recipe, "--resume", "auto")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == ""
    assert rows(tmp_path / "run") == rows(whole)
    want, got = (load_file(folder / "weights.safetensors") for folder in (whole, tmp_path / "run"))
    assert all(torch.equal(value, got[name]) for name, value in want.items())


@pytest.mark.slow
def test_two_processes_keep_the_same_weights(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, max_steps=6, devices=2, batch_size=1, checkpoint_every_steps=6)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DUMP_WEIGHTS": str(tmp_path)}
    parts = [sys.executable, str(SCRIPT), str(recipe)]
    done = subprocess.run(parts, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    trained = [name for name in first if name.startswith("model.") and not name.endswith(("mean", "var", "tracked"))]
    assert len(trained) == 8
    assert all(torch.equal(first[name], second[name]) for name in trained)
    assert [row["step"] for row in rows(tmp_path / "run") if row["split"] == "train"] == list("123456")


def test_validation_over_processes_sums_exactly() -> None:
    truth = torch.rand(3, 1, 8, 8) * 50
    truth[0, 0, 0] = float("nan")
    prediction = truth + torch.randn(3, 1, 8, 8) * 3
    together = metrics_from_sums(error_sums(prediction, truth))
    apart = metrics_from_sums(sum(error_sums(prediction[i : i + 1], truth[i : i + 1]) for i in range(3)))  # type: ignore[arg-type]
    assert together == pytest.approx(apart, rel=1e-12)
    error = (prediction - truth).abs()[torch.isfinite(truth)]
    assert together["epe"] == pytest.approx(error.mean().item(), rel=1e-6)
    assert together["bad2"] == pytest.approx(100 * (error > 2).double().mean().item())


def test_accumulation_is_one_large_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tiny, "train", lambda self, mode=True: torch.nn.Module.train(self, False))
    monkeypatch.setattr(Tiny, "forward", _always_stages)
    plain = ["optimizer.amsgrad=false", "data.validation=[]", "trainer.max_steps=3", "loss.rounds=[]"]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    large = train(recipe_in(tmp_path / "a", *plain, batch_size=4))
    small = train(recipe_in(tmp_path / "b", *plain, batch_size=2, accumulate=2))
    want, got = load_file(large), load_file(small)
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-3, atol=1e-3)
    assert len(rows(tmp_path / "b" / "run")) == 3


def _always_stages(self: Tiny, left: torch.Tensor, right: torch.Tensor):  # type: ignore[no-untyped-def]
    from vision3d.types import StereoOutput

    features = self.body(torch.cat([left, right], 1))
    stages = [self.pyramid(self.first(features)), self.pyramid(self.second(features))]
    return StereoOutput(stages[-1][0], stages[-1], stages=stages)


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_a_value_that_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, caplog) -> None:  # type: ignore[no-untyped-def]
    forward, calls = Tiny.forward, []

    def poisoned(self: Tiny, left: torch.Tensor, right: torch.Tensor):  # type: ignore[no-untyped-def]
        if self.training:
            calls.append(1)
            if len(calls) == 4:
                left = left.clone()
                left[1] = float("inf")
        return forward(self, left, right)

    monkeypatch.setattr(Tiny, "forward", poisoned)
    config = recipe_in(tmp_path, max_steps=6, non_finite=policy, ema_decay=0.0)
    if policy == "error":
        with pytest.raises(NonFiniteError, match=r"step 4: .*scene scene\d.*optimizer\.lr"):
            train(config)
        return
    weights = load_file(train(config))
    assert all(torch.isfinite(value).all() for value in weights.values())
    assert "step skipped" in caplog.text
    assert len([row for row in rows(tmp_path / "run") if row["split"] == "train"]) == 6


def test_bf16_frozen_normalisation_and_half_weights(tmp_path: Path) -> None:
    config = recipe_in(tmp_path, max_steps=2, precision="bf16", freeze_batchnorm=True, export_fp16=True, ema_decay=0.0)
    weights = load_file(train(config))
    assert weights["body.1.running_mean"].abs().max() == 0
    assert weights["body.0.weight"].dtype == torch.float32
    assert load_file(tmp_path / "run" / "weights.fp16.safetensors")["body.0.weight"].dtype == torch.float16


def test_user_errors(tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tiny_recipe(tmp_path, output=str(whole))
    with pytest.raises(OutputError, match="--resume auto"):
        train(load_config(recipe))
    with pytest.raises(ConfigError, match="no such checkpoint"):
        train(load_config(recipe), "none.ckpt")
    broken = tmp_path / "broken.ckpt"
    broken.write_bytes((whole / "last.ckpt").read_bytes()[:1000])
    with pytest.raises(WeightsError, match="broken"):
        train(load_config(recipe), broken)
    with pytest.raises(WeightsError, match="another recipe"):
        train(load_config(recipe, ["trainer.ema_decay=0"]), whole / "last.ckpt")
    assert main([str(recipe), "--set.trainer.max_step=3"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("did you mean 'trainer.max_steps'?")


def test_metrics_file_drops_a_torn_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,split,loss,seconds\n1,train,0.5,0.1\n2,train,0.4,0.1\n3,train,0.", encoding="utf-8")
    assert [row["step"] for row in read_metrics(path)] == ["1", "2"]
    assert [row["step"] for row in read_metrics(path, 1)] == ["1"]
    assert read_metrics(tmp_path / "none.csv") == []


def test_preview_has_fixed_ranges() -> None:
    left, truth = torch.rand(3, 8, 10), torch.full((8, 10), 96.0)
    truth[0] = float("nan")
    picture = preview(left, truth, truth + 2.5, 192.0)
    assert picture.shape == (16, 20, 3)
    assert (picture[0, 10:] == 0).all()
    np.testing.assert_array_equal(picture[1, 10], picture[9, 11])  # 96 of 192 and 2.5 of 5: the same colour


def test_command_of_the_package_takes_overrides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vision3d.cli.main import main as package

    assert package(["train", str(tiny_recipe(tmp_path)), "--set.trainer.max_steps=2", "--set", "trainer.images=0"]) == 0
    assert len(rows(tmp_path / "run")) == 2
    assert capsys.readouterr().out == ""
