# SPDX-License-Identifier: Apache-2.0
"""Disparity metrics against hand values and against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage, stats

from vision3d.errors import InputError
from vision3d.evaluation.metrics import DisparityMetrics, disparity_errors


def test_hand_values() -> None:
    # Errors 0, 1, 3, 3.5, 10; one pixel has no truth. 3.5 px is 3.5 % of 100 px, so D1 counts only the last.
    truth = np.array([[10.0, 10.0, 10.0], [100.0, 100.0, np.nan]])
    prediction = np.array([[10.0, 11.0, 7.0], [103.5, 90.0, 5.0]])
    errors = disparity_errors(prediction, truth)
    assert errors["pixels"] == 5
    assert errors["epe"] == pytest.approx(17.5 / 5)
    assert errors["rms"] == pytest.approx(np.sqrt((1 + 9 + 3.5**2 + 100) / 5))
    assert [errors[f"bad{k}"] for k in ("0.5", "1", "2", "3", "4")] == [80.0, 60.0, 60.0, 40.0, 20.0]
    assert errors["d1"] == 20.0
    assert errors["density"] == 100.0


def test_a_hole_in_the_prediction_is_wrong_and_filled_for_the_epe() -> None:
    truth = np.array([[4.0, 4.0, 4.0]])
    errors = disparity_errors(np.array([[4.0, np.nan, 6.0]]), truth)
    assert errors["epe"] == pytest.approx(2 / 3)  # the hole takes the smaller neighbour, 4
    assert errors["bad3"] == pytest.approx(100 / 3)
    assert errors["d1"] == pytest.approx(100 / 3)
    assert errors["density"] == pytest.approx(200 / 3)


def test_an_empty_prediction_is_all_wrong() -> None:
    errors = disparity_errors(np.full((2, 3), np.inf), np.full((2, 3), 7.0))
    assert (errors["epe"], errors["bad4"], errors["d1"], errors["density"]) == (7.0, 100.0, 100.0, 0.0)


def test_no_truth_gives_nan() -> None:
    errors = disparity_errors(np.ones((2, 2)), np.full((2, 2), np.nan), quantiles=True)
    assert errors["pixels"] == 0
    assert all(np.isnan(value) for name, value in errors.items() if name != "pixels")


def test_against_scipy() -> None:
    generator = np.random.default_rng(0)
    truth = generator.uniform(1, 120, (48, 64)).astype(np.float32)
    truth[generator.random(truth.shape) < 0.2] = np.nan
    prediction = (np.nan_to_num(truth) + generator.laplace(0, 3, truth.shape)).astype(np.float32)
    mask = generator.random(truth.shape) < 0.5
    labels = (np.isfinite(truth) & mask).astype(int)
    error = np.abs(prediction.astype(np.float64) - np.nan_to_num(truth))
    errors = disparity_errors(prediction, truth, mask, quantiles=True)
    assert errors["epe"] == pytest.approx(ndimage.mean(error, labels, 1), rel=1e-12)
    assert errors["rms"] == pytest.approx(np.sqrt(ndimage.mean(error**2, labels, 1)), rel=1e-12)
    chosen = error[labels == 1]
    for threshold in (0.5, 1, 2, 3, 4):
        assert errors[f"bad{threshold:g}"] == pytest.approx(100 - stats.percentileofscore(chosen, threshold, "weak"))
    relative = chosen / truth[labels == 1]
    outliers = np.minimum(chosen / 3, relative / 0.05)  # both ratios must exceed 1
    assert errors["d1"] == pytest.approx(100 - stats.percentileofscore(outliers, 1, "weak"))
    for quantile in (50, 90, 95, 99):
        assert errors[f"a{quantile}"] == pytest.approx(stats.scoreatpercentile(chosen, quantile), rel=1e-6)


@pytest.mark.parametrize("quantiles", [False, True])
def test_merged_parts_equal_the_whole(quantiles: bool) -> None:
    generator = np.random.default_rng(1)
    truth = generator.integers(0, 60, (6, 8, 10)) / 4.0
    prediction = generator.integers(0, 60, (6, 8, 10)) / 4.0
    whole = DisparityMetrics(quantiles=quantiles)
    parts = [DisparityMetrics(quantiles=quantiles) for _ in range(3)]
    for index in range(6):
        whole.update(prediction[index], truth[index])
        parts[index % 3].update(prediction[index], truth[index])
    one = parts[0].merge(parts[1]).merge(parts[2]).compute()
    other = parts[2].merge(parts[0].merge(parts[1])).compute()
    assert one == other == whole.compute()


def test_takes_tensors_with_leading_axes() -> None:
    truth = torch.full((1, 1, 3, 4), 5.0)
    errors = disparity_errors(truth + 2, truth, torch.ones(1, 1, 3, 4, dtype=torch.bool))
    assert errors["epe"] == 2.0


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="prediction is 3x2, the truth 4x2"):
        disparity_errors(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(InputError, match="mask is 3x2"):
        disparity_errors(np.zeros((2, 4)), np.zeros((2, 4)), np.ones((2, 3)))
    with pytest.raises(InputError, match="one map"):
        disparity_errors(np.zeros((2, 2, 4)), np.zeros((2, 4)))


def test_different_settings_do_not_merge() -> None:
    with pytest.raises(InputError, match="same thresholds"):
        DisparityMetrics().merge(DisparityMetrics(thresholds=(1.0,)))
