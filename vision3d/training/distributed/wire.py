# SPDX-License-Identifier: Apache-2.0
"""Messages between the processes of a group, with exact counters of what this process sends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass
class Traffic:
    """What one process has sent: payload bytes and messages, seconds spent waiting for communication, and steps.

    Point-to-point messages count as they are. Collectives of the library count as their ring algorithms send: an
    all-reduce of b bytes 2 b (P-1)/P, an all-gather b (P-1) with P processes.
    """

    bytes_sent: float = 0.0
    messages: int = 0
    seconds: float = 0.0
    steps: int = 0

    def add_all_reduce(self, size: int, world: int) -> None:
        """Count an all-reduce of ``size`` bytes over ``world`` processes."""
        self.bytes_sent += 2 * size * (world - 1) / world
        self.messages += 2 * (world - 1)


class Wire:
    """A process group with counted messages.

    Args:
        group: the group; None: all processes.

    With gloo, tensors of another device than the CPU are sent through the memory of the host.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.through_host = dist.get_backend(group) == "gloo"
        self.traffic = Traffic()

    def _timed(self, action: Callable[[], Any]) -> None:
        start = time.perf_counter()
        action()
        self.traffic.seconds += time.perf_counter() - start

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def _outgoing(self, tensor: Tensor) -> Tensor:
        return (tensor.cpu() if self.through_host else tensor).contiguous()

    def send(self, tensor: Tensor, peer: int) -> None:
        """Send a tensor to the process ``peer`` of the group; blocks."""
        message = self._outgoing(tensor)
        self._timed(lambda: dist.send(message, self._global(peer), group=self.group))
        self.traffic.bytes_sent += message.numel() * message.element_size()
        self.traffic.messages += 1

    def receive(self, like: Tensor, peer: int) -> Tensor:
        """Receive a tensor of the shape, type and device of ``like``; blocks."""
        message = torch.empty_like(like, device="cpu" if self.through_host else like.device)
        self._timed(lambda: dist.recv(message, self._global(peer), group=self.group))
        return message.to(like.device)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, in the order of their ranks; all of one shape."""
        message = self._outgoing(tensor)
        parts = [torch.empty_like(message) for _ in range(self.size)]
        self._timed(lambda: dist.all_gather(parts, message, group=self.group))
        self.traffic.bytes_sent += (self.size - 1) * message.numel() * message.element_size()
        self.traffic.messages += self.size - 1
        return [part.to(tensor.device) for part in parts]

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all processes; ``tensor`` itself is left as it is."""
        message = self._outgoing(tensor)
        message = message.clone() if message is tensor else message
        self._timed(lambda: dist.all_reduce(message, group=self.group))
        self.traffic.add_all_reduce(message.numel() * message.element_size(), self.size)
        return message.to(tensor.device)


def pack(indices: Tensor, values: Tensor, size: int, flag: int) -> Tensor:
    """[1 + 2 size] int32: a flag, indices (-1 fills up), and float32 values by their bits. 8 bytes an entry.

    Args:
        indices: [n] int64 below 2^31, n <= size.
        values: [n] float32.
        size: number of entries of the message.
        flag: the number of a process with values that are not finite, counted from 1; 0: none.
    """
    message = torch.full((1 + 2 * size,), -1, dtype=torch.int32, device=indices.device)
    message[0] = flag
    count = indices.numel()
    message[1 : 1 + count] = indices.to(torch.int32)
    message[1 + size : 1 + size + count] = values.contiguous().view(torch.int32)
    return message


def unpack(message: Tensor) -> tuple[Tensor, Tensor, int]:
    """The (indices [n] int64, values [n] float32, flag) of ``pack``."""
    size = (message.numel() - 1) // 2
    indices = message[1 : 1 + size]
    count = int((indices >= 0).sum())
    values = message[1 + size : 1 + size + count].clone().view(torch.float32)
    return indices[:count].long(), values, int(message[0])
