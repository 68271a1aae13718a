# SPDX-License-Identifier: Apache-2.0
"""Several data sets as one: ``"sceneflow + 2*kitti2015"``."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NoReturn

from torch.utils.data import Dataset

from vision3d.errors import ConfigError, InputError

_TERM = re.compile(r"(?:(\d+)\s*\*\s*)?([A-Za-z_][A-Za-z0-9_]*)")
_GAP = re.compile(r"\s*")


def parse_mixture(spec: str) -> list[tuple[int, str]]:
    """The (weight, name) terms of a mixture such as ``"sceneflow + 2*kitti2015"``.

    Raises:
        ConfigError: another syntax; the message says where. Weights are whole numbers of at least 1.
    """
    terms: list[tuple[int, str]] = []
    place = _skip(spec, 0)
    while True:
        match = _TERM.match(spec, place)
        if match is None:
            _refuse(spec, place, "a name or WEIGHT*NAME")
        weight = int(match[1] or 1)
        if weight < 1:
            _refuse(spec, place, "a weight of at least 1")
        terms.append((weight, match[2]))
        place = _skip(spec, match.end())
        if place == len(spec):
            return terms
        if spec[place] != "+":
            _refuse(spec, place, "'+'")
        place = _skip(spec, place + 1)


def _skip(spec: str, place: int) -> int:
    match = _GAP.match(spec, place)
    return place if match is None else match.end()


def _refuse(spec: str, place: int, expected: str) -> NoReturn:
    found = repr(spec[place]) if place < len(spec) else "the end"
    raise ConfigError(
        f"data set '{spec}', position {place + 1}: {expected} expected, {found} found; "
        "write e.g. 'sceneflow + 2*kitti2015' (weights are whole numbers)"
    )


class MixedDataset(Dataset[Any]):
    """Data sets one after another, each repeated as often as its weight says.

    Args:
        name: the mixture as text.
        parts: the data sets (with ``name`` and, where they have it, ``scenes``).
        weights: how often each pair of a set counts in an epoch.

    Raises:
        InputError: no set, another number of weights, a weight below 1, or a set without end.
    """

    def __init__(self, name: str, parts: Sequence[Dataset[Any]], weights: Sequence[int]) -> None:
        if not parts or len(parts) != len(weights) or min(weights) < 1:
            raise InputError(f"{name}: one weight of at least 1 is needed for each data set, got {list(weights)}")
        self.name, self.parts, self.weights = name, list(parts), list(weights)
        try:
            lengths = [len(part) for part in parts]  # type: ignore[arg-type]
        except TypeError as error:
            raise InputError(f"{name}: a data set without end cannot be mixed: give it a number of scenes") from error
        self._parts = [part for part, weight in zip(parts, weights, strict=True) for _ in range(weight)]
        self._ends = list(
            accumulate(length for length, weight in zip(lengths, weights, strict=True) for _ in range(weight))
        )

    @property
    def scenes(self) -> list[str]:
        """``set/scene`` of each pair of an epoch."""
        return [f"{getattr(part, 'name', '')}/{scene}" for part in self._parts for scene in getattr(part, "scenes", ())]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        """The pair of its data set."""
        place = range(len(self))[index]
        number = bisect.bisect_right(self._ends, place)
        return self._parts[number][place - (self._ends[number - 1] if number else 0)]
