# SPDX-License-Identifier: Apache-2.0
"""Stereo pairs in folders ``ROOT/<set>/<scene>/``: ``left.*``, ``right.*`` and the truth in its original format."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from vision3d.datasets.pairs import OnError, SkippingReader, read_skip_file, warn_unknown_scenes
from vision3d.errors import DisparityError, FileFormatError, ImageError, UnknownNameError
from vision3d.io.calibration import read_calibration
from vision3d.io.disparity import read_disparity
from vision3d.io.files import read_bytes
from vision3d.io.images import load_pil, read_image
from vision3d.types import StereoRig, StereoSample

_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".ppm", ".pgm", ".tif", ".tiff", ".bmp", ".webp")

# Names under which the data sets of the field keep the truth of the left and of the right view.
_TRUTH_NAMES = {
    "left": ("disp_left", "disp0GT", "disp0", "disp_occ_0", "disp_occ", "disparity", "disp", "gt"),
    "right": ("disp_right", "disp1GT", "disp1", "disp_occ_1"),
}
_TRUTH_SUFFIXES = (".pfm", ".npz", ".npy", ".png", ".pgm", ".tiff", ".tif")
_MASK_NAMES = ("nonocc.png", "mask0nocc.png")


class FolderStereo(SkippingReader):
    """The pairs below a folder, as :class:`StereoSample`, sorted by name.

    ``ROOT/index.json``, where present, says for each scene which file is the truth and how it is encoded, and the
    search range; without it the well-known names of the field are tried. ``calib.txt`` and ``nonocc.png`` (255: visible
    in both views) are read where they exist. Scenes without a disparity map have ``disparity`` None.

    Args:
        root: the folder.
        exclude: names of sets (``middlebury2006``) or scenes (``middlebury2006/monopoly_third``) to leave out.
        skip_file: text file with scenes (``set/scene``) to leave out, one a line, ``#`` begins a comment.
        on_error: ``"raise"``: a pair that cannot be used is an error when it is read; ``"skip"``: pairs without a right
            image are left out, damaged ones are replaced by the next one when read, with a warning that counts them.

    Attributes:
        name: ``folder``.
        scenes: list of ``set/scene``.
        skipped: scene -> why it was skipped.

    Raises:
        FileFormatError: the folder is missing or holds no pair, none is left after skipping, or an illegal index.json.
        ConfigError: unknown ``on_error``.
        UnknownNameError: a name in ``exclude`` that is neither a set nor a scene.

    Example:
        >>> data = FolderStereo("stereo", exclude=["kitti_object"])  # doctest: +SKIP
        >>> data[0].disparity.shape  # doctest: +SKIP
    """

    name = "folder"

    def __init__(
        self,
        root: str | os.PathLike[str],
        exclude: Iterable[str] = (),
        *,
        skip_file: str | os.PathLike[str] | None = None,
        on_error: OnError = "raise",
    ) -> None:
        self._set_on_error(on_error)
        self.root = Path(root)
        if not self.root.is_dir():
            raise FileFormatError(
                f"{root}: no such folder; give the folder that holds <set>/<scene>/left.png and right.png"
            )
        self._index = _read_index(self.root / "index.json")
        found = sorted(
            f"{folder.parent.name}/{folder.name}"
            for folder in self.root.glob("*/*")
            if folder.is_dir() and not folder.parent.name.startswith(".") and self._pair(folder, "left") is not None
        )
        if not found:
            raise FileFormatError(
                f"{root}: holds no stereo pair; <set>/<scene>/left.png and right.png are expected below it"
            )
        self.scenes = _without(found, [exclude] if isinstance(exclude, str) else list(exclude))
        if skip_file is not None or on_error == "skip":
            self.scenes = self._usable(self.scenes, skip_file)

    def _usable(self, found: list[str], skip_file: str | os.PathLike[str] | None) -> list[str]:
        """The scenes that are not on the skip list and, with ``on_error="skip"``, have both images."""
        left_out = read_skip_file(skip_file) if skip_file is not None else frozenset()
        if skip_file is not None:
            warn_unknown_scenes(skip_file, left_out.difference(found), self.name)
        scenes = [scene for scene in found if scene not in left_out]
        if self.on_error == "skip":
            lacking = [scene for scene in scenes if self._pair(self.root / scene, "right") is None]
            for scene in lacking:
                self.skipped[scene] = f"{self.root / scene / 'right.*'}: no such file; complete the pair"
            if lacking:
                self._warn(self.skipped[lacking[0]])
            scenes = [scene for scene in scenes if scene not in self.skipped]
        if not scenes:
            raise FileFormatError(f"{self.root}: no pair of {self.name} is left after skipping")
        return scenes

    def read(self, index: int) -> StereoSample:
        """Read a pair with all that is known about it.

        Raises:
            ImageError, DisparityError, CalibrationError: a file that cannot be used or does not fit the others.
        """
        scene = self.scenes[index]
        folder = self.root / scene
        left_file, right_file = self._pair(folder, "left"), self._pair(folder, "right")
        if left_file is None or right_file is None:
            raise ImageError(f"{folder}: the right image is missing; add right.png beside {left_file}")
        left, right = read_image(left_file), read_image(right_file)
        if left.shape != right.shape:
            raise ImageError(
                f"{folder}: left is {left.shape[1]}x{left.shape[0]}, right is {right.shape[1]}x{right.shape[0]}; "
                "both views must have one size"
            )
        height, width = left.shape[:2]
        return StereoSample(
            left=left,
            right=right,
            disparity=self._truth(scene, "left", (height, width)),
            right_disparity=self._truth(scene, "right", (height, width)),
            occlusion=_read_occlusion(folder, (height, width)),
            rig=self._rig(scene, (width, height)),
            scene=scene,
        )

    def ndisp(self, scene: str) -> int | None:
        """Search range (pixels) that covers the disparities of a scene, or None where the index does not say it."""
        if scene not in self.scenes:
            raise UnknownNameError("scene", scene, self.scenes)
        value = self._index.get(scene, {}).get("ndisp")
        return None if value is None else int(value)

    def _pair(self, folder: Path, view: str) -> Path | None:
        name = self._index.get(f"{folder.parent.name}/{folder.name}", {}).get(view)
        candidates = [name] if name else [view + suffix for suffix in _IMAGE_SUFFIXES]
        return next((folder / name for name in candidates if (folder / name).is_file()), None)

    def _truth(self, scene: str, view: str, size: tuple[int, int]) -> np.ndarray | None:
        folder, entry = self.root / scene, self._index.get(scene)
        if entry is None:
            names = (name + suffix for name in _TRUTH_NAMES[view] for suffix in _TRUTH_SUFFIXES)
            file = next((folder / name for name in names if (folder / name).is_file()), None)
            if file is None:
                return None
            try:
                disparity = read_disparity(file)
            except DisparityError as error:
                if "divide_by" not in str(error):
                    raise
                raise DisparityError(
                    f"{file}: an 8-bit map does not say how many codes make one pixel; name its encoding and divide_by "
                    f"in {self.root / 'index.json'}"
                ) from error
        else:
            truth = entry.get("gt")
            name = truth and (truth["file"] if view == "left" else entry.get("gt_right"))
            if not name or truth["encoding"] == "velodyne":
                return None
            file = folder / name
            disparity = read_disparity(file, truth["encoding"], truth.get("divide_by"), truth.get("invalid"))
        if disparity.shape != size:
            raise DisparityError(
                f"{file}: the map is {disparity.shape[1]}x{disparity.shape[0]}, the images are {size[1]}x{size[0]}; "
                "give the map of these images"
            )
        return disparity

    def _rig(self, scene: str, image_size: tuple[int, int]) -> StereoRig | None:
        names = self._index.get(scene, {}).get("calib") or "calib.txt"
        file = self.root / scene / (names if isinstance(names, str) else names[0])
        return read_calibration(file, image_size) if file.is_file() else None


def _read_index(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        index = json.loads(read_bytes(path, FileFormatError, "an index"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path}: not a JSON file ({error}); correct or remove it") from error
    if not isinstance(index, dict):
        raise FileFormatError(f"{path}: an object with one entry for each set/scene is expected; correct or remove it")
    for scene, entry in index.items():
        truth = entry.get("gt") if isinstance(entry, dict) else ()
        if truth is not None and not (isinstance(truth, dict) and {"file", "encoding"} <= truth.keys()):
            raise FileFormatError(f"{path}: the entry of '{scene}' needs 'gt' with 'file' and 'encoding' (or null)")
    return index


def _without(scenes: list[str], exclude: list[str]) -> list[str]:
    """The scenes that are neither excluded by name nor through their set."""
    known = set(scenes) | {scene.split("/")[0] for scene in scenes}
    for name in exclude:
        if name not in known:
            raise UnknownNameError("set or scene", name, known)
    return [scene for scene in scenes if scene not in exclude and scene.split("/")[0] not in exclude]


def _read_occlusion(folder: Path, size: tuple[int, int]) -> np.ndarray | None:
    """[H, W] bool from a mask in which 255 marks pixels that both views see."""
    file = next((folder / name for name in _MASK_NAMES if (folder / name).is_file()), None)
    if file is None:
        return None
    mask = np.asarray(load_pil(file).convert("L"))
    if mask.shape != size:
        raise ImageError(
            f"{file}: the mask is {mask.shape[1]}x{mask.shape[0]}, the images are {size[1]}x{size[0]}; replace it"
        )
    return mask != 255
