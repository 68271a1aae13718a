# SPDX-License-Identifier: Apache-2.0
"""Input encodings of radiance fields and their coarse-to-fine windows."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def band_weights(progress: float, bands: int) -> list[float]:
    """Weight in [0, 1] of each frequency band, coarsest first (BARF, arXiv 2104.06405, equation 14).

    Args:
        progress: 0 leaves every band closed, 1 opens all; band k opens while ``progress * bands`` goes from k to k + 1.
        bands: number of bands.
    """
    position = min(max(progress, 0.0), 1.0) * bands
    return [0.5 * (1 - math.cos(math.pi * min(max(position - band, 0.0), 1.0))) for band in range(bands)]


def positional_encoding(points: Tensor, bands: int, progress: float = 1.0) -> Tensor:
    """``(v, sin(2^0 v), cos(2^0 v), sin(2^1 v), ...)`` (NeRF, arXiv 2003.08934, section 5.1), without the factor pi.

    Args:
        points: [..., C].
        bands: number of octaves; per band all sines come before all cosines.
        progress: coarse-to-fine window, see :func:`band_weights`; 1 is the plain encoding.

    Returns:
        [..., C * (1 + 2 * bands)].
    """
    frequencies = 2.0 ** torch.arange(bands, dtype=points.dtype, device=points.device)
    angles = points[..., None, :] * frequencies[:, None]
    waves = torch.stack([angles.sin(), angles.cos()], -2)
    if progress < 1:
        weights = points.new_tensor(band_weights(progress, bands))
        waves = waves * weights[:, None, None]
    return torch.cat([points, waves.flatten(-3)], -1)


def gaussian_activation(features: Tensor, width: float = 0.1) -> Tensor:
    """``exp(-x^2 / (2 width^2))`` (GARF, arXiv 2204.05735)."""
    return torch.exp(features.square() * (-0.5 / width**2))
