# SPDX-License-Identifier: Apache-2.0
"""Sparsified gradient exchange with error feedback, as a communication hook of DDP.

Top-k with error feedback, gTop-k (arXiv 1901.04359), layer-wise selection as in LAGS (arXiv 1911.08727), momentum
correction and density warm-up as in Deep Gradient Compression (arXiv 1712.01887). See docs/distributed.md.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vision3d.errors import ConfigError, WeightsError
from vision3d.training.distributed.layout import Block, Memory, Undo, make_blocks
from vision3d.training.distributed.reducers import SparseSum, gather_top, select_top, tree_top
from vision3d.training.distributed.wire import Traffic, Wire


def density_at(step: int, density: float, warmup_steps: int) -> float:
    """The density of a step: during the warm-up 1/4, 1/16, ... in equal stretches as long as above ``density``."""
    stages: list[float] = []
    while 0.25 ** (len(stages) + 1) > density:
        stages.append(0.25 ** (len(stages) + 1))
    if step >= warmup_steps or not stages:
        return density
    return stages[step * len(stages) // warmup_steps]


class SparseState:
    """Options, memories and counters of ``sparse_hook`` for one process.

    Each step adds the gradient to the residual of the parameter, sends the entries that are largest by magnitude, and
    keeps the rest for later steps. The result is the average over the processes, as in DDP.

    Args:
        parameters: (name, parameter) of the wrapped module, as ``module.named_parameters()`` gives them.
        density: share of the entries that is sent, in (0, 1]; at least one entry.
        reducer: gather (Top-k: the union of what all processes send) or tree (gTop-k).
        layerwise: select in each parameter by itself (LAGS) instead of in each bucket.
        rule: adopt, resum or paper: what becomes of rejected values of the tree (``CommunicationConfig``).
        warmup_steps: see ``density_at``.
        dense_below: parameters with fewer elements are summed densely.
        momentum: of the momentum correction; the optimiser must have none.
        overlap: communicate in a thread, while back-propagation goes on.
        ratios: compression ratio (elements / sent) of parameters by name, at most 1/density each; 1 sends densely.
        scale: the present factor of the loss (gradient scaler): memories are kept without it.
        group: the processes; a group of its own is made, so every process must build the state at the same point.

    Raises:
        ConfigError: an option out of its range.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        density: float = 0.01,
        reducer: Literal["gather", "tree"] = "tree",
        layerwise: bool = False,
        rule: Literal["adopt", "resum", "paper"] = "adopt",
        warmup_steps: int = 0,
        dense_below: int = 1024,
        momentum: float = 0.0,
        overlap: bool = False,
        ratios: dict[str, float] | None = None,
        scale: Callable[[], float] | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if not 0 < density <= 1:
            raise ConfigError(f"communication: density must lie in (0, 1], got {density}")
        if not 0 <= momentum < 1:
            raise ConfigError(f"communication: momentum must lie in [0, 1), got {momentum}")
        if reducer not in ("gather", "tree") or rule not in ("adopt", "resum", "paper"):
            raise ConfigError(f"communication: unknown reducer {reducer!r} or rule {rule!r}")
        self._names = {id(parameter): name for name, parameter in parameters}
        self.density, self.warmup_steps, self.layerwise = density, warmup_steps, layerwise
        self.reducer, self.rule, self.dense_below, self.momentum = reducer, rule, dense_below, momentum
        self.ratios, self.scale = dict(ratios or {}), scale
        ranks = None if group is None else dist.get_process_group_ranks(group)
        self.wire = Wire(dist.new_group(ranks))
        self.residual, self.velocity = Memory(), Memory()
        self.step = 0
        self.on_step_end: Callable[[SparseState], None] | None = None
        self.error: BaseException | None = None
        self._undo, self._flagged = Undo(), False
        self._thread = ThreadPoolExecutor(1, "vision3d-communication") if overlap else None

    @property
    def traffic(self) -> Traffic:
        """What this process has sent so far."""
        self.wire.traffic.steps = self.step
        return self.wire.traffic

    def blocks_of(self, bucket: dist.GradBucket) -> list[Block]:
        """The parameters of a bucket.

        Raises:
            ConfigError: one that the state was not built with.
        """
        parameters = bucket.parameters()
        unknown = [parameter for parameter in parameters if id(parameter) not in self._names]
        if unknown:
            raise ConfigError(
                f"communication: a parameter of shape {tuple(unknown[0].shape)} is not among those that the state was "
                "built with: pass the named_parameters() of the module that DDP wraps"
            )
        return make_blocks([self._names[id(p)] for p in parameters], [p.numel() for p in parameters])

    def submit(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Exchange a bucket; the future holds its averaged gradients."""
        buffer, last = bucket.buffer(), bucket.is_last()
        blocks, gradients = self.blocks_of(bucket), bucket.gradients()
        devices = [] if buffer.device.type == "cpu" else [buffer.device]
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)  # type: ignore[arg-type]
        if self._thread is None:
            future.set_result(self._exchange(buffer, blocks, gradients, last))
            return future
        ready = None if buffer.device.type == "cpu" else torch.cuda.current_stream(buffer.device).record_event()

        def work() -> None:
            try:
                with torch.no_grad(), _stream(buffer.device, ready):
                    future.set_result(self._exchange(buffer, blocks, gradients, last))
            except BaseException as error:  # noqa: BLE001  (handed to the thread of the back-propagation)
                self.error = error
                future.set_exception(error)  # type: ignore[arg-type]

        self._thread.submit(work)
        return future

    @torch.no_grad()
    def _exchange(self, buffer: Tensor, blocks: list[Block], gradients: list[Tensor], last: bool) -> Tensor:
        scale = 1.0 if self.scale is None else self.scale()
        local = buffer.float() / scale
        peaks = torch.stack([local[block.range].abs().amax() for block in blocks]).tolist()
        finite = all(math.isfinite(peak) for peak in peaks)
        active = [block for block, peak in zip(blocks, peaks, strict=True) if peak > 0]
        residual = self.residual.flat(blocks, gradients, buffer.device)
        velocity = self.velocity.flat(blocks, gradients, buffer.device) if self.momentum else None
        if finite:
            self._accumulate(local, active, residual, velocity)
        dense = [block for block in blocks if self._is_dense(block)]
        candidate = torch.zeros_like(local)
        for block in active if finite else []:
            if not self._is_dense(block):
                candidate[block.range] = residual[block.range]
        result = torch.zeros_like(local)
        flag = 0 if finite else self.wire.rank + 1
        flag = max(self._exchange_dense(result, dense, local, residual, finite), flag)
        sparse = [block for block in blocks if not self._is_dense(block)]
        if sparse:
            flag = max(flag, self._exchange_sparse(result, sparse, candidate, residual, velocity, flag))
        if flag:
            self._flagged = True
            result.fill_(math.nan)
        buffer.copy_(result.mul_(scale / self.wire.size))
        if last:
            self._end_step()
        return buffer

    def _is_dense(self, block: Block) -> bool:
        return block.size < self.dense_below or self.ratios.get(block.name) == 1

    def _accumulate(self, local: Tensor, active: list[Block], residual: Tensor, velocity: Tensor | None) -> None:
        """Add the gradients to the residual, by way of the velocity where there is momentum correction."""
        for block in active:
            gradient = local[block.range]
            if velocity is not None:
                gradient = velocity[block.range].mul_(self.momentum).add_(gradient)
            residual[block.range] += gradient

    def _exchange_dense(self, result: Tensor, dense: list[Block], local: Tensor, residual: Tensor, finite: bool) -> int:
        """Sum the dense blocks over the processes; 1 if the sum is not finite anywhere."""
        if not dense:
            return 0
        total = self.wire.all_reduce(torch.cat([(residual if finite else local)[block.range] for block in dense]))
        parts = total.split([block.size for block in dense])
        for block, part in zip(dense, parts, strict=True):
            result[block.range] = part
            self._undo.write(residual, block.range, torch.zeros_like(part))
        return int(not torch.isfinite(total).all())

    def _select(self, blocks: list[Block], candidate: Tensor) -> Tensor:
        """The indices to send, at most ``_budget`` of them."""
        if not self.layerwise:
            return select_top(candidate, self._budget(blocks))
        parts = [block.start + select_top(candidate[block.range], self._budget([block])) for block in blocks]
        return torch.cat(parts).sort().values

    def _budget(self, blocks: list[Block]) -> int:
        """How many entries of these blocks are sent: k = max(1, floor(density * elements)), layer by layer in LAGS."""
        density = density_at(self.step, self.density, self.warmup_steps)
        if not self.layerwise:
            return max(1, int(sum(block.size for block in blocks) * density))
        shares = [max(density, 1 / self.ratios.get(block.name, math.inf)) for block in blocks]
        return sum(max(1, int(block.size * share)) for block, share in zip(blocks, shares, strict=True))

    def _exchange_sparse(
        self,
        result: Tensor,
        blocks: list[Block],
        candidate: Tensor,
        residual: Tensor,
        velocity: Tensor | None,
        flag: int,
    ) -> int:
        """Send the largest entries and bring the memories up to date; returns the flag of all processes."""
        budget = self._budget(blocks)
        sent = self._select(blocks, candidate)
        values = candidate[sent]
        reduce = gather_top if self.reducer == "gather" else tree_top
        total = reduce(self.wire, sent, values, budget, flag)
        if self.reducer == "tree" and self.rule == "resum":
            sent, values = total.indices, candidate[total.indices]
            total.values = self.wire.all_reduce(values)
        elif self.reducer == "tree" and self.rule == "paper":
            kept = torch.isin(sent, total.indices)
            sent, values = sent[kept], values[kept]
        self._undo.write(residual, sent, residual[sent] - values)
        if velocity is not None:  # momentum factor masking; blocks that took no part keep theirs
            self._undo.write(velocity, sent, velocity[sent] * (values == 0))
        if self.reducer == "tree" and self.rule == "adopt":
            self._adopt(residual, total)
        result[total.indices] = total.values
        return total.flag

    def _adopt(self, residual: Tensor, total: SparseSum) -> None:
        where = total.rejected_indices
        self._undo.write(residual, where, residual[where] + total.rejected_values)

    def _end_step(self) -> None:
        """Count the step, or take back what it has sent if one of its gradients was not finite."""
        if self._flagged:
            self._undo.rollback()
        self._undo.clear()
        self._flagged = False
        self.step += 1
        if self.on_step_end is not None:
            self.on_step_end(self)

    def state_dict(self) -> dict[str, Any]:
        """What this process must keep for a resume: memories by parameter name, step and ratios."""
        return {
            "world": self.wire.size,
            "rank": self.wire.rank,
            "step": self.step,
            "momentum": self.momentum,
            "ratios": dict(self.ratios),
            "residual": self.residual.state_dict(),
            "velocity": self.velocity.state_dict(),
        }

    def load_state_dicts(self, states: list[dict[str, Any]]) -> None:
        """Go on from the states of all processes of a former run.

        With the same number of processes each takes its own. With another number, each takes the sum of all, divided by
        the new number: the gradient mass that was still to be delivered stays the same.

        Raises:
            WeightsError: states of other parameters, or of another number of processes than there are states.
        """
        if {state["world"] for state in states} != {len(states)}:
            raise WeightsError(
                f"communication: {len(states)} saved states, but they are of {states[0]['world']} processes"
            )
        same = len(states) == self.wire.size
        chosen = [states[self.wire.rank]] if same else states
        for key, memory in (("residual", self.residual), ("velocity", self.velocity)):
            unknown = set(chosen[0][key]) - set(self._names.values())
            if unknown:
                raise WeightsError(f"communication: saved state of another network ({min(unknown)} is not in this one)")
            share = 1 if same else self.wire.size
            memory.load({name: sum(state[key][name] for state in chosen) / share for name in chosen[0][key]})
        self.step, self.ratios = states[0]["step"], dict(states[0]["ratios"])

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown()


def _stream(device: torch.device, ready: Any) -> Any:
    """A stream of its own that begins after ``ready``, on a GPU; nothing on a CPU."""
    import contextlib

    if ready is None:
        return contextlib.nullcontext()
    stream = torch.cuda.Stream(device)
    stream.wait_event(ready)
    return torch.cuda.stream(stream)


def sparse_hook(state: SparseState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook: ``ddp.register_comm_hook(SparseState(module.named_parameters(), density=0.01), sparse_hook)``."""
    return state.submit(bucket)


# DDP compares the annotations of a hook with the classes themselves, not with their names.
sparse_hook.__annotations__ = typing.get_type_hints(sparse_hook)
