# SPDX-License-Identifier: Apache-2.0
"""Encodings of disparity, depth, masks and normals that only one or few data sets use."""

from __future__ import annotations

import os
from functools import partial

import numpy as np

from vision3d.errors import DisparityError, FileFormatError, ImageError
from vision3d.geometry.normals import UNIT_TOLERANCE
from vision3d.io.disparity import read_disparity
from vision3d.io.exr import read_exr
from vision3d.io.images import load_pil
from vision3d.types import Camera, StereoRig

PathLike = str | os.PathLike[str]
_SINTEL_WEIGHTS = np.array([4.0, 1 / 64, 1 / 16384])


def codes16(path: PathLike, divide_by: float) -> np.ndarray:
    """[H, W] pixels of a 16-bit PNG with ``divide_by`` codes a pixel and 0 for unknown."""
    return read_disparity(path, "uint16", divide_by)


def codes8(path: PathLike, divide_by: float) -> np.ndarray:
    """[H, W] pixels of an 8-bit picture with ``divide_by`` codes a pixel and 0 for unknown."""
    return read_disparity(path, "uint8", divide_by)


def read_sintel_disparity(path: PathLike) -> np.ndarray:
    """[H, W] pixels of a Sintel disparity picture: ``d = 4 R + G / 64 + B / 16384`` (its development kit).

    Raises:
        DisparityError: not an RGB picture.
    """
    image = load_pil(path, DisparityError)
    if image.mode not in ("RGB", "RGBA"):
        raise DisparityError(f"{path}: a picture of mode {image.mode}, 8-bit RGB is expected; download it again")
    return (np.asarray(image)[..., :3].astype(np.float64) @ _SINTEL_WEIGHTS).astype(np.float32)


def encode_sintel_disparity(disparity: np.ndarray) -> np.ndarray:
    """[H, W, 3] uint8 picture of [H, W] pixels below 1024; unknown pixels become 0."""
    codes = np.rint(np.nan_to_num(disparity).astype(np.float64) * 16384).astype(np.int64)
    return np.stack([codes >> 16, (codes >> 8) & 255, codes & 255], axis=-1).astype(np.uint8)


def read_grey(path: PathLike) -> np.ndarray:
    """[H, W] uint8 of a mask picture.

    Raises:
        ImageError: the file cannot be used.
    """
    image = load_pil(path)
    return np.asarray(image if image.mode in ("L", "P") else image.convert("L")).astype(np.uint8)


def read_not_visible(path: PathLike) -> np.ndarray:
    """[H, W] bool occlusion of a Middlebury mask: 255 both views see the pixel, 128 only one does, 0 no truth."""
    return read_grey(path) == 128


def read_nonzero(path: PathLike) -> np.ndarray:
    """[H, W] bool: where the mask is not 0."""
    return read_grey(path) > 0


def read_either(path: PathLike, other: PathLike) -> np.ndarray:
    """[H, W] bool: where one of two masks is not 0.

    Raises:
        ImageError: the masks have different sizes.
    """
    first, second = read_nonzero(path), read_nonzero(other)
    if first.shape != second.shape:
        raise ImageError(f"{other}: the mask is of another size than {path}; replace it")
    return first | second


def read_known_only_in(path: PathLike, other: PathLike) -> np.ndarray:
    """[H, W] bool occlusion of KITTI: pixels with truth in the map of all pixels, but not in the non-occluded one.

    Raises:
        DisparityError: the maps have different sizes.
    """
    every, visible = read_disparity(path), read_disparity(other)
    if every.shape != visible.shape:
        raise DisparityError(f"{other}: the map is of another size than {path}; replace it")
    return np.isfinite(every) & ~np.isfinite(visible)


def depth_png_to_disparity(path: PathLike, focal_times_baseline: float) -> np.ndarray:
    """[H, W] pixels of a 16-bit PNG of centimetres; 0 and the clipped value 65535 are unknown."""
    centimetres = read_disparity(path, "uint16", 1)
    centimetres[centimetres >= 65535] = np.nan
    return np.float32(focal_times_baseline * 100) / centimetres


def depth_npy_to_disparity(path: PathLike, focal_times_baseline: float) -> np.ndarray:
    """[H, W] pixels of a NumPy array of metres; depth that is not finite or not positive is unknown."""
    metres = read_disparity(path, "npy")
    metres[~(metres > 0)] = np.nan
    return np.float32(focal_times_baseline) / metres


def read_exr_disparity(path: PathLike) -> np.ndarray:
    """[H, W] pixels of the channel G (else Y, R, or the only one) of an OpenEXR file; values <= 0 are unknown.

    Raises:
        DisparityError: the file cannot be used, or several channels and none of these names.
    """
    channels = read_exr(path)
    name = next((name for name in ("G", "Y", "R") if name in channels), None)
    if name is None and len(channels) != 1:
        raise DisparityError(f"{path}: has the channels {', '.join(channels)}; one named G is needed")
    values = channels[name] if name is not None else next(iter(channels.values()))
    return np.where(np.isfinite(values) & (values > 0), values, np.float32(np.nan))


def read_exr_normals(path: PathLike) -> np.ndarray:
    """[H, W, 3] normals of the channels R, G, B = (n + 1) / 2; vectors with a part outside of [-1, 1] become NaN.

    Raises:
        DisparityError: the file cannot be used or lacks a channel, or holds plain vectors n.
    """
    channels = read_exr(path)
    if not {"R", "G", "B"} <= channels.keys():
        raise DisparityError(f"{path}: has the channels {', '.join(channels)}; R, G, B are needed")
    stored = np.stack([channels[name] for name in "RGB"], axis=-1)
    if _are_plain_vectors(stored):
        raise DisparityError(f"{path}: holds plain unit vectors n, but IRS stores (n + 1) / 2; encode them like that")
    normals = 2 * stored - 1
    normals[~(np.abs(normals) <= 1).all(axis=-1)] = np.nan
    return normals


def _are_plain_vectors(stored: np.ndarray) -> bool:
    """Whether most of [H, W, 3] has the length 1 and much of it a negative part, which (n + 1) / 2 never has."""
    known = stored[np.isfinite(stored).all(axis=-1) & (stored != 0).any(axis=-1)]
    if not len(known):
        return False
    unit = np.abs(np.linalg.norm(known, axis=-1) - 1) <= UNIT_TOLERANCE
    return bool(unit.mean() > 0.5 and (known < 0).any(axis=-1).mean() > 0.25)


def check_readable(path: PathLike, text: bytes) -> str:
    """Decode a list file.

    Raises:
        FileFormatError: the list is not UTF-8.
    """
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: not a UTF-8 text file; save the list as UTF-8") from error


def pinhole_rig(
    width: int, height: int, focal: float, baseline: float, center: tuple[float, float] | None = None
) -> StereoRig:
    """The rig of two equal cameras; ``center`` None is the middle of the image, ((W-1)/2, (H-1)/2)."""
    cx, cy = center or ((width - 1) / 2, (height - 1) / 2)
    camera = Camera(np.array([[focal, 0, cx], [0, focal, cy], [0, 0, 1]]), width=width, height=height)
    return StereoRig(camera, camera, baseline)


def fixed_rig(focal: float, baseline: float, center: tuple[float, float] | None = None) -> partial[StereoRig]:
    """The same rig for any size of image, as entries take it."""
    return partial(pinhole_rig, focal=focal, baseline=baseline, center=center)
