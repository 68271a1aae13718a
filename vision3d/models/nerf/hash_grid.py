# SPDX-License-Identifier: Apache-2.0
"""A radiance field of a multi-resolution hash grid and a small network (Instant-NGP, arXiv 2201.05989)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vision3d.errors import ConfigError
from vision3d.models.nerf.encodings import band_weights
from vision3d.models.nerf.networks import Field, SmallNetwork, softplus_density

_PRIMES = (1, 2654435761, 805459861)


class _WeightedRows(torch.autograd.Function):
    """``sum_k weights[p, k] * table[rows[p, k]]`` with a backward pass that accumulates in one go."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(table, rows, weights)
        return F.embedding_bag(rows, table, mode="sum", per_sample_weights=weights)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        table, rows, weights = ctx.saved_tensors
        for_table = for_weights = None
        if ctx.needs_input_grad[0]:
            spread = (weights[..., None] * gradient[:, None]).flatten(0, 1)
            for_table = torch.zeros_like(table).index_add_(0, rows.flatten(), spread)
        if ctx.needs_input_grad[2]:
            for_weights = torch.bmm(F.embedding(rows, table), gradient[..., None])[..., 0]
        return for_table, None, for_weights


def weighted_rows(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of rows of a table, differentiable in the table and the weights.

    Args:
        table: [T, C].
        rows: [P, K] int64.
        weights: [P, K].

    Returns:
        [P, C].
    """
    return _WeightedRows.apply(table, rows, weights)


def contract(points: Tensor) -> Tensor:
    """Map all of space into the cube of half-side 2; the cube of half-side 1 stays as it is (infinity norm).

    Mip-NeRF 360, arXiv 2111.12077, equation 10, with the infinity norm as in MERF and nerfstudio.
    """
    size = points.abs().amax(-1, keepdim=True)
    outside = size > 1
    safe = torch.where(outside, size, torch.ones_like(size))
    return torch.where(outside, (2 - 1 / safe) * points / safe, points)


class HashGrid(nn.Module):
    """Features of points in the unit cube, interpolated in grids of growing resolution.

    Args:
        levels: number of grids.
        features: values at each grid point.
        log2_rows: each grid has at most ``2 ** log2_rows`` rows; finer grids share them by hashing.
        coarsest, finest: cells along a side of the first and the last grid.
    """

    corners: Tensor

    def __init__(
        self, levels: int = 8, features: int = 2, log2_rows: int = 15, coarsest: int = 8, finest: int = 256
    ) -> None:
        super().__init__()
        if levels < 1 or features < 1 or not 1 <= log2_rows <= 30 or not 1 <= coarsest <= finest:
            raise ConfigError(
                f"hash grid: levels {levels}, features {features}, log2_rows {log2_rows} (1 to 30) and the "
                f"resolutions {coarsest} to {finest} (growing) do not make a grid"
            )
        growth = (finest / coarsest) ** (1 / max(levels - 1, 1))
        self.resolutions = [round(coarsest * growth**level) for level in range(levels)]
        self.rows = 2**log2_rows
        sizes = [min((resolution + 1) ** 3, self.rows) for resolution in self.resolutions]
        self.tables = nn.ParameterList(torch.empty(size, features).uniform_(-1e-4, 1e-4) for size in sizes)
        corners = [[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)]
        self.register_buffer("corners", torch.tensor(corners), persistent=False)
        self.output_size = levels * features

    def _hashed_rows(self, cells: Tensor) -> Tensor:
        """Rows [P, 8] of the corners of the cells [P, 3] in a level whose corners share rows."""
        x, y, z = (cells[:, None] + self.corners).unbind(-1)
        return (x * _PRIMES[0] ^ y * _PRIMES[1] ^ z * _PRIMES[2]) & (self.rows - 1)

    def _interpolated(self, table: Tensor, points: Tensor, resolution: int) -> Tensor:
        """Features [P, C] of one level at points [P, 3] in [0, 1]."""
        side = resolution + 1
        if side**3 <= self.rows:  # every corner has its row: an ordinary volume, for which torch has a fast kernel
            volume = table.view(side, side, side, -1).permute(3, 0, 1, 2)[None]
            places = (points.flip(-1) * 2 - 1).view(1, 1, 1, -1, 3)
            return F.grid_sample(volume, places, align_corners=True)[0, :, 0, 0].T
        scaled = points * resolution
        cells = scaled.detach().floor().clamp(max=resolution - 1)
        inside = scaled - cells
        sides = torch.stack([1 - inside, inside], 1)  # [P, 2, 3]
        weights = sides[:, :, None, None, 0] * sides[:, None, :, None, 1] * sides[:, None, None, :, 2]
        return weighted_rows(table, self._hashed_rows(cells.long()), weights.flatten(1))

    def forward(self, points: Tensor, progress: float = 1.0) -> Tensor:
        """Features [P, levels * features] at points [P, 3] in [0, 1] (others are moved to the border).

        ``progress`` opens the levels from coarse to fine (:func:`vision3d.models.nerf.encodings.band_weights`, the
        coarsest being open from the start); closed levels give 0 and cost nothing.
        """
        points = points.clamp(0, 1)
        openings = [1.0, *band_weights(progress, len(self.tables) - 1)]
        found: list[Tensor] = []
        for table, resolution, opening in zip(self.tables, self.resolutions, openings, strict=True):
            if opening == 0:
                found.append(points.new_zeros(len(points), table.shape[1]))
                continue
            values = self._interpolated(table, points, resolution)
            found.append(values if opening == 1 else opening * values)
        return torch.cat(found, -1)


class HashGridField(Field):
    """Hash grid, a small density network and a small colour network that sees the viewing direction.

    Colours lie in (0, 1), densities are positive: compositing changes neither. An iteration costs a small part of
    that of the 8-layer networks. The window opens the levels of the grid.

    Args:
        half_size: the cube of this half-side around ``center`` keeps its scale (unit of the scene); what lies further
            away is contracted into a shell, so that all of space is covered.
        center: of the cube, scene coordinates.
        levels, features, log2_rows, coarsest, finest: see :class:`HashGrid`; cells are counted along a side of the
            contracted space, ``4 * half_size`` wide.
        width: of the hidden layers.
        geometry_features: values that the density network hands to the colour network.
    """

    adam_betas = (0.9, 0.99)
    adam_epsilon = 1e-15

    center: Tensor

    def __init__(
        self,
        half_size: float = 3.0,
        center: tuple[float, float, float] = (0.0, 0.0, 0.0),
        levels: int = 8,
        features: int = 2,
        log2_rows: int = 15,
        coarsest: int = 8,
        finest: int = 256,
        width: int = 32,
        geometry_features: int = 15,
    ) -> None:
        super().__init__()
        if not (half_size > 0 and math.isfinite(half_size)) or len(center) != 3:
            raise ConfigError(f"hash grid: half_size {half_size} must be positive and center {center} three numbers")
        self.half_size = half_size
        self.register_buffer("center", torch.tensor(center, dtype=torch.float32), persistent=False)
        self.grid = HashGrid(levels, features, log2_rows, coarsest, finest)
        self.density_network = SmallNetwork((self.grid.output_size, width, 1 + geometry_features))
        self.color_network = SmallNetwork((geometry_features + 3, width, width, 3))

    def _geometry(self, points: Tensor) -> Tensor:
        flat = points.reshape(-1, 3)
        cube = contract((flat - self.center) / self.half_size) / 4 + 0.5
        features = self.grid(cube, float(self.progress))
        return self.density_network(features).unflatten(0, points.shape[:-1])

    def forward(self, points: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Colours [..., 3] in (0, 1) and positive densities [...]."""
        geometry = self._geometry(points)
        colors = self.color_network(torch.cat([geometry[..., 1:], directions], -1))
        return torch.sigmoid(colors), softplus_density(geometry[..., 0])

    def density(self, points: Tensor) -> Tensor:
        """Positive density [...] at points [..., 3], without the colour branch."""
        return softplus_density(self._geometry(points)[..., 0])
