# SPDX-License-Identifier: Apache-2.0
"""Plain, slow forms of every op: one loop a definition. Tests and the benchmark compare against them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F


def correlation_1d(
    left: torch.Tensor, right: torch.Tensor, max_disparity: int, *, beyond_width: str = "zeros"
) -> torch.Tensor:
    """Loop over disparities with slice assignment, the way most public code does it: [B, D, H, W]."""
    batch, _, height, width = left.shape
    volume = left.new_zeros((batch, max_disparity, height, width))
    for d in range(max_disparity):
        if d == 0 or (d >= width and beyond_width == "unshifted"):
            volume[:, d] = (left * right).mean(dim=1)
        elif d < width:
            volume[:, d, :, d:] = (left[..., d:] * right[..., :-d]).mean(dim=1)
    return volume


def correlation_2d(left: torch.Tensor, right: torch.Tensor, max_displacement: int, stride: int = 1) -> torch.Tensor:
    """Loop over both displacements: [B, (2r+1)^2, H, W]."""
    height, width = left.shape[2:]
    radius = max_displacement // stride
    padded = F.pad(right, (radius * stride,) * 4)
    planes = []
    for j in range(2 * radius + 1):
        for i in range(2 * radius + 1):
            y, x = j * stride, i * stride
            planes.append((left * padded[:, :, y : y + height, x : x + width]).mean(dim=1))
    return torch.stack(planes, dim=1)


def groupwise_correlation(
    left: torch.Tensor, right: torch.Tensor, max_disparity: int, groups: int, *, normalize: bool = False
) -> torch.Tensor:
    """Loop over disparities: [B, G, D, H, W]."""
    batch, channels, height, width = left.shape
    size = channels // groups
    first = left.reshape(batch, groups, size, height, width)
    second = right.reshape(batch, groups, size, height, width)
    if normalize:
        first, second = F.normalize(first, dim=2) * math.sqrt(size), F.normalize(second, dim=2) * math.sqrt(size)
    volume = left.new_zeros((batch, groups, max_disparity, height, width))
    for d in range(min(max_disparity, width)):
        volume[:, :, d, :, d:] = (first[..., d:] * second[..., : width - d]).mean(dim=2)
    return volume


def concatenation_volume(
    left: torch.Tensor, right: torch.Tensor, max_disparity: int, *, mask_left: bool = True
) -> torch.Tensor:
    """Loop over disparities: [B, 2C, D, H, W]."""
    batch, channels, height, width = left.shape
    volume = left.new_zeros((batch, 2 * channels, max_disparity, height, width))
    for d in range(max_disparity):
        start = min(d, width) if mask_left else 0
        volume[:, :channels, d, :, start:] = left[..., start:]
        if d < width:
            volume[:, channels:, d, :, d:] = right[..., : width - d]
    return volume


def difference_volume(left: torch.Tensor, right: torch.Tensor, max_disparity: int) -> torch.Tensor:
    """Loop over disparities: [B, C, D, H, W]."""
    batch, channels, height, width = left.shape
    volume = left.new_zeros((batch, channels, max_disparity, height, width))
    for d in range(min(max_disparity, width)):
        volume[:, :, d, :, d:] = left[..., d:] - right[..., : width - d]
    return volume


def warp_by_disparity(
    image: torch.Tensor, disparity: torch.Tensor, *, align_corners: bool = True, padding_mode: str = "border"
) -> torch.Tensor:
    """Four gathered neighbours and their bilinear weights, by the written formulas."""
    height, width = image.shape[2:]
    x = torch.arange(width, dtype=disparity.dtype) - disparity
    y = torch.arange(height, dtype=disparity.dtype)[:, None].expand_as(x)
    if not align_corners:
        x = x * width / max(width - 1, 1) - 0.5
        y = y * height / max(height - 1, 1) - 0.5
    if padding_mode == "border":
        x, y = x.clamp(0, width - 1), y.clamp(0, height - 1)
    result = torch.zeros_like(image)
    for row in (y.floor(), y.floor() + 1):
        for column in (x.floor(), x.floor() + 1):
            weight = (1 - (x - column).abs()) * (1 - (y - row).abs())
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            index = row.clamp(0, height - 1).long() * width + column.clamp(0, width - 1).long()
            values = image.flatten(2).gather(2, index.flatten(2).expand(-1, image.shape[1], -1)).reshape(image.shape)
            result = result + values * weight * inside
    return result


def disparity_regression(
    cost_logits: torch.Tensor, values: torch.Tensor | None = None, *, radius: int | None = None
) -> torch.Tensor:
    """Sum of softmax times value, bin by bin: [B, 1, H, W]."""
    bins = cost_logits.shape[1]
    peak = cost_logits.argmax(dim=1)
    weights = (cost_logits - cost_logits.amax(dim=1, keepdim=True)).exp()
    numerator = torch.zeros_like(cost_logits[:, 0])
    denominator = torch.zeros_like(numerator)
    for d in range(bins):
        inside = 1.0 if radius is None else ((peak - d).abs() <= radius).to(weights)
        value = float(d) if values is None else values[d]
        numerator = numerator + weights[:, d] * inside * value
        denominator = denominator + weights[:, d] * inside
    return (numerator / denominator)[:, None]


def convex_upsample(
    disparity: torch.Tensor,
    weights: torch.Tensor,
    factor: int,
    *,
    padding: str = "replicate",
    scale: bool = True,
    normalized: bool = False,
) -> torch.Tensor:
    """Loop over the fine pixels of a cell and the nine neighbours."""
    batch, _, height, width = disparity.shape
    padded = F.pad(disparity, (1, 1, 1, 1), mode="replicate" if padding == "replicate" else "constant")
    context = weights.shape[2] == factor * height and weights.shape[1] == 9
    result = disparity.new_zeros((batch, 1, factor * height, factor * width))
    for i in range(factor):
        for j in range(factor):
            mask = weights[:, :, i::factor, j::factor] if context else weights[:, i * factor + j :: factor * factor]
            mask = mask if normalized else torch.softmax(mask, dim=1)
            mixed = torch.zeros_like(disparity[:, 0])
            for k in range(9):
                y, x = divmod(k, 3)
                mixed = mixed + mask[:, k] * padded[:, 0, y : y + height, x : x + width]
            result[:, 0, i::factor, j::factor] = mixed * (factor if scale else 1)
    return result


def _bilinear(image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Samples of [B, C, H, W] at [B, oh, ow] positions, corners outside count as 0: [B, C, oh, ow]."""
    height, width = image.shape[2:]
    result = image.new_zeros((*image.shape[:2], *y.shape[1:]))
    for row in (y.floor(), y.floor() + 1):
        for column in (x.floor(), x.floor() + 1):
            weight = (1 - (y - row).abs()) * (1 - (x - column).abs())
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            index = row.clamp(0, height - 1).long() * width + column.clamp(0, width - 1).long()
            values = image.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, image.shape[1], -1))
            result = result + values.view_as(result) * (weight * inside)[:, None]
    return result


