# SPDX-License-Identifier: Apache-2.0
"""ETH3D low-resolution two-view benchmark (Schoeps et al., CVPR 2017)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from vision3d.datasets.codecs import read_not_visible
from vision3d.datasets.pairs import MapFile, PairEntry, StereoPairs, first_folder, join, list_folder
from vision3d.io.disparity import read_disparity


class Eth3dStereo(StereoPairs):
    """``two_view_training/<scene>/im0.png``, ``im1.png``, ``calib.txt``; truth in ``two_view_training_gt/<scene>/``
    or beside the images: ``disp0GT.pfm``, ``mask0nocc.png``. ``test`` is ``two_view_test``, without truth.
    """

    name = "eth3d"
    splits = ("train", "all", "test")
    tree = "two_view_training/<scene>/im0.png, im1.png, calib.txt and two_view_training_gt/<scene>/disp0GT.pfm"

    def list_entries(self, split: str) -> Iterator[PairEntry]:
        """The scenes by name."""
        part = "two_view_test" if split == "test" else "two_view_training"
        folder = first_folder(self.root, [part]) or (None if split == "test" else os.fspath(self.root))
        if folder is None:
            return
        truths = first_folder(self.root, ["two_view_training_gt"]) or folder
        for scene in list_folder(folder)[0]:
            files = list_folder(join(folder, scene))[1]
            if "im0.png" not in files:
                continue
            left, right = (join(folder, scene, name) for name in ("im0.png", "im1.png"))
            maps = () if split == "test" else tuple(_maps(join(truths, scene)))
            rig = join(folder, scene, "calib.txt") if "calib.txt" in files else None
            yield PairEntry(scene, left, right, maps, rig)


def _maps(folder: str) -> Iterator[MapFile]:
    yield MapFile("disparity", join(folder, "disp0GT.pfm"), read_disparity)
    mask = join(folder, "mask0nocc.png")
    if os.path.isfile(mask):
        yield MapFile("occlusion", mask, read_not_visible)
