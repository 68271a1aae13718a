# SPDX-License-Identifier: Apache-2.0
"""Losses of panorama depth against plain loops, holes, and coarse targets by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from vision3d.errors import InputError
from vision3d.geometry.icosphere import icosphere
from vision3d.geometry.panorama_mesh import pixel_solid_angles
from vision3d.training.panorama_losses import berhu, coarser_truth, l1, multi_scale_loss, rmse_log


def make(*shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    prediction, truth = 0.1 + 9 * torch.rand((2, *shape), generator=generator)
    truth.view(-1)[::7] = float("nan")
    truth.view(-1)[1::11] = 0
    return prediction.requires_grad_(), truth, torch.rand(shape, generator=generator)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("threshold", [None, 0.2])
def test_berhu_equals_a_loop(weighted: bool, threshold: float | None) -> None:
    prediction, truth, weight = make(2, 80)
    rows = [
        (abs(p - t), w if weighted else 1.0)
        for p, t, w in zip(*(v.detach().view(-1).tolist() for v in (prediction, truth, weight)), strict=True)
        if math.isfinite(t) and t > 0
    ]
    c = threshold or 0.2 * max(error for error, _ in rows)
    expected = sum(w * (e if e <= c else (e * e + c * c) / (2 * c)) for e, w in rows) / sum(w for _, w in rows)
    loss = berhu(prediction, truth, weight if weighted else None, threshold=threshold)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert prediction.grad is not None
    assert torch.isfinite(prediction.grad).all()
    assert (prediction.grad[~(truth > 0)] == 0).all()


def test_other_losses_equal_numpy() -> None:
    prediction, truth, weight = make(2, 1, 4, 8)
    known = (truth > 0).numpy()
    p, t, w = (value.detach().numpy()[known] for value in (prediction, truth, weight))
    assert l1(prediction, truth, weight).item() == pytest.approx(np.average(np.abs(p - t), weights=w), rel=1e-5)
    expected = np.sqrt(np.mean(np.square(np.log(p) - np.log(t))))
    assert rmse_log(prediction, truth).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", [berhu, l1, rmse_log])
@pytest.mark.parametrize("value", [float("nan"), 0.0, float("inf")])
def test_no_truth_gives_no_gradient(loss, value) -> None:
    prediction = torch.ones((1, 20), requires_grad=True)
    result = loss(prediction, torch.full((1, 20), value))
    result.backward()
    assert result.item() < 1e-5
    assert prediction.grad is not None
    assert (prediction.grad == 0).all()
    exact = loss(prediction, torch.ones(1, 20))
    assert torch.isfinite(torch.autograd.grad(exact, prediction)[0]).all()


def test_coarser_truth_by_hand() -> None:
    faces = torch.tensor([[1.0, math.nan, 3.0, 0.0, 5.0, math.nan, math.nan, -1.0]])
    assert coarser_truth(faces)[0, 0] == 3
    assert torch.isnan(coarser_truth(faces)[0, 1])
    pixels = torch.tensor([[[[1.0, 2.0, 5.0, math.inf], [math.nan, 6.0, 0.0, 7.0]]]])
    assert coarser_truth(pixels).tolist() == [[[[3.0, 6.0]]]]
    with pytest.raises(InputError, match="to be halved"):
        coarser_truth(torch.ones(1, 6))


def test_scales_are_summed() -> None:
    truth = torch.full((1, 1280), 2.0)
    outputs = {f"scale{k}": torch.full((1, 1280 // 4**k), 2.0 + k) for k in range(4)}
    assert multi_scale_loss(outputs, truth, loss=l1).item() == pytest.approx(0.5 * 1 + 0.25 * 2 + 0.125 * 3)
    angles = torch.tensor(icosphere(3).solid_angles, dtype=torch.float32)[None]
    assert multi_scale_loss(outputs, truth, loss=l1, weight=angles).item() == pytest.approx(1.375)
    maps = [torch.full((2, 1, 16 // 2**k, 32 // 2**k), 2.0 + k) for k in range(4)]
    area = torch.tensor(pixel_solid_angles(16), dtype=torch.float32).view(1, 1, 16, 1)
    full = torch.full((2, 1, 16, 32), 2.0)
    assert multi_scale_loss(maps, full, loss=l1, weight=area).item() == pytest.approx(1.375)
    with pytest.raises(InputError, match="3 scales, the loss has 4"):
        multi_scale_loss(maps[:3], full)
    with pytest.raises(InputError, match="does not fit"):
        multi_scale_loss(maps, full[..., :16, :16])
    with pytest.raises(InputError, match="must be positive"):
        berhu(full, full, threshold=0.0)


def test_area_weights_are_an_average_over_the_sphere() -> None:
    height = 64
    latitude = torch.pi * (0.5 - (torch.arange(height) + 0.5) / height)
    truth = torch.full((1, 1, height, 2 * height), 5.0)
    prediction = truth + latitude.sin().square()[:, None]
    area = torch.tensor(pixel_solid_angles(height), dtype=torch.float32).view(1, 1, height, 1)
    assert l1(prediction, truth, area.expand_as(truth)).item() == pytest.approx(1 / 3, rel=2e-3)
