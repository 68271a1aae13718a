# SPDX-License-Identifier: Apache-2.0
"""Learned upsampling of disparity maps."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vision3d.errors import InputError
from vision3d.ops._checks import at_least_float32, check_choice, check_map, check_positive, shape_text, without_autocast


def _neighbours(disparity: torch.Tensor, padding: str) -> torch.Tensor:
    """The 3x3 neighbourhood of each pixel, row-major: [B, 1, H, W] -> [B, 9, H, W]."""
    height, width = disparity.shape[2:]
    mode = "replicate" if padding == "replicate" else "constant"
    padded = F.pad(disparity, (1, 1, 1, 1), mode=mode)
    return torch.cat([padded[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)], dim=1)


def convex_upsample(
    disparity: torch.Tensor,
    weights: torch.Tensor,
    factor: int,
    *,
    padding: str = "replicate",
    scale: bool = True,
    normalized: bool = False,
) -> torch.Tensor:
    """Each fine pixel is a convex combination of the 3x3 coarse neighbourhood.

    Two layouts of the weights are told apart by their shape (k = neighbour 0 .. 8, row-major; i, j = fine row, column):

    - RAFT (arXiv 2003.12039): [B, 9 * f * f, H, W], channel ``k * f * f + i * f + j``, for the fine pixel
      ``(f * y + i, f * x + j)``.
    - CoEx (arXiv 2108.05773), "context upsampling": [B, 9, f * H, f * W], channel k.

    Args:
        disparity: [B, 1, H, W], pixels of the coarse map.
        weights: logits, or weights that sum to 1 over k with ``normalized=True``; one of the two layouts.
        factor: f, 1 or more.
        padding: border rule of the neighbourhood: "replicate", or "zeros" (RAFT's, which darkens the border).
        scale: multiply the values by f, so that they are pixels of the fine map.
        normalized: the weights are a softmax already.

    Returns:
        [B, 1, f * H, f * W], computed and returned in float32 at least.

    Raises:
        InputError: weights that fit neither layout, an unknown padding, f < 1.
    """
    check_map("convex_upsample", "disparity", disparity)
    check_map("convex_upsample", "weights", weights)
    check_positive("convex_upsample", "factor", factor)
    check_choice("convex_upsample", "padding", padding, ("replicate", "zeros"))
    batch, channels, height, width = disparity.shape
    fine = (batch, 9, factor * height, factor * width)
    coarse = (batch, 9 * factor * factor, height, width)
    if channels != 1 or tuple(weights.shape) not in (fine, coarse):
        raise InputError(
            f"convex_upsample: weights {shape_text(weights)} do not fit disparity {shape_text(disparity)} and factor "
            f"{factor}: [B, 1, H, W] needs weights {list(coarse)} or {list(fine)}"
        )
    dtype = at_least_float32(torch.promote_types(disparity.dtype, weights.dtype))
    with without_autocast(disparity):
        neighbours = _neighbours(disparity.to(dtype) * (factor if scale else 1), padding)
        if tuple(weights.shape) == coarse:
            shares = weights.to(dtype).reshape(batch, 9, factor * factor, height, width)
            mixed = ((shares if normalized else torch.softmax(shares, dim=1)) * neighbours[:, :, None]).sum(dim=1)
            return F.pixel_shuffle(mixed, factor)
        shares = weights.to(dtype).reshape(batch, 9, height, factor, width, factor)
        mixed = ((shares if normalized else torch.softmax(shares, dim=1)) * neighbours[:, :, :, None, :, None]).sum(
            dim=1
        )
        return mixed.reshape(batch, 1, factor * height, factor * width)
