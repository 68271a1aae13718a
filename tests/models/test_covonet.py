# SPDX-License-Identifier: Apache-2.0
"""CoVoNet: what the checks of every registered network do not cover."""

from __future__ import annotations

import pytest
import torch

from vision3d.errors import InputError
from vision3d.models.stereo.covonet import CoVoNet
from vision3d.training.losses import CostVolumeLoss
from vision3d.types import StereoBatch


@pytest.fixture(scope="module")
def network() -> CoVoNet:
    torch.manual_seed(0)
    return CoVoNet(max_disparity=64, feature_widths=(32, 32, 32, 32), hourglass_widths=(32, 32, 32)).eval()


def _shifted_noise(disparity: int, size: tuple[int, int] = (64, 192)) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.rand(1, 3, size[0], size[1] + disparity, generator=torch.Generator().manual_seed(1))
    return wide[..., : size[1]], wide[..., disparity:]


@pytest.mark.parametrize("disparity", [16, 32, 48])
def test_without_training_it_is_a_block_matcher(network: CoVoNet, disparity: int) -> None:
    """The scores start as the correlation itself, so that random features already find a rigid shift."""
    left, right = _shifted_noise(disparity)
    left, right = (torch.nn.functional.avg_pool2d(view, 5, 1, 2) for view in (left, right))
    with torch.no_grad():
        coarse = network(left, right).pyramid[1]
    inner = coarse[..., 4:-4, disparity // 4 + 6 : -4]
    assert (inner - disparity).abs().median() < 4.0


def test_outputs_have_the_documented_shapes(network: CoVoNet) -> None:
    left = torch.rand(2, 3, 48, 96)
    with torch.no_grad():
        output = network(left, left)
    assert output.disparity.shape == (2, 1, 48, 96)
    assert [tuple(map_.shape) for map_ in output.pyramid] == [(2, 1, 48, 96), (2, 1, 12, 24)]
    assert output.stages == []
    assert (output.disparity >= 0).all()


def test_training_outputs_feed_the_loss_and_every_weight_learns() -> None:
    torch.manual_seed(0)
    network = CoVoNet(max_disparity=64, feature_widths=(32, 32, 32, 32), hourglass_widths=(32, 32, 32)).train()
    left, right = torch.rand(2, 3, 48, 96), torch.rand(2, 3, 48, 96)
    truth = torch.rand(2, 1, 48, 96) * 40
    truth[:, :, :10] = float("nan")
    loss, parts = CostVolumeLoss()(network(left, right), StereoBatch(left, right, truth, ["a", "b"]))
    loss.backward()
    assert set(parts) == {"loss_bins", "loss_first", "loss_final"}
    assert torch.isfinite(loss)
    without = [n for n, p in network.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    assert without == []


def test_the_cross_entropy_of_the_loss_is_smallest_at_the_truth() -> None:
    truth = torch.full((1, 1, 16, 16), 22.0)  # 5.5 bins of 4 pixels
    scores = torch.full((1, 16, 4, 4), -20.0)
    scores[:, 5:7] = 0.0
    loss = CostVolumeLoss()
    at_truth = loss._cross_entropy(scores, truth)
    assert float(at_truth) == pytest.approx(0.693, abs=1e-3)  # log 2: two bins share it
    assert float(loss._cross_entropy(scores.roll(1, 1), truth)) > float(at_truth) + 1


@pytest.mark.parametrize("size", [(48, 90), (40, 96)])
def test_sizes_that_are_no_multiple_are_refused(network: CoVoNet, size: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="multiple of 16"):
        network(torch.rand(1, 3, *size), torch.rand(1, 3, *size))


def test_views_of_different_size_are_refused(network: CoVoNet) -> None:
    with pytest.raises(InputError, match="one size"):
        network(torch.rand(1, 3, 48, 96), torch.rand(1, 3, 48, 112))


@pytest.mark.parametrize("value", [0, 100, -16])
def test_an_illegal_reach_is_refused(value: int) -> None:
    with pytest.raises(InputError, match="multiple of 16"):
        CoVoNet(max_disparity=value)
