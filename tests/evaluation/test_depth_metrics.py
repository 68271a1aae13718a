# SPDX-License-Identifier: Apache-2.0
"""Depth and normal figures, and the error histogram, against scikit-image, SciPy and plain NumPy."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from vision3d.errors import InputError
from vision3d.evaluation.depth_metrics import DepthMetrics, NormalMetrics, angle_between
from vision3d.evaluation.quantiles import ErrorHistogram


def make_depth(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    truth = generator.uniform(0.5, 12, (20, 30))
    prediction = truth * np.exp(generator.normal(0, 0.25, truth.shape))
    truth[generator.random(truth.shape) < 0.2] = generator.choice([0, np.nan, np.inf])
    return prediction, truth


def test_depth_against_other_implementations() -> None:
    from skimage.metrics import mean_squared_error

    prediction, truth = make_depth(0)
    metrics = DepthMetrics()
    metrics.update(prediction, truth)
    figures = metrics.compute()
    pairs = [(p, t) for p, t in zip(prediction.flat, truth.flat, strict=True) if math.isfinite(t) and t > 0]
    p, t = np.array(pairs).T
    assert figures["pixels"] == len(pairs)
    assert figures["abs_rel"] == pytest.approx(statistics.fmean(abs(a - b) / b for a, b in pairs))
    assert figures["sq_rel"] == pytest.approx(statistics.fmean((a - b) ** 2 / b for a, b in pairs))
    assert figures["mae"] == pytest.approx(statistics.fmean(abs(a - b) for a, b in pairs))
    assert figures["rmse"] == pytest.approx(math.sqrt(mean_squared_error(p, t)))
    assert figures["rmse_log"] == pytest.approx(math.sqrt(mean_squared_error(np.log(p), np.log(t))))
    assert figures["rmse_log10"] == pytest.approx(math.sqrt(mean_squared_error(np.log10(p), np.log10(t))))
    assert figures["log10"] == pytest.approx(statistics.fmean(abs(math.log10(a / b)) for a, b in pairs))
    for power in (1, 2, 3):
        good = sum(1 / 1.25**power < a / b < 1.25**power for a, b in pairs)
        assert figures[f"delta{power}"] == pytest.approx(100 * good / len(pairs))


def test_depth_holes_range_clamp_and_alignment() -> None:
    truth = np.array([[1.0, 2.0, 4.0, 20.0]])
    prediction = np.array([[1.0, np.nan, 12.0, 3.0]])
    metrics = DepthMetrics(depth_range=(0.5, 10.0), clamp=True)
    metrics.update(prediction, truth)
    figures = metrics.compute()
    assert (figures["pixels"], figures["mae"]) == (3, 3.0)  # (0 + |10 - 4|) / 2
    assert figures["density"] == pytest.approx(200 / 3)
    assert figures["delta1"] == pytest.approx(100 / 3)
    aligned = DepthMetrics()
    aligned.update(3 * truth, truth, align_median=True)
    assert aligned.compute()["rmse"] == pytest.approx(0, abs=1e-12)
    empty = DepthMetrics().compute()
    assert empty["pixels"] == 0
    assert math.isnan(empty["abs_rel"])


def test_depth_merges_exactly() -> None:
    parts = [DepthMetrics() for _ in range(3)]
    whole = DepthMetrics()
    for seed in range(6):
        whole.update(*make_depth(seed))
        parts[seed % 3].update(*make_depth(seed))
    assert parts[2].merge(parts[0].merge(parts[1])).compute() == whole.compute()
    with pytest.raises(InputError, match="same range"):
        whole.merge(DepthMetrics(clamp=True))
    with pytest.raises(InputError, match="one size"):
        whole.update(np.ones((2, 2)), np.ones((2, 3)))


def make_normals(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predicted and true normals, and the angles by which SciPy's rotations turned them."""
    generator = np.random.default_rng(seed)
    truth = generator.normal(size=(600, 3))
    truth /= np.linalg.norm(truth, axis=1, keepdims=True)
    axes = np.cross(truth, generator.normal(size=(600, 3)))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    degrees = np.abs(generator.normal(0, 18, 600)).clip(max=180)
    turned = Rotation.from_rotvec(np.radians(degrees)[:, None] * axes).apply(truth)
    lengths = generator.uniform(0.1, 5, (600, 1))
    return (turned * lengths).reshape(20, 30, 3), truth.reshape(20, 30, 3), degrees.reshape(20, 30)


