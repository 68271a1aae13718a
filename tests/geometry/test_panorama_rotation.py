# SPDX-License-Identifier: Apache-2.0
"""Rotated panoramas: conventions, exact turns, the oracle of the rays themselves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from vision3d.errors import InputError
from vision3d.geometry.panorama import panorama_rays
from vision3d.geometry.panorama_rotation import rotate_panorama, rotation_matrix


def test_matrix_equals_scipy() -> None:
    expected = Rotation.from_euler("YXZ", [20, 35, -50], degrees=True).as_matrix()
    np.testing.assert_allclose(rotation_matrix(20, 35, -50), expected, atol=1e-12)


def test_directions_of_the_angles() -> None:
    ahead, right = np.array([0, 0, 1.0]), np.array([1.0, 0, 0])
    np.testing.assert_allclose(rotation_matrix(yaw=90) @ ahead, right, atol=1e-12)
    np.testing.assert_allclose(rotation_matrix(pitch=90) @ ahead, (0, -1, 0), atol=1e-12)  # y points down
    np.testing.assert_allclose(rotation_matrix(roll=90) @ right, (0, 1, 0), atol=1e-12)


def test_yaw_by_whole_columns_is_an_exact_roll() -> None:
    image = np.random.default_rng(0).integers(0, 256, (16, 32, 3), dtype=np.uint8)
    turned = rotate_panorama(image, rotation_matrix(yaw=3 * 360 / 32))
    np.testing.assert_array_equal(turned, np.roll(image, 3, axis=1))


@pytest.mark.parametrize("angles", [(10, 0, 0), (0, 40, 0), (0, 0, 90), (30, 90, -20)])
def test_the_rays_themselves_turn(angles: tuple[float, float, float]) -> None:
    """A panorama that shows each direction shows R^T r in direction r after a rotation by R."""
    rays, rotation = panorama_rays(128), rotation_matrix(*angles)
    turned = rotate_panorama(rays, rotation)
    angle = np.degrees(
        np.arccos(np.clip((turned @ rotation.T * rays).sum(-1) / np.linalg.norm(turned, axis=-1), -1, 1))
    )
    assert angle.max() < 0.2
    nearest = rotate_panorama(rays, rotation, nearest=True)
    angle = np.degrees(np.arccos(np.clip((nearest @ rotation.T * rays).sum(-1), -1, 1)))
    assert angle.max() < 1.1  # three quarters of the diagonal of a pixel


def test_types_are_kept_and_holes_stay_holes() -> None:
    depth = np.full((16, 32), 2.0, dtype=np.float32)
    depth[4, 4] = np.nan
    turned = rotate_panorama(depth, rotation_matrix(pitch=20), nearest=True)
    assert turned.dtype == np.float32
    assert set(np.unique(turned[np.isfinite(turned)])) == {2.0}
    assert rotate_panorama(np.ones((4, 8), bool), rotation_matrix(roll=30), nearest=True).dtype == bool


@pytest.mark.parametrize(
    ("values", "rotation"),
    [(np.ones((4, 9)), np.eye(3)), (np.ones((4, 8)), 2 * np.eye(3)), (np.ones((4, 8)), np.diag([1.0, 1, -1]))],
)
def test_unusable_arguments(values: np.ndarray, rotation: np.ndarray) -> None:
    with pytest.raises(InputError):
        rotate_panorama(values, rotation)
