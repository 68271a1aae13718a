# SPDX-License-Identifier: Apache-2.0
"""LAMB against plain NumPy in float64; schedules and rounds against the published tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from vision3d.errors import ConfigError
from vision3d.training.config import OptimizerConfig, RoundConfig, ScheduleConfig
from vision3d.training.optimizers import Lamb, create_optimizer, find_round, learning_rate_factor, plan_rounds


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_lamb_matches_plain_numpy(decay: float) -> None:
    generator = np.random.default_rng(0)
    # Large weights (norm above 10), ordinary ones, and zeros (trust ratio 1).
    starts = [generator.normal(size=(40, 30)), generator.normal(size=(7,)), np.zeros(5)]
    tensors = [torch.tensor(start, requires_grad=True) for start in starts]
    optimizer = Lamb(tensors, lr=0.02, weight_decay=decay)
    weights = [start.copy() for start in starts]
    mean, square = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    for _ in range(6):
        for i, tensor in enumerate(tensors):
            gradient = generator.normal(size=weights[i].shape)
            tensor.grad = torch.tensor(gradient)
            mean[i] = 0.9 * mean[i] + 0.1 * gradient
            square[i] = 0.999 * square[i] + 0.001 * gradient**2
            step = mean[i] / (np.sqrt(square[i]) + 1e-6) + decay * weights[i]
            norm = min(np.linalg.norm(weights[i]), 10.0)
            ratio = norm / np.linalg.norm(step) if norm > 0 and np.linalg.norm(step) > 0 else 1.0
            weights[i] = weights[i] - 0.02 * ratio * step
        optimizer.step()
    for tensor, weight in zip(tensors, weights, strict=True):
        np.testing.assert_allclose(tensor.detach().numpy(), weight, rtol=1e-10, atol=1e-12)


def test_lamb_state_round_trip() -> None:
    def run(split: bool) -> torch.Tensor:
        torch.manual_seed(0)
        layer = nn.Linear(4, 3)
        optimizer = Lamb(layer.parameters(), lr=0.1)
        for number in range(6):
            if split and number == 3:
                saved = optimizer.state_dict()
                optimizer = Lamb(layer.parameters(), lr=0.1)
                optimizer.load_state_dict(saved)
            optimizer.zero_grad()
            layer(torch.full((2, 4), float(number))).square().sum().backward()
            optimizer.step()
        return layer.weight.detach().clone()

    assert torch.equal(run(False), run(True))


def test_created_optimizers() -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    adam = create_optimizer(layer, OptimizerConfig("adam", lr=1e-4, amsgrad=True))
    assert type(adam) is torch.optim.Adam
    assert adam.defaults["amsgrad"]
    assert len(adam.param_groups[0]["params"]) == 1
    assert type(create_optimizer(layer, OptimizerConfig("adamw"))) is torch.optim.AdamW
    assert create_optimizer(layer, OptimizerConfig("lamb")).defaults["eps"] == 1e-6
    with pytest.raises(ConfigError, match="illegal lr"):
        Lamb(layer.parameters(), lr=-1)


def test_published_rounds_and_halving() -> None:
    rounds = plan_rounds([RoundConfig([1.0, 0.5], epochs=20), RoundConfig([1.0, 0.0], epochs=30)], None, 100)
    assert [(r.start, r.stop) for r in rounds] == [(0, 2000), (2000, 5000)]
    assert find_round(rounds, 1999).weights == (1.0, 0.5)
    assert find_round(rounds, 2000).weights == (1.0, 0.0)
    assert find_round(rounds, 9999).weights == (1.0, 0.0)
    halving = ScheduleConfig("halving", period=10)
    factors = [learning_rate_factor(halving, epoch * 100, 3000, 100) for epoch in (0, 9, 10, 19, 20, 29)]
    assert factors == [1, 1, 0.5, 0.5, 0.25, 0.25]


def test_step_lists_follow_the_table() -> None:
    steps = ScheduleConfig("steps", milestones=[300, 500, 600], factors=[0.1, 0.01, 0.001])
    factors = [learning_rate_factor(steps, epoch * 5, 0, 5) for epoch in (0, 299, 300, 499, 500, 599, 600, 2399)]
    assert factors == [1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]


def test_cosine_with_warmup_matches_torch() -> None:
    config = ScheduleConfig("cosine", warmup_steps=4, final_factor=0.1)
    ours = [learning_rate_factor(config, step, 24, None) for step in range(24)]
    assert ours[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20, eta_min=0.1)
    for value in ours[4:]:
        assert value == pytest.approx(theirs.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        theirs.step()


def test_lengths_that_cannot_be_told() -> None:
    with pytest.raises(ConfigError, match=r"max_steps"):
        plan_rounds([], None, 10)
    with pytest.raises(ConfigError, match="no end"):
        plan_rounds([RoundConfig(epochs=2)], None, None)
    with pytest.raises(ConfigError, match="unit"):
        learning_rate_factor(ScheduleConfig("halving"), 0, 10, None)
