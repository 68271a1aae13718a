# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vision3d.errors import InputError
from vision3d.geometry.disparity import (
    consistency,
    depth_to_disparity,
    disparity_to_depth,
    fill_invalid,
)
from vision3d.io.calibration import read_calibration
from vision3d.io.disparity import read_disparity
from vision3d.types import Camera, StereoRig

NAN = np.nan


def motorcycle() -> StereoRig:
    left = Camera(np.array([[994.978, 0, 311.193], [0, 994.978, 254.877], [0, 0, 1]]), 741, 500)
    right = Camera(np.array([[994.978, 0, 342.279], [0, 994.978, 254.877], [0, 0, 1]]), 741, 500)
    return StereoRig(left, right, 0.193001)


def test_hand_computed_depth() -> None:
    disparity = np.array([7.191, 59.909, 0.0, -31.087, -40.0, NAN, np.inf])
    expected = [994.978 * 0.193001 / d for d in (38.277, 90.995, 31.086)] + [NAN] * 4
    depth = disparity_to_depth(disparity, motorcycle())
    np.testing.assert_allclose(depth, expected, rtol=1e-12)
    assert depth[0] == pytest.approx(5.0169, abs=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_and_torch_agree_and_keep_their_type(dtype: type) -> None:
    disparity = np.array([[7.0, 0.0, NAN], [-50.0, np.inf, 59.9]], dtype=dtype)
    tensor = torch.from_numpy(disparity)[None, None]
    for function in (disparity_to_depth, depth_to_disparity):
        array, result = function(disparity, motorcycle()), function(tensor, motorcycle())
        assert array.dtype == dtype
        assert result.dtype == tensor.dtype
        assert result.shape == tensor.shape
        np.testing.assert_allclose(array, result[0, 0].numpy(), rtol=1e-6)
    assert disparity_to_depth(np.array([5]), motorcycle()).dtype == np.float32
    assert disparity_to_depth(torch.tensor([5]), motorcycle()).dtype == torch.float32
    with pytest.raises(InputError):
        disparity_to_depth([1.0], motorcycle())  # type: ignore[type-var]


def test_depth_is_differentiable() -> None:
    disparity = torch.tensor([5.0, 20.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda d: disparity_to_depth(d, motorcycle()), disparity)


@settings(deadline=None, max_examples=50)
@given(disparity=hnp.arrays(np.float64, (3, 4), elements=st.floats(-20, 1000)))
def test_inverse(disparity: np.ndarray) -> None:
    rig = motorcycle()
    np.testing.assert_allclose(depth_to_disparity(disparity_to_depth(disparity, rig), rig), disparity, atol=1e-9)


def test_depth_to_disparity_of_illegal_depth() -> None:
    depth = np.array([0.0, -1.0, NAN, np.inf, 1.0])
    np.testing.assert_array_equal(np.isnan(depth_to_disparity(depth, motorcycle())), [True] * 4 + [False])


@pytest.mark.real
def test_opencv_reprojects_to_the_same_depth(shared: Path) -> None:
    import cv2

    scene = shared / "data/stereo/middlebury2014/motorcycle_quarter"
    disparity = read_disparity(scene / "disp_left.npz")
    rig = read_calibration(scene / "calib.txt", image_size=(741, 500))
    matrix = np.array(
        [
            [1, 0, 0, -rig.left.cx],
            [0, 1, 0, -rig.left.cy],
            [0, 0, 0, rig.left.fx],
            [0, 0, 1 / rig.baseline, rig.doffs / rig.baseline],
        ]
    )
    reference = cv2.reprojectImageTo3D(disparity, matrix)[..., 2]
    known = np.isfinite(disparity)
    depth = disparity_to_depth(disparity, rig)
    np.testing.assert_allclose(depth[known], reference[known], rtol=1e-5)
    assert np.isnan(depth[~known]).all()


def devkit_fill(disparity: np.ndarray) -> np.ndarray:
    """The rule written pixel by pixel."""
    result = disparity.copy()
    height, width = result.shape
    for row in range(height):
        known = [x for x in range(width) if np.isfinite(disparity[row, x])]
        for x in range(width):
            if known and x not in known:
                near = [disparity[row, max(k for k in known if k < x)]] if known[0] < x else []
                near += [disparity[row, min(k for k in known if k > x)]] if known[-1] > x else []
                result[row, x] = min(near)
    rows = [y for y in range(height) if np.isfinite(disparity[y]).any()]
    for y in range(height):
        if rows and y not in rows:
            result[y] = result[min(rows, key=lambda r: (abs(r - y), r))]
    return result


@settings(deadline=None, max_examples=60)
@given(
    disparity=hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 6), st.integers(1, 6)),
        elements=st.sampled_from([NAN, NAN, 1.0, 2.0, 5.0, 9.0]),
    )
)
def test_fill_invalid_follows_the_rule(disparity: np.ndarray) -> None:
    before = disparity.copy()
    np.testing.assert_array_equal(fill_invalid(disparity), devkit_fill(disparity))
    np.testing.assert_array_equal(disparity, before)


