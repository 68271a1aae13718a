# SPDX-License-Identifier: Apache-2.0
"""Between equirectangular panoramas and the faces of the icosphere, both ways.

Sampling across the border of a panorama: columns wrap around; a row above the top (or below the bottom) lies behind the
pole, so it is the mirrored row at the opposite longitude. Colours are sampled bilinearly, depth and masks take the
nearest pixel (no mixing across edges or with holes).
"""

from __future__ import annotations

import functools

import numpy as np

from vision3d.errors import InputError
from vision3d.geometry.icosphere import MAX_LEVEL, face_count, find_faces, icosphere
from vision3d.geometry.panorama import panorama_pixels, panorama_rays


def partner_level(height: int) -> int:
    """The level whose faces are as dense as the pixels at the equator of a panorama: 6 for 256 rows, 7 for 512.

    Rounded, at most 8 (the last level with tables).

    Raises:
        InputError: a height below 1.
    """
    if height < 1:
        raise InputError(f"a panorama has at least 1 row, got {height}")
    # mean solid angle of a face = (pi / H)^2
    level = np.log2(height / np.pi * np.sqrt(4 * np.pi / 20))
    return int(np.clip(np.rint(level), 0, MAX_LEVEL))


def pixel_solid_angles(height: int, width: int | None = None) -> np.ndarray:
    """Solid angle of one pixel of each row, steradians: [H] float64; W times their sum is 4 pi (W = 2 H unless given).

    Raises:
        InputError: a size below 1.
    """
    width = 2 * height if width is None else width
    if height < 1 or width < 1:
        raise InputError(f"a panorama has at least 1 x 1 pixels, got {width} x {height}")
    edges = np.sin(np.pi / 2 - np.pi * np.arange(height + 1) / height)
    return np.asarray(2 * np.pi / width * (edges[:-1] - edges[1:]))


