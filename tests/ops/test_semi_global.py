# SPDX-License-Identifier: Apache-2.0
"""Semi-global matching as an op: OpenCV's own call is the oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vision3d.errors import InputError
from vision3d.evaluation.baselines import match_baseline
from vision3d.geometry.disparity import fill_invalid
from vision3d.ops import semi_global_matching


def _pair(shift: int) -> tuple[np.ndarray, np.ndarray]:
    wide = np.random.default_rng(0).integers(0, 256, (40, 120 + shift, 3), dtype=np.uint8)
    return np.ascontiguousarray(wide[:, :120]), np.ascontiguousarray(wide[:, shift:])


def _tensor(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255


def test_a_rigid_shift_is_found_where_it_is_visible() -> None:
    left, right = _pair(11)
    disparity = semi_global_matching(_tensor(left), _tensor(right), 32)
    assert disparity.shape == (1, 1, 40, 120)
    assert disparity.dtype == torch.float32
    visible = disparity[..., 12:]
    assert visible.isfinite().float().mean() > 0.9
    assert (visible[visible.isfinite()] - 11).abs().max() < 0.5  # sub-pixel fits of noise are a little off


def test_it_is_the_baseline_before_filling() -> None:
    left, right = _pair(7)
    own = semi_global_matching(_tensor(left), _tensor(right), 20)[0, 0].numpy()
    assert np.array_equal(fill_invalid(own), match_baseline("sgbm_hh", left, right, 20))


def test_batches_and_half_precision_give_the_same_maps() -> None:
    left, right = (_tensor(view) for view in _pair(9))
    both = semi_global_matching(torch.cat([left, right.flip(3)]), torch.cat([right, left.flip(3)]), 32)
    assert torch.equal(both[:1].nan_to_num(-1), semi_global_matching(left, right, 32).nan_to_num(-1))
    half = semi_global_matching(left.half(), right.half(), 32)  # float16 holds 8-bit values well enough
    assert torch.equal(half.nan_to_num(-1), both[:1].nan_to_num(-1))


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (5, 1)])
def test_tiny_images(size: tuple[int, int]) -> None:
    view = torch.rand(1, 3, *size)
    assert semi_global_matching(view, view, 16).shape == (1, 1, *size)


def test_empty_batch() -> None:
    assert semi_global_matching(torch.rand(0, 3, 8, 8), torch.rand(0, 3, 8, 8)).shape == (0, 1, 8, 8)


@pytest.mark.parametrize("other", [(1, 3, 8, 9), (1, 1, 8, 8)])
def test_wrong_shapes(other: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="of one size"):
        semi_global_matching(torch.rand(1, 3, 8, 8), torch.rand(*other))


def test_wrong_range() -> None:
    with pytest.raises(InputError, match="at least 1"):
        semi_global_matching(torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 8), 0)
