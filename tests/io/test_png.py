# SPDX-License-Identifier: Apache-2.0
"""The fast way through PNG gives what Pillow gives, and never half an image."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from vision3d.errors import DisparityError, ImageError
from vision3d.io.disparity import read_disparity
from vision3d.io.images import read_image
from vision3d.io.png import decode_png

GENERATOR = np.random.default_rng(0)
ARRAYS = {
    "grey": GENERATOR.integers(0, 256, (7, 9), dtype=np.uint8),
    "rgb": GENERATOR.integers(0, 256, (7, 9, 3), dtype=np.uint8),
    "grey16": GENERATOR.integers(0, 65536, (7, 9), dtype=np.uint16),
}


def encode(array: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG", **options)  # type: ignore[arg-type]
    return buffer.getvalue()


@pytest.mark.parametrize("name", ARRAYS)
def test_values_are_those_of_pillow(name: str) -> None:
    decoded = decode_png(encode(ARRAYS[name]))
    assert decoded is not None
    np.testing.assert_array_equal(decoded, ARRAYS[name])


def test_what_is_not_plain_is_left_to_pillow(tmp_path: Path) -> None:
    rgba = GENERATOR.integers(0, 256, (7, 9, 4), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", "x")
    jpeg = io.BytesIO()
    Image.fromarray(ARRAYS["rgb"]).save(jpeg, format="JPEG")
    turned = encode(ARRAYS["rgb"], exif=exif)
    for content in (encode(rgba), turned, encode(ARRAYS["rgb"], pnginfo=text), jpeg.getvalue(), b"", b"\x89PNG"):
        assert decode_png(content) is None
    (tmp_path / "a.png").write_bytes(turned)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), ARRAYS["rgb"][::-1, ::-1])


@pytest.mark.parametrize("name", ARRAYS)
def test_every_cut_and_every_changed_byte(name: str, tmp_path: Path) -> None:
    content = encode(ARRAYS[name])
    file = tmp_path / "a.png"
    read, error = (read_disparity, DisparityError) if name == "grey16" else (read_image, ImageError)
    for end in range(1, len(content)):
        assert decode_png(content[:end]) is None
    for end in range(1, len(content), 9):
        file.write_bytes(content[:end])
        with pytest.raises(error):
            read(file)
    for place in range(len(content)):
        changed = content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]
        assert decode_png(changed) is None


def test_short_data_with_right_check_sums(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(9) for _ in range(3))  # 3 of 7 rows
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 7, 8, 0, 0, 0, 0))
    file = tmp_path / "a.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    with pytest.raises(ImageError, match="truncated or damaged"):
        read_image(file)


def test_unknown_codes_of_maps(tmp_path: Path) -> None:
    codes = ARRAYS["grey16"].copy()
    codes[2:4] = 0
    (tmp_path / "a.png").write_bytes(encode(codes))
    got = read_disparity(tmp_path / "a.png")
    np.testing.assert_array_equal(np.isnan(got), codes == 0)
    np.testing.assert_array_equal(got[codes > 0], codes[codes > 0].astype(np.float32) / 256)
