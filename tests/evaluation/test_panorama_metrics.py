# SPDX-License-Identifier: Apache-2.0
"""Figures of panorama depth against the pixel metrics of depth maps, plain loops and integrals over the sphere."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from vision3d.errors import InputError, UnknownNameError
from vision3d.evaluation.depth_metrics import DepthMetrics
from vision3d.evaluation.panorama_metrics import PanoramaMetrics, panorama_errors


def make(seed: int = 0, height: int = 12) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    truth = generator.uniform(0.3, 14, (height, 2 * height))
    prediction = truth * np.exp(generator.normal(0, 0.3, truth.shape))
    truth[generator.random(truth.shape) < 0.2] = generator.choice([0, np.nan, np.inf])
    prediction[0, 0] = np.nan
    return prediction, truth


@pytest.mark.parametrize("aligned", [False, True])
def test_plain_figures_equal_those_of_depth_maps(aligned: bool) -> None:
    prediction, truth = make()
    mask = np.random.default_rng(1).random(truth.shape) < 0.7
    other = DepthMetrics()
    other.update(prediction, truth, mask, align_median=aligned)
    figures = panorama_errors(prediction, truth, mask, alignment="median" if aligned else "none")
    for name, value in other.compute().items():
        assert figures[name] == pytest.approx(value), name


def test_weighted_figures_equal_a_loop() -> None:
    prediction, truth = make()
    height = len(truth)
    figures = PanoramaMetrics().update(prediction, truth)
    rows, total, answered = [], 0.0, 0.0
    for v in range(height):
        area = math.cos(math.pi * v / height) - math.cos(math.pi * (v + 1) / height)
        for p, t in zip(prediction[v], truth[v], strict=True):
            if math.isfinite(t) and t > 0:
                total += area
                if math.isfinite(p):
                    answered += area
                    rows.append((area, abs(p - t), t, max(p / t, t / p), math.log(p / t)))
    mean = lambda values: sum(row[0] * value for row, value in zip(rows, values, strict=True)) / answered  # noqa: E731
    assert figures["sphere_abs_rel"] == pytest.approx(mean([row[1] / row[2] for row in rows]))
    assert figures["sphere_mae"] == pytest.approx(mean([row[1] for row in rows]))
    assert figures["sphere_rmse"] == pytest.approx(math.sqrt(mean([row[1] ** 2 for row in rows])))
    assert figures["sphere_rmse_log"] == pytest.approx(math.sqrt(mean([row[4] ** 2 for row in rows])))
    assert figures["sphere_delta1"] == pytest.approx(100 * sum(row[0] for row in rows if row[3] < 1.25) / total)
    assert figures["sphere_density"] == pytest.approx(100 * answered / total)


def test_area_weights_integrate_over_the_sphere() -> None:
    """An error of sin^2(latitude) has the mean 1/3 on the sphere, and 1/2 over the pixels of a panorama."""
    height = 256
    latitude = np.pi * (0.5 - (np.arange(height) + 0.5) / height)
    truth = np.full((height, 2 * height), 5.0)
    figures = PanoramaMetrics().update(truth + np.sin(latitude)[:, None] ** 2, truth)
    assert figures["mae"] == pytest.approx(1 / 2, rel=1e-4)
    assert figures["sphere_mae"] == pytest.approx(1 / 3, rel=1e-4)


def test_protocols_clamp_as_they_say() -> None:
    truth = np.array([[2.0, 12.0, 0.05, 4.0]])
    prediction = np.array([[2.0, 20.0, 0.2, 11.0]])
    assert panorama_errors(prediction, truth, protocol="hohonet")["mae"] == pytest.approx((0 + 0 + 0.15 + 6) / 4)
    figures = panorama_errors(prediction, truth, protocol="unifuse")  # 12 m is beyond its range
    assert (figures["pixels"], figures["mae"]) == (3, pytest.approx((0 + 0.15 + 6) / 3))
    with pytest.raises(UnknownNameError, match="did you mean hohonet"):
        panorama_errors(prediction, truth, protocol="hohone")
    with pytest.raises(InputError, match="none or median"):
        panorama_errors(prediction, truth, alignment="scale")


def test_means_over_images_and_merging() -> None:
    whole, parts = PanoramaMetrics(alignment="median"), [PanoramaMetrics(alignment="median") for _ in range(2)]
    rows = []
    for seed in range(4):
        pair = make(seed, 4 + 2 * seed)
        rows.append(whole.update(*pair))
        parts[seed // 2].update(*pair)
    whole.update(np.ones((2, 4)), np.full((2, 4), np.nan))  # nothing to count
    figures = whole.compute()
    assert figures["rmse"] == pytest.approx(statistics.fmean(row["rmse"] for row in rows))
    assert figures["images"] == 5
    merged = parts[0].merge(parts[1]).compute()
    assert {**merged, "images": 5} == figures
    with pytest.raises(InputError, match="same protocol"):
        whole.merge(PanoramaMetrics())


def test_empty_and_wrong_shapes() -> None:
    figures = PanoramaMetrics().compute()
    assert math.isnan(figures["abs_rel"])
    assert figures["images"] == 0
    with pytest.raises(InputError, match=r"\[H, 2 H\]"):
        PanoramaMetrics().update(np.ones((4, 4)), np.ones((4, 4)))
    with pytest.raises(InputError, match="one size"):
        PanoramaMetrics().update(np.ones((2, 4)), np.ones((4, 8)))
    with pytest.raises(InputError, match="one size"):
        panorama_errors(np.ones(3), np.ones(3), np.ones(2))
