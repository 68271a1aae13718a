# SPDX-License-Identifier: Apache-2.0
"""Whole runs of a tiny network: exact resume after SIGKILL, two processes, moving average, non-finite values."""

from __future__ import annotations

import os
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
from vision3d.datasets.cache import PoolStereo
from vision3d.errors import ConfigError, OutputError, WeightsError
from vision3d.evaluation.dataset import evaluate_dataset
from vision3d.evaluation.matchers import network_matcher
from vision3d.evaluation.metrics import DisparityMetrics, disparity_errors
from vision3d.training.callbacks import preview
from vision3d.training.config import TrainConfig, load_config
from vision3d.training.curve import read_metrics
from vision3d.training.optimizers import Round
from vision3d.training.runner import train
from vision3d.training.stereo import METRICS, NonFiniteError, StereoTask
from vision3d.types import StereoBatch, StereoOutput

SCRIPT = Path(__file__).with_name("tiny.py")
ROOT = SCRIPT.parents[2]


def command(recipe: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The training command in a process of its own, with these environment variables for ``tiny.py``."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
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
    weights = tmp_path / "run" / "weights.safetensors"
    # Killed in step 8 (last checkpoint: step 6, written after a validation), then in step 17 (step 15, second round).
    resumed = command(tiny_recipe(tmp_path), "--resume", "auto", KILL_AT="8,11", WEIGHTS=str(weights))
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == ""
    assert rows(tmp_path / "run") == rows(whole)
    want, got = load_file(whole / "weights.safetensors"), load_file(weights)
    assert all(torch.equal(value, got[name]) for name, value in want.items())


@pytest.mark.slow
def test_two_processes_keep_the_same_weights(tmp_path: Path) -> None:
    recipe = tiny_recipe(
        tmp_path, max_steps=2, devices=2, batch_size=1, checkpoint_every_steps=2, val_every_steps=2, ema_decay=0.0
    )
    done = command(recipe, "--set.data.validation.0.options={}", DUMP_WEIGHTS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    trained = [name for name in first if name.startswith("model.") and not name.endswith(("mean", "var", "tracked"))]
    assert len(trained) == 8
    assert all(torch.equal(first[name], second[name]) for name in trained)
    written = rows(tmp_path / "run")
    assert [row["step"] for row in written if row["split"] == "train"] == list("12")
    # Each process validates half of the ten pairs, with its own statistics of batch normalisation.
    parts = [evaluated_pixels(tmp_path, state, range(rank, 10, 2)) for rank, state in enumerate((first, second))]
    figures = parts[0].merge(parts[1]).compute()
    assert {name: float(written[-1][name]) for name in METRICS} == {name: figures[name] for name in METRICS}


def evaluated_pixels(folder: Path, state: dict[str, torch.Tensor], indices: range) -> DisparityMetrics:
    """What ``vision3d evaluate`` measures with the weights of a task on some pairs of the pool."""
    model, data = Tiny(), PoolStereo(folder / "pool")
    model.load_state_dict({name.removeprefix("model."): state[name] for name in state if name.startswith("model.")})
    metrics = DisparityMetrics()
    for index in indices:
        sample = data[index]
        assert sample.disparity is not None
        metrics.update(network_matcher(model.eval())[1](sample).disparity, sample.disparity)
    return metrics


def test_validation_figures_are_those_of_evaluate(whole: Path) -> None:
    model = Tiny()
    model.load_state_dict(load_file(whole / "weights.safetensors"))
    report = evaluate_dataset(model.eval(), "pool", whole.parent / "pool", options={"shards": 1})
    last = rows(whole)[-1]
    assert last["split"] == "validation"
    assert {name: float(last[name]) for name in METRICS} == {name: report["pooled"][name] for name in METRICS}


def test_truth_of_zero_counts_and_holes_are_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = StereoTask(recipe_in(tmp_path), [Round(0, 1, None)], None)
    truth = torch.tensor([[0.0, 2.0, 9.0, float("nan")]])[None, None]
    answer = torch.tensor([[1.0, 2.0, float("nan"), 5.0]])[None, None]
    monkeypatch.setattr(task, "predict", lambda batch: answer)
    image = torch.zeros(1, 3, 1, 4)
    task.on_validation_epoch_start()
    task.config.trainer.images = 0
    task.validation_step(StereoBatch(image, image, truth, ["scene"]), 0)
    task.on_validation_epoch_end()
    assert task.validation_metrics == disparity_figures(answer, truth)
    assert task.validation_metrics["epe"] == (1 + 0 + 7) / 3  # the hole takes the smaller of its neighbours, 2


def disparity_figures(answer: torch.Tensor, truth: torch.Tensor) -> dict[str, float]:
    figures = disparity_errors(answer, truth)
    return {name: figures[name] for name in METRICS}


def test_validation_pads_to_the_multiple_of_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, forward = [], Tiny.forward

    def noting(self: Tiny, left: torch.Tensor, right: torch.Tensor) -> StereoOutput:
        seen.append(tuple(left.shape[-2:]))
        return forward(self, left, right)

    monkeypatch.setattr(Tiny, "forward", noting)
    task = StereoTask(recipe_in(tmp_path), [Round(0, 1, None)], None)
    image = torch.rand(1, 3, 40, 72)
    batch = StereoBatch(image, image, image[:, :1], ["scene"])
    for multiple in (None, 16):
        if multiple is not None:
            monkeypatch.setattr(Tiny, "size_multiple", multiple, raising=False)
        assert task.predict(batch).shape == (1, 1, 40, 72)
    assert seen == [(64, 128), (48, 80)]  # 64 where a network names none


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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.accelerator=foo", "trainer.accelerator"),
        ("trainer.strategy=foo", "strategy foo"),
        pytest.param(
            "trainer.accelerator=cuda",
            "accelerator cuda",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
        ),
    ],
)
def test_what_this_machine_cannot_run_is_one_line(
    tmp_path: Path, override: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tiny_recipe(tmp_path)), f"--set.{override}"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith("vision3d: error: ")
    assert message in errors[0]
    assert not (tmp_path / "run").exists()


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
