# SPDX-License-Identifier: Apache-2.0
"""KITTI 2012 (Geiger et al., CVPR 2012) and KITTI 2015 (Menze and Geiger, CVPR 2015), stereo benchmarks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal

from vision3d.datasets.codecs import read_known_only_in, read_nonzero
from vision3d.datasets.pairs import MapFile, PairEntry, StereoPairs, join, list_folder
from vision3d.io.disparity import read_disparity

_FRAME = re.compile(r"(\d{6})_10\.png")

# The frames that FADNet's KITTI 2015 lists hold back for validation; of KITTI 2012 it holds back the last 14.
VALIDATION_2015 = frozenset(
    (1, 6, 26, 38, 43, 49, 67, 81, 89, 109, 122, 129, 132, 141, 152, 159, 171, 179, 184, 187)
)  # fmt: skip
VALIDATION_2012 = frozenset(range(180, 194))


class _KittiStereo(StereoPairs):
    """Frames ``<number>_10.png`` of ``training`` (sparse lidar truth) or ``testing`` (no truth)."""

    splits = ("train", "validation", "all", "test")
    held_back: ClassVar[frozenset[int]]
    truth: ClassVar[dict[str, str]]

    def _entries(self, split: str, views: tuple[str, str], truth: str, rigs: str | None) -> Iterator[PairEntry]:
        part = "testing" if split == "test" else "training"
        folder = join(self.root, part) if os.path.isdir(join(self.root, part)) else os.fspath(self.root)
        if split == "test" and not folder.endswith("testing"):
            return
        calibrations = set(list_folder(join(folder, rigs))[1]) if rigs else set()
        for name in list_folder(join(folder, views[0]))[1]:
            match = _FRAME.fullmatch(name)
            if match is None or (
                split in ("train", "validation") and (int(match[1]) in self.held_back) != (split == "validation")
            ):
                continue
            maps = () if split == "test" else tuple(self._maps(folder, name, truth))
            rig = f"{match[1]}.txt"
            left, right = (join(folder, view, name) for view in views)
            rig_file = join(folder, rigs, rig) if rigs and rig in calibrations else None
            yield PairEntry(name.removesuffix(".png"), left, right, maps, rig_file)

    def _maps(self, folder: str, name: str, truth: str) -> Iterator[MapFile]:
        every, visible = (join(folder, self.truth[key], name) for key in ("occ", "noc"))
        yield MapFile("disparity", every if truth == "occ" else visible, read_disparity)
        if truth == "occ" and os.path.isfile(visible):
            yield MapFile("occlusion", every, partial(read_known_only_in, other=visible), (visible,))
        objects = join(folder, "obj_map", name)
        if os.path.isfile(objects):
            yield MapFile("foreground", objects, read_nonzero)


class Kitti2015Stereo(_KittiStereo):
    """KITTI 2015: ``image_2``, ``image_3``, ``disp_occ_0``; where present ``disp_noc_0`` (occlusion), ``obj_map``
    (foreground) and ``calib_cam_to_cam``.

    ``validation`` is the list of FADNet (20 frames), ``train`` the other 180, ``all`` the 200, ``test`` has no truth.
    Option ``truth``: ``"occ"`` (all pixels, default) or ``"noc"`` (those that both views see).
    """

    name = "kitti2015"
    tree = "training/image_2/000000_10.png, image_3, disp_occ_0"
    held_back = VALIDATION_2015
    truth: ClassVar[dict[str, str]] = {"occ": "disp_occ_0", "noc": "disp_noc_0"}

    def list_entries(self, split: str, truth: Literal["occ", "noc"] = "occ") -> Iterator[PairEntry]:
        """The frames of a split by number."""
        self.check_choice("truth", truth, ("occ", "noc"))
        return self._entries(split, ("image_2", "image_3"), truth, "calib_cam_to_cam")


class Kitti2012Stereo(_KittiStereo):
    """KITTI 2012: ``colored_0``, ``colored_1``, ``disp_occ``; where present ``disp_noc`` (occlusion) and ``calib``.

    ``validation`` is frames 180 to 193 (FADNet), ``train`` the first 180, ``all`` the 194, ``test`` has no truth.
    Options: ``truth`` as for KITTI 2015; ``grey``: the grey pair ``image_0``, ``image_1`` (then without calibration).
    """

    name = "kitti2012"
    tree = "training/colored_0/000000_10.png, colored_1, disp_occ (grey=True: image_0, image_1)"
    held_back = VALIDATION_2012
    truth: ClassVar[dict[str, str]] = {"occ": "disp_occ", "noc": "disp_noc"}

    def list_entries(self, split: str, truth: Literal["occ", "noc"] = "occ", grey: bool = False) -> Iterator[PairEntry]:
        """The frames of a split by number."""
        self.check_choice("truth", truth, ("occ", "noc"))
        views = ("image_0", "image_1") if grey else ("colored_0", "colored_1")
        return self._entries(split, views, truth, None if grey else "calib")
