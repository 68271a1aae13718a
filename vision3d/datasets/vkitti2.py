# SPDX-License-Identifier: Apache-2.0
"""Virtual KITTI 2 (Cabon et al., 2020): rendered driving scenes with dense depth."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial

from vision3d.datasets.codecs import depth_png_to_disparity, fixed_rig
from vision3d.datasets.pairs import MapFile, PairEntry, StereoPairs, images_in, join, list_folder

FOCAL = 725.0087  # pixels
BASELINE = 0.532725  # metres
CENTER = (620.5, 187.0)


class VirtualKitti2Stereo(StereoPairs):
    """``Scene01/clone/frames/rgb/Camera_0/rgb_00000.jpg``, ``Camera_1`` and ``frames/depth/Camera_0/depth_00000.png``;
    the two archives may also lie in folders of their own (``vkitti_2.0.3_rgb``, ``vkitti_2.0.3_depth``).

    Depth is stored in centimetres, 65535 (sky, clipped) becomes unknown; disparity = 725.0087 * 0.532725 / depth.
    There is no published split: ``all`` and ``train`` are everything. Option ``variations``: e.g. ``["clone", "fog"]``.
    """

    name = "vkitti2"
    tree = "Scene01/clone/frames/rgb/Camera_0/rgb_00000.jpg and .../depth/Camera_0/depth_00000.png"

    def list_entries(self, split: str, variations: Sequence[str] | None = None) -> Iterator[PairEntry]:
        """The frames by scene, variation and number."""
        root = os.fspath(self.root)
        images, depths = _top(root, "rgb"), _top(root, "depth")
        for scene in list_folder(images)[0]:
            if not scene.startswith("Scene"):
                continue
            for variation in list_folder(join(images, scene))[0]:
                if variations is None or variation in variations:
                    yield from _frames(images, depths, join(scene, variation, "frames"))


def _top(root: str, kind: str) -> str:
    """The folder that holds ``Scene*`` with images or depth."""
    for folder in (root, *(join(root, name) for name in list_folder(root)[0] if name.lower().endswith(kind))):
        for scene in list_folder(folder)[0]:
            if scene.startswith("Scene") and any(
                os.path.isdir(join(folder, scene, name, "frames", kind)) for name in list_folder(join(folder, scene))[0]
            ):
                return folder
    return root


def _frames(images: str, depths: str, place: str) -> Iterator[PairEntry]:
    read = partial(depth_png_to_disparity, focal_times_baseline=FOCAL * BASELINE)
    for file in images_in(join(images, place, "rgb", "Camera_0")):
        number = os.path.splitext(file)[0].removeprefix("rgb_")
        left, right = (join(images, place, "rgb", camera, file) for camera in ("Camera_0", "Camera_1"))
        maps = [MapFile("disparity", join(depths, place, "depth", "Camera_0", f"depth_{number}.png"), read)]
        other = join(depths, place, "depth", "Camera_1", f"depth_{number}.png")
        if os.path.isfile(other):
            maps.append(MapFile("right_disparity", other, read))
        scene = join(os.path.dirname(place), number)
        yield PairEntry(scene, left, right, tuple(maps), fixed_rig(FOCAL, BASELINE, CENTER))
