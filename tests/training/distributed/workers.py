# SPDX-License-Identifier: Apache-2.0
"""Processes for the tests of communication hooks. As a script: run every scenario of this file in N forked processes.

The processes speak gloo over the loopback interface; what each scenario returns is saved as ``NAME.RANK.pt``.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vision3d.errors import ConfigError, WeightsError
from vision3d.training.distributed.batch_norm import synchronize_batch_norm
from vision3d.training.distributed.hooks import create_communication
from vision3d.training.distributed.options import CommunicationConfig
from vision3d.training.distributed.sparse import SparseState, sparse_hook

STEPS, LR = 6, 0.1
SCENARIOS: dict[str, Callable[[int, int], Any]] = {}


def scenario(function: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    SCENARIOS[function.__name__] = function
    return function


class Net(nn.Module):
    """A toy network of 4 tensors; ``spare`` takes part only if asked to."""

    def __init__(self, spare: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 16), nn.Linear(16, 3)
        if spare:
            self.spare = nn.Linear(16, 3)

    def forward(self, x: Tensor, use_spare: bool = False) -> Tensor:
        hidden = torch.tanh(self.first(x))
        return self.second(hidden) + (self.spare(hidden) if use_spare else 0)


def make_net(spare: bool = False) -> Net:
    torch.manual_seed(7)
    return Net(spare)


def batch(worker: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + worker)
    return torch.randn(5, 12, generator=generator), torch.randn(5, 3, generator=generator)


def loss_of(model: nn.Module, worker: int, step: int, **options: Any) -> Tensor:
    x, y = batch(worker, step)
    return (model(x, **options) - y).square().mean()


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def run(rank: int, steps: int = STEPS, spare: bool = False, first: int = 0, clip: float = 0.0, accumulate: int = 1,
        prepare: Callable[[SparseState], None] | None = None, use_spare: Callable[[int], bool] | None = None,
        unused: bool = False, model: nn.Module | None = None, **options: Any) -> dict[str, Any]:  # fmt: skip
    """Train with a sparse hook; returns the flat weights, the state and the sum of the local gradients."""
    model = make_net(spare) if model is None else model
    ddp = DistributedDataParallel(model, find_unused_parameters=unused)
    state = SparseState(model.named_parameters(), **{"dense_below": 0, **options})
    if prepare is not None:
        prepare(state)
    ddp.register_comm_hook(state, sparse_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(first, first + steps):
        optimizer.zero_grad()
        extra = {} if use_spare is None else {"use_spare": use_spare(step)}
        for part in range(accumulate):
            ddp.require_backward_grad_sync = part == accumulate - 1
            (loss_of(ddp, rank, step * accumulate + part, **extra) / accumulate).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    state.close()
    saved = state.state_dict()
    names = [name for name, _ in model.named_parameters()]
    return {
        "weights": flat(model.parameters()),
        "residual": torch.cat([saved["residual"][name].reshape(-1) for name in names]),
        "state": saved,
        "bytes": state.traffic.bytes_sent,
        "messages": state.traffic.messages,
        "model": model,
    }


def plain(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key != "model"}


RUNS: dict[str, dict[str, Any]] = {
    "topk": {"reducer": "gather", "density": 0.1},
    "adopt": {"density": 0.1},
    "resum": {"density": 0.1, "rule": "resum"},
    "paper": {"density": 0.1, "rule": "paper"},
    "momentum": {"reducer": "gather", "density": 0.1, "momentum": 0.9},
    "warmup": {"density": 0.02, "warmup_steps": 6},
    "layers": {"reducer": "gather", "density": 0.1, "layerwise": True, "ratios": {"first.weight": 4.0}},
    "threaded": {"reducer": "gather", "density": 0.1, "layerwise": True, "ratios": {"first.weight": 4.0},
                 "overlap": True},
    "one_entry": {"density": 1e-6},
    "everything": {"density": 1.0},
    "everything_gathered": {"density": 1.0, "reducer": "gather"},
    "clipped": {"density": 0.1, "clip": 0.05},
    "accumulated": {"density": 0.1, "accumulate": 2},
}  # fmt: skip
for _name, _options in RUNS.items():
    SCENARIOS[_name] = lambda rank, world, options=_options: plain(run(rank, **options))


@scenario
def mixed_dense(rank: int, world: int) -> Any:
    """Biases densely, weights sparsely, momentum correction, threads: only sums and agreement are checked."""
    return plain(run(rank, density=0.1, dense_below=20, momentum=0.5, overlap=True))


@scenario
def dense_ddp(rank: int, world: int) -> Any:
    """DDP without a hook."""
    model = make_net()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, rank, step).backward()
        optimizer.step()
    return {"weights": flat(model.parameters())}


@scenario
def buckets(rank: int, world: int) -> Any:
    """Several buckets, which DDP rebuilds after the first step; the smallest has fewer entries than k of the others."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.002)
    state = SparseState(model.named_parameters(), density=0.05, dense_below=0)
    seen: list[list[str]] = []
    sums = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    got = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}

    def noting(state: SparseState, bucket):  # type: ignore[no-untyped-def]
        blocks = state.blocks_of(bucket)
        seen.append([block.name for block in blocks])
        for block, gradient in zip(blocks, bucket.gradients(), strict=True):
            sums[block.name] += gradient
        return sparse_hook(state, bucket)

    ddp.register_comm_hook(state, noting)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, rank, step).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            got[name] += parameter.grad
        optimizer.step()
    return {"seen": seen, "sums": sums, "got": got, "residual": state.state_dict()["residual"]}


