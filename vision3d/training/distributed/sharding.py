# SPDX-License-Identifier: Apache-2.0
"""FSDP2: parameters, gradients and optimiser state of a network sharded over the processes."""

from __future__ import annotations

from typing import Any

from torch import nn

_LARGE = 1_000_000


def shard(network: nn.Module, mesh: Any) -> None:
    """Shard a network in place, its large children (a million parameters or more) by themselves.

    Does nothing where it has been sharded already.

    Args:
        network: on any device.
        mesh: Lightning's device mesh; all of its processes are in its dimension ``data_parallel``.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if isinstance(network, FSDPModule):
        return
    for child in network.children():
        size = sum(parameter.numel() for parameter in child.parameters())
        if size >= _LARGE and type(child).forward is not nn.Module.forward:
            fully_shard(child, mesh=mesh["data_parallel"])
    fully_shard(network, mesh=mesh["data_parallel"])
