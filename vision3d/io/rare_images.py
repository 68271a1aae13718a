# SPDX-License-Identifier: Apache-2.0
"""Image files that Pillow does not read: Radiance HDR, floating-point TIFF and JPEG 2000 (by OpenCV), and PAM."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from vision3d.errors import ImageError

_TIFF = (b"II*\0", b"MM\0*")
_MAGIC = (b"#?RADIANCE", b"#?RGBE", *_TIFF, b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_MAX_PIXELS = 178_000_000


def decode_rare(content: bytes, path: str | os.PathLike[str]) -> np.ndarray | None:
    """Decode a file that Pillow does not read, whole or not at all.

    Returns:
        [H, W] or [H, W, 3] RGB: uint8, uint16, or float32 clipped to [0, 1]; None for formats not listed above.

    Raises:
        ImageError: truncated, damaged, too large, of another pixel type, or mostly above 1 (no known range).
    """
    if content.startswith(b"P7\n"):
        return _decode_pam(content, path)
    if not content.startswith(_MAGIC):
        return None
    import cv2

    _check_size(*_stated_size(content), path)
    try:
        with _quiet():
            pixels = cv2.imdecode(np.frombuffer(content, dtype=np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        pixels = None
    if pixels is None or pixels.size == 0:
        raise ImageError(f"{path}: the image is truncated, damaged or of a rare kind; write it again as PNG")
    if pixels.ndim == 3:
        if pixels.shape[2] not in (1, 3, 4):
            raise ImageError(f"{path}: the image has {pixels.shape[2]} channels; write it again as RGB")
        pixels = pixels[..., 0] if pixels.shape[2] == 1 else pixels[..., 2::-1]
    return _known_range(pixels, path)


def _known_range(pixels: np.ndarray, path: str | os.PathLike[str]) -> np.ndarray:
    if pixels.dtype in (np.uint8, np.uint16):
        return np.ascontiguousarray(pixels)
    if not np.issubdtype(pixels.dtype, np.floating):
        raise ImageError(
            f"{path}: pixels of the type {pixels.dtype} have no known range; convert to 8 or 16 bits first"
        )
    if not np.isfinite(pixels).all():
        raise ImageError(f"{path}: holds pixels that are not finite; correct the image")
    if np.median(pixels) > 1:
        raise ImageError(f"{path}: most floating-point values are above 1; scale them to [0, 1] first")
    return np.ascontiguousarray(np.clip(pixels, 0, 1), dtype=np.float32)


@contextmanager
def _quiet() -> Iterator[None]:
    """OpenCV's own lines about damaged files stay away from stderr: the error says it."""
    import cv2

    logging = cv2.utils.logging
    level = logging.getLogLevel()
    logging.setLogLevel(logging.LOG_LEVEL_SILENT)
    try:
        yield
    finally:
        logging.setLogLevel(level)


def _check_size(width: int, height: int, path: str | os.PathLike[str]) -> None:
    if width * height > _MAX_PIXELS:
        raise ImageError(
            f"{path}: the header claims {width}x{height} pixels, at most {_MAX_PIXELS // 10**6} megapixels are read; "
            "reduce the image first"
        )


def _stated_size(content: bytes) -> tuple[int, int]:
    """(width, height) of the header; (0, 0) where it is not found, and OpenCV's own limits hold."""
    if content.startswith(b"#?"):
        found = re.search(rb"\n[-+]([XY]) +(\d{1,9}) +[-+][XY] +(\d{1,9})", content[:65536])
        return (int(found[2]), int(found[3])) if found else (0, 0)
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(content[:4])
    sides = {256: 0, 257: 0}
    try:
        if order is not None:
            (start,) = struct.unpack_from(f"{order}I", content, 4)
            (count,) = struct.unpack_from(f"{order}H", content, start)
            for number in range(count):
                tag, kind = struct.unpack_from(f"{order}HH", content, start + 2 + 12 * number)
                if tag in sides:
                    code = "H" if kind == 3 else "I"
                    (sides[tag],) = struct.unpack_from(order + code, content, start + 10 + 12 * number)
    except struct.error:
        return 0, 0
    return sides[256], sides[257]


def _decode_pam(content: bytes, path: str | os.PathLike[str]) -> np.ndarray:
    """Netpbm's PAM: rows of tuples of DEPTH numbers up to MAXVAL, two bytes (big end first) above 255.

    Without TUPLTYPE colours are blue first, as OpenCV writes (its writer alone leaves the row out).
    """
    header, found, data = content.partition(b"\nENDHDR\n")
    rows = dict(re.findall(rb"^(\w+)[ \t]+(.+?)[ \t\r]*$", header[:4096], re.MULTILINE))
    try:
        width, height, depth, top = (int(rows[key]) for key in (b"WIDTH", b"HEIGHT", b"DEPTH", b"MAXVAL"))
    except (KeyError, ValueError):
        found = b""
    if not found or min(width, height) < 1 or not 1 <= depth <= 4 or not 1 <= top <= 65535:
        raise ImageError(f"{path}: the PAM header is truncated or damaged; write the file again")
    _check_size(width, height, path)
    kind = np.dtype(np.uint8 if top < 256 else ">u2")
    expected = width * height * depth * kind.itemsize
    if len(data) < expected:
        raise ImageError(
            f"{path}: {len(data)} bytes of pixels, {expected} expected; the file is truncated, copy it again"
        )
    pixels = np.frombuffer(data, dtype=kind, count=width * height * depth).reshape(height, width, depth)
    if top not in (255, 65535):
        pixels = np.minimum(pixels.astype(np.float32) / top, 1)
    else:
        pixels = pixels.astype(kind.newbyteorder("="))
    if depth < 3:
        return np.ascontiguousarray(pixels[..., 0])
    return np.ascontiguousarray(pixels[..., :3] if b"TUPLTYPE" in rows else pixels[..., 2::-1])