@scenario
def unused(rank: int, world: int) -> Any:
    """A layer that takes part in the first two steps only: its residual stays, and its weights stand still."""
    residuals: list[dict[str, Tensor]] = []
    weights: list[Tensor] = []
    model = make_net(True)

    def prepare(state: SparseState) -> None:
        def note(state: SparseState) -> None:
            residuals.append({name: value.clone() for name, value in state.residual.by_name.items()})
            weights.append(model.spare.weight.detach().clone())

        state.on_step_end = note

    run(rank, spare=True, density=0.05, use_spare=lambda step: step < 2, unused=True, prepare=prepare, model=model)
    weights.append(model.spare.weight.detach().clone())
    return {"residuals": residuals, "weights": weights}


@scenario
def resumed(rank: int, world: int) -> Any:
    """Three steps, then three more from the saved states, in a new DDP."""
    half = run(rank, 3, density=0.1, momentum=0.9)
    states: list[Any] = [None] * world
    dist.all_gather_object(states, half["state"])
    rest = run(
        rank, 3, first=3, density=0.1, momentum=0.9, model=half["model"], prepare=lambda s: s.load_state_dicts(states)
    )
    return {
        "resumed": rest["weights"],
        "whole": run(rank, 6, density=0.1, momentum=0.9)["weights"],
        "half": half["state"],
    }


@scenario
def scaled(rank: int, world: int) -> Any:
    """A gradient scaler whose factor changes: the gradients, divided by it, are as without one."""
    result = {}
    for name, factors in {"plain": [1.0] * 6, "scaled": [1024.0, 1024.0, 512.0, 2048.0, 4.0, 4.0]}.items():
        model = make_net()
        ddp = DistributedDataParallel(model)
        scale = [1.0]
        state = SparseState(model.named_parameters(), density=0.1, dense_below=0, scale=lambda scale=scale: scale[0])
        ddp.register_comm_hook(state, sparse_hook)
        for step, scale[0] in enumerate(factors):
            model.zero_grad()
            (loss_of(ddp, rank, step) * scale[0]).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= LR * parameter.grad / scale[0]
        result[name] = flat(model.parameters())
    return result


@scenario
def not_finite(rank: int, world: int) -> Any:
    """One process has a NaN in step 2: all see it in that step, and what was to be sent is delivered later."""
    result = {}
    for overlap in (False, True):
        model = make_net()
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.0005)
        state = SparseState(model.named_parameters(), density=0.1, dense_below=10, overlap=overlap)
        ddp.register_comm_hook(state, sparse_hook)
        finite, before = [], {}
        sums, got = torch.zeros(flat(model.parameters()).numel()), torch.zeros(flat(model.parameters()).numel())
        for step in range(4):
            model.zero_grad()
            loss = loss_of(ddp, rank, step)
            if step == 2 and rank == world - 1:
                before = {name: value.clone() for name, value in state.residual.by_name.items()}
                loss = loss * float("nan")
            loss.backward()
            gradient = flat(parameter.grad for parameter in model.parameters())
            finite.append(bool(torch.isfinite(gradient).all()))
            if step == 2 and rank == world - 1:
                after = state.residual.by_name
                result["kept"] = all(torch.equal(after[name], value) for name, value in before.items())
            if finite[-1]:
                got += gradient
            if not (step == 2 and rank == world - 1):
                alone = make_net()
                sums += flat(torch.autograd.grad(loss_of(alone, rank, step), list(alone.parameters())))
        saved = state.state_dict()["residual"]
        residual = torch.cat([saved[name].reshape(-1) for name, _ in model.named_parameters()])
        result[f"overlap {overlap}"] = {"finite": finite, "sums": sums, "got": got, "residual": residual}
        state.close()
    return result


