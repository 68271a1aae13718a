# SPDX-License-Identifier: Apache-2.0
"""Memories of error feedback, kept by the names of parameters, and flat over the buckets of DDP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """The place of one parameter in a bucket."""

    name: str
    start: int
    size: int

    @property
    def range(self) -> slice:
        """Its elements in the flat bucket."""
        return slice(self.start, self.start + self.size)


class Memory:
    """One float32 value for each parameter element, addressed by bucket or by the parameter's name.

    DDP builds its buckets anew after the first step, so a bucket is known by the names in it: one with other names
    takes its values over from the parameters.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}
        self._flat: dict[tuple[str, ...], Tensor] = {}

    def flat(self, blocks: Sequence[Block], gradients: Sequence[Tensor], device: torch.device) -> Tensor:
        """The values of a bucket, [n] in the order of its buffer; writing to it changes the memory.

        Args:
            blocks, gradients: the parameters of the bucket, and their gradients as views of its buffer.
            device: where to keep them.
        """
        names = tuple(block.name for block in blocks)
        if names not in self._flat:
            flat = torch.zeros(sum(block.size for block in blocks), device=device)
            for block, gradient in zip(blocks, gradients, strict=True):
                view = flat.as_strided(gradient.shape, gradient.stride(), block.start)
                if block.name in self.by_name:
                    view.copy_(self.by_name[block.name])
                self.by_name[block.name] = view
            wanted = set(names)
            self._flat = {key: value for key, value in self._flat.items() if not wanted & set(key)}
            self._flat[names] = flat
        return self._flat[names]

    def load(self, values: dict[str, Tensor]) -> None:
        """Replace all values."""
        self._flat = {}
        self.by_name = dict(values)

    def state_dict(self) -> dict[str, Tensor]:
        """The values by the parameters' names, on the CPU."""
        return {name: value.detach().cpu().contiguous().clone() for name, value in self.by_name.items()}


class Undo:
    """Remembers what was written to flat tensors, so that a step can be taken back exactly."""

    def __init__(self) -> None:
        self._log: list[tuple[Tensor, Tensor | slice, Tensor]] = []

    def write(self, target: Tensor, indices: Tensor | slice, values: Tensor) -> None:
        """Set ``target[indices] = values`` and remember what stood there."""
        self._log.append((target, indices, target[indices].clone()))
        target[indices] = values

    def rollback(self) -> None:
        """Take everything back, the latest first."""
        for target, indices, values in reversed(self._log):
            target[indices] = values
        self.clear()

    def clear(self) -> None:
        """Forget everything: the step holds."""
        self._log = []


def make_blocks(names: Iterable[str], sizes: Iterable[int]) -> list[Block]:
    """Consecutive blocks of these names and sizes."""
    blocks, start = [], 0
    for name, size in zip(names, sizes, strict=True):
        blocks.append(Block(name, start, size))
        start += size
    return blocks
