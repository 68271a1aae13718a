# SPDX-License-Identifier: Apache-2.0
"""Disparity and depth maps in the file formats of the field.

In arrays invalid pixels are NaN; each codec maps them to the code of its format (PFM: infinity, 16-bit PNG: 0).
"""

from __future__ import annotations

import io
import os
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from vision3d.errors import DisparityError, InputError, OutputError
from vision3d.io.files import atomic_write, read_bytes
from vision3d.io.images import load_pil
from vision3d.io.pfm import read_pfm, write_pfm
from vision3d.io.png import decode_png

_MAX_VALUES = 200_000_000
_KITTI_SCALE = 256.0
_PICTURES = (".png", ".pgm", ".tif", ".tiff", ".bmp", ".webp")


def read_disparity(
    path: str | os.PathLike[str],
    encoding: str | None = None,
    divide_by: float | None = None,
    invalid: str | float | None = None,
) -> np.ndarray:
    """Read a disparity map as [H, W] float32, pixels, positive, NaN where unknown.

    Args:
        path: the file.
        encoding: ``pfm``, ``uint16`` (KITTI PNG, 256 codes a pixel), ``uint8`` (needs ``divide_by``), ``float`` (TIFF),
            ``npy``, ``npz`` or ``npz:KEY``; None finds it from the suffix and the bit depth.
        divide_by: codes a pixel; None: 256 for 16-bit pictures, 1 for floating-point formats.
        invalid: code of unknown pixels before the division; None: 0 for 8- and 16-bit pictures, else nothing;
            ``"none"``: no code. NaN and infinity are always unknown.

    Raises:
        DisparityError: the file cannot be used, 8-bit codes come without ``divide_by``, or values are negative.
    """
    kind = encoding or _guess_encoding(Path(path))
    if divide_by is not None and not divide_by > 0:
        raise InputError(f"divide_by must be a positive number, got {divide_by}")
    values, default_scale, default_invalid = _decode(path, kind, divide_by)
    code = default_invalid if invalid is None else _invalid_code(invalid)
    disparity = values.astype(np.float32, copy=not values.flags.writeable)
    unknown = None if code is None else disparity == np.float32(code)
    scale = np.float32(divide_by or default_scale)
    if scale != 1:
        np.divide(disparity, scale, out=disparity)
    if values.dtype.kind != "u" and not _finite_and_positive(disparity):
        np.copyto(disparity, np.float32(np.nan), where=~np.isfinite(disparity))
        if unknown is not None:
            np.copyto(disparity, np.float32(np.nan), where=unknown)
        _refuse_negative(path, disparity)
    elif unknown is not None:
        np.copyto(disparity, np.float32(np.nan), where=unknown)
    return disparity


def _finite_and_positive(values: np.ndarray) -> bool:
    """Whether float32 values are all finite and not negative, in one pass: their bits are below those of infinity."""
    return bool(np.ascontiguousarray(values).view(np.uint32).max() < 0x7F800000)


