# SPDX-License-Identifier: Apache-2.0
"""Evolutionary search in a space of settings under a limit of cost (Once-for-All, arXiv 1908.09791)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vision3d.errors import InputError
from vision3d.models.stereo.easnet import FULL_SPACE, SearchSpace, Setting, parse_setting, sample_setting

Score = Callable[[Sequence[Setting]], Sequence[float]]
TRIES = 200


@dataclass(frozen=True)
class EvolutionOptions:
    """How the search goes.

    Attributes:
        population: networks of a generation.
        generations: how many.
        parents: the best share, which is kept and bred from.
        mutated: share of the children that are mutations; the others are crossovers.
        mutation: probability that a gene is drawn anew: a block's kernel and expand ratio, a stage's depth, the scale.
    """

    population: int = 100
    generations: int = 500
    parents: float = 0.25
    mutated: float = 0.5
    mutation: float = 0.1

    def __post_init__(self) -> None:
        shares = (self.parents, self.mutated, self.mutation)
        if self.population < 2 or self.generations < 0 or not all(0 <= share <= 1 for share in shares):
            raise InputError(f"{self}: population at least 2, generations at least 0, shares in [0, 1]")


@dataclass
class Evolution:
    """What a search found.

    Attributes:
        ranked: every distinct setting of the last generation, the best first.
        scores: theirs; lower is better.
        history: best score so far after each generation, the first being that of the random population.
    """

    ranked: list[Setting]
    scores: list[float]
    history: list[float] = field(default_factory=list)

    @property
    def best(self) -> Setting:
        """The best setting."""
        return self.ranked[0]


def mutate(setting: Setting, rng: random.Random, probability: float, space: SearchSpace = FULL_SPACE) -> Setting:
    """A copy in which each gene is drawn anew with this probability."""
    fresh = sample_setting(rng, space)
    return _mixed(setting, fresh, rng, probability, space)


def cross(first: Setting, second: Setting, rng: random.Random, space: SearchSpace = FULL_SPACE) -> Setting:
    """A child that takes each gene from either parent, with equal probability."""
    return _mixed(first, second, rng, 0.5, space)


def _mixed(first: Setting, second: Setting, rng: random.Random, share: float, space: SearchSpace) -> Setting:
    """Each gene of ``first``, or with probability ``share`` that of ``second``."""
    blocks = [second if rng.random() < share else first for _ in first.kernels]
    stages = [second if rng.random() < share else first for _ in first.depths]
    return parse_setting(
        {
            "ks": [source.kernels[b] for b, source in enumerate(blocks)],
            "e": [source.expand_ratios[b] for b, source in enumerate(blocks)],
            "d": [source.depths[stage] for stage, source in enumerate(stages)],
            "s": second.scales if rng.random() < share else first.scales,
        },
        space,
    )


def draw_feasible(
    fits: Callable[[Setting], bool], fastest: Setting, rng: random.Random, space: SearchSpace = FULL_SPACE
) -> Setting:
    """A random setting that fits. At most ``TRIES`` draws, which come nearer and nearer to ``fastest``, which fits.

    Args:
        fits: whether a setting keeps the limit.
        fastest: the setting of least cost.
        rng: the source of chance.
        space: the legal values.
    """
    for attempt in range(TRIES):
        share = max(0.0, 2 * attempt / TRIES - 1)  # the first half is uniform
        setting = _mixed(sample_setting(rng, space), fastest, rng, share, space)
        if fits(setting):
            return setting
    return fastest


def evolve(
    score: Score,
    cost: Callable[[Setting], float],
    limit: float,
    fastest: Setting,
    *,
    space: SearchSpace = FULL_SPACE,
    seed: int = 0,
    options: EvolutionOptions | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Evolution:
    """Find a setting of low score whose cost keeps the limit.

    Args:
        score: of several settings at once; lower is better, NaN is worst. Each setting is asked for once.
        cost: of a setting, e.g. ``LatencyTable.predict``.
        limit: largest cost.
        fastest: the setting of least cost (``LatencyTable.fastest``).
        space: the legal values.
        seed: of the search; equal seeds give equal results.
        options: population and shares.
        progress: is told the generation and its best score.

    Raises:
        InputError: not even the fastest setting keeps the limit; the message has its cost.
    """
    options = options or EvolutionOptions()
    if not cost(fastest) <= limit:
        raise InputError(
            f"no sub-network costs at most {limit:g}: the fastest one costs {cost(fastest):.4g} ({fastest}): raise the "
            "limit, use smaller images, or another device"
        )
    rng = random.Random(seed)
    known: dict[Setting, float] = {}

    def fits(setting: Setting) -> bool:
        return cost(setting) <= limit

    first = [draw_feasible(fits, fastest, rng, space) for _ in range(options.population)]
    population = _ranked(first, score, known)
    history = [known[population[0]]]
    for generation in range(options.generations):
        if progress is not None:
            progress(generation, history[-1])
        parents = population[: max(1, round(options.parents * options.population))]
        children = [_child(parents, fits, rng, options, space, n) for n in range(options.population - len(parents))]
        population = _ranked([*parents, *children], score, known)
        history.append(known[population[0]])
    return Evolution(population, [known[setting] for setting in population], history)


def _ranked(settings: Sequence[Setting], score: Score, known: dict[Setting, float]) -> list[Setting]:
    """The distinct settings, best first; the scores of new ones are added to ``known``."""
    new = [setting for setting in dict.fromkeys(settings) if setting not in known]
    scores = score(new) if new else ()
    known.update({s: math.inf if math.isnan(value) else value for s, value in zip(new, scores, strict=True)})
    return sorted(dict.fromkeys(settings), key=known.__getitem__)


def _child(
    parents: Sequence[Setting],
    fits: Callable[[Setting], bool],
    rng: random.Random,
    options: EvolutionOptions,
    space: SearchSpace,
    number: int,
) -> Setting:
    """A mutation or a crossover that fits; after ``TRIES`` failures a parent."""
    wanted = max(1, options.population - len(parents))
    for _ in range(TRIES):
        if number < options.mutated * wanted:
            child = mutate(rng.choice(parents), rng, options.mutation, space)
        else:
            child = cross(rng.choice(parents), rng.choice(parents), rng, space)
        if fits(child):
            return child
    return rng.choice(parents)
