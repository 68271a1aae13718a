# SPDX-License-Identifier: Apache-2.0
"""Correlation of two feature maps, as banded matrix products.

The one-sided correlation of one image row is a band of the matrix ``left_row^T right_row``. The row is cut into tiles of
``tile`` columns; each tile is multiplied with the columns of the right row that it can reach, and the band is read off
the product through a view with a row pitch one shorter than the product's rows. Memory beside the result is
B*H*W*(tile + D) numbers, whatever C is; there is no loop over disparities.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vision3d.ops._checks import check_choice, check_pair, check_positive, without_autocast

_BEYOND = ("zeros", "unshifted")


def _tile_width(width: int, bins: int) -> int:
    """Columns of a tile: the whole row where it is short (measured, docs/ops.md) and wherever a graph is traced."""
    if torch.compiler.is_compiling() or width <= 128:
        return max(width, 2)
    return 64


def _band(left: torch.Tensor, right: torch.Tensor, bins: int, tile: int) -> torch.Tensor:
    """``out[n, h, x, d] = sum_c left[n, c, h, x] * right[n, c, h, x - d]``, 0 where x < d.

    Args:
        left, right: [N, C, H, W] of one type.
        bins: number of shifts d = 0 .. bins - 1.
        tile: columns computed together, at least 2.

    Returns:
        [N, H, W', bins], a view; W' is W rounded up to the tile.
    """
    number, channels, height, width = left.shape
    tiles = (width + tile - 1) // tile
    before = (bins + tile - 2) // tile  # tiles to the left that a tile can reach
    window = tile + bins - 1
    padded = tiles * tile
    left = F.pad(left, (0, padded - width)).unflatten(3, (tiles, tile)).permute(0, 2, 3, 4, 1)
    right = F.pad(right, (before * tile, padded - width)).unflatten(3, (tiles + before, tile))
    right = right.permute(0, 2, 3, 1, 4).flip(4)
    pieces = [right[:, :, before - step : before - step + tiles] for step in range(before + 1)]
    reach = torch.cat(pieces, dim=4)[..., :window]
    product = torch.matmul(left, reach)  # [N, H, tiles, tile, window]; entry (i, m) is the shift d = m - (tile - 1 - i)
    flat = product.reshape(number, height, tiles, tile * window)
    skewed = flat[..., tile - 1 : tile - 1 + tile * (window - 1)].unflatten(3, (tile, window - 1))
    return skewed[..., :bins].reshape(number, height, padded, bins)[:, :, :width]


def _repeat_unshifted(volume: torch.Tensor, dim: int) -> torch.Tensor:
    """Planes d >= W of the volume become plane 0 (FADNet++)."""
    bins, width = volume.shape[dim], volume.shape[-1]
    first = volume.narrow(dim, 0, 1)
    if torch.compiler.is_compiling():  # free width: no branch on it
        shape = [1] * volume.dim()
        shape[dim] = bins
        index = torch.arange(bins, device=volume.device).reshape(shape)
        return torch.where(index >= width, first, volume)
    if bins <= width or width == 0:
        return volume
    repeats = [-1] * volume.dim()
    repeats[dim] = bins - width
    return torch.cat([volume.narrow(dim, 0, width), first.expand(repeats)], dim=dim)


def correlation_1d(
    left: torch.Tensor,
    right: torch.Tensor,
    max_disparity: int,
    *,
    beyond_width: str = "zeros",
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """One-sided correlation along the row (DispNet-C, arXiv 1512.02134; FADNet, arXiv 2003.10758).

    ``out[b, d, y, x] = mean_c left[b, c, y, x] * right[b, c, y, x - d]`` for x >= d, else 0.

    Args:
        left, right: [B, C, H, W] features of one shape.
        max_disparity: number of bins D (d = 0 .. D - 1, in pixels of the feature map).
        beyond_width: bins d >= W are "zeros", or repeat bin 0 ("unshifted", what FADNet++ was trained with).
        dtype: type in which products are summed and returned; None keeps the inputs' common type, also under autocast.
            torch.float32 makes the sum of bfloat16 features exact to float32.

    Returns:
        [B, D, H, W].

    Raises:
        InputError: shapes that differ or are not 4-D, D < 1, an unknown rule.
    """
    check_pair("correlation_1d", left, right)
    check_positive("correlation_1d", "max_disparity", max_disparity)
    check_choice("correlation_1d", "beyond_width", beyond_width, _BEYOND)
    dtype = dtype or torch.promote_types(left.dtype, right.dtype)
    channels, width = left.shape[1], left.shape[3]
    with without_autocast(left):
        scaled = left.to(dtype) * (1.0 / max(channels, 1))
        band = _band(scaled, right.to(dtype), max_disparity, _tile_width(width, max_disparity))
        volume = band.permute(0, 3, 1, 2).contiguous()
    return _repeat_unshifted(volume, 1) if beyond_width == "unshifted" else volume


def correlation_2d(
    left: torch.Tensor,
    right: torch.Tensor,
    max_displacement: int,
    stride: int = 1,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Correlation over a square of displacements (FlowNet-C, arXiv 1504.06852; PWC-Net, arXiv 1709.02371).

    ``out[b, (j + r) * (2r + 1) + (i + r), y, x] = mean_c left[b, c, y, x] * right[b, c, y + j * s, x + i * s]``, 0 where
    the right position lies outside, with s = stride and r = max_displacement // s.

    Args:
        left, right: [B, C, H, W] features of one shape.
        max_displacement: largest displacement in pixels of the feature map, 0 or more.
        stride: step between displacements, pixels.
        dtype: type in which products are summed and returned; None keeps the inputs' common type, also under autocast.

    Returns:
        [B, (2r + 1)^2, H, W], row displacement outer, ascending.

    Raises:
        InputError: shapes that differ or are not 4-D, negative displacement, stride < 1.
    """
    check_pair("correlation_2d", left, right)
    check_positive("correlation_2d", "max_displacement", max_displacement, 0)
    check_positive("correlation_2d", "stride", stride)
    dtype = dtype or torch.promote_types(left.dtype, right.dtype)
    height, width = left.shape[2:]
    radius = max_displacement // stride
    reach = radius * stride
    with without_autocast(left):
        # `reach` columns more on the left than on the right row make the two-sided search one-sided, in descending order
        scaled = F.pad(left.to(dtype) * (1.0 / max(left.shape[1], 1)), (2 * reach, 0))
        padded = F.pad(right.to(dtype), (reach, reach, reach, reach))
        tile = _tile_width(width + 2 * reach, 2 * reach + 1)
        rows = []
        for step in range(2 * radius + 1):
            row = padded[:, :, step * stride : step * stride + height]
            band = _band(scaled, row, 2 * reach + 1, tile)
            rows.append(band[:, :, 2 * reach :].flip(3)[..., ::stride])
        return torch.cat(rows, dim=3).permute(0, 3, 1, 2).contiguous()
