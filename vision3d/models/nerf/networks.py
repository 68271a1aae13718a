# SPDX-License-Identifier: Apache-2.0
"""The three networks of CF-NeRF (arXiv 2312.08760): ReLU with encodings, SIREN, Gaussian activations.

A field maps points [..., 3] and unit viewing directions [..., 3] to linear colours [..., 3] and raw densities [...]
(clamped in :mod:`vision3d.models.nerf.rendering`). Parameter names are those of the authors' checkpoints below
``fg_net.coarse_model.``. Published width: 128.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vision3d.errors import ConfigError, InputError
from vision3d.models.nerf.encodings import gaussian_activation, positional_encoding


class Field(nn.Module):
    """Base of radiance fields.

    Attributes:
        progress: coarse-to-fine window in [0, 1], kept in the state dict; fields without a window ignore it.
        adam_betas, adam_epsilon: what suits this field's parameters.
    """

    progress: Tensor
    adam_betas: tuple[float, float] = (0.9, 0.999)
    adam_epsilon: float = 1e-8

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("progress", torch.tensor(1.0))

    def set_progress(self, progress: float) -> None:
        """Open the coarse-to-fine window: 0 coarsest, 1 everything.

        Raises:
            InputError: a value outside [0, 1].
        """
        if not 0 <= progress <= 1:
            raise InputError(f"the coarse-to-fine progress is {progress}; give a number from 0 to 1")
        self.progress.fill_(progress)

    def density(self, points: Tensor) -> Tensor:
        """Raw density [...] at points [..., 3]."""
        return self(points, torch.zeros_like(points))[1]


def _xavier(layer: nn.Linear, gain: float = 1.0) -> nn.Linear:
    nn.init.xavier_uniform_(layer.weight, gain=gain)
    nn.init.zeros_(layer.bias)
    return layer


def _check_shape(depth: int, width: int, skips: Sequence[int]) -> None:
    if depth < 1 or width < 2:
        raise ConfigError(f"a field needs a depth of at least 1 and a width of at least 2, got {depth} and {width}")
    if any(not 0 <= skip < depth - 1 for skip in skips):
        raise ConfigError(f"skips {list(skips)} must name layers from 0 to {depth - 2}")


class ReluField(Field):
    """NeRF's network with ReLU and positional encodings (10 bands for points, 4 for directions).

    Args:
        depth, width: hidden layers and their size.
        skips: layers after which the encoded point is concatenated again.
        point_bands, direction_bands: octaves of the encodings. The window opens those of both (BARF).
    """

    def __init__(
        self,
        depth: int = 8,
        width: int = 128,
        skips: Sequence[int] = (4,),
        point_bands: int = 10,
        direction_bands: int = 4,
    ) -> None:
        super().__init__()
        _check_shape(depth, width, skips)
        self.skips, self.point_bands, self.direction_bands = tuple(skips), point_bands, direction_bands
        points, directions = 3 + 6 * point_bands, 3 + 6 * direction_bands
        gain = math.sqrt(2.0)
        sizes = [points if k == 0 else width + points if k - 1 in self.skips else width for k in range(depth)]
        self.base_layers = nn.ModuleList(
            nn.Sequential(_xavier(nn.Linear(size, width), gain), nn.ReLU()) for size in sizes
        )
        self.sigma_layers = nn.Sequential(_xavier(nn.Linear(width, 1)))
        self.base_remap_layers = nn.Sequential(_xavier(nn.Linear(width, width)))
        self.rgb_layers = nn.Sequential(
            _xavier(nn.Linear(width + directions, width // 2), gain), nn.ReLU(), _xavier(nn.Linear(width // 2, 3))
        )

    def _features(self, points: Tensor, progress: float) -> Tensor:
        encoded = positional_encoding(points, self.point_bands, progress)
        features = self.base_layers[0](encoded)
        for number, layer in enumerate(list(self.base_layers)[1:]):
            features = layer(torch.cat([encoded, features], -1) if number in self.skips else features)
        return features

    def forward(self, points: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Linear colours [..., 3] and raw densities [...]."""
        progress = float(self.progress)
        features = self._features(points, progress)
        encoded = positional_encoding(directions, self.direction_bands, progress)
        colors = self.rgb_layers(torch.cat([self.base_remap_layers(features), encoded], -1))
        return colors, self.sigma_layers(features)[..., 0]

    def density(self, points: Tensor) -> Tensor:
        """Raw density [...] at points [..., 3], without the colour branch."""
        return self.sigma_layers(self._features(points, float(self.progress)))[..., 0]


