# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution, v1 (arXiv 1703.06211) and v2 with a modulation mask (arXiv 1811.11168)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vision3d.errors import InputError
from vision3d.ops._checks import at_least_float32, check_map, check_positive, shape_text, without_autocast
from vision3d.ops._deformable_cpu import convolve

_Pair = int | tuple[int, int]
_WIDE = 24  # channels a deformable group (measured, docs/ops.md)
_LARGE = 1 << 23  # numbers: 32 MB of float32


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
            f"deform_conv2d: offset {shape_text(offset)} must have {2 * taps} channels (dy, dx of each tap) for each "
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
        [B, C_out, oh, ow] of the input's type; positions, samples and sums are computed in float32 at least.
        Differentiable once. Positions beyond the rim give 0 and no gradient; a NaN position gives NaN.

    Raises:
        InputError: shapes that do not fit each other.
    """
    _check_weight(input, weight, bias, groups)
    kernel = (weight.shape[2], weight.shape[3])
    steps, pads, spread = _pair(stride, "stride", 1), _pair(padding, "padding", 0), _pair(dilation, "dilation", 1)
    size = tuple((input.shape[2 + a] + 2 * pads[a] - spread[a] * (kernel[a] - 1) - 1) // steps[a] + 1 for a in (0, 1))
    if min(size) < 1:
        raise InputError(f"deform_conv2d: kernel {kernel} does not fit into input {shape_text(input)} with its padding")
    deformable = _check_maps(input, offset, mask, kernel[0] * kernel[1], (size[0], size[1]))
    with without_autocast(input):
        dtype = at_least_float32(torch.promote_types(input.dtype, offset.dtype))
        y, x = _positions(input, offset.to(dtype), kernel, deformable, steps, pads, spread)
        factors = None if mask is None else mask.to(dtype).reshape(y.shape)
        method = _convolve_sampled if _standard(input, y) else convolve
        result = method(input.to(dtype), y, x, factors, _dense(weight.to(dtype), groups)).to(input.dtype)
        result = result.reshape(input.shape[0], weight.shape[0], *size)
        return result if bias is None else result + bias.to(input.dtype)[:, None, None]


def _standard(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether to take standard operations: in traced graphs, on other devices, and where they cost no more than bags.

    Bags of pixel rows win with many channels a group, and where the samples of all taps become large.
    """
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return True
    channels = x.shape[1] // y.shape[1]
    return channels < _WIDE and 0 < y.numel() * channels < _LARGE and x.numel() > 0


def _dense(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """[C_out, C, taps]: the kernel with zeros where a group does not read a channel."""
    weight = weight.flatten(2)
    if groups == 1:
        return weight
    size = weight.shape[1]
    parts = [F.pad(part, (0, 0, g * size, (groups - 1 - g) * size)) for g, part in enumerate(weight.chunk(groups))]
    return torch.cat(parts)


def _positions(
    x: torch.Tensor,
    offset: torch.Tensor,
    kernel: tuple[int, int],
    groups: int,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns that the taps read, [B, G, taps, oh * ow] each, moved to the rim where farther out."""
    found = []
    shift = offset.reshape(x.shape[0], groups, kernel[0], kernel[1], 2, *offset.shape[2:])
    for axis in (0, 1):
        tap = torch.arange(kernel[axis], device=x.device, dtype=offset.dtype) * dilation[axis] - padding[axis]
        pixel = torch.arange(offset.shape[2 + axis], device=x.device, dtype=offset.dtype) * stride[axis]
        base = tap[:, None] + pixel
        base = base[:, None, :, None] if axis == 0 else base[:, None, :]
        position = (shift[:, :, :, :, axis] + base).clamp(-1, x.shape[2 + axis])
        found.append(position.flatten(4).flatten(2, 3))
    return found[0], found[1]


def _convolve_sampled(
    image: torch.Tensor, y: torch.Tensor, x: torch.Tensor, mask: torch.Tensor | None, kernel: torch.Tensor
) -> torch.Tensor:
    """All taps in one call of ``grid_sample``, then one matrix product: standard operations only, memory for all taps.

    Arguments and result as those of ``convolve``.
    """
    batch, channels, height, width = image.shape
    groups, taps, pixels = y.shape[1:]
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], dim=4).flatten(0, 1)
    samples = F.grid_sample(
        image.reshape(batch * groups, channels // groups, height, width),
        grid,
        mode="bilinear",
        padding_mode="zeros",
        align_corners=False,
    ).reshape(batch, groups, channels // groups, taps, pixels)
    if mask is not None:
        samples = samples * mask[:, :, None]
    return kernel.flatten(1) @ samples.reshape(batch, channels * taps, pixels)
