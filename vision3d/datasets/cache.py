# SPDX-License-Identifier: Apache-2.0
"""A fast pool of stereo pairs of one size a shard: memory-mapped arrays, of which a crop reads only its own rows.

Layout: ``<name>.left.npy`` and ``<name>.right.npy`` [N, H, W, 3] uint8, ``<name>.disparity.npy`` [N, H, W] float16 or
float32 with NaN where unknown, where there are normals ``<name>.normals.npy`` [N, H, W, 3] float16 (NaN: unknown),
and ``<name>.json`` (scene names, and whether there are normals), which is written last and marks a complete shard.
"""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Literal

import numpy as np

from vision3d.datasets.pairs import OnError, SkippingReader, read_skip_file, warn_unknown_scenes
from vision3d.errors import FileFormatError, InputError, OutputError
from vision3d.types import StereoSample

_PARTS = ("left", "right", "disparity")


class PoolStereo(SkippingReader):
    """The complete shards under a folder (searched in all its sub-folders, in the order of their names).

    Args:
        root: the pool's folder.
        shards: use the first ``shards`` only.
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
        skip_file: str | os.PathLike[str] | None = None,
        on_error: OnError = "raise",
    ) -> None:
        self._set_on_error(on_error)
        self.root = Path(root)
        names = [path.with_suffix("") for path in sorted(self.root.rglob("*.json"))][:shards]
        if not names:
            raise FileFormatError(
                f"{self.root}: no stereo pool here (*.json, *.left.npy ...): write one with write_pool"
            )
        self._shards = self._open_shards(names)
        self._ends = list(accumulate(len(scenes) for _, scenes in self._shards))
        left_out = read_skip_file(skip_file) if skip_file is not None else frozenset()
        every = [scene for _, scenes in self._shards for scene in scenes]
        if skip_file is not None:
            warn_unknown_scenes(skip_file, left_out.difference(every), self.name)
        self._rows = np.array([row for row, scene in enumerate(every) if scene not in left_out], dtype=np.int64)
        self.scenes = [every[row] for row in self._rows]
        if not self.scenes:
            raise FileFormatError(f"{self.root}: no pair of {self.name} is left after skipping")

    def read(self, index: int) -> StereoSample:
        """Return the pair; its arrays are read-only views of the files, read when used."""
        place = int(self._rows[index])
        shard = bisect.bisect_right(self._ends, place)
        arrays, scenes = self._shards[shard]
        row = place - (self._ends[shard - 1] if shard else 0)
        maps = {part: array[row] for part, array in arrays.items()}
        return StereoSample(**maps, scene=scenes[row])

    def _open_shards(self, names: list[Path]) -> list[tuple[dict[str, np.ndarray], list[str]]]:
        shards = []
        for name in names:
            try:
                shards.append(_open_shard(name))
            except FileFormatError as error:
                if self.on_error == "raise":
                    raise
                self._skip(name.name, str(error))
        return shards


def _open_shard(name: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    try:
        facts = json.loads(Path(f"{name}.json").read_text(encoding="utf-8"))
        scenes = facts["scenes"]
        parts = (*_PARTS, "normals") if facts.get("normals") else _PARTS
        arrays = {part: np.load(f"{name}.{part}.npy", mmap_mode="r") for part in parts}
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{name}: damaged shard of a stereo pool ({error}): write it anew") from error
    left, right = arrays["left"], arrays["right"]
    fits = left.shape == right.shape == arrays.get("normals", left).shape
    if not fits or left.shape[:3] != arrays["disparity"].shape or len(scenes) != len(left):
        raise FileFormatError(f"{name}: the arrays of this shard do not fit each other: write it anew")
    return arrays, [str(scene) for scene in scenes]


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        facts: dict[str, object] = {"scenes": [sample.scene for sample in samples]}
        stacks = {part: np.stack([np.asarray(getattr(sample, part)) for sample in samples]) for part in _PARTS}
        if any(sample.normals is not None for sample in samples):
            unknown = np.full(samples[0].left.shape, np.nan, np.float16)
            maps = [unknown if sample.normals is None else sample.normals for sample in samples]
            stacks["normals"], facts["normals"] = np.stack(maps), True
        for part, stack in stacks.items():
            kind = {"disparity": dtype, "normals": "float16"}.get(part, "uint8")
            temporary = folder / f".{name}.{part}.tmp.npy"
            np.save(temporary, stack.astype(kind))
            os.replace(temporary, folder / f"{name}.{part}.npy")
        temporary = folder / f".{name}.tmp"
        temporary.write_text(json.dumps(facts), encoding="utf-8")
        os.replace(temporary, folder / f"{name}.json")
    except OSError as error:
        raise OutputError(f"{folder}: the pool cannot be written ({error.strerror}): check the path") from error
