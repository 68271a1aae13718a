# SPDX-License-Identifier: Apache-2.0
"""Seconds and bytes a training step of each communication hook over slow links. As a module: one process of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vision3d.benchmark.slow_link import SlowLinks
from vision3d.errors import InputError

PROTOCOL = (
    "gloo, one thread a process, a multilayer perceptron, SGD; warm-up steps, then the mean of the slowest "
    "process; link: rate-limited interfaces (tbf) with the bytes that they sent, or emulated: seconds on the loopback "
    "interface plus the bytes sent by the busiest process over the rate"
)
WARMUP = 3
HOOKS = ("none", "fp16", "powersgd", "topk", "gtopk", "lags")


@dataclass(frozen=True)
class Row:
    """The figures of one hook.

    Attributes:
        seconds: a step of the slowest process.
        sent_bytes: payload of a step by our counters, of the process that sends most.
        interface_bytes: what its interface sent in that time, with all headers; None on an emulated link.
    """

    hook: str
    seconds: float
    sent_bytes: float
    interface_bytes: float | None


@dataclass(frozen=True)
class Plan:
    """What is measured: hooks, size of the network, density, steps, and rate of the links in Mbit/s."""

    hooks: tuple[str, ...] = HOOKS
    processes: int = 4
    width: int = 1000
    density: float = 0.01
    steps: int = 5
    megabits: float = 100.0


def measure_communication(
    plan: Plan, emulate: bool = False, progress: Callable[[str], None] | None = None
) -> tuple[list[Row], str]:
    """Measure the hooks.

    Args:
        plan: what to measure; the network has about 4 x width^2 parameters.
        emulate: do without namespaces even where they can be made.
        progress: is told what happens.

    Returns:
        A row a hook, and the kind of link in words.

    Raises:
        InputError: an illegal plan, or a process that failed (with its last line of error).
    """
    if plan.processes < 2 or plan.width < 1 or plan.steps < 1 or plan.megabits <= 0 or not 0 < plan.density <= 1:
        raise InputError(
            f"cannot measure {plan}: processes >= 2, width, steps and megabits positive, density in (0, 1]"
        )
    unknown = [hook for hook in plan.hooks if hook not in HOOKS]
    if unknown or not plan.hooks:
        raise InputError(f"unknown hook {unknown[:1] or 'list'}: choose from {', '.join(HOOKS)}")
    reason = "asked for" if emulate else SlowLinks.missing()
    links = SlowLinks(plan.processes, plan.megabits) if reason is None else None
    kind = f"{plan.megabits:g} Mbit/s " + ("rate-limited interfaces" if links else f"emulated link ({reason})")
    if progress is not None:
        progress(f"{plan.processes} processes, {kind}")
    with links or nullcontext():
        results = _run_processes(plan, links)
    return [_row(hook, [result[hook] for result in results], plan, links is None) for hook in plan.hooks], kind


def _row(hook: str, parts: Sequence[dict[str, float]], plan: Plan, emulated: bool) -> Row:
    sent = max(part["bytes"] for part in parts)
    seconds = max(part["seconds"] for part in parts)
    if emulated:
        return Row(hook, seconds + 8 * sent / (plan.megabits * 1e6), sent, None)
    return Row(hook, seconds, sent, max(part["interface"] for part in parts))


def _run_processes(plan: Plan, links: SlowLinks | None) -> list[dict[str, Any]]:
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        running = []
        for rank in range(plan.processes):
            variables = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": links.address(0) if links else "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(plan.processes),
                "GLOO_SOCKET_IFNAME": links.interface if links else "lo",
            }
            command = [sys.executable, "-m", __name__, json.dumps(asdict(plan)), f"{folder}/{rank}.json"]
            command = links.command(rank, command) if links else command
            running.append(subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True))
        errors = [process.communicate()[1] for process in running]
        failed = [rank for rank, process in enumerate(running) if process.returncode]
        if failed:
            last = (errors[failed[0]].strip().splitlines() or ["no message"])[-1]
            raise InputError(f"process {failed[0]} of the benchmark failed: {last}")
        return [json.loads(Path(f"{folder}/{rank}.json").read_text(encoding="utf-8")) for rank in range(plan.processes)]


def _interface_bytes() -> float:
    path = Path("/sys/class/net") / os.environ["GLOO_SOCKET_IFNAME"] / "statistics" / "tx_bytes"
    return float(path.read_text()) if path.exists() else 0.0


def _measure_hook(hook: str, plan: Plan) -> dict[str, float]:
    """The figures of this process; all processes call it together."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from vision3d.training.distributed.hooks import create_communication
    from vision3d.training.distributed.options import CommunicationConfig

    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(plan.width, plan.width), nn.Tanh())]
    network = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=2 if hook == "lags" else 25)
    options = CommunicationConfig(hook=hook, density=plan.density, powersgd_start=2)  # type: ignore[arg-type]
    communication = create_communication(options, network.module.named_parameters())
    network.register_comm_hook(communication.state, communication.hook)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    inputs = torch.randn(8, plan.width)
    start, sent, interface = 0.0, 0.0, 0.0
    for step in range(WARMUP + plan.steps):
        if step == WARMUP:
            dist.barrier()
            start, sent, interface = time.perf_counter(), communication.traffic().bytes_sent, _interface_bytes()
        optimizer.zero_grad()
        network(inputs).square().mean().backward()
        optimizer.step()
    seconds = (time.perf_counter() - start) / plan.steps
    traffic = communication.traffic()
    result = {
        "seconds": seconds,
        "bytes": (traffic.bytes_sent - sent) / plan.steps,
        "interface": (_interface_bytes() - interface) / plan.steps,
    }
    if communication.sparse is not None:
        communication.sparse.close()
    dist.barrier()
    return result


def main() -> None:
    """One process: the plan and the file for its results are the arguments."""
    import torch
    import torch.distributed as dist

    options = json.loads(sys.argv[1])
    plan = Plan(**{**options, "hooks": tuple(options["hooks"])})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {hook: _measure_hook(hook, plan) for hook in plan.hooks}
    Path(sys.argv[2]).write_text(json.dumps(results), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
