# SPDX-License-Identifier: Apache-2.0
"""Disparity surfaces: functions d(x, y) of left-view pixel coordinates that can be inverted along a row exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_NEWTON_STEPS = 4
_MAX_SLOPE = 0.6  # dd/dx of an object stays below this, so that it never folds over in the right view


@dataclass(frozen=True)
class Surface:
    """A slanted plane, optionally with waves or a bulge on it.

    ``d = a + b x + c y + sum_i amplitude_i sin(kx_i x + ky_i y + phase_i) + bulge ((x - x0)^2 + ratio (y - y0)^2)``
    """

    a: float
    b: float = 0.0
    c: float = 0.0
    waves: tuple[tuple[float, float, float, float], ...] = ()
    bulge: tuple[float, float, float, float] | None = None

    def disparity(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Disparity at left-view pixels (x, y); arrays broadcast; pixels."""
        d = self.a + self.b * x + self.c * y
        for amplitude, kx, ky, phase in self.waves:
            d = d + amplitude * np.sin(kx * x + (ky * y + phase))
        if self.bulge is not None:
            strength, x0, y0, ratio = self.bulge
            d = d + strength * ((x - x0) ** 2 + ratio * (y - y0) ** 2)
        return d

    def slope(self, x: np.ndarray, y: np.ndarray) -> np.ndarray | float:
        """dd/dx at left-view pixels."""
        slope: np.ndarray | float = self.b
        for amplitude, kx, ky, phase in self.waves:
            slope = slope + amplitude * kx * np.cos(kx * x + (ky * y + phase))
        if self.bulge is not None:
            strength, x0, _, _ = self.bulge
            slope = slope + 2 * strength * (x - x0)
        return slope

    def left_x(self, right_x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The left-view x that is seen at ``right_x``: the solution of ``x - d(x, y) = right_x``."""
        x = (right_x + self.a + self.c * y) / (1.0 - self.b)
        if not self.waves and self.bulge is None:
            return x
        for _ in range(_NEWTON_STEPS):
            # The bound keeps points far outside the object finite; no object has such a slope.
            x = x - (x - self.disparity(x, y) - right_x) / (1.0 - np.minimum(self.slope(x, y), _MAX_SLOPE))
        return x


def random_surface(
    rng: np.random.Generator, disparity: float, center: tuple[float, float], extent: tuple[float, float]
) -> Surface:
    """A surface through ``disparity`` at ``center`` (x, y), for an object of ``extent`` (width, height) pixels."""
    width, height = max(extent[0], 8.0), max(extent[1], 8.0)
    b = c = 0.0
    if rng.random() < 0.6:  # at most 40 % change of disparity over the object
        b = float(np.clip(rng.uniform(-0.4, 0.4) * disparity / width, -0.3, 0.3))
        c = float(np.clip(rng.uniform(-0.4, 0.4) * disparity / height, -0.5, 0.5))
    waves: list[tuple[float, float, float, float]] = []
    bulge = None
    kind = rng.random()
    if kind < 0.2:
        for _ in range(int(rng.integers(1, 3))):
            kx, ky = rng.uniform(-1, 1, 2) * 2 * np.pi / np.array([width, height]) * rng.uniform(0.5, 2.0)
            limit = 0.12 / max(abs(kx), 1e-3)
            waves.append(
                (
                    float(min(rng.uniform(0.01, 0.08) * disparity, limit)),
                    float(kx),
                    float(ky),
                    float(rng.uniform(0, 6.3)),
                )
            )
    elif kind < 0.4:
        strength = -float(rng.uniform(0.05, 0.3)) * disparity / (width / 2) ** 2
        strength = max(strength, -0.2 / width)
        ratio = float(rng.choice([0.0, min((width / height) ** 2, 4.0)]))
        bulge = (strength, center[0], center[1], ratio)
    return Surface(disparity - b * center[0] - c * center[1], b, c, tuple(waves), bulge)
