# SPDX-License-Identifier: Apache-2.0
"""Correlations against their plain loops, float64 autograd and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ops_cases import SHAPES, TOLERANCE, close, pair

from vision3d import ops
from vision3d.errors import InputError
from vision3d.ops import reference
from vision3d.ops.correlation import banded_product

RULES = ("zeros", "unshifted")


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_correlation_1d_equals_the_loop(shape: tuple[int, ...], rule: str, dtype: torch.dtype) -> None:
    left, right = pair(*shape[:4], dtype)
    volume = ops.correlation_1d(left, right, shape[4], beyond_width=rule)
    assert volume.dtype == dtype
    assert volume.is_contiguous()
    close(
        volume,
        reference.correlation_1d(left.double(), right.double(), shape[4], beyond_width=rule),
        TOLERANCE[dtype],
    )


def test_correlation_1d_by_hand() -> None:
    left = torch.tensor([[[[1.0, 2.0, 3.0]], [[1.0, 1.0, 1.0]]]])
    right = torch.tensor([[[[4.0, 5.0, 6.0]], [[0.0, 2.0, 0.0]]]])
    expected = [[2.0, 6.0, 9.0], [0.0, 4.0, 8.5], [0.0, 0.0, 6.0], [0.0, 0.0, 0.0]]
    assert ops.correlation_1d(left, right, 4)[0, :, 0].tolist() == expected
    expected[3] = expected[0]
    assert ops.correlation_1d(left, right, 4, beyond_width="unshifted")[0, :, 0].tolist() == expected


@pytest.mark.parametrize("tile", [1, 2, 5, 16, 40])
@pytest.mark.parametrize("bins", [1, 4, 19])
def test_every_tile_width_gives_the_same_band(tile: int, bins: int) -> None:
    left, right = pair(2, 3, 2, 17)
    close(banded_product(left, right, bins, 1 / 3, tile), reference.correlation_1d(left, right, bins), 1e-12)


@pytest.mark.parametrize("step", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", SHAPES[:6], ids=str)
def test_correlation_2d_equals_the_loop(shape: tuple[int, ...], step: int) -> None:
    left, right = pair(*shape[:4])
    for reach in (0, 1, 4, 9):
        close(ops.correlation_2d(left, right, reach, step), reference.correlation_2d(left, right, reach, step), 1e-12)


def test_correlation_2d_finds_a_shift() -> None:
    right = torch.from_numpy(np.random.default_rng(3).normal(size=(1, 64, 20, 24))).float()
    left = torch.roll(right, (2, -3), dims=(2, 3))  # left[y, x] = right[y - 2, x + 3]
    best = ops.correlation_2d(left, right, 4).argmax(dim=1)
    assert (best[:, 4:-4, 4:-4] == (-2 + 4) * 9 + (3 + 4)).all()


@pytest.mark.parametrize("width", [3, 5, 70])
def test_gradients(width: int) -> None:
    left, right = (value.requires_grad_() for value in pair(1, 2, 2, width))
    for rule in RULES:
        assert torch.autograd.gradcheck(
            lambda a, b, rule=rule: ops.correlation_1d(a, b, 4, beyond_width=rule), (left, right), fast_mode=width > 9
        )
    assert torch.autograd.gradcheck(lambda a, b: ops.correlation_2d(a, b, 1), (left, right), fast_mode=width > 9)


def test_strided_inputs_and_channels_last() -> None:
    left, right = pair(2, 8, 6, 150)
    views = [left[:, ::2, 1:, ::2], right[:, ::2, 1:, ::2]]
    expected = reference.correlation_1d(views[0], views[1], 9)
    close(ops.correlation_1d(views[0], views[1], 9), expected, 1e-12)
    last = [view.contiguous(memory_format=torch.channels_last) for view in views]
    close(ops.correlation_1d(last[0], last[1], 9), expected, 1e-12)
    close(ops.correlation_2d(last[0], last[1], 2), reference.correlation_2d(views[0], views[1], 2), 1e-12)


def test_float32_sums_of_bfloat16_features_under_autocast() -> None:
    left, right = pair(1, 48, 4, 96, torch.bfloat16)
    exact = reference.correlation_1d(left.double(), right.double(), 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        volume = ops.correlation_1d(left, right, 24, dtype=torch.float32)
        single = ops.correlation_1d(left.float(), right.float(), 24)
        half = ops.correlation_1d(left, right, 24)
    assert volume.dtype == single.dtype == torch.float32
    assert half.dtype == torch.bfloat16
    close(volume, exact, 1e-6)
    close(single, exact, 1e-6)
    # a matrix product that sums in float32 leaves one rounding to bfloat16: half a unit in the last of 8 bits
    assert ((half.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-6).all()


def test_backward_under_autocast_gives_gradients_of_the_inputs_type() -> None:
    left, right = (value.requires_grad_() for value in pair(1, 4, 2, 70, torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ops.correlation_1d(left, right, 8).sum().backward()
    assert left.grad is not None
    assert left.grad.dtype == torch.float32
    assert torch.isfinite(left.grad).all()


@pytest.mark.parametrize(
    ("left", "right", "bins", "words"),
    [
        ((1, 4, 5, 6), (1, 4, 5, 7), 3, ["[1, 4, 5, 6]", "[1, 4, 5, 7]"]),
        ((4, 5, 6), (4, 5, 6), 3, ["[4, 5, 6]", "[B, C, H, W]"]),
        ((1, 4, 5, 6), (1, 4, 5, 6), 0, ["max_disparity", "0"]),
    ],
)
def test_wrong_shapes_are_named(left: tuple[int, ...], right: tuple[int, ...], bins: int, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        ops.correlation_1d(torch.zeros(left), torch.zeros(right), bins)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_wrong_arguments() -> None:
    left, right = pair(1, 4, 3, 6)
    with pytest.raises(InputError, match="beyond_width must be one of zeros, unshifted"):
        ops.correlation_1d(left, right, 3, beyond_width="wrap")
    with pytest.raises(InputError, match="floating-point tensor"):
        ops.correlation_1d(left.long(), right.long(), 3)
    with pytest.raises(InputError, match="stride"):
        ops.correlation_2d(left, right, 3, 0)
    with pytest.raises(InputError, match=r"\[1, 4, 3, 6\].*\[1, 4, 2, 6\]"):
        ops.correlation_2d(left, right[:, :, 1:], 3)


class _Correlations(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            ops.correlation_1d(left, right, 20, beyond_width="unshifted"),
            ops.groupwise_correlation(left, right, 8, 2),
            ops.correlation_2d(left, right, 2),
        )


def test_exported_graph_takes_any_height_and_width() -> None:
    height, width = torch.export.Dim("height", min=2, max=4096), torch.export.Dim("width", min=2, max=4096)
    free = {2: height, 3: width}
    example = pair(2, 4, 12, 60, torch.float32)
    program = torch.export.export(_Correlations(), example, dynamic_shapes=(free, free)).module()
    for size in ((12, 60), (7, 131), (5, 13)):
        inputs = pair(2, 4, *size, torch.float32)
        for actual, expected in zip(program(*inputs), _Correlations()(*inputs), strict=True):
            close(actual, expected, 2e-6)
