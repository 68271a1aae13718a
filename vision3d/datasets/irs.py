# SPDX-License-Identifier: Apache-2.0
"""IRS, indoor robotics stereo (Wang et al., ICME 2021): rendered rooms with dense disparities and normals."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vision3d.datasets.codecs import check_readable, pinhole_rig, read_exr_disparity, read_exr_normals
from vision3d.datasets.irs_frames import published_index
from vision3d.datasets.pairs import MapFile, PairEntry, StereoPairs, join, walk
from vision3d.errors import FileFormatError
from vision3d.io.files import read_bytes
from vision3d.types import StereoRig

CATEGORIES = ("Home", "Office", "Restaurant", "Store")
FOCAL_AT_960 = 480.0  # pixels, of images 960 wide
BASELINE = 0.1  # metres
_LEFT = re.compile(r"l_(\d+)\.png")
_LISTED = re.compile(r"(?:^|/)(home|office|restaurant|store)/([^/]+)/l_(\d+)\.png$", re.IGNORECASE)


@dataclass(frozen=True)
class _Frame:
    category: str
    scene: str
    number: int
    folder: str
    digits: str


class IrsStereo(StereoPairs):
    """``{Home,Office,Restaurant,Store}/<scene>/l_00001.png``, ``r_``, ``d_00001.exr``, ``n_00001.exr``, at any depth.

    The split is the published one: in each category folders sorted by ASCII order and frames by number, index mod 7 = 0
    is ``test``. Frames of published folders keep their published index where others are missing (``IRS_small``).

    Options:
        categories: some of the four.
        list_file: published list (either generation of names) instead of the split.
        normals: read the normal maps (default); left camera axes x right, y down, z forward, NaN where invalid.
        flip_positive_z: negate n_z where it is positive, as one older public loader did (wrong, for comparison only).

    ``rig``: 480 px at a width of 960, baseline 0.1 m, principal point in the middle (assumed, it is not published).
    """

    name = "irs"
    splits = ("train", "test", "all")
    tree = "Home/<scene>/l_00001.png, r_00001.png, d_00001.exr, n_00001.exr (and Office, Restaurant, Store)"

    def list_entries(
        self,
        split: str,
        categories: Sequence[str] = CATEGORIES,
        list_file: str | os.PathLike[str] | None = None,
        normals: bool = True,
        flip_positive_z: bool = False,
    ) -> Iterator[PairEntry]:
        """Home, Office, Restaurant, Store, each by folder and number; or the lines of the list."""
        for category in categories:
            self.check_choice("categories", category, CATEGORIES)
        frames = _find_frames(os.fspath(self.root), categories)
        chosen = _split(frames, split) if list_file is None else _listed(os.fspath(self.root), frames, list_file)
        for frame in chosen:
            yield _entry(frame, normals, flip_positive_z)


def irs_rig(width: int, height: int) -> StereoRig:
    """The camera for images of a size; the published one is 960x540."""
    return pinhole_rig(width, height, FOCAL_AT_960 * width / 960, BASELINE)


def read_normals_flipped(path: str) -> np.ndarray:
    """Normals with n_z negated where it is positive, as an older public loader did."""
    normals = read_exr_normals(path)
    normals[..., 2] = -np.abs(normals[..., 2])
    return normals


def _entry(frame: _Frame, normals: bool, flip: bool) -> PairEntry:
    left, right = (join(frame.folder, f"{view}_{frame.digits}.png") for view in "lr")
    maps = [MapFile("disparity", join(frame.folder, f"d_{frame.digits}.exr"), read_exr_disparity)]
    if normals:
        read = read_normals_flipped if flip else read_exr_normals
        maps.append(MapFile("normals", join(frame.folder, f"n_{frame.digits}.exr"), read))
    return PairEntry(f"{frame.category}/{frame.scene}/{frame.number:05d}", left, right, tuple(maps), irs_rig)


def _find_frames(root: str, categories: Iterable[str]) -> list[_Frame]:
    """Every frame in the published order: category, folder name, number."""
    known = {name.lower(): name for name in categories}
    frames = []
    for folder, files in walk(root):
        above = os.path.abspath(folder).split(os.sep)[:-1]
        below_root = above[len(os.path.abspath(root).split(os.sep)) - 1 :]
        category = next((known[part.lower()] for part in reversed(below_root) if part.lower() in known), None)
        if category is not None:
            for name in files:
                match = _LEFT.fullmatch(name)
                if match is not None:
                    frames.append(_Frame(category, os.path.basename(folder), int(match[1]), folder, match[1]))
    return sorted(frames, key=lambda frame: (frame.category, frame.scene, frame.number))


def _split(frames: list[_Frame], split: str) -> list[_Frame]:
    ranks: Counter[str] = Counter()
    chosen = []
    for frame in frames:
        published = published_index(frame.category, frame.scene, frame.number)
        place = ranks[frame.category] if published is None else published
        ranks[frame.category] += 1
        if split == "all" or (place % 7 == 0) == (split == "test"):
            chosen.append(frame)
    return chosen


def _listed(root: str, frames: list[_Frame], path: str | os.PathLike[str]) -> list[_Frame]:
    """The frames of a list, by category, scene and number, so that both generations of names fit any tree.

    Frames that are not below the root come back under the name of the list; the check of the files then refuses them.
    """
    there = {(frame.category.lower(), frame.scene.lower(), frame.number): frame for frame in frames}
    text = check_readable(path, read_bytes(path, FileFormatError, "a list of pairs"))
    chosen = []
    for line, words in enumerate((row.split() for row in text.splitlines()), 1):
        if not words:
            continue
        match = _LISTED.search(words[0])
        if match is None or len(words) not in (3, 4):
            raise FileFormatError(f"{path}, line {line}: 'Home/<scene>/l_00001.png right disparity normal' expected")
        category, scene, digits = match[1].capitalize(), match[2], match[3]
        absent = _Frame(category, scene, int(digits), join(root, category, scene), digits)
        chosen.append(there.get((category.lower(), scene.lower(), int(digits)), absent))
    if not chosen:
        raise FileFormatError(f"{path}: the list holds no pair; write lines 'left right disparity normal'")
    return chosen