def bilinear_table(pixels: np.ndarray, height: int, width: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The four pixels around continuous positions, and their shares.

    Args:
        pixels: [N, 2] positions (u, v), as of :func:`vision3d.geometry.panorama.panorama_pixels`.
        height, width: size of the panorama; W = 2 H unless given. W must be even.

    Returns:
        [N, 4] int64 indices into the rows of the panorama laid end to end, and [N, 4] float64 shares that sum to 1.

    Raises:
        InputError: positions of another shape, or an odd width.
    """
    width = _width(height, width)
    positions = np.asarray(pixels, dtype=np.float64)
    if positions.ndim != 2 or positions.shape[1] != 2:
        raise InputError(f"positions must be [N, 2], got shape {positions.shape}")
    u, v = positions.T
    left, top = np.floor(u).astype(np.int64), np.floor(v).astype(np.int64)
    right_share, bottom_share = u - left, v - top
    indices = [_wrapped(left + i, top + j, height, width) for j in (0, 1) for i in (0, 1)]
    shares = [
        (right_share if i else 1 - right_share) * (bottom_share if j else 1 - bottom_share)
        for j in (0, 1)
        for i in (0, 1)
    ]
    return np.stack(indices, axis=1), np.stack(shares, axis=1)


def _width(height: int, width: int | None) -> int:
    width = 2 * height if width is None else width
    if height < 1 or width < 2 or width % 2:
        raise InputError(f"a panorama needs at least 1 row and an even width, got {width} x {height}")
    return width


def _wrapped(column: np.ndarray, row: np.ndarray, height: int, width: int) -> np.ndarray:
    """Index of a pixel one row beyond a pole at most, or any column."""
    beyond = (row < 0) | (row >= height)
    row = np.where(row < 0, -1 - row, np.where(row >= height, 2 * height - 1 - row, row))
    return np.asarray(row * width + (column + beyond * (width // 2)) % width)


@functools.lru_cache(maxsize=8)
def face_table(level: int, height: int, width: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """:func:`bilinear_table` at the face centres of a level: [F, 4] int64 and float64, read-only.

    Raises:
        InputError: a level outside 0 to 8, or an odd width.
    """
    width = _width(height, width)
    indices, shares = bilinear_table(panorama_pixels(icosphere(level).centres, height, width), height, width)
    for table in (indices, shares):
        table.flags.writeable = False
    return indices, shares


def panorama_to_faces(values: np.ndarray, level: int, *, nearest: bool = False, reduce: bool = False) -> np.ndarray:
    """Sample a panorama at the face centres.

    Args:
        values: [H, W] or [H, W, C], W even.
        level: 0 to 8.
        nearest: take the nearest pixel as it is (depth, masks; the type is kept), else bilinear float64.
        reduce: where the mesh is coarser than the panorama, average the samples of the level that matches the
            panorama over each face, so that no detail turns into noise. Not with ``nearest``.

    Returns:
        [F] or [F, C].

    Raises:
        InputError: an array of another shape, an odd width, or ``reduce`` together with ``nearest``.
    """
    panorama = np.asarray(values)
    if panorama.ndim not in (2, 3):
        raise InputError(f"a panorama must be [H, W] or [H, W, C], got shape {panorama.shape}")
    if nearest and reduce:
        raise InputError("nearest samples are not averaged: leave out reduce")
    height, width = panorama.shape[0], _width(*panorama.shape[:2])
    flat = panorama.reshape(height * width, *panorama.shape[2:])
    if nearest:
        u, v = panorama_pixels(icosphere(level).centres, height, width).T
        row = np.clip(np.floor(v + 0.5).astype(np.int64), 0, height - 1)
        return np.asarray(flat[row * width + np.floor(u + 0.5).astype(np.int64) % width])
    sampled = max(level, partner_level(height)) if reduce else level
    indices, shares = face_table(sampled, height, width)
    faces = np.einsum("nk...,nk->n...", flat[indices].astype(np.float64), shares)
    # the descendants of face f over s levels are f + n k, k < 4^s
    return np.asarray(faces.reshape(-1, face_count(level), *faces.shape[1:]).mean(axis=0))


@functools.lru_cache(maxsize=8)
def panorama_faces(height: int, level: int) -> np.ndarray:
    """The face behind each pixel centre of an H x 2H panorama: [H, 2H] int32, read-only.

    Raises:
        InputError: a height below 1, or a level outside 0 to 8.
    """
    found = find_faces(panorama_rays(height), level)
    found.flags.writeable = False
    return found


@functools.lru_cache(maxsize=4)
def smooth_table(height: int, level: int) -> tuple[np.ndarray, np.ndarray]:
    """The face behind each pixel of an H x 2H panorama and its 3 neighbours, with shares by 1 / angle to the centres.

    Returns:
        [H * 2H, 4] int32 faces and float64 shares that sum to 1, read-only.

    Raises:
        InputError: a height below 1, or a level outside 0 to 8.
    """
    mesh, own = icosphere(level), panorama_faces(height, level).reshape(-1)
    faces = np.concatenate([own[:, None], mesh.adjacency[own]], axis=1)
    chord = np.linalg.norm(mesh.centres[faces] - panorama_rays(height).reshape(-1, 1, 3), axis=2)
    nearness = 1 / np.maximum(2 * np.arcsin(np.clip(chord / 2, 0, 1)), 1e-12)
    shares = nearness / nearness.sum(axis=1, keepdims=True)
    for table in (faces, shares):
        table.flags.writeable = False
    return faces, shares


def faces_to_panorama(faces: np.ndarray, height: int, *, smooth: bool = False) -> np.ndarray:
    """Paint face values onto an H x 2H panorama.

    Args:
        faces: [F] or [F, C] with F = 20 * 4^level.
        height: rows of the panorama.
        smooth: blend the face behind a pixel with its 3 neighbours by 1 / angle (float64; mixes across edges), else the
            face's value as it is.

    Returns:
        [H, 2H] or [H, 2H, C].

    Raises:
        InputError: F is no number of faces of a level 0 to 8.
    """
    values = np.asarray(faces)
    level = level_of(len(values)) if values.ndim else -1
    if not smooth:
        return np.asarray(values[panorama_faces(height, level)])
    indices, shares = smooth_table(height, level)
    blended = np.einsum("nk...,nk->n...", values[indices].astype(np.float64), shares)
    return blended.reshape(height, 2 * height, *values.shape[1:])


def level_of(faces: int) -> int:
    """The level with this number of faces.

    Raises:
        InputError: there is none from 0 to 8.
    """
    for level in range(MAX_LEVEL + 1):
        if face_count(level) == faces:
            return level
    raise InputError(f"{faces} is no number of faces of an icosphere: 20 * 4^level, level 0 to {MAX_LEVEL}, is")
