# SPDX-License-Identifier: Apache-2.0
"""A fast pool of multi-view samples: memory-mapped arrays, of which a sample reads only the views that it uses.

Layout: ``<name>.images.npy`` [S, N, H, W, 3] uint8, ``<name>.depth.npy`` [S, H, W] float32 of view 0 (NaN: unknown) and
``<name>.multiview.json`` (scenes, unit, intrinsics, poses, depth ranges), which is written last and marks a complete
shard.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vision3d.datasets.multiview import MultiViewDataset, View, ViewEntry
from vision3d.datasets.shards import save_shard
from vision3d.errors import CalibrationError, FileFormatError, InputError
from vision3d.types import Camera, MultiViewSample

_SUFFIX = ".multiview.json"
_FACTS = ("scenes", "intrinsics", "world_to_camera", "depth_range")


@dataclass(frozen=True)
class _Shard:
    images: np.ndarray
    depth: np.ndarray
    facts: dict[str, Any]


class MultiViewPool(MultiViewDataset):
    """The complete shards under a folder (searched in all its sub-folders, in the order of their names).

    View 0 of a stored set is the reference; ``source_choice="random"`` draws the sources among the others.

    Args:
        root: the pool's folder.
        shards: use the first ``shards`` only.
        options: see :class:`MultiViewDataset`.

    Raises:
        FileFormatError: no complete shard, or a damaged one. ConfigError: illegal option.
    """

    name: ClassVar[str] = "multiview_pool"
    tree = f"ROOT/*{_SUFFIX}, *.images.npy, *.depth.npy (vision3d data synthesize --kind rooms --layout pool --views 7)"

    def __init__(self, root: str | os.PathLike[str], shards: int | None = None, **options: Any) -> None:
        self._limit = shards
        super().__init__(root, "all", **options)

    def list_entries(self) -> Iterable[ViewEntry]:
        """One entry for each stored set."""
        self._places: dict[str, tuple[_Shard, int]] = {}
        names = [Path(str(path).removesuffix(_SUFFIX)) for path in sorted(self.root.rglob(f"*{_SUFFIX}"))]
        for name in names[: self._limit]:
            shard = _open_shard(name)
            self.unit = str(shard.facts.get("unit", "unknown"))
            for row, scene in enumerate(shard.facts["scenes"]):
                entry = ViewEntry(f"{name.name}/{scene}", 0, tuple(range(1, shard.images.shape[1])))
                self._places[entry.scene] = shard, row
                yield entry

    def read_view(self, entry: ViewEntry, number: int) -> View:
        """Read a view; its image is a read-only view of the file."""
        shard, row = self._places[entry.scene]
        image, facts = shard.images[row, number], shard.facts
        near, far = facts["depth_range"][row]
        intrinsics, pose = (np.array(facts[key][row][number]) for key in ("intrinsics", "world_to_camera"))
        camera = Camera(intrinsics, image.shape[1], image.shape[0], None, pose)
        return View(image, camera, f"{number:08d}", (near, far) if number == 0 else None)

    def read_truth(self, entry: ViewEntry, view: View) -> tuple[np.ndarray | None, np.ndarray | None]:
        """The depth map of view 0."""
        shard, row = self._places[entry.scene]
        return shard.depth[row], None


def write_multiview_pool(
    folder: str | os.PathLike[str], samples: Iterable[MultiViewSample], shard_size: int = 32, prefix: str = "shard"
) -> int:
    """Write samples of one size and number of views into shards of ``shard_size``, and return their number.

    Several processes may write into one folder with different prefixes.

    Raises:
        InputError: a sample without depth, range or cameras, or of another size than those of its shard.
        OutputError: the folder cannot be written.
    """
    count = 0
    for number, part in enumerate(_batches(samples, shard_size)):
        for sample in part:
            _check_sample(sample, part[0])
        _write_shard(Path(folder), f"{prefix}{number:05d}", part)
        count += len(part)
    return count


def _batches(samples: Iterable[MultiViewSample], size: int) -> Iterator[list[MultiViewSample]]:
    iterator = iter(samples)
    while part := list(islice(iterator, size)):
        yield part


def _check_sample(sample: MultiViewSample, first: MultiViewSample) -> None:
    if sample.depth is None or sample.depth_range is None or len(sample.cameras) != len(sample.images):
        raise InputError(f"{sample.scene}: without depth map, depth range or cameras it cannot enter the pool")
    if {image.shape for image in sample.images} != {first.images[0].shape} or len(sample.images) != len(first.images):
        raise InputError(f"{sample.scene}: its images are not of the size and number of those of {first.scene}")


def _write_shard(folder: Path, name: str, samples: list[MultiViewSample]) -> None:
    facts = {
        "scenes": [sample.scene for sample in samples],
        "unit": samples[0].unit,
        "intrinsics": [[camera.intrinsics.tolist() for camera in sample.cameras] for sample in samples],
        "world_to_camera": [[camera.world_to_camera.tolist() for camera in sample.cameras] for sample in samples],
        "depth_range": [list(map(float, sample.depth_range or ())) for sample in samples],
    }
    depths = [np.asarray(sample.depth, dtype=np.float32) for sample in samples]
    masked = [np.where(sample.valid, depth, np.nan) for sample, depth in zip(samples, depths, strict=True)]
    stacks = {
        "images": np.stack([np.stack(sample.images) for sample in samples]),
        "depth": np.stack(masked).astype(np.float32),
    }
    save_shard(folder, name, stacks, facts, _SUFFIX)


def _open_shard(name: Path) -> _Shard:
    try:
        facts = json.loads(Path(f"{name}{_SUFFIX}").read_text(encoding="utf-8"))
        images, depth = (np.load(f"{name}.{part}.npy", mmap_mode="r") for part in ("images", "depth"))
        lengths = {len(facts[key]) for key in _FACTS} | {len(images), len(depth)}
        fits = images.ndim == 5 and images.shape[-1] == 3 and images.shape[2:4] == depth.shape[1:]
        for row in range(len(images)):
            for matrix in facts["intrinsics"][row]:
                Camera(np.array(matrix))
            fits &= np.shape(facts["world_to_camera"][row]) == (images.shape[1], 4, 4)
            fits &= len(facts["intrinsics"][row]) == images.shape[1] and len(facts["depth_range"][row]) == 2
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, CalibrationError) as error:
        raise FileFormatError(f"{name}: damaged shard of a multi-view pool ({error}): write it anew") from error
    if len(lengths) != 1 or not fits:
        raise FileFormatError(f"{name}: the arrays of this shard do not fit each other: write it anew")
    return _Shard(images, depth, facts)
