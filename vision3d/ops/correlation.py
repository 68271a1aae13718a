# SPDX-License-Identifier: Apache-2.0
"""Correlation of two feature maps, as banded matrix products.

The one-sided correlation of one image row is a band of the matrix ``left_row^T right_row``. The row is cut into tiles
of T columns; each tile is multiplied with the columns of the right row that it can reach, in reversed order, and the
band is read off the product through a view whose rows are one shorter than the product's. Memory beside the result is
about B*H*W*(2*C + T + D + C*(T + D)/T) numbers; there is no loop over disparities and no volume with a channel axis.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vision3d.ops._checks import check_choice, check_pair, check_positive, without_autocast

_BEYOND = ("zeros", "unshifted")
_TILE = 48


def _tile_width(width: int, short: int = 128) -> int | None:
    """Columns of a tile: a divisor of the width near 48 where there is one (measured, docs/ops.md).

    None means the whole row: for rows below ``short`` columns, and in a traced graph, where the width has to stay free.
    """
    if torch.compiler.is_compiling() or width < short:
        return None
    divisors = [tile for tile in range(32, 65) if width % tile == 0]
    return min(divisors, key=lambda tile: abs(tile - _TILE), default=_TILE)


def _cut_rows(left: torch.Tensor, right: torch.Tensor, bins: int, tile: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tiles of the left rows [N, H, tiles, C, tile], and what each reaches, reversed: [N, H, tiles, C, tile + bins]."""
    width = left.shape[3]
    tiles = (width + tile - 1) // tile
    before = (bins + tile - 1) // tile  # tiles to the left that a tile can reach
    left = F.pad(left, (0, tiles * tile - width)).unflatten(3, (tiles, tile)).permute(0, 2, 3, 1, 4)
    right = F.pad(right, (before * tile, tiles * tile - width)).unflatten(3, (tiles + before, tile))
    right = right.permute(0, 2, 3, 1, 4).flip(4)
    pieces = [
        right[:, :, before - step : before - step + tiles, :, : min(tile, tile + bins - step * tile)]
        for step in range(before + 1)
    ]
    return left, torch.cat(pieces, dim=4)


def banded_product(
    left: torch.Tensor, right: torch.Tensor, bins: int, scale: float, tile: int | None = None
) -> torch.Tensor:
    """``out[n, d, h, x] = scale * sum_c left[n, c, h, x] * right[n, c, h, x - d]``, 0 where x < d.

    Args:
        left, right: [N, C, H, W] of one type; the sum is taken as the matrix product of that type does it.
        bins: number of shifts, d = 0 .. bins - 1.
        scale: factor of the sums.
        tile: columns computed together; None means whole rows.

    Returns:
        [N, bins, H, W], contiguous.
    """
    number, channels, height, width = left.shape
    if tile is None:
        tile, tiles = width, 1
        columns = left.permute(0, 2, 1, 3)[:, :, None]
        reach = F.pad(right, (bins, 0)).flip(3).permute(0, 2, 1, 3)[:, :, None]
    else:
        columns, reach = _cut_rows(left, right, bins, tile)
        tiles = columns.shape[2]
    window = tile + bins
    product = torch.baddbmm(
        left.new_zeros((1, 1, 1)),
        columns.contiguous().transpose(3, 4).reshape(number * height * tiles, tile, channels),
        reach.reshape(number * height * tiles, channels, window),
        beta=0,
        alpha=scale,
    )  # entry (i, m) of a tile is the shift d = m - (tile - 1 - i)
    flat = product.reshape(number, height, tiles, tile * window)
    skewed = flat[..., tile - 1 : tile - 1 + tile * (window - 1)].unflatten(3, (tile, window - 1))[..., :bins]
    planes = skewed.permute(0, 4, 1, 2, 3).reshape(number, bins, height, tiles * tile)
    return planes[..., :width].contiguous()


def _repeat_unshifted(volume: torch.Tensor) -> torch.Tensor:
    """Planes d >= W of [B, D, H, W] become plane 0 (FADNet++)."""
    bins, width = volume.shape[1], volume.shape[3]
    if torch.compiler.is_compiling():  # no branch on a width that stays free
        index = torch.arange(bins, device=volume.device)[:, None, None]
        return torch.where(index >= width, volume[:, :1], volume)
    if bins <= width or width == 0:
        return volume
    return torch.cat([volume[:, :width], volume[:, :1].expand(-1, bins - width, -1, -1)], dim=1)


