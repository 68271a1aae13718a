# SPDX-License-Identifier: Apache-2.0
"""Depth samples along rays: even, stratified, and by inverse transform sampling of a first pass."""

from __future__ import annotations

import torch
from torch import Tensor

from vision3d.errors import InputError


def even_depths(
    near: float,
    far: float,
    samples: int,
    *,
    in_disparity: bool = False,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Depths [samples] from near to far, evenly spaced in depth or in 1 / depth.

    Raises:
        InputError: ``far`` not above ``near``, fewer than two samples, or ``near`` 0 with ``in_disparity``.
    """
    if not 0 <= near < far or samples < 2 or (in_disparity and near == 0):
        raise InputError(
            f"depths from {near} to {far} in {samples} samples: near must lie in [0, far), samples be >= 2"
        )
    share = torch.linspace(0, 1, samples, device=device, dtype=dtype)
    if in_disparity:
        return 1 / ((1 - share) / near + share / far)
    return near * (1 - share) + far * share


def jitter_depths(depths: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Move each depth [R, S] at random between the midpoints to its neighbours (stratified sampling, NeRF eq. 2)."""
    middles = (depths[..., 1:] + depths[..., :-1]) / 2
    upper = torch.cat([middles, depths[..., -1:]], -1)
    lower = torch.cat([depths[..., :1], middles], -1)
    random = torch.rand(depths.shape, generator=generator, device=depths.device, dtype=depths.dtype)
    return lower + (upper - lower) * random


def sample_by_weight(
    edges: Tensor, weights: Tensor, samples: int, *, random: bool = False, generator: torch.Generator | None = None
) -> Tensor:
    """Depths drawn from a piecewise constant density (NeRF, section 5.2).

    Args:
        edges: [R, B + 1] ascending.
        weights: [R, B] not negative, any sum; 1e-5 is added so that empty rays are sampled evenly.
        samples: number of depths.
        random: draw them; otherwise they are quantiles at even steps from 0 to 1.

    Returns:
        [R, samples], without gradient.
    """
    weights = weights.detach() + 1e-5
    edges = edges.detach()
    cumulative = torch.cumsum(weights / weights.sum(-1, keepdim=True), -1)
    cumulative = torch.cat([torch.zeros_like(cumulative[..., :1]), cumulative], -1)
    shape = (*cumulative.shape[:-1], samples)
    if random:
        share = torch.rand(shape, generator=generator, device=weights.device, dtype=weights.dtype)
    else:
        share = torch.linspace(0, 1, samples, device=weights.device, dtype=weights.dtype).expand(shape).contiguous()
    place = torch.searchsorted(cumulative, share)
    below, above = (place - 1).clamp_min(0), place.clamp_max(cumulative.shape[-1] - 1)
    low, high = torch.gather(cumulative, -1, below), torch.gather(cumulative, -1, above)
    start, end = torch.gather(edges, -1, below), torch.gather(edges, -1, above)
    step = high - low
    step = torch.where(step < 1e-5, torch.ones_like(step), step)
    return start + (share - low) / step * (end - start)
