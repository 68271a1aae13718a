# SPDX-License-Identifier: Apache-2.0
"""The loss of EASNet (its values on the authors' outputs are checked in tests/models/test_easnet_parity.py)."""

from __future__ import annotations

import pytest
import torch

from vision3d.errors import InputError
from vision3d.training.losses import create_loss
from vision3d.types import StereoBatch, StereoOutput


def make(number: int, value: float = 12.0, width: int = 48) -> StereoOutput:
    """Constant maps, in pixels of the finest one."""
    maps = [torch.full((1, 1, width // 2 // k, width // k), value) for k in (1, 2, 3, 6, 12, 24, 24)[:number]]
    return StereoOutput(maps[0], maps, stages=[[map_.requires_grad_() for map_ in maps]])


def batch(truth: torch.Tensor) -> StereoBatch:
    image = truth.expand(-1, 3, -1, -1)
    return StereoBatch(image, image, truth, [""] * len(truth))


@pytest.mark.parametrize(("number", "total"), [(1, 1), (3, 3), (4, 3), (5, 4), (6, 5), (7, 6)])
def test_the_weights_follow_the_number_of_maps(number: int, total: float) -> None:
    """Every map is wrong by 2 px, a smooth L1 loss of 1.5."""
    loss, parts = create_loss("easnet")(make(number), batch(torch.full((1, 1, 24, 48), 10.0)))
    assert loss.item() == pytest.approx(1.5 * total)
    assert parts["loss_finest"].item() == pytest.approx(1.5)


def test_the_two_coarsest_maps_weigh_less() -> None:
    output = make(6)
    loss, _ = create_loss("easnet")(output, batch(torch.full((1, 1, 24, 48), 10.0)))
    loss.backward()
    slopes = [map_.grad.sum().item() for map_ in output.stages[0]]  # type: ignore[union-attr]
    assert slopes == pytest.approx([1, 1, 1, 1, 2 / 3, 1 / 3])


def test_values_are_scaled_to_the_truth() -> None:
    loss, _ = create_loss("easnet")(make(3, value=6.0, width=24), batch(torch.full((1, 1, 24, 48), 12.0)))
    assert loss.item() == pytest.approx(0.0, abs=1e-6)


def test_unknown_and_illegal_truth_is_left_out() -> None:
    truth = torch.full((1, 1, 24, 48), 10.0)
    truth[..., :10] = float("nan")
    truth[..., 10:20] = 0.0
    truth[..., 20:30] = 192.0
    output = make(1)
    loss, _ = create_loss("easnet")(output, batch(truth))
    loss.backward()
    assert loss.item() == pytest.approx(1.5)
    grad = output.stages[0][0].grad
    assert grad is not None
    assert not grad[..., :30].any()
    assert grad.isfinite().all()


def test_no_valid_pixel_is_a_zero_loss_with_a_gradient() -> None:
    output = make(4)
    loss, _ = create_loss("easnet")(output, batch(torch.full((1, 1, 24, 48), float("nan"))))
    loss.backward()
    assert loss.item() == 0
    assert all(not map_.grad.any() for map_ in output.stages[0])  # type: ignore[union-attr]


def test_own_weights_must_fit() -> None:
    loss = create_loss("easnet", weights=(1.0, 0.5))
    assert loss(make(2), batch(torch.full((1, 1, 24, 48), 10.0)))[0].item() == pytest.approx(1.5 * 1.5)
    with pytest.raises(InputError, match="4 maps but the loss has 2 weights"):
        loss(make(4), batch(torch.zeros(1, 1, 24, 48)))
    with pytest.raises(InputError, match="no training stages"):
        loss(StereoOutput(torch.zeros(1, 1, 2, 2), []), batch(torch.zeros(1, 1, 2, 2)))


def test_beyond_its_reach_an_error_hardly_pulls() -> None:
    output = make(1, value=40.0)
    loss, _ = create_loss("easnet", reach=8.0)(output, batch(torch.full((1, 1, 24, 48), 10.0)))
    loss.backward()
    assert loss.item() == pytest.approx(8 + 0.05 * (29.5 - 8))
    assert output.stages[0][0].grad.sum().item() == pytest.approx(0.05)  # type: ignore[union-attr]
