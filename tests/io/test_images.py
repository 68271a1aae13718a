# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from vision3d.errors import ImageError, InputError, OutputError
from vision3d.io.images import as_image, read_image, write_image

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (23, 31, 3), dtype=np.uint8)
RGB16 = RNG.integers(0, 65536, (23, 31, 3), dtype=np.uint16)


@pytest.mark.parametrize("suffix", ["png", "jpg", "ppm", "tiff", "bmp", "webp"])
def test_color_formats_agree_with_opencv(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.{suffix}"
    cv2.imwrite(str(file), RGB[..., ::-1])
    image = read_image(file)
    assert image.shape == RGB.shape
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous
    assert image.flags.writeable
    reference = cv2.imread(str(file))[..., ::-1]
    assert np.abs(image.astype(int) - reference).max() <= 1
    if suffix not in ("jpg", "webp"):
        np.testing.assert_array_equal(image, RGB)


@pytest.mark.parametrize("suffix", ["png", "jpg", "pgm", "tiff", "bmp"])
def test_grey_is_replicated(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.{suffix}"
    cv2.imwrite(str(file), RGB[..., 0])
    np.testing.assert_array_equal(read_image(file), cv2.imread(str(file)))


@pytest.mark.parametrize("suffix", ["png", "tiff", "pgm"])
def test_sixteen_bit_grey(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.{suffix}"
    cv2.imwrite(str(file), RGB16[..., 0])
    expected = np.repeat((RGB16[..., :1] >> 8).astype(np.uint8), 3, axis=2)
    np.testing.assert_array_equal(read_image(file), expected)


@pytest.mark.parametrize("suffix", ["png", "tiff", "ppm"])
def test_sixteen_bit_color(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.{suffix}"
    cv2.imwrite(str(file), RGB16[..., ::-1])
    assert np.abs(read_image(file).astype(int) - (RGB16 >> 8)).max() <= 1


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "1"])
def test_other_modes(tmp_path: Path, mode: str) -> None:
    source = Image.fromarray(np.dstack([RGB, RGB[..., 0]])) if mode == "RGBA" else Image.fromarray(RGB).convert(mode)
    source.save(tmp_path / "a.png")
    image = read_image(tmp_path / "a.png")
    assert image.shape == RGB.shape
    if mode == "RGBA":
        np.testing.assert_array_equal(image, RGB)


def test_palette_with_transparency_warns_nobody(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    Image.fromarray(RGB).convert("P").save(tmp_path / "a.png", transparency=bytes(range(256)))
    assert read_image(tmp_path / "a.png").shape == RGB.shape
    assert not recwarn.list


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_agrees_with_opencv(tmp_path: Path, orientation: int) -> None:
    smooth = np.ascontiguousarray(cv2.resize(RGB, (48, 32), interpolation=cv2.INTER_CUBIC))
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(smooth).save(tmp_path / "a.jpg", exif=exif, quality=95)
    image = read_image(tmp_path / "a.jpg")
    assert image.shape == ((32, 48, 3) if orientation < 5 else (48, 32, 3))
    np.testing.assert_array_equal(image, cv2.imread(str(tmp_path / "a.jpg"))[..., ::-1])


@pytest.mark.parametrize("suffix", ["png", "jpg", "ppm", "tiff", "bmp", "webp"])
@pytest.mark.parametrize("keep", [0.0, 0.02, 0.5, 0.9, "last"])
def test_truncated_files_are_errors(
    tmp_path: Path, suffix: str, keep: float | str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"a.{suffix}"
    cv2.imwrite(str(file), RGB[..., ::-1])
    content = file.read_bytes()
    file.write_bytes(content[:-4] if keep == "last" else content[: int(len(content) * float(keep))])
    with pytest.raises(ImageError, match=r"a\.\w+: .*; ") as caught:
        read_image(file)
    assert "\n" not in str(caught.value)
    if suffix != "tiff":  # libtiff itself writes to stderr
        assert capfd.readouterr().err == ""


def test_damaged_pixels_of_a_png(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), RGB)
    content = bytearray((tmp_path / "a.png").read_bytes())
    content[len(content) // 2] ^= 255
    (tmp_path / "a.png").write_bytes(bytes(content))
    with pytest.raises(ImageError):
        read_image(tmp_path / "a.png")


def test_absurd_header_is_refused_before_allocation(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    for width, height in ((60000, 60000), (13360, 13360), (2**31 - 1, 2**31 - 1)):
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"x") + chunk(b"IEND", b"")
        (tmp_path / "a.png").write_bytes(content)
        with pytest.raises(ImageError, match="claims"):
            read_image(tmp_path / "a.png")


def test_not_images(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("hello, this is no image")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "noise.png").write_bytes(RNG.bytes(1000))
    Image.fromarray(RGB[..., 0].astype(np.float32)).save(tmp_path / "float.tiff")
    for name in ("text.png", "empty.png", "noise.png", "float.tiff", "missing.png", "."):
        with pytest.raises(ImageError) as caught:
            read_image(tmp_path / name)
        assert "\n" not in str(caught.value)
        assert str(tmp_path) in str(caught.value)


def test_as_image_of_arrays_and_pil() -> None:
    np.testing.assert_array_equal(as_image(RGB), RGB)
    np.testing.assert_array_equal(as_image(Image.fromarray(RGB)), RGB)
    np.testing.assert_array_equal(as_image(RGB[..., 0]), np.repeat(RGB[..., :1], 3, axis=2))
    np.testing.assert_array_equal(as_image(RGB[..., :1]), np.repeat(RGB[..., :1], 3, axis=2))
    np.testing.assert_array_equal(as_image(np.dstack([RGB, RGB[..., 0]])), RGB)
    np.testing.assert_array_equal(as_image(RGB.astype(np.float32) / 255), RGB)
    np.testing.assert_array_equal(as_image(RGB.astype(np.float64) / 255), RGB)
    np.testing.assert_array_equal(as_image(RGB16), (RGB16 >> 8).astype(np.uint8))
    np.testing.assert_array_equal(as_image(RGB[::-1, ::2]), RGB[::-1, ::2])
    assert as_image(np.zeros((1, 1))).shape == (1, 1, 3)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 20, 30)),
        np.zeros((20, 30, 2)),
        np.zeros((0, 30, 3)),
        np.zeros((1, 20, 30, 3)),
        np.full((4, 4), 255.0),
        np.full((4, 4), -1.0),
        np.full((4, 4), np.nan),
        np.zeros((4, 4), dtype=np.int64),
        np.zeros((4, 4), dtype=bool),
    ],
)
def test_as_image_refuses(array: np.ndarray) -> None:
    with pytest.raises(InputError):
        as_image(array)


def test_write_image(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", RGB)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), RGB)
    np.testing.assert_array_equal(cv2.imread(str(tmp_path / "a.png"))[..., ::-1], RGB)
    write_image(tmp_path / "a.jpg", RGB[..., 0])
    assert read_image(tmp_path / "a.jpg").shape == RGB.shape
    for name in ("a.xyz", "a", "missing/a.png"):
        with pytest.raises(OutputError):
            write_image(tmp_path / name, RGB)
