# SPDX-License-Identifier: Apache-2.0
"""Disparity from a cost volume."""

from __future__ import annotations

import torch

from vision3d.errors import InputError
from vision3d.ops._checks import at_least_float32, check_map, check_positive, shape_text, without_autocast


def disparity_regression(
    cost_logits: torch.Tensor, values: torch.Tensor | None = None, *, radius: int | None = None
) -> torch.Tensor:
    """Soft-argmin: the mean of the bins' disparities under ``softmax(+cost_logits)`` (GC-Net, arXiv 1703.04309).

    Args:
        cost_logits: [B, D, H, W], larger is likelier (negate a matching cost).
        values: [D] disparity of each bin, pixels; None means 0 .. D - 1.
        radius: take the softmax over the bins within ``radius`` of the largest logit only, which keeps a second peak
            from pulling the answer away; None takes all bins.

    Returns:
        [B, 1, H, W], computed and returned in float32 at least.

    Raises:
        InputError: a cost volume that is not 4-D or has no bins, values of another length, a negative radius.
    """
    check_map("disparity_regression", "cost_logits", cost_logits)
    bins = cost_logits.shape[1]
    if bins == 0:
        raise InputError(f"disparity_regression: cost_logits {shape_text(cost_logits)} has no bins")
    dtype = at_least_float32(cost_logits.dtype)
    if values is None:
        values = torch.arange(bins, device=cost_logits.device, dtype=dtype)
    elif values.shape != cost_logits.shape[1:2]:
        raise InputError(
            f"disparity_regression: values {shape_text(values)} do not fit cost_logits {shape_text(cost_logits)}: "
            f"one value a bin is needed, [{bins}]"
        )
    with without_autocast(cost_logits):
        logits = cost_logits.to(dtype)
        if radius is not None:
            check_positive("disparity_regression", "radius", radius, 0)
            index = torch.arange(bins, device=logits.device)[:, None, None]
            far = (index - logits.argmax(dim=1, keepdim=True)).abs() > radius
            logits = logits.masked_fill(far, float("-inf"))
        probability = torch.softmax(logits, dim=1)
        return torch.einsum("bdhw,d->bhw", probability, values.to(probability))[:, None]