class SineLayer(nn.Module):
    """``sin(frequency * (A x + b))`` (SIREN, arXiv 2006.09661)."""

    def __init__(self, inputs: int, outputs: int, frequency: float = 1.0, *, first: bool = False) -> None:
        super().__init__()
        self.frequency = frequency
        self.layer = nn.Linear(inputs, outputs)
        bound = 1 / inputs if first else math.sqrt(6 / inputs) / frequency
        nn.init.uniform_(self.layer.weight, -bound, bound)
        nn.init.uniform_(self.layer.bias, -bound, bound)

    def forward(self, features: Tensor) -> Tensor:
        return torch.sin(self.frequency * self.layer(features))


class SirenField(Field):
    """The SIREN network of the published results.

    Args:
        depth, width: hidden layers and their size.
        first_frequency: factor inside the first sine. The authors' configuration says 30, their code runs 20.
        density_factor: factor on positive densities; negative ones stay as they are.
    """

    def __init__(
        self, depth: int = 8, width: int = 128, first_frequency: float = 20.0, density_factor: float = 20.0
    ) -> None:
        super().__init__()
        _check_shape(depth, width, ())
        self.density_factor = density_factor
        self.base_layers = nn.ModuleList(
            SineLayer(3, width, first_frequency, first=True) if number == 0 else SineLayer(width, width)
            for number in range(depth)
        )
        self.sigma_layers = nn.Sequential(_xavier(nn.Linear(width, 1)))
        self.base_remap_layers = nn.Sequential(_xavier(nn.Linear(width, width)))
        self.rgb_layer = SineLayer(width + 3, width)
        self.rgb_layers = nn.Sequential(SineLayer(width, width // 2), _xavier(nn.Linear(width // 2, 3)))

    def _features(self, points: Tensor) -> Tensor:
        features = points
        for layer in self.base_layers:
            features = layer(features)
        return features

    def _density(self, features: Tensor) -> Tensor:
        raw = self.sigma_layers(features)[..., 0]
        return torch.where(raw > 0, self.density_factor * raw, raw)

    def forward(self, points: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Linear colours [..., 3] and raw densities [...]."""
        features = self._features(points)
        colors = self.rgb_layers(self.rgb_layer(torch.cat([directions, self.base_remap_layers(features)], -1)))
        return colors, self._density(features)

    def density(self, points: Tensor) -> Tensor:
        """Raw density [...] at points [..., 3], without the colour branch."""
        return self._density(self._features(points))


class GaussianField(Field):
    """The network with Gaussian activations (GARF-like).

    Args:
        depth, width: hidden layers and their size.
        skips: layers after which the point feature is concatenated again.
        activation_width: standard deviation of the activations.
    """

    def __init__(
        self, depth: int = 8, width: int = 128, skips: Sequence[int] = (4,), activation_width: float = 0.1
    ) -> None:
        super().__init__()
        _check_shape(depth, width, skips)
        self.skips, self.activation_width = tuple(skips), activation_width
        self.gaussian_linear_d = _xavier(nn.Linear(3, width))
        self.gaussian_linear_c = _xavier(nn.Linear(3, width))
        sizes = [2 * width if number - 1 in self.skips else width for number in range(depth)]
        self.pts_linears = nn.ModuleList(_xavier(nn.Linear(size, width)) for size in sizes)
        self.alpha_linear = _xavier(nn.Linear(width, 1))
        self.feature_linear = _xavier(nn.Linear(width, width))
        self.views_linears = nn.ModuleList([_xavier(nn.Linear(2 * width, width // 2))])
        self.rgb_linear = _xavier(nn.Linear(width // 2, 3))

    def _embed(self, layer: nn.Linear, vectors: Tensor) -> Tensor:
        values = layer(vectors)
        return gaussian_activation(values.mean(-1, keepdim=True) - values, self.activation_width)

    def _features(self, points: Tensor) -> Tensor:
        embedded = self._embed(self.gaussian_linear_d, points)
        features = embedded
        for number, layer in enumerate(self.pts_linears):
            features = gaussian_activation(layer(features), self.activation_width)
            if number in self.skips:
                features = torch.cat([embedded, features], -1)
        return features

    def forward(self, points: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Linear colours [..., 3] and raw densities [...]."""
        features = self._features(points)
        embedded = self._embed(self.gaussian_linear_c, directions)
        colors = torch.cat([self.feature_linear(features), embedded], -1)
        colors = gaussian_activation(self.views_linears[0](colors), self.activation_width)
        return self.rgb_linear(colors), self.alpha_linear(features)[..., 0]

    def density(self, points: Tensor) -> Tensor:
        """Raw density [...] at points [..., 3], without the colour branch."""
        return self.alpha_linear(self._features(points))[..., 0]


class SmallNetwork(nn.Sequential):
    """Linear layers with ReLU between them."""

    def __init__(self, sizes: Sequence[int]) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layer = nn.Linear(inputs, outputs)
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.ReLU()]
        super().__init__(*layers[:-1])


def softplus_density(raw: Tensor) -> Tensor:
    """A density that is positive everywhere, small for ``raw`` below 1."""
    return F.softplus(raw - 1)
