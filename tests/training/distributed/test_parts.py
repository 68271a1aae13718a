# SPDX-License-Identifier: Apache-2.0
"""Parts of distributed training that need no second process: options, densities, ratios, messages, files, energy."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from vision3d.errors import ConfigError, WeightsError
from vision3d.training.config import config_from_dict
from vision3d.training.distributed.agreement import check_launch, flatten, gather_trouble
from vision3d.training.distributed.energy import EnergyMeter
from vision3d.training.distributed.lags import LinkModel, adaptive_ratio, plan_ratios
from vision3d.training.distributed.layout import Memory, make_blocks
from vision3d.training.distributed.options import sends_more_than_dense
from vision3d.training.distributed.reducers import add_sparse, select_top
from vision3d.training.distributed.sparse import SparseState, density_at
from vision3d.training.distributed.wire import pack, unpack

RECIPE: dict[str, Any] = {"model": {"name": "tiny"}, "data": {"train": [{"kind": "pool", "root": "a"}]}}


def recipe(communication: dict[str, Any], **groups: Any) -> Any:
    return config_from_dict({**copy.deepcopy(RECIPE), "communication": communication, **groups}, "r.yaml")


@pytest.mark.parametrize(
    ("communication", "groups", "message"),
    [
        ({"density": 0}, {}, r"communication.density must lie in \(0, 1\], got 0"),
        ({"density": 1.5}, {}, r"communication.density must lie in \(0, 1\], got 1.5"),
        ({"density": float("nan")}, {}, r"communication.density must lie in \(0, 1\]"),
        ({"hook": "gtop"}, {}, "communication.hook must be one of"),
        ({"hok": "gtopk"}, {}, "did you mean 'communication.hook'"),
        ({"warmup_steps": -1}, {}, "communication.warmup_steps must be at least 0"),
        ({"bucket_mb": 0}, {}, "communication.bucket_mb must be positive"),
        ({"powersgd_start": 1}, {}, "communication.powersgd_start must be at least 2"),
        ({"hook": "gtopk"}, {"trainer": {"strategy": "fsdp2"}}, "needs DDP: fsdp2 shards the gradients"),
        ({"hook": "fp16"}, {"trainer": {"strategy": "deepspeed"}}, "needs trainer.strategy: ddp"),
        ({"momentum_correction": 0.9}, {}, "needs the hook topk, gtopk or lags, not none"),
        ({"hook": "topk", "momentum_correction": 0.9}, {}, "set optimizer.name: sgd with optimizer.momentum: 0"),
        (
            {"hook": "topk", "momentum_correction": 0.9},
            {"optimizer": {"name": "sgd", "momentum": 0.9}},
            "set optimizer.name: sgd with optimizer.momentum: 0",
        ),
        ({"hook": "powersgd"}, {"trainer": {"non_finite": "skip"}}, "set trainer.non_finite: error"),
    ],
)  # fmt: skip
def test_bad_options(communication: dict[str, Any], groups: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        recipe(communication, **groups)
    assert str(caught.value).startswith("r.yaml: ")
    assert "\n" not in str(caught.value)


def test_good_options() -> None:
    sgd = {"optimizer": {"name": "sgd"}, "trainer": {"strategy": "ddp"}}
    options = recipe({"hook": "topk", "momentum_correction": 0.9, "density": 1}, **sgd).communication
    assert options.sparse
    assert options.rule == "adopt"
    assert not recipe({}).communication.sparse


@pytest.mark.parametrize(("key", "value"), [("momentum", 0.9), ("amsgrad", True)])
def test_options_of_another_optimiser(key: str, value: object) -> None:
    name = "adam" if key == "momentum" else "sgd"
    with pytest.raises(ConfigError, match=f"optimizer.{key}"):
        recipe({}, optimizer={"name": name, key: value})


def test_density_falls_by_factors_of_four() -> None:
    assert [density_at(step, 0.01, 9) for step in range(10)] == [0.25] * 3 + [0.0625] * 3 + [0.015625] * 3 + [0.01]
    assert density_at(0, 0.01, 0) == 0.01
    assert density_at(0, 0.5, 100) == 0.5
    assert density_at(0, 0.25, 100) == 0.25


@pytest.mark.parametrize(
    ("hook", "density", "world", "more"),
    [("topk", 0.3, 4, True), ("topk", 0.2, 4, False), ("gtopk", 0.4, 4, True), ("gtopk", 0.3, 4, False),
     ("lags", 0.6, 2, True), ("none", 1.0, 2, False)],
)  # fmt: skip
def test_densities_that_send_more_than_a_dense_sum(hook: str, density: float, world: int, more: bool) -> None:
    assert sends_more_than_dense(recipe({"hook": hook, "density": density}).communication, world) == more


LINK = LinkModel(latency=1e-4, byte_seconds=1e-8, select=2e-10)


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("elements", [2000, 300_000, 5_000_000])
@pytest.mark.parametrize("budget", [0.0, 1e-4, 1e-3, 1e-2, 1e-1])
def test_ratio_is_the_smallest_that_hides(world: int, elements: int, budget: float) -> None:
    bound = 1000.0
    ratio = adaptive_ratio(elements, budget, LINK, world, bound)
    if 2 * (world - 1) * (1e-4 + 4 * elements / world * 1e-8) <= budget:
        assert ratio == 1
        return
    candidates = np.geomspace(1, bound, 20001)
    entries = elements / candidates
    seconds = 2e-10 * elements * np.log2(elements) + 1e-4 * np.log2(world) + 8 * (world - 1) * entries * 1e-8
    hidden = candidates[seconds <= budget]
    assert ratio == pytest.approx(hidden[0] if len(hidden) else bound, rel=1e-3)
    assert len(hidden) == 0 or ratio >= 1


def test_the_last_layer_takes_the_bound() -> None:
    layers = [("a", 10_000, 0.0), ("b", 10_000, 10.0), ("c", 10_000, 0.0)]
    assert plan_ratios(layers, LINK, 4, 100.0) == {"a": 1.0, "b": 100.0, "c": 100.0}


def test_messages_keep_every_bit() -> None:
    indices = torch.tensor([0, 3, 2**31 - 1])
    values = torch.tensor([1.5, -0.0, 1e-42])
    message = pack(indices, values, 5, 7)
    assert message.dtype == torch.int32
    assert message.numel() == 11
    got_indices, got_values, flag = unpack(message)
    assert torch.equal(got_indices, indices)
    assert torch.equal(got_values.view(torch.int32), values.view(torch.int32))
    assert flag == 7
    assert unpack(pack(indices[:0], values[:0], 2, 0))[0].numel() == 0


def test_selection_and_sum() -> None:
    values = torch.tensor([3.0, -5.0, 0.5, 4.0])
    assert select_top(values, 2).tolist() == [1, 3]
    assert select_top(values, 9).tolist() == [0, 1, 2, 3]
    union, total = add_sparse([torch.tensor([1, 4]), torch.tensor([0, 4])], [torch.ones(2), torch.full((2,), 2.0)])
    assert (union.tolist(), total.tolist()) == ([0, 1, 4], [2.0, 1.0, 3.0])


def test_memory_follows_the_parameters_into_other_buckets() -> None:
    memory, device = Memory(), torch.device("cpu")
    a, b = torch.zeros(2, 3), torch.zeros(4)
    memory.flat(make_blocks("ab", [6, 4]), [a, b], device)[:] = torch.arange(10.0)
    turned = memory.flat(make_blocks("b", [4]), [b], device)
    assert turned.tolist() == [6, 7, 8, 9]
    transposed = torch.zeros(3, 2).t()  # another order of the elements in the buffer
    assert memory.flat(make_blocks("a", [6]), [transposed], device).tolist() == [0, 3, 1, 4, 2, 5]
    assert memory.state_dict()["a"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_files_of_residuals(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from vision3d.training.distributed.saving import load_state, save_state, state_path

    network = torch.nn.Linear(3, 2)
    state = SparseState(network.named_parameters())
    state.load_state_dicts([{**state.state_dict(), "residual": {"bias": torch.ones(2)}}])
    run, tmp_path = tmp_path, tmp_path / "communication"
    for step, name in ((10, "last"), (12, "best"), (14, "best"), (20, "none"), (30, "none")):
        save_state(state, tmp_path, step)  # the checkpoint follows
        torch.save({"global_step": step}, run / f"{name}.ckpt")
    assert sorted(int(path.name.split("_")[1]) for path in tmp_path.glob("*.pt")) == [10, 14, 30]
    other = SparseState(network.named_parameters())
    assert load_state(other, tmp_path, 30) is None
    assert other.residual.by_name["bias"].tolist() == [1, 1]
    assert "no residuals of step 20" in str(load_state(other, tmp_path, 20))
    saved = torch.load(state_path(tmp_path, 30, 0), weights_only=True)
    torch.save({**saved, "world": 3}, state_path(tmp_path, 40, 0))
    assert "by 1 of 3 processes" in str(load_state(other, tmp_path, 40))
    state_path(tmp_path, 50, 0).write_bytes(state_path(tmp_path, 30, 0).read_bytes()[:100])
    with pytest.raises(WeightsError, match="remove the file to start without them"):
        load_state(other, tmp_path, 50)
    for rank in (0, 1):
        torch.save({**saved, "world": 2}, state_path(tmp_path, 60, rank))
    assert "each takes 1/1 of their sum" in str(load_state(other, tmp_path, 60))
    assert other.residual.by_name["bias"].tolist() == [2, 2]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "options", [{"density": 0}, {"density": 1.1}, {"momentum": 1}, {"reducer": "ring"}, {"rule": "x"}]
)
def test_bad_arguments_of_the_state(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="communication: "):
        SparseState(torch.nn.Linear(1, 1).named_parameters(), **options)


def test_launch_and_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    check_launch(1, 1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "4")
    check_launch(2, 2)
    with pytest.raises(ConfigError, match=r"4 processes, but trainer.devices x trainer.nodes is 2 x 1"):
        check_launch(2, 1)
    assert flatten({"a": {"b": [1, {"c": 2}]}, "d": [], "e": None}) == {"a.b.0": 1, "a.b.1.c": 2, "d": [], "e": None}
    assert gather_trouble(None, torch.device("cpu")) == []
    assert gather_trouble((True, "x"), torch.device("cpu")) == ["x"]


def test_energy_counters(tmp_path: Path) -> None:
    for zone, start in (("intel-rapl:0", 900), ("intel-rapl:1", 5), ("intel-rapl:0:0", 0)):
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "energy_uj").write_text(f"{start}\n")
        (tmp_path / zone / "max_energy_range_uj").write_text("999\n")
    meter = EnergyMeter(torch.device("cpu"), tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("100\n")  # wrapped: 200 further
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("35\n")
    (tmp_path / "intel-rapl:0:0" / "energy_uj").write_text("50\n")  # a part of package 0
    assert meter.joules() == pytest.approx(230e-6)
    assert meter.missing is None
    none = EnergyMeter(torch.device("cpu"), tmp_path / "nowhere")
    assert none.joules() is None
    assert "virtual machines have none" in str(none.missing)
