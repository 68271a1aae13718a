# SPDX-License-Identifier: Apache-2.0
"""A fast pool of stereo pairs of one size a shard: memory-mapped arrays, of which a crop reads only its own rows.

Layout: ``<name>.left.npy`` and ``<name>.right.npy`` [N, H, W, 3] uint8, ``<name>.disparity.npy`` [N, H, W] float16 or
float32 with NaN where unknown, where there are normals ``<name>.normals.npy`` [N, H, W, 3] float16 (NaN: unknown),
and ``<name>.json`` (scene names, whether there are normals, and where one is known the ``rigs``: for each pair null or
[fx, fy, cx, cy, cx of the right view, baseline]), which is written last and marks a complete shard.
"""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

import numpy as np

from vision3d.datasets.pairs import OnError, SkippingReader, read_skip_file, warn_unknown_scenes
from vision3d.datasets.shards import save_shard
from vision3d.errors import CalibrationError, FileFormatError, InputError
from vision3d.types import Camera, StereoRig, StereoSample

_PARTS = ("left", "right", "disparity")


@dataclass(frozen=True)
class _Shard:
    arrays: dict[str, np.ndarray]
    scenes: list[str]
    rigs: list[Sequence[float] | None]


class PoolStereo(SkippingReader):
    """The complete shards under a folder (searched in all its sub-folders, in the order of their names).

    Args:
        root: the pool's folder.
        shards: use the first ``shards`` only.
        focal: focal length in pixels, for pairs whose rig is not stored: the principal point is then the middle of the
            image. None: such pairs have no rig.
        baseline: metres, for the same pairs; that of IRS.
        skip_file: text file with scenes to leave out, one a line, ``#`` begins a comment.
        on_error: ``"raise"``: a damaged shard is an error; ``"skip"``: it is left out, with a warning.

    Attributes:
        scenes: the names of the pairs.
        skipped: shard -> why it was skipped.

    Raises:
        FileFormatError: no complete shard, a damaged one, or no pair is left after skipping.
        ConfigError: unknown ``on_error``.
    """

    name = "pool"

    def __init__(
        self,
        root: str | Path,
        shards: int | None = None,
        *,
        focal: float | None = None,
        baseline: float = 0.1,
        skip_file: str | os.PathLike[str] | None = None,
        on_error: OnError = "raise",
    ) -> None:
        self._set_on_error(on_error)
        self.root = Path(root)
        self._default = None if focal is None else (float(focal), float(baseline))
        names = [path.with_suffix("") for path in sorted(self.root.rglob("*.json"))][:shards]
        if not names:
            raise FileFormatError(
                f"{self.root}: no stereo pool here (*.json, *.left.npy ...): write one with write_pool"
            )
        self._shards = self._open_shards(names)
        self._ends = list(accumulate(len(shard.scenes) for shard in self._shards))
        left_out = read_skip_file(skip_file) if skip_file is not None else frozenset()
        every = [scene for shard in self._shards for scene in shard.scenes]
        if skip_file is not None:
            warn_unknown_scenes(skip_file, left_out.difference(every), self.name)
        self._rows = np.array([row for row, scene in enumerate(every) if scene not in left_out], dtype=np.int64)
        self.scenes = [every[row] for row in self._rows]
        if not self.scenes:
            raise FileFormatError(f"{self.root}: no pair of {self.name} is left after skipping")

    def read(self, index: int) -> StereoSample:
        """Return the pair; its arrays are read-only views of the files, read when used."""
        place = int(self._rows[index])
        number = bisect.bisect_right(self._ends, place)
        shard = self._shards[number]
        row = place - (self._ends[number - 1] if number else 0)
        maps = {part: array[row] for part, array in shard.arrays.items()}
        height, width = maps["left"].shape[:2]
        numbers = shard.rigs[row]
        if numbers is None and self._default is not None:
            focal, baseline = self._default
            numbers = [focal, focal, (width - 1) / 2, (height - 1) / 2, (width - 1) / 2, baseline]
        rig = None if numbers is None else _make_rig(numbers, width, height)
        return StereoSample(**maps, rig=rig, scene=shard.scenes[row])

    def _open_shards(self, names: list[Path]) -> list[_Shard]:
        shards = []
        for name in names:
            try:
                shards.append(_open_shard(name))
            except FileFormatError as error:
                if self.on_error == "raise":
                    raise
                self._skip(name.name, str(error))
        return shards