def test_normals_against_known_rotations() -> None:
    prediction, truth, degrees = make_normals(0)
    np.testing.assert_allclose(angle_between(prediction, truth), degrees, atol=1e-9)
    truth[:5] = np.nan
    truth[5] = 0
    expected = degrees[6:].ravel()
    metrics = NormalMetrics()
    metrics.update(prediction, truth)
    figures = metrics.compute()
    assert figures["pixels"] == expected.size
    assert figures["mean"] == pytest.approx(expected.mean())
    assert figures["median"] == pytest.approx(np.median(expected), rel=0.01)
    assert figures["rmse"] == pytest.approx(np.sqrt((expected**2).mean()))
    for limit in (5, 7.5, 11.25, 22.5, 30):
        assert figures[f"within{limit:g}"] == pytest.approx(100 * (expected < limit).mean())


def test_tiny_and_opposite_angles_are_exact() -> None:
    first = np.array([[[0.0, 0.0, 1.0]]])
    assert angle_between(first, np.array([[[1e-8, 0.0, 1.0]]])).item() == pytest.approx(np.degrees(1e-8), rel=1e-9)
    assert angle_between(first, -first).item() == 180
    assert np.isnan(angle_between(first, 0 * first)).all()


def test_normals_merge_exactly_and_count_missing_answers_as_wrong() -> None:
    whole, parts = NormalMetrics(), [NormalMetrics() for _ in range(2)]
    for seed in range(4):
        prediction, truth, _ = make_normals(seed)
        whole.update(prediction, truth)
        parts[seed % 2].update(prediction, truth)
    assert parts[1].merge(parts[0]).compute() == whole.compute()
    metrics = NormalMetrics()
    metrics.update(np.array([[[0.0, 0, 1], [np.nan, 0, 1]]]), np.array([[[0.0, 0, 1], [0, 0, 1]]]))
    assert metrics.compute()["within30"] == 50
    assert metrics.compute()["density"] == 50
    with pytest.raises(InputError, match=r"\[H, W, 3\]"):
        metrics.update(np.ones((2, 3)), np.ones((2, 3)))


def test_histogram_quantiles_against_numpy() -> None:
    errors = np.random.default_rng(0).lognormal(0, 2, 200_000).astype(np.float32)
    whole, one, two = ErrorHistogram(), ErrorHistogram(), ErrorHistogram()
    whole.update(errors)
    one.update(errors[:70_000])
    two.update(errors[70_000:])
    assert (one.merge(two).counts == whole.counts).all()
    assert whole.total == errors.size
    for percent in (0.1, 10, 50, 90, 95, 99, 99.9):
        exact = float(np.percentile(errors, percent))
        assert whole.quantile(percent) == pytest.approx(exact, rel=2e-3, abs=1e-3)
    limits = np.array([0.125, 0.5, 1, 3, 20])
    expected = [(errors < limit).mean() * 100 for limit in limits]
    np.testing.assert_allclose(whole.percent_below(limits), expected, atol=0.05)


def test_histogram_edges() -> None:
    histogram = ErrorHistogram()
    assert math.isnan(histogram.quantile(50))
    histogram.update(np.array([0.0, np.nan, np.inf, 1e30]))
    assert histogram.total == 3
    assert histogram.quantile(0) < 1e-3
    with pytest.raises(InputError, match="negative"):
        histogram.update(np.array([-1.0]))
    with pytest.raises(InputError, match="0 to 100"):
        histogram.quantile(101)
