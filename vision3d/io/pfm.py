# SPDX-License-Identifier: Apache-2.0
"""Portable float maps (http://www.pauldebevec.com/Research/HDR/PFM/): header ``Pf`` or ``PF``, width, height, scale."""

from __future__ import annotations

import os
import re

import numpy as np

from vision3d.errors import DisparityError, InputError
from vision3d.io.files import atomic_write, read_bytes

_MAX_VALUES = 600_000_000
_GAP = rb"(?:[ \t\r\n\v\f]|#[^\r\n]*[\r\n])+"
_HEADER = re.compile(rb"(P[Ff])" + _GAP + rb"(\S+)" + _GAP + rb"(\S+)" + _GAP + rb"(\S+)(?=\s)")


def read_pfm(path: str | os.PathLike[str]) -> np.ndarray:
    """Read a PFM file as float32, top row first: [H, W] (``Pf``) or [H, W, 3] (``PF``).

    Both byte orders are read (a negative scale means little endian); the magnitude of the scale is ignored.
    NaN and infinity are returned as they are.

    Raises:
        DisparityError: missing or empty file, illegal header, absurd size, or the wrong amount of data.
    """
    content = read_bytes(path, DisparityError, "a PFM map")
    header = _HEADER.match(content[:65536])
    if header is None:
        if content[:2] not in (b"Pf", b"PF"):
            raise DisparityError(
                f"{path}: not a PFM file, it starts with {content[:2]!r} instead of Pf or PF; give the PFM file"
            )
        raise DisparityError(f"{path}: the PFM header is incomplete (width, height and scale expected); write it again")
    magic, width_text, height_text, scale_text = header.groups()
    try:
        width, height, scale = int(width_text), int(height_text), float(scale_text)
    except ValueError as problem:
        raise DisparityError(
            f"{path}: the PFM header is illegal ({problem}); width, height and scale expected"
        ) from problem
    channels = 3 if magic == b"PF" else 1
    if width <= 0 or height <= 0 or width * height * channels > _MAX_VALUES:
        raise DisparityError(f"{path}: the PFM header claims the absurd size {width}x{height}; the file is damaged")
    if scale == 0 or not np.isfinite(scale):
        raise DisparityError(f"{path}: the PFM scale is {scale}; a number other than 0 is expected (-1: little endian)")
    # One white-space byte ends the header, or several (two-byte line end, trailing blanks); the data are what is left.
    expected = width * height * channels * 4
    start = len(content) - expected
    if start <= header.end() or content[header.end() : start].strip():
        found = max(len(content) - header.end() - 1, 0)
        raise DisparityError(
            f"{path}: {found} bytes of data, {expected} expected for {width}x{height}x{channels} float32; the file is "
            "truncated or damaged, copy it again"
        )
    values = np.frombuffer(content, dtype="<f4" if scale < 0 else ">f4", offset=start)
    shape = (height, width, 3) if channels == 3 else (height, width)
    return np.ascontiguousarray(values.reshape(shape)[::-1], dtype=np.float32)


def write_pfm(path: str | os.PathLike[str], array: np.ndarray, *, little_endian: bool = True) -> None:
    """Write [H, W], [H, W, 1] or [H, W, 3] (top row first) as a float32 PFM file with scale 1.

    Raises:
        InputError: another shape, or an empty array.
        OutputError: the place is not writable.
    """
    values = np.asarray(array)
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.size == 0 or values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] != 3):
        raise InputError(f"a PFM map must be HxW, HxWx1 or HxWx3 and not empty, got shape {np.shape(array)}")
    magic = "PF" if values.ndim == 3 else "Pf"
    scale = "-1.0" if little_endian else "1.0"
    header = f"{magic}\n{values.shape[1]} {values.shape[0]}\n{scale}\n".encode("ascii")
    with atomic_write(path) as temporary:
        temporary.write_bytes(header + values[::-1].astype("<f4" if little_endian else ">f4").tobytes())