@scenario
def torch_hooks(rank: int, world: int) -> Any:
    """Bytes by our counters, and by counting the elements of every all-reduce that PyTorch's hooks make."""
    original, result = dist.all_reduce, {}
    for name in ("none", "fp16", "powersgd"):
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
        ddp = DistributedDataParallel(model)
        options = CommunicationConfig(hook=name, powersgd_start=2)  # type: ignore[arg-type]
        communication = create_communication(options, model.named_parameters())
        ddp.register_comm_hook(communication.state, communication.hook)
        sizes: list[int] = []

        def counting(tensor: Tensor, *arguments: Any, sizes: list[int] = sizes, **named: Any) -> Any:
            sizes.append(tensor.numel() * tensor.element_size())
            return original(tensor, *arguments, **named)

        dist.all_reduce = counting
        for step in range(4):
            loss_of(ddp, rank, step).backward()
        dist.all_reduce = original
        traffic = communication.traffic()
        result[name] = {"bytes": traffic.bytes_sent, "sizes": sizes, "steps": traffic.steps, "seconds": traffic.seconds}
    return result


@scenario
def adapted(rank: int, world: int) -> Any:
    """LAGS measures for two steps and then agrees on ratios."""
    model = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    ddp = DistributedDataParallel(model)
    options = CommunicationConfig(hook="lags", density=0.05, adapt_steps=2, dense_below=100)
    communication = create_communication(options, model.named_parameters())
    ddp.register_comm_hook(communication.state, communication.hook)
    for step in range(6):
        loss_of(ddp, rank, step).backward()
    state = communication.sparse
    assert state is not None
    state.close()
    return {"ratios": state.ratios, "weights": flat(parameter.grad for parameter in model.parameters())}


@scenario
def regrouped(rank: int, world: int) -> Any:
    """States of five former processes: what is left to deliver stays the same."""
    model = make_net()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    generator = torch.Generator().manual_seed(5)
    states: list[dict[str, Any]] = [
        {
            "world": 5, "rank": former, "step": 9, "momentum": 0.9, "ratios": {},
            "residual": {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()},
            "velocity": {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()},
        }
        for former in range(5)
    ]  # fmt: skip
    state = SparseState(model.named_parameters(), momentum=0.9)
    state.load_state_dicts(states)
    errors = []
    for wrong in (states[:4], [{**state, "residual": {"other.weight": torch.zeros(1)}} for state in states]):
        try:
            state.load_state_dicts(wrong)
        except WeightsError as error:
            errors.append(str(error))
    saved = SparseState(model.named_parameters())
    saved.load_state_dicts(states)
    return {"former": states, "now": state.state_dict(), "errors": errors, "step": saved.step}


@scenario
def foreign_parameter(rank: int, world: int) -> Any:
    """A state that was built for another module."""
    ddp = DistributedDataParallel(make_net())
    ddp.register_comm_hook(SparseState(make_net().named_parameters()), sparse_hook)
    try:
        loss_of(ddp, rank, 0).backward()
    except ConfigError as error:
        return str(error)
    return ""


@scenario
def normalized(rank: int, world: int) -> Any:
    """Two training steps of a network with synchronised batch normalisation, then evaluation; unequal batches."""
    torch.manual_seed(3)
    model = synchronize_batch_norm(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh()))
    generator = torch.Generator().manual_seed(11)
    everything = torch.randn(2 * world + 1, 2, 6, 5, generator=generator)
    part = everything[2 * rank : 2 * rank + (3 if rank == world - 1 else 2)]
    inputs = part.clone().requires_grad_()
    for _ in range(2):
        output = model(inputs)
    (output**3).sum().backward()
    gradients = flat(parameter.grad for parameter in model.parameters())
    dist.all_reduce(gradients)
    return {
        "everything": everything,
        "output": output.detach(),
        "inputs": inputs.grad,
        "gradients": gradients,
        "buffers": flat(model.buffers()),
        "evaluated": model.eval()(part).detach(),
    }


def work(rank: int, world: int, folder: Path) -> None:
    """Run every scenario in this process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    for name, function in SCENARIOS.items():
        torch.save(function(rank, world), folder / f"{name}.{rank}.pt")
        dist.barrier()
    dist.destroy_process_group()


def fork(world: int, folder: Path) -> int:
    """Run ``work`` in ``world`` processes; the largest of their exit codes."""
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            try:
                work(rank, world, folder)
            except BaseException:  # noqa: BLE001  (a forked process must not run on as its parent)
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(fork(int(sys.argv[1]), Path(sys.argv[2])))
