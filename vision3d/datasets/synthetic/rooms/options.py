# SPDX-License-Identifier: Apache-2.0
"""What random rooms look like."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vision3d.errors import ConfigError

_SHARES = ("weak_texture", "dark", "over_exposed", "specular", "mirror", "glass", "lens_flare", "bloom", "window")


@dataclass(frozen=True)
class RoomOptions:
    """What random rooms look like; the attributes are those that IRS names.

    Attributes:
        width, height: (smallest, largest) side of the floor and height of the ceiling, metres.
        furniture: (fewest, most) pieces that stand on the floor; small things on them, pictures, lamps come on top.
        weak_texture: share of surfaces in plain paint instead of a pattern.
        dark, over_exposed: probability that the exposure is far too short, or too long.
        specular: probability that a surface has highlights.
        mirror, glass: probability that the room holds a mirror, or a pane or vases of glass. The truth is that of the
            mirror's or the pane's own surface.
        lens_flare, bloom: probability of ghosts of the lamps, and of a glow around bright places.
        window: probability of a window.
        shadows: cast shadow rays.
        supersample: sub-rays a pixel at edges and side (2: 2 x 2); 1 switches smoothing off.
        photometric: 0 = both views identical in tone and free of noise, 1 = as real cameras differ.
        baseline: (smallest, largest) baseline of random rigs, metres; drawn log-uniformly.
        focal: (smallest, largest) focal length of random rigs as a share of the image width; drawn log-uniformly.

    Raises:
        ConfigError: a value out of range.
    """

    width: tuple[float, float] = (2.8, 7.5)
    height: tuple[float, float] = (2.3, 3.4)
    furniture: tuple[int, int] = (5, 14)
    weak_texture: float = 0.45
    dark: float = 0.12
    over_exposed: float = 0.08
    specular: float = 0.4
    mirror: float = 0.2
    glass: float = 0.25
    lens_flare: float = 0.08
    bloom: float = 0.2
    window: float = 0.5
    shadows: bool = True
    supersample: int = 2
    photometric: float = 1.0
    baseline: tuple[float, float] = (0.1, 0.1)
    focal: tuple[float, float] = (0.5, 0.5)

    def __post_init__(self) -> None:
        for field in fields(self):  # YAML and the command line give lists
            if isinstance(getattr(self, field.name), list):
                object.__setattr__(self, field.name, tuple(getattr(self, field.name)))
        for name in _SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} of rooms must lie in 0..1, got {getattr(self, name)}")
        limits = {"width": (1.5, 30), "height": (1.8, 10), "baseline": (1e-3, 1), "focal": (0.2, 10)}
        for name, (least, most) in {**limits, "furniture": (0, 60)}.items():
            value = getattr(self, name)
            if len(value) != 2 or not least <= value[0] <= value[1] <= most:
                raise ConfigError(f"{name} of rooms must be two rising numbers in {least}..{most}, got {value}")
        if self.supersample not in (1, 2, 3, 4):
            raise ConfigError(f"supersample of rooms must be 1, 2, 3 or 4, got {self.supersample}")
        if not 0 <= self.photometric <= 2:
            raise ConfigError(f"photometric of rooms must lie in 0..2, got {self.photometric}")
