# SPDX-License-Identifier: Apache-2.0
"""Training of a supernet: sampled sub-networks, summed gradients, calibrated validation, exact resume."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_samples
from torch import nn

pytest.importorskip("lightning")
from vision3d.datasets.cache import write_pool
from vision3d.errors import ConfigError
from vision3d.models.stereo.easnet import PHASES, SearchSpace, largest_setting, parse_setting, smallest_setting
from vision3d.resources import resource_folder
from vision3d.training.config import (
    ElasticConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    config_from_dict,
    load_config,
)
from vision3d.training.curve import read_metrics
from vision3d.training.elastic import ElasticTask, open_space, step_settings, validation_settings
from vision3d.training.losses import create_loss
from vision3d.training.optimizers import Round, create_optimizer, learning_rate_factor
from vision3d.training.runner import train
from vision3d.types import StereoBatch, StereoOutput

SMALL = {"kernel": [3, 5], "expand": [2, 4], "depth": [2, 3], "scale": [2], "subnets_per_step": 2}


def recipe(folder: Path, elastic: dict[str, Any], **trainer: Any) -> TrainConfig:
    """A recipe of four steps on ten noise pairs."""
    pool = folder / "pool"
    if not pool.exists():
        write_pool(pool, tiny_samples(10))
    return config_from_dict(
        {
            "model": {"name": "easnet_supernet", "options": {"warp_mode": "exact"}},
            "data": {
                "train": [{"kind": "pool", "root": str(pool)}],
                "validation": [{"kind": "pool", "root": str(pool)}],
                "validation_pairs": 2,
                "crop": [32, 64],
            },
            "loss": {"name": "easnet"},
            "optimizer": {"lr": 1e-3, "no_decay": ["bn", "bias"], "weight_decay": 1e-4},
            "elastic": {"calibration_pairs": 3, "calibration_batch": 2, **elastic},
            "trainer": {
                "output": str(folder / "run"),
                "max_steps": 4,
                "batch_size": 2,
                "threads": 1,
                "ema_decay": 0.5,
                "val_every_steps": 2,
                "checkpoint_every_steps": 2,
                "log_every_steps": 1,
                "accelerator": "cpu",
                **trainer,
            },
        }
    )


def task_of(folder: Path, elastic: dict[str, Any]) -> ElasticTask:
    torch.manual_seed(0)
    return ElasticTask(recipe(folder, elastic), [Round(0, 4, None)], None)


def noise_batch() -> StereoBatch:
    return StereoBatch.collate(list(tiny_samples(2)))


def test_sub_networks_depend_on_the_step_alone() -> None:
    config, space = ElasticConfig(subnets_per_step=3), PHASES["scale"]
    torch.manual_seed(1)
    random.seed(1)
    here = step_settings(config, space, 12)
    torch.manual_seed(2)
    random.seed(2)
    assert step_settings(config, space, 12) == here
    assert len(set(here)) == 3
    expected = random.Random(12001000)  # the digits of step 12, sub-network 001, and 000
    kernels = [expected.choice((3, 5, 7)) for _ in range(16)]
    active = here[1].active_blocks
    assert [here[1].kernels[block] for block in active] == [kernels[block] for block in active]
    assert step_settings(config, space, 13) != here


def test_sandwich() -> None:
    space = PHASES["depth"]
    settings = step_settings(ElasticConfig(subnets_per_step=3, sandwich=True), space, 5)
    assert settings[0] == largest_setting(space)
    assert settings[-1] == smallest_setting(space)


def test_validated_settings() -> None:
    published = [
        parse_setting(setting)
        for setting in (
            {"ks": 7, "e": 8, "d": 4, "s": 4},
            {"ks": 7, "e": 8, "d": 2, "s": 2},
            {"ks": 3, "e": 2, "d": 2, "s": 2},
        )
    ]
    assert validation_settings(ElasticConfig(), PHASES["scale"]) == published
    assert validation_settings(ElasticConfig(), PHASES["large"]) == published[:1]
    named = [{"ks": 5, "e": 4, "d": 3, "s": 3}]
    assert validation_settings(ElasticConfig(validation=named), PHASES["scale"]) == [parse_setting(named[0])]
    with pytest.raises(ConfigError, match=r"elastic\.validation: setting: d must be one of 2, 3, 4, got 1"):
        validation_settings(ElasticConfig(validation=[{**named[0], "d": 1}]), PHASES["scale"])


def test_open_space() -> None:
    config = ElasticConfig(kernel=[7], expand=[8], depth=[4], scale=[4])
    assert open_space(config) == SearchSpace((7,), (8,), (4,), (4,))
    with pytest.raises(ConfigError, match=r"elastic\.expand must be one or more of 2, 4, 6, 8, got \[2, 3\]"):
        open_space(ElasticConfig(expand=[2, 3]))
    with pytest.raises(ConfigError, match=r"elastic\.scale must be one or more of 2, 3, 4, got \[\]"):
        open_space(ElasticConfig(scale=[]))


def test_gradients_are_the_sum_over_the_sub_networks(tmp_path: Path) -> None:
    task = task_of(tmp_path, SMALL)
    single, batch = copy.deepcopy(task.model), noise_batch()
    task.training_step(batch, 0).backward()
    loss = create_loss("easnet")
    for setting in step_settings(task.elastic, task.space, 0):
        single.set_active(setting)
        loss(single(batch.left, batch.right), batch)[0].backward()
    summed = {name: value.grad for name, value in task.model.named_parameters()}
    for name, value in single.named_parameters():
        if value.grad is None:
            assert summed[name] is None
        else:
            torch.testing.assert_close(summed[name], value.grad, rtol=1e-3, atol=1e-3 * float(value.grad.abs().max()))


def test_steps_lower_the_loss(tmp_path: Path) -> None:
    task, batch = task_of(tmp_path, SMALL), noise_batch()
    optimizer = create_optimizer(task.model, OptimizerConfig(lr=1e-3))
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = task.training_step(batch, 0)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        assert float(task.last["loss"]) == pytest.approx(losses[-1] / 2)
    assert losses[2] < losses[1] < losses[0]


def test_distillation_adds_the_distance_to_the_largest(tmp_path: Path) -> None:
    one = {**SMALL, "subnets_per_step": 1}
    plain, taught = task_of(tmp_path, one), task_of(tmp_path, {**one, "distillation": 0.5})
    batch = noise_batch()
    distance = nn.functional.smooth_l1_loss
    own, teacher = copy.deepcopy(plain.model), copy.deepcopy(plain.model)
    own.set_active(step_settings(plain.elastic, plain.space, 0)[0])
    teacher.set_active(largest_setting(plain.space))
    expected = distance(own(batch.left, batch.right).disparity, teacher(batch.left, batch.right).disparity)
    added = taught.compute_loss(batch)[0] - plain.compute_loss(batch)[0]
    assert added.item() == pytest.approx(0.5 * expected.item(), rel=1e-3)
    for (name, value), other in zip(plain.model.named_buffers(), taught.model.buffers(), strict=True):
        torch.testing.assert_close(value, other, msg=name)


def test_validated_networks_have_their_own_statistics(tmp_path: Path) -> None:
    task = task_of(tmp_path, SMALL)
    before = {name: value.clone() for name, value in task.evaluated.named_buffers()}
    setting = smallest_setting(task.space)
    network = task.calibrated(setting)
    first: Any = network.feature_extractor[0]  # type: ignore[index]
    first = first.conv.inverted_bottleneck
    views = [view for batch in task.calibration_batches() for view in (batch.left, batch.right)]
    maps = torch.cat([first.conv(network.normalization(view)) for view in views])
    torch.testing.assert_close(first.bn.running_mean, maps.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    assert [len(batch.scenes) for batch in task.calibration_batches()] == [2, 1]
    assert all(torch.equal(before[name], value) for name, value in task.evaluated.named_buffers())


def test_channels_are_sorted_in_both_networks(tmp_path: Path) -> None:
    task = task_of(tmp_path, {**SMALL, "sort_channels": True})
    assert task.average is not None
    for network in (task.model, task.average):
        weight = network.get_parameter("feature_extractor.5.conv.point_linear.conv.conv.weight")
        importance = weight.abs().sum((0, 2, 3))
        assert bool((importance.diff() <= 1e-5).all())


def test_resume_is_exact(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    elastic = {**SMALL, "validation": [{"ks": 3, "e": 2, "d": 2, "s": 2}]}
    whole = train(recipe(tmp_path / "whole", elastic, max_steps=2))
    train(recipe(tmp_path / "parts", elastic, max_steps=1))
    parts = train(recipe(tmp_path / "parts", elastic, max_steps=2), resume="auto")
    first, second = load_file(whole), load_file(parts)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    rows = [read_metrics(weights.parent / "metrics.csv") for weights in (whole, parts)]
    without_times = [[{**row, "seconds": ""} for row in part] for part in rows]
    assert without_times[0] == without_times[1]
    assert [row["split"] for row in rows[0]].count("validation") == 1
    following = recipe(tmp_path / "whole", SMALL)
    following.model.pretrained = str(whole)  # the next stage begins with these weights
    task = ElasticTask(following, [Round(0, 4, None)], None)
    assert all(torch.equal(value, first[name]) for name, value in task.model.state_dict().items())


def test_illegal_recipes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"elastic has no effect without elastic\.subnets_per_step"):
        recipe(tmp_path, {"sandwich": True})
    with pytest.raises(ConfigError, match="sandwich needs"):
        recipe(tmp_path, {"sandwich": True, "subnets_per_step": 1})
    with pytest.raises(ConfigError, match=r"trainer\.sync_batchnorm cannot normalise the widths of sub-networks"):
        recipe(tmp_path, SMALL, sync_batchnorm=True)
    config = recipe(tmp_path, SMALL)
    config.model.name, config.model.options = "easnet_s", {}
    with pytest.raises(ConfigError, match="easnet_s has no sub-networks"):
        ElasticTask(config, [Round(0, 4, None)], None)


@pytest.mark.parametrize(
    ("number", "phase", "stage", "epochs", "hold", "rate", "sub_networks"),
    [
        (1, "large", "large", 64, 0, 1e-3, 1),
        (2, "kernel", "kernel", 25, 2, 5e-4, 1),
        (3, "depth", "depth", 25, 2, 5e-4, 2),
        (4, "expand", "width", 25, 2, 5e-4, 4),
        (5, "scale", "scale", 25, 2, 5e-4, 6),
    ],
)
def test_recipes_follow_the_published_schedule(
    number: int, phase: str, stage: str, epochs: int, hold: int, rate: float, sub_networks: int
) -> None:
    folder = resource_folder("configs") / "easnet"
    config = load_config(folder / f"sceneflow_{number}_{stage}.yaml")
    assert open_space(config.elastic) == PHASES[phase]
    assert config.elastic.subnets_per_step == sub_networks
    assert config.elastic.sort_channels == (phase == "expand")
    assert (config.elastic.sandwich, config.elastic.distillation) == (False, 0.0)
    assert [item.epochs for item in config.loss.rounds] == [epochs + hold]
    assert (config.schedule.name, config.schedule.hold_epochs, config.schedule.warmup_steps) == ("cosine", hold, 0)
    optimizer, trainer = config.optimizer, config.trainer
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("adam", rate, 1e-4)
    assert optimizer.no_decay == ["bn", "bias"]
    assert (trainer.batch_size, trainer.batch_size * trainer.accumulate) == (2, 16)
    assert config.data.crop == (384, 768)
    if number == 1:
        assert config.model.options["initialization"] == "published"
        assert config.model.pretrained is False
    else:
        (before,) = folder.glob(f"sceneflow_{number - 1}_*.yaml")
        assert config.model.pretrained == f"{load_config(before).trainer.output}/weights.safetensors"


@pytest.mark.parametrize("name", ["kitti_mix", "kitti2012", "kitti2015"])
def test_recipes_of_kitti_follow_the_published_schedule(name: str) -> None:
    config = load_config(resource_folder("configs") / "easnet" / f"{name}.yaml")
    assert open_space(config.elastic) == PHASES["scale"]
    assert config.elastic.subnets_per_step == 6
    assert config.loss.rounds[0].epochs == 400
    assert [learning_rate_factor(config.schedule, epoch * 25, 10_000, 25) for epoch in (0, 99, 100, 399)] == [
        *(1, 1, 0.5, 0.125)
    ]
    assert config.optimizer.lr == 1e-4
    assert config.data.crop == (320, 960)


def test_named_parameters_keep_clear_of_the_decay() -> None:
    model = nn.ModuleDict({"conv": nn.Conv2d(1, 1, 1), "bn": nn.BatchNorm2d(1)})
    groups = create_optimizer(model, OptimizerConfig(weight_decay=0.1, no_decay=["bn", "bias"])).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert [id(value) for value in groups[0]["params"]] == [id(model["conv"].weight)]
    assert len(groups[1]["params"]) == 3
    assert len(create_optimizer(model, OptimizerConfig()).param_groups) == 1


def test_scores_are_compared_with_the_bins_beside_the_truth() -> None:
    """Cells of 3 pixels: the truth 7.5 lies half-way between the bins 2 and 3."""
    truth = torch.full((1, 1, 6, 9), 7.5)
    truth[..., 4:] = torch.nan
    scores = torch.randn(1, 64, 2, 3)
    maps = [torch.zeros(1, 1, 6, 9)]
    output = StereoOutput(maps[0], maps, stages=[maps], auxiliary={"scores0": scores})
    batch = StereoBatch(torch.zeros(1, 3, 6, 9), torch.zeros(1, 3, 6, 9), truth, ["a"])
    plain, classified = (create_loss("easnet", classification=weight)(output, batch)[0] for weight in (0.0, 2.0))
    log = scores[..., 0].log_softmax(1)  # the centre of the second column of cells is unknown
    expected = -(log[:, 2] + log[:, 3]).mean() / 2
    assert float(classified - plain) == pytest.approx(2 * float(expected), rel=1e-4)


def test_the_rate_is_held_before_the_cosine() -> None:
    """Two epochs of ten steps at the full rate, then 25 epochs of cosine."""
    schedule = ScheduleConfig(name="cosine", hold_epochs=2)
    factors = [learning_rate_factor(schedule, step, 270, 10) for step in (0, 20, 145, 270)]
    assert factors == pytest.approx([1.0, 1.0, 0.5, 0.0])
    with pytest.raises(ConfigError, match="the data has no end"):
        learning_rate_factor(schedule, 0, 270, None)
