# SPDX-License-Identifier: Apache-2.0
"""As a script: run training commands of the tiny network in N processes, as torchrun would start them.

The arguments are N and a file with a JSON list of runs ``{"arguments": [...], "ranks": {rank: [more]}, "nan": [rank,
step], "world": N}``. Lightning is imported once; each run forks N processes. For each run, a line of JSON on
stdout: the exit codes, and the standard error of each process.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny import Tiny, register_tiny


def poison(step: int) -> None:
    """Make the second view of a batch infinite in the training step ``step`` of this process."""
    forward, count = Tiny.forward, 0

    def poisoned(self: Tiny, left: Any, right: Any) -> Any:
        nonlocal count
        count += self.training
        if self.training and count == step:
            right = right.clone()
            right[0] = float("inf")
        return forward(self, left, right)

    Tiny.forward = poisoned  # type: ignore[method-assign]


def count_calls() -> list[int]:
    """Count the calls of the sparse hook in this process."""
    from vision3d.training.distributed.sparse import SparseState

    submit, calls = SparseState.submit, [0]

    def counting(self: SparseState, bucket: Any) -> Any:
        calls[0] += 1
        return submit(self, bucket)

    SparseState.submit = counting  # type: ignore[method-assign]
    return calls


def child(rank: int, world: int, port: int, run: dict[str, Any], log: Path) -> int:
    from vision3d.cli.train import main

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 2)
    variables = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    os.environ.update({key: str(value) for key, value in variables.items()})
    if "nan" in run and run["nan"][0] == rank:
        poison(run["nan"][1])
    calls = count_calls()
    code = main([*run["arguments"], *run.get("ranks", {}).get(str(rank), [])])
    sys.stderr.write(f"hook calls: {calls[0]}\n")
    return code


def execute(run: dict[str, Any], world: int, folder: Path) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(world):
        process = os.fork()
        if process == 0:
            try:
                os._exit(child(rank, world, port, run, folder / f"log{rank}.txt"))
            except BaseException:  # noqa: BLE001  (a forked process must not run on as its parent)
                traceback.print_exc()
                os._exit(70)
        children.append(process)
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in children]
    return {"codes": codes, "logs": [(folder / f"log{rank}.txt").read_text() for rank in range(world)]}


if __name__ == "__main__":
    import lightning.pytorch  # noqa: F401

    from vision3d.training import runner, stereo  # noqa: F401

    register_tiny()
    plan = Path(sys.argv[2])
    for item in json.loads(plan.read_text(encoding="utf-8")):
        outcome = execute(item, item.get("world", int(sys.argv[1])), plan.parent)
        print(json.dumps(outcome), flush=True)  # noqa: T201
