# SPDX-License-Identifier: Apache-2.0
"""Transforms keep geometry right: the left view equals the right view at its matches, before and after each."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from vision3d.datasets import transforms
from vision3d.datasets.augment import TRANSFORMS, Compose, make_transform, training_augmentation
from vision3d.datasets.codecs import pinhole_rig
from vision3d.datasets.synthetic import SceneOptions, make_scene
from vision3d.errors import ConfigError, InputError, UnknownNameError
from vision3d.geometry.disparity import disparity_to_depth
from vision3d.types import StereoSample

HEIGHT, WIDTH = 90, 140
SLOPE_X, SLOPE_Y, START = 0.05, 0.04, 9.0


def texture(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Smooth colours, so that bilinear sampling is exact to about a grey level."""
    waves = [np.sin(0.11 * x + 0.07 * y + k) + np.cos(0.05 * x - 0.13 * y * (1 + 0.2 * k)) for k in range(3)]
    return np.stack(waves, axis=-1) * 55 + 128


@pytest.fixture
def sample() -> StereoSample:
    """A slanted plane: d = START + SLOPE_X x + SLOPE_Y y, exact in both views."""
    x, y = np.meshgrid(np.arange(WIDTH, dtype=np.float64), np.arange(HEIGHT, dtype=np.float64))
    disparity = START + SLOPE_X * x + SLOPE_Y * y
    right_disparity = (START + SLOPE_X * x + SLOPE_Y * y) / (1 - SLOPE_X)  # where x_left = x + d(x_left)
    left, right = texture(x, y), texture(x + right_disparity, y)
    return StereoSample(
        left=np.rint(left).astype(np.uint8),
        right=np.rint(right).astype(np.uint8),
        disparity=disparity.astype(np.float32),
        right_disparity=right_disparity.astype(np.float32),
        occlusion=x - disparity < 0,
        normals=np.broadcast_to(np.float32([0.6, 0, -0.8]), (HEIGHT, WIDTH, 3)).copy(),
        rig=pinhole_rig(WIDTH, HEIGHT, 120.0, 0.2),
        scene="plane",
        foreground=x > 20,
    )


