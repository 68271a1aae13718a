# SPDX-License-Identifier: Apache-2.0
"""How well a cheap score ranks networks by their true error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST = 5


@dataclass(frozen=True)
class RankQuality:
    """Figures of one ranker on one group of networks.

    Attributes:
        networks: how many.
        kendall: Kendall's tau-b of predicted and true order; 1 is perfect, 0 chance.
        spearman: Spearman's rho.
        regret: least true error among the ranker's first five, minus the least of all (pixels).
    """

    networks: int
    kendall: float
    spearman: float
    regret: float


def rank_quality(predicted: Sequence[float], errors: Sequence[float], top: int = 5) -> RankQuality:
    """Judge predictions of which a lower one promises a lower error.

    Args:
        predicted: the ranker's scores; lower is better.
        errors: true errors, pixels.
        top: how many the ranker proposes.

    Returns:
        NaN figures for fewer than five networks.
    """
    from scipy import stats

    scores, truth = np.asarray(predicted, float), np.asarray(errors, float)
    if len(truth) < LEAST:
        return RankQuality(len(truth), float("nan"), float("nan"), float("nan"))
    constant = np.ptp(scores) == 0 or np.ptp(truth) == 0
    kendall = float("nan") if constant else float(stats.kendalltau(scores, truth).statistic)
    spearman = float("nan") if constant else float(stats.spearmanr(scores, truth).statistic)
    first = np.argsort(scores, kind="stable")[:top]
    return RankQuality(len(truth), kendall, spearman, float(truth[first].min() - truth.min()))