def _tiled_product(left: torch.Tensor, right: torch.Tensor, radius: int, stride: int, scale: float) -> torch.Tensor:
    """Square tiles of the left map times the squares of the right map that they reach: [B, (2r + 1)^2, H, W]."""
    batch, channels, height, width = left.shape
    reach = radius * stride
    tile = 8 if reach <= 8 else 16
    window, bins = tile + 2 * reach, 2 * reach + 1
    rows, columns = (height + tile - 1) // tile, (width + tile - 1) // tile
    below, beside = rows * tile - height, columns * tile - width
    left = F.pad(left, (0, beside, 0, below)).unflatten(3, (columns, tile)).unflatten(2, (rows, tile))
    left = left.permute(0, 2, 4, 3, 5, 1)  # [B, rows, columns, tile, tile, C]
    right = F.pad(right, (reach, reach + beside, reach, reach + below))
    right = right.unfold(2, window, tile).unfold(3, window, tile).permute(0, 2, 3, 1, 4, 5).flip((4, 5))
    product = torch.baddbmm(
        left.new_zeros((1, 1, 1)),
        left.reshape(batch * rows * columns, tile * tile, channels),
        right.reshape(batch * rows * columns, channels, window * window),
        beta=0,
        alpha=scale,
    ).reshape(batch, rows, columns, tile, tile, window, window)
    # as in the banded product, along the rows and along the columns; the displacements come out in descending order
    band, first = tile * (window - 1), tile - 1
    skewed = product.transpose(4, 5).reshape(batch, rows, columns, tile * window, tile * window)
    skewed = skewed[..., first : first + band, first : first + band]
    skewed = skewed.unflatten(4, (tile, window - 1)).unflatten(3, (tile, window - 1))
    skewed = skewed[:, :, :, :, :bins:stride, :, :bins:stride].permute(0, 4, 6, 1, 3, 2, 5)
    planes = skewed.reshape(batch, (2 * radius + 1) ** 2, rows * tile, columns * tile)
    return planes[:, :, :height, :width].flip(1)


def _row_products(left: torch.Tensor, right: torch.Tensor, radius: int, stride: int, scale: float) -> torch.Tensor:
    """The same as ``_tiled_product``, one band a row displacement: slower, but every size stays free in a graph."""
    height, width = left.shape[2:]
    reach = radius * stride
    # `reach` columns more on the left than on the right row make the two-sided search a one-sided one, descending
    left = F.pad(left, (2 * reach, 0))
    right = F.pad(right, (reach, reach, reach, reach))
    planes = []
    for step in range(2 * radius + 1):
        row = right[:, :, step * stride : step * stride + height]
        band = banded_product(left, row, 2 * reach + 1, scale)
        planes.append(band[:, ::stride, :, 2 * reach : 2 * reach + width].flip(1))
    return torch.cat(planes, dim=1)


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
    with without_autocast(left):
        scale, tile = 1.0 / max(left.shape[1], 1), _tile_width(left.shape[3])
        volume = banded_product(left.to(dtype), right.to(dtype), max_disparity, scale, tile)
    return _repeat_unshifted(volume) if beyond_width == "unshifted" else volume


def correlation_2d(
    left: torch.Tensor,
    right: torch.Tensor,
    max_displacement: int,
    stride: int = 1,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Correlation over a square of displacements (FlowNet-C, arXiv 1504.06852; PWC-Net, arXiv 1709.02371).

    ``out[b, (j + r) * (2r + 1) + (i + r), y, x] = mean_c left[b, c, y, x] * right[b, c, y + j * s, x + i * s]``, 0
    where the right position lies outside, with s = stride and r = max_displacement // s.

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
    radius = max_displacement // stride
    with without_autocast(left):
        product = _row_products if torch.compiler.is_compiling() else _tiled_product
        return product(left.to(dtype), right.to(dtype), radius, stride, 1.0 / max(left.shape[1], 1))
