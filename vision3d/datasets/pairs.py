# SPDX-License-Identifier: Apache-2.0
"""What the readers of stereo data sets share.

A reader is a function that lists :class:`PairEntry`; :class:`StereoPairs` checks the list, reads the files and checks
that they fit each other.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torch.utils.data import Dataset

from vision3d.errors import ConfigError, DisparityError, FileFormatError, ImageError
from vision3d.io.calibration import read_calibration
from vision3d.io.files import read_bytes
from vision3d.io.images import read_image
from vision3d.types import StereoRig, StereoSample

IMAGE_SUFFIXES = (".png", ".webp", ".jpg", ".jpeg", ".ppm", ".pgm")
OnError = Literal["raise", "skip"]
_SPLIT_NAMES = {"val": "validation", "valid": "validation", "training": "train", "testing": "test"}
_MAX_DEPTH = 12
_LEAVE_OUT = "leave such pairs out with a skip file (option skip_file; 'vision3d data verify' writes one)"


@dataclass(frozen=True, slots=True)
class MapFile:
    """One map of a pair.

    Attributes:
        field: the field of ``StereoSample`` that it fills.
        path: the file.
        read: the function that turns ``path`` into an array [H, W] or [H, W, 3].
        more: further files that ``read`` (a partial function) needs, for the check of their existence.
    """

    field: str
    path: str
    read: Callable[[str], np.ndarray]
    more: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PairEntry:
    """The files of one pair.

    Attributes:
        scene: its name inside the data set.
        left, right: the images.
        maps: what else is known.
        rig: a calibration file, or a function of (width, height), or None.
    """

    scene: str
    left: str
    right: str
    maps: tuple[MapFile, ...] = ()
    rig: str | Callable[[int, int], StereoRig] | None = None

    def files(self) -> Iterator[str]:
        """Every file of the pair."""
        yield from (self.left, self.right)
        for item in self.maps:
            yield from (item.path, *item.more)
        if isinstance(self.rig, str):
            yield self.rig


class SkippingReader(Dataset[StereoSample]):
    """What the options ``skip_file`` and ``on_error`` of the stereo readers do.

    Attributes:
        scenes: the names of the pairs.
        on_error: ``raise`` or ``skip``.
        skipped: scene -> why it was skipped.
    """

    name: ClassVar[str] = ""
    scenes: list[str]
    on_error: OnError
    skipped: dict[str, str]

    def _set_on_error(self, on_error: OnError) -> None:
        if on_error not in ("raise", "skip"):
            raise ConfigError(f"{self.name}: on_error '{on_error}' is unknown: choose raise or skip")
        self.on_error, self.skipped = on_error, {}

    def __len__(self) -> int:
        return len(self.scenes)

    def __iter__(self) -> Iterator[StereoSample]:
        return (self[index] for index in range(len(self)))

    def read(self, index: int) -> StereoSample:
        """Read exactly this pair, whatever ``on_error`` is.

        Raises:
            ImageError, DisparityError, CalibrationError: a file that cannot be used or does not fit the others.
        """
        raise NotImplementedError

    def __getitem__(self, index: int) -> StereoSample:
        """Read a pair; with ``on_error="skip"`` the next one that can be read.

        Raises:
            ImageError, DisparityError, CalibrationError: see ``read``.
        """
        number = len(self)
        place = range(number)[index]
        if self.on_error == "raise":
            return self.read(place)
        for step in range(number):
            current = (place + step) % number
            try:
                return self.read(current)
            except FileFormatError as error:
                self._skip(self.scenes[current], str(error))
        raise FileFormatError(f"none of the {number} pairs of {self.name} can be read; see the warnings")

    def _skip(self, scene: str, message: str) -> None:
        if scene not in self.skipped:
            self.skipped[scene] = message
            self._warn(message)

    def _warn(self, message: str) -> None:
        warnings.warn(f"{self.name}: {len(self.skipped)} pairs skipped so far; {message}", stacklevel=3)


class StereoPairs(SkippingReader):
    """A stereo data set in folders.

    Args:
        root: the folder of the data set.
        split: one of ``splits``; ``"all"`` is every pair with truth.
        skip_file: text file with scenes to leave out, one a line, ``#`` begins a comment.
        on_error: ``"raise"``: a missing file is an error when the set is opened, a damaged one when it is read;
            ``"skip"``: such pairs are left out, or replaced by the next one when read, with a warning that counts them.
        options: those of ``list_entries``.

    Attributes:
        name: registered name.
        scenes: the names of the pairs.
        entries: their files.
        skipped: scene -> why it was skipped.

    Raises:
        FileFormatError: the folder is missing or holds no pair, or files are missing.
        ConfigError: unknown split or option.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "all")
    tree: ClassVar[str] = ""

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "train",
        *,
        skip_file: str | os.PathLike[str] | None = None,
        on_error: OnError = "raise",
        **options: Any,
    ) -> None:
        self._set_on_error(on_error)
        self.root = Path(root)
        self.split = self._check_split(split)
        _check_options(self.name, self.list_entries, options)
        if not self.root.is_dir():
            raise FileFormatError(f"{printable(root)}: no such folder; give the folder of {self.name}: {self.tree}")
        left_out = read_skip_file(skip_file) if skip_file is not None else frozenset()
        found = list(self.list_entries(self.split, **options))
        if not found:
            raise FileFormatError(
                f"{printable(root)}: holds no pair of {self.name} ({self.split}); expected: {self.tree}"
            )
        if skip_file is not None and (unknown := left_out - {entry.scene for entry in found}):
            warn_unknown_scenes(skip_file, unknown - self._scenes_elsewhere(options), self.name)
        self.entries = self._usable(entry for entry in found if entry.scene not in left_out)
        if not self.entries:
            raise FileFormatError(f"{printable(root)}: no pair of {self.name} ({self.split}) is left after skipping")
        self.scenes = [entry.scene for entry in self.entries]

    def list_entries(self, split: str) -> Iterable[PairEntry]:
        """The pairs below ``self.root``, in a fixed order; further arguments are the options of the data set."""
        raise NotImplementedError

    def check_choice(self, option: str, value: str, choices: Iterable[str]) -> None:
        """Refuse a value that an option does not have.

        Raises:
            ConfigError: ``value`` is not among ``choices``.
        """
        if value not in choices:
            raise ConfigError(f"{self.name}: {option} '{value}' is unknown: choose {' or '.join(choices)}")

    def read(self, index: int) -> StereoSample:
        """See :func:`read_pair`."""
        return read_pair(self.entries[index])

    def _scenes_elsewhere(self, options: dict[str, Any]) -> set[str]:
        """The scenes of the other splits: a skip list may be written for all of them."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            others = (split for split in self.splits if split != self.split)
            return {entry.scene for split in others for entry in self.list_entries(split, **options)}

    def _check_split(self, split: str) -> str:
        name = _SPLIT_NAMES.get(split.lower(), split.lower())
        if name not in self.splits:
            raise ConfigError(f"split '{split}' of {self.name}: choose {', '.join(self.splits)}")
        return name

    def _usable(self, entries: Iterable[PairEntry]) -> list[PairEntry]:
        """The entries whose files exist and whose names can be printed; what is not usable is refused or skipped."""
        exists = _Existence()
        usable, problems = [], []
        for entry in entries:
            files = list(entry.files())
            odd = next((file for file in files if not _is_utf8(file)), None)
            lacking = next((file for file in files if not exists(file)), None)
            if odd is not None:
                problems.append((entry, f"{printable(odd)}: the name is not UTF-8; rename the file or folder"))
            elif lacking is not None:
                problems.append((entry, f"{lacking}: no such file (pair {entry.scene}); complete the data set"))
            else:
                usable.append(entry)
        if problems and self.on_error == "raise":
            count = f"{len(problems)} of {len(problems) + len(usable)} pairs of {self.name} cannot be used, the first: "
            raise FileFormatError(f"{count if len(problems) > 1 else ''}{problems[0][1]}, or {_LEAVE_OUT}")
        if problems:
            self.skipped.update((printable(entry.scene), message) for entry, message in problems)
            self._warn(problems[0][1])
        return usable


def read_pair(entry: PairEntry) -> StereoSample:
    """Read the files of an entry.

    Raises:
        ImageError, DisparityError, CalibrationError: a file that cannot be used or does not fit the others.
    """
    left, right = read_image(entry.left), read_image(entry.right)
    height, width = left.shape[:2]
    if left.shape != right.shape:
        raise ImageError(
            f"{entry.right}: is {right.shape[1]}x{right.shape[0]}, the left image is {width}x{height}; both views must "
            "have one size: replace it"
        )
    maps: dict[str, Any] = {}
    for item in entry.maps:
        values = item.read(item.path)
        if values.shape[:2] != (height, width):
            raise DisparityError(
                f"{item.path}: the map is {values.shape[1]}x{values.shape[0]}, the images are {width}x{height}; "
                "replace it, or leave the pair out with a skip list"
            )
        maps[item.field] = values
    if entry.rig is None or callable(entry.rig):
        rig = None if entry.rig is None else entry.rig(width, height)
    else:
        rig = read_calibration(entry.rig, (width, height))
    return StereoSample(left, right, rig=rig, scene=entry.scene, **maps)


def read_skip_file(path: str | os.PathLike[str]) -> frozenset[str]:
    """The scenes of a skip list: one a line, ``#`` begins a comment.

    Raises:
        FileFormatError: the file is missing, empty, or no text.
    """
    try:
        lines = read_bytes(path, FileFormatError, "a list of scenes").decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: not a text file; write one scene a line") from error
    return frozenset(name for line in lines if (name := line.partition("#")[0].strip()))


def warn_unknown_scenes(path: str | os.PathLike[str], unknown: Iterable[str], name: str) -> None:
    """Warn once of the names of a skip list that are no scenes of the data set, if there are any."""
    names = sorted(unknown)
    if names:
        count = f"{len(names)} names of this skip list are" if len(names) > 1 else "a name of this skip list is"
        first = "the first: " if len(names) > 1 else ""
        warnings.warn(f"{printable(path)}: {count} not among the scenes of {name}, {first}'{names[0]}'", stacklevel=3)


def walk(root: str | os.PathLike[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (folder, file names) below ``root``, in the order of their names; links are followed, loops are not.

    Raises:
        FileFormatError: a folder that cannot be read.
    """
    yield from _walk(os.fspath(root), frozenset(), 0)


