# SPDX-License-Identifier: Apache-2.0
"""SceneFlow (Mayer et al., CVPR 2016): FlyingThings3D, Driving and Monkaa; readers, and writer for one's own pairs."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np

from vision3d.datasets.codecs import check_readable
from vision3d.datasets.pairs import MapFile, PairEntry, StereoPairs, images_in, join, list_folder, walk
from vision3d.errors import ConfigError, FileFormatError, InputError
from vision3d.io.disparity import read_disparity, write_disparity
from vision3d.io.files import atomic_write, ensure_folder, read_bytes
from vision3d.io.images import write_image
from vision3d.types import StereoSample

_FRAME = "0006"
_PARTS = ("flyingthings3d", "driving", "monkaa")
_UNUSED = re.compile(r"(TRAIN|TEST)/([ABC])/(\d{4})(?:/(?:left|right|into_future|into_past)(?=/|\s|$))*(?:/(\d{4}))?")

Pass = Literal["cleanpass", "finalpass"]


class SceneFlowStereo(StereoPairs):
    """The three parts of SceneFlow, dense truth also in occluded pixels.

    ``train`` joins FlyingThings3D TRAIN, Driving and Monkaa, ``test`` is FlyingThings3D TEST. The folders may have
    their names from the archives or those of the usual mirrors (``frames_cleanpass``, ``RGB_cleanpass``,
    ``driving__frames_cleanpass``, ``FlyingThings3D_release/frames_cleanpass`` ...), side by side or one below another.

    Options:
        passname: ``cleanpass`` (default) or ``finalpass``.
        parts: which of ``flyingthings3d``, ``driving``, ``monkaa``; None takes those that are there, with a warning
            where one is missing.
        list_file: FADNet list of lines ``left right disparity [normal]`` relative to the root, instead of all this.
        unused_files: the official ``all_unused_files.txt``; the frames of FlyingThings3D that it names are left out.
        large_disparities: (threshold, share): pairs with a larger share of pixels above the threshold are left out;
            (300, 0.25) is the usual filter. Opening then reads every map once; write the result to a skip list.
    """

    name = "sceneflow"
    splits: ClassVar[tuple[str, ...]] = ("train", "test", "all")
    tree = "frames_cleanpass/TRAIN/A/0000/left/0006.png and disparity/TRAIN/A/0000/left/0006.pfm"
    own_parts: ClassVar[tuple[str, ...]] = _PARTS

    def list_entries(
        self,
        split: str,
        passname: Pass = "cleanpass",
        parts: Sequence[str] | None = None,
        list_file: str | os.PathLike[str] | None = None,
        unused_files: str | os.PathLike[str] | None = None,
        large_disparities: tuple[float, float] | None = None,
    ) -> Iterator[PairEntry]:
        """FlyingThings3D, then Driving, then Monkaa, each in the order of names; or the lines of the list."""
        self.check_choice("passname", passname, ("cleanpass", "finalpass"))
        for part in parts or ():
            self.check_choice("parts", part, self.own_parts)
        if list_file is not None:
            entries: Iterable[PairEntry] = (_list_entry(os.fspath(self.root), *line) for line in read_list(list_file))
        else:
            entries = self._walk(split, passname, parts)
        unused = frozenset() if unused_files is None else read_unused(unused_files)
        for entry in entries:
            if not _is_unused(entry.scene, unused) and not _is_large(entry, large_disparities):
                yield entry

    def _walk(self, split: str, passname: str, parts: Sequence[str] | None) -> Iterator[PairEntry]:
        wanted = [part for part in self.own_parts if split != "test" or part == "flyingthings3d"]
        missing, found = [], 0
        for part in wanted if parts is None else [part for part in wanted if part in parts]:
            number = found
            for images, truth in _part_folders(os.fspath(self.root), part, passname):
                for entry in _frames(images, truth, part, split):
                    found += 1
                    yield entry
            if found == number:
                missing.append(part)
        if missing and found and parts is None:
            warnings.warn(f"{self.root}: no {' and no '.join(missing)} here, {self.name} goes without", stacklevel=2)
        elif missing and parts is not None:
            raise FileFormatError(f"{self.root}: holds no frames of {missing[0]} ({passname}, {split}); add them")


class FlyingThings3DStereo(SceneFlowStereo):
    """FlyingThings3D alone: ``train`` is TRAIN, ``test`` is TEST; options as for ``SceneFlowStereo``."""

    name = "flyingthings3d"
    own_parts = ("flyingthings3d",)


class DrivingStereoSceneFlow(SceneFlowStereo):
    """Driving of SceneFlow alone (not the data set DrivingStereo); options as for ``SceneFlowStereo``."""

    name = "driving"
    splits = ("train", "all")
    tree = "frames_cleanpass/15mm_focallength/scene_backwards/fast/left/0001.png and disparity/..."
    own_parts = ("driving",)


class MonkaaStereo(SceneFlowStereo):
    """Monkaa alone; options as for ``SceneFlowStereo``."""

    name = "monkaa"
    splits = ("train", "all")
    tree = "frames_cleanpass/a_rain_of_stones_x2/left/0000.png and disparity/..."
    own_parts = ("monkaa",)


def _part_folders(root: str, part: str, passname: str) -> Iterator[tuple[str, str]]:
    """The (image folder, disparity folder) pairs of a part: in the root, or in a folder named after the part."""
    named = [name for name in list_folder(root)[0] if name.lower().startswith(part)]
    prefixes = ("", part, f"{part}_", f"{part}__")
    images = {f"{prefix}{kind}_{passname}" for prefix in prefixes for kind in ("frames", "rgb")}
    images |= {f"{name}_webp" for name in images}
    truths = [f"{prefix}{kind}disparity" for prefix in prefixes[::-1] for kind in ("", "frames_")]
    for parent in [root, *(join(root, name) for name in named)]:
        folders = {name.lower(): name for name in list_folder(parent)[0]}
        truth = next((folders[name] for name in truths if name in folders), None)
        for low, name in folders.items():
            if low in images and _part_of(join(parent, name)) == part:
                yield join(parent, name), join(parent, truth or "disparity")


def _part_of(folder: str) -> str | None:
    """Which part of SceneFlow lies in an image folder, by the names of its sub-folders."""
    names = list_folder(folder)[0]
    if any(name in ("TRAIN", "TEST") for name in names):
        return "flyingthings3d"
    if any(name.endswith("mm_focallength") for name in names):
        return "driving"
    return "monkaa" if names else None


def _frames(images: str, truth: str, part: str, split: str) -> Iterator[PairEntry]:
    sub = {"train": ("TRAIN",), "test": ("TEST",), "all": ("TRAIN", "TEST")}[split] if part == _PARTS[0] else ("",)
    for name in sub:
        for folder, _ in walk(join(images, name) if name else images):
            if os.path.basename(folder) != "left":
                continue
            place = os.path.dirname(os.path.relpath(folder, images))
            for file in images_in(folder):
                stem = os.path.splitext(file)[0]
                yield PairEntry(
                    join(place, stem),
                    join(folder, file),
                    join(images, place, "right", file),
                    tuple(_maps(join(truth, place, "left", f"{stem}.pfm"))),
                )


def _maps(truth: str) -> Iterator[MapFile]:
    yield MapFile("disparity", truth, read_disparity)
    folder, name = os.path.split(truth)
    if os.path.basename(folder) == "left":
        other = join(os.path.dirname(folder), "right", name)
        if os.path.isfile(other):
            yield MapFile("right_disparity", other, read_disparity)


def _list_entry(root: str, left: str, right: str, truth: str) -> PairEntry:
    return PairEntry(left, join(root, left), join(root, right), tuple(_maps(join(root, truth))))


def _is_unused(scene: str, unused: frozenset[str]) -> bool:
    match = _UNUSED.search(scene) if unused else None
    return match is not None and bool({_unused_key(match), "/".join(match.groups()[:3])} & unused)


def _unused_key(match: re.Match[str]) -> str:
    return "/".join(part for part in match.groups() if part is not None)


def _is_large(entry: PairEntry, limit: Sequence[float] | None) -> bool:
    if limit is None:
        return False
    threshold, share = limit
    if not (threshold > 0 and 0 <= share < 1):
        raise ConfigError(f"large_disparities {tuple(limit)}: (threshold > 0, 0 <= share < 1) is expected")
    truth = next(item for item in entry.maps if item.field == "disparity")
    return float(np.mean(truth.read(truth.path) > threshold)) > share


def read_unused(path: str | os.PathLike[str]) -> frozenset[str]:
    """The frames ``TRAIN/A/0000/0006`` (or whole sequences ``TRAIN/A/0000``) that ``all_unused_files.txt`` names.

    Raises:
        FileFormatError: missing file, or no frame of FlyingThings3D in it.
    """
    text = check_readable(path, read_bytes(path, FileFormatError, "a list of unused files"))
    found = frozenset(_unused_key(match) for match in _UNUSED.finditer(text.replace("\\", "/")))
    if not found:
        raise FileFormatError(f"{path}: names no frame of FlyingThings3D (TRAIN/A/0000/left/0006.png); check the file")
    return found


def read_list(path: str | os.PathLike[str]) -> list[tuple[str, str, str]]:
    """Read a FADNet list: lines ``left right disparity [normal]``, blank lines ignored.

    Raises:
        FileFormatError: missing or empty file, or a line of another form.
    """
    text = check_readable(path, read_bytes(path, FileFormatError, "a list of pairs"))
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) not in (3, 4):
            raise FileFormatError(f"{path}: 'left right disparity' expected, {len(words)} words found (line {number})")
        entries.append((words[0], words[1], words[2]))
    if not entries:
        raise FileFormatError(f"{path}: the list holds no pairs; write lines 'left right disparity'")
    return entries


def write_sceneflow_tree(
    root: str | os.PathLike[str], samples: Iterable[StereoSample], split: str = "TRAIN"
) -> list[tuple[str, str, str]]:
    """Write samples in the FlyingThings3D layout (clean pass), one sequence ``A/0000``, ``A/0001``... each.

    Args:
        root: target folder, created where missing.
        samples: each with a disparity map; the right view's map is written where known. Unknown pixels become infinity.
        split: ``TRAIN`` or ``TEST``.

    Returns:
        The entries (left, right, disparity), relative to ``root``; they are also written to ``root/<split>.list``.

    Raises:
        InputError: a sample has no disparity map.
        OutputError: the place is not writable.
    """
    folder = ensure_folder(root)
    entries = []
    for number, sample in enumerate(samples):
        if sample.disparity is None:
            raise InputError(f"{sample.scene}: the sample has no disparity map, so it cannot be written as SceneFlow")
        place = f"{split}/A/{number:04d}"
        left, right = (f"frames_cleanpass/{place}/{view}/{_FRAME}.png" for view in ("left", "right"))
        truth, other = (f"disparity/{place}/{view}/{_FRAME}.pfm" for view in ("left", "right"))
        for name in (left, right, truth, other):
            ensure_folder((folder / name).parent)
        write_image(folder / left, sample.left)
        write_image(folder / right, sample.right)
        write_disparity(folder / truth, sample.disparity)
        if sample.right_disparity is not None:
            write_disparity(folder / other, sample.right_disparity)
        entries.append((left, right, truth))
    with atomic_write(folder / f"{split}.list") as temporary:
        temporary.write_text("".join(" ".join(entry) + "\n" for entry in entries), encoding="utf-8")
    return entries
