# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution, v1 (arXiv 1703.06211) and v2 with a modulation mask (arXiv 1811.11168)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vision3d.errors import InputError
from vision3d.ops._checks import at_least_float32, check_map, check_positive, shape_text, without_autocast

_Pair = int | tuple[int, int]


def _pair(value: _Pair, name: str, minimum: int) -> tuple[int, int]:
    """``(rows, columns)`` of an argument that may be one number for both."""
    first, second = (value, value) if isinstance(value, int) else value
    for number in (first, second):
        check_positive("deform_conv2d", name, number, minimum)
    return first, second


def _check_weight(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: int) -> None:
    """Raise InputError unless weight and bias fit the input's channels."""
    check_map("deform_conv2d", "input", x)
    check_map("deform_conv2d", "weight", weight)
    check_positive("deform_conv2d", "groups", groups)
    if weight.shape[1] * groups != x.shape[1] or weight.shape[0] % groups or 0 in weight.shape:
        raise InputError(
            f"deform_conv2d: weight {shape_text(weight)} does not fit input {shape_text(x)} with {groups} groups: "
            "it must be [C_out, C_in / groups, kh, kw], and groups must divide C_out"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InputError(
            f"deform_conv2d: bias must be [{weight.shape[0]}] for weight {shape_text(weight)}, got {shape_text(bias)}"
        )


def _check_maps(
    x: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor | None, taps: int, size: tuple[int, int]
) -> int:
    """Raise InputError unless offset and mask fit; the number of deformable groups."""
    check_map("deform_conv2d", "offset", offset)
    groups, rest = divmod(offset.shape[1], 2 * taps)
    if groups == 0 or rest or x.shape[1] % groups:
        raise InputError(
            f"deform_conv2d: offset {shape_text(offset)} must have 2 * {taps} channels (dy, dx of each tap) for each "
            f"deformable group, and the groups must divide the channels of input {shape_text(x)}"
        )
    maps = [("offset", offset, 2)] if mask is None else [("offset", offset, 2), ("mask", mask, 1)]
    for name, tensor, planes in maps:
        check_map("deform_conv2d", name, tensor)
        expected = [x.shape[0], planes * groups * taps, *size]
        if list(tensor.shape) != expected:
            raise InputError(
                f"deform_conv2d: {name} {shape_text(tensor)} does not fit input {shape_text(x)} and offset "
                f"{shape_text(offset)}: it must be {expected}"
            )
    return groups


def deform_conv2d(
    input: torch.Tensor,
    offset: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    mask: torch.Tensor | None = None,
    stride: _Pair = 1,
    padding: _Pair = 0,
    dilation: _Pair = 1,
    groups: int = 1,
) -> torch.Tensor:
    """Convolution whose taps read the input at shifted positions, each reading scaled by a mask.

    Tap (i, j) of output pixel (y, x) reads ``input`` bilinearly at ``(y * stride - padding + i * dilation + dy,
    x * stride - padding + j * dilation + dx)``. A corner outside the input counts as 0, so a position <= -1 or >= the
    size gives 0.

    Args:
        input: [B, C, H, W].
        offset: [B, 2 * G * kh * kw, oh, ow], pixels of the input: ``(dy, dx)`` of each tap, taps row by row, the
            deformable groups one after the other. Their number G follows from the channels and divides C.
        weight: [C_out, C / groups, kh, kw].
        bias: [C_out] or None.
        mask: [B, G * kh * kw, oh, ow], the factor of each tap (v2), or None for 1 (v1).
        stride, padding, dilation: one number, or one for rows and one for columns.
        groups: groups of the convolution itself, a divisor of C and C_out.

    Returns:
        [B, C_out, oh, ow] of the input's type. Positions and samples are computed in float32 at least, the products
        with the weight in the input's type.

    Raises:
        InputError: shapes that do not fit each other.
    """
    _check_weight(input, weight, bias, groups)
    kernel = (weight.shape[2], weight.shape[3])
    steps, pads, spread = _pair(stride, "stride", 1), _pair(padding, "padding", 0), _pair(dilation, "dilation", 1)
    size = tuple((input.shape[2 + a] + 2 * pads[a] - spread[a] * (kernel[a] - 1) - 1) // steps[a] + 1 for a in (0, 1))
    deformable = _check_maps(input, offset, mask, kernel[0] * kernel[1], (size[0], size[1]))
    with without_autocast(input):
        columns = _sample(input, offset, mask, kernel, deformable, steps, pads, spread)
        batch, out = input.shape[0], weight.shape[0]
        kernels = weight.to(input.dtype).reshape(1, groups, out // groups, -1)
        result = (kernels @ columns.reshape(batch, groups, kernels.shape[3], -1)).reshape(batch, out, *size)
        return result if bias is None else result + bias.to(input.dtype)[:, None, None]


def _sample(
    x: torch.Tensor,
    offset: torch.Tensor,
    mask: torch.Tensor | None,
    kernel: tuple[int, int],
    groups: int,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> torch.Tensor:
    """What each tap reads, times the mask: [B, C, taps, oh * ow] of the input's type."""
    batch, channels, height, width = x.shape
    rows, columns = offset.shape[2:]
    taps = kernel[0] * kernel[1]
    dtype = at_least_float32(torch.promote_types(x.dtype, offset.dtype))
    shift = offset.to(dtype).reshape(batch * groups, kernel[0], kernel[1], 2, rows, columns)
    top = torch.arange(kernel[0], device=x.device, dtype=dtype) * dilation[0] - padding[0]
    left = torch.arange(kernel[1], device=x.device, dtype=dtype) * dilation[1] - padding[1]
    y = torch.arange(rows, device=x.device, dtype=dtype) * stride[0] + top[:, None]
    x_position = torch.arange(columns, device=x.device, dtype=dtype) * stride[1] + left[:, None]
    v = (shift[:, :, :, 0] + y[:, None, :, None]).clamp(-2, height + 1)
    u = (shift[:, :, :, 1] + x_position[:, None, :]).clamp(-2, width + 1)
    grid = torch.stack([(2 * u + 1) / width - 1, (2 * v + 1) / height - 1], dim=5)
    grid = grid.reshape(batch * groups, taps * rows, columns, 2)
    image = x.to(dtype).reshape(batch * groups, channels // groups, height, width)
    sampled = F.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    sampled = sampled.reshape(batch, groups, channels // groups, taps, rows * columns)
    if mask is not None:
        sampled = sampled * mask.to(dtype).reshape(batch, groups, 1, taps, rows * columns)
    return sampled.reshape(batch, channels, taps, rows * columns).to(x.dtype)
