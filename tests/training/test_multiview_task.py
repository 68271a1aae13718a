# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset

from vision3d.datasets.multiview_pool import MultiViewPool, write_multiview_pool
from vision3d.datasets.toy_multiview import make_toy_views, write_dtu_training, write_multiview_tree
from vision3d.errors import ConfigError, FileFormatError, InputError, UnknownNameError
from vision3d.evaluation.mvs_metrics import MultiViewMetrics
from vision3d.models.mvs.dispmvs_loss import dispmvs_loss
from vision3d.training.config import config_from_dict, load_config
from vision3d.training.data import open_sources
from vision3d.training.losses import create_loss
from vision3d.training.multiview import MultiViewTask
from vision3d.training.multiview_data import MultiViewTraining
from vision3d.training.optimizers import plan_rounds
from vision3d.training.runner import train
from vision3d.types import MultiViewBatch, MultiViewSample

CONFIGS = Path(__file__).resolve().parents[2] / "configs/dispmvs"


def toy_samples(count: int = 3, views: int = 4) -> list[MultiViewSample]:
    samples = []
    for number in range(count):
        toy = make_toy_views(views + number)[number:]
        depth = toy[0].depth.copy()
        depth[:4] = np.nan
        span = (0.9 * float(np.nanmin(depth)), 1.1 * float(np.nanmax(depth)))
        cameras = [view.camera for view in toy]
        images = [view.image for view in toy]
        samples.append(
            MultiViewSample(images, cameras, list(range(views)), "m", depth, None, span, scene=f"toy{number}")
        )
    return samples


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    write_multiview_pool(tmp_path / "pool", toy_samples(), shard_size=2)
    return tmp_path / "pool"


def recipe(pool: Path, **changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "model": {"name": "dispmvs_tiny", "options": {"iterations": [1, 2]}},
        "data": {
            "train": [
                {"kind": "multiview_pool", "root": str(pool), "options": {"views": 3, "source_choice": "random"}}
            ],
            "validation": [{"kind": "multiview_pool", "root": str(pool), "options": {"shards": 1, "views": 3}}],
        },
        "loss": {"name": "dispmvs", "options": {"gamma_order": "last_heavy"}},
        "optimizer": {"lr": 1e-3},
        "trainer": {"output": str(pool.parent / "run"), "max_steps": 3, "batch_size": 1, "val_every_steps": 3},
    }
    for key, value in changes.items():
        part, _, name = key.partition("__")
        content[part][name] = value
    return content


def test_pool_round_trip(pool: Path) -> None:
    data = MultiViewPool(pool, views=None)
    assert [len(data), data.unit] == [3, "m"]
    for found, want in zip((data[index] for index in range(3)), toy_samples(), strict=True):
        assert all(np.array_equal(first, second) for first, second in zip(found.images, want.images, strict=True))
        np.testing.assert_array_equal(found.depth, want.depth)
        assert found.depth_range == want.depth_range
        for first, second in zip(found.cameras, want.cameras, strict=True):
            assert np.array_equal(first.intrinsics, second.intrinsics)
            assert np.array_equal(first.world_to_camera, second.world_to_camera)
        assert found.scene.split("/")[1] == want.scene
    assert isinstance(MultiViewPool(pool)[0].images[0], np.memmap)
    assert len(MultiViewPool(pool, shards=1)) == 2


def test_damaged_pools(pool: Path, tmp_path: Path) -> None:
    (pool / "shard00001.depth.npy").write_bytes(b"x")
    with pytest.raises(FileFormatError, match="damaged shard"):
        MultiViewPool(pool)
    (pool / "shard00001.multiview.json").unlink()  # not complete, so not a part of the pool
    assert len(MultiViewPool(pool)) == 2
    np.save(pool / "shard00000.depth.npy", np.zeros((2, 5, 5), np.float32))
    with pytest.raises(FileFormatError, match="do not fit"):
        MultiViewPool(pool)
    with pytest.raises(InputError, match="cannot enter the pool"):
        write_multiview_pool(tmp_path / "other", [replace(toy_samples(1)[0], depth=None)])


