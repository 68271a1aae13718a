# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vision3d.errors import InputError
from vision3d.training.normal_losses import normal_loss


def unit(seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def test_of_unit_vectors_it_is_twice_one_minus_the_cosine() -> None:
    first, second = unit(0), unit(1)
    expected = (2 * (1 - (first * second).sum(1))).mean()
    assert float(normal_loss(first, second)) == pytest.approx(float(expected), rel=1e-6)
    assert float(normal_loss(first, first)) == 0


def test_invalid_components_reach_neither_value_nor_gradient() -> None:
    prediction, truth = unit(0).requires_grad_(), unit(1)
    truth[0, 0, 0, 0], truth[1, 2, 3, 4] = torch.nan, 1.5
    loss = normal_loss(prediction, truth)
    loss.backward()
    valid = truth.abs() <= 1
    expected = 3 * (prediction.detach() - truth)[valid].square().mean()
    assert loss.item() == pytest.approx(float(expected), rel=1e-6)
    assert torch.isfinite(prediction.grad).all()
    assert (prediction.grad[~valid] == 0).all()
    assert normal_loss(prediction, torch.full_like(truth, torch.nan)).item() == 0
    with pytest.raises(InputError, match="fit"):
        normal_loss(prediction, truth[:1])
