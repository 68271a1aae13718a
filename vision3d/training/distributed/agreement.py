# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run must agree on: the recipe at the start, and whether a step is finite."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from vision3d.errors import ConfigError

_MAY_DIFFER = ("trainer.output", "trainer.threads", "data.workers", "trainer.images")


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """``{"a.b.0": value}`` of nested dictionaries and lists; empty ones stay as they are."""
    if isinstance(value, dict) and value:
        items = value.items()
    elif isinstance(value, (list, tuple)) and value:
        items = dict(enumerate(value)).items()
    else:
        return {prefix: value}
    parts = [flatten(item, f"{prefix}.{key}" if prefix else str(key)) for key, item in items]
    return {key: item for part in parts for key, item in part.items()}


def check_agreement(recipe: dict[str, Any]) -> None:
    """Compare the recipes of all processes; call it once the process group exists.

    Folders (``root``, ``trainer.output``), threads and loader processes may differ from machine to machine.

    Raises:
        ConfigError: in every process, with the first option that differs and its values.
    """
    own = {"torch": torch.__version__, **flatten(recipe)}
    recipes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(recipes, own)
    for key in sorted(set().union(*recipes)):
        if key in _MAY_DIFFER or key.rpartition(".")[2] == "root":
            continue
        values = [repr(other.get(key, "nothing")) for other in recipes]
        if len(set(values)) > 1:
            rank = next(rank for rank, value in enumerate(values) if value != values[0])
            raise ConfigError(
                f"the processes disagree: {key} is {values[0]} in process 0 and {values[rank]} in process {rank}: "
                "start all of them with the same recipe, overrides and version"
            )


def check_launch(devices: int, nodes: int) -> None:
    """Raise ConfigError if torchrun has started another number of processes than the recipe names."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != devices * nodes:
        raise ConfigError(
            f"torchrun has started {started} processes, but trainer.devices x trainer.nodes is {devices} x {nodes}: "
            "set trainer.devices to --nproc-per-node and trainer.nodes to --nnodes"
        )


def gather_trouble(trouble: tuple[bool, str] | None, device: torch.device) -> list[str]:
    """What is wrong in any process of the run, the same list in all of them.

    It costs an all-reduce of one number, and an exchange of texts only where something is wrong.

    Args:
        trouble: of this process: whether it is known to be the cause, and a text; None if all is well.
        device: where the processes exchange numbers.

    Returns:
        The texts of the processes that are the cause; of all with trouble if none is known to be.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return [] if trouble is None else [trouble[1]]
    flag = torch.tensor([0.0 if trouble is None else 1.0], device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    if not flag.item():
        return []
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, trouble)
    found = [(rank, *item) for rank, item in enumerate(gathered) if item is not None]
    causes = [item for item in found if item[1]] or found
    return [f"process {rank}: {text}" for rank, _, text in causes]
