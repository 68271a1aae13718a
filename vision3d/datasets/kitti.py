# SPDX-License-Identifier: Apache-2.0
"""The training sets of KITTI 2012 and KITTI 2015 (Geiger et al., CVPR 2012; Menze and Geiger, CVPR 2015): readers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from torch.utils.data import Dataset

from vision3d.errors import ConfigError, DisparityError, FileFormatError, ImageError
from vision3d.io.disparity import read_disparity
from vision3d.io.images import read_image
from vision3d.types import StereoSample

Split = Literal["all", "train", "validation"]

# The frames that FADNet's KITTI 2015 lists hold back for validation; of KITTI 2012 it holds back the last 14.
_VALIDATION_2015 = frozenset(
    (1, 6, 26, 38, 43, 49, 67, 81, 89, 109, 122, 129, 132, 141, 152, 159, 171, 179, 184, 187)
)  # fmt: skip
_VALIDATION_2012 = frozenset(range(180, 194))


class _KittiStereo(Dataset[StereoSample]):
    """Frames ``<number>_10.png`` with sparse disparities (NaN where there is none)."""

    left_folder: str
    right_folder: str
    disparity_folder: str
    held_back: frozenset[int]

    def __init__(self, root: str | os.PathLike[str], split: Split = "all") -> None:
        if split not in ("all", "train", "validation"):
            raise ConfigError(f"split '{split}': choose all, train or validation")
        folder = Path(root)
        self.root = folder / "training" if (folder / "training").is_dir() else folder
        names = sorted(path.name for path in (self.root / self.disparity_folder).glob("*_10.png"))
        keep = {"all": (True, False), "train": (False,), "validation": (True,)}[split]
        self.frames = [name for name in names if (int(name[:6]) in self.held_back) in keep]
        if not self.frames:
            raise FileFormatError(
                f"{self.root / self.disparity_folder}: no *_10.png here: give the folder of the data set"
            )

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> StereoSample:
        """Read a pair.

        Raises:
            ImageError, DisparityError: a file that cannot be used or does not fit the others.
        """
        name = self.frames[index]
        left, right = read_image(self.root / self.left_folder / name), read_image(self.root / self.right_folder / name)
        disparity = read_disparity(self.root / self.disparity_folder / name)
        if left.shape != right.shape:
            raise ImageError(f"{self.root / self.right_folder / name}: not of the size of the left view; replace it")
        if disparity.shape != left.shape[:2]:
            raise DisparityError(
                f"{self.root / self.disparity_folder / name}: not of the size of its images; replace it"
            )
        return StereoSample(left, right, disparity, scene=name.removesuffix(".png"))


class Kitti2015Stereo(_KittiStereo):
    """KITTI 2015 training pairs (``image_2``, ``image_3``, ``disp_occ_0``).

    Args:
        root: the data set's folder, or its ``training`` folder.
        split: all frames, or the published training or validation part.

    Raises:
        FileFormatError: no frame found.
    """

    left_folder, right_folder, disparity_folder = "image_2", "image_3", "disp_occ_0"
    held_back = _VALIDATION_2015


class Kitti2012Stereo(_KittiStereo):
    """KITTI 2012 training pairs in colour (``colored_0``, ``colored_1``, ``disp_occ``); see ``Kitti2015Stereo``."""

    left_folder, right_folder, disparity_folder = "colored_0", "colored_1", "disp_occ"
    held_back = _VALIDATION_2012