def sample_at(image: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bilinear values and whether the place lies inside."""
    inside = (x >= 1) & (x <= image.shape[1] - 2) & (y >= 1) & (y <= image.shape[0] - 2)
    x, y = np.where(inside, x, 1), np.where(inside, y, 1)
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    fx, fy = (x - left)[..., None], (y - top)[..., None]
    image = image.astype(float)
    upper = image[top, left] * (1 - fx) + image[top, left + 1] * fx
    lower = image[top + 1, left] * (1 - fx) + image[top + 1, left + 1] * fx
    return upper * (1 - fy) + lower * fy, inside


def check_warp(sample: StereoSample, rows: np.ndarray | float = 0.0, right: bool = True, edge: int = 0) -> None:
    """The matches have equal colours; ``rows``: how far they lie below; ``edge``: right columns to ignore."""
    height, width = sample.left.shape[:2]
    x, y = np.meshgrid(np.arange(width, dtype=float), np.arange(height, dtype=float))
    cases = [(sample.left, sample.right, sample.disparity, -1)]
    if right:
        cases.append((sample.right, sample.left, sample.right_disparity, 1))
    for here, there, disparity, sign in cases:
        assert disparity is not None
        assert disparity.dtype == np.float32
        assert disparity.shape == (height, width)
        match = x + sign * np.nan_to_num(disparity, nan=-1e6)
        colors, inside = sample_at(there, match, y + rows)
        inside &= (match >= edge) & (match < width - edge)
        assert inside.mean() > 0.4
        assert np.abs(colors - here)[inside].max() < 4
        assert np.abs(colors - here)[inside].mean() < 1


def test_the_plane_itself(sample: StereoSample) -> None:
    check_warp(sample)
    broken = replace(sample, disparity=sample.disparity + np.float32(2))  # type: ignore[operator]
    with pytest.raises(AssertionError):
        check_warp(broken)


def depth_of(sample: StereoSample) -> np.ndarray:
    assert sample.rig is not None
    return np.asarray(disparity_to_depth(sample.disparity, sample.rig))


def point_of(sample: StereoSample, row: int, column: int) -> np.ndarray:
    """The 3-D point of a left pixel."""
    assert sample.rig is not None
    z = depth_of(sample)[row, column]
    return z * np.linalg.inv(sample.rig.left.intrinsics) @ [column, row, 1]


def test_crop(sample: StereoSample) -> None:
    cut = transforms.crop(sample, 10, 30, 60, 90)
    check_warp(cut)
    np.testing.assert_allclose(point_of(cut, 5, 40), point_of(sample, 15, 70), rtol=1e-6)
    assert cut.rig is not None
    assert cut.rig.size == (90, 60)
    assert cut.foreground is not None
    assert sample.foreground is not None
    np.testing.assert_array_equal(cut.foreground, sample.foreground[10:70, 30:120])


@pytest.mark.parametrize("size", [(45, 70), (135, 210), (90, 210), (131, 97), (90, 140)])
def test_resize(sample: StereoSample, size: tuple[int, int]) -> None:
    resized = transforms.resize(sample, *size)
    check_warp(resized)
    x = (np.arange(size[1]) + 0.5) * WIDTH / size[1] - 0.5
    y = (np.arange(size[0]) + 0.5) * HEIGHT / size[0] - 0.5
    want = (START + SLOPE_X * x[None] + SLOPE_Y * y[:, None]) * size[1] / WIDTH
    assert resized.disparity is not None
    inner = (slice(2, -2), slice(2, -2))
    np.testing.assert_allclose(resized.disparity[inner], want[inner], atol=1e-4)
    row, column = size[0] // 2, size[1] // 2
    source = (int((row + 0.5) * HEIGHT / size[0]), int((column + 0.5) * WIDTH / size[1]))
    assert np.linalg.norm(point_of(resized, row, column) - point_of(sample, *source)) < 0.02
    for mask in (resized.occlusion, resized.foreground, resized.normals):
        assert mask is not None
        assert mask.shape[:2] == size


@pytest.mark.parametrize("factor", [0.4, 0.5, 0.75, 1.5, 2.0, 2.7])
def test_resize_neither_spreads_nan_nor_mixes_surfaces(factor: float) -> None:
    generator = np.random.default_rng(0)
    disparity = np.where(generator.random((40, 60)) < 0.5, np.float32(8), np.float32(40))
    disparity[generator.random((40, 60)) < 0.3] = np.nan
    height, width = round(40 * factor), round(60 * factor)
    resized = transforms.resize_disparity(disparity, height, width)
    values = resized[np.isfinite(resized)] * 60 / width
    assert np.minimum(np.abs(values - 8), np.abs(values - 40)).max() < 1e-3
    rows = ((np.arange(height) + 0.5) * 40 / height).astype(int)
    columns = ((np.arange(width) + 0.5) * 60 / width).astype(int)
    np.testing.assert_array_equal(np.isnan(resized), np.isnan(disparity[rows[:, None], columns]))


@pytest.mark.parametrize(("shift", "angle"), [(1.5, 0.0), (-2.0, 0.0), (0.0, 0.5), (1.25, -0.8)])
def test_misalign_right(sample: StereoSample, shift: float, angle: float) -> None:
    moved = transforms.misalign_right(sample, shift, angle)
    assert moved.rig is None
    x, y = np.meshgrid(np.arange(WIDTH, dtype=float), np.arange(HEIGHT, dtype=float))
    turn = np.radians(angle)
    dx, dy = x - sample.disparity - (WIDTH - 1) / 2, y - (HEIGHT - 1) / 2
    below = np.sin(turn) * dx + np.cos(turn) * dy + (HEIGHT - 1) / 2 + shift - y
    check_warp(moved, below, right=False, edge=3)
    assert transforms.misalign_right(sample, 0) is sample


def test_flip_swap(sample: StereoSample) -> None:
    flipped = transforms.horizontal_flip_swap(sample)
    check_warp(flipped)
    assert (flipped.disparity > 0).all()  # type: ignore[operator]
    np.testing.assert_array_equal(flipped.left, sample.right[:, ::-1])
    twice = transforms.horizontal_flip_swap(flipped)
    np.testing.assert_array_equal(twice.disparity, sample.disparity)
    assert twice.rig is not None
    assert sample.rig is not None
    np.testing.assert_allclose(twice.rig.right.intrinsics, sample.rig.right.intrinsics)
    shifted = transforms.shift_disparity(sample, 3)  # doffs is not 0 there
    np.testing.assert_allclose(
        depth_of(transforms.horizontal_flip_swap(shifted)).min(), depth_of(shifted).min(), rtol=0.1
    )
    with pytest.raises(InputError, match="right view"):
        transforms.horizontal_flip_swap(replace(sample, right_disparity=None))


def test_flip_swap_computes_the_occlusion_of_the_new_left_view() -> None:
    scene = make_scene(7, 90, 160, SceneOptions(max_disparity=(12.0, 20.0)))
    assert scene.occlusion is not None
    assert scene.occlusion.mean() > 0.03
    flipped = transforms.horizontal_flip_swap(scene)
    assert flipped.occlusion is not None
    assert flipped.disparity is not None
    assert flipped.occlusion[np.arange(160) - flipped.disparity < 0].all()  # the match lies outside of the frame
    # the warped right view equals the left one where both see the point
    x = np.clip(np.rint(np.arange(160) - flipped.disparity).astype(int), 0, 159)
    error = np.abs(np.take_along_axis(flipped.right, x[..., None], axis=1).astype(float) - flipped.left).mean(axis=-1)
    assert error[flipped.occlusion].mean() > 2 * error[~flipped.occlusion].mean()
    twice = transforms.horizontal_flip_swap(flipped)
    assert (twice.occlusion == scene.occlusion).mean() > 0.97
    assert transforms.horizontal_flip_swap(replace(scene, disparity=None)).occlusion is None
    assert transforms.horizontal_flip_swap(replace(scene, occlusion=None)).occlusion is None
    sparse = np.full_like(flipped.disparity, np.nan)
    assert transforms.horizontal_flip_swap(replace(scene, right_disparity=sparse)).occlusion is None


def test_vertical_flip(sample: StereoSample) -> None:
    flipped = transforms.vertical_flip(sample)
    check_warp(flipped)
    point, want = point_of(flipped, 10, 50), point_of(sample, HEIGHT - 11, 50)
    np.testing.assert_allclose(point, want * [1, -1, 1], rtol=1e-6)


@pytest.mark.parametrize("pixels", [7, -5, 25, 0])
def test_shift_disparity(sample: StereoSample, pixels: int) -> None:
    shifted = transforms.shift_disparity(sample, pixels)
    check_warp(shifted)
    assert shifted.disparity is not None
    known = np.isfinite(shifted.disparity)
    np.testing.assert_allclose(depth_of(shifted)[known], depth_of(sample)[known], rtol=1e-5)
    match = np.arange(WIDTH) - shifted.disparity
    if pixels:
        assert not (match[known] < 0).any()
        assert known.mean() < 1


def test_occlude(sample: StereoSample) -> None:
    covered = transforms.occlude(sample.right, 10, 20, 30, 40)
    assert (covered != sample.right).any(axis=2).sum() <= 30 * 40
    assert len(np.unique(covered[10:40, 20:60].reshape(-1, 3), axis=0)) == 1
    np.testing.assert_array_equal(covered[:10], sample.right[:10])


def test_photometric_is_symmetric_or_not(sample: StereoSample) -> None:
    pytest.importorskip("albumentations")
    same = replace(sample, right=sample.left)
    symmetric = make_transform("photometric", {"asymmetric": 0.0, "noise_p": 0.0, "blur_p": 0.0})
    asymmetric = make_transform("photometric", {"asymmetric": 1.0, "noise_p": 0.0, "blur_p": 0.0})
    for seed in range(4):
        changed = symmetric(same, np.random.default_rng(seed))
        np.testing.assert_array_equal(changed.left, changed.right)
        assert np.abs(changed.left.astype(int) - same.left).mean() > 1
        changed = asymmetric(same, np.random.default_rng(seed))
        assert np.abs(changed.left.astype(int) - changed.right).mean() > 1
        assert changed.left.dtype == np.uint8
    np.testing.assert_array_equal(changed.disparity, sample.disparity)


OPTIONS = {"crop": {"size": [64, 96]}, "occlude": {"size": [10, 20], "p": 1.0}}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_transform_is_a_function_of_its_seed(name: str, sample: StereoSample) -> None:
    if name == "photometric":
        pytest.importorskip("albumentations")
    transform = make_transform(name, OPTIONS.get(name))
    copy = pickle.loads(pickle.dumps(transform))
    transform(sample, np.random.default_rng(99))  # no state is carried from one sample to the next
    for seed in range(3):
        one, two = (item(sample, np.random.default_rng(seed)) for item in (transform, copy))
        for part in ("left", "right", "disparity"):
            np.testing.assert_array_equal(getattr(one, part), getattr(two, part))


def test_compose_and_training_crop(sample: StereoSample) -> None:
    steps = [("resize", {"octaves": [-2.0, -1.0]}), ("crop", {}), ("shift_disparity", {"pixels": [2, 4]})]
    augment = training_augmentation(steps, (64, 96), 0.0)
    for seed in range(5):
        changed = augment(sample, np.random.default_rng(seed))
        assert changed.left.shape == (64, 96, 3)
        check_warp(changed)
    plain = training_augmentation([], (64, 96), 0.5)(sample, np.random.default_rng(3))
    want = transforms.random_crop(sample, 64, 96, np.random.default_rng(3), 0.5)
    np.testing.assert_array_equal(plain.left, want.left)
    assert Compose([])(sample, np.random.default_rng(0)) is sample


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([("misalgn", {})], "did you mean misalign"),
        ([("misalign", {"shfit": 1})], "unknown option 'shfit': choose p, shift, angle"),
        ([("misalign", {"shift": [2, 1]})], "low, high"),
        ([("misalign", {"shift": 2})], "low, high"),
        ([("occlude", {"p": 2})], r"\[0, 1\]"),
        ([("occlude", {"p": "often"})], "a number"),
        ([("occlude", {"view": "up"})], "right or left"),
        ([("resize", {})], "followed by 'crop'"),
        ([("crop", {}), ("resize", {})], "followed by 'crop'"),
        ([("crop", {}), ("crop", {})], "twice"),
        ([("crop", {"size": [1, 2]})], "no options"),
    ],
)
def test_illegal_lists(steps: list[tuple[str, dict[str, object]]], message: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        training_augmentation(steps, (64, 96), 0.0)
