# SPDX-License-Identifier: Apache-2.0
"""Writing a point cloud part by part, so that the memory does not grow with its size."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vision3d.errors import OutputError
from vision3d.io.files import atomic_write
from vision3d.types import PointCloud

_COLUMNS = (("x", "f4"), ("y", "f4"), ("z", "f4"), ("nx", "f4"), ("ny", "f4"), ("nz", "f4"))
_COLORS = (("red", "u1"), ("green", "u1"), ("blue", "u1"))
_NAMES = {"f4": "float", "u1": "uchar"}


def write_ply_stream(path: str | os.PathLike[str], clouds: Iterable[PointCloud]) -> int:
    """Write clouds with colours and normals, one after the other, as one binary ``.ply``; return the number of points.

    Points that are not finite are left out.

    Raises:
        OutputError: the place is not writable.
    """
    count = 0
    dtype = np.dtype([*((name, f"<{kind}") for name, kind in _COLUMNS), *_COLORS])
    try:
        with tempfile.TemporaryFile(dir=Path(path).parent) as body:
            for cloud in clouds:
                table = _table(cloud, dtype)
                body.write(table.tobytes())
                count += len(table)
            body.seek(0)
            with atomic_write(path) as temporary, temporary.open("wb") as file:
                file.write(_header(count))
                shutil.copyfileobj(body, file, 1 << 20)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{path}: cannot be written ({error.strerror or error}); choose a writable place") from error
    return count


def _table(cloud: PointCloud, dtype: np.dtype) -> np.ndarray:
    table = np.zeros(len(cloud), dtype)
    for axis, name in enumerate("xyz"):
        table[name] = cloud.points[:, axis]
        if cloud.normals is not None:
            table[f"n{name}"] = cloud.normals[:, axis]
    for axis, (name, _) in enumerate(_COLORS):
        table[name] = 0 if cloud.colors is None else cloud.colors[:, axis]
    finite = np.isfinite(cloud.points).all(axis=1)
    return table if finite.all() else table[finite]


def _header(count: int) -> bytes:
    rows = ["ply", "format binary_little_endian 1.0", f"element vertex {count}"]
    rows += [f"property {_NAMES[kind]} {name}" for name, kind in (*_COLUMNS, *_COLORS)]
    return ("\n".join([*rows, "end_header"]) + "\n").encode("ascii")
