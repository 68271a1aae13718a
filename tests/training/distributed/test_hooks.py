# SPDX-License-Identifier: Apache-2.0
"""Sparsified hooks in 2, 3 and 4 gloo processes against a single-process simulation written from the formulas."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simulation
import torch
from workers import LR, RUNS, STEPS, flat, loss_of, make_net

from vision3d.training.distributed.sparse import density_at

SCRIPT = Path(__file__).with_name("workers.py")
ROOT = SCRIPT.parents[3]
SIZE = sum(parameter.numel() for parameter in make_net().parameters())
Results = Callable[[str], list[Any]]


@pytest.fixture(scope="module", params=[2, 3, 4])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What each process returned from a scenario, with so many processes."""
    world, folder = request.param, tmp_path_factory.mktemp(f"world{request.param}")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(SCRIPT), str(world), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return lambda name: [torch.load(folder / f"{name}.{rank}.pt", weights_only=False) for rank in range(world)]


def gradient(weights: np.ndarray, worker: int, step: int) -> np.ndarray:
    """Of the toy network, in float32 as the processes compute it."""
    model = make_net()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(weights.astype(np.float32)), model.parameters())
    return flat(torch.autograd.grad(loss_of(model, worker, step), list(model.parameters()))).numpy().astype(np.float64)


def accumulated(weights: np.ndarray, worker: int, step: int) -> np.ndarray:
    return (gradient(weights, worker, 2 * step) + gradient(weights, worker, 2 * step + 1)) / 2


def clip(total: np.ndarray) -> np.ndarray:
    return total * min(1.0, 0.05 / (np.linalg.norm(total) + 1e-6))


def layers() -> list[tuple[slice, int]]:
    """k of each tensor: a quarter of the first weights, a tenth of the others, at least one."""
    places, start = [], 0
    for name, parameter in make_net().named_parameters():
        size = parameter.numel()
        places.append((slice(start, start + size), max(1, int(size * (0.25 if name == "first.weight" else 0.1)))))
        start += size
    return places


