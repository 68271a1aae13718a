# SPDX-License-Identifier: Apache-2.0
"""Volume rendering: compositing of samples and rendering of rays through a field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vision3d.errors import ConfigError, InputError
from vision3d.models.nerf.networks import Field
from vision3d.models.nerf.sampling import even_depths, jitter_depths, sample_by_weight

_LAST_INTERVAL = 1e2
_EPSILON = 1e-10


@dataclass(frozen=True)
class Rendering:
    """How rays are sampled and composited; the defaults are those of CF-NeRF.

    Attributes:
        near, far: z-depths between which samples lie, unit of the scene.
        samples: samples of the first pass.
        importance_samples: further samples by the weights of the first pass, through the same field; 0: none.
        in_disparity: samples evenly spaced in 1 / depth.
        density: activation of the raw density.
        white_background: what no sample covers is white instead of black.
        rays_per_chunk: rays rendered at once where no gradient is kept.
    """

    near: float = 0.0
    far: float = 6.0
    samples: int = 128
    importance_samples: int = 0
    in_disparity: bool = False
    density: Literal["relu", "softplus"] = "relu"
    white_background: bool = False
    rays_per_chunk: int = 4096

    def __post_init__(self) -> None:
        even_depths(self.near, self.far, self.samples, in_disparity=self.in_disparity)
        if self.density not in ("relu", "softplus"):
            raise ConfigError(f"rendering: density '{self.density}' must be relu or softplus")
        if self.importance_samples < 0 or self.rays_per_chunk < 1:
            raise ConfigError(
                f"rendering: importance_samples {self.importance_samples} must not be negative, rays_per_chunk "
                f"{self.rays_per_chunk} be positive"
            )


@dataclass
class RenderedRays:
    """What a bundle of rays shows.

    Attributes:
        rgb: [R, 3] colours as the field gives them (those of CF-NeRF are not clamped).
        depth: [R] expected z-depth, unit of the scene.
        opacity: [R] sum of the weights, in [0, 1].
        disparity: [R] inverse of the depth, 1e10 for empty rays.
        alpha, weights, depths: [R, S] of each sample.
    """

    rgb: Tensor
    depth: Tensor
    opacity: Tensor
    disparity: Tensor
    alpha: Tensor
    weights: Tensor
    depths: Tensor


def composite(
    colors: Tensor,
    densities: Tensor,
    depths: Tensor,
    directions: Tensor,
    *,
    density: Literal["relu", "softplus"] = "relu",
    white_background: bool = False,
    noise: Tensor | None = None,
) -> RenderedRays:
    """Composite samples along rays (NeRF, arXiv 2003.08934, equation 3; last interval 100).

    Args:
        colors: [R, S, 3].
        densities: [R, S] raw.
        depths: [R, S] ascending.
        directions: [R, 3]; their length scales the intervals.
        density: activation of ``densities + noise``.
        white_background: fill what is left with white.
        noise: [R, S] added to the raw densities, or None.
    """
    intervals = depths[..., 1:] - depths[..., :-1]
    intervals = torch.cat([intervals, torch.full_like(depths[..., :1], _LAST_INTERVAL)], -1)
    intervals = intervals * directions.norm(dim=-1, keepdim=True)
    raw = densities if noise is None else densities + noise
    positive = F.relu(raw) if density == "relu" else F.softplus(raw)
    alpha = 1 - torch.exp(-positive * intervals)
    passed = torch.cumprod(torch.cat([torch.ones_like(alpha[..., :1]), 1 - alpha + _EPSILON], -1), -1)[..., :-1]
    weights = alpha * passed
    rgb = (weights[..., None] * colors).sum(-2)
    opacity = weights.sum(-1)
    depth = (weights / (opacity[..., None] + _EPSILON) * depths).sum(-1)
    disparity = 1 / (depth / (opacity + _EPSILON)).clamp_min(_EPSILON)
    if white_background:
        rgb = rgb + (1 - opacity[..., None])
    return RenderedRays(rgb, depth, opacity, disparity, alpha, weights, depths)


def _query(field: Field, origins: Tensor, directions: Tensor, depths: Tensor) -> tuple[Tensor, Tensor]:
    points = origins[:, None] + directions[:, None] * depths[..., None]
    viewing = F.normalize(directions, dim=-1)[:, None].expand_as(points)
    colors, densities = field(points, viewing)
    return colors.to(points.dtype), densities.to(points.dtype)


def render_rays(
    field: Field,
    origins: Tensor,
    directions: Tensor,
    settings: Rendering,
    *,
    random: bool = False,
    density_noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> RenderedRays:
    """Render a bundle of rays through a field, all at once, with gradients to the field and the rays.

    Args:
        origins, directions: [R, 3]; depths are in units of the directions' length.
        random: stratified samples (training) instead of even ones.
        density_noise: standard deviation of the noise on raw densities.
        generator: source of all randomness, on the device of the rays.

    Raises:
        InputError: rays of wrong shapes.
    """
    if origins.dim() != 2 or origins.shape != directions.shape or origins.shape[1] != 3:
        raise InputError(
            f"rays must be origins and directions [R, 3], got {list(origins.shape)} and {list(directions.shape)}"
        )
    device, dtype = origins.device, origins.dtype
    line = even_depths(
        settings.near, settings.far, settings.samples, in_disparity=settings.in_disparity, device=device, dtype=dtype
    )
    depths = line.expand(len(origins), -1)
    if random:
        depths = jitter_depths(depths, generator)
    if settings.importance_samples:
        depths = _refined(field, origins, directions, depths, settings, random, generator)
    colors, densities = _query(field, origins, directions, depths)
    noise = None
    if density_noise:
        noise = density_noise * torch.randn(densities.shape, generator=generator, device=device, dtype=dtype)
    return composite(
        colors,
        densities,
        depths,
        directions,
        density=settings.density,
        white_background=settings.white_background,
        noise=noise,
    )


@torch.no_grad()
def _refined(
    field: Field,
    origins: Tensor,
    directions: Tensor,
    depths: Tensor,
    settings: Rendering,
    random: bool,
    generator: torch.Generator | None,
) -> Tensor:
    """The depths of the first pass and those drawn by its weights, in order."""
    points = origins[:, None] + directions[:, None] * depths[..., None]
    densities = field.density(points).to(depths.dtype)
    first = composite(torch.zeros_like(points), densities, depths, directions, density=settings.density)
    edges = (depths[..., 1:] + depths[..., :-1]) / 2
    more = sample_by_weight(
        edges, first.weights[..., 1:-1], settings.importance_samples, random=random, generator=generator
    )
    return torch.cat([depths, more], -1).sort(-1).values
