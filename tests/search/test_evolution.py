# SPDX-License-Identifier: Apache-2.0
"""Evolution, predictor, ranking figures and the Pareto front, on functions whose answers are known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from vision3d.benchmark.easnet import LatencyTable
from vision3d.errors import InputError
from vision3d.models.stereo.easnet import SearchSpace, Setting, parse_setting, sample_setting, smallest_setting
from vision3d.search.evolution import EvolutionOptions, cross, draw_feasible, evolve, mutate
from vision3d.search.pareto import Point, draw_pareto, pareto_front, write_pareto
from vision3d.search.predictor import INPUTS, encode, fit_predictor
from vision3d.search.ranking import rank_quality

TARGET = parse_setting({"ks": 5, "e": 6, "d": [3, 2, 4, 3], "s": 3})
TABLE = LatencyTable.of_macs(96, 192)


def genes(setting: Setting) -> np.ndarray:
    return np.concatenate([encode(setting), np.array(setting.stage_lengths + (0,) * (4 - setting.scales))])


def distance(settings: Sequence[Setting]) -> list[float]:
    """An accuracy function whose only optimum is TARGET."""
    return [float(np.abs(genes(setting) - genes(TARGET)).sum()) for setting in settings]


def test_the_search_finds_the_known_optimum() -> None:
    options = EvolutionOptions(population=60, generations=80)
    result = evolve(distance, TABLE.predict, 1e9, smallest_setting(), options=options)
    assert result.best == TARGET
    assert result.scores[0] == 0
    assert result.history == sorted(result.history, reverse=True)
    assert len(result.history) == 81


def test_a_score_that_is_not_a_number_is_the_worst() -> None:
    def score(settings: Sequence[Setting]) -> list[float]:
        return [value if index % 3 else float("nan") for index, value in enumerate(distance(settings))]

    result = evolve(score, TABLE.predict, 1e9, smallest_setting(), options=EvolutionOptions(30, 5))
    assert result.scores == sorted(result.scores)
    assert np.isfinite(result.scores[0])


def test_the_limit_is_kept_where_it_binds() -> None:
    limit = 0.999 * TABLE.predict(TARGET)
    seen: list[Setting] = []

    def score(settings: Sequence[Setting]) -> list[float]:
        seen.extend(settings)
        return distance(settings)

    options = EvolutionOptions(population=40, generations=30)
    result = evolve(score, TABLE.predict, limit, TABLE.fastest(), options=options)
    assert all(TABLE.predict(setting) <= limit for setting in seen)
    assert len(seen) == len(set(seen))
    assert 0 < result.scores[0] < np.mean(distance(seen[:40])) / 2
    again = evolve(distance, TABLE.predict, limit, TABLE.fastest(), options=options)
    assert again.ranked == result.ranked


def test_a_limit_that_only_the_fastest_keeps_ends() -> None:
    fastest = TABLE.fastest()
    options = EvolutionOptions(population=4, generations=1)
    result = evolve(distance, TABLE.predict, TABLE.predict(fastest), fastest, options=options)
    assert result.ranked == [fastest]


def test_an_unreachable_limit_tells_the_least_cost() -> None:
    fastest = TABLE.fastest()
    with pytest.raises(InputError, match=f"the fastest one costs {TABLE.predict(fastest):.4g}"):
        evolve(distance, TABLE.predict, 0.99 * TABLE.predict(fastest), fastest)


def test_draws_within_a_tight_limit_differ() -> None:
    fastest, rng = TABLE.fastest(), random.Random(0)
    limit = 1.05 * TABLE.predict(fastest)
    drawn = {draw_feasible(lambda s: TABLE.predict(s) <= limit, fastest, rng) for _ in range(20)}
    assert all(TABLE.predict(setting) <= limit for setting in drawn)
    assert len(drawn) > 15


def test_mutation_and_crossover_stay_in_the_space_and_follow_their_shares() -> None:
    rng, space = random.Random(0), SearchSpace(kernels=(3, 7), scales=(4,), depths=(4,))
    first, second = sample_setting(rng, space), sample_setting(rng, space)
    assert mutate(first, rng, 0.0, space) == first
    children = [cross(first, second, rng, space) for _ in range(50)]
    for child in children:
        pairs = list(zip(child.kernels, child.expand_ratios, strict=True))
        assert all(
            pair in ((first.kernels[b], first.expand_ratios[b]), (second.kernels[b], second.expand_ratios[b]))
            for b, pair in enumerate(pairs)
        )
    changed = np.mean(
        [
            np.mean([a != b for a, b in zip(first.kernels, mutate(first, rng, 0.1, space).kernels, strict=True)])
            for _ in range(400)
        ]
    )
    assert 0.03 < changed < 0.07  # 0.1, and half of the fresh kernels are the old ones


def test_illegal_options_are_refused() -> None:
    with pytest.raises(InputError, match="population"):
        EvolutionOptions(population=1)


# --- the predictor


def test_the_encoding_has_115_inputs_and_zeros_for_inactive_blocks() -> None:
    assert INPUTS == 115
    setting = parse_setting({"ks": [3, 5, 7, 3] * 4, "e": [2, 4, 6, 8] * 4, "d": [2, 3, 4, 2], "s": 3})
    code = encode(setting)
    assert code.shape == (115,)
    blocks = code[:112].reshape(16, 7)
    assert np.flatnonzero(blocks.any(1)).tolist() == list(setting.active_blocks)
    assert (blocks[list(setting.active_blocks)].sum(1) == 2).all()
    assert blocks[1].tolist() == [0, 1, 0, 0, 1, 0, 0]  # kernel 5, ratio 4
    assert code[112:].tolist() == [0, 1, 0]
    rng = random.Random(0)
    drawn = {sample_setting(rng) for _ in range(200)}
    assert len({encode(setting).tobytes() for setting in drawn}) == len(drawn)


def test_the_predictor_learns_a_cost_from_examples() -> None:
    rng = random.Random(1)
    settings = [sample_setting(rng) for _ in range(160)]
    truth = [TABLE.predict(setting) for setting in settings]
    predictor = fit_predictor(settings[:120], truth[:120], epochs=40)
    quality = rank_quality(predictor.predict(settings[120:]), truth[120:])
    assert quality.kendall > 0.7
    assert 0 < predictor.held_out_error < np.std(truth)
    again = fit_predictor(settings[:120], truth[:120], epochs=40)
    assert again.predict(settings[120:]) == predictor.predict(settings[120:])


@pytest.mark.parametrize("errors", [[1.0, 2.0], [1.0, 2.0, float("nan"), 3.0, 4.0]])
def test_too_few_or_infinite_examples_are_refused(errors: list[float]) -> None:
    with pytest.raises(InputError, match="at least 5 measured networks"):
        fit_predictor([sample_setting(seed) for seed in range(len(errors))], errors)


# --- figures of a ranking


def test_rank_figures() -> None:
    errors = [5.0, 1.0, 3.0, 2.0, 4.0, 0.5]
    perfect = rank_quality(errors, errors)
    assert (perfect.networks, perfect.regret) == (6, 0.0)
    assert (perfect.kendall, perfect.spearman) == pytest.approx((1.0, 1.0))
    inverse = rank_quality([-error for error in errors], errors)
    assert inverse.kendall == pytest.approx(-1)
    assert inverse.regret == 0.5  # its first five leave out the best
    assert np.isnan(rank_quality([1.0] * 6, errors).kendall)
    assert np.isnan(rank_quality([1.0], [2.0]).regret)


def test_the_front_has_no_beaten_point() -> None:
    costs, errors = [1.0, 2.0, 3.0, 2.0, 4.0], [5.0, 3.0, 4.0, 2.0, 1.0]
    assert pareto_front(costs, errors) == [0, 3, 4]


def test_the_picture_and_the_table(tmp_path: Path) -> None:
    figures = {"epe": 1.5, "bad1": 30.0, "bad3": 9.0, "d1": 9.0}
    points = [Point(sample_setting(n), 10.0 + n, {**figures, "epe": 2.0 - 0.1 * n}, n == 2) for n in range(4)]
    points.append(Point(sample_setting(9), 9.0, {**figures, "epe": float("nan")}))
    table, picture = write_pareto(tmp_path / "pareto", points, "ms", limit=12.5)
    lines = table.read_text().splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("setting,cost_ms,epe")
    assert lines[3].endswith(",1,1")
    assert picture.stat().st_size > 1000
    pixels = draw_pareto(points[:4], [0, 1, 2, 3], "ms", 12.5)
    assert pixels.shape == (640, 1000, 3)
    assert (pixels == (208, 86, 38)).all(-1).sum() > 100  # the chosen network
    assert draw_pareto([], [], "ms").shape == (640, 1000, 3)
