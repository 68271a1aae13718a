# SPDX-License-Identifier: Apache-2.0
"""Communication hooks by name: PyTorch's own, with counters, and the sparsified ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from vision3d.errors import ConfigError
from vision3d.training.distributed.options import CommunicationConfig
from vision3d.training.distributed.sparse import SparseState, sparse_hook
from vision3d.training.distributed.wire import Traffic


@dataclass
class Communication:
    """A hook that is ready to be registered: ``ddp.register_comm_hook(c.state, c.hook)``.

    Attributes:
        state, hook: what ``register_comm_hook`` takes.
        traffic: returns the counters of this process.
        sparse: the state of a sparsified hook, or None.
        calls: returns how often the hook has been called.
    """

    name: str
    state: Any
    hook: Callable[..., Any]
    traffic: Callable[[], Traffic]
    sparse: SparseState | None = None


class CountedHook:
    """State of one of PyTorch's hooks with counters around it.

    Bytes are those of ring all-reduces (``Traffic``). For PowerSGD they are taken from its own count of the elements
    that it sends. On a GPU only the time to start the communication is seen, so ``traffic.seconds`` stays NaN there.
    """

    def __init__(self, hook: Callable[..., Any], inner: Any, element_size: int) -> None:
        self.hook, self.inner, self.element_size = hook, inner, element_size
        self.traffic = Traffic()

    def call(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Run the hook and count what it sends."""
        before, start = self._compressed(), time.perf_counter()
        buffer, last = bucket.buffer(), bucket.is_last()
        elements, gpu = buffer.numel(), buffer.is_cuda
        future = self.hook(self.inner, bucket)
        if self._compressed() > before:  # PowerSGD, once it compresses
            elements = self._compressed() - before
        size = elements * (self.element_size or buffer.element_size())
        self.traffic.add_all_reduce(size, dist.get_world_size())
        self.traffic.steps += last

        def done(finished: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            self.traffic.seconds += float("nan") if gpu else time.perf_counter() - start
            return finished.value()

        return future.then(done)

    def _compressed(self) -> int:
        return getattr(self.inner, "total_numel_after_compression", 0)


def _counted(state: CountedHook, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations with classes
    return state.call(bucket)


def create_communication(
    options: CommunicationConfig,
    parameters: Iterable[tuple[str, nn.Parameter]],
    scale: Callable[[], float] | None = None,
) -> Communication:
    """The hook of a recipe. Every process must call this at the same point, after the process group exists.

    Args:
        options: the recipe's ``communication``.
        parameters: ``named_parameters()`` of the module that DDP wraps.
        scale: the present factor of the loss (gradient scaler), or None.

    Raises:
        ConfigError: PyTorch cannot run the hook here.
    """
    parameters = list(parameters)
    if options.sparse:
        state = _sparse_state(options, parameters, scale)
        return Communication(options.hook, state, sparse_hook, lambda: state.traffic, state)
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    inner: Any = None
    hook: Callable[..., Any] = default_hooks.allreduce_hook
    size = 0
    if options.hook == "powersgd":
        start = options.powersgd_start
        hook = powerSGD_hook.powerSGD_hook
        inner = powerSGD_hook.PowerSGDState(None, options.powersgd_rank, start)
    elif options.hook in ("fp16", "bf16"):
        _check_type(torch.float16 if options.hook == "fp16" else torch.bfloat16, options.hook, parameters)
        hook = default_hooks.fp16_compress_hook if options.hook == "fp16" else default_hooks.bf16_compress_hook
        size = 2
    counted = CountedHook(hook, inner, size)
    return Communication(options.hook, counted, _counted, lambda: counted.traffic)


def _check_type(dtype: torch.dtype, hook: str, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise ConfigError unless the processes can sum numbers of this type on the device of the parameters."""
    device = next(iter(parameters))[1].device
    try:
        dist.all_reduce(torch.zeros(1, dtype=dtype, device=device))
    except (RuntimeError, TypeError) as error:
        message = f"communication.hook: {hook} does not work with {dist.get_backend()} on {device.type}"
        raise ConfigError(f"{message} ({str(error).splitlines()[0]}): choose another hook") from error


def _sparse_state(
    options: CommunicationConfig, parameters: list[tuple[str, nn.Parameter]], scale: Callable[[], float] | None
) -> SparseState:
    lags = options.hook == "lags"
    state = SparseState(
        parameters,
        density=options.density,
        reducer="tree" if options.hook == "gtopk" else "gather",
        layerwise=lags,
        rule=options.rule,
        warmup_steps=options.warmup_steps,
        dense_below=options.dense_below,
        momentum=options.momentum_correction,
        overlap=lags if options.overlap is None else options.overlap,
        scale=scale,
    )
    if lags and options.adapt_steps:
        from vision3d.training.distributed.lags import RatioPlanner

        RatioPlanner(state, parameters, options.adapt_steps)
    return state
