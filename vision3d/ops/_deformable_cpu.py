# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution on the processor: bags of four rows of a pixel table, block by block.

The input lies as a table with a row of channels for each pixel, so that one sample is a weighted sum of four rows:
``embedding_bag`` with weights. A block of samples is multiplied with the kernel at once, so memory beside the result is
the table and about ``_BLOCK`` numbers. The backward pass computes the samples again; the gradient of the table is the
same sum transposed: samples sorted by their pixel are the rows, and each pixel is a bag.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

_BLOCK = 1 << 20  # numbers of a block of samples (measured, docs/ops.md)
_BEFORE, _AFTER = 1, 2  # zero rows and columns around the image: positions lie in [-1, size], corners up to size + 1


class _Corners(NamedTuple):
    """The four pixels that each of M samples reads."""

    first: torch.Tensor  # [M] int32, row of the upper left corner in the table
    low: tuple[torch.Tensor, torch.Tensor]  # [M] weights of the upper row and of the left column
    high: tuple[torch.Tensor, torch.Tensor]  # [M] weights of the lower row and of the right column
    scale: torch.Tensor | None  # [M] mask
    steps: tuple[int, int, int, int]  # distance of the corners from the first one, row by row

    def weights(self) -> torch.Tensor:
        """[M, 4], times the mask."""
        (up, left), (down, right) = self.low, self.high
        if self.scale is not None:
            up, down = up * self.scale, down * self.scale
        return torch.stack([up * left, up * right, down * left, down * right], dim=1)

    def rows(self) -> torch.Tensor:
        """[M, 4] int32."""
        return torch.stack([self.first + step for step in self.steps], dim=1)


def _corners(y: torch.Tensor, x: torch.Tensor, mask: torch.Tensor | None, size: tuple[int, int]) -> _Corners:
    """Corners and weights of samples at (y, x); NaN positions read the table's ends with NaN weights."""
    top, left = y.floor(), x.floor()
    pitch = size[1] + _BEFORE + _AFTER
    first = (top.int() + _BEFORE) * pitch + (left.int() + _BEFORE)
    first = first.clamp_(0, (size[0] + _BEFORE + _AFTER) * pitch - pitch - 2)
    down, right = y - top, x - left
    return _Corners(first, (1 - down, 1 - right), (down, right), mask, (0, 1, pitch, pitch + 1))


