# SPDX-License-Identifier: Apache-2.0
"""Batch-norm statistics measured anew, for networks whose weights or widths were changed after training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from vision3d.errors import InputError


class _Running:
    """Weighted sums of the means and variances that one layer saw."""

    def __init__(self) -> None:
        self.mean: Tensor | None = None
        self.variance: Tensor | None = None
        self.weight = 0

    def add(self, mean: Tensor, variance: Tensor, weight: int) -> None:
        mean, variance = mean * weight, variance * weight
        if self.mean is None or self.variance is None:
            self.mean, self.variance = mean, variance
        elif self.mean.shape == mean.shape:
            self.mean, self.variance = self.mean + mean, self.variance + variance
        else:
            raise InputError(
                f"recalibrate_batch_norm: one layer saw {len(self.mean)} and {len(mean)} channels: keep one "
                "sub-network active for all batches"
            )
        self.weight += weight


def _hook(running: _Running) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor]:
    def normalise(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        x: Tensor = inputs[0]
        axes = [axis for axis in range(x.dim()) if axis != 1]
        exact = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        variance, mean = torch.var_mean(exact, axes, correction=0)
        running.add(mean, variance, x.shape[0])
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        n, eps = x.shape[1], float(module.eps)  # type: ignore[arg-type]
        first = [None if value is None else value[:n] for value in (weight, bias)]
        return F.batch_norm(x, mean, variance, first[0], first[1], False, 0.0, eps)

    return normalise


@torch.no_grad()
def recalibrate_batch_norm(model: nn.Module, batches: Iterable[Any]) -> None:
    """Replace the statistics of every batch-norm layer by those of the given batches; the weights stay.

    Each layer normalises with the mean and the biased variance of its current batch; both are averaged over all calls
    of the layer, weighted by the batch size, and written to the running statistics (the first n of a layer that only
    n channels pass). A layer that is called twice a batch, as by both views of a stereo pair, counts both calls.
    Layers that no batch reaches stay as they are. (Once-for-All, arXiv 1908.09791; EASNet, arXiv 2207.09796.)

    Args:
        model: any network. It runs in training mode without dropout, and is set back to its modes.
        batches: each a tuple of arguments (``(left, right)``), or an object with ``left`` and ``right`` tensors, such
            as a :class:`vision3d.types.StereoBatch`; on the model's device.

    Raises:
        InputError: no batch, or a layer that saw different numbers of channels. Nothing is written then.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    statistics = {name: _Running() for name in layers}
    modes = {module: module.training for module in model.modules()}
    handles = [layer.register_forward_hook(_hook(statistics[name])) for name, layer in layers.items()]
    number = 0
    try:
        model.train()
        for module in modes:
            if isinstance(module, _BatchNorm | _DropoutNd):
                module.eval()
        for batch in batches:
            model(*_arguments(batch))
            number += 1
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    if number == 0:
        raise InputError("recalibrate_batch_norm: no batches: give at least one")
    for name, layer in layers.items():
        _write(layer, statistics[name])


def _arguments(batch: Any) -> Sequence[Tensor]:
    if isinstance(batch, tuple | list):
        return batch
    if hasattr(batch, "left") and hasattr(batch, "right"):
        return (batch.left, batch.right)
    raise InputError(
        f"recalibrate_batch_norm: a batch must be a tuple of tensors or have left and right, got {type(batch).__name__}"
    )


def _write(layer: _BatchNorm, running: _Running) -> None:
    if running.mean is None or running.variance is None or layer.running_mean is None or layer.running_var is None:
        return
    n = len(running.mean)
    layer.running_mean[:n] = (running.mean / running.weight).to(layer.running_mean.dtype)
    layer.running_var[:n] = (running.variance / running.weight).to(layer.running_var.dtype)
