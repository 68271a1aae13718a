# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation over the batches of all processes, on any device (that of PyTorch refuses the CPU)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class _SumOverProcesses(torch.autograd.Function):
    """Sum a tensor over all processes; its gradient is the sum of their gradients."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class SynchronizedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """As ``torch.nn.BatchNorm*d``, but training statistics are those of all processes' batches together."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:
        """[B, C, ...] to the same; evaluation, or a single process, is that of the ordinary layer."""
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        axes = [0, *range(2, input.dim())]
        shape = [1, -1] + [1] * (input.dim() - 2)
        values = input.float()
        own = torch.full((1,), float(values.numel() // values.shape[1]), device=values.device)
        sums = _SumOverProcesses.apply(torch.cat([values.sum(axes), own]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = values - mean.view(shape)
        variance = _SumOverProcesses.apply(centred.square().sum(axes)) / count
        self._update_statistics(mean.detach(), variance.detach(), count)
        result = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(input.dtype)

    @torch.no_grad()
    def _update_statistics(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        unbiased = variance * count / (count - 1).clamp(min=1)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


def synchronize_batch_norm(module: nn.Module) -> nn.Module:
    """Replace every batch normalisation of a module (in place; a module that is one itself is returned anew)."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, SynchronizedBatchNorm):
        replacement = SynchronizedBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        replacement._parameters = module._parameters
        replacement._buffers = module._buffers
        replacement.train(module.training)
        return replacement
    for name, child in module.named_children():
        setattr(module, name, synchronize_batch_norm(child))
    return module
