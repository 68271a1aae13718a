# SPDX-License-Identifier: Apache-2.0
"""The task, the loss and the recipes of panoramas, on an exact box."""

from __future__ import annotations

import csv
import logging
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from panoramas import box_panorama

pytest.importorskip("lightning")
from vision3d.datasets.panorama_pool import write_panorama_pool
from vision3d.errors import ConfigError, InputError
from vision3d.geometry.icosphere import face_count, icosphere
from vision3d.geometry.panorama_mesh import panorama_to_faces, pixel_solid_angles
from vision3d.resources import resource_folder
from vision3d.training.config import config_from_dict, config_to_dict, load_config
from vision3d.training.losses import create_loss
from vision3d.training.optimizers import Round
from vision3d.training.panorama import PanoramaTask
from vision3d.training.runner import train
from vision3d.types import DepthOutput, PanoramaBatch

NETWORKS = {
    "mesh": {"name": "spheredepth", "options": {"level": 4, "width": 4}},
    "planar": {"name": "panoramadepth", "options": {"width": 4}},
}


def recipe(folder: Path, model: dict, **parts: object) -> dict:
    source = [{"kind": "panorama_pool", "root": str(folder / "pool")}]
    return {
        "model": model,
        "data": {"train": source, "validation": source, "augment": [{"name": "turn"}, {"name": "colors"}]},
        "loss": {"name": "panorama"},
        "optimizer": {"name": "adamw", "lr": 3e-3},
        "trainer": {
            "output": str(folder / "run"),
            "max_steps": 2,
            "batch_size": 2,
            "threads": 1,
            "ema_decay": 0.9,
            "val_every_steps": 2,
            "images": 1,
            "accelerator": "cpu",
        },
        **parts,
    }


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    write_panorama_pool(tmp_path / "pool", [box_panorama(32, "a"), box_panorama(32, "b")])
    return tmp_path


@pytest.mark.parametrize("network", NETWORKS)
def test_two_steps_with_validation(network: str, pool: Path) -> None:
    weights = train(config_from_dict(recipe(pool, NETWORKS[network])))
    assert weights.is_file()
    rows = list(csv.DictReader((pool / "run" / "metrics.csv").open()))
    assert [row["split"] for row in rows] == ["train", "train", "validation"]
    assert all(math.isfinite(float(row["loss_fine"])) for row in rows[:2])
    assert math.isfinite(float(rows[2]["abs_rel"]))
    assert math.isfinite(float(rows[2]["sphere_abs_rel"]))
    assert {"last.ckpt", "best.ckpt", "config.yaml"} <= {path.name for path in (pool / "run").iterdir()}
    assert len(list((pool / "run" / "images").iterdir())) == 1


def test_a_resumed_run_is_the_uninterrupted_one(pool: Path) -> None:
    content = recipe(pool, NETWORKS["mesh"])
    content["trainer"]["checkpoint_every_steps"] = 1
    whole = torch.load(_last(train(config_from_dict(content))), weights_only=True)["state_dict"]
    content["trainer"] |= {"output": str(pool / "again"), "max_steps": 1}
    train(config_from_dict(content))
    content["trainer"]["max_steps"] = 2
    resumed = torch.load(_last(train(config_from_dict(content), "auto")), weights_only=True)["state_dict"]
    for name, value in whole.items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=0)


def _last(weights: Path) -> Path:
    return weights.with_name("last.ckpt")


def test_millimetres_are_warned_about(pool: Path, caplog: pytest.LogCaptureFixture) -> None:
    sample = box_panorama(32)
    write_panorama_pool(pool / "pool", [replace(sample, depth=1000 * sample.depth)])
    content = recipe(pool, NETWORKS["mesh"])
    content["trainer"] |= {"max_steps": 1, "batch_size": 1, "val_every_steps": 0}
    with caplog.at_level(logging.WARNING):
        train(config_from_dict(content))
    assert "millimetres" in caplog.text


def test_recipes_that_cannot_work(pool: Path) -> None:
    wrong = recipe(pool, NETWORKS["mesh"], loss={"name": "cost_volume"})
    with pytest.raises(ConfigError, match="not for panoramas"):
        PanoramaTask(config_from_dict(wrong), [Round(0, 2, None)], None)
    for option in ({"color": "published"}, {"vertical_flip": 0.5}, {"validation_crop": [8, 8]}):
        content = recipe(pool, NETWORKS["mesh"])
        content["data"] |= option
        with pytest.raises(ConfigError, match="no meaning for panoramas"):
            train(config_from_dict(content))


