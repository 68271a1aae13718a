# SPDX-License-Identifier: Apache-2.0
"""Training loss of DispMVS: absolute differences of normalised inverse depth (arXiv 2211.16905)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vision3d.errors import InputError
from vision3d.ops._checks import check_choice, check_map


def dispmvs_loss(
    iterations: Sequence[Tensor],
    depth: Tensor,
    depth_range: Tensor,
    *,
    gamma: float = 0.9,
    gamma_order: str = "first_heavy",
) -> Tensor:
    """Weighted sum over the iterations of both stages of the mean absolute error of the share of inverse depth.

    The share of a depth d is ``(1 / (d + 1e-6) - 1/d_max) / (1/d_min - 1/d_max)``. Maps at a quarter of the size are
    compared with every fourth pixel of the truth.

    Args:
        iterations: ``DepthOutput.iterations``: [B, 1, ceil(H / 4), ceil(W / 4)] maps, then [B, 1, H, W] ones.
        depth: [B, 1, H, W] truth, NaN where unknown or not to be counted.
        depth_range: [B, 2] least and largest depth.
        gamma: weight ratio of neighbouring iterations of a stage.
        gamma_order: "first_heavy": ``gamma^i``, as published; "last_heavy": ``gamma^(T - 1 - i)``, as in optical flow.

    Returns:
        A scalar. The mean is over all known pixels of the batch; without any, the loss is 0.

    Raises:
        InputError: a map of another size.
    """
    check_map("dispmvs_loss", "depth", depth)
    check_choice("dispmvs_loss", "gamma_order", gamma_order, ("first_heavy", "last_heavy"))
    inverse = 1.0 / depth_range.float()[:, :, None, None, None]
    near, far = inverse[:, 0], inverse[:, 1]
    total = depth.new_zeros(())
    for factor in (1, 4):
        truth = depth[..., ::factor, ::factor]
        maps = [m for m in iterations if m.shape == truth.shape]
        known = torch.isfinite(truth)
        target = (1.0 / (torch.where(known, truth, 1.0) + 1e-6) - far) / (near - far)
        for i, estimate in enumerate(maps):
            weight = gamma ** (i if gamma_order == "first_heavy" else len(maps) - 1 - i)
            error = ((1.0 / (estimate + 1e-6) - far) / (near - far) - target).abs()
            total = total + weight * (error * known).sum() / known.sum().clamp(min=1)
    sizes = {tuple(depth[..., ::factor, ::factor].shape) for factor in (1, 4)}
    strange = [list(m.shape) for m in iterations if tuple(m.shape) not in sizes]
    if strange:
        raise InputError(
            f"dispmvs_loss: the map {strange[0]} is neither of the size of depth {list(depth.shape)} nor 1/4"
        )
    return total
