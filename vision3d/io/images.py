# SPDX-License-Identifier: Apache-2.0
"""Images of any common format as 8-bit RGB arrays."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from vision3d.errors import FileFormatError, ImageError, InputError, OutputError
from vision3d.io.files import atomic_write, read_bytes
from vision3d.io.png import decode_png
from vision3d.io.rare_images import decode_rare

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 178_000_000
"""Larger images are refused before memory is allocated (just below Pillow's own limit): such a header is nearly always
that of a damaged file."""

_PNG_END = b"IEND\xaeB`\x82"

# What decoders raise on damaged files.
_DECODER_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    EOFError,
    AttributeError,
    RuntimeError,
    struct.error,
    zlib.error,
)


def load_pil(
    path: str | os.PathLike[str], error: type[FileFormatError] = ImageError, content: bytes | None = None
) -> Image.Image:
    """Decode an image file completely, in its own mode; a truncated file is an error, never half an image.

    Args:
        path: the file.
        error: the exception class for files that cannot be used.
        content: the bytes of the file, if they have been read already.

    Raises:
        FileFormatError: (the given class) missing, empty, truncated, damaged, too large or not an image.
    """
    from PIL import Image, UnidentifiedImageError

    content = read_bytes(path, error, "an image") if content is None else content
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(content))
        except Image.DecompressionBombError as problem:
            raise error(f"{path}: the header claims an absurd size ({problem}); the file is damaged") from problem
        except UnidentifiedImageError as problem:
            raise error(
                f"{path}: not an image file that can be read; convert it to PNG, JPEG, TIFF, BMP, WebP or PNM"
            ) from problem
        except _DECODER_ERRORS as problem:
            raise error(f"{path}: the image header is damaged ({_line(problem)}); write the file again") from problem
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise error(
                f"{path}: the header claims {width}x{height} pixels, at most {MAX_PIXELS // 10**6} megapixels are "
                "read; reduce the image first"
            )
        try:
            image.load()
        except _DECODER_ERRORS as problem:
            raise error(
                f"{path}: the image is truncated or damaged ({_line(problem)}); copy or write the file again"
            ) from problem
    if image.format == "PNG" and _PNG_END not in content:
        raise error(f"{path}: the image is truncated (no end mark); copy or write the file again")
    return image


def read_image(path: str | os.PathLike[str]) -> np.ndarray:
    """Read an image file as [H, W, 3] uint8 RGB.

    16-bit images keep their upper 8 bits, grey is replicated, alpha is dropped, and the EXIF orientation is applied.
    Floating-point TIFF and HDR images hold values in [0, 1]; what is outside is clipped.

    Raises:
        ImageError: missing, empty, truncated, too large, floating-point values of unknown range, or not an image.
    """
    content = read_bytes(path, ImageError, "an image")
    pixels = decode_png(content, path)
    if pixels is not None and pixels.dtype == np.uint8:
        return pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)
    if not _pillow_reads(content):
        rare = decode_rare(content, path)
        if rare is not None:
            return as_image(rare)
    return _rgb_from_pil(load_pil(path, content=content), str(path))


def _pillow_reads(content: bytes) -> bool:
    """Whether Pillow knows the format and its range (not a floating-point TIFF); damaged files count as read."""
    from PIL import Image, UnidentifiedImageError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(content))
        except UnidentifiedImageError:
            return False
        except (Image.DecompressionBombError, *_DECODER_ERRORS):
            return True  # load_pil says what is wrong
    return not (image.format == "TIFF" and image.mode == "F")


def as_image(image: Any) -> np.ndarray:
    """Turn a path, a PIL image or an array into [H, W, 3] uint8 RGB.

    Args:
        image: path; PIL image; or array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4] of uint8, uint16 (upper 8 bits are
            kept) or floating point in [0, 1].

    Raises:
        ImageError: the file cannot be used.
        InputError: the array has another shape, type or range.
    """
    if isinstance(image, (str, os.PathLike)):
        return read_image(image)
    if hasattr(image, "getbands") and hasattr(image, "convert"):
        return _rgb_from_pil(image, "PIL image")
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or array.size == 0:
        hint = "; move the channels to the end" if array.ndim == 3 and array.shape[0] in (1, 3, 4) else ""
        raise InputError(f"an image must be HxW, HxWx1, HxWx3 or HxWx4, got shape {np.shape(image)}{hint}")
    array = array[..., :3]
    if array.shape[2] == 1:
        array = np.repeat(array, 3, axis=2)
    return np.ascontiguousarray(_to_uint8(array))


def count_channels(image: Any) -> int:
    """Channels of what :func:`as_image` takes, before grey is replicated and alpha dropped (palettes, CMYK: as RGB).

    Raises:
        ImageError: a file that is no image.
    """
    from PIL import Image, UnidentifiedImageError

    if isinstance(image, (str, os.PathLike)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Image.open(image) as opened:
                    return count_channels(opened)
        except UnidentifiedImageError as problem:
            rare = decode_rare(read_bytes(image, ImageError, "an image"), image)
            if rare is None:
                raise ImageError(f"{image}: cannot be read ({_line(problem)}); check the path") from problem
            return 1 if rare.ndim == 2 else 3
        except OSError as problem:
            raise ImageError(f"{image}: cannot be read ({_line(problem)}); check the path") from problem
    if hasattr(image, "getbands"):
        return 3 if image.mode in ("P", "CMYK") else len(image.getbands())
    shape = np.shape(image)
    return 1 if len(shape) == 2 else int(shape[-1])


def write_image(path: str | os.PathLike[str], rgb: np.ndarray) -> None:
    """Write an RGB or grey image; the suffix of ``path`` chooses the format.

    Args:
        path: target, e.g. ``.png`` or ``.jpg``.
        rgb: anything that :func:`as_image` takes.

    Raises:
        OutputError: unknown suffix, or the place is not writable.
        InputError: not an image.
    """
    from PIL import Image

    suffix = os.path.splitext(os.fspath(path))[1].lower()
    Image.init()
    if Image.EXTENSION.get(suffix) not in Image.SAVE:
        raise OutputError(
            f"{path}: no image format has the suffix '{suffix}'; use .png, .jpg, .tif, .bmp, .webp or .ppm"
        )
    picture = Image.fromarray(as_image(rgb))
    with atomic_write(path) as temporary:
        picture.save(
            temporary, format=Image.EXTENSION[suffix], **({"quality": 95} if suffix in (".jpg", ".jpeg") else {})
        )


def _to_uint8(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.uint16:
        return (array >> 8).astype(np.uint8)
    if np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())
        if not (low >= -1e-4 and high <= 1 + 1e-4):
            raise InputError(
                f"a floating-point image must lie in [0, 1], got {low:.4g}..{high:.4g}; divide by 255 or pass uint8"
            )
        return np.rint(np.clip(array, 0, 1) * 255).astype(np.uint8)
    raise InputError(f"an image must be uint8, uint16 or floating point in [0, 1], got {array.dtype}; convert it first")


def _rgb_from_pil(image: Image.Image, name: str) -> np.ndarray:
    """[H, W, 3] uint8 of a PIL image of any mode, upright."""
    from PIL import ImageOps

    try:
        image = ImageOps.exif_transpose(image) or image
        if image.mode == "F":
            raise ImageError(f"{name}: a floating-point image has no known range; convert it to 8 or 16 bits first")
        if image.mode.startswith("I"):
            array = np.asarray(image)
            if array.min() < 0 or array.max() > 65535:
                raise ImageError(f"{name}: a 32-bit image has no known range; convert it to 8 or 16 bits first")
            return as_image(array.astype(np.uint16))
        if image.mode in ("P", "PA"):
            image = image.convert("RGBA")
        return np.array(image.convert("RGB"))
    except ImageError:
        raise
    except _DECODER_ERRORS as problem:
        raise ImageError(f"{name}: the image cannot be decoded ({_line(problem)}); write it again as PNG") from problem


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__