def write_disparity(path: str | os.PathLike[str], disparity: np.ndarray) -> None:
    """Write [H, W] pixels (NaN: unknown) by suffix: ``.pfm`` (infinity), ``.png`` (KITTI, 16 bit), ``.npy`` (NaN).

    Values below zero, which a network may give for points near infinity, are written as zero.

    Raises:
        InputError: not a map, or values too large for the format.
        OutputError: another suffix, or the place is not writable.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".png":
        write_disparity_png16(path, disparity)
        return
    values = np.maximum(_as_map(disparity), 0, dtype=np.float32)
    if suffix == ".pfm":
        write_pfm(path, np.where(np.isfinite(values), values, np.inf))
    elif suffix == ".npy":
        values[~np.isfinite(values)] = np.nan
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.save(file, values)
    else:
        raise OutputError(f"{path}: no disparity format has the suffix '{suffix}'; use .pfm, .png or .npy")


def write_disparity_png16(path: str | os.PathLike[str], disparity: np.ndarray) -> None:
    """Write [H, W] pixels as a KITTI PNG: ``round(256 * d)``, at least 1 for known pixels, 0 for unknown ones.

    Raises:
        InputError: not a map, or a disparity above 65535/256 = 255.996.
        OutputError: the place is not writable.
    """
    values = _as_map(disparity)
    known = np.isfinite(values)
    codes = np.rint(np.where(known, values, 0).astype(np.float64) * _KITTI_SCALE)
    if codes.max() > 65535:
        raise InputError(
            f"{path}: disparity {codes.max() / _KITTI_SCALE:.1f} exceeds 255.996, the most of a KITTI PNG; write .pfm"
        )
    _write_png16(path, np.where(known, np.maximum(codes, 1), 0))


def read_depth_png16(path: str | os.PathLike[str]) -> np.ndarray:
    """Read a 16-bit PNG of millimetres (0: unknown) as [H, W] float32 metres, NaN where unknown.

    Raises:
        DisparityError: the file cannot be used or is not a 16-bit grey picture.
    """
    codes = _read_picture(path, "uint16").astype(np.float32)
    return np.where(codes > 0, codes / np.float32(1000), np.float32(np.nan))


def write_depth_png16(path: str | os.PathLike[str], depth: np.ndarray) -> None:
    """Write [H, W] metres as a 16-bit PNG of millimetres; unknown depth and depth above 65.535 m become 0.

    Raises:
        InputError: not a map.
        OutputError: the place is not writable.
    """
    values = _as_map(depth)
    codes = np.rint(np.where(np.isfinite(values), values, 0).astype(np.float64) * 1000)
    _write_png16(path, np.where((codes >= 1) & (codes <= 65535), codes, 0))


def _guess_encoding(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix in (".pfm", ".npy", ".npz"):
        return suffix[1:]
    if suffix in _PICTURES:
        return "picture"
    if suffix in (".jpg", ".jpeg"):
        raise DisparityError(f"{path}: JPEG changes values and cannot hold a disparity map; give the original file")
    raise DisparityError(f"{path}: unknown kind of disparity file; use .pfm, .png, .pgm, .tif, .npy or .npz")


def _decode(path: str | os.PathLike[str], kind: str, divide_by: float | None) -> tuple[np.ndarray, float, float | None]:
    """Raw values [H, W], the format's codes a pixel, and its code of unknown pixels."""
    if kind == "pfm":
        values = read_pfm(path)
        if values.ndim == 3:
            raise DisparityError(f"{path}: a colour PFM with 3 channels is no disparity map; write it with 1 channel")
        return values, 1.0, None
    if kind == "npy":
        return _read_npy(path, read_bytes(path, DisparityError, "a NumPy array")), 1.0, None
    if kind == "npz" or kind.startswith("npz:"):
        return _read_npz(path, kind[4:]), 1.0, None
    if kind not in ("picture", "uint8", "uint16", "float"):
        raise DisparityError(
            f"{path}: unknown disparity encoding '{kind}'; use pfm, uint16, uint8, float, npy, npz or npz:KEY"
        )
    values = _read_picture(path, kind)
    if values.dtype == np.uint8:
        if divide_by is None:
            raise DisparityError(
                f"{path}: an 8-bit map does not say how many codes make one pixel; pass divide_by "
                "(Middlebury full size: 1, half: 2, third: 3, quarter: 4)"
            )
        return values, 1.0, 0.0
    return (values, 1.0, None) if values.dtype == np.float32 else (values, _KITTI_SCALE, 0.0)


def _read_picture(path: str | os.PathLike[str], kind: str) -> np.ndarray:
    """[H, W] uint8, uint16 or float32 of a one-channel picture."""
    content = read_bytes(path, DisparityError, "an image")
    pixels = decode_png(content, path, DisparityError) if kind in ("picture", "uint8", "uint16") else None
    if pixels is not None and pixels.ndim == 2 and kind in ("picture", pixels.dtype.name):
        return pixels
    image = load_pil(path, DisparityError, content)
    if image.mode in ("P", "1") or len(image.getbands()) != 1:
        raise DisparityError(
            f"{path}: a picture of mode {image.mode} is a rendering, not a disparity map; one grey channel is expected"
        )
    array = np.asarray(image)
    if array.dtype == np.int32:  # Pillow decodes 16-bit PGM to 32 bits
        array = array.astype(np.uint16) if array.min() >= 0 and array.max() <= 65535 else array.astype(np.float32)
    found = {"uint8": "uint8", "uint16": "uint16", "float32": "float"}.get(array.dtype.newbyteorder("=").name)
    if found is None or kind not in ("picture", found):
        raise DisparityError(f"{path}: the picture holds {array.dtype} values, the encoding '{kind}' was expected")
    return array.astype(array.dtype.newbyteorder("="))