def test_random_sources_are_a_function_of_seed_epoch_and_place(pool: Path) -> None:
    config = config_from_dict(recipe(pool))
    make = lambda: MultiViewTraining(MultiViewPool(pool, views=3, source_choice="random"), config.data, 7)  # noqa: E731
    first, second = make(), make()
    order = [11, 2, 5, 0, 7]
    drawn = {position: first[position].view_ids for position in range(12)}
    assert all(second[position].view_ids == drawn[position] for position in order)
    assert all(ids[0] == 0 and len(set(ids)) == 3 for ids in drawn.values())
    assert len({tuple(ids) for ids in drawn.values()}) > 3
    chained = MultiViewTraining(
        ConcatDataset([MultiViewPool(pool, views=3, source_choice="random")] * 2), config.data, 7
    )
    chained[40]
    assert {part.epoch for part in chained.dataset.datasets} == {6}  # type: ignore[attr-defined]


def test_transforms(pool: Path) -> None:
    steps = [{"name": "jitter"}, {"name": "widen_range", "options": {"factor": 5.0}}]
    config = config_from_dict(recipe(pool, data__augment=steps))
    data = MultiViewTraining(MultiViewPool(pool, views=3), config.data, 7)
    plain = MultiViewPool(pool, views=3)
    for position in range(6):
        sample, want = data[position], plain[data.index_of(position)]
        near, far = sample.depth_range or (0.0, 0.0)
        assert want.depth_range is not None
        assert want.depth_range[0] / 5 <= near <= want.depth_range[0]
        assert want.depth_range[1] <= far <= 5 * want.depth_range[1]
        assert not np.array_equal(sample.images[0], want.images[0])
        np.testing.assert_array_equal(sample.depth, want.depth)
    for bad, problem in (
        ({"data__crop": [64, 64]}, "whole images"),
        ({"data__vertical_flip": 0.5}, "whole images"),
        ({"data__augment": [{"name": "widen_range", "options": {"factor": 0.5}}]}, "must lie in"),
        ({"data__augment": [{"name": "jitter", "options": {"bright": 0.5}}]}, "did you mean 'brightness'"),
    ):
        with pytest.raises(ConfigError, match=problem):
            MultiViewTraining(plain, config_from_dict(recipe(pool, **bad)).data, 7)
    with pytest.raises(UnknownNameError, match="widen_range"):
        MultiViewTraining(plain, config_from_dict(recipe(pool, data__augment=[{"name": "widen_rang"}])).data, 7)


def test_collate_masks_and_refuses() -> None:
    samples = toy_samples(2)
    mask = np.ones(samples[0].images[0].shape[:2], dtype=bool)
    mask[10] = False
    batch = MultiViewBatch.collate([replace(samples[0], mask=mask), samples[1]])
    assert batch.images.shape == (2, 4, 3, 72, 96)
    assert batch.images[0, 1, :, 5, 6].numpy() * 255 == pytest.approx(samples[0].images[1][5, 6])
    assert torch.isnan(batch.depth[0, 0, 10]).all()
    assert torch.isfinite(batch.depth[1, 0, 10]).all()
    assert batch.world_to_camera.dtype == torch.float64
    fewer = replace(samples[1], images=samples[1].images[:3], cameras=samples[1].cameras[:3])
    with pytest.raises(InputError, match="min_sources"):
        MultiViewBatch.collate([samples[0], fewer])
    for change in ({"depth": None}, {"depth_range": None}, {"cameras": []}):
        with pytest.raises(InputError, match="cannot be trained on"):
            MultiViewBatch.collate([replace(samples[0], **change)])  # type: ignore[arg-type]


