# SPDX-License-Identifier: Apache-2.0
"""Panoramas to faces and back, against reference values, SciPy, analytic signals and exact distance maps."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from vision3d.errors import InputError
from vision3d.geometry.icosphere import face_count, icosphere
from vision3d.geometry.panorama import panorama_pixels, panorama_rays
from vision3d.geometry.panorama_mesh import (
    bilinear_table,
    faces_to_panorama,
    level_of,
    panorama_faces,
    panorama_to_faces,
    partner_level,
    pixel_solid_angles,
)


def signal(directions: np.ndarray) -> np.ndarray:
    x, y, z = np.moveaxis(directions, -1, 0)
    return np.asarray(0.5 + 0.3 * x - 0.2 * y + 0.4 * x * y + 0.1 * z * z)


@pytest.mark.real
def test_sampling_equals_the_reference(shared: Path) -> None:
    values = np.load(shared / "parity/spheredepth/sampling_and_ops.npz")
    u, v = panorama_pixels(icosphere(3).centres, 256).T
    np.testing.assert_allclose(u, values["face_u"], atol=1e-10)
    np.testing.assert_allclose(v, values["face_v"], atol=1e-10)
    np.testing.assert_allclose(signal(icosphere(3).centres), values["signal_face_exact"], atol=1e-12)
    sampled = panorama_to_faces(signal(panorama_rays(256)), 3)
    np.testing.assert_allclose(sampled, values["signal_face_bilinear"], atol=1e-12)
    for height in (8, 256, 512):
        np.testing.assert_allclose(pixel_solid_angles(height), values[f"row_solid_angle_H{height}"], atol=1e-12)


@pytest.mark.real
def test_rays_equal_the_reference(shared: Path) -> None:
    with open(shared / "parity/spheredepth/erp_pixel_vectors.csv", newline="") as lines:
        for row in csv.DictReader(lines):
            ray = panorama_rays(int(row["H"]))[int(row["v"]), int(row["u"])]
            np.testing.assert_allclose(ray, [float(row[k]) for k in ("x_right", "y_down", "z_forward")], atol=1e-11)


@pytest.mark.real
@pytest.mark.parametrize(
    ("level", "floor"),
    [(4, (0.0103, 0.0238, 0.068)), (5, (0.0050, 0.0117, 0.045)), (6, (0.0012, 0.0027, 0.019)), (7, (0, 0, 0))],
)
def test_error_floor_of_the_mesh(level: int, floor: tuple[float, float, float], shared: Path) -> None:
    errors = []
    for path in sorted((shared / "data/pano_sample/synthetic_room").rglob("*_distance_f32.npz")):
        truth = np.load(path)["distance"]
        painted = faces_to_panorama(panorama_to_faces(truth, level, nearest=True), 256)
        both = (truth > 0) & (painted > 0)
        error, true = np.abs(painted - truth)[both], truth[both]
        errors.append(((error / true).mean(), error.mean(), np.sqrt(np.square(error).mean())))
    assert len(errors) == 2
    np.testing.assert_allclose(np.mean(errors, axis=0), floor, rtol=0.1, atol=5e-4)


def test_solid_angles_fill_the_sphere() -> None:
    for height, width in ((1, 2), (7, 14), (512, 1024), (3, 10)):
        assert width * pixel_solid_angles(height, width).sum() == pytest.approx(4 * np.pi)


@pytest.mark.parametrize("height", [2, 5, 32])
def test_bilinear_samples_equal_scipy_on_a_padded_panorama(height: int) -> None:
    panorama = np.random.default_rng(0).normal(size=(height, 2 * height))
    directions = np.random.default_rng(1).normal(size=(500, 3))
    directions[:2] = (0, 1, 0), (0, -1, 0)  # the poles
    pixels = panorama_pixels(directions, height)
    indices, shares = bilinear_table(pixels, height)
    turned = np.roll(panorama, height, axis=1)
    padded = np.pad(np.concatenate([turned[:1], panorama, turned[-1:]]), ((0, 0), (1, 1)), mode="wrap")
    expected = map_coordinates(padded, [pixels[:, 1] + 1, pixels[:, 0] + 1], order=1)
    np.testing.assert_allclose((panorama.reshape(-1)[indices] * shares).sum(axis=1), expected, atol=1e-12)
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_nearest_keeps_values_and_type() -> None:
    panorama = np.random.default_rng(0).integers(0, 60000, (16, 32)).astype(np.uint16)
    faces = panorama_to_faces(panorama, 4, nearest=True)
    assert faces.dtype == np.uint16
    for face, (u, v) in enumerate(panorama_pixels(icosphere(4).centres, 16)[:200]):
        if min(abs(u % 1 - 0.5), abs(v % 1 - 0.5)) < 1e-9:
            continue  # two pixels are equally near
        around = np.abs(np.arange(32) - u)
        row, column = np.abs(np.arange(16) - v).argmin(), np.minimum(around, 32 - around).argmin()
        assert faces[face] == panorama[row, column]
    mask = panorama_to_faces(panorama > 30000, 4, nearest=True)
    assert mask.dtype == bool


def test_reduced_samples_keep_the_mean() -> None:
    noise = np.random.default_rng(0).normal(size=(64, 128, 3))
    plain, reduced = panorama_to_faces(noise, 2), panorama_to_faces(noise, 2, reduce=True)
    assert plain.shape == reduced.shape == (320, 3)
    assert reduced.std() < 0.4 * plain.std()
    smooth = signal(panorama_rays(64))
    np.testing.assert_allclose(panorama_to_faces(smooth, 2, reduce=True), signal(icosphere(2).centres), atol=0.02)


@pytest.mark.parametrize("smooth", [False, True])
def test_painting_a_smooth_signal(smooth: bool) -> None:
    painted = faces_to_panorama(signal(icosphere(5).centres), 32, smooth=smooth)
    error = np.abs(painted - signal(panorama_rays(32)))
    assert error.max() < (0.015 if smooth else 0.03)
    assert error.mean() < (0.003 if smooth else 0.008)
    colours = faces_to_panorama(np.ones((320, 3)), 8, smooth=smooth)
    np.testing.assert_allclose(colours, np.ones((8, 16, 3)))


def test_partner_levels_and_sizes() -> None:
    assert [partner_level(height) for height in (1, 64, 128, 256, 512, 1024, 4096)] == [0, 4, 5, 6, 7, 8, 8]
    assert [level_of(face_count(level)) for level in range(9)] == list(range(9))
    assert panorama_faces(8, 1).shape == (8, 16)
    with pytest.raises(InputError, match="321 is no number of faces"):
        level_of(321)
    with pytest.raises(InputError, match="even width"):
        panorama_to_faces(np.ones((4, 7)), 1)
    with pytest.raises(InputError, match="not averaged"):
        panorama_to_faces(np.ones((4, 8)), 1, nearest=True, reduce=True)
    with pytest.raises(InputError, match=r"\[H, W\]"):
        panorama_to_faces(np.ones(4), 1)
