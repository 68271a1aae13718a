# SPDX-License-Identifier: Apache-2.0
"""OpenEXR files as channels by name; needs the extra ``exr``."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import numpy as np

from vision3d.errors import DisparityError, FileFormatError, InputError, MissingExtraError
from vision3d.io.files import atomic_write, read_bytes

_MAGIC = b"\x76\x2f\x31\x01"
_lock = threading.Lock()


def read_exr(path: str | os.PathLike[str], error: type[FileFormatError] = DisparityError) -> dict[str, np.ndarray]:
    """Read every channel of an OpenEXR file as [H, W] float32, top row first, by its name.

    Args:
        path: the file.
        error: the exception class for files that cannot be used.

    Raises:
        FileFormatError: (the given class) missing, empty, truncated or damaged file.
        MissingExtraError: the package OpenEXR is not installed.
    """
    openexr = _package()
    if _magic(path, error) != _MAGIC:
        raise error(f"{path}: not an OpenEXR file; download it again")
    try:
        with _quiet():
            channels = openexr.File(os.fspath(path), separate_channels=True).channels()
        return {name: np.asarray(channel.pixels, dtype=np.float32) for name, channel in channels.items()}
    except (RuntimeError, ValueError, TypeError, MemoryError) as problem:
        raise error(f"{path}: the OpenEXR file is truncated or damaged; download it again") from problem


@contextmanager
def _quiet() -> Iterator[None]:
    """Send what the library writes (to the file descriptor of stderr, to Python's stdout) nowhere; we raise instead.

    Both belong to the process, so one thread at a time.
    """
    with _lock, redirect_stdout(io.StringIO()):
        try:
            kept = os.dup(2)
        except OSError:  # stderr is closed
            yield
            return
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 2)
            os.close(nowhere)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _magic(path: str | os.PathLike[str], error: type[FileFormatError]) -> bytes:
    """The first four bytes; the library reads the file itself."""
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except (OSError, ValueError):
        start = b""
    return start if start else read_bytes(path, error, "an OpenEXR file")[:4]  # which says what is wrong


def write_exr(path: str | os.PathLike[str], channels: dict[str, np.ndarray]) -> None:
    """Write [H, W] maps as float32 channels of these names (ZIP compression).

    Raises:
        InputError: no channel, or channels of different shapes.
        OutputError: the place is not writable.
        MissingExtraError: the package OpenEXR is not installed.
    """
    shapes = {np.shape(values) for values in channels.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise InputError(f"{path}: channels HxW of one size are expected, got the shapes {sorted(shapes)}")
    openexr = _package()
    header = {"compression": openexr.ZIP_COMPRESSION, "type": openexr.scanlineimage}
    pixels = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in channels.items()}
    with atomic_write(path) as temporary:
        openexr.File(header, pixels).write(str(temporary))


def _package() -> Any:
    try:
        import OpenEXR
    except ImportError as problem:
        raise MissingExtraError("OpenEXR", "exr", "reading .exr files") from problem
    return OpenEXR