def test_batches_need_one_size_and_depth() -> None:
    batch = PanoramaBatch.collate([box_panorama(16), box_panorama(16)])
    assert batch.image.shape == (2, 3, 16, 32)
    assert batch.depth.shape == (2, 1, 16, 32)
    with pytest.raises(InputError, match="option height"):
        PanoramaBatch.collate([box_panorama(16), box_panorama(18)])
    with pytest.raises(InputError, match="no depth"):
        PanoramaBatch.collate([replace(box_panorama(16), depth=None)])


def batch_and_output(mesh: bool) -> tuple[PanoramaBatch, DepthOutput]:
    sample = box_panorama(16)
    sample.depth[2, 3:9] = np.nan
    batch = PanoramaBatch.collate([sample])
    sizes = [(1, face_count(4 - k)) if mesh else (1, 1, 16 >> k, 32 >> k) for k in range(4)]
    scales = {f"scale{k}": torch.full(size, 2.0, requires_grad=True) for k, size in enumerate(sizes)}
    return batch, DepthOutput(depth=torch.full((1, 1, 16, 32), 2.0), auxiliary=scales)


def test_pixels_count_by_their_solid_angle() -> None:
    batch, output = batch_and_output(mesh=False)
    _, parts = create_loss("panorama", kind="l1")(output, batch)
    truth = batch.depth[0, 0].numpy()
    area = np.broadcast_to(pixel_solid_angles(16)[:, None], truth.shape)
    known = np.isfinite(truth)
    expected = (np.abs(truth - 2) * area)[known].sum() / area[known].sum()
    assert float(parts["loss_fine"]) == pytest.approx(expected, rel=1e-5)
    _, plain = create_loss("panorama", kind="l1", area=False)(output, batch)
    assert float(plain["loss_fine"]) == pytest.approx(np.abs(truth - 2)[known].mean(), rel=1e-5)


def test_faces_take_the_nearest_truth_and_count_by_their_solid_angle() -> None:
    batch, output = batch_and_output(mesh=True)
    total, parts = create_loss("panorama", kind="l1", max_depth=3.0)(output, batch)
    truth = panorama_to_faces(batch.depth[0, 0].numpy(), 4, nearest=True)
    truth[truth > 3] = np.nan
    known, area = np.isfinite(truth), icosphere(4).solid_angles
    expected = (np.abs(truth - 2) * area)[known].sum() / area[known].sum()
    assert float(parts["loss_fine"]) == pytest.approx(expected, rel=1e-5)
    total.backward()
    gradients = [value.grad for value in output.auxiliary.values()]
    assert all(value is not None and torch.isfinite(value).all() for value in gradients)
    assert (gradients[0][0, torch.from_numpy(~known)] == 0).all()


def test_unusable_losses() -> None:
    for options in ({"kind": "l3"}, {"weights": []}, {"max_depth": 0}, {"threshold": -1.0}):
        with pytest.raises(ConfigError):
            create_loss("panorama", **options)
    batch, output = batch_and_output(mesh=True)
    with pytest.raises(InputError, match="training mode"):
        create_loss("panorama")(replace(output, auxiliary={}), batch)


def test_the_two_cpu_recipes_differ_in_the_network_alone() -> None:
    folder = resource_folder("configs") / "spheredepth"
    one, two = (
        config_to_dict(load_config(folder / f"{name}_rooms_cpu.yaml"))
        for name in ("spheredepth_tiny", "panoramadepth_tiny")
    )
    for content in (one, two):
        del content["model"], content["trainer"]["output"]
    assert one == two


@pytest.mark.parametrize("name", ["stanford2d3d", "matterport3d", "panorama3d60"])
def test_recipes_of_data_sets_are_for_the_mesh(name: str) -> None:
    config = load_config(resource_folder("configs") / "spheredepth" / f"{name}.yaml")
    assert config.model.name == "spheredepth"
    assert config.data.train[0].kind == name
    assert config.loss.name == "panorama"
