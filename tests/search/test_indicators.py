# SPDX-License-Identifier: Apache-2.0
"""The batch-norm indicators beside direct formulas."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from vision3d.errors import InputError
from vision3d.models.batch_norm import recalibrate_batch_norm
from vision3d.models.stereo.easnet import EASNetSupernet, largest_setting, parse_setting
from vision3d.search.indicators import DriftIndicator, ScaleIndicator, statistics_drift
from vision3d.search.private_norms import PrivateNormIndicator
from vision3d.types import StereoBatch

MIXED = parse_setting({"ks": [3, 5, 7, 3] * 4, "e": [2, 4, 6, 8] * 4, "d": [2, 3, 4, 2], "s": 3})
# middle channels of the active blocks of MIXED, from the table of the search space
WIDTHS = {0: 8, 1: 96, 4: 48, 5: 128, 6: 192, 8: 64, 9: 256, 10: 384, 11: 512}


@pytest.fixture(scope="module")
def supernet() -> EASNetSupernet:
    torch.manual_seed(0)
    network = EASNetSupernet(initialization="published").eval()
    for name, value in network.named_parameters():
        if value.dim() == 1 or name.endswith("_matrix"):
            value.data += 0.2 * torch.randn_like(value)
    return network.requires_grad_(False)


def batches(number: int) -> list[StereoBatch]:
    wide = torch.rand(number, 1, 3, 48, 120, generator=torch.Generator().manual_seed(3))
    truth = torch.full((1, 1, 48, 96), 4.0)
    return [StereoBatch(w[..., :96].contiguous(), w[..., 4:100].contiguous(), truth, ["made"]) for w in wide]


def test_the_scale_indicator_equals_its_formula(supernet: EASNetSupernet) -> None:
    state = {name: value.double().numpy() for name, value in supernet.state_dict().items()}
    total = 0.0
    for block, n in WIDTHS.items():
        prefix = f"feature_extractor.{block}.conv."
        last = np.abs(state[f"{prefix}point_linear.bn.bn.weight"]).mean()
        weight = np.abs(state[f"{prefix}point_linear.conv.conv.weight"]).sum((0, 2, 3))
        channels = np.abs(state[f"{prefix}depth_conv.bn.bn.weight"]) * weight
        width = channels[:n].sum() / channels.sum()
        seven = state[f"{prefix}depth_conv.conv.conv.weight"][:n, 0]
        five = seven[:, 1:-1, 1:-1].reshape(n, 25) @ state[f"{prefix}depth_conv.conv.7to5_matrix"].T
        three = five.reshape(n, 5, 5)[:, 1:-1, 1:-1].reshape(n, 9) @ state[f"{prefix}depth_conv.conv.5to3_matrix"].T
        kept = {3: three, 5: five, 7: seven.reshape(n, 49)}[MIXED.kernels[block]]
        energy = ((kept**2).sum(1) / (seven**2).sum((1, 2))).mean()
        total += last * (width + energy)
    for step in range(6):
        for target, source in ((0, 1), (0, 2), (1, 2)):
            name = f"aggregation.fusions.{step}.fuse_layers.{target}.{source}.1.weight"
            total += np.abs(state[name]).mean()
    assert ScaleIndicator(supernet).score(MIXED) == pytest.approx(total, rel=1e-5)


def test_the_scale_indicator_rises_with_the_width(supernet: EASNetSupernet) -> None:
    indicator = ScaleIndicator(supernet)
    scores = [indicator.score(parse_setting({"ks": 7, "e": ratio, "d": 3, "s": 3})) for ratio in (2, 4, 6, 8)]
    assert scores == sorted(scores)
    assert len(set(scores)) == 4


def test_the_drift_is_the_divergence_of_normal_distributions() -> None:
    from torch.distributions import Normal, kl_divergence

    generator = torch.Generator().manual_seed(0)
    mean, mean_0 = torch.randn(5, generator=generator), torch.randn(8, generator=generator)
    variance, variance_0 = (torch.rand(n, generator=generator) + 0.1 for n in (5, 8))
    found = statistics_drift({"a": (mean, variance)}, {"a": (mean_0, variance_0), "b": (mean_0, variance_0)})
    expected = kl_divergence(Normal(mean, variance.sqrt()), Normal(mean_0[:5], variance_0[:5].sqrt())).sum()
    assert found == pytest.approx(float(expected), rel=1e-5)


def test_the_drift_of_a_subnetwork(supernet: EASNetSupernet) -> None:
    views = [(batch.left, batch.right) for batch in batches(2)]
    indicator = DriftIndicator(supernet, views)
    assert indicator.score(largest_setting()) == pytest.approx(0, abs=1e-3)
    score, channels = indicator.drift(MIXED)
    small = parse_setting({"ks": 3, "e": 2, "d": 2, "s": 2})
    network = supernet.extract(small)
    recalibrate_batch_norm(network, views)
    reference = supernet.extract(largest_setting())
    recalibrate_batch_norm(reference, views)
    assert score > 0
    assert channels > 0
    # the second block of the second stage of both networks: number 3 of the small one, 5 of the largest
    names = ("feature_extractor.3.conv.depth_conv.bn", "feature_extractor.5.conv.depth_conv.bn")
    ours, theirs = network.get_submodule(names[0]), reference.get_submodule(names[1])
    found = indicator.reference[names[1]]
    assert torch.equal(found[0], theirs.running_mean)
    assert len(ours.running_mean) == 64 < len(theirs.running_mean) == 256
    with pytest.raises(InputError, match="at least one batch"):
        DriftIndicator(supernet, [])


def test_private_norms_learn_alone_and_are_looked_up(supernet: EASNetSupernet) -> None:
    before = copy.deepcopy(supernet.state_dict())
    indicator = PrivateNormIndicator(supernet, batches(2), steps=2, learning_rate=1e-2)
    assert all(torch.equal(value, before[name]) for name, value in supernet.state_dict().items())
    assert len(indicator.losses) == 2
    assert sum(len(row) for row in indicator.table) == 16 * 12
    shared = float(before["feature_extractor.0.conv.point_linear.bn.bn.weight"].abs().mean())
    changed = [abs(value - shared) > 1e-5 for value in indicator.table[0].values()]
    assert 1 <= sum(changed) <= 2  # the first block acts in both steps, with one kernel and ratio each
    expected = sum(indicator.table[b][f"{MIXED.kernels[b]} {MIXED.expand_ratios[b]}"] for b in WIDTHS)
    assert indicator.score(MIXED) == pytest.approx(expected)
    with pytest.raises(InputError, match="one step"):
        PrivateNormIndicator(supernet, batches(1), steps=0)


def test_the_private_norms_start_as_the_supernet(supernet: EASNetSupernet) -> None:
    indicator = PrivateNormIndicator(supernet, batches(1), steps=1, learning_rate=0.0)
    for block, row in enumerate(indicator.table):
        weight = supernet.state_dict()[f"feature_extractor.{block}.conv.point_linear.bn.bn.weight"]
        assert list(row.values()) == pytest.approx([float(weight.abs().mean())] * 12)