def _read(table: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted sums of four rows each: [M, C]."""
    return F.embedding_bag(rows, table, per_sample_weights=weights, mode="sum")


def _add_transposed(target: torch.Tensor, grad: torch.Tensor, corners: _Corners, weights: torch.Tensor) -> None:
    """Add the gradient [M, C] of samples to the rows of the table that they read."""
    lowest, highest = (int(value) for value in torch.aminmax(corners.first))
    local, order = torch.sort(corners.first - lowest)
    count = torch.bincount(local, minlength=highest - lowest + 1)
    start = count.cumsum(0) - count
    for corner, step in enumerate(corners.steps):
        factor = weights[:, corner][order]
        bags = F.embedding_bag(order, grad, start, per_sample_weights=factor, mode="sum")
        target[lowest + step : highest + step + 1] += bags


def _position_grads(
    table: torch.Tensor, grad: torch.Tensor, corners: _Corners, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients [M] of y, x and the mask from the product of each sample's gradient with its four pixels."""
    number = grad.shape[0]
    start = torch.arange(0, 4 * number, 4, dtype=rows.dtype)
    bag = torch.arange(number, dtype=rows.dtype).repeat_interleave(4)
    dots = torch.ops.aten._embedding_bag_per_sample_weights_backward(grad, table, rows.flatten(), start, bag, 0)
    a, b, c, d = dots.reshape(number, 4).unbind(1)
    (up, left), (down, right) = corners.low, corners.high
    upper, lower = left * a + right * b, left * c + right * d
    along_y, along_x = lower - upper, up * (b - a) + down * (d - c)
    if corners.scale is not None:
        along_y, along_x = along_y * corners.scale, along_x * corners.scale
    return along_y, along_x, up * upper + down * lower


class _Convolution(torch.autograd.Function):
    """Samples of a pixel table times a kernel."""

    @staticmethod
    def forward(
        ctx: Any,
        table: torch.Tensor,
        y: torch.Tensor,
        x: torch.Tensor,
        mask: torch.Tensor | None,
        kernel: torch.Tensor,
        size: tuple[int, int],
    ) -> torch.Tensor:
        """[S, N, C] table, [S, P, taps] positions and mask, [S, taps * C, O] kernel: [S, P, O]."""
        ctx.save_for_backward(table, y, x, mask, kernel)
        ctx.size = size
        out = table.new_empty((*y.shape[:2], kernel.shape[2]))
        for s, block in _blocks(y, table.shape[2]):
            corners = _corners(*_cut((y, x, mask), s, block), size)
            samples = _read(table[s], corners.rows(), corners.weights())
            torch.mm(samples.view(out[s, block].shape[0], kernel.shape[1]), kernel[s], out=out[s, block])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """Gradients of table, y, x, mask and kernel, each where wanted."""
        table, y, x, mask, kernel = ctx.saved_tensors
        want = ctx.needs_input_grad
        grads = [
            torch.zeros_like(value) if w else None
            for value, w in zip((table, y, x, mask, kernel), want[:5], strict=True)
        ]
        for s, block in _blocks(y, table.shape[2]):
            corners = _corners(*_cut((y, x, mask), s, block), ctx.size)
            rows, weights = corners.rows(), corners.weights()
            piece = grad[s, block]
            if grads[4] is not None:
                grads[4][s].addmm_(_read(table[s], rows, weights).view(-1, kernel.shape[1]).t(), piece)
            if not any(want[:4]):
                continue
            above = (piece @ kernel[s].t()).view(-1, table.shape[2])
            if grads[0] is not None:
                _add_transposed(grads[0][s], above, corners, weights)
            if any(want[1:4]):
                found = _position_grads(table[s], above, corners, rows)
                for target, value in zip(grads[1:4], found, strict=True):
                    if target is not None:
                        target[s, block] = value.view(-1, y.shape[2])
        return (*grads, None)


def _blocks(y: torch.Tensor, channels: int) -> list[tuple[int, slice]]:
    """Index of the table and range of pixels of each block."""
    sets, pixels, taps = y.shape
    step = max(1, _BLOCK // (taps * channels))
    return [(s, slice(first, min(first + step, pixels))) for s in range(sets) for first in range(0, pixels, step)]


def _cut(
    maps: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None], s: int, block: slice
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The block of each map, flat."""
    y, x, mask = maps
    return y[s, block].flatten(), x[s, block].flatten(), None if mask is None else mask[s, block].flatten()


def convolve(
    image: torch.Tensor, y: torch.Tensor, x: torch.Tensor, mask: torch.Tensor | None, kernel: torch.Tensor
) -> torch.Tensor:
    """Deformable convolution from sampling positions.

    Args:
        image: [B, C, H, W], float32 or float64, on the processor.
        y, x: [B, G, taps, P] positions in [-1, H] and [-1, W], type of the image.
        mask: the same shape and type, or None.
        kernel: [O, C, taps].

    Returns:
        [B, O, P]. Differentiable once.
    """
    batch, channels, height, width = image.shape
    groups, taps, pixels = y.shape[1:]
    size = channels // groups
    padded = F.pad(image, (_BEFORE, _AFTER, _BEFORE, _AFTER))
    table = padded.reshape(batch * groups, size, padded.shape[2] * padded.shape[3]).transpose(1, 2).contiguous()
    maps = [
        None if value is None else value.transpose(2, 3).reshape(batch * groups, pixels, taps) for value in (y, x, mask)
    ]
    split = kernel.reshape(-1, groups, size, taps).permute(1, 3, 2, 0).reshape(1, groups, taps * size, kernel.shape[0])
    split = split.expand(batch, -1, -1, -1).reshape(batch * groups, taps * size, kernel.shape[0])
    parts = _Convolution.apply(table, maps[0], maps[1], maps[2], split, (height, width))
    return parts.reshape(batch, groups, pixels, kernel.shape[0]).sum(dim=1).transpose(1, 2)
