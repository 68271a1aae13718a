# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from vision3d.errors import ImageError, InputError, OutputError
from vision3d.io.files import atomic_write, ensure_folder, read_bytes


def test_atomic_write_replaces_only_on_success(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(target) as temporary:
        temporary.write_text(f"half{1 // 0}")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]
    with atomic_write(target) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".txt"
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_atomic_write_follows_links(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    with atomic_write(tmp_path / "link.txt") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_atomic_write_errors_are_one_line(tmp_path: Path) -> None:
    for target in (tmp_path / "missing" / "a.txt", tmp_path, Path(os.devnull)):
        with pytest.raises(OutputError) as caught, atomic_write(target) as temporary:
            temporary.write_text("x")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError), atomic_write(tmp_path / "b") as temporary:
        raise InputError("passes through")
    with pytest.raises(OutputError, match="No space"), atomic_write(tmp_path / "b"):
        raise OSError(28, "No space left on device")


def test_ensure_folder(tmp_path: Path) -> None:
    assert ensure_folder(tmp_path / "a" / "b").is_dir()
    assert ensure_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("x")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError):
            ensure_folder(target)


def test_read_bytes_errors(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for target, word in ((tmp_path, "folder"), (tmp_path / "empty", "empty"), (tmp_path / "no", "no such file")):
        with pytest.raises(ImageError, match=word):
            read_bytes(target, ImageError, "an image")
    with pytest.raises(ImageError):
        read_bytes("nul\0name", ImageError, "an image")
