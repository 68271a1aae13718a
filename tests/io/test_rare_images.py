# SPDX-License-Identifier: Apache-2.0
"""Images that Pillow does not read: HDR, floating-point TIFF, PAM, JPEG 2000."""

from __future__ import annotations

import struct
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, features

from vision3d.errors import ImageError
from vision3d.io.images import count_channels, read_image

RGB = np.random.default_rng(0).integers(0, 256, (40, 52, 3), dtype=np.uint8)
UNIT = RGB.astype(np.float32) / 255


@pytest.mark.parametrize("suffix", ["tiff", "hdr", "pam"])
def test_color_files_of_opencv(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.{suffix}"
    cv2.imwrite(str(file), (RGB if suffix == "pam" else UNIT)[..., ::-1])
    image = read_image(file)
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous
    assert np.abs(image.astype(int) - RGB).max() <= (2 if suffix == "hdr" else 0)  # HDR: 8-bit mantissa
    assert count_channels(file) == 3


@pytest.mark.parametrize("compression", ["raw", "tiff_deflate"])
def test_grey_float_tiff_is_clipped(tmp_path: Path, compression: str) -> None:
    values = UNIT[..., 0] * 1.5 - 0.25
    Image.fromarray(values).save(tmp_path / "a.tiff", compression=compression)
    expected = np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)
    np.testing.assert_array_equal(read_image(tmp_path / "a.tiff"), np.dstack([expected] * 3))
    assert count_channels(tmp_path / "a.tiff") == 1


@pytest.mark.parametrize(
    ("kind", "depth", "top"), [("RGB", 3, 255), ("RGB_ALPHA", 4, 255), ("RGB", 3, 65535), ("RGB", 3, 1023)]
)
def test_pam_of_netpbm(tmp_path: Path, kind: str, depth: int, top: int) -> None:
    header = f"P7\nWIDTH 52\nHEIGHT 40\nDEPTH {depth}\nMAXVAL {top}\nTUPLTYPE {kind}\nENDHDR\n".encode()
    codes = np.rint(np.dstack([UNIT, UNIT[..., :1]])[..., :depth] * top).astype("u1" if top < 256 else ">u2")
    (tmp_path / "a.pam").write_bytes(header + codes.tobytes())
    np.testing.assert_array_equal(read_image(tmp_path / "a.pam"), RGB)


def test_jpeg_2000(tmp_path: Path) -> None:
    if not features.check("jpg_2000"):
        pytest.skip("Pillow has no JPEG 2000")
    Image.fromarray(RGB).save(tmp_path / "a.jp2", irreversible=False)
    np.testing.assert_array_equal(read_image(tmp_path / "a.jp2"), RGB)


@pytest.mark.parametrize("suffix", ["tiff", "hdr", "pam", "first.tiff"])
@pytest.mark.parametrize("keep", [0.3, 0.9, 0.99])
def test_truncated_files_are_errors(
    tmp_path: Path, suffix: str, keep: float, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"a.{suffix}"
    if suffix == "first.tiff":  # the directory stands before the pixels
        Image.fromarray(UNIT[..., 0]).save(file)
    else:
        cv2.imwrite(str(file), RGB if suffix == "pam" else UNIT)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(ImageError, match=r"a\..*; "):
        read_image(file)
    assert capfd.readouterr().err == ""


def test_values_of_unknown_range_are_refused(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.tiff"), RGB.astype(np.float32))
    with pytest.raises(ImageError, match="above 1; scale"):
        read_image(tmp_path / "a.tiff")
    cv2.imwrite(str(tmp_path / "b.tiff"), np.full_like(UNIT, np.nan))
    with pytest.raises(ImageError, match="not finite"):
        read_image(tmp_path / "b.tiff")


def test_absurd_sizes_are_refused_before_allocation(tmp_path: Path) -> None:
    (tmp_path / "a.hdr").write_bytes(b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 60000 +X 60000\n" + bytes(100))
    (tmp_path / "b.pam").write_bytes(b"P7\nWIDTH 60000\nHEIGHT 60000\nDEPTH 3\nMAXVAL 255\nENDHDR\n")
    cv2.imwrite(str(tmp_path / "c.tiff"), UNIT)
    content = (tmp_path / "c.tiff").read_bytes()
    for tag, side in ((256, 52), (257, 40)):
        old, new = (struct.pack("<HHIHH", tag, 3, 1, value, 0) for value in (side, 60000))
        assert content.count(old) == 1
        content = content.replace(old, new)
    (tmp_path / "c.tiff").write_bytes(content)
    for name in ("a.hdr", "b.pam", "c.tiff"):
        with pytest.raises(ImageError, match="claims 60000x60000"):
            read_image(tmp_path / name)
