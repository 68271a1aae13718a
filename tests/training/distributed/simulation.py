# SPDX-License-Identifier: Apache-2.0
"""Sparsified training of P workers in one process, written from the formulas with NumPy; one bucket, plain SGD.

Top-k with error feedback: a_p = r_p + g_p; S_p = the k largest of |a_p|; r_p = a_p without S_p; G = sum_p a_p[S_p] / P.
gTop-k: the sets are merged pairwise, (0, 1), (2, 3), ... then (0, 2), ...; each merge adds, and keeps the k largest.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def top(values: np.ndarray, k: int) -> np.ndarray:
    """``values`` with all but its k largest entries by magnitude set to zero."""
    kept = np.zeros_like(values)
    where = np.argsort(-np.abs(values), kind="stable")[:k]
    kept[where] = values[where]
    return kept


def merge_tree(sent: list[np.ndarray], k: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The gTop-k of the workers' sparse vectors, and what each worker has rejected in its merges."""
    level = {worker: vector.copy() for worker, vector in enumerate(sent)}
    rejected = [np.zeros_like(vector) for vector in sent]
    step = 1
    while step < len(sent):
        for worker in range(0, len(sent), 2 * step):
            if worker + step < len(sent):
                total = level[worker] + level[worker + step]
                level[worker] = top(total, k)
                rejected[worker] += total - level[worker]
        step *= 2
    return level[0], rejected


def exchange(
    accumulated: list[np.ndarray], k: int, rule: str, layers: list[tuple[slice, int]] | None = None
) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """The sum that all workers apply, their residuals, and masks of what counts as sent.

    Args:
        accumulated: residual plus gradient of each worker.
        k: entries that a worker sends.
        rule: topk, layers, or the gTop-k rule (adopt, resum, paper).
        layers: places and counts of the layers, for layers.
    """
    if rule == "layers":
        sent = [np.zeros_like(a) for a in accumulated]
        for vector, a in zip(sent, accumulated, strict=True):
            for place, count in layers or []:
                vector[place] = top(a[place], count)
    else:
        sent = [top(a, k) for a in accumulated]
    if rule in ("topk", "layers"):
        return sum(sent), [a - s for a, s in zip(accumulated, sent, strict=True)], [s != 0 for s in sent]
    total, rejected = merge_tree(sent, k)
    final = total != 0
    if rule == "resum":
        delivered = [np.where(final, a, 0) for a in accumulated]
        total = sum(delivered)
        rejected = [np.zeros_like(a) for a in accumulated]
    elif rule == "paper":
        delivered = [np.where(final, s, 0) for s in sent]
        rejected = [np.zeros_like(a) for a in accumulated]
    else:
        delivered = sent
    residuals = [a - d + r for a, d, r in zip(accumulated, delivered, rejected, strict=True)]
    return total, residuals, [d != 0 for d in delivered]


def train(
    gradient: Callable[[np.ndarray, int, int], np.ndarray],
    weights: np.ndarray,
    workers: int,
    steps: int,
    lr: float,
    count: Callable[[int], int],
    rule: str,
    momentum: float = 0.0,
    layers: list[tuple[slice, int]] | None = None,
    change: Callable[[np.ndarray], np.ndarray] = lambda total: total,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The weights and residuals after some steps.

    Args:
        gradient: of (weights, worker, step).
        weights: at the start.
        workers, steps, lr: their number, and the learning rate of plain SGD.
        count: k of a step.
        rule, layers: see ``exchange``.
        momentum: of the momentum correction: u = m u + g is accumulated instead of g, and cleared where it is sent.
        change: applied to the averaged gradient (clipping).
    """
    residuals = [np.zeros_like(weights) for _ in range(workers)]
    velocity = [np.zeros_like(weights) for _ in range(workers)]
    for step in range(steps):
        velocity = [momentum * u + gradient(weights, p, step) for p, u in enumerate(velocity)]
        accumulated = [r + u for r, u in zip(residuals, velocity, strict=True)]
        total, residuals, masks = exchange(accumulated, count(step), rule, layers)
        velocity = [np.where(mask, 0, u) for u, mask in zip(velocity, masks, strict=True)]
        weights = weights - lr * change(total / workers)
    return weights, residuals