def _make_rig(numbers: Sequence[float], width: int, height: int) -> StereoRig:
    fx, fy, cx, cy, cx_right, baseline = numbers
    left, right = (Camera(np.array([[fx, 0, x], [0, fy, cy], [0, 0, 1.0]]), width, height) for x in (cx, cx_right))
    return StereoRig(left, right, baseline)


def _rig_numbers(rig: StereoRig | None) -> list[float] | None:
    if rig is None:
        return None
    left = rig.left
    return [left.fx, left.fy, left.cx, left.cy, rig.right.cx, float(rig.baseline)]


def _open_shard(name: Path) -> _Shard:
    try:
        facts = json.loads(Path(f"{name}.json").read_text(encoding="utf-8"))
        scenes = [str(scene) for scene in facts["scenes"]]
        rigs = facts.get("rigs") or [None] * len(scenes)
        parts = (*_PARTS, "normals") if facts.get("normals") else _PARTS
        arrays = {part: np.load(f"{name}.{part}.npy", mmap_mode="r") for part in parts}
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{name}: damaged shard of a stereo pool ({error}): write it anew") from error
    left, right = arrays["left"], arrays["right"]
    fits = left.shape == right.shape == arrays.get("normals", left).shape
    if not fits or left.shape[:3] != arrays["disparity"].shape or not len(scenes) == len(rigs) == len(left):
        raise FileFormatError(f"{name}: the arrays of this shard do not fit each other: write it anew")
    try:
        for rig in rigs:
            if rig is not None:
                _make_rig(rig, left.shape[2], left.shape[1])
    except (TypeError, ValueError, CalibrationError) as error:
        raise FileFormatError(f"{name}: damaged rigs in a shard of a stereo pool ({error}): write it anew") from error
    return _Shard(arrays, scenes, rigs)


def write_pool(
    folder: str | Path,
    samples: Iterable[StereoSample],
    shard_size: int = 64,
    dtype: Literal["float16", "float32"] = "float32",
    prefix: str = "shard",
) -> int:
    """Write samples into shards of ``shard_size`` pairs and return their number.

    A shard has normals if one of its samples has some; those of the others are unknown (NaN).
    A sample of another size begins a new shard. Several processes may write into one folder with different prefixes.

    Raises:
        InputError: a sample without disparity.
        OutputError: the folder cannot be written.
    """
    folder = Path(folder)
    pending: list[StereoSample] = []
    count = shards = 0
    for sample in samples:
        if sample.disparity is None:
            raise InputError(f"{sample.scene}: the sample has no disparity map, so it cannot enter the pool")
        if pending and (len(pending) == shard_size or pending[0].left.shape != sample.left.shape):
            _write_shard(folder, f"{prefix}{shards:05d}", pending, dtype)
            pending, shards = [], shards + 1
        pending.append(sample)
        count += 1
    if pending:
        _write_shard(folder, f"{prefix}{shards:05d}", pending, dtype)
    return count


def _write_shard(folder: Path, name: str, samples: list[StereoSample], dtype: str) -> None:
    facts: dict[str, object] = {"scenes": [sample.scene for sample in samples]}
    stacks = {part: np.stack([np.asarray(getattr(sample, part)) for sample in samples]) for part in _PARTS}
    if any(sample.normals is not None for sample in samples):
        unknown = np.full(samples[0].left.shape, np.nan, np.float16)
        maps = [unknown if sample.normals is None else sample.normals for sample in samples]
        stacks["normals"], facts["normals"] = np.stack(maps), True
    if any(sample.rig is not None for sample in samples):
        facts["rigs"] = [_rig_numbers(sample.rig) for sample in samples]
    kinds = {"disparity": dtype, "normals": "float16"}
    stacks = {part: stack.astype(kinds.get(part, "uint8")) for part, stack in stacks.items()}
    save_shard(folder, name, stacks, facts)
