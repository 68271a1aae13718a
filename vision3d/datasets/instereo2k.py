# SPDX-License-Identifier: Apache-2.0
"""InStereo2K (Bao et al., Science China Information Sciences 2020): real indoor pairs with dense truth."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from vision3d.datasets.codecs import codes16
from vision3d.datasets.pairs import MapFile, PairEntry, StereoPairs, first_folder, join, walk

_CODES = 100.0


class InStereo2KStereo(StereoPairs):
    """``train/<part>/<number>/left.png``, ``right.png``, ``left_disp.png``, ``right_disp.png``; ``test`` likewise.

    Disparities are 16-bit pictures of 100 codes a pixel, 0 is unknown.
    """

    name = "instereo2k"
    splits = ("train", "test", "all")
    tree = "train/<part>/<number>/left.png, right.png, left_disp.png and test/<number>/..."

    def list_entries(self, split: str) -> Iterator[PairEntry]:
        """The pairs in the order of their folders."""
        for part in ("train", "test") if split == "all" else (split,):
            top = first_folder(self.root, [part])
            for folder, files in walk(top) if top else ():
                if "left.png" in files:
                    yield _entry(os.fspath(self.root), folder, files)


def _entry(root: str, folder: str, files: list[str]) -> PairEntry:
    maps = [MapFile("disparity", join(folder, "left_disp.png"), partial(codes16, divide_by=_CODES))]
    if "right_disp.png" in files:
        maps.append(MapFile("right_disparity", join(folder, "right_disp.png"), partial(codes16, divide_by=_CODES)))
    return PairEntry(os.path.relpath(folder, root), join(folder, "left.png"), join(folder, "right.png"), tuple(maps))
