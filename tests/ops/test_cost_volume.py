# SPDX-License-Identifier: Apache-2.0
"""Cost volumes against their plain loops and float64 autograd."""

from __future__ import annotations

import pytest
import torch
from ops_cases import SHAPES, TOLERANCE, close, pair

from vision3d import ops
from vision3d.errors import InputError
from vision3d.ops import reference


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_volumes_equal_the_loops(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    left, right = pair(*shape[:4], dtype)
    exact_left, exact_right, bins = left.double(), right.double(), shape[4]
    for groups in (1, 2):
        volume = ops.groupwise_correlation(left, right, bins, groups)
        assert volume.dtype == dtype
        close(volume, reference.groupwise_correlation(exact_left, exact_right, bins, groups), TOLERANCE[dtype])
    for flag in (True, False):
        close(
            ops.concatenation_volume(left, right, bins, mask_left=flag),
            reference.concatenation_volume(left, right, bins, mask_left=flag),
            0.0,
        )
    close(ops.difference_volume(left, right, bins), reference.difference_volume(left, right, bins), 0.0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_normalized_groups_are_cosines(shape: tuple[int, ...]) -> None:
    left, right = pair(*shape[:4])
    volume = ops.groupwise_correlation(left, right, shape[4], 2, normalize=True)
    close(volume, reference.groupwise_correlation(left, right, shape[4], 2, normalize=True), 1e-12)
    halves = [value.unflatten(1, (2, -1)) for value in (left, right)]
    close(volume[:, :, 0], torch.cosine_similarity(halves[0], halves[1], dim=2), 1e-12)


def test_one_group_is_the_correlation() -> None:
    left, right = pair(2, 6, 3, 90)
    close(ops.groupwise_correlation(left, right, 7, 1)[:, 0], ops.correlation_1d(left, right, 7), 1e-12)


@pytest.mark.parametrize("width", [2, 6])
def test_gradients(width: int) -> None:
    left, right = (value.requires_grad_() for value in pair(1, 2, 2, width))
    for function in (
        lambda a, b: ops.groupwise_correlation(a, b, 4, 2),
        lambda a, b: ops.groupwise_correlation(a, b, 3, 1, normalize=True),
        lambda a, b: ops.concatenation_volume(a, b, 3),
        lambda a, b: ops.concatenation_volume(a, b, 3, mask_left=False),
        lambda a, b: ops.difference_volume(a, b, 4),
    ):
        assert torch.autograd.gradcheck(function, (left, right))


def test_strided_inputs_are_left_as_they_are() -> None:
    left, right = (value.transpose(2, 3)[:, 1:] for value in pair(2, 5, 8, 4))
    before = left.clone(), right.clone()
    close(ops.groupwise_correlation(left, right, 3, 2), reference.groupwise_correlation(left, right, 3, 2), 1e-12)
    close(ops.concatenation_volume(left, right, 3), reference.concatenation_volume(left, right, 3), 0.0)
    close(ops.difference_volume(left, right, 3), reference.difference_volume(left, right, 3), 0.0)
    assert torch.equal(left, before[0])
    assert torch.equal(right, before[1])


def test_infinite_features_stay_out_of_the_masked_part() -> None:
    left = torch.full((1, 1, 1, 4), float("inf"))
    for volume in (ops.concatenation_volume(left, left, 3), ops.difference_volume(left, torch.zeros_like(left), 3)):
        assert (volume[:, :, 2, :, :2] == 0).all()


@pytest.mark.parametrize("name", ["groupwise_correlation", "concatenation_volume", "difference_volume"])
def test_wrong_shapes_are_named(name: str) -> None:
    left, right = pair(1, 4, 3, 6)
    extra = (2,) if name == "groupwise_correlation" else ()
    with pytest.raises(InputError, match=rf"{name}: left \[1, 4, 3, 6\] and right \[1, 3, 3, 6\] differ"):
        getattr(ops, name)(left, right[:, 1:], 3, *extra)
    with pytest.raises(InputError, match="max_disparity must be at least 1"):
        getattr(ops, name)(left, right, 0, *extra)


def test_groups_must_divide_the_channels() -> None:
    left, right = pair(1, 4, 3, 6)
    with pytest.raises(InputError, match=r"3 groups do not divide the 4 channels of left \[1, 4, 3, 6\]"):
        ops.groupwise_correlation(left, right, 3, 3)
