# SPDX-License-Identifier: Apache-2.0
"""TartanAir (Wang et al., IROS 2020) and sets in its folders: rendered flights with dense depth."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial

from vision3d.datasets.codecs import depth_npy_to_disparity, fixed_rig
from vision3d.datasets.pairs import MapFile, PairEntry, StereoPairs, images_in, join, walk

FOCAL = 320.0  # pixels
BASELINE = 0.25  # metres
CENTER = (320.0, 240.0)


class TartanAirStereo(StereoPairs):
    """``<environment>/<Easy or Hard>/P000/image_left/000000_left.png``, ``image_right/000000_right.png``,
    ``depth_left/000000_left_depth.npy`` (metres); disparity = 320 * 0.25 / depth.

    There is no published stereo split: ``all`` and ``train`` are everything.
    Option ``difficulties``: e.g. ``["Easy"]``.
    """

    name = "tartanair"
    tree = "<environment>/<Easy or Hard>/P000/image_left/000000_left.png, image_right, depth_left/000000_left_depth.npy"

    def list_entries(self, split: str, difficulties: Sequence[str] | None = None) -> Iterator[PairEntry]:
        """The frames in the order of their folders."""
        for folder, _ in walk(self.root):
            flight, kind = os.path.split(folder)
            place = os.path.relpath(flight, self.root)
            if kind == "image_left" and (difficulties is None or set(difficulties) & set(place.split(os.sep))):
                yield from _frames(flight, place)


def _frames(flight: str, place: str) -> Iterator[PairEntry]:
    read = partial(depth_npy_to_disparity, focal_times_baseline=FOCAL * BASELINE)
    for file in images_in(join(flight, "image_left")):
        stem, suffix = os.path.splitext(file)
        number = stem.removesuffix("_left")
        maps = [MapFile("disparity", join(flight, "depth_left", f"{stem}_depth.npy"), read)]
        other = join(flight, "depth_right", f"{number}_right_depth.npy")
        if os.path.isfile(other):
            maps.append(MapFile("right_disparity", other, read))
        yield PairEntry(
            os.path.normpath(join(place, number)),
            join(flight, "image_left", file),
            join(flight, "image_right", f"{number}_right{suffix}"),
            tuple(maps),
            fixed_rig(FOCAL, BASELINE, CENTER),
        )
