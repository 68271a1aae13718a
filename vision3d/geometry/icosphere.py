# SPDX-License-Identifier: Apache-2.0
"""The icosphere: a sphere of triangles, refined 1-to-4 from the icosahedron, with the tables that mesh networks need.

Axes: x right, y down, z forward. Corners run counter-clockwise seen from outside. Numbering, with n faces at a level:

- face f = (a, b, c) has the children f: (a, m_ab, m_ca), f + n: (b, m_bc, m_ab), f + 2n: (c, m_ca, m_bc) and
  f + 3n: (m_bc, m_ca, m_ab), so features of children viewed as (4, n) have the child slot first, and the parent of a
  face is its number modulo n;
- midpoints are appended to the vertices, sorted by the (smaller, larger) number of the two ends;
- ``adjacency[f, k]`` is the face across the edge opposite corner k: the edges are (b, c), (c, a), (a, b).

Tables from level 6 on are kept in the user's cache folder (``$VISION3D_CACHE``, else ``$XDG_CACHE_HOME/vision3d``, else
``~/.cache/vision3d``) with a checksum; a damaged file is built again, and a folder that cannot be written is not used.
"""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vision3d.errors import InputError, OutputError
from vision3d.io.files import atomic_write, ensure_folder

MAX_LEVEL = 8
_FIRST_CACHED = 6
_FORMAT = 1
_TABLES = ("vertices", "faces", "adjacency")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Icosphere:
    """One level of the icosphere. The arrays are shared and read-only.

    Attributes:
        level: number of refinements, V = 10 * 4^level + 2 vertices and F = 20 * 4^level faces.
        vertices: [V, 3] float64, unit vectors.
        faces: [F, 3] int32, corners of each face.
        adjacency: [F, 3] int32, the neighbours of each face.
    """

    level: int
    vertices: np.ndarray
    faces: np.ndarray
    adjacency: np.ndarray

    @functools.cached_property
    def centres(self) -> np.ndarray:
        """[F, 3] float64: normalised means of the corners."""
        return _frozen(_normalised(self.vertices[self.faces].mean(axis=1)))

    @functools.cached_property
    def solid_angles(self) -> np.ndarray:
        """[F] float64, steradians; they sum to 4 pi (Van Oosterom & Strackee, IEEE TBME 1983)."""
        a, b, c = np.moveaxis(self.vertices[self.faces], 1, 0)
        volume = np.einsum("ij,ij->i", a, np.cross(b, c))
        sides = (np.einsum("ij,ij->i", *pair) for pair in ((a, b), (b, c), (c, a)))
        return _frozen(2 * np.arctan2(volume, 1 + sum(sides)))

    @functools.cached_property
    def twins(self) -> np.ndarray:
        """[3F] int32: side 3f + k of face f lies against side ``twins[3f + k]``; its own inverse."""
        return _frozen(_twins(self.adjacency))

    @property
    def parents(self) -> np.ndarray:
        """[F] int32: the face of the level below that holds each face.

        Raises:
            InputError: level 0 has no parents.
        """
        if self.level == 0:
            raise InputError("the faces of level 0 have no parents: ask from level 1 on")
        return np.arange(len(self.faces), dtype=np.int32) % (len(self.faces) // 4)

    @property
    def children(self) -> np.ndarray:
        """[F, 4] int32: the faces of the next level at corner 0, 1, 2 and in the middle of each face."""
        count = len(self.faces)
        return np.arange(4 * count, dtype=np.int32).reshape(4, count).T.copy()


def face_count(level: int) -> int:
    """Faces of a level: 20 * 4^level."""
    return int(20 * 4**level)


def icosphere(level: int, *, cache: bool = True) -> Icosphere:
    """The icosphere of a level, built once a process.

    Args:
        level: 0 to 8.
        cache: use the cache folder from level 6 on.

    Raises:
        InputError: a level outside 0 to 8.

    Example:
        >>> icosphere(2).faces.shape
        (320, 3)
    """
    if isinstance(level, bool) or not isinstance(level, int | np.integer) or not 0 <= level <= MAX_LEVEL:
        raise InputError(f"the level of an icosphere must be a whole number from 0 to {MAX_LEVEL}, got {level!r}")
    return _icosphere(int(level), cache)


@functools.lru_cache(maxsize=2 * (MAX_LEVEL + 1))
def _icosphere(level: int, cache: bool) -> Icosphere:
    def build() -> Icosphere:
        return _refined(_icosphere(level - 1, cache)) if level else _icosahedron()

    return _cached(level, build) if cache and level >= _FIRST_CACHED else build()


def _icosahedron() -> Icosphere:
    p = (1 + 5**0.5) / 2
    corners: list[tuple[float, float, float]] = [(-1, p, 0), (1, p, 0), (-1, -p, 0), (1, -p, 0)]
    corners += [(0, -1, p), (0, 1, p), (0, -1, -p), (0, 1, -p), (p, 0, -1), (p, 0, 1), (-p, 0, -1), (-p, 0, 1)]
    fan = [(0, 11, 5), (0, 5, 1), (0, 1, 7), (0, 7, 10), (0, 10, 11)]
    belt = [(1, 5, 9), (5, 11, 4), (11, 10, 2), (10, 7, 6), (7, 1, 8)]
    other_fan = [(3, 9, 4), (3, 4, 2), (3, 2, 6), (3, 6, 8), (3, 8, 9)]
    other_belt = [(4, 9, 5), (2, 4, 11), (6, 2, 10), (8, 6, 7), (9, 8, 1)]
    faces = np.array(fan + belt + other_fan + other_belt, dtype=np.int32)
    adjacency = np.empty_like(faces)
    for f, face in enumerate(faces):
        for k in range(3):
            edge = {face[(k + 1) % 3], face[(k + 2) % 3]}
            adjacency[f, k] = next(g for g, other in enumerate(faces) if g != f and edge <= set(other))
    return _sphere(0, _normalised(np.array(corners, dtype=np.float64)), faces, adjacency)


def _refined(mesh: Icosphere) -> Icosphere:
    """The next level: each triangle split at its edge midpoints, neighbours carried over without a search."""
    faces, count, known = mesh.faces.astype(np.int64), len(mesh.faces), len(mesh.vertices)
    sides = np.arange(3 * count)
    ends = np.stack([faces[:, [1, 2, 0]].reshape(-1), faces[:, [2, 0, 1]].reshape(-1)])
    first = np.flatnonzero(sides < mesh.twins)  # one of the two sides of each edge
    low, high = ends[:, first].min(axis=0), ends[:, first].max(axis=0)
    order = np.argsort(low * known + high)
    midpoint = np.empty(3 * count, dtype=np.int64)
    midpoint[first[order]] = np.arange(known, known + len(first))
    midpoint[mesh.twins[first[order]]] = np.arange(known, known + len(first))
    new = _normalised((mesh.vertices[low] + mesh.vertices[high])[order] / 2)

    a, b, c = faces.T
    m_bc, m_ca, m_ab = midpoint.reshape(-1, 3).T
    children = [(a, m_ab, m_ca), (b, m_bc, m_ab), (c, m_ca, m_bc), (m_bc, m_ca, m_ab)]
    split = np.concatenate([np.stack(child, axis=1) for child in children])
    return _sphere(mesh.level + 1, np.concatenate([mesh.vertices, new]), split, _child_adjacency(mesh))


def _child_adjacency(mesh: Icosphere) -> np.ndarray:
    """Neighbours of the children, from those of the parents.

    The child at corner k touches the middle child and, across the two parent sides that meet in k, the children of the
    neighbours at the same vertex. Along a side, corners run the other way round in the neighbour: the end k + 1 of side
    k is the end s + 2 of its twin side s.
    """
    count = len(mesh.faces)
    own = np.arange(count)
    other, slot = mesh.twins.reshape(-1, 3) // 3, mesh.twins.reshape(-1, 3) % 3
    corners = []
    for k in range(3):
        # the next corner of a corner child lies on side k + 2 of the parent, its last one on side k + 1
        last, following = (k + 2) % 3, (k + 1) % 3
        across_following = other[:, following] + count * ((slot[:, following] + 1) % 3)
        across_last = other[:, last] + count * ((slot[:, last] + 2) % 3)
        corners.append(np.stack([own + 3 * count, across_following, across_last], axis=1))
    middle = np.stack([own, own + count, own + 2 * count], axis=1)
    return np.concatenate([*corners, middle])


def _twins(adjacency: np.ndarray) -> np.ndarray:
    count = len(adjacency)
    slot = np.argmax(adjacency[adjacency] == np.arange(count)[:, None, None], axis=2)
    return (3 * adjacency.astype(np.int64) + slot).reshape(-1).astype(np.int32)


def _sphere(level: int, vertices: np.ndarray, faces: np.ndarray, adjacency: np.ndarray) -> Icosphere:
    tables = (np.ascontiguousarray(table, dtype=np.int32) for table in (faces, adjacency))
    return Icosphere(level, _frozen(vertices), *(_frozen(table) for table in tables))


def _normalised(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def ring_neighbours(mesh: Icosphere) -> np.ndarray:
    """The 9 neighbours of kernel size 5: [F, 9] int32 (SubdivNet, arXiv 2106.02285).

    For each neighbour e_k of a face: the next of e_k, e_k, the previous of e_k, where next and previous are the other
    two neighbours of e_k met when turning around it after and before the face.
    """
    entered, slot = mesh.twins // 3, mesh.twins % 3
    following, previous = mesh.adjacency[entered, (slot + 1) % 3], mesh.adjacency[entered, (slot + 2) % 3]
    return np.stack([following, entered, previous], axis=1).reshape(-1, 9)


def dilated_neighbours(mesh: Icosphere, dilation: int) -> np.ndarray:
    """The 3 neighbours of a dilated convolution: [F, 3] int32 (SubdivNet, arXiv 2106.02285).

    From each side ``dilation`` faces are walked outwards, turning alternately to the previous and to the next side of
    each entered face. Dilation 1 gives the adjacency.

    Raises:
        InputError: a dilation below 1.
    """
    if dilation < 1:
        raise InputError(f"the dilation must be at least 1, got {dilation}")
    entered = mesh.twins
    for step in range(dilation - 1):
        entered = mesh.twins[entered // 3 * 3 + (entered % 3 + (2 if step % 2 == 0 else 1)) % 3]
    return np.asarray(entered // 3).reshape(-1, 3)


def find_faces(directions: np.ndarray, level: int) -> np.ndarray:
    """The face that each direction points into, by descent from level 0: exact, level + 1 steps.

    Args:
        directions: [..., 3] of any positive length.
        level: 0 to 8.

    Returns:
        [...] int32. A direction on a side belongs to one of the faces that meet there.

    Raises:
        InputError: directions of another shape, or a level outside 0 to 8.
    """
    points = np.asarray(directions, dtype=np.float64)
    if points.ndim < 1 or points.shape[-1] != 3:
        raise InputError(f"directions must be [..., 3], got shape {points.shape}")
    icosphere(level)  # checks the level
    flat, centres = points.reshape(-1, 3), icosphere(0).centres.T
    found = np.empty(len(flat), dtype=np.int32)
    step = 1 << 13  # directions that stay in the processor's cache
    for start in range(0, len(flat), step):
        block = flat[start : start + step]
        x, y, z = block.T.copy()
        face = np.argmax(block @ centres, axis=1)  # all planes of the icosahedron are equally far from its centre
        for depth in range(level):
            cut = np.take(_cuts(depth), face, axis=0).T
            first, second, third = (cut[k] * x + cut[k + 1] * y + cut[k + 2] * z > 0 for k in (0, 3, 6))
            face = face + face_count(depth) * np.where(first, 0, np.where(second, 1, np.where(third, 2, 3)))
        found[start : start + step] = face
    return found.reshape(points.shape[:-1])


@functools.lru_cache(maxsize=MAX_LEVEL)
def _cuts(level: int) -> np.ndarray:
    """[F, 9]: normals of the three planes that cut the corner children off each face."""
    finer = icosphere(level + 1)
    m_bc, m_ca, m_ab = np.moveaxis(finer.vertices[finer.faces[3 * face_count(level) :]], 1, 0)
    return np.concatenate([np.cross(m_ab, m_ca), np.cross(m_bc, m_ab), np.cross(m_ca, m_bc)], axis=1)


def cache_folder() -> Path:
    """Where tables are kept between runs (see the module's description)."""
    own = os.environ.get("VISION3D_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vision3d"


def _cached(level: int, build: Callable[[], Icosphere]) -> Icosphere:
    try:
        path = cache_folder() / f"icosphere_{level}_v{_FORMAT}.bin"
    except RuntimeError:  # no home folder
        return build()
    mesh = _read(path, level)
    if mesh is None:
        mesh = build()
        try:
            ensure_folder(path.parent)
            _write(path, mesh)
        except OutputError as error:
            _log.debug("the icosphere is not kept: %s", error)
    return mesh


def _write(path: Path, mesh: Icosphere) -> None:
    content = io.BytesIO()
    np.savez(content, **{name: getattr(mesh, name) for name in _TABLES})
    with atomic_write(path) as temporary:
        temporary.write_bytes(hashlib.sha256(content.getbuffer()).digest() + content.getbuffer())


def _read(path: Path, level: int) -> Icosphere | None:
    """The kept tables, or None where there are none or they are damaged."""
    try:
        content = memoryview(path.read_bytes())
        if hashlib.sha256(content[32:]).digest() != bytes(content[:32]):
            return None
        with np.load(io.BytesIO(content[32:]), allow_pickle=False) as tables:
            mesh = _sphere(level, *(tables[name] for name in _TABLES))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    return mesh if mesh.faces.shape == (face_count(level), 3) else None
