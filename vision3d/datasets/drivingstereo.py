# SPDX-License-Identifier: Apache-2.0
"""DrivingStereo (Yang et al., CVPR 2019): real driving scenes with lidar truth."""

from __future__ import annotations

import os
from collections.abc import Iterator

from vision3d.datasets.pairs import MapFile, PairEntry, StereoPairs, first_folder, images_in, join, walk
from vision3d.io.disparity import read_disparity


class DrivingStereo(StereoPairs):
    """``train-left-image/<sequence>/*.jpg``, ``train-right-image``, ``train-disparity-map`` (PNG of 256 codes a pixel);
    ``test-...`` likewise; the test archives' ``left-image-half-size`` (or ``-full-size``) are found as well.
    """

    name = "drivingstereo"
    splits = ("train", "test", "all")
    tree = "train-left-image/<sequence>/*.jpg, train-right-image, train-disparity-map (and test-...)"

    def list_entries(self, split: str) -> Iterator[PairEntry]:
        """The frames in the order of their names."""
        for part in ("train", "test") if split == "all" else (split,):
            folders = _folders(os.fspath(self.root), part)
            if folders is None:
                continue
            left, right, truth = folders
            for folder, _ in walk(left):
                place = os.path.relpath(folder, left)
                for file in images_in(folder):
                    stem = os.path.splitext(file)[0]
                    disparity = os.path.normpath(join(truth, place, f"{stem}.png"))
                    yield PairEntry(
                        os.path.normpath(join(part, place, stem)),
                        join(folder, file),
                        os.path.normpath(join(right, place, file)),
                        (MapFile("disparity", disparity, read_disparity),),
                    )


def _folders(root: str, part: str) -> tuple[str, str, str] | None:
    """The folders of left images, right images and disparity maps."""
    names = ("left-image", "right-image", "disparity-map")
    for parent in (root, join(root, part)):
        for before, after in ((f"{part}-", ""), ("", "-half-size"), ("", "-full-size")):
            if after and parent == root and part != "test":
                continue
            left = first_folder(parent, [f"{before}{names[0]}{after}"])
            if left is not None:
                return left, join(parent, f"{before}{names[1]}{after}"), join(parent, f"{before}{names[2]}{after}")
    return None
