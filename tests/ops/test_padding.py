# SPDX-License-Identifier: Apache-2.0
"""Padding that undoes itself exactly, and resizing of disparity maps."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from ops_cases import close, pair

from vision3d import ops
from vision3d.errors import InputError


@pytest.mark.parametrize("mode", ["replicate", "zeros"])
@pytest.mark.parametrize("sides", [(0, 0), (5, 0), (64, 3)])
@pytest.mark.parametrize("size", [(1, 1), (64, 128), (63, 65), (7, 300)], ids=str)
def test_padding_is_undone_exactly(size: tuple[int, int], sides: tuple[int, int], mode: str) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        image = pair(2, 3, *size, dtype)[0]
        padded, padding = ops.pad_to_multiple(image, 64, mode, left=sides[0], top=sides[1])
        assert padded.shape[2] % 64 == 0
        assert padded.shape[3] % 64 == 0
        assert padded.shape[2] - size[0] - sides[1] < 64
        assert padded.shape[3] - size[1] - sides[0] < 64
        assert torch.equal(padding.undo(padded), image)
        assert torch.equal(padding.undo(padded[:, :1]), image[:, :1])


@pytest.mark.parametrize(("mode", "border"), [("replicate", "edge"), ("zeros", "constant")])
def test_padded_values_equal_numpy(mode: str, border: str) -> None:
    image = pair(1, 2, 5, 6)[0]
    padded, _ = ops.pad_to_multiple(image.transpose(2, 3), 4, mode, left=2, top=1)
    expected = np.pad(image.transpose(2, 3).numpy(), ((0, 0), (0, 0), (1, 1), (2, 1)), mode=border)
    np.testing.assert_array_equal(padded.numpy(), expected)


def test_padding_of_an_empty_batch_and_gradients() -> None:
    empty, padding = ops.pad_to_multiple(torch.zeros(0, 3, 5, 6), 4)
    assert empty.shape == (0, 3, 8, 8)
    assert padding.undo(empty).shape == (0, 3, 5, 6)
    image = pair(1, 1, 3, 2)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda value: ops.pad_to_multiple(value, 4)[0], (image,))


def test_wrong_paddings() -> None:
    padded, padding = ops.pad_to_multiple(torch.zeros(1, 3, 5, 6), 4)
    with pytest.raises(InputError, match=r"\[1, 3, 8, 7\].*\[8, 8\].*\[5, 6\]"):
        padding.undo(padded[..., 1:])
    with pytest.raises(InputError, match="no pixels"):
        ops.pad_to_multiple(torch.zeros(1, 3, 0, 6), 4)
    with pytest.raises(InputError, match="mode must be one of replicate, zeros"):
        ops.pad_to_multiple(torch.zeros(1, 3, 5, 6), 4, "reflect")
    with pytest.raises(InputError, match="multiple"):
        ops.pad_to_multiple(torch.zeros(1, 3, 5, 6), 0)
    with pytest.raises(InputError, match=r"\[3, 5, 6\]"):
        ops.pad_to_multiple(torch.zeros(3, 5, 6), 4)


@pytest.mark.parametrize("size", [(10, 24), (5, 8), (3, 7), (1, 1)], ids=str)
def test_resizing_equals_opencv_times_the_width_ratio(size: tuple[int, int]) -> None:
    disparity = pair(2, 1, 5, 8)[0]
    resized = ops.resize_disparity(disparity, size)
    for b in range(2):
        plane = cv2.resize(disparity[b, 0].numpy(), (size[1], size[0]), interpolation=cv2.INTER_LINEAR)
        np.testing.assert_allclose(resized[b, 0].numpy(), plane * size[1] / 8, atol=1e-6)


def test_resizing_a_ramp_keeps_the_geometry() -> None:
    # a plane d = 0.1 * x + 2 seen at twice the width is d' = 0.1 * x' + 4.1 with x' = 2 * x + 0.5
    ramp = (0.1 * torch.arange(40.0) + 2.0).expand(1, 1, 6, 40)
    doubled = ops.resize_disparity(ramp, (12, 80))
    expected = 2.0 * (0.1 * ((torch.arange(80.0) + 0.5) / 2 - 0.5) + 2.0)
    close(doubled[0, 0, :, 2:-2], expected[2:-2].expand(12, -1), 1e-5)
    assert ops.resize_disparity(ramp, (3, 20), "nearest").shape == (1, 1, 3, 20)


def test_resizing_corner_cases() -> None:
    disparity = pair(1, 1, 4, 6)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda value: ops.resize_disparity(value, (7, 5)), (disparity,))
    assert ops.resize_disparity(torch.zeros(0, 1, 4, 6), (8, 12)).shape == (0, 1, 8, 12)
    half = disparity.detach().to(torch.bfloat16)
    close(ops.resize_disparity(half, (7, 9)), ops.resize_disparity(half.double(), (7, 9)), 3e-2)
    hole = torch.full((1, 1, 2, 3), float("nan"))
    assert ops.resize_disparity(hole, (4, 6)).isnan().all()
    with pytest.raises(InputError, match=r"\[1, 1, 4, 6\] to \[0, 5\]"):
        ops.resize_disparity(disparity, (0, 5))
    with pytest.raises(InputError, match="mode must be one of"):
        ops.resize_disparity(disparity, (2, 5), "area")
