# SPDX-License-Identifier: Apache-2.0
"""Adaptive compression ratios of LAGS (arXiv 1911.08727): send of each layer what hides behind back-propagation."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vision3d.training.distributed.wire import Wire

if TYPE_CHECKING:
    from vision3d.training.distributed.sparse import SparseState

logger = logging.getLogger(__name__)
_ENTRY_BYTES = 8  # an int32 index and a float32 value


@dataclass(frozen=True)
class LinkModel:
    """Times of a link and of the selection.

    Attributes:
        latency: seconds of a message.
        byte_seconds: seconds of a byte.
        select: seconds of an exact top-k are ``select * d * log2(d)`` for d elements.
    """

    latency: float
    byte_seconds: float
    select: float

    def select_time(self, elements: int) -> float:
        """Seconds of the selection in a layer."""
        return self.select * elements * math.log2(max(2, elements))

    def gather_time(self, count: int, world: int) -> float:
        """Seconds of the all-gather of ``count`` entries of each process."""
        return self.latency * math.log2(world) + _ENTRY_BYTES * (world - 1) * count * self.byte_seconds

    def dense_time(self, elements: int, world: int) -> float:
        """Seconds of a ring all-reduce of float32."""
        return 2 * (world - 1) * (self.latency + 4 * elements / world * self.byte_seconds)


def adaptive_ratio(elements: int, budget: float, link: LinkModel, world: int, bound: float) -> float:
    """The smallest ratio c = elements / sent whose selection and exchange take no longer than ``budget``.

    ``c = min(bound, min{c >= 1: t_select(d) + t_gather(d / c) <= budget})`` (section 4 of the paper, with linear
    models); 1 where the dense all-reduce itself fits.

    Args:
        elements: of the layer.
        budget: seconds of back-propagation that follow in the next layer.
        link: time models.
        world: number of processes.
        bound: largest ratio, at least 1.
    """
    if world == 1 or link.dense_time(elements, world) <= budget:
        return 1.0
    left = budget - link.select_time(elements) - link.gather_time(0, world)
    if left <= 0:
        return bound
    count = left / (_ENTRY_BYTES * (world - 1) * link.byte_seconds)
    return min(bound, max(1.0, elements / count))


def plan_ratios(layers: list[tuple[str, int, float]], link: LinkModel, world: int, bound: float) -> dict[str, float]:
    """The ratio of each layer.

    Args:
        layers: (name, elements, seconds of its back-propagation) in the order in which gradients arrive.
        link, world, bound: see ``adaptive_ratio``. The last layer has nothing left to hide behind: it takes the bound.
    """
    budgets = [seconds for _, _, seconds in layers[1:]]
    ratios = {
        name: adaptive_ratio(elements, budget, link, world, bound)
        for (name, elements, _), budget in zip(layers, budgets, strict=False)
    }
    return {**ratios, layers[-1][0]: bound}


def measure_link(wire: Wire, repeats: int = 5) -> LinkModel:
    """Fit the models of the present processes: medians over two message sizes, and over one selection.

    Every process must call it.
    """

    def median(action: Callable[[], object]) -> float:
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            action()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)

    small, large = torch.zeros(1), torch.zeros(1 << 18)
    elements = 1 << 18
    values = torch.rand(elements)
    latency = median(lambda: dist.all_reduce(small, group=wire.group)) / (2 * max(1, wire.size - 1))
    seconds = median(lambda: dist.all_reduce(large, group=wire.group))
    sent = 2 * 4 * large.numel() * max(1, wire.size - 1) / wire.size
    select = median(lambda: values.topk(elements // 100))
    bandwidth_part = max(seconds - 2 * (wire.size - 1) * latency, 1e-9)
    return LinkModel(latency, bandwidth_part / sent, select / (elements * math.log2(elements)))


class RatioPlanner:
    """Times back-propagation over some steps and then sets the ratios of a state, the same in all processes.

    Args:
        state: a layer-wise state.
        parameters: those of the state.
        steps: how many steps are timed; the first, in which buckets and caches are made, does not count.
    """

    def __init__(self, state: SparseState, parameters: list[tuple[str, nn.Parameter]], steps: int) -> None:
        self.steps, self.sizes = steps + 1, {name: parameter.numel() for name, parameter in parameters}
        self._seconds: dict[str, list[float]] = {}
        self._previous: float | None = None
        self._handles = []
        for name, parameter in parameters:
            if parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._ticker(name)))
        state.on_step_end = self._step_ended

    def _ticker(self, name: str) -> Callable[[Tensor], None]:
        def tick(_: Tensor) -> None:
            now = time.perf_counter()
            self._seconds.setdefault(name, []).append(now - (now if self._previous is None else self._previous))
            self._previous = now

        return tick

    def _step_ended(self, state: SparseState) -> None:
        self._previous = None
        if state.step == 1:
            self._seconds = {}
        if state.step < self.steps:
            return
        state.on_step_end = None
        for handle in self._handles:
            handle.remove()
        link = measure_link(state.wire)
        layers = self._layers(state.dense_below)
        chosen = [plan_ratios(layers, link, state.wire.size, 1 / state.density)] if layers else [{}]
        source = 0 if state.wire.group is None else dist.get_global_rank(state.wire.group, 0)
        dist.broadcast_object_list(chosen, source, group=state.wire.group)
        state.ratios = chosen[0]
        if state.wire.rank == 0 and chosen[0]:
            ordered = sorted(chosen[0].values())
            logger.info(
                "LAGS: link %.2g s + %.3g s/MB; ratios from %.3g to %.3g, median %.3g, in %d layers",
                *(link.latency, link.byte_seconds * 1e6, ordered[0], ordered[-1], statistics.median(ordered)),
                len(ordered),
            )

    def _layers(self, dense_below: int) -> list[tuple[str, int, float]]:
        """The layers for ``plan_ratios``; the time of one that is sent densely counts for the next."""
        layers, carried = [], 0.0
        for name, seconds in list(self._seconds.items()):
            carried += statistics.median(seconds)
            if self.sizes[name] >= dense_below:
                layers.append((name, self.sizes[name], carried))
                carried = 0.0
        return layers
