# SPDX-License-Identifier: Apache-2.0
"""Small valid trees of every stereo data set, written from given samples in the exact file formats.

They let readers, recipes and evaluations be tried without the data sets. Disparities above the range of an 8-bit or
16-bit format become unknown. Sets whose images have a fixed size are written in the size of the samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from vision3d.datasets import tartanair, vkitti2
from vision3d.datasets.codecs import encode_sintel_disparity, pinhole_rig
from vision3d.datasets.irs import irs_rig
from vision3d.errors import InputError, UnknownNameError
from vision3d.geometry.normals import normals_from_disparity
from vision3d.io.disparity import write_disparity, write_disparity_png16
from vision3d.io.exr import write_exr
from vision3d.io.files import atomic_write, ensure_folder
from vision3d.io.images import write_image
from vision3d.types import StereoRig, StereoSample

Writer = Callable[[Path, int, StereoSample], None]


def list_layouts() -> list[str]:
    """The names that ``write_toy_tree`` takes."""
    return sorted([*_WRITERS, "pool"])


def write_toy_tree(name: str, root: str | os.PathLike[str], samples: Iterable[StereoSample]) -> int:
    """Write samples as a data set of the layout ``name``, which ``open_dataset(name, root)`` reads.

    Args:
        name: a registered stereo data set.
        root: target folder, created where missing.
        samples: each with a disparity map; ``occlusion``, ``right_disparity``, ``normals``, ``foreground`` and ``rig``
            are written where the format has a place for them.

    Returns:
        The number of pairs.

    Raises:
        UnknownNameError: no such layout.
        InputError: a sample without disparity map.
        OutputError: the place is not writable.
    """
    if name == "pool":
        from vision3d.datasets.cache import write_pool

        return write_pool(ensure_folder(root), samples)
    if name not in _WRITERS:
        raise UnknownNameError("layout", name, list_layouts())
    folder, count = ensure_folder(root), 0
    for count, sample in enumerate(samples, 1):
        if sample.disparity is None:
            raise InputError(f"{sample.scene}: the sample has no disparity map, so it cannot be written as {name}")
        _WRITERS[name](folder, count - 1, sample)
    return count


def _place(path: Path) -> Path:
    ensure_folder(path.parent)
    return path


def _images(left: Path, right: Path, sample: StereoSample) -> None:
    write_image(_place(left), sample.left)
    write_image(_place(right), sample.right)


def _codes8(path: Path, disparity: np.ndarray, per_pixel: float) -> None:
    codes = np.rint(np.nan_to_num(disparity) * per_pixel)
    _grey(path, np.where(codes <= 255, codes, 0))


def _grey(path: Path, values: np.ndarray, dtype: type = np.uint8) -> None:
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(values.astype(dtype)))
    with atomic_write(_place(path)) as temporary:
        picture.save(temporary)


def _truth(sample: StereoSample) -> np.ndarray:
    """The disparity map, which ``write_toy_tree`` has checked."""
    return np.asarray(sample.disparity, dtype=np.float32)


def _visible(sample: StereoSample) -> np.ndarray:
    """The disparity where both views see the pixel, else NaN."""
    hidden = np.zeros(_truth(sample).shape, bool) if sample.occlusion is None else sample.occlusion
    return np.where(hidden, np.float32(np.nan), _truth(sample))


def _rig(sample: StereoSample) -> StereoRig:
    height, width = sample.left.shape[:2]
    return sample.rig or pinhole_rig(width, height, float(width), 0.2)


def _calib_middlebury(path: Path, sample: StereoSample) -> None:
    rig, (height, width) = _rig(sample), sample.left.shape[:2]
    rows = []
    for name, camera in (("cam0", rig.left), ("cam1", rig.right)):
        rows.append(f"{name}=[{camera.fx:.9g} 0 {camera.cx:.9g}; 0 {camera.fy:.9g} {camera.cy:.9g}; 0 0 1]")
    rows += [f"doffs={rig.doffs:.9g}", f"baseline={rig.baseline * 1000:.9g}", f"width={width}", f"height={height}"]
    rows += ["ndisp=256", "isint=0", "vmin=0", "vmax=256"]
    _text(path, rows)


def _calib_kitti(path: Path, sample: StereoSample, keys: tuple[str, str]) -> None:
    rig = _rig(sample)
    rows = []
    for key, camera, shift in zip(keys, (rig.left, rig.right), (0.0, -rig.left.fx * rig.baseline), strict=True):
        numbers = (camera.fx, 0, camera.cx, shift, 0, camera.fy, camera.cy, 0, 0, 0, 1, 0)
        rows.append(f"{key}: " + " ".join(f"{value:.12e}" for value in numbers))
    _text(path, rows)


def _text(path: Path, rows: list[str]) -> None:
    with atomic_write(_place(path)) as temporary:
        temporary.write_text("\n".join(rows) + "\n", encoding="utf-8")


def _mask_middlebury(path: Path, sample: StereoSample) -> None:
    known, visible = np.isfinite(_truth(sample)), np.isfinite(_visible(sample))
    _grey(path, np.where(visible, 255, np.where(known, 128, 0)))


def _sceneflow(images: str, truth: str) -> Writer:
    """A writer of ``images`` and ``truth`` with the fields {number} and {view}."""

    def write(root: Path, number: int, sample: StereoSample) -> None:
        left, right = (root / images.format(number=number, view=view) for view in ("left", "right"))
        _images(left, right, sample)
        write_disparity(_place(root / truth.format(number=number, view="left")), _truth(sample))
        if sample.right_disparity is not None:
            write_disparity(_place(root / truth.format(number=number, view="right")), sample.right_disparity)

    return write


def _kitti2015(root: Path, number: int, sample: StereoSample) -> None:
    folder, name = root / "training", f"{number:06d}_10.png"
    _images(folder / "image_2" / name, folder / "image_3" / name, sample)
    write_disparity_png16(_place(folder / "disp_occ_0" / name), _in_range(_truth(sample), 256))
    write_disparity_png16(_place(folder / "disp_noc_0" / name), _in_range(_visible(sample), 256))
    if sample.foreground is not None:
        _grey(folder / "obj_map" / name, sample.foreground)
    _calib_kitti(folder / "calib_cam_to_cam" / f"{number:06d}.txt", sample, ("P_rect_02", "P_rect_03"))


def _kitti2012(root: Path, number: int, sample: StereoSample) -> None:
    folder, name = root / "training", f"{number:06d}_10.png"
    _images(folder / "colored_0" / name, folder / "colored_1" / name, sample)
    _grey(folder / "image_0" / name, sample.left.mean(axis=2))
    _grey(folder / "image_1" / name, sample.right.mean(axis=2))
    write_disparity_png16(_place(folder / "disp_occ" / name), _in_range(_truth(sample), 256))
    write_disparity_png16(_place(folder / "disp_noc" / name), _in_range(_visible(sample), 256))
    _calib_kitti(folder / "calib" / f"{number:06d}.txt", sample, ("P2", "P3"))


def _in_range(disparity: np.ndarray, end: float) -> np.ndarray:
    return np.where(disparity < end - 0.01, disparity, np.float32(np.nan))


def _irs(root: Path, number: int, sample: StereoSample) -> None:
    folder, digits = root / "Home" / "ToyRoom", f"{number + 1:05d}"
    _images(folder / f"l_{digits}.png", folder / f"r_{digits}.png", sample)
    write_exr(folder / f"d_{digits}.exr", {"G": np.nan_to_num(_truth(sample))})
    normals = _normals(_truth(sample)) if sample.normals is None else sample.normals
    channels = {name: (normals[..., index] + 1) / 2 for index, name in enumerate("RGB")}
    write_exr(folder / f"n_{digits}.exr", channels)


def _normals(disparity: np.ndarray) -> np.ndarray:
    """[H, W, 3] unit normals of a disparity map seen by the camera of IRS, left camera axes."""
    height, width = disparity.shape
    return normals_from_disparity(disparity.astype(np.float32), irs_rig(width, height).left)


def _coded(folder: str, names: tuple[str, str, str, str], per_pixel: float) -> Writer:
    """A writer of the older Middlebury sets; ``folder`` with the field {number}; names as in ``_CodedStereo``."""

    def write(root: Path, number: int, sample: StereoSample) -> None:
        left, right, truth, other = (root / folder.format(number=number) / name for name in names)
        _images(left, right, sample)
        _codes8(truth, _truth(sample), per_pixel)
        if sample.right_disparity is not None:
            _codes8(other, sample.right_disparity, per_pixel)

    return write


def _float_maps(images: str, truth: str, mask: bool) -> Writer:
    """A writer of the newer Middlebury sets and ETH3D; folders with the field {number}."""

    def write(root: Path, number: int, sample: StereoSample) -> None:
        folder, maps = root / images.format(number=number), root / truth.format(number=number)
        _images(folder / "im0.png", folder / "im1.png", sample)
        _calib_middlebury(folder / "calib.txt", sample)
        if mask:
            write_disparity(_place(maps / "disp0GT.pfm"), _truth(sample))
            _mask_middlebury(maps / "mask0nocc.png", sample)
            return
        write_disparity(_place(maps / "disp0.pfm"), _truth(sample))
        if sample.right_disparity is not None:
            write_disparity(_place(maps / "disp1.pfm"), sample.right_disparity)

    return write


def _sintel(root: Path, number: int, sample: StereoSample) -> None:
    folder, name = root / "training", f"toy_1/frame_{number + 1:04d}.png"
    for passname in ("clean", "final"):
        _images(folder / f"{passname}_left" / name, folder / f"{passname}_right" / name, sample)
    write_image(_place(folder / "disparities" / name), encode_sintel_disparity(_truth(sample)))
    hidden = np.isnan(_visible(sample))
    outside = hidden & (np.arange(hidden.shape[1]) < _truth(sample))
    _grey(folder / "occlusions" / name, 255 * (hidden & ~outside))
    _grey(folder / "outofframe" / name, 255 * outside)


def _instereo2k(root: Path, number: int, sample: StereoSample) -> None:
    folder = root / "train" / "part1" / f"{number:06d}"
    _images(folder / "left.png", folder / "right.png", sample)
    for name, disparity in (("left_disp.png", sample.disparity), ("right_disp.png", sample.right_disparity)):
        if disparity is not None:
            _grey(folder / name, np.rint(100 * np.nan_to_num(_in_range(disparity, 655))), np.uint16)


def _drivingstereo(root: Path, number: int, sample: StereoSample) -> None:
    place = f"2018-07-09-16-11-56/2018-07-09-16-11-56_2018-07-09-16-12-{number:02d}-000"
    left, right = (root / f"train-{view}-image" / f"{place}.jpg" for view in ("left", "right"))
    _images(left, right, sample)
    write_disparity_png16(_place(root / "train-disparity-map" / f"{place}.png"), _in_range(_truth(sample), 256))


def _vkitti2(root: Path, number: int, sample: StereoSample) -> None:
    folder = root / "Scene01" / "clone" / "frames"
    left, right = (folder / "rgb" / f"Camera_{view}" / f"rgb_{number:05d}.jpg" for view in (0, 1))
    _images(left, right, sample)
    for view, disparity in enumerate((sample.disparity, sample.right_disparity)):
        if disparity is not None:
            depth = np.rint(100 * vkitti2.FOCAL * vkitti2.BASELINE / np.where(disparity > 0, disparity, np.nan))
            codes = np.minimum(np.nan_to_num(depth, nan=65535), 65535)
            _grey(folder / "depth" / f"Camera_{view}" / f"depth_{number:05d}.png", codes, np.uint16)


def _tartanair(root: Path, number: int, sample: StereoSample) -> None:
    folder, name = root / "toy" / "Easy" / "P000", f"{number:06d}"
    left, right = (folder / f"image_{view}" / f"{name}_{view}.png" for view in ("left", "right"))
    _images(left, right, sample)
    for view, disparity in (("left", sample.disparity), ("right", sample.right_disparity)):
        if disparity is not None:
            depth = tartanair.FOCAL * tartanair.BASELINE / np.where(disparity > 0, disparity, np.float32(np.nan))
            write_disparity(_place(folder / f"depth_{view}" / f"{name}_{view}_depth.npy"), depth.astype(np.float32))


def _folder(root: Path, number: int, sample: StereoSample) -> None:
    folder = root / "toy" / f"{number:04d}"
    _images(folder / "left.png", folder / "right.png", sample)
    write_disparity(folder / "disp_left.pfm", _truth(sample))
    if sample.right_disparity is not None:
        write_disparity(folder / "disp_right.pfm", sample.right_disparity)
    _mask_middlebury(folder / "nonocc.png", sample)
    _calib_middlebury(folder / "calib.txt", sample)


_FLYING = _sceneflow(
    "frames_cleanpass/TRAIN/A/{number:04d}/{view}/0006.png", "disparity/TRAIN/A/{number:04d}/{view}/0006.pfm"
)
_VIEWS = ("view1.png", "view5.png", "disp1.png", "disp5.png")
_PNM = ("im2.ppm", "im6.ppm", "disp2.pgm", "disp6.pgm")
_PNG = ("im2.png", "im6.png", "disp2.png", "disp6.png")

_WRITERS: dict[str, Writer] = {
    "sceneflow": _FLYING,
    "flyingthings3d": _FLYING,
    "driving": _sceneflow(
        "driving__frames_cleanpass/15mm_focallength/scene_backwards/fast/{view}/{number:04d}.png",
        "driving__disparity/15mm_focallength/scene_backwards/fast/{view}/{number:04d}.pfm",
    ),
    "monkaa": _sceneflow(
        "monkaa__frames_cleanpass/toy_x2/{view}/{number:04d}.png", "monkaa__disparity/toy_x2/{view}/{number:04d}.pfm"
    ),
    "kitti2012": _kitti2012,
    "kitti2015": _kitti2015,
    "irs": _irs,
    "middlebury2001": _coded("toy{number}", _PNM, 8),
    "middlebury2003": _coded("toy{number}Q", _PNG, 4),
    "middlebury2005": _coded("ThirdSize/Toy{number}", _VIEWS, 3),
    "middlebury2006": _coded("HalfSize/Toy{number}", _VIEWS, 2),
    "middlebury2014": _float_maps("Toy{number}-perfect", "Toy{number}-perfect", False),
    "middlebury2021": _float_maps("toy{number}", "toy{number}", False),
    "middlebury_v3": _float_maps("trainingH/Toy{number}", "trainingH/Toy{number}", True),
    "eth3d": _float_maps("two_view_training/toy_{number}l", "two_view_training_gt/toy_{number}l", True),
    "sintel": _sintel,
    "instereo2k": _instereo2k,
    "drivingstereo": _drivingstereo,
    "vkitti2": _vkitti2,
    "tartanair": _tartanair,
    "folder": _folder,
}
