# SPDX-License-Identifier: Apache-2.0
"""Synthetic scenes: their truth must explain the right image, and follow from the seed alone."""

from __future__ import annotations

import time
from itertools import islice

import cv2
import numpy as np
import pytest
from torch.utils.data import DataLoader

from vision3d.datasets.synthetic import SceneOptions, SyntheticStereo, make_scene
from vision3d.datasets.synthetic.render import Layer, find_occlusion, render_view
from vision3d.datasets.synthetic.surfaces import Surface
from vision3d.datasets.synthetic.textures import texture_library
from vision3d.errors import InputError

PLAIN = SceneOptions(photometric=0.0)


def _warp(right: np.ndarray, disparity: np.ndarray, interpolation: int = cv2.INTER_LINEAR) -> np.ndarray:
    height, width = disparity.shape
    x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    return cv2.remap(right, x - disparity, y, interpolation)


@pytest.mark.parametrize("seed", range(8))
def test_right_image_warped_by_the_disparity_is_the_left_image(seed: int) -> None:
    scene = make_scene(seed, 160, 320, PLAIN)
    assert scene.disparity is not None
    assert scene.occlusion is not None
    visible = ~scene.occlusion
    error = np.abs(_warp(scene.right, scene.disparity).astype(float) - scene.left).mean(axis=2)[visible]
    unwarped = np.abs(scene.right.astype(float) - scene.left).mean(axis=2)[visible]
    assert np.median(error) < 2.0
    assert (error > 25).mean() < 0.05  # pixels mixed at depth edges and aliased fine texture
    assert error.mean() < 0.5 * unwarped.mean()


@pytest.mark.parametrize("seed", range(8))
def test_both_views_agree_on_the_disparity(seed: int) -> None:
    scene = make_scene(seed, 160, 320, PLAIN)
    assert scene.disparity is not None
    assert scene.right_disparity is not None
    assert scene.occlusion is not None
    seen_right = _warp(scene.right_disparity, scene.disparity, cv2.INTER_NEAREST)
    difference = np.abs(seen_right - scene.disparity)[~scene.occlusion]
    # The nearest right pixel may lie beyond a depth edge; elsewhere both views see one surface.
    assert (difference < 0.5).mean() > 0.97
    assert np.median(difference) < 0.05


def test_occluded_pixels_are_those_that_a_nearer_surface_hides() -> None:
    scene = make_scene(3, 160, 320, PLAIN)
    assert scene.disparity is not None
    assert scene.right_disparity is not None
    assert scene.occlusion is not None
    x = np.arange(320, dtype=np.float32)[None] - scene.disparity
    inside = x >= 0
    np.testing.assert_array_equal(scene.occlusion[~inside], True)
    nearer = _warp(scene.right_disparity, scene.disparity, cv2.INTER_NEAREST) - scene.disparity
    hidden = scene.occlusion & inside
    assert (nearer[hidden] > 0).mean() > 0.9


def test_two_planes_have_the_disparity_and_occlusion_computed_by_hand() -> None:
    texture = texture_library()[0]
    place = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    mask = np.full((20, 30), 255, np.uint8)
    layers = [
        Layer(Surface(4.0), texture, place),
        Layer(Surface(10.0), texture, place, mask=mask, origin=(50, 10)),
    ]
    _, disparity = render_view(layers, 40, 120, right_view=False)
    _, right_disparity = render_view(layers, 40, 120, right_view=True)
    expected = np.full((40, 120), 4.0, np.float32)
    expected[10:30, 50:80] = 10.0
    np.testing.assert_array_equal(disparity, expected)
    expected_right = np.full((40, 120), 4.0, np.float32)
    expected_right[10:30, 40:70] = 10.0
    np.testing.assert_array_equal(right_disparity, expected_right)
    occluded = np.zeros((40, 120), bool)
    occluded[:, :4] = True  # outside the right view
    occluded[10:30, 44:50] = True  # 10 - 4 columns left of the near plane
    np.testing.assert_array_equal(find_occlusion(layers, disparity), occluded)


