# SPDX-License-Identifier: Apache-2.0
"""A fast way through plain PNG files: chunk check sums in one pass, then OpenCV's decoder (faster than Pillow's)."""

from __future__ import annotations

import os
import zlib

import numpy as np

from vision3d.errors import FileFormatError, ImageError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MAX_PIXELS = 178_000_000
_HARMLESS = (b"IDAT", b"pHYs", b"tIME", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"bKGD", b"sBIT", b"tEXt", b"zTXt", b"iTXt")
_ORIENTATION_TEXTS = (b"Raw profile type", b"XML:com.adobe.xmp")


def decode_png(
    content: bytes, path: str | os.PathLike[str] = "PNG", error: type[FileFormatError] = ImageError
) -> np.ndarray | None:
    """Decode a plain PNG: grey of 8 or 16 bits, or RGB of 8 bits, without palette, transparency or orientation.

    Every chunk must be there with the right check sum, up to the end mark, so a truncated or damaged file is never
    decoded in part.

    Returns:
        [H, W] uint8 or uint16, or [H, W, 3] uint8 RGB; None if the file is not such a PNG (damaged ones included:
        Pillow then says what is wrong).

    Raises:
        FileFormatError: (the given class) the check sums are right, but rows are missing; Pillow would fill them up.
    """
    import cv2

    header = _plain_header(content)
    if header is None:
        return None
    width, height, depth, color = header
    flag = cv2.IMREAD_UNCHANGED if color == 0 else cv2.IMREAD_COLOR
    try:
        pixels = cv2.imdecode(np.frombuffer(content, dtype=np.uint8), flag)
    except cv2.error:
        pixels = None
    if pixels is None:
        raise error(f"{path}: the image is truncated or damaged (rows are missing); copy or write the file again")
    shape = (height, width) if color == 0 else (height, width, 3)
    if pixels.shape != shape or pixels.dtype != (np.uint8 if depth == 8 else np.uint16):
        return None
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels) if color else pixels


def _plain_header(content: bytes) -> tuple[int, int, int, int] | None:
    """(width, height, bit depth, colour type) of an intact plain PNG, else None."""
    if content[:8] != _SIGNATURE or content[12:16] != b"IHDR" or len(content) < 57:
        return None
    view, place, kind = memoryview(content), 8, b""
    while kind != b"IEND":
        length = int.from_bytes(content[place : place + 4], "big")
        kind, end = content[place + 4 : place + 8], place + 8 + length
        if end + 4 > len(content) or zlib.crc32(view[place + 4 : end]) != int.from_bytes(content[end : end + 4], "big"):
            return None
        if place > 8 and kind not in (*_HARMLESS, b"IEND"):
            return None
        oriented = content[place + 8 : place + 40].startswith(_ORIENTATION_TEXTS)
        if oriented and kind in (b"tEXt", b"zTXt", b"iTXt"):
            return None
        place = end + 4
    width, height = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    depth, color, *methods = content[24:29]
    plain = (color == 0 and depth in (8, 16)) or (color == 2 and depth == 8)
    if not plain or any(methods) or not 0 < width * height <= _MAX_PIXELS:
        return None
    return width, height, depth, color
