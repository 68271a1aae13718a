# SPDX-License-Identifier: Apache-2.0
"""Sparsification against closed forms and a plain sort."""

from __future__ import annotations

import numpy as np
import pytest

from vision3d.errors import InputError
from vision3d.evaluation.sparsification import SHARES, Sparsification, area, sparsification_curve


def test_against_a_plain_sort() -> None:
    generator = np.random.default_rng(0)
    errors, confidence = generator.exponential(2, 1000), generator.random(1000)
    order = np.argsort(-confidence)
    curve = sparsification_curve(errors, confidence)
    for index in (0, 1, 37, 50, 99):
        assert curve[index] == pytest.approx(errors[order[: 1000 - 10 * index]].mean())


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5])
def test_the_optimal_area_of_a_bad_pixel_rate(rate: float) -> None:
    """Hu and Mordohai 2012: the smallest possible area is ``e + (1 - e) ln(1 - e)``."""
    wrong = (np.arange(100_000) < rate * 100_000).astype(float)
    assert area(sparsification_curve(wrong, -wrong)) == pytest.approx(rate + (1 - rate) * np.log(1 - rate), abs=1e-3)


def test_equal_confidences_leave_the_error_as_it_is() -> None:
    errors = np.random.default_rng(0).exponential(1, 500)
    np.testing.assert_allclose(sparsification_curve(errors, np.zeros(500)), errors.mean())
    errors = np.array([0.0, 4.0, 8.0, 8.0])  # the two doubtful pixels go first, in either order
    curve = sparsification_curve(errors, np.array([1.0, 1.0, 0.0, np.nan]))
    assert [curve[0], curve[50], curve[75]] == [5.0, 2.0, 2.0]


def test_perfect_useless_and_inverted_confidence() -> None:
    generator = np.random.default_rng(0)
    truth = generator.uniform(5, 50, (40, 50))
    error = generator.exponential(1, truth.shape)
    perfect, inverted = Sparsification(), Sparsification()
    figures = perfect.update(truth + error, truth, -error)
    assert figures["ause"] == pytest.approx(0, abs=1e-9)
    assert figures["aurg"] > 0.3
    assert inverted.update(truth + error, truth, error)["aurg"] < 0
    result = perfect.compute()
    assert result["random"] == pytest.approx(error.mean())
    assert result["auc"] == pytest.approx(result["auc_oracle"])
    assert len(result["curve"]) == len(SHARES)


def test_left_right_check_beside_the_confidence() -> None:
    truth = np.full((10, 10), 20.0)
    error = np.zeros((10, 10))
    error[:, :3] = 5.0
    quality = Sparsification()
    quality.update(truth + error, truth, 1 - error / 10, error > 1)
    check = quality.compute()["left_right_check"]
    assert (check["kept"], check["error"]) == (pytest.approx(0.7), 0.0)
    assert check["confidence_error"] == pytest.approx(0, abs=1e-9)


def test_merging_and_empty_images() -> None:
    def quality_of(seeds: list[int]) -> Sparsification:
        quality = Sparsification()
        for seed in seeds:
            generator = np.random.default_rng(seed)
            truth = generator.uniform(5, 50, (20, 30))
            quality.update(truth + generator.normal(size=truth.shape), truth, generator.random(truth.shape))
        return quality

    assert quality_of([2]).merge(quality_of([0, 1])).compute() == quality_of([0, 1, 2]).compute()
    assert Sparsification().update(np.full((2, 2), np.nan), np.ones((2, 2)), np.ones((2, 2))) == {}
    assert Sparsification().compute() == {}
    with pytest.raises(InputError, match="as many confidences"):
        sparsification_curve(np.ones(3), np.ones(4))