@pytest.mark.parametrize(
    "surface",
    [
        Surface(20.0, 0.2, -0.1),
        Surface(20.0, -0.3, 0.1, waves=((1.5, 0.05, 0.03, 0.4), (0.5, -0.1, 0.2, 1.0))),
        Surface(30.0, 0.05, 0.0, bulge=(-0.002, 60.0, 30.0, 0.5)),
    ],
)
def test_surfaces_invert_along_the_row(surface: Surface) -> None:
    x, y = np.meshgrid(np.linspace(0, 120, 60), np.linspace(0, 60, 30))
    np.testing.assert_allclose(surface.left_x(x - surface.disparity(x, y), y), x, atol=1e-6)
    step = 1e-5
    numeric = (surface.disparity(x + step, y) - surface.disparity(x - step, y)) / (2 * step)
    np.testing.assert_allclose(np.broadcast_to(surface.slope(x, y), x.shape), numeric, atol=1e-6)


def test_a_seed_gives_the_same_scene_and_another_seed_another() -> None:
    first, again, other = make_scene(5, 64, 128), make_scene(5, 64, 128), make_scene(6, 64, 128)
    for name in ("left", "right", "disparity", "occlusion", "right_disparity"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.left, other.left)
    assert first.scene == "synthetic_00000005"


def test_scenes_are_finite_positive_and_varied() -> None:
    largest = []
    for seed in range(30):
        scene = make_scene(100 + seed, 96, 240)
        assert scene.left.shape == scene.right.shape == (96, 240, 3)
        assert scene.left.dtype == scene.right.dtype == np.uint8
        assert scene.disparity is not None
        assert np.isfinite(scene.disparity).all()
        assert scene.disparity.min() > 0
        largest.append(scene.disparity.max())
    assert min(largest) < 12
    assert max(largest) > 50


def test_points_far_outside_an_object_stay_finite() -> None:
    bulge = Surface(30.0, 0.3, 0.0, bulge=(-0.01, 60.0, 30.0, 0.5))
    x, y = np.meshgrid(np.linspace(-2000, 2000, 4001), np.linspace(0, 60, 5))
    assert np.isfinite(bulge.left_x(x, y)).all()


def test_photometric_change_is_independent_and_keeps_the_geometry() -> None:
    plain, changed = make_scene(11, 96, 192, PLAIN), make_scene(11, 96, 192)
    np.testing.assert_array_equal(plain.disparity, changed.disparity)
    left, right = (view.astype(float).mean(axis=(0, 1)) for view in (changed.left, changed.right))
    assert not np.array_equal(plain.left, changed.left)
    assert np.abs(left - right).max() > 0.5


def test_rectification_error_shifts_only_the_right_view() -> None:
    shifted = SceneOptions(photometric=0.0, rectification_error=3.0)
    pairs = [(make_scene(seed, 96, 192, PLAIN), make_scene(seed, 96, 192, shifted)) for seed in range(12)]
    assert sum(not np.array_equal(a.right, b.right) for a, b in pairs) in range(1, 9)
    assert all(np.array_equal(a.left, b.left) for a, b in pairs)


def test_the_stream_is_endless_and_divided_over_workers() -> None:
    stream = SyntheticStereo(32, 64, seed=40)
    assert [s.scene for s in islice(stream, 3)] == [f"synthetic_{i:08d}" for i in (40, 41, 42)]
    loader = DataLoader(SyntheticStereo(32, 64, seed=0, length=5), batch_size=None, num_workers=2)
    assert sorted(s.scene for s in loader) == [f"synthetic_{i:08d}" for i in range(5)]


def test_too_small_a_scene_is_refused() -> None:
    with pytest.raises(InputError, match="at least 16 x 32"):
        make_scene(0, 8, 64)


@pytest.mark.slow
def test_speed() -> None:
    """At least 10 scenes a second and core at 256x512 on an idle machine; the bar leaves room for a busy one."""
    make_scene(0)
    start = time.process_time()
    for seed in range(20):
        make_scene(seed)
    assert 20 / (time.process_time() - start) > 5