def _walk(folder: str, above: frozenset[str], depth: int) -> Iterator[tuple[str, list[str]]]:
    real = os.path.realpath(folder)
    if real in above or depth > _MAX_DEPTH:
        return
    folders, files = list_folder(folder)
    yield folder, files
    for name in folders:
        yield from _walk(os.path.join(folder, name), above | {real}, depth + 1)


def list_folder(folder: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
    """Names of the (folders, files) in a folder, sorted, without hidden ones; ([], []) if there is no such folder.

    Raises:
        FileFormatError: the folder cannot be read.
    """
    folders: list[str] = []
    files: list[str] = []
    try:
        with os.scandir(folder) as items:
            for item in items:
                if not item.name.startswith("."):
                    (folders if _is_folder(item) else files).append(item.name)
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except OSError as error:
        raise FileFormatError(
            f"{printable(folder)}: cannot be read ({error.strerror}); check its permissions"
        ) from error
    return sorted(folders), sorted(files)


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:  # a link to itself
        return False


def images_in(folder: str | os.PathLike[str]) -> list[str]:
    """Names of the image files in a folder, sorted."""
    return [name for name in list_folder(folder)[1] if name.lower().endswith(IMAGE_SUFFIXES)]


def join(*parts: str | os.PathLike[str]) -> str:
    """``os.path.join``, as text (entries hold text: a data set has many)."""
    return os.path.join(*(os.fspath(part) for part in parts))


def first_folder(root: str | os.PathLike[str], names: Iterable[str]) -> str | None:
    """The first of ``root/name`` that is a folder."""
    return next((path for name in names if os.path.isdir(path := join(root, name))), None)


def printable(path: str | os.PathLike[str]) -> str:
    """A path that can be printed whatever its bytes."""
    return os.fspath(path).encode("utf-8", "backslashreplace").decode("utf-8")


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class _Existence:
    """Whether files exist, with one listing for each folder instead of a query for each file."""

    def __init__(self) -> None:
        self._names: dict[str, frozenset[str]] = {}

    def __call__(self, path: str) -> bool:
        folder, name = os.path.split(path)
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(os.listdir(folder or "."))
            except OSError:
                self._names[folder] = frozenset()
        return name in self._names[folder]


def _check_options(name: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    known = [key for key in inspect.signature(function).parameters if key != "split"]
    known += ["skip_file", "on_error"]
    for option in options:
        if option not in known:
            raise ConfigError(f"{name}: unknown option '{option}': choose {', '.join(known)}")
