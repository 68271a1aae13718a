# SPDX-License-Identifier: Apache-2.0
"""Which depths are kept: one setting for all scenes, and the settings that DispMVS's authors tuned for each scene."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from vision3d.errors import ConfigError, InputError
from vision3d.geometry.fusion import ConsistencyRule

MAX_SOURCES = 10
"""Source views that a depth is compared with in the default setting (as many as MVSNet lists)."""


@dataclass(frozen=True)
class FilterSettings:
    """When a depth is kept.

    Attributes:
        min_confidence: the network's confidence must be above this; None: no photometric filter, as published for
            DispMVS. 0 leaves out the pixels that no source view says anything about.
        rule: agreement with the source views.
        sources: compare with so many of the best source views; None: with all of the list.
    """

    min_confidence: float | None = 0.0
    rule: ConsistencyRule = field(default_factory=ConsistencyRule)
    sources: int | None = MAX_SOURCES

    def __post_init__(self) -> None:
        if self.min_confidence is not None and not 0 <= self.min_confidence < 1:
            raise InputError(f"the least confidence must lie in [0, 1), got {self.min_confidence:g}")
        if self.sources is not None and self.sources < 1:
            raise InputError(f"at least one source view is needed to confirm a depth, got {self.sources}")

    def describe(self) -> dict[str, Any]:
        """The settings as plain numbers."""
        return {"min_confidence": self.min_confidence, "sources": self.sources, **asdict(self.rule)}


_TANKS = {
    "family": (5, 2.0, 0.005),
    "francis": (8, 2.0, 0.0025),
    "horse": (4, 1.0, 0.01),
    "lighthouse": (7, 3.0, 0.005),
    "m60": (5, 2.0, 0.0025),
    "panther": (6, 4.0, 0.005),
    "playground": (7, 3.0, 0.005),
    "train": (6, 2.5, 0.005),
    "auditorium": (3, 1.0, 0.01),
    "ballroom": (3, 2.5, 0.01),
    "courtroom": (4, 1.0, 0.01),
    "museum": (4, 1.0, 0.01),
    "palace": (4, 2.5, 0.01),
    "temple": (3, 2.5, 0.01),
}
_DTU_WIDE = (1, 4, 11, 24, 29, 33, 48, 62, 114)
_DTU_MIDDLE = (13, 118)
_DTU_NARROW = (9, 10, 12, 15, 23, 32, 34, 49, 75, 77, 110)


def official_settings(scene: str) -> FilterSettings:
    """The published setting of a test scene: DTU ``scan1`` ..., Tanks and Temples ``Family`` ... (arXiv 2211.16905).

    No photometric filter; every source view of the pair list takes part.

    Raises:
        ConfigError: the authors give no setting for this scene.
    """
    name = scene.lower()
    scan = re.fullmatch(r"scan(\d+)", name)
    for scans, pixels in ((_DTU_WIDE, 0.5), (_DTU_MIDDLE, 0.75), (_DTU_NARROW, 0.25)):
        if scan and int(scan[1]) in scans:
            return FilterSettings(None, ConsistencyRule(3, pixels, 0.01), None)
    if name not in _TANKS:
        raise ConfigError(
            f"scene '{scene}': the official filter is tuned for the test scenes of DTU (scan1 ...) and Tanks and "
            "Temples (Family ...) alone: use --filter default"
        )
    return FilterSettings(None, ConsistencyRule(*_TANKS[name]), None)
