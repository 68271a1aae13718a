# SPDX-License-Identifier: Apache-2.0
"""Soft-argmin against its plain loop, SciPy and known peaks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ops_cases import SHAPES, close, pair
from scipy.special import softmax

from vision3d import ops
from vision3d.errors import InputError
from vision3d.ops import reference


@pytest.mark.parametrize("radius", [None, 0, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_regression_equals_the_loop(shape: tuple[int, ...], radius: int | None) -> None:
    logits, _ = pair(shape[0], shape[4], *shape[2:4])
    expected = reference.disparity_regression(logits, radius=radius)
    close(ops.disparity_regression(logits, radius=radius), expected, 1e-12)
    close(ops.disparity_regression(logits.transpose(2, 3), radius=radius), expected.transpose(2, 3), 1e-12)


def test_values_and_scipy() -> None:
    logits, _ = pair(2, 7, 3, 5)
    values = torch.tensor([0.0, 1.5, 3.0, 8.0, -2.0, 9.0, 4.0], dtype=torch.float64)
    expected = np.einsum("bdhw,d->bhw", softmax(logits.numpy(), axis=1), values.numpy())[:, None]
    np.testing.assert_allclose(ops.disparity_regression(logits, values).numpy(), expected, atol=1e-12)


def test_window_ignores_a_second_peak() -> None:
    logits = torch.full((1, 64, 1, 1), -20.0)
    logits[0, 10:13, 0, 0] = torch.tensor([5.0, 6.0, 5.0])
    logits[0, 50, 0, 0] = 5.9
    assert abs(ops.disparity_regression(logits, radius=2).item() - 11.0) < 1e-4
    assert ops.disparity_regression(logits).item() > 20


def test_low_precision_is_computed_in_float32() -> None:
    logits, _ = pair(1, 192, 4, 6, torch.bfloat16)
    for context in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=context):
            disparity = ops.disparity_regression(logits)
        assert disparity.dtype == torch.float32
        close(disparity, reference.disparity_regression(logits.double()), 1e-5)


def test_gradients() -> None:
    logits = pair(2, 5, 2, 3)[0].requires_grad_()
    assert torch.autograd.gradcheck(ops.disparity_regression, (logits,))
    assert torch.autograd.gradcheck(lambda value: ops.disparity_regression(value, radius=1), (logits,))


def test_wrong_shapes_are_named() -> None:
    logits, _ = pair(1, 5, 2, 3)
    with pytest.raises(InputError, match=r"values \[4\] do not fit cost_logits \[1, 5, 2, 3\]"):
        ops.disparity_regression(logits, torch.arange(4.0))
    with pytest.raises(InputError, match="no bins"):
        ops.disparity_regression(logits[:, :0])
    with pytest.raises(InputError, match=r"\[5, 2, 3\]"):
        ops.disparity_regression(logits[0])
    with pytest.raises(InputError, match="radius"):
        ops.disparity_regression(logits, radius=-1)