def _read_npz(path: str | os.PathLike[str], key: str) -> np.ndarray:
    content = read_bytes(path, DisparityError, "an npz archive")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name[:-4] for name in archive.namelist() if name.endswith(".npy")]
            if not key and len(names) != 1:
                raise DisparityError(f"{path}: holds the arrays {', '.join(names)}; say which: encoding='npz:NAME'")
            name = key or names[0]
            if name not in names:
                raise DisparityError(f"{path}: holds no array '{name}'; it has {', '.join(names) or 'none'}")
            with archive.open(name + ".npy") as member:
                _check_npy_header(path, member)
            return _read_npy(path, archive.read(name + ".npy"))
    except (
        zipfile.BadZipFile,
        OSError,
        EOFError,
        ValueError,
        NotImplementedError,
        RuntimeError,
        zlib.error,
    ) as problem:
        if isinstance(problem, DisparityError):
            raise
        raise DisparityError(f"{path}: not an npz archive, or truncated ({problem}); write the file again") from problem


def _read_npy(path: str | os.PathLike[str], content: bytes) -> np.ndarray:
    """A two-dimensional real array from the bytes of an npy file."""
    count = _check_npy_header(path, io.BytesIO(content))
    try:
        if len(content) < count:
            raise ValueError(f"{len(content)} bytes, at least {count} expected")
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError) as problem:
        raise DisparityError(
            f"{path}: the NumPy array is truncated or damaged ({problem}); write it again"
        ) from problem
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim != 2 or array.size == 0:
        raise DisparityError(f"{path}: the array has shape {array.shape}, a map HxW is expected")
    return array


def _check_npy_header(path: str | os.PathLike[str], file: Any) -> int:
    """Refuse illegal or absurd headers before memory is allocated; return the bytes of data that they announce."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except (ValueError, EOFError, SyntaxError, TypeError, LookupError, tokenize.TokenError) as problem:
        reason = " ".join(str(problem).split())
        raise DisparityError(f"{path}: not a NumPy array ({reason}); write it with numpy.save") from problem
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if dtype.kind not in "fiu" or not 0 <= count <= _MAX_VALUES:
        raise DisparityError(f"{path}: an array of {dtype} and shape {shape} is no disparity map; real HxW is expected")
    return count * dtype.itemsize


def _invalid_code(invalid: str | float) -> float | None:
    if isinstance(invalid, str) and invalid.lower() in ("none", "inf", "nan"):
        return None
    try:
        return float(invalid)
    except ValueError as problem:
        raise InputError(f"invalid must be a number, 'inf', 'nan' or 'none', got '{invalid}'") from problem


def _refuse_negative(path: str | os.PathLike[str], disparity: np.ndarray) -> None:
    known = disparity[np.isfinite(disparity)]
    if known.size == 0 or known.min() >= 0:
        return
    if known.max() <= 0:
        raise DisparityError(
            f"{path}: all disparities are negative, the sign is flipped: positive values with x_right = x_left - d are "
            "expected; negate the map"
        )
    raise DisparityError(
        f"{path}: {int((known < 0).sum())} disparities are negative (least {known.min():.4g}), positive values are "
        "expected; mark unknown pixels as NaN, infinity or the format's own code"
    )


def _as_map(values: np.ndarray) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 2 or array.size == 0 or array.dtype.kind not in "fiu":
        raise InputError(f"a map of real numbers HxW is expected, got {array.dtype} of shape {array.shape}")
    return array


def _write_png16(path: str | os.PathLike[str], codes: np.ndarray) -> None:
    from PIL import Image

    picture = Image.fromarray(codes.astype(np.uint16))
    with atomic_write(path) as temporary:
        picture.save(temporary, format="PNG")
