# SPDX-License-Identifier: Apache-2.0
"""Pools of panoramas in memory-mapped arrays, and panoramas of synthetic rooms made on the fly.

Layout of a pool: ``<name>.image.npy`` [N, H, 2H, 3] uint8, ``<name>.depth.npy`` [N, H, 2H] float16 or float32 (metres
along the ray, NaN where unknown) and ``<name>.json`` with the scene names, which is written last and marks a complete
shard.
"""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torch.utils.data import Dataset

from vision3d.datasets.shards import save_shard
from vision3d.errors import FileFormatError, InputError, check_option_names
from vision3d.types import PanoramaSample

_Shard = tuple[np.ndarray, np.ndarray, list[str]]


class PoolPanoramas(Dataset[PanoramaSample]):
    """The complete shards under a folder (searched in all its sub-folders, in the order of their names).

    Args:
        root: the pool's folder.
        shards: use the first ``shards`` only.

    Attributes:
        scenes: the names of the panoramas.

    Raises:
        FileFormatError: no complete shard, or a damaged one.
    """

    name = "panorama_pool"
    splits: ClassVar[tuple[str, ...]] = ()

    def __init__(self, root: str | os.PathLike[str], shards: int | None = None) -> None:
        self.root = Path(root)
        names = [path.with_suffix("") for path in sorted(self.root.rglob("*.json"))][:shards]
        if not names:
            raise FileFormatError(
                f"{self.root}: no pool of panoramas here (*.json, *.image.npy ...): write one with "
                "'vision3d data synthesize --kind rooms --layout panorama_pool'"
            )
        self._shards = [_open_shard(name) for name in names]
        self._ends = list(accumulate(len(shard[2]) for shard in self._shards))
        self.scenes = [scene for shard in self._shards for scene in shard[2]]

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, index: int) -> PanoramaSample:
        """The panorama; its arrays are read-only views of the files, read when used."""
        place = range(len(self.scenes))[index]
        number = bisect.bisect_right(self._ends, place)
        images, depths, scenes = self._shards[number]
        row = place - (self._ends[number - 1] if number else 0)
        return PanoramaSample(image=images[row], depth=depths[row], scene=scenes[row])


def _open_shard(name: Path) -> _Shard:
    try:
        facts = json.loads(Path(f"{name}.json").read_text(encoding="utf-8"))
        scenes = [str(scene) for scene in facts["scenes"]]
        images, depths = (np.load(f"{name}.{part}.npy", mmap_mode="r") for part in ("image", "depth"))
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{name}: damaged shard of a pool of panoramas ({error}): write it anew") from error
    size = images.shape[1:3]
    whole = images.ndim == 4 and images.shape[3] == 3 and images.dtype == np.uint8 and size[1] == 2 * size[0]
    if not whole or depths.shape != images.shape[:3] or len(scenes) != len(images) or depths.dtype.kind != "f":
        raise FileFormatError(f"{name}: the arrays of this shard do not fit each other: write it anew")
    return images, depths, scenes


def write_panorama_pool(
    folder: str | os.PathLike[str],
    samples: Iterable[PanoramaSample],
    shard_size: int = 64,
    dtype: Literal["float16", "float32"] = "float32",
    prefix: str = "shard",
) -> int:
    """Write panoramas into shards of ``shard_size`` and return their number; another size begins a new shard.

    Several processes may write into one folder with different prefixes.

    Raises:
        InputError: a panorama without depth. OutputError: the folder cannot be written.
    """
    target = Path(folder)
    pending: list[PanoramaSample] = []
    count = shards = 0
    for sample in samples:
        if sample.depth is None:
            raise InputError(f"{sample.scene}: the panorama has no depth, so it cannot enter the pool")
        if pending and (len(pending) == shard_size or pending[0].image.shape != sample.image.shape):
            _write_shard(target, f"{prefix}{shards:05d}", pending, dtype)
            pending, shards = [], shards + 1
        pending.append(sample)
        count += 1
    if pending:
        _write_shard(target, f"{prefix}{shards:05d}", pending, dtype)
    return count


def _write_shard(folder: Path, name: str, samples: list[PanoramaSample], dtype: str) -> None:
    stacks = {
        "image": np.stack([np.asarray(sample.image, dtype=np.uint8) for sample in samples]),
        "depth": np.stack([np.asarray(sample.depth, dtype=dtype) for sample in samples]),
    }
    save_shard(folder, name, stacks, {"scenes": [sample.scene for sample in samples]})


class RoomPanoramas(Dataset[PanoramaSample]):
    """Panoramas of rooms made on the fly, numbered by their seed.

    Args:
        height: rows; twice as many columns.
        seed: the first room's number.
        scenes: how many there are; None: no end, no room is seen twice.
        tilt: standard deviation of the camera's tilt, radians.
        options: those of ``RoomOptions``.

    Attributes:
        scenes: the names, or None where there is no end.

    Raises:
        ConfigError: unknown option, or a value out of range.
    """

    name = "synthetic_panoramas"
    splits: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, height: int = 256, seed: int = 0, scenes: int | None = None, tilt: float = 0.0, **options: Any
    ) -> None:
        from vision3d.datasets.synthetic.rooms import RoomOptions

        check_option_names(self.name, RoomOptions.__dataclass_fields__, options)
        self.height, self.seed, self.count, self.tilt = height, seed, scenes, tilt
        self.scenes = None if scenes is None else [f"room_{seed + index:08d}" for index in range(scenes)]
        self.options = RoomOptions(**options)

    def __len__(self) -> int:
        if self.count is None:
            raise TypeError("these rooms have no end")
        return self.count

    def __getitem__(self, index: int) -> PanoramaSample:
        """Make the panorama of seed ``self.seed + index``."""
        from vision3d.datasets.synthetic.rooms import make_room_panorama

        if self.count is not None and not 0 <= index < self.count:
            raise IndexError(index)
        return make_room_panorama(self.seed + index, self.height, self.options, self.tilt)
