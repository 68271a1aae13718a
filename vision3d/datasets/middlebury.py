# SPDX-License-Identifier: Apache-2.0
"""The Middlebury stereo sets of 2001 to 2021 and the benchmark's version 3 (vision.middlebury.edu/stereo)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from vision3d.datasets.codecs import read_grey, read_not_visible
from vision3d.datasets.pairs import MapFile, PairEntry, StereoPairs, first_folder, join, list_folder, walk
from vision3d.errors import ConfigError, DisparityError
from vision3d.io.disparity import read_disparity

_IMAGES = (".png", ".ppm", ".pgm")
_MAPS = (".png", ".pgm")
_FACTORS = {"full": 1.0, "half": 2.0, "third": 3.0, "quarter": 4.0}
Size = Literal["full", "half", "third", "quarter"]
_SUFFIXES = {"F": "full", "H": "half", "Q": "quarter"}


def read_codes(path: str, divide_by: float | None, full_height: int) -> np.ndarray:
    """[H, W] pixels of an 8-bit map, 0 unknown; the codes a pixel follow from the height if ``divide_by`` is None.

    Raises:
        DisparityError: the file cannot be used, or a height that is not that of a published size.
    """
    if divide_by is None:
        height = read_grey(path).shape[0]
        factors = (factor for factor in _FACTORS.values() if abs(height * factor - full_height) <= factor)
        divide_by = next(factors, None)
        if divide_by is None:
            raise DisparityError(
                f"{path}: {height} rows are no published size (full: {full_height}); say size=full, half, third or "
                "quarter"
            )
    return read_disparity(path, "uint8", divide_by)


class _CodedStereo(StereoPairs):
    """Scenes with 8-bit disparity maps: ``names`` = stems of left image, right image, left map, right map."""

    names: ClassVar[tuple[str, str, str, str]]
    full_height: ClassVar[int]

    def _scenes(self, size: str | None) -> Iterator[PairEntry]:
        if size is not None:
            self.check_choice("size", size, _FACTORS)
        for folder, files in walk(self.root):
            left, right = (_pick(files, stem, _IMAGES) for stem in self.names[:2])
            truth, other = (_pick(files, stem, _MAPS) for stem in self.names[2:])
            if left is None or truth is None:
                continue
            known = size or self._size_of(folder)
            read = partial(read_codes, divide_by=_FACTORS[known] if known else None, full_height=self.full_height)
            maps = [MapFile("disparity", join(folder, truth), read)]
            if other is not None:
                maps.append(MapFile("right_disparity", join(folder, other), read))
            partner = right or self.names[1] + os.path.splitext(left)[1]
            yield PairEntry(_scene(self.root, folder), join(folder, left), join(folder, partner), tuple(maps))

    def _size_of(self, folder: str) -> str | None:
        """What the names of the folders say."""
        for part in reversed(os.path.abspath(folder).split(os.sep)):
            match = re.fullmatch(r"(full|half|third|quarter)size", part.lower())
            if match is not None:
                return match[1]
        return None


class Middlebury2001Stereo(StereoPairs):
    """``<scene>/im2.ppm``, ``im6.ppm``, ``disp2.pgm``, ``disp6.pgm`` (8 codes a pixel); ``map/im0.pgm``, ``im1.pgm``,
    ``disp0.pgm``, ``disp1.pgm`` (8); ``tsukuba/scene1.row3.col3.ppm``, ``.col4.ppm``, ``truedisp.row3.col3.pgm`` (16).
    """

    name = "middlebury2001"
    tree = "<scene>/im2.ppm, im6.ppm, disp2.pgm, disp6.pgm"
    forms = (
        ("im2", "im6", "disp2", "disp6", 8.0),
        ("scene1.row3.col3", "scene1.row3.col4", "truedisp.row3.col3", "", 16.0),
        ("im0", "im1", "disp0", "disp1", 8.0),
    )

    def list_entries(self, split: str) -> Iterator[PairEntry]:
        """The scenes by name."""
        for folder, files in walk(self.root):
            for left, right, truth, other, codes in self.forms:
                images = [_pick(files, stem, _IMAGES) for stem in (left, right)]
                maps = [_pick(files, stem, _MAPS) for stem in (truth, other) if stem]
                if images[0] is None or maps[0] is None:
                    continue
                partner = images[1] or right + os.path.splitext(images[0])[1]
                read = partial(read_disparity, encoding="uint8", divide_by=codes)
                found = tuple(
                    MapFile(field, join(folder, file), read)
                    for field, file in zip(("disparity", "right_disparity"), maps, strict=False)
                    if file is not None
                )
                yield PairEntry(_scene(self.root, folder), join(folder, images[0]), join(folder, partner), found)
                break


class Middlebury2003Stereo(_CodedStereo):
    """``cones`` and ``teddy``: ``im2``, ``im6``, ``disp2``, ``disp6``; folders ``conesF``, ``conesH``, ``conesQ`` or
    ``cones`` (quarter). Codes a pixel: full 1, half 2, quarter 4. Option ``size`` where the folder does not say it.
    """

    name = "middlebury2003"
    tree = "cones/im2.png, im6.png, disp2.png, disp6.png"
    names = ("im2", "im6", "disp2", "disp6")
    full_height = 1500

    def list_entries(self, split: str, size: Size | None = None) -> Iterator[PairEntry]:
        """The scenes by name."""
        return self._scenes(size)

    def _size_of(self, folder: str) -> str | None:
        name = os.path.basename(folder)
        said = super()._size_of(folder) or _SUFFIXES.get(name[-1:])
        return said or ("quarter" if name.lower() in ("cones", "teddy") else None)


class Middlebury2005Stereo(_CodedStereo):
    """``<scene>/view1.png``, ``view5.png``, ``disp1.png``, ``disp5.png`` in full, half or third size.

    The size is that of a folder ``FullSize``, ``HalfSize`` or ``ThirdSize``, else of the rows of the map (1110, 555,
    370), else the option ``size``. Option ``light``: ``Illum2/Exp1`` ... of the archives with 7 views. No calibration:
    the pairs are cropped by an offset whose unit the archives do not say.
    """

    name = "middlebury2005"
    tree = "[ThirdSize/]<scene>/view1.png, view5.png, disp1.png, disp5.png"
    names = ("view1", "view5", "disp1", "disp5")
    full_height = 1110

    def list_entries(self, split: str, size: Size | None = None, light: str | None = None) -> Iterator[PairEntry]:
        """The scenes by name."""
        if light is None:
            yield from self._scenes(size)
            return
        for folder, files in walk(self.root):
            if "disp1.png" in files and os.path.isdir(join(folder, light)):
                known = size or self._size_of(folder)
                read = partial(read_codes, divide_by=_FACTORS[known] if known else None, full_height=self.full_height)
                left, right = (join(folder, light, name) for name in ("view1.png", "view5.png"))
                maps = (MapFile("disparity", join(folder, "disp1.png"), read),)
                yield PairEntry(f"{_scene(self.root, folder)}/{light}", left, right, maps)


class Middlebury2006Stereo(Middlebury2005Stereo):
    """As 2005: other scenes."""

    name = "middlebury2006"


class Middlebury2014Stereo(StereoPairs):
    """``<scene>/im0.png``, ``im1.png``, ``disp0.pfm``, ``disp1.pfm``, ``calib.txt``.

    Option ``right``: ``im1`` (default), ``im1E`` (other exposure) or ``im1L`` (other light).
    """

    name = "middlebury2014"
    tree = "<scene>/im0.png, im1.png, disp0.pfm, calib.txt"

    def list_entries(self, split: str, right: Literal["im1", "im1E", "im1L"] = "im1") -> Iterator[PairEntry]:
        """The scenes by name."""
        self.check_choice("right", right, ("im1", "im1E", "im1L"))
        for folder, files in walk(self.root):
            if {"im0.png", "disp0.pfm"} <= set(files):
                yield _float_entry(self.root, folder, files, right, ("disp0.pfm", "disp1.pfm"))


class Middlebury2021Stereo(Middlebury2014Stereo):
    """As 2014: mobile devices, other scenes; only ``im1`` exists."""

    name = "middlebury2021"


class MiddleburyV3Stereo(StereoPairs):
    """The benchmark: ``trainingH/<scene>/im0.png``, ``im1.png``, ``disp0GT.pfm``, ``mask0nocc.png``, ``calib.txt``;
    ``testH`` has no truth.

    Option ``size``: ``F``, ``H`` or ``Q``; needed only where several are there.
    """

    name = "middlebury_v3"
    splits = ("train", "all", "test")
    tree = "trainingH/<scene>/im0.png, im1.png, disp0GT.pfm, mask0nocc.png, calib.txt"

    def list_entries(self, split: str, size: Literal["F", "H", "Q"] | None = None) -> Iterator[PairEntry]:
        """The scenes by name."""
        if size is not None:
            self.check_choice("size", size, ("F", "H", "Q"))
        part = "test" if split == "test" else "training"
        found = {letter: first_folder(self.root, [part + letter, join("MiddEval3", part + letter)]) for letter in "FHQ"}
        there = [letter for letter, folder in found.items() if folder is not None and size in (None, letter)]
        if len(there) > 1:
            raise ConfigError(f"{self.root}: holds the sizes {', '.join(there)} of {self.name}; say size='{there[0]}'")
        top = found[there[0]] if there else None
        if top is None:
            return
        for scene in list_folder(top)[0]:
            files = list_folder(join(top, scene))[1]
            if "im0.png" in files:
                names = () if split == "test" else ("disp0GT.pfm", "disp1GT.pfm")
                yield _float_entry(top, join(top, scene), files, "im1", names)


def _float_entry(
    root: str | os.PathLike[str], folder: str, files: list[str], right: str, maps: tuple[str, ...]
) -> PairEntry:
    """An entry with PFM maps (left, right), mask and calibration as the newer sets have them."""
    found = [MapFile("disparity", join(folder, name), read_disparity) for name in maps[:1]]
    found += [MapFile("right_disparity", join(folder, name), read_disparity) for name in maps[1:] if name in files]
    if maps and "mask0nocc.png" in files:
        found.append(MapFile("occlusion", join(folder, "mask0nocc.png"), read_not_visible))
    rig = join(folder, "calib.txt") if "calib.txt" in files else None
    return PairEntry(_scene(root, folder), join(folder, "im0.png"), join(folder, f"{right}.png"), tuple(found), rig)


def _scene(root: str | os.PathLike[str], folder: str) -> str:
    place = os.path.relpath(folder, root)
    return os.path.basename(os.path.abspath(folder)) if place == "." else place


def _pick(files: list[str], stem: str, suffixes: tuple[str, ...]) -> str | None:
    return next((stem + suffix for suffix in suffixes if stem + suffix in files), None)
