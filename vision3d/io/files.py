# SPDX-License-Identifier: Apache-2.0
"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from vision3d.errors import FileFormatError, OutputError, Vision3DError


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` (same suffix); it is renamed to ``path`` on success, removed on failure.

    The temporary file does not exist yet when the block starts. Parent folders are not created.

    Raises:
        OutputError: the folder is missing or not writable, ``path`` is no regular file, or the disk is full.

    Example:
        >>> with atomic_write("result.txt") as temporary:  # doctest: +SKIP
        ...     temporary.write_text("42")
    """
    target = Path(path)
    if target.is_symlink():
        target = target.resolve()
    if not target.parent.is_dir():
        raise OutputError(f"{path}: cannot be written, the folder {target.parent} does not exist; create it first")
    if target.exists() and not target.is_file():
        raise OutputError(f"{path}: cannot be written, it is not a regular file; choose another name")
    temporary = target.with_name(f".{target.stem[:100]}.{uuid.uuid4().hex[:12]}{target.suffix}")
    try:
        yield temporary
        temporary.replace(target)
    except Vision3DError:
        raise
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error}); choose a writable place") from error
    finally:
        temporary.unlink(missing_ok=True)


def ensure_folder(path: str | os.PathLike[str]) -> Path:
    """Create the folder ``path`` (and its parents) where it is missing and return it.

    Raises:
        OutputError: it cannot be created, is a file, or is not writable.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise OutputError(f"{folder}: is a file, a folder is expected; choose another name") from error
    except OSError as error:
        raise OutputError(f"{folder}: cannot be created ({error.strerror}); choose a writable place") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{folder}: the folder is not writable; choose another one or change its permissions")
    return folder


@contextmanager
def staged_folder(folder: str | os.PathLike[str], owned: Collection[str] = ()) -> Iterator[Path]:
    """Yield a hidden folder inside ``folder`` (created where missing); its files are moved into it on success.

    A failure leaves the old files as they were. Files named in ``owned`` that were not written anew are removed.

    Raises:
        OutputError: the folder cannot be written.
    """
    target = ensure_folder(folder)
    hidden = None
    try:
        hidden = Path(tempfile.mkdtemp(prefix=".vision3d-", dir=target))
        yield hidden
        written = sorted(path.name for path in hidden.iterdir())
        for name in written:
            (hidden / name).replace(target / name)
        for name in set(owned).difference(written):  # of an earlier run
            (target / name).unlink(missing_ok=True)
    except Vision3DError:
        raise
    except OSError as error:
        raise OutputError(f"{target}: cannot be written ({error.strerror}): choose another folder") from error
    finally:
        if hidden is not None:
            shutil.rmtree(hidden, ignore_errors=True)


def read_bytes(path: str | os.PathLike[str], error: type[FileFormatError], what: str) -> bytes:
    """Return the content of an input file.

    Args:
        path: the file.
        error: the exception raised when it cannot be read.
        what: the kind of file, for the message.

    Raises:
        FileFormatError: (the given class) the file is missing, a folder, unreadable or empty.
    """
    file = Path(path)
    if file.is_dir():
        raise error(f"{path}: is a folder, {what} is expected; give the path of the file")
    try:
        content = file.read_bytes()
    except FileNotFoundError as problem:
        raise error(f"{path}: no such file ({what} is expected); check the path") from problem
    except (OSError, ValueError) as problem:
        raise error(f"{path}: cannot be read ({problem}); check the path and its permissions") from problem
    if not content:
        raise error(f"{path}: the file is empty, {what} is expected; write or download it again")
    return content
