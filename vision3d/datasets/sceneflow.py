# SPDX-License-Identifier: Apache-2.0
"""The folders of SceneFlow (Mayer et al., CVPR 2016), FlyingThings3D layout: reader, and writer for one's own pairs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from torch.utils.data import Dataset

from vision3d.errors import DisparityError, FileFormatError, ImageError, InputError
from vision3d.io.disparity import read_disparity, write_disparity
from vision3d.io.files import atomic_write, ensure_folder, read_bytes
from vision3d.io.images import read_image, write_image
from vision3d.types import StereoSample

_FRAME = "0006"


class SceneFlowStereo(Dataset[StereoSample]):
    """Pairs of ``ROOT/frames_<pass>/<split>/<letter>/<sequence>/left/<frame>.png`` with their disparities.

    Args:
        root: folder that holds ``frames_cleanpass`` and ``disparity``; with a list file, the root of its paths.
        split: ``TRAIN`` or ``TEST``; unused with a list file.
        passname: ``cleanpass`` or ``finalpass``; unused with a list file.
        list_file: FADNet list of lines ``left right disparity``, or None to walk the folders.

    Attributes:
        entries: list of (left, right, disparity), each relative to the root.

    Raises:
        FileFormatError: no pair found, or an illegal line of the list.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "TRAIN",
        passname: str = "cleanpass",
        list_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self.root = Path(root)
        self.entries = self._walk(split, passname) if list_file is None else read_list(list_file)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> StereoSample:
        """Read a pair; the right view's disparity is read where the file exists.

        Raises:
            ImageError, DisparityError: a file that cannot be used or does not fit the others.
        """
        left_name, right_name, disparity_name = self.entries[index]
        left, right = read_image(self.root / left_name), read_image(self.root / right_name)
        disparity = read_disparity(self.root / disparity_name)
        if left.shape != right.shape:
            raise ImageError(f"{self.root / left_name}: left and right have different sizes; both must have one")
        if disparity.shape != left.shape[:2]:
            raise DisparityError(
                f"{self.root / disparity_name}: the map is of another size than its images; replace it"
            )
        other = self.root / disparity_name.replace("/left/", "/right/")
        has_right = "/left/" in disparity_name and other.is_file()
        right_disparity = read_disparity(other) if has_right else None
        return StereoSample(left, right, disparity, right_disparity=right_disparity, scene=left_name)

    def _walk(self, split: str, passname: str) -> list[tuple[str, str, str]]:
        folder = self.root / f"frames_{passname}" / split
        lefts = sorted(folder.glob("**/left/*.png")) or sorted(folder.glob("**/left/*.webp"))
        if not lefts:
            raise FileFormatError(
                f"{folder}: no frames <letter>/<sequence>/left/<frame>.png found; check root and split"
            )
        entries = []
        for file in lefts:
            left = file.relative_to(self.root).as_posix()
            disparity = Path("disparity", *file.relative_to(self.root).parts[1:]).with_suffix(".pfm").as_posix()
            entries.append((left, left.replace("/left/", "/right/"), disparity))
        return entries


def read_list(path: str | os.PathLike[str]) -> list[tuple[str, str, str]]:
    """Read a FADNet list: lines ``left right disparity [normal]``, blank lines ignored.

    Raises:
        FileFormatError: missing or empty file, or a line of another form.
    """
    text = read_bytes(path, FileFormatError, "a list of pairs").decode("utf-8", errors="replace")
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
