# SPDX-License-Identifier: Apache-2.0
"""Warping of the right view to the left one by a disparity map."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vision3d.errors import InputError
from vision3d.ops._checks import at_least_float32, check_choice, check_map, shape_text, without_autocast


def warp_by_disparity(
    image: torch.Tensor,
    disparity: torch.Tensor,
    *,
    align_corners: bool = True,
    padding_mode: str = "border",
) -> torch.Tensor:
    """The right view seen from the left: bilinear samples of ``image`` at ``(x - disparity, y)``.

    Args:
        image: [B, C, H, W], the right view (any channels).
        disparity: [B, 1, H, W], pixels.
        align_corners: True samples exactly at ``(x - d, y)``. False is the rule that FADNet++ (arXiv 2110.02582) was
            trained with: the samples lie at ``((x - d) * W / (W - 1) - 0.5, y * H / (H - 1) - 0.5)``, a shift of
            up to half a pixel that depends on the size; its networks use it with ``padding_mode="zeros"``.
        padding_mode: outside the image the value is that of the nearest pixel ("border") or fades to 0 ("zeros").

    Returns:
        [B, C, H, W] of the image's type. A NaN disparity gives an unspecified value: mask it.

    Raises:
        InputError: shapes that do not fit each other, an unknown padding mode.
    """
    check_map("warp_by_disparity", "image", image)
    check_map("warp_by_disparity", "disparity", disparity)
    check_choice("warp_by_disparity", "padding_mode", padding_mode, ("border", "zeros"))
    batch, _, height, width = image.shape
    if disparity.shape[1] != 1 or disparity.shape[0] != batch or disparity.shape[2:] != image.shape[2:]:
        raise InputError(
            f"warp_by_disparity: disparity {shape_text(disparity)} does not fit image {shape_text(image)}: "
            "it must be [B, 1, H, W] with the image's B, H, W"
        )
    dtype = at_least_float32(torch.promote_types(image.dtype, disparity.dtype))
    with without_autocast(image):
        x = torch.arange(width, device=image.device, dtype=dtype)
        y = torch.arange(height, device=image.device, dtype=dtype)
        column = x - disparity[:, 0].to(dtype)
        if align_corners:  # the normalisation that grid_sample undoes exactly, also for W = 1
            column, row = (2.0 * column + 1.0) / width - 1.0, (2.0 * y + 1.0) / height - 1.0
        else:
            column, row = 2.0 * column / max(width - 1, 1) - 1.0, 2.0 * y / max(height - 1, 1) - 1.0
        grid = torch.stack([column, row[:, None].expand_as(column)], dim=3)
        sampled = F.grid_sample(image.to(dtype), grid, mode="bilinear", padding_mode=padding_mode, align_corners=False)
    return sampled.to(image.dtype)
