# SPDX-License-Identifier: Apache-2.0
"""Sums of sparse vectors over processes: Top-k by all-gather, and gTop-k by a tree (arXiv 1901.04359)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vision3d.training.distributed.wire import Wire, pack, unpack


@dataclass
class SparseSum:
    """What all processes agree on, and what this one has rejected on the way.

    Attributes:
        indices, values: [n] int64 and float32: the sum over the processes, the same in each of them.
        rejected_indices, rejected_values: partial sums that this process has dropped in its merges.
        flag: 0, or 1 + the rank of a process whose gradient is not finite; the rest is void then.
    """

    indices: Tensor
    values: Tensor
    rejected_indices: Tensor
    rejected_values: Tensor
    flag: int


def select_top(values: Tensor, count: int) -> Tensor:
    """The ascending indices of the ``count`` entries of a vector that are largest by magnitude."""
    if count >= values.numel():
        return torch.arange(values.numel(), device=values.device)
    return values.abs().topk(count, sorted=False).indices.sort().values


def add_sparse(indices: list[Tensor], values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The sum of sparse vectors: ascending indices, each once, and the summed values."""
    union, place = torch.unique(torch.cat(indices), return_inverse=True)
    total = torch.zeros(union.numel(), dtype=torch.float32, device=union.device)
    start = 0
    for part in values:  # one vector after the other: the order of the sum is that of the ranks on every device
        total.index_add_(0, place[start : start + part.numel()], part)
        start += part.numel()
    return union, total


def gather_top(wire: Wire, indices: Tensor, values: Tensor, count: int, flag: int) -> SparseSum:
    """Top-k: every process gets the ``count`` entries of every other; nothing is rejected."""
    parts = [unpack(message) for message in wire.all_gather(pack(indices, values, count, flag))]
    union, total = add_sparse([part[0] for part in parts], [part[1] for part in parts])
    return SparseSum(union, total, union[:0], total[:0], max(part[2] for part in parts))


def tree_top(wire: Wire, indices: Tensor, values: Tensor, count: int, flag: int) -> SparseSum:
    """gTop-k: sums go up a binomial tree, each cut to its ``count`` largest entries; the result comes down again.

    In round i the ranks divisible by 2^(i+1) receive from rank + 2^i, where there is one: any number of processes will
    do. Algorithm 1 of the paper needs a power of two.
    """
    lost_indices, lost_values = [indices[:0]], [values[:0]]
    step, message = 1, pack(indices, values, count, flag)
    while step < wire.size and wire.rank % (2 * step) == 0:
        if wire.rank + step < wire.size:
            other_indices, other_values, other_flag = unpack(wire.receive(message, wire.rank + step))
            indices, values = add_sparse([indices, other_indices], [values, other_values])
            kept = select_top(values, count)
            lost = torch.ones_like(indices, dtype=torch.bool)
            lost[kept] = False
            lost_indices.append(indices[lost])
            lost_values.append(values[lost])
            indices, values, flag = indices[kept], values[kept], max(flag, other_flag)
        step *= 2
    message = pack(indices, values, count, flag)
    if wire.rank:
        wire.send(message, wire.rank - step)
        message = wire.receive(message, wire.rank - step)
    while step > 1:
        step //= 2
        if wire.rank + step < wire.size:
            wire.send(message, wire.rank + step)
    final_indices, final_values, flag = unpack(message)
    return SparseSum(final_indices, final_values, *add_sparse(lost_indices, lost_values), flag)
