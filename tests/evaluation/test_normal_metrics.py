# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from vision3d.errors import InputError
from vision3d.evaluation.normal_metrics import NormalSetMetrics, valid_normals


def tilted(angles: np.ndarray) -> np.ndarray:
    """Unit normals [1, W, 3] at known angles (degrees) to (0, 0, -1)."""
    radians = np.radians(np.atleast_2d(angles))
    return np.stack([np.sin(radians), np.zeros_like(radians), -np.cos(radians)], -1)


def test_pooled_and_per_image_figures() -> None:
    metrics = NormalSetMetrics()
    first, second = np.array([0.0, 6.0, 10.0, 20.0]), np.array([40.0, 180.0])
    for angles in (first, second):
        own = metrics.update(3.0 * tilted(angles), tilted(np.zeros_like(angles)))
        assert own["mean"] == pytest.approx(angles.mean())
    figures = metrics.compute()
    together = np.concatenate([first, second])
    assert figures["mean"] == pytest.approx(together.mean())
    assert figures["image_mean"] == pytest.approx((9 + 110) / 2)
    assert figures["rmse"] == pytest.approx(np.sqrt((together**2).mean()))
    assert figures["median"] == pytest.approx(15, rel=2e-3)  # between 10 and 20
    shares = [figures[f"within{t}"] for t in ("5", "7.5", "11.25", "22.5", "30")]
    assert shares == pytest.approx([100 / 6, 200 / 6, 50, 400 / 6, 400 / 6])
    assert (figures["pixels"], figures["images"], figures["density"]) == (6, 2, 100)


def test_invalid_pixels_are_left_out_and_counted() -> None:
    truth = tilted(np.zeros(6))
    truth[0, 0] = (1.5, 0, 0)  # the code of IRS
    truth[0, 1] = 0
    truth[0, 2] = np.nan
    truth[0, 3] = (0, 0, -0.5)  # not a unit vector
    prediction = tilted(np.full(6, 4.0))
    prediction[0, 4] = 0
    np.testing.assert_array_equal(valid_normals(truth), [[False] * 4 + [True] * 2])
    np.testing.assert_array_equal(valid_normals(truth, None), [[False] * 3 + [True] * 3])
    metrics = NormalSetMetrics()
    metrics.update(prediction, truth)
    figures = metrics.compute()
    assert (figures["invalid_truth"], figures["invalid_prediction"], figures["pixels"]) == (4, 1, 2)
    assert figures["mean"] == pytest.approx(4)
    assert figures["within5"] == 50
    masked = NormalSetMetrics()
    masked.update(prediction, truth, np.array([[False] * 5 + [True]]))
    assert (masked.compute()["invalid_truth"], masked.compute()["pixels"]) == (0, 1)


def test_merging_is_exact_and_empty_sets_are_nan() -> None:
    rng = np.random.default_rng(0)
    maps = [(rng.normal(size=(5, 6, 3)), tilted(rng.uniform(0, 40, 30)).reshape(5, 6, 3)) for _ in range(4)]
    whole, parts = NormalSetMetrics(), [NormalSetMetrics(), NormalSetMetrics()]
    for index, pair in enumerate(maps):
        whole.update(*pair)
        parts[index // 2].update(*pair)
    assert parts[0].merge(parts[1]).compute() == whole.compute()
    assert np.isnan(NormalSetMetrics().compute()["image_mean"])
    with pytest.raises(InputError, match="tolerance"):
        whole.merge(NormalSetMetrics(unit_tolerance=None))
    with pytest.raises(InputError, match="shape"):
        whole.update(np.zeros((2, 3, 3)), np.zeros((3, 2, 3)))
    with pytest.raises(InputError, match=r"\[H, W, 3\]"):
        valid_normals(np.zeros((3, 4)))
