# SPDX-License-Identifier: Apache-2.0
"""Epipolar disparity flow (DispMVS, arXiv 2211.16905): depth of a reference pixel as a signed step along its line.

A reference pixel of depth d is seen by a source view at ``p(d) = project(d a + b)`` with ``b = K_n T`` and
``a = K_n R K_0^-1 (x, y, 1)``, scaled so that the ray has z = 1. A base depth d0 gives the base point ``p(d0)``, the
line has the unit direction e, and the E-flow of a depth is ``f(d) = (p(d) - p(d0)) . e`` in pixels. With
``Z(d) = d a_z + b_z``, ``v = a_xy b_z - b_xy a_z`` and ``S = |v|``::

    e = v / S        f(d) = (d - d0) S / (Z(d) Z(d0))        1/d = (S - f a_z Z(d0)) / (f b_z Z(d0) + d0 S)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vision3d.errors import InputError
from vision3d.ops._checks import at_least_float32, check_choice, check_map, shape_text, without_autocast

METHODS = ("closed_form", "official")
_LEAST_PARALLAX = 1e-4  # pixels between the base depth and infinity; below, a view says nothing about the depth
_FRONT = 0.05  # least depth in the source view, as a share of the base depth, that a base point is moved to


@dataclass(frozen=True)
class EpipolarLines:
    """The lines of all pixels of a reference view in a source view, at one scale.

    Attributes:
        base: [B, 2, H, W] base point in the source view, pixels (x, y).
        direction: [B, 2, H, W] unit vector along which the depth grows; 0 where the line is a point.
        base_depth: [B, 1, H, W] depth in the reference view that belongs to the base point.
        slope: [B, 3, H, W], a of the module's text.
        shift: [B, 3, 1, 1], b of the module's text.
        speed: [B, 1, H, W], S of the module's text: ``df/dd = S / Z^2``.
        inverse_source: [B, 3, 3] inverse intrinsics of the source view.
        method: "closed_form" or "official", see :func:`epipolar_lines`.
    """

    base: Tensor
    direction: Tensor
    base_depth: Tensor
    slope: Tensor
    shift: Tensor
    speed: Tensor
    inverse_source: Tensor
    method: str

    @property
    def degenerate(self) -> Tensor:
        """[B, 1, H, W] bool: no parallax (identical views, pure rotation, the ray through the source camera)."""
        reach = (self.slope[:, 2:] * self.source_depth(self.base_depth)).abs()
        return self.speed <= _LEAST_PARALLAX * reach

    def source_depth(self, depth: Tensor) -> Tensor:
        """[B, 1, H, W] z-depth in the source camera of the points at ``depth`` [B, 1, H, W]; negative: behind it."""
        return self.slope[:, 2:] * depth + self.shift[:, 2:]

    def visible(self, depth: Tensor, size: tuple[int, int]) -> Tensor:
        """[B, 1, H, W] bool: the point at ``depth`` lies before the source camera and inside its (height, width)."""
        x, y = self.project(depth).unbind(1)
        inside = (x >= -0.5) & (x <= size[1] - 0.5) & (y >= -0.5) & (y <= size[0] - 0.5)
        return inside[:, None] & (self.source_depth(depth) > 0)

    def project(self, depth: Tensor) -> Tensor:
        """[B, 2, H, W] pixel (x, y) of the source view where the points at ``depth`` [B, 1, H, W] are seen.

        With "official" a point behind the camera is projected with ``|Z| + 1e-6``.
        """
        return _project(self.slope * depth + self.shift, self.method)

    def flow_from_depth(self, depth: Tensor) -> Tensor:
        """[B, 1, H, W] E-flow, pixels, of ``depth`` [B, 1, H, W]; 0 at the base depth, growing with the depth."""
        if self.method == "official":
            return ((self.project(depth) - self.base) * self.direction).sum(1, keepdim=True)
        both = _away_from_zero(self.source_depth(depth), depth) * self._base_source_depth()
        return (depth - self.base_depth) * self.speed / both

    def inverse_depth_from_flow(self, flow: Tensor) -> Tensor:
        """[B, 1, H, W] inverse depth in the reference view of an E-flow [B, 1, H, W].

        "closed_form": 0 is infinity and negative values lie beyond it; at and beyond the epipole it is very large; the
        base depth where the line is a point. "official": absolute values, by the axis (x or y) that the line runs
        along more.
        """
        if self.method == "official":
            return self._triangulate(flow)
        step = flow * self._base_source_depth() / torch.where(self.degenerate, 1.0, self.speed)
        numerator = 1.0 - step * self.slope[:, 2:]
        denominator = self.base_depth + step * self.shift[:, 2:]
        before = self.source_depth(self.base_depth) > 0
        least = 1e-6 * self.base_depth
        bounded = torch.where(before, denominator.clamp(min=least), _away_from_zero(denominator, self.base_depth))
        return torch.where(self.degenerate, 1.0 / self.base_depth, numerator / bounded)

    def _base_source_depth(self) -> Tensor:
        return _away_from_zero(self.source_depth(self.base_depth), self.base_depth)

    def _triangulate(self, flow: Tensor) -> Tensor:
        match = self.base + flow * self.direction
        ray = torch.einsum("bij,bjhw->bihw", self.inverse_source, torch.cat([match, torch.ones_like(flow)], 1))
        ray = ray / (ray[:, 2:].abs() + 1e-6)
        turned = torch.einsum("bij,bjhw->bihw", self.inverse_source, self.slope)
        moved = torch.einsum("bij,bjhw->bihw", self.inverse_source, self.shift)
        above = (turned[:, :2] - turned[:, 2:] * ray[:, :2]).abs()
        below = (moved[:, 2:] * ray[:, :2] - moved[:, :2]).abs() + 1e-6
        size = self.direction.detach().abs()
        by_x = size[:, :1] >= size[:, 1:]
        inverse = above / below
        return torch.where(by_x, inverse[:, :1], inverse[:, 1:])


def epipolar_lines(
    depth: Tensor,
    reference_intrinsics: Tensor,
    source_intrinsics: Tensor,
    source_from_reference: Tensor,
    *,
    method: str = "closed_form",
) -> EpipolarLines:
    """The epipolar line of each reference pixel, with the point at ``depth`` as its base (section 3.1 of DispMVS).

    Args:
        depth: [B, 1, H, W] positive base depth in the reference view. Its H, W is the grid of the reference view.
        reference_intrinsics, source_intrinsics: [B, 3, 3], pixels of the grids (pixel centres at integers).
        source_from_reference: [B, 4, 4] rigid motion from reference to source camera axes.
        method: "closed_form": the formulas of the module's text; base points behind the source camera are moved before
            it where the ray gets there. "official": the published network's, with a second projected point, constants
            of 1e-6 and absolute values (its weights need it). Both are finite everywhere.

    Raises:
        InputError: shapes that do not fit each other, an unknown method.
    """
    check_map("epipolar_lines", "depth", depth)
    check_choice("epipolar_lines", "method", method, METHODS)
    batch, channels, height, width = depth.shape
    for name, matrix, side in (
        ("reference_intrinsics", reference_intrinsics, 3),
        ("source_intrinsics", source_intrinsics, 3),
        ("source_from_reference", source_from_reference, 4),
    ):
        if channels != 1 or list(matrix.shape) != [batch, side, side]:
            raise InputError(
                f"epipolar_lines: {name} {shape_text(matrix)} must be [B, {side}, {side}], and depth "
                f"{shape_text(depth)} [B, 1, H, W] of the same B"
            )
    dtype = at_least_float32(depth.dtype)
    with without_autocast(depth):
        first, second, motion = (
            m.to(torch.float64) for m in (reference_intrinsics, source_intrinsics, source_from_reference)
        )
        inverse = torch.linalg.inv(first)
        grid = pixel_grid(height, width, depth.device)
        rays = torch.einsum("bij,jhw->bihw", inverse, grid)
        slope = torch.einsum("bij,bjhw->bihw", second @ motion[:, :3, :3], rays / rays[:, 2:]).to(dtype)
        shift = (second @ motion[:, :3, 3:])[..., None].to(dtype)
        inverse_source = torch.linalg.inv(second).to(dtype)
        return _lines(depth.to(dtype), slope, shift, inverse_source, method)


def pixel_grid(height: int, width: int, device: torch.device) -> Tensor:
    """[3, H, W] float64: (x, y, 1) of each pixel."""
    y, x = torch.meshgrid(
        torch.arange(height, device=device, dtype=torch.float64),
        torch.arange(width, device=device, dtype=torch.float64),
        indexing="ij",
    )
    return torch.stack([x, y, torch.ones_like(x)])


def _lines(depth: Tensor, slope: Tensor, shift: Tensor, inverse_source: Tensor, method: str) -> EpipolarLines:
    across = slope[:, :2] * shift[:, 2:] - shift[:, :2] * slope[:, 2:]
    speed = across.norm(dim=1, keepdim=True)
    if method == "official":
        start = _project(slope * depth + shift, method)
        difference = _project(slope * (2.0 * depth + 10.0) + shift, method) - start
        direction = difference / difference.norm(dim=1, keepdim=True).clamp(min=1e-8)
    else:
        depth = _before_source(depth, slope[:, 2:], shift[:, 2:])
        start = _project(slope * depth + shift, method)
        direction = across / speed.clamp(min=1e-8)
    lines = EpipolarLines(start, direction, depth, slope, shift, speed, inverse_source, method)
    return replace(lines, direction=torch.where(lines.degenerate, 0.0, direction))


def _before_source(depth: Tensor, slope: Tensor, shift: Tensor) -> Tensor:
    """The depth, moved along the ray until the point lies clearly before the source camera, where it ever does."""
    least = _FRONT * depth
    moved = (least - shift) / torch.where(slope == 0, 1.0, slope)
    usable = (slope != 0) & (moved > 0) & torch.isfinite(moved)
    return torch.where((slope * depth + shift < least) & usable, moved, depth)


def _project(points: Tensor, method: str) -> Tensor:
    z = points[:, 2:]
    scale = points.detach().abs().amax(1, keepdim=True)
    return points[:, :2] / (z.abs() + 1e-6 if method == "official" else _away_from_zero(z, 1e-3 * scale))


def _away_from_zero(values: Tensor, unit: Tensor) -> Tensor:
    """The values, with those nearer to 0 than a millionth of ``unit`` put at that distance, sign kept."""
    least = 1e-6 * unit.detach().abs() + torch.finfo(values.dtype).tiny
    return torch.where(values.abs() < least, torch.where(values < 0, -least, least), values)
