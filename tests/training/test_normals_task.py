# SPDX-License-Identifier: Apache-2.0
"""The task, the losses and the recipes of normals, on an exact corner."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from corner import corner_rig, corner_sample

pytest.importorskip("lightning")
from vision3d.datasets.cache import write_pool
from vision3d.errors import ConfigError, InputError
from vision3d.resources import resource_folder
from vision3d.training.config import config_from_dict, load_config
from vision3d.training.losses import create_loss
from vision3d.training.normal_losses import angular_loss, normal_loss
from vision3d.training.normals import NormalsTask, mask_normals
from vision3d.training.optimizers import Round
from vision3d.training.runner import train
from vision3d.types import StereoBatch, StereoOutput
from vision3d.zoo import create_model

LOSS = {"name": "disparity_and_normals", "options": {"disparity": "none", "angular": 1.0}}


def recipe(folder: Path, model: dict | None = None, **parts: object) -> dict:
    source = [{"kind": "pool", "root": str(folder / "pool")}]
    frozen = {"name": "dtnnet_tiny", "stage_one": "covonet", "freeze_stage_one": True}
    return {
        "model": {"options": {"width_ratio": 0.03}, **(model or frozen)},
        "data": {"train": source, "validation": source, "crop": [64, 128], "validation_pairs": 1},
        "loss": LOSS,
        "optimizer": {"name": "adamw", "lr": 3e-3},
        "trainer": {
            "output": str(folder / "run"),
            "max_steps": 2,
            "batch_size": 1,
            "threads": 1,
            "ema_decay": 0.9,
            "val_every_steps": 2,
            "images": 0,
            "accelerator": "cpu",
        },
        **parts,
    }


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    write_pool(tmp_path / "pool", [corner_sample(scene="a"), corner_sample(scene="b")])
    return tmp_path


def make_task(folder: Path, **options: object) -> NormalsTask:
    return NormalsTask(config_from_dict(recipe(folder, **options)), [Round(0, 10, None)], None)


def test_a_run_trains_the_second_stage_alone_and_measures_angles(pool: Path) -> None:
    weights = train(config_from_dict(recipe(pool)))
    network = create_model("dtnnet_tiny", pretrained=str(weights), width_ratio=0.03)
    shipped = create_model("covonet", pretrained=True).state_dict()
    assert all(torch.equal(value, shipped[name]) for name, value in network.stage_one.state_dict().items())
    assert network.normnets.get_parameter("pred_flow0.weight").abs().max() > 0
    with (pool / "run" / "metrics.csv").open() as file:
        *_, last = csv.DictReader(file)
    assert last["split"] == "validation"
    assert 0 < float(last["angle"]) < 180
    assert 0 <= float(last["within11.25"]) <= float(last["within30"]) <= 100
    assert float(last["epe"]) > 0


def test_steps_lower_the_loss(pool: Path) -> None:
    task = make_task(pool)
    batch = StereoBatch.collate([corner_sample()])
    optimizer = task.configure_optimizers()
    losses = []
    for _ in range(6):
        loss, _ = task.compute_loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert all(parameter.grad is None for parameter in task.model.stage_one.parameters())


def test_a_frozen_stage_stays_in_eval_mode(pool: Path) -> None:
    task = make_task(pool)
    task.train()
    assert task.model.training
    assert task.model.normnets.training
    assert not task.model.stage_one.training
    free = make_task(pool, model={"name": "dtnnet_tiny", "stage_one": "covonet.synthetic"})
    assert free.model.stage_one.training
    assert all(parameter.requires_grad for parameter in free.model.parameters())


def test_both_stages_learn_where_nothing_is_frozen(pool: Path) -> None:
    loss = {"name": "disparity_and_normals", "options": {"disparity": "cost_volume"}}
    task = make_task(pool, model={"name": "dtnnet_tiny"}, loss=loss)
    total, _ = task.compute_loss(StereoBatch.collate([corner_sample()]))
    total.backward()
    reached = [name for name, parameter in task.model.stage_one.named_parameters() if parameter.grad is not None]
    assert len(reached) > 20
    assert {"loss_final", "loss_normal", "loss_angle"} <= set(task.last)


def test_intrinsics_reach_the_network_also_padded(pool: Path) -> None:
    task = make_task(pool)
    task.eval()
    seen = []
    task.evaluated.register_forward_hook(lambda module, arguments, output: seen.append(arguments[2:]))
    sample = corner_sample(corner_rig(100, 50, 4.0))
    disparity, normals = task.answer(StereoBatch.collate([sample]))
    assert disparity.shape == (1, 1, 50, 100)
    assert normals.shape == (1, 3, 50, 100)
    matrix, doffs = seen[0]
    assert float(matrix[0, 0, 2]) >= 70.0
    assert float(matrix[0, 0, 0]) == 90.0
    assert doffs.tolist() == [4.0]


def test_normals_need_a_calibration(pool: Path) -> None:
    batch = StereoBatch.collate([replace(corner_sample(), rig=None)])
    with pytest.raises(InputError, match="need the calibration"):
        make_task(pool).compute_loss(batch)


def test_normals_that_are_no_unit_vectors_are_masked_and_counted(pool: Path) -> None:
    sample = corner_sample()
    normals = np.array(sample.normals)
    normals[:16] = 0
    normals[16:24] *= 2
    normals[24:32] = np.nan
    batch = StereoBatch.collate([replace(sample, normals=normals)])
    masked, percent = mask_normals(batch.normals)
    assert masked[:, :, :32].isnan().all()
    assert masked[:, :, 32:].isfinite().all()
    assert percent == pytest.approx(50.0)
    task = make_task(pool)
    loss, _ = task.compute_loss(batch)
    loss.backward()
    assert task.last["invalid_normals"] == pytest.approx(50.0)
    assert all(p.grad.isfinite().all() for p in task.model.normnets.parameters() if p.grad is not None)


def test_the_published_loss_is_two_times_one_minus_the_cosine() -> None:
    angle = math.radians(40)
    truth = torch.tensor([0.0, 0, -1]).view(1, 3, 1, 1).expand(1, 3, 4, 5)
    turned = torch.tensor([math.sin(angle), 0, -math.cos(angle)]).view(1, 3, 1, 1).expand(1, 3, 4, 5)
    assert float(normal_loss(turned, truth)) == pytest.approx(2 * (1 - math.cos(angle)), rel=1e-5)
    assert float(angular_loss(turned, truth)) == pytest.approx(angle, rel=1e-4)
    some = truth.clone()
    some[:, 1, :2] = torch.nan
    assert float(angular_loss(turned, some)) == pytest.approx(angle, rel=1e-4)


def test_gradients_of_the_angle_stay_finite() -> None:
    truth = torch.tensor([0.0, 0, -1]).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    for same in (truth.clone(), -truth.clone(), torch.zeros(1, 3, 2, 2)):
        angular_loss(same.requires_grad_(), truth).backward()
        assert same.grad is not None
        assert same.grad.isfinite().all()
    assert float(angular_loss(truth, torch.full_like(truth, torch.nan))) == 0.0


def test_rounds_reach_the_disparity_loss_alone() -> None:
    loss = create_loss("disparity_and_normals", disparity="multiscale_smooth_l1")
    loss.weights = (1.0, 0, 0, 0, 0, 0, 0)
    assert loss.inner.weights == (1.0, 0, 0, 0, 0, 0, 0)
    assert not hasattr(create_loss("disparity_and_normals", disparity="none"), "weights")
    with pytest.raises(ConfigError, match="the disparity alone"):
        create_loss("disparity_and_normals", disparity="disparity_and_normals")


def test_the_loss_says_what_is_missing() -> None:
    image = torch.rand(1, 3, 8, 8)
    batch = StereoBatch(image, image, image[:, :1], ["a"], normals=image)
    output = StereoOutput(image[:, :1], [])
    with pytest.raises(InputError, match="answers no normals"):
        create_loss("disparity_and_normals", disparity="none")(output, batch)
    with pytest.raises(InputError, match="no true normals"):
        create_loss("disparity_and_normals", disparity="none")(
            replace(output, normals=image), replace(batch, normals=None)
        )


@pytest.mark.parametrize(
    ("model", "loss", "text"),
    [
        ({"name": "covonet", "stage_one": "covonet", "options": {}}, LOSS, "networks of normals"),
        ({"name": "normnets", "freeze_stage_one": True, "options": {}}, LOSS, "no first stage"),
        ({"name": "dtnnet_tiny"}, {"name": "multiscale_smooth_l1"}, "ignores normals"),
        (
            {"name": "dtnnet_tiny", "freeze_stage_one": True},
            {"name": "disparity_and_normals", "options": {"disparity": "cost_volume"}},
            "nothing is left",
        ),
    ],
)
def test_recipes_that_cannot_work_are_refused(pool: Path, model: dict, loss: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_task(pool, model=model, loss=loss)


@pytest.mark.parametrize("name", ["irs", "tiny_rooms_cpu"])
def test_the_recipes_are_legal(name: str) -> None:
    config = load_config(resource_folder("configs") / "dtnnet" / f"{name}.yaml")
    assert config.loss.name == "disparity_and_normals"
    if name == "irs":  # spec of the public code: 20, 20, 20, 30 epochs, AMSGrad, halving each 10 epochs of a round
        assert [item.epochs for item in config.loss.rounds] == [20, 20, 20, 30]
        assert [tuple(item.weights) for item in config.loss.rounds] == [
            (0.32, 0.16, 0.08, 0.04, 0.02, 0.01, 0.005),
            (0.6, 0.32, 0.08, 0.04, 0.02, 0.01, 0.005),
            (0.8, 0.16, 0.04, 0.02, 0.01, 0.005, 0.0025),
            (1, 0, 0, 0, 0, 0, 0),
        ]
        assert config.optimizer.lr == 1e-4
        assert tuple(config.data.crop) == (384, 768)
        assert config.optimizer.amsgrad
        assert config.schedule.period == 10
        assert config.schedule.restart
        assert config.loss.options["angular"] == 0.0
        assert config.trainer.batch_size * config.trainer.accumulate == 16