def simulate(world: int, rule: str, k: Callable[[int], int], **options: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    start = flat(make_net().parameters()).numpy().astype(np.float64)
    options = {"gradient": gradient, **options}
    return simulation.train(weights=start, workers=world, steps=STEPS, lr=LR, count=k, rule=rule, **options)


TENTH = int(SIZE * 0.1)
SIMULATED: dict[str, dict[str, Any]] = {
    "topk": {"rule": "topk"},
    "adopt": {"rule": "adopt"},
    "resum": {"rule": "resum"},
    "paper": {"rule": "paper"},
    "momentum": {"rule": "topk", "momentum": 0.9},
    "layers": {"rule": "layers", "layers": layers()},
    "threaded": {"rule": "layers", "layers": layers()},
    "one_entry": {"rule": "adopt", "k": lambda step: 1},
    "warmup": {"rule": "adopt", "k": lambda step: int(SIZE * [0.25, 0.25, 0.0625, 0.0625, 0.25**3, 0.25**3][step])},
    "clipped": {"rule": "adopt", "change": clip},
    "accumulated": {"rule": "adopt", "gradient": accumulated},
}


@pytest.mark.parametrize("name", SIMULATED)
def test_updates_are_those_of_the_simulation(results: Results, name: str) -> None:
    if name == "warmup":  # 0.25, 0.0625, 0.015625 would go on below 0.02
        SIMULATED[name]["k"] = lambda step: int(SIZE * density_at(step, 0.02, 6))
    got = results(name)
    weights, residuals = simulate(len(got), **{"k": lambda step: TENTH, **SIMULATED[name]})
    for worker, residual in zip(got, residuals, strict=True):
        np.testing.assert_allclose(worker["weights"], weights, rtol=0, atol=2e-6)
        np.testing.assert_allclose(worker["residual"], residual, rtol=0, atol=2e-6)


def test_all_processes_hold_the_same_weights(results: Results) -> None:
    for name in (*RUNS, "mixed_dense", "adapted"):
        first, *others = results(name)
        assert torch.isfinite(first["weights"]).all()
        assert all(torch.equal(first["weights"], other["weights"]) for other in others), name


def test_density_one_is_plain_ddp(results: Results) -> None:
    want = results("dense_ddp")[0]["weights"]
    for name in ("everything", "everything_gathered"):
        for worker in results(name):
            torch.testing.assert_close(worker["weights"], want, rtol=0, atol=1e-6)
            assert not worker["residual"].any()
    assert (results("adopt")[0]["weights"] - want).abs().max() > 1e-3  # the comparison can fail


def test_what_is_sent_and_what_is_kept_is_the_sum_of_the_gradients(results: Results) -> None:
    """P sum_t G_t + sum_p r_p = sum_p sum_t g_p, at fixed weights; the gradient that is not finite counts as none."""
    got = results("not_finite")
    for overlap in (False, True):
        parts = [worker[f"overlap {overlap}"] for worker in got]
        delivered = len(parts) * parts[0]["got"] + sum(part["residual"] for part in parts)
        torch.testing.assert_close(delivered, sum(part["sums"] for part in parts), rtol=1e-5, atol=1e-5)


def test_a_value_that_is_not_finite_is_seen_by_all_in_its_step(results: Results) -> None:
    for worker in results("not_finite"):
        for overlap in (False, True):
            assert worker[f"overlap {overlap}"]["finite"] == [True, True, False, True]
    assert results("not_finite")[-1]["kept"]  # the process with the NaN keeps its residual as it was


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_the_published_rule_loses_mass_with_three_or_more(world: int) -> None:
    """In the simulation, which the processes follow."""
    generator = np.random.default_rng(3)
    common = generator.standard_normal(400)
    vectors = [common + generator.standard_normal(400) for _ in range(world)]
    for rule, exact in (("paper", world == 2), ("adopt", True), ("resum", True)):
        total, residuals, _ = simulation.exchange(vectors, 40, rule)
        lost = np.abs(sum(vectors) - total - sum(residuals)).sum()
        assert (lost < 1e-9) == exact, rule


def test_buckets_are_rebuilt_and_some_are_smaller_than_k(results: Results) -> None:
    got = results("buckets")
    seen = [tuple(names) for names in got[0]["seen"]]
    rounds = len(seen) // STEPS
    assert set(seen[: rounds - 1]) != set(seen[-rounds + 1 :])  # other buckets at the end than at the start
    for name, total in got[0]["got"].items():
        residual = sum(worker["residual"][name] for worker in got)
        delivered = len(got) * total + residual
        torch.testing.assert_close(delivered, sum(worker["sums"][name] for worker in got), rtol=1e-5, atol=1e-5)


def test_a_layer_without_part_keeps_its_residual(results: Results) -> None:
    for worker in results("unused"):
        before, *later = [entry["spare.weight"] for entry in worker["residuals"]][1:]
        assert before.abs().max() > 0
        assert all(torch.equal(value, before) for value in later)
        moved = worker["weights"]
        assert not torch.equal(moved[0], moved[2])  # it was trained ...
        assert torch.equal(moved[2], moved[-1])  # ... and then stood still


def test_resume_is_exact(results: Results) -> None:
    for worker in results("resumed"):
        assert torch.equal(worker["resumed"], worker["whole"])


def test_a_changing_loss_scale_changes_nothing(results: Results) -> None:
    for worker in results("scaled"):
        assert torch.equal(worker["scaled"], worker["plain"])


def test_bytes_on_the_wire(results: Results) -> None:
    world = len(results("topk"))
    message = 4 + 8 * TENTH
    topk = [worker["bytes"] for worker in results("topk")]
    assert topk == [STEPS * (world - 1) * message] * world
    tree = [worker["bytes"] for worker in results("adopt")]
    links = {2: [1, 1], 3: [2, 1, 1], 4: [2, 1, 2, 1]}[world]  # up and down: each link carries a message both ways
    assert tree == [STEPS * count * message for count in links]
    resum = [worker["bytes"] for worker in results("resum")]
    extra = [more - less for more, less in zip(resum, tree, strict=True)]
    assert extra == pytest.approx([STEPS * 2 * 4 * TENTH * (world - 1) / world] * world)


def test_bytes_of_the_hooks_of_pytorch(results: Results) -> None:
    for worker in results("torch_hooks"):
        world = len(results("torch_hooks"))
        for name, counted in worker.items():
            sizes = (
                counted["sizes"][1:] if name == "fp16" else counted["sizes"]
            )  # the first one is the check of the type
            assert counted["steps"] == 4
            assert counted["seconds"] > 0
            if name == "powersgd":
                assert counted["bytes"] == pytest.approx(2 * sum(sizes) * (world - 1) / world)
                assert sizes[-1] < 1000 < sizes[0]
        assert worker["fp16"]["bytes"] * 2 == worker["none"]["bytes"]
        elements = sum(p * q + q for p, q in ((12, 64), (64, 64), (64, 3)))
        assert worker["none"]["bytes"] == pytest.approx(4 * 2 * 4 * elements * (world - 1) / world)


def test_lags_agrees_on_ratios(results: Results) -> None:
    ratios = [worker["ratios"] for worker in results("adapted")]
    assert all(other == ratios[0] for other in ratios)
    assert set(ratios[0]) == {"0.weight", "2.weight", "4.weight"}
    assert all(1 <= ratio <= 20 for ratio in ratios[0].values())
    assert ratios[0]["0.weight"] == 20  # nothing is left to hide behind


def test_a_state_of_another_number_of_processes_is_shared_out(results: Results) -> None:
    got = results("regrouped")
    for key in ("residual", "velocity"):
        for name in got[0]["now"][key]:
            before = sum(state[key][name] for state in got[0]["former"])
            torch.testing.assert_close(sum(worker["now"][key][name] for worker in got), before, rtol=1e-5, atol=1e-5)
    assert got[0]["step"] == 9
    assert "4 saved states, but they are of 5 processes" in got[0]["errors"][0]
    assert "other.weight is not in this one" in got[0]["errors"][1]


def test_a_state_of_another_module_is_refused(results: Results) -> None:
    assert all("pass the named_parameters() of the module" in text for text in results("foreign_parameter"))


def test_synchronised_normalisation_is_that_of_the_whole_batch(results: Results) -> None:
    got = results("normalized")
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Tanh())
    inputs = got[0]["everything"].clone().requires_grad_()
    for _ in range(2):
        output = model(inputs)
    (output**3).sum().backward()
    tight = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(torch.cat([worker["output"] for worker in got]), output.detach(), **tight)
    torch.testing.assert_close(torch.cat([worker["inputs"] for worker in got]), inputs.grad, **tight)
    torch.testing.assert_close(got[0]["gradients"], flat(p.grad for p in model.parameters()), **tight)
    for worker in got:
        torch.testing.assert_close(worker["buffers"], flat(model.buffers()), **tight)
    evaluated = torch.cat([worker["evaluated"] for worker in got])
    torch.testing.assert_close(evaluated, model.eval()(inputs).detach(), **tight)
