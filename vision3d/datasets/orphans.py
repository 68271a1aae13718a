# SPDX-License-Identifier: Apache-2.0
"""Right images and maps whose left image is missing.

Readers list pairs by their left images, so such files are not seen by them. How the names of a data set correspond is
learnt from its complete pairs: the parts of the path in which the partner differs from the left image.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vision3d.datasets.folder import FolderStereo
from vision3d.datasets.pairs import StereoPairs, printable, walk

_PARTS = re.compile(r"\d+|\D+")

# Where, counted from the end of the path, which part of the left path stands instead of which part of the partner's.
Rule = frozenset[tuple[int, str, str]]


def find_orphans(data: Any) -> Iterator[tuple[str, str]]:
    """Yield (missing left image relative to the root, a file that is its partner); nothing for sets of other kinds."""
    if isinstance(data, FolderStereo):
        yield from _folder_orphans(data)
    elif isinstance(data, StereoPairs):
        yield from _pair_orphans(data)


def _folder_orphans(data: FolderStereo) -> Iterator[tuple[str, str]]:
    known = set(data.scenes)
    for file in sorted(data.root.glob("*/*/right.*")):
        scene = f"{file.parent.parent.name}/{file.parent.name}"
        if scene not in known and not file.parent.parent.name.startswith("."):
            yield f"{scene}/left{file.suffix}", str(file)


def _pair_orphans(data: StereoPairs) -> Iterator[tuple[str, str]]:
    known: set[str] = set()
    rules: set[Rule] = set()
    for entry in data.entries:
        known.update(entry.files())
        for partner in (entry.right, *(item.path for item in entry.maps)):
            rule = _rule(entry.left, partner)
            if rule is not None:
                rules.add(rule)
    found: dict[str, str] = {}
    for folder, files in walk(data.root):
        for file in files:
            path = os.path.join(folder, file)
            if path in known:
                continue
            lefts = [left for rule in rules if (left := _apply(rule, path)) is not None]
            if lefts and not any(left in known or os.path.exists(left) for left in lefts):
                found.setdefault(lefts[0], path)
    for left, partner in found.items():
        yield printable(Path(left).relative_to(data.root)), printable(partner)


def _split(path: str) -> list[str]:
    folder, name = os.path.split(path)
    return [*folder.split(os.sep), *_PARTS.findall(name)]


def _rule(left: str, partner: str) -> Rule | None:
    """How the two paths differ, or None if they are not alike."""
    one, two = _split(left), _split(partner)
    if len(one) != len(two):
        return None
    differing = [(index - len(one), a, b) for index, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    return frozenset(differing) or None


def _apply(rule: Rule, partner: str) -> str | None:
    """The left path of a partner, or None if the rule does not fit."""
    parts = _split(partner)
    for place, left, own in rule:
        if len(parts) < -place or parts[place] != own:
            return None
        parts[place] = left
    name = len(_PARTS.findall(os.path.basename(partner)))
    return os.path.join(os.sep.join(parts[:-name]), "".join(parts[-name:]))
