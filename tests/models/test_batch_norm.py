# SPDX-License-Identifier: Apache-2.0
"""Re-estimated batch-norm statistics against plain sums."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vision3d.errors import InputError
from vision3d.models.batch_norm import recalibrate_batch_norm
from vision3d.models.stereo.easnet import EASNetSupernet
from vision3d.models.stereo.easnet.dynamic import PrefixBatchNorm2d
from vision3d.types import StereoBatch
from vision3d.zoo import create_model


class Twice(nn.Module):
    """One layer that both views pass."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.dropout = nn.Dropout(0.5)
        self.unused = nn.BatchNorm2d(2)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.norm(left)) + self.norm(right)


def test_both_calls_count_and_batches_weigh_by_their_size() -> None:
    network = Twice().eval()
    nn.init.uniform_(network.norm.weight)
    weight = network.norm.weight.clone()
    batches = [(torch.rand(n, 3, 4, 5), torch.rand(n, 3, 4, 5) * 3) for n in (1, 3)]
    recalibrate_batch_norm(network, batches)
    calls = [(view, len(view)) for batch in batches for view in batch]
    mean = sum(view.mean((0, 2, 3)) * n for view, n in calls) / 8
    variance = sum(view.var((0, 2, 3), correction=0) * n for view, n in calls) / 8
    torch.testing.assert_close(network.norm.running_mean, mean)
    torch.testing.assert_close(network.norm.running_var, variance)
    assert torch.equal(network.norm.weight, weight)
    assert torch.equal(network.unused.running_var, torch.ones(2))
    assert network.norm.num_batches_tracked == 0
    assert not network.training
    assert not network.norm.training
    assert not network.norm._forward_hooks


def test_layers_see_what_normalised_layers_before_them_give() -> None:
    network = nn.Sequential(nn.BatchNorm2d(2), nn.ReLU(), nn.BatchNorm2d(2)).train()
    x = torch.rand(4, 2, 6, 6) * 5
    recalibrate_batch_norm(network, [(x,)])
    with torch.no_grad():
        y = network.eval()(x)
    torch.testing.assert_close(y.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(y.var((0, 2, 3), correction=0), torch.ones(2), atol=1e-3, rtol=0)


def test_only_the_channels_that_pass_are_written() -> None:
    network = nn.Sequential(PrefixBatchNorm2d(4))
    x = torch.rand(2, 3, 5, 5)
    recalibrate_batch_norm(network, [(x,)])
    torch.testing.assert_close(network[0].running_mean[:3], x.mean((0, 2, 3)))
    assert network[0].running_mean[3] == 0
    assert network[0].running_var[3] == 1
    assert network.training


def test_a_width_that_changes_is_refused_and_nothing_is_written() -> None:
    network = nn.Sequential(PrefixBatchNorm2d(4))
    with pytest.raises(InputError, match="3 and 2 channels"):
        recalibrate_batch_norm(network, [(torch.rand(2, 3, 5, 5),), (torch.rand(2, 2, 5, 5),)])
    assert not network[0].running_mean.any()
    assert network[0].training
    assert not network[0]._forward_hooks


def test_no_batches_are_refused() -> None:
    with pytest.raises(InputError, match="no batches"):
        recalibrate_batch_norm(Twice(), [])
    with pytest.raises(InputError, match="tuple of tensors or have left and right, got Tensor"):
        recalibrate_batch_norm(Twice(), torch.rand(1, 3, 4, 5))


def test_stereo_batches_and_other_networks() -> None:
    network = create_model("covonet")
    left, right = torch.rand(2, 2, 3, 32, 64)
    before = network.features.to_half[0][1].running_mean.clone()
    recalibrate_batch_norm(network, [StereoBatch(left, right, torch.zeros(2, 1, 32, 64), ["", ""])])
    assert not network.training
    assert not torch.equal(network.features.to_half[0][1].running_mean, before)
    with torch.no_grad():
        assert torch.isfinite(network(left, right).disparity).all()


def test_a_supernet_and_its_sub_network_get_the_same_statistics() -> None:
    supernet = EASNetSupernet().eval()
    supernet.set_active({"ks": 5, "e": 4, "d": 2, "s": 2})
    extracted = supernet.extract()
    views = tuple(torch.rand(2, 2, 3, 48, 72))
    for network in (supernet, extracted):
        recalibrate_batch_norm(network, [views])
    with torch.no_grad():
        assert torch.equal(supernet(*views).disparity, extracted(*views).disparity)
