# SPDX-License-Identifier: Apache-2.0
"""Stereo pairs of two files, two folders or a list file."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from pathlib import Path

from vision3d.errors import FileFormatError, InputError

IMAGE_SUFFIXES = (
    ".png",
    ".jpg",
    ".jpeg",
    ".bmp",
    ".tif",
    ".tiff",
    ".webp",
    ".ppm",
    ".pgm",
    ".pnm",
    ".pam",
    ".hdr",
    ".jp2",
)

Pair = tuple[Path, Path]


def find_pairs(
    left: str | os.PathLike[str] | None,
    right: str | os.PathLike[str] | None,
    list_file: str | os.PathLike[str] | None = None,
) -> list[Pair]:
    """The pairs that a command line names.

    Args:
        left, right: two images, or two folders whose images are matched by name (whatever the suffix), or in the order
            of their names where no name occurs in both.
        list_file: instead of them: a text file with the paths of one pair a line (quotes for blanks, ``#`` comments),
            relative to the file.

    Raises:
        InputError: nothing or too much was given, or a file was given with a folder. FileFormatError: a folder without
        images or with one that has no partner, or a bad line.
    """
    if list_file is not None:
        if left is not None or right is not None:
            raise InputError("pass either LEFT RIGHT or --list FILE, not both")
        return _read_list(Path(list_file))
    if left is None or right is None:
        raise InputError("pass two images, two folders, or --list FILE")
    paths = Path(left), Path(right)
    if paths[0].is_dir() != paths[1].is_dir():
        folder, file = paths if paths[0].is_dir() else paths[::-1]
        raise InputError(f"{folder} is a folder, but {file} is not: pass two images or two folders")
    if not paths[0].is_dir():
        return [paths]
    return _match_folders(*paths)


def name_pairs(pairs: list[Pair]) -> list[str]:
    """A folder name for each pair, all different: the left file's name, with its parent's or a number where needed."""
    names = [left.stem for left, _ in pairs]
    if len(set(names)) < len(names):
        names = [f"{left.absolute().parent.name}_{left.stem}" for left, _ in pairs]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    return [f"{index:05d}_{name}" if name in repeated else name for index, name in enumerate(names)]


def _match_folders(left: Path, right: Path) -> list[Pair]:
    """Pairs of equal names (suffixes aside); where the folders share no name at all, in the order of their names."""
    images = [_images(folder) for folder in (left, right)]
    stems = [{image.stem for image in side} for side in images]
    if not stems[0] & stems[1]:
        alone = [image for a, b in ((0, 1), (1, 0)) for image in images[a][len(images[b]) :]]
    else:
        alone = [image for a, b in ((0, 1), (1, 0)) for image in images[a] if image.stem not in stems[b]]
        alone += [image for side in images for image in _repeated(side)]
    if not alone:
        by_name = [sorted(side, key=lambda image: image.stem) for side in images] if stems[0] & stems[1] else images
        return list(zip(*by_name, strict=True))
    other = right if alone[0] in images[0] else left
    raise FileFormatError(
        f"{alone[0]}: has no partner in {other} ({len(images[0])} left and {len(images[1])} right images): "
        "add it, or remove the odd one"
    )


def _repeated(images: list[Path]) -> list[Path]:
    """The images whose name occurred before with another suffix."""
    known: set[str] = set()
    return [image for image in images if image.stem in known or known.add(image.stem)]  # type: ignore[func-returns-value]


def _images(folder: Path) -> list[Path]:
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
    except OSError as error:
        raise FileFormatError(f"{folder}: cannot be read ({error.strerror}): check its permissions") from error
    found = [path for path in found if not path.name.startswith(".")]
    if not found:
        raise FileFormatError(f"{folder}: holds no images ({', '.join(IMAGE_SUFFIXES)}): check the path")
    return found


def _read_list(path: Path) -> list[Pair]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read ({error.strerror}): check the path") from error
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: is no text file: write one pair a line, LEFT RIGHT") from error
    pairs: list[Pair] = []
    for number, line in enumerate(lines, start=1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise FileFormatError(f"{path}, line {number}: {error}: close the quotes") from error
        if not words:
            continue
        if len(words) != 2:
            raise FileFormatError(f"{path}, line {number}: has {len(words)} paths, 2 expected: write LEFT RIGHT")
        pairs.append((path.parent / words[0], path.parent / words[1]))
    if not pairs:
        raise FileFormatError(f"{path}: holds no pair: write one pair a line, LEFT RIGHT")
    return pairs