def test_fill_invalid_by_hand() -> None:
    disparity = np.array([[NAN, NAN, NAN, NAN], [NAN, 4, NAN, 2], [NAN, NAN, np.inf, NAN]])
    np.testing.assert_array_equal(fill_invalid(disparity), [[4, 4, 2, 2]] * 3)
    assert np.isnan(fill_invalid(np.full((2, 3), NAN))).all()
    with pytest.raises(InputError):
        fill_invalid(np.zeros(3))


def test_occlusion_of_a_plane_before_a_wall() -> None:
    # Wall of disparity 2; a box of disparity 6 covers the left columns 10..14, thus the right columns 4..8.
    left, right = np.full((3, 20), 2.0), np.full((3, 20), 2.0)
    left[:, 10:15] = 6
    right[:, 4:9] = 6
    expected = np.zeros((3, 20), dtype=bool)
    expected[:, :2] = True  # outside of the right image
    expected[:, 6:10] = True  # their right columns 4..7 show the box
    np.testing.assert_array_equal(consistency(left, right)[1], expected)
    left[0, 15], right[1, 17] = NAN, NAN
    expected[0, 15] = expected[1, 19] = True
    np.testing.assert_array_equal(consistency(left, right)[1], expected)
    with pytest.raises(InputError):
        consistency(left, right[:, :5])


@pytest.mark.real
def test_occlusion_of_cones_agrees_with_the_published_mask(shared: Path) -> None:
    import cv2

    scene = shared / "data/stereo/middlebury2003/cones"
    left, right = (read_disparity(scene / f"disp_{view}.png", divide_by=4) for view in ("left", "right"))
    published = cv2.imread(str(scene / "nonocc.png"), cv2.IMREAD_GRAYSCALE) != 255
    mine = consistency(left, right)[1]
    assert (mine == published)[np.isfinite(left)].mean() > 0.97


def test_confidence_of_hand_made_maps() -> None:
    left = np.full((1, 12), 3.0, np.float32)
    right = np.full((1, 12), 3.0, np.float32)
    right[0, 5] = 5.0  # partner of column 8
    right[0, 6] = 3.5  # partner of column 9
    certainty, occluded = consistency(left, right)
    assert occluded[0].tolist() == [True] * 3 + [False] * 5 + [True] + [False] * 3
    assert certainty.dtype == np.float32
    assert certainty[0, :3].tolist() == [0, 0, 0]
    assert certainty[0, 4] == 1
    assert certainty[0, 8] < 0.1
    assert certainty[0, 9] == pytest.approx(2 ** -((0.5 / 1.03) ** 2), abs=1e-5)


def test_consistency_does_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = np.random.default_rng(0).uniform(0, 6, (2, 37, 50)).astype(np.float32)
    whole = consistency(*maps)
    monkeypatch.setattr("vision3d.geometry.blocks.row_blocks.__defaults__", (0, 120))
    for one, other in zip(whole, consistency(*maps), strict=True):
        np.testing.assert_array_equal(one, other)