def deform_conv2d(
    input: torch.Tensor,
    offset: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    mask: torch.Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> torch.Tensor:
    """Loop over the taps: sample every deformable group at the tap's positions, add its 1x1 convolution."""
    taps = weight.shape[2] * weight.shape[3]
    rows, columns = offset.shape[2:]
    result = input.new_zeros((input.shape[0], weight.shape[0], rows, columns))
    shifts = offset.split(2 * taps, dim=1)
    for tap in range(taps):
        i, j = divmod(tap, weight.shape[3])
        y = (torch.arange(rows) * stride - padding + i * dilation).to(offset)[:, None]
        x = (torch.arange(columns) * stride - padding + j * dilation).to(offset)
        samples = []
        for group, image in enumerate(input.chunk(len(shifts), dim=1)):
            values = _bilinear(image, y + shifts[group][:, 2 * tap], x + shifts[group][:, 2 * tap + 1])
            samples.append(values if mask is None else values * mask[:, group * taps + tap, None])
        result = result + F.conv2d(torch.cat(samples, dim=1), weight[:, :, i : i + 1, j : j + 1], groups=groups)
    return result if bias is None else result + bias[:, None, None]


def epipolar_cost(
    reference: torch.Tensor,
    pyramid: Sequence[torch.Tensor],
    base: torch.Tensor,
    direction: torch.Tensor,
    flow: torch.Tensor,
    radius: int,
    *,
    half_pixel: bool = False,
) -> torch.Tensor:
    """Loop over levels and steps: sample a map of source features, then the mean over channels of the product."""
    planes = []
    for level, features in enumerate(pyramid):
        height, width = features.shape[2:]
        for step in range(-radius, radius + 1):
            points = (base + (flow + step) * direction + (0.5 if half_pixel else 0.0)) / 2**level
            x, y = (points - (0.5 if half_pixel else 0.0)).unbind(1)
            grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], dim=3)
            sampled = F.grid_sample(features, grid, padding_mode="zeros", align_corners=False)
            planes.append((reference * sampled).mean(dim=1))
    return torch.stack(planes, dim=1)


