# SPDX-License-Identifier: Apache-2.0
"""Turning panoramas: any rotation of the camera, and the seam and poles that it moves."""

from __future__ import annotations

import numpy as np

from vision3d.errors import InputError
from vision3d.geometry.panorama import panorama_pixels, panorama_rays
from vision3d.geometry.panorama_mesh import bilinear_table


def rotation_matrix(yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> np.ndarray:
    """[3, 3] rotation that moves what a panorama shows: roll about z first, then pitch about x, then yaw about y.

    Args:
        yaw: degrees to the right (a roll of the columns by W * yaw / 360).
        pitch: degrees upwards, of what lies ahead.
        roll: degrees clockwise about the viewing direction.
    """
    (cy, sy), (cp, sp), (cr, sr) = (
        (np.cos(angle), np.sin(angle)) for angle in np.radians((yaw, pitch, roll), dtype=np.float64)
    )
    about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_x = np.array([[1, 0, 0], [0, cp, -sp], [0, sp, cp]])
    about_z = np.array([[cr, -sr, 0], [sr, cr, 0], [0, 0, 1]])
    return np.asarray(about_y @ about_x @ about_z)


def rotate_panorama(values: np.ndarray, rotation: np.ndarray, *, nearest: bool = False) -> np.ndarray:
    """What a panorama becomes when all that it shows is rotated about the camera.

    A distance along the ray stays what it is, so distance maps are turned in the same way as images.

    Args:
        values: [H, 2H] or [H, 2H, C].
        rotation: [3, 3]; what was seen in direction d is then seen in ``rotation @ d``.
        nearest: take the nearest pixel (depth, masks), else bilinear; the type is kept, integers are rounded.

    Returns:
        An array of that shape and type. A rotation about the vertical axis by whole pixels is exact.

    Raises:
        InputError: another shape, or a matrix that is no rotation.
    """
    panorama, matrix = np.asarray(values), np.asarray(rotation, dtype=np.float64)
    if panorama.ndim not in (2, 3) or panorama.shape[1] != 2 * panorama.shape[0]:
        raise InputError(f"a panorama must be [H, 2 H] or [H, 2 H, C], got shape {panorama.shape}")
    if matrix.shape != (3, 3) or not np.allclose(matrix @ matrix.T, np.eye(3), atol=1e-6) or np.linalg.det(matrix) < 0:
        raise InputError("rotation must be a 3 x 3 rotation matrix")
    height, width = panorama.shape[:2]
    columns = _whole_columns(matrix, width)
    if columns is not None:
        return np.roll(panorama, columns, axis=1)
    pixels = panorama_pixels(panorama_rays(height) @ matrix, height).reshape(-1, 2)  # rays @ R = R^T ray
    flat = panorama.reshape(height * width, *panorama.shape[2:])
    if nearest:
        u, v = np.floor(pixels + 0.5).astype(np.int64).T
        return np.asarray(flat[np.clip(v, 0, height - 1) * width + u % width]).reshape(panorama.shape)
    indices, shares = bilinear_table(pixels, height)
    turned = np.einsum("nk...,nk->n...", flat[indices].astype(np.float32), shares.astype(np.float32))
    if np.issubdtype(panorama.dtype, np.integer):
        turned = np.rint(turned)
    return np.asarray(turned.reshape(panorama.shape), dtype=panorama.dtype)


def _whole_columns(matrix: np.ndarray, width: int) -> int | None:
    """Columns to roll by, if the rotation is one about the vertical axis by whole pixels."""
    if not np.allclose(matrix[1], (0, 1, 0), atol=1e-9):
        return None
    columns = np.arctan2(matrix[0, 2], matrix[0, 0]) * width / (2 * np.pi)
    return int(np.rint(columns)) if abs(columns - np.rint(columns)) < 1e-6 else None
