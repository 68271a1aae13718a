# SPDX-License-Identifier: Apache-2.0
"""MPI Sintel stereo (Butler et al., ECCV 2012), training part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Literal

from vision3d.datasets.codecs import read_either, read_sintel_disparity
from vision3d.datasets.pairs import MapFile, PairEntry, StereoPairs, first_folder, images_in, join, list_folder


class SintelStereo(StereoPairs):
    """``training/<pass>_left/<sequence>/frame_0001.png``, ``<pass>_right``, ``disparities``; where both are
    present ``occlusions`` and ``outofframe`` (together the occlusion mask).

    Option ``passname``: ``final`` (default) or ``clean``.
    """

    name = "sintel"
    tree = "training/final_left/<sequence>/frame_0001.png, final_right, disparities, occlusions, outofframe"

    def list_entries(self, split: str, passname: Literal["clean", "final"] = "final") -> Iterator[PairEntry]:
        """The frames by sequence and number."""
        self.check_choice("passname", passname, ("clean", "final"))
        root = first_folder(self.root, ["training"]) or os.fspath(self.root)
        for sequence in list_folder(join(root, f"{passname}_left"))[0]:
            for file in images_in(join(root, f"{passname}_left", sequence)):
                left, right = (join(root, f"{passname}_{view}", sequence, file) for view in ("left", "right"))
                scene = f"{sequence}/{os.path.splitext(file)[0]}"
                yield PairEntry(scene, left, right, tuple(_maps(root, join(sequence, file))))


def _maps(root: str, place: str) -> Iterator[MapFile]:
    yield MapFile("disparity", join(root, "disparities", place), read_sintel_disparity)
    hidden, outside = join(root, "occlusions", place), join(root, "outofframe", place)
    if os.path.isfile(hidden) and os.path.isfile(outside):
        yield MapFile("occlusion", hidden, partial(read_either, other=outside), (outside,))