def epipolar_flow(
    depth: torch.Tensor,
    base_depth: torch.Tensor,
    reference_intrinsics: torch.Tensor,
    source_intrinsics: torch.Tensor,
    source_from_reference: torch.Tensor,
) -> torch.Tensor:
    """Pixel by pixel: project the points at both depths, measure along the line through them, signed by the depths."""
    flow = torch.zeros_like(depth)
    batch, _, height, width = depth.shape
    for b in range(batch):
        for y in range(height):
            for x in range(width):
                ray = torch.linalg.inv(reference_intrinsics[b]) @ depth.new_tensor([x, y, 1.0])
                ends = []
                for z in (base_depth[b, 0, y, x], depth[b, 0, y, x]):
                    point = source_from_reference[b, :3, :3] @ (ray / ray[2] * z) + source_from_reference[b, :3, 3]
                    pixel = source_intrinsics[b] @ point
                    ends.append(pixel[:2] / pixel[2])
                sign = torch.sign(depth[b, 0, y, x] - base_depth[b, 0, y, x])
                flow[b, 0, y, x] = sign * (ends[1] - ends[0]).norm()
    return flow


def face_convolution(
    features: torch.Tensor,
    neighbours: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int = 1,
) -> torch.Tensor:
    """Loop over the neighbours, four products: [B, F, O], or [B, F / 4, O] of the middle children."""
    around = [features[:, neighbours[:, k]] for k in range(neighbours.shape[1])]
    total, turn, spread = (torch.zeros_like(features) for _ in range(3))
    for k, value in enumerate(around):
        total = total + value
        turn = turn + (around[(k + 1) % len(around)] - value).abs()
        spread = spread + (features - value).abs()
    result = torch.stack([t @ weight[:, :, k].t() for k, t in enumerate((features, total, turn, spread))]).sum(0)
    result = result if bias is None else result + bias
    return result[:, 3 * features.shape[1] // 4 :] if stride == 2 else result


def face_pool(features: torch.Tensor, mode: str = "max") -> torch.Tensor:
    """Loop over the parents and their children f, f + n, f + 2n, f + 3n: [B, n, C]."""
    count = features.shape[1] // 4
    pooled = []
    for f in range(count):
        children = torch.stack([features[:, f + k * count] for k in range(4)])
        pooled.append(children.amax(dim=0) if mode == "max" else children.mean(dim=0))
    return torch.stack(pooled, dim=1)


def face_unpool(features: torch.Tensor, adjacency: torch.Tensor, mode: str = "bilinear") -> torch.Tensor:
    """Loop over the faces; the child at corner k lies between the two sides that meet there: [B, 4n, C]."""
    count = features.shape[1]
    result = features.new_zeros((features.shape[0], 4 * count, features.shape[2]))
    for f in range(count):
        for k in range(4):
            value = features[:, f]
            if mode == "bilinear" and k < 3:
                first, second = (adjacency[f, j] for j in range(3) if j != k)
                value = (2 * value + features[:, first] + features[:, second]) / 4
            result[:, f + k * count] = value
    return result
