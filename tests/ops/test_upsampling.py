# SPDX-License-Identifier: Apache-2.0
"""Convex upsampling against its plain loop and F.unfold."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from ops_cases import close, pair

from vision3d import ops
from vision3d.errors import InputError
from vision3d.ops import reference

SIZES = [(2, 3, 5), (1, 1, 1), (1, 1, 4), (0, 3, 5)]


def _inputs(batch: int, height: int, width: int, factor: int, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    disparity = pair(batch, 1, height, width)[0]
    if layout == "raft":
        return disparity, pair(batch, 9 * factor * factor, height, width)[1]
    return disparity, pair(batch, 9, factor * height, factor * width)[1]


@pytest.mark.parametrize("layout", ["raft", "context"])
@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_upsampling_equals_the_loop(size: tuple[int, int, int], factor: int, layout: str) -> None:
    disparity, weights = _inputs(*size, factor, layout)
    for padding in ("replicate", "zeros"):
        for scale in (True, False):
            for normalized in (True, False):
                options = {"padding": padding, "scale": scale, "normalized": normalized}
                actual = ops.convex_upsample(disparity, weights, factor, **options)
                if size[0] == 0:
                    assert actual.shape == (0, 1, factor * size[1], factor * size[2])
                else:
                    close(actual, reference.convex_upsample(disparity, weights, factor, **options), 1e-12)


def test_raft_formula() -> None:
    disparity, mask = _inputs(2, 4, 5, 4, "raft")
    weights = torch.softmax(mask.view(2, 1, 9, 4, 4, 4, 5), dim=2)
    neighbours = F.unfold(4 * disparity, [3, 3], padding=1).view(2, 1, 9, 1, 1, 4, 5)
    expected = (weights * neighbours).sum(dim=2).permute(0, 1, 4, 2, 5, 3).reshape(2, 1, 16, 20)
    close(ops.convex_upsample(disparity, mask, 4, padding="zeros"), expected, 1e-12)


def test_constant_map_stays_constant_with_replicated_border() -> None:
    _, mask = _inputs(1, 3, 4, 2, "raft")
    close(ops.convex_upsample(torch.full((1, 1, 3, 4), 5.0), mask, 2), torch.full((1, 1, 6, 8), 10.0), 1e-6)


def test_types_strides_and_gradients() -> None:
    disparity, mask = _inputs(2, 3, 5, 2, "raft")
    exact = ops.convex_upsample(disparity, mask, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = ops.convex_upsample(disparity.float(), mask.to(torch.bfloat16), 2)
    assert half.dtype == torch.float32
    close(half, exact, 3e-2)
    last = mask.contiguous(memory_format=torch.channels_last)
    close(ops.convex_upsample(disparity.expand(2, 1, 3, 5), last, 2), exact, 1e-12)
    for layout in ("raft", "context"):
        inputs = tuple(value.requires_grad_() for value in _inputs(1, 2, 3, 2, layout))
        assert torch.autograd.gradcheck(lambda a, b: ops.convex_upsample(a, b, 2), inputs)


def test_wrong_shapes_are_named() -> None:
    disparity, mask = _inputs(1, 3, 4, 2, "raft")
    with pytest.raises(InputError) as caught:
        ops.convex_upsample(disparity, mask[:, 1:], 2)
    for shape in ("[1, 35, 3, 4]", "[1, 1, 3, 4]", "[1, 36, 3, 4]", "[1, 9, 6, 8]"):
        assert shape in str(caught.value)
    with pytest.raises(InputError, match="padding must be one of"):
        ops.convex_upsample(disparity, mask, 2, padding="wrap")
    with pytest.raises(InputError, match="factor"):
        ops.convex_upsample(disparity, mask, 0)
