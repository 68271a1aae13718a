# SPDX-License-Identifier: Apache-2.0
"""Every stereo reader on a tree in its exact file format: values within the encoding's precision, geometry, splits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from vision3d.datasets.registry import list_datasets, open_dataset
from vision3d.datasets.synthetic import SceneOptions, make_scene
from vision3d.datasets.toy import list_layouts, write_toy_tree
from vision3d.errors import InputError, UnknownNameError
from vision3d.types import StereoBatch, StereoSample

HEIGHT, WIDTH = 64, 96
LAYOUTS = list_layouts()
# Largest error of a disparity, pixels: half a code, or what rounding a depth to centimetres costs.
PRECISION = {
    "kitti2012": 1 / 512,
    "kitti2015": 1 / 512,
    "drivingstereo": 1 / 512,
    "middlebury2001": 1 / 16,
    "middlebury2003": 1 / 8,
    "middlebury2005": 1 / 6,
    "middlebury2006": 1 / 4,
    "instereo2k": 1 / 200,
    "sintel": 1 / 32768,
    "vkitti2": 24.0**2 / (725.0087 * 0.532725) * 0.0051,
    "pool": 0,
}
LOSSY_IMAGES = ("drivingstereo", "vkitti2")
OCCLUSION = ("kitti2012", "kitti2015", "middlebury_v3", "eth3d", "sintel", "folder")
RIGHT = (
    *("sceneflow", "flyingthings3d", "driving", "monkaa", "middlebury2001", "middlebury2003", "middlebury2005"),
    *("middlebury2006", "middlebury2014", "middlebury2021", "instereo2k", "vkitti2", "tartanair", "folder"),
)
RIG = ("kitti2012", "kitti2015", "irs", "middlebury2014", "middlebury2021", "middlebury_v3", "eth3d", "vkitti2")


@pytest.fixture(scope="module")
def samples() -> list[StereoSample]:
    options = SceneOptions(max_disparity=(8.0, 20.0), photometric=0.0)
    made = [make_scene(seed, HEIGHT, WIDTH, options) for seed in range(3)]
    for sample in made:
        sample.foreground = sample.disparity > np.median(sample.disparity)  # type: ignore[operator]
    return made


def warped_difference(sample: StereoSample) -> float:
    """Median grey-level difference of the left view and the right view at ``x - d``, over visible pixels."""
    assert sample.disparity is not None
    x = np.arange(sample.left.shape[1]) - sample.disparity
    inside = np.isfinite(x) & (x >= 0)
    low = np.where(inside, np.floor(np.nan_to_num(x)), 0).astype(int)
    share = np.where(inside, x - low, 0)[..., None]
    rows = np.arange(sample.left.shape[0])[:, None]
    right = sample.right.astype(float)
    warped = right[rows, low] * (1 - share) + right[rows, np.minimum(low + 1, sample.left.shape[1] - 1)] * share
    return float(np.median(np.abs(warped - sample.left)[inside]))


def test_every_stereo_set_has_a_layout() -> None:
    assert set(LAYOUTS) == set(list_datasets("stereo")) - {"synthetic", "synthetic_rooms"}


@pytest.mark.filterwarnings("ignore:.*goes without")
@pytest.mark.parametrize("name", LAYOUTS)
def test_round_trip(name: str, samples: list[StereoSample], tmp_path: Path) -> None:
    if name == "irs":
        pytest.importorskip("OpenEXR")
    assert write_toy_tree(name, tmp_path, samples) == 3
    data = open_dataset(name, tmp_path, split="all")
    assert data.name == name  # type: ignore[attr-defined]
    assert len(data) == len(data.scenes) == 3  # type: ignore[arg-type, attr-defined]
    precision = PRECISION.get(name, 2e-5)
    for want, scene, got in zip(samples, data.scenes, data, strict=True):  # type: ignore[call-overload, attr-defined]
        assert got.scene == scene
        if name in LOSSY_IMAGES:
            assert np.abs(got.left.astype(float) - want.left).mean() < 8
        else:
            np.testing.assert_array_equal(got.left, want.left)
            np.testing.assert_array_equal(got.right, want.right)
        assert got.disparity.dtype == np.float32
        assert got.valid.mean() > 0.95
        assert np.nanmax(np.abs(got.disparity - want.disparity)) <= precision + 1e-6
        assert warped_difference(got) <= (8 if name in LOSSY_IMAGES else 2)
        if name in OCCLUSION:
            assert got.occlusion is not None
            np.testing.assert_array_equal(got.occlusion, want.occlusion)
        else:
            assert got.occlusion is None
        assert (got.right_disparity is not None) == (name in RIGHT)
        if got.right_disparity is not None:
            assert np.nanmax(np.abs(got.right_disparity - want.right_disparity)) <= precision + 1e-6
        assert (got.foreground is not None) == (name == "kitti2015")
        if got.foreground is not None:
            np.testing.assert_array_equal(got.foreground, want.foreground)
        assert (got.rig is not None) == (name in (*RIG, "tartanair", "folder"))


@pytest.mark.parametrize("name", ["kitti2012", "kitti2015", "middlebury2014", "middlebury_v3", "eth3d"])
def test_calibration_comes_back(name: str, samples: list[StereoSample], tmp_path: Path) -> None:
    from vision3d.types import Camera, StereoRig

    left = Camera(np.array([[110.0, 0, 45.5], [0, 110, 30.25], [0, 0, 1]]), width=WIDTH, height=HEIGHT)
    shift = 0.0 if name.startswith("kitti") else 2.5
    right = replace(left, intrinsics=left.intrinsics + np.array([[0, 0, shift], [0, 0, 0], [0, 0, 0]]))
    write_toy_tree(name, tmp_path, [replace(samples[0], rig=StereoRig(left, right, 0.15))])
    rig = open_dataset(name, tmp_path, split="all")[0].rig
    assert rig.baseline == pytest.approx(0.15, rel=1e-6)
    assert rig.doffs == pytest.approx(shift)
    assert rig.size == (WIDTH, HEIGHT)
    np.testing.assert_allclose(rig.left.intrinsics, left.intrinsics, rtol=1e-7)


def test_depth_of_the_sets_with_depth_files(samples: list[StereoSample], tmp_path: Path) -> None:
    from vision3d.geometry.disparity import disparity_to_depth

    pytest.importorskip("OpenEXR")
    for name, product in (("vkitti2", 725.0087 * 0.532725), ("tartanair", 320 * 0.25), ("irs", 4.8)):
        write_toy_tree(name, tmp_path / name, samples[:1])
        sample = open_dataset(name, tmp_path / name, split="all")[0]
        depth = disparity_to_depth(sample.disparity, sample.rig)
        np.testing.assert_allclose(depth * sample.disparity, product, rtol=1e-5)  # IRS: 48 at 960 px, 4.8 at 96 px


def test_normals_of_irs(samples: list[StereoSample], tmp_path: Path) -> None:
    pytest.importorskip("OpenEXR")
    write_toy_tree("irs", tmp_path, samples[:1])
    sample = open_dataset("irs", tmp_path, split="all")[0]
    np.testing.assert_allclose(np.linalg.norm(sample.normals, axis=-1), 1, atol=1e-5)
    camera = sample.rig.left
    u, v = np.meshgrid(np.arange(WIDTH) - camera.cx, np.arange(HEIGHT) - camera.cy)
    rays = np.stack([u / camera.fx, v / camera.fy, np.ones_like(u)], axis=-1)
    assert ((sample.normals * rays).sum(axis=-1) < 0).all()
    assert open_dataset("irs", tmp_path, split="all", normals=False)[0].normals is None
    flipped = open_dataset("irs", tmp_path, split="all", flip_positive_z=True)[0].normals
    assert (flipped[..., 2] <= 0).all()


def test_a_loader_with_workers(samples: list[StereoSample], tmp_path: Path) -> None:
    write_toy_tree("kitti2015", tmp_path, samples)
    data = open_dataset("kitti2015", tmp_path, split="all")
    loader = DataLoader(data, batch_size=3, num_workers=1, collate_fn=StereoBatch.collate)
    batch = next(iter(loader))
    assert batch.left.shape == (3, 3, HEIGHT, WIDTH)
    assert batch.scenes == ["000000_10", "000001_10", "000002_10"]


def test_refusals(samples: list[StereoSample], tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="kitti2015"):
        write_toy_tree("kitti2105", tmp_path, samples)
    with pytest.raises(InputError, match="no disparity map"):
        write_toy_tree("sintel", tmp_path, [replace(samples[0], disparity=None)])
