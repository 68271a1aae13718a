# SPDX-License-Identifier: Apache-2.0
"""Matching cost along epipolar lines: a 2-D map of a few samples a pixel, never a volume over depths."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vision3d.errors import InputError
from vision3d.ops._checks import at_least_float32, check_map, check_positive, shape_text, without_autocast

_CACHED = 1 << 16  # numbers of a sampled map that are worked on at once on a processor


def feature_pyramid(features: Tensor, levels: int) -> list[Tensor]:
    """The map and its repeated 2x2 averages: [B, C, H, W], [B, C, H // 2, W // 2], ... (sides may become 0)."""
    check_map("feature_pyramid", "features", features)
    check_positive("feature_pyramid", "levels", levels)
    pyramid = [features]
    for _ in range(levels - 1):
        last = pyramid[-1]
        height, width = last.shape[2] // 2, last.shape[3] // 2
        small = height == 0 or width == 0
        pyramid.append(last.new_zeros(*last.shape[:2], height, width) if small else F.avg_pool2d(last, 2, 2))
    return pyramid


def epipolar_cost(
    reference: Tensor,
    pyramid: Sequence[Tensor],
    base: Tensor,
    direction: Tensor,
    flow: Tensor,
    radius: int,
    *,
    half_pixel: bool = False,
) -> Tensor:
    """Correlation of reference features with source features sampled around a point of the epipolar line.

    Level p and step s = -radius .. radius give channel ``p (2 radius + 1) + s + radius``: the mean over C of reference
    times source features at ``(base + (flow + s) direction) / 2^p``, bilinear, 0 outside. Steps are pixels of level 0
    on every level, so that higher levels add context, not reach (DispMVS, arXiv 2211.16905, section 3.2).

    Args:
        reference: [B, C, H, W].
        pyramid: source features of each level, [B, C, H_p, W_p], see :func:`feature_pyramid`.
        base, direction: [B, 2, H, W] pixels (x, y) of level 0, see :func:`vision3d.ops.epipolar_lines`.
        flow: [B, 1, H, W] pixels.
        radius: steps to each side.
        half_pixel: sample at ``(m + 0.5) / 2^p - 0.5``, where averaged pixels really lie; False is the published rule.

    Returns:
        [B, L (2 radius + 1), H, W], float32 at least. Differentiable in all features and positions; samples are taken
        again in the backward pass, so that memory does not grow with C times their number.

    Raises:
        InputError: shapes that do not fit each other.
    """
    _check("epipolar_cost", reference, pyramid, base, direction, flow, radius)
    dtype = at_least_float32(reference.dtype)
    with without_autocast(reference):
        point = (base + flow * direction).to(dtype)
        steps = torch.arange(-radius, radius + 1, device=flow.device, dtype=dtype)[:, None, None, None]
        points = point[:, None] + steps * direction.to(dtype)[:, None]  # [B, K, 2, H, W]
        costs = []
        for level, features in enumerate(pyramid):
            scale = 0.5**level
            places = points * scale + (0.5 * scale - 0.5 if half_pixel else 0.0)
            arguments = (reference.to(dtype), features.to(dtype), places)
            if torch.is_grad_enabled() and any(argument.requires_grad for argument in arguments):
                costs.append(checkpoint(sampled_correlation, *arguments, use_reentrant=False))
            else:
                costs.append(sampled_correlation(*arguments))
        return torch.cat(costs, 1)


def sampled_correlation(reference: Tensor, source: Tensor, points: Tensor) -> Tensor:
    """Mean over C of ``reference`` [B, C, H, W] times ``source`` [B, C, h, w] at ``points`` [B, K, 2, H, W].

    Returns [B, K, H, W]. On a processor, one sample of the batch and a few channels are taken at a time, so that the
    sampled maps stay in its cache; elsewhere, one step k after the other.
    """
    channels, height, width = source.shape[1:]
    if height == 0 or width == 0 or points.numel() == 0 or channels == 0:
        return reference.new_zeros(len(points), points.shape[1], *points.shape[3:]) + 0.0 * reference.sum()
    grids = _grids(points, height, width)
    if points.device.type != "cpu" or torch.compiler.is_compiling():
        return _correlate(reference, source, grids, channels) / channels
    few = max(1, _CACHED // max(height * width, points[0, 0, 0].numel()))
    samples = zip(reference.split(1), source.split(1), grids.split(1), strict=True)
    return torch.cat([_correlate(*sample, few) for sample in samples]) / channels


def _correlate(reference: Tensor, source: Tensor, grids: Tensor, few: int) -> Tensor:
    """Sum over C of reference times sampled source, ``few`` channels at a time: [B, K, H, W]."""
    costs: list[Tensor] = []
    for first, second in zip(reference.split(few, 1), source.split(few, 1), strict=True):
        for k, grid in enumerate(grids.unbind(1)):
            part = (first * F.grid_sample(second, grid, padding_mode="zeros", align_corners=False)).sum(1)
            if k < len(costs):
                costs[k] = costs[k] + part
            else:
                costs.append(part)
    return torch.stack(costs, 1)


def _grids(points: Tensor, height: int, width: int) -> Tensor:
    """[B, K, H, W, 2] positions as ``grid_sample`` wants them; NaN lies outside."""
    x, y = torch.nan_to_num(points, nan=-2.0).unbind(2)
    x, y = x.clamp(-1, width), y.clamp(-1, height)
    return torch.stack([(2.0 * x + 1.0) / width - 1.0, (2.0 * y + 1.0) / height - 1.0], 4)


def _check(
    op: str,
    reference: Tensor,
    pyramid: Sequence[Tensor],
    base: Tensor,
    direction: Tensor,
    flow: Tensor,
    radius: int,
) -> None:
    check_map(op, "reference", reference)
    check_positive(op, "radius", radius, 0)
    batch, channels, height, width = reference.shape
    for level, features in enumerate(pyramid):
        check_map(op, f"pyramid[{level}]", features)
        if tuple(features.shape[:2]) != (batch, channels):
            raise InputError(
                f"{op}: pyramid[{level}] {shape_text(features)} must have the batch and channels of reference "
                f"{shape_text(reference)}"
            )
    for name, tensor, planes in (("base", base, 2), ("direction", direction, 2), ("flow", flow, 1)):
        check_map(op, name, tensor)
        if list(tensor.shape) != [batch, planes, height, width]:
            raise InputError(
                f"{op}: {name} {shape_text(tensor)} must be [B, {planes}, H, W] of reference {shape_text(reference)}"
            )