def test_two_steps_lower_the_loss(pool: Path) -> None:
    torch.manual_seed(0)
    config = config_from_dict(recipe(pool))
    task = MultiViewTask(config, plan_rounds([], 3, 3), 3)
    batch = MultiViewBatch.collate([MultiViewPool(pool, views=3)[0]])
    optimizer = torch.optim.Adam(task.model.parameters(), 2e-4)
    losses = []
    for _ in range(3):
        torch.manual_seed(1)  # the same start depth
        loss, output = task.compute_loss(batch)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[2] < 0.95 * losses[0], losses
    assert task.loss(output, batch)[0] == dispmvs_loss(
        output.iterations, batch.depth, batch.depth_range, gamma_order="last_heavy"
    )
    picture = [part.shape for part in task.preview_maps(batch, task.predict(batch).detach())]
    assert picture == [(3, 72, 96), (72, 96), (72, 96)]


def test_a_run_and_its_resume(pool: Path) -> None:
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    folder = pool.parent / "run"
    weights = train(config_from_dict(recipe(pool, trainer__output=str(folder))))
    assert weights.is_file()
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    assert [row["split"] for row in rows] == ["train"] * 3 + ["validation"]
    assert float(rows[-1]["abs_rel"]) > 0
    assert (folder / "best.ckpt").is_file()
    assert (folder / "images/step_00000003_0.png").is_file()
    longer = recipe(pool)
    longer["trainer"]["max_steps"] = 4
    train(config_from_dict(longer), resume="auto")
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    assert [row["step"] for row in rows if row["split"] == "train"] == ["1", "2", "3", "4"]


def test_wrong_losses(pool: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs loss\.name: dispmvs"):
        MultiViewTask(config_from_dict(recipe(pool, loss__name="multiscale_smooth_l1", loss__options={})), [], 3)
    for options in ({"gamma": 0.0}, {"gamma_order": "first"}):
        with pytest.raises(ConfigError, match="loss dispmvs"):
            create_loss("dispmvs", **options)


@pytest.mark.parametrize("name", ["dtu", "blendedmvs", "tiny_rooms_cpu"])
def test_shipped_recipes_read_their_data(name: str, tmp_path: Path, pool: Path) -> None:
    """The recipe's readers take its options, and its batches fit the loss."""
    config = load_config(CONFIGS / f"{name}.yaml")
    kind = config.data.train[0].kind
    root = pool
    if name == "blendedmvs":
        write_multiview_tree(kind, tmp_path / "set", 7)
        root = tmp_path / "set"
    elif name == "dtu":
        write_dtu_training(tmp_path / "set", count=5, depths="low")
        root = tmp_path / "set"
    source = replace(config.data.train[0], root=str(root))
    data = MultiViewTraining(open_sources([source]), config.data, 0)
    batch = MultiViewBatch.collate([data[0]])
    assert batch.images.shape[1] == source.options["views"]
    assert torch.isfinite(batch.depth).any()
    assert config.loss.options["gamma_order"] == ("last_heavy" if name == "tiny_rooms_cpu" else "first_heavy")


def test_metrics() -> None:
    truth = np.array([[10.0, 100.0, np.nan, 200.0, 0.0]])
    answer = np.array([[10.5, 97.0, 3.0, np.nan, 5.0]])
    metrics = MultiViewMetrics()
    metrics.update(answer, truth)
    figures = metrics.compute()
    assert figures["abs_error"] == pytest.approx(1.75)
    assert figures["abs_rel"] == pytest.approx((0.05 + 0.03) / 2)
    assert (figures["below1"], figures["below2"], figures["below4"]) == pytest.approx((100 / 3, 100 / 3, 200 / 3))
    assert (figures["rel2"], figures["rel5"]) == pytest.approx((0, 100 / 3))
    assert (figures["density"], figures["pixels"]) == pytest.approx((200 / 3, 3))
    parts = MultiViewMetrics(), MultiViewMetrics()
    for part, columns in zip(parts, (slice(0, 2), slice(2, 5)), strict=True):
        part.update(answer[:, columns], truth[:, columns])
    assert parts[0].merge(parts[1]) == metrics
    assert np.isnan(MultiViewMetrics().compute()["abs_rel"])
    with pytest.raises(InputError, match="does not fit"):
        metrics.update(answer, truth[:, :2])
