# SPDX-License-Identifier: Apache-2.0
"""CoVoNet-SGM: what the checks of every registered network do not cover."""

from __future__ import annotations

import pytest
import torch

from vision3d.models.stereo.covonet import CoVoNet
from vision3d.models.stereo.covonet_sgm import CoVoNetSGM
from vision3d.ops import semi_global_matching
from vision3d.training.losses import CostVolumeLoss
from vision3d.types import StereoBatch
from vision3d.zoo import create_model

SMALL = {"max_disparity": 64, "feature_widths": (32, 32, 32, 32), "hourglass_widths": (32, 32, 32)}


@pytest.fixture(scope="module")
def network() -> CoVoNetSGM:
    torch.manual_seed(0)
    return CoVoNetSGM(fusion_widths=(32, 32), **SMALL).eval()


def _textured_pair(disparity: int) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.rand(1, 3, 64, 192 + disparity, generator=torch.Generator().manual_seed(1))
    wide = torch.nn.functional.avg_pool2d(wide, 3, 1, 1)
    return wide[..., :192], wide[..., disparity:]


def test_the_fusion_can_take_over_either_answer(network: CoVoNetSGM) -> None:
    left, right = _textured_pair(20)
    matched = semi_global_matching(left, right, 64)
    known = matched.isfinite()
    assert known.float().mean() > 0.7
    bias = network.fusion.heads.bias
    kept, kept_weight = bias.detach().clone(), network.fusion.heads.weight.detach().clone()
    with torch.no_grad():
        network.fusion.heads.weight.zero_()
        for logit, answer in ((40.0, matched), (-40.0, None)):
            bias[:4] = logit
            output = network(left, right)
            expected = output.pyramid[1] if answer is None else torch.where(known, matched, output.pyramid[1])
            assert torch.allclose(output.disparity, expected, atol=1e-4)
        bias.copy_(kept)
        network.fusion.heads.weight.copy_(kept_weight)


def test_confidence_is_a_probability_of_full_size(network: CoVoNetSGM) -> None:
    left, right = _textured_pair(20)
    with torch.no_grad():
        confidence = network(left, right).confidence
    assert confidence is not None
    assert confidence.shape == (1, 1, 64, 192)
    assert confidence.min() > 0
    assert confidence.max() < 1


def test_weights_of_covonet_load_and_leave_the_fusion_as_it_is() -> None:
    torch.manual_seed(1)
    base, network = CoVoNet(**SMALL).eval(), CoVoNetSGM(fusion_widths=(32, 32), **SMALL).eval()
    before = {name: value.clone() for name, value in network.fusion.state_dict().items()}
    network.load_official_state_dict({f"module.{name}": value for name, value in base.state_dict().items()})
    left, right = _textured_pair(12)
    with torch.no_grad():
        assert torch.equal(network(left, right).pyramid[1], base(left, right).disparity)
    assert all(torch.equal(value, before[name]) for name, value in network.fusion.state_dict().items())


def test_its_weights_serve_a_plain_covonet() -> None:
    torch.manual_seed(2)
    base, network = CoVoNet(**SMALL).eval(), CoVoNetSGM(fusion_widths=(32, 32), **SMALL).eval()
    base.load_official_state_dict(network.state_dict())
    left, right = _textured_pair(12)
    with torch.no_grad():
        assert torch.equal(network(left, right).pyramid[1], base(left, right).disparity)


def test_shipped_weights_of_covonet_are_a_start_by_name() -> None:
    network, base = create_model("covonet_sgm", pretrained="covonet.synthetic"), create_model("covonet.synthetic")
    own = network.state_dict()
    assert all(torch.equal(own[name], value) for name, value in base.state_dict().items())


def test_the_loss_rates_the_confidence_and_every_weight_learns() -> None:
    torch.manual_seed(0)
    network = CoVoNetSGM(fusion_widths=(32, 32), **SMALL).train()
    left, right = torch.rand(2, 3, 48, 96), torch.rand(2, 3, 48, 96)
    truth = torch.rand(2, 1, 48, 96) * 40
    truth[:, :, :10] = float("nan")
    loss, parts = CostVolumeLoss()(network(left, right), StereoBatch(left, right, truth, ["a", "b"]))
    loss.backward()
    assert set(parts) == {"loss_bins", "loss_first", "loss_final", "loss_confidence"}
    without = [n for n, p in network.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    assert without == []


def test_a_perfect_rating_costs_less_than_a_flat_one() -> None:
    truth = torch.full((1, 1, 8, 8), 10.0)
    disparity = torch.where(torch.arange(8) < 4, 10.2, 14.0).expand(1, 1, 8, 8)
    rating = CostVolumeLoss()._rating
    knowing = torch.where(torch.arange(8) < 4, 8.0, -8.0).expand(1, 1, 8, 8)
    assert rating(knowing, disparity, truth) < 0.01 < rating(torch.zeros_like(knowing), disparity, truth)
