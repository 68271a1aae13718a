# SPDX-License-Identifier: Apache-2.0
"""Warping against OpenCV, SciPy, grid_sample and the written formula."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ops_cases import close, pair
from scipy.ndimage import map_coordinates

from vision3d import ops
from vision3d.errors import InputError
from vision3d.ops import reference

SIZES = [(5, 9), (1, 1), (1, 8), (8, 1), (17, 33)]


def _inputs(height: int, width: int, spread: float = 4.0) -> tuple[torch.Tensor, torch.Tensor]:
    image, other = pair(2, 3, height, width)
    return image, other[:, :1] * spread


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_border_rule_equals_opencv_and_scipy(size: tuple[int, int]) -> None:
    image, disparity = _inputs(*size)
    warped = ops.warp_by_disparity(image, disparity).numpy()
    y, x = np.mgrid[: size[0], : size[1]].astype(np.float64)
    for b in range(2):
        columns = x - disparity[b, 0].numpy()
        for c in range(3):
            plane = image[b, c].numpy()
            scipy_plane = map_coordinates(plane, [y, columns], order=1, mode="nearest")
            np.testing.assert_allclose(warped[b, c], scipy_plane, atol=1e-10)
            opencv_plane = cv2.remap(
                plane,
                columns.astype(np.float32),
                y.astype(np.float32),
                cv2.INTER_LINEAR,
                borderMode=cv2.BORDER_REPLICATE,
            )
            assert np.abs(warped[b, c] - opencv_plane).max() < 0.1  # OpenCV rounds positions to 1/32 pixel


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_zeros_rule_equals_scipy_on_a_black_frame(size: tuple[int, int]) -> None:
    image, disparity = _inputs(*size)
    warped = ops.warp_by_disparity(image, disparity, padding_mode="zeros")
    y, x = np.mgrid[: size[0], : size[1]].astype(np.float64)
    framed = np.pad(image[1, 2].numpy(), 1)
    expected = map_coordinates(framed, [y + 1, x + 1 - disparity[1, 0].numpy()], order=1, mode="constant", cval=0.0)
    np.testing.assert_allclose(warped[1, 2].numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_unaligned_rule_is_grid_sample_on_the_aligned_normalisation(size: tuple[int, int], padding: str) -> None:
    image, disparity = _inputs(*size)
    height, width = size
    x = torch.arange(width, dtype=torch.float64) - disparity[:, 0]
    y = torch.arange(height, dtype=torch.float64)[:, None].expand_as(x)
    grid = torch.stack([2 * x / max(width - 1, 1) - 1, 2 * y / max(height - 1, 1) - 1], dim=3)
    warped = ops.warp_by_disparity(image, disparity, align_corners=False, padding_mode=padding)
    close(warped, F.grid_sample(image, grid, padding_mode=padding, align_corners=False), 1e-12)
    close(
        warped,
        reference.warp_by_disparity(image, disparity, align_corners=False, padding_mode=padding),
        1e-10,
    )
    if height > 1 and width > 1:  # the aligned rule is the same grid read with align_corners=True
        aligned = F.grid_sample(image, grid, padding_mode=padding, align_corners=True)
        close(ops.warp_by_disparity(image, disparity, padding_mode=padding), aligned, 1e-10)


def test_whole_disparities_shift_the_image() -> None:
    image, _ = _inputs(4, 12)
    warped = ops.warp_by_disparity(image.float(), torch.full((2, 1, 4, 12), 3.0))
    close(warped[..., 3:], image[..., :-3].float(), 1e-5)
    close(warped[..., :3], image[..., :1].float().expand(-1, -1, -1, 3), 1e-5)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_gradients(aligned: bool, padding: str) -> None:
    image, disparity = (value.requires_grad_() for value in _inputs(3, 5, 1.3))
    function = lambda a, b: ops.warp_by_disparity(a, b, align_corners=aligned, padding_mode=padding)  # noqa: E731
    assert torch.autograd.gradcheck(function, (image, disparity))


def test_types_strides_and_empty_batch() -> None:
    image, disparity = _inputs(6, 40)
    exact = ops.warp_by_disparity(image, disparity.to(torch.bfloat16).double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = ops.warp_by_disparity(image.to(torch.bfloat16), disparity.to(torch.bfloat16))
    assert half.dtype == torch.bfloat16
    close(half, exact, 2e-2)  # positions are computed in float32, so only the image's own rounding is left
    close(ops.warp_by_disparity(image.float(), disparity.float()), ops.warp_by_disparity(image, disparity), 1e-4)
    close(
        ops.warp_by_disparity(image[:, ::2, ::2, ::3], disparity[..., ::2, ::3]),
        reference.warp_by_disparity(image[:, ::2, ::2, ::3], disparity[..., ::2, ::3]),
        1e-10,
    )
    assert ops.warp_by_disparity(image[:0], disparity[:0]).shape == (0, 3, 6, 40)


def test_wrong_shapes_are_named() -> None:
    image, disparity = _inputs(4, 6)
    for wrong in (disparity[..., :-1], disparity[:1], disparity.expand(-1, 2, -1, -1)):
        with pytest.raises(InputError) as caught:
            ops.warp_by_disparity(image, wrong)
        assert str(list(image.shape)) in str(caught.value)
        assert str(list(wrong.shape)) in str(caught.value)
    with pytest.raises(InputError, match="padding_mode must be one of border, zeros"):
        ops.warp_by_disparity(image, disparity, padding_mode="reflection")
