# SPDX-License-Identifier: Apache-2.0
"""Right images and maps whose left image is missing, and optional files that only some pairs of a folder lack.

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
from vision3d.datasets.pairs import PairEntry, StereoPairs, printable, walk

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


def find_incomplete(data: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (scene, kind, file) for each optional map or calibration file that a pair lacks although others have it.

    Others are the pairs whose left image lies in the same folder. ``kind`` is the field of the sample, or
    ``calibration``; ``file`` is the missing one, or the folder where its name is not known.
    """
    if not isinstance(data, StereoPairs):
        return
    examples: dict[str, dict[str, tuple[str, str]]] = {}  # folder of left images -> kind -> (left image, file)
    for entry in data.entries:
        kinds = examples.setdefault(os.path.dirname(entry.left), {})
        for kind, file in _optional(entry).items():
            kinds.setdefault(kind, (entry.left, file))
    for entry in data.entries:
        kinds, own = examples[os.path.dirname(entry.left)], _optional(entry)
        for kind, (left, file) in kinds.items():
            if kind not in own:
                yield printable(entry.scene), kind, printable(_counterpart(left, file, entry.left))


def _optional(entry: PairEntry) -> dict[str, str]:
    """Kind -> the file that it has for itself."""
    seen: set[str] = set()
    found = {}
    for item in entry.maps:
        files = (item.path, *item.more)
        found[item.field] = next((file for file in files if file not in seen), item.path)
        seen.update(files)
    return {**found, "calibration": entry.rig} if isinstance(entry.rig, str) else found


def _counterpart(left: str, partner: str, other: str) -> str:
    """The file that is to the left image ``other`` what ``partner`` is to ``left``, or its folder."""
    rule = _rule(partner, left)
    found = _apply(rule, other) if rule is not None else None
    if found is not None:
        return found
    folder, name = os.path.split(partner)
    numbers = [re.search(r"\d+", os.path.basename(path)) for path in (left, other)]
    if numbers[0] and numbers[1] and numbers[0][0] in name:
        return os.path.join(folder, name.replace(numbers[0][0], numbers[1][0], 1))
    return folder


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
