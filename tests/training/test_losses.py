# SPDX-License-Identifier: Apache-2.0
"""The multi-scale loss against plain loops in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vision3d.errors import ConfigError, InputError, UnknownNameError
from vision3d.training.losses import MultiScaleSmoothL1, create_loss, pool_truth
from vision3d.types import StereoBatch, StereoOutput

WEIGHTS = (0.32, 0.16, 0.08)


def make(seed: int = 0, holes: float = 0.2) -> tuple[StereoOutput, StereoBatch]:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(2, 1, 16, 24, generator=generator) * 250 - 5
    truth[torch.rand(truth.shape, generator=generator) < holes] = float("nan")
    stages = [
        [(torch.rand(2, 1, 16 >> k, 24 >> k, generator=generator) * 200).requires_grad_() for k in range(3)]
        for _ in range(2)
    ]
    image = torch.zeros(2, 3, 16, 24)
    return StereoOutput(stages[-1][0], stages[-1], stages=stages), StereoBatch(image, image, truth, ["a", "b"])


def reference(output: StereoOutput, batch: StereoBatch, positive: bool, sparse: bool) -> float:
    """The published definition, cell by cell."""
    truth = batch.disparity.double().numpy()[:, 0]
    total = 0.0
    for stage in output.stages:
        for k, (prediction, weight) in enumerate(zip(stage, WEIGHTS, strict=True)):
            values, size = [], 2**k
            for b, y, x in np.ndindex(2, 16 >> k, 24 >> k):
                cell = truth[b, y * size : (y + 1) * size, x * size : (x + 1) * size].ravel()
                known = cell[np.isfinite(cell) & (cell > 0)] if sparse else cell
                target = known.mean() if known.size else np.nan
                if not target < 192 or (positive and not target > 0):
                    continue
                error = abs(prediction[b, 0, y, x].item() - target)
                values.append(0.5 * error**2 if error < 1 else error - 0.5)
            total += weight * float(np.mean(values)) if values else 0.0
    return total


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_matches_plain_loops(positive: bool, sparse: bool) -> None:
    output, batch = make(holes=0.5 if sparse else 0.03)
    total, parts = MultiScaleSmoothL1(WEIGHTS, positive=positive, sparse=sparse)(output, batch)
    assert total.item() == pytest.approx(reference(output, batch, positive, sparse), rel=1e-5)
    assert sum(part.item() for part in parts.values()) == pytest.approx(total.item(), rel=1e-6)


@pytest.mark.parametrize("sparse", [True, False])
def test_unknown_truth_reaches_no_gradient(sparse: bool) -> None:
    output, batch = make(holes=0.6)
    total, _ = MultiScaleSmoothL1(WEIGHTS, sparse=sparse)(output, batch)
    total.backward()
    gradient = output.stages[0][0].grad
    assert gradient is not None
    assert torch.isfinite(gradient).all()
    assert (gradient[torch.isnan(batch.disparity)] == 0).all()
    assert gradient.abs().sum() > 0


def test_no_valid_pixel_is_a_zero_loss() -> None:
    output, batch = make()
    batch.disparity.fill_(float("nan"))
    total, _ = MultiScaleSmoothL1(WEIGHTS, sparse=True)(output, batch)
    total.backward()
    assert total.item() == 0


def test_pooling_keeps_values() -> None:
    truth = torch.tensor([[1.0, 3.0], [float("nan"), 8.0]])[None, None]
    assert pool_truth(truth, 2, sparse=True).item() == pytest.approx(4.0)
    assert torch.isnan(pool_truth(truth, 2, sparse=False)).item()


def test_errors_say_the_mend() -> None:
    output, batch = make()
    with pytest.raises(InputError, match="3 maps but the loss has 4 weights"):
        MultiScaleSmoothL1((1, 1, 1, 1))(output, batch)
    with pytest.raises(InputError, match="training mode"):
        MultiScaleSmoothL1()(StereoOutput(output.disparity, []), batch)
    with pytest.raises(UnknownNameError, match="multiscale_smooth_l1"):
        create_loss("multiscale_smooth_l2")
    with pytest.raises(ConfigError, match="max_disparty"):
        create_loss("multiscale_smooth_l1", max_disparty=1)
