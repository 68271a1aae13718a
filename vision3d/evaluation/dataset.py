# SPDX-License-Identifier: Apache-2.0
"""Error figures of a stereo network on a registered data set, under the protocol of its benchmark."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision3d.errors import InputError, UnknownNameError
from vision3d.evaluation.baselines import BASELINES, DEFAULT_SEARCH
from vision3d.evaluation.folder import quality_observer
from vision3d.evaluation.matchers import (
    Matcher,
    Observer,
    Progress,
    baseline_matcher,
    network_matcher,
    warm_up,
)
from vision3d.evaluation.protocols import Protocol, ProtocolScore, find_protocol
from vision3d.evaluation.published import published_beside
from vision3d.evaluation.sparsification import Sparsification

if TYPE_CHECKING:
    from torch import nn

# Where the figures of papers are measured; the other sets are measured on all their pairs with truth.
DEFAULT_SPLITS = {
    **dict.fromkeys(("sceneflow", "flyingthings3d", "irs", "instereo2k", "drivingstereo"), "test"),
}


def evaluate_dataset(
    model: str | nn.Module,
    dataset: str,
    root: str | Path | None = None,
    *,
    split: str | None = None,
    protocol: str | None = None,
    options: Mapping[str, Any] | None = None,
    exclude: Iterable[str] = (),
    limit: int | None = None,
    baseline: str | None = None,
    search: float | None = None,
    weights: str | Path | None = None,
    scale: float | str = 1.0,
    device: str | None = None,
    confidence: bool = False,
    observers: Iterable[Observer] = (),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure a network on a registered stereo data set.

    Args:
        model: a registered name, or a network in eval mode.
        dataset: a name of ``list_datasets("stereo")``.
        root: its folder; None: as configured, see :func:`vision3d.datasets.roots.find_root`.
        split: of the data set; None: ``test`` where papers measure there and it has truth, else ``all``.
        protocol: see :mod:`vision3d.evaluation.protocols`; None: the usual one of the data set.
        options: further options of the reader, e.g. ``{"size": "H"}``.
        exclude: scenes to leave out, or the first folders of their names.
        limit: measure only the first so many scenes.
        baseline: also measure ``bm``, ``sgbm``, ``sgbm_hh`` or ``sgbm_wls``; ``search`` is its range in pixels (192).
        weights, scale, device: see :func:`vision3d.evaluation.folder.evaluate_folder`.
        confidence: also say how well the confidence ranks the errors (twice the time).
        observers: called after each scene with the sample, each method's answer and each method's figures.
        progress: called before each scene with its number, the number of scenes, and its name.

    Returns:
        ``{"model", "dataset", "split", "headline", "scenes": [{"scene", "epe", ..., "regions": {...}, "seconds"}],
        "mean" (over images), "pooled" (over pixels), "skipped", "protocol",
        "published" (see :mod:`vision3d.evaluation.published`)}``, on request ``"confidence"`` and
        ``"baseline": {"name", "headline", "scenes", "mean", "pooled"}``.

    Raises:
        UnknownNameError: an unknown model, data set, protocol, baseline, or name in ``exclude``.
        InputError: no scene with truth is left. ConfigError, FileFormatError: see ``open_dataset``.
    """
    from vision3d.datasets.registry import find_dataset, list_datasets, open_dataset

    if find_dataset(dataset).task != "stereo":
        raise UnknownNameError("stereo data set", dataset, list_datasets("stereo"))
    if baseline is not None and baseline not in BASELINES:
        raise UnknownNameError("baseline", baseline, BASELINES)
    rule = find_protocol(dataset, protocol)
    chosen = split or DEFAULT_SPLITS.get(dataset, "all")
    data: Any = open_dataset(dataset, root, chosen, **(options or {}))
    indices = select_scenes(data, list(exclude), limit)
    name, network = network_matcher(model, weights, scale, device, confidence)
    matchers = [network]
    if baseline is not None:
        matchers.append(baseline_matcher(baseline, lambda sample: search))
    watchers, quality = list(observers), Sparsification()
    if confidence:
        watchers.append(quality_observer(quality))
    scores = [ProtocolScore(rule) for _ in matchers]
    rows, skipped = _run(data, indices, matchers, scores, watchers, progress)
    if not rows[0]:
        place = "" if root is None else f"{os.fspath(root)}: "
        raise InputError(f"{place}no scene of {dataset} ({chosen}) with ground truth is left to evaluate")
    report = {"model": name, "dataset": dataset, "split": chosen, **_summary(scores[0], rows[0]), "skipped": skipped}
    report["protocol"] = describe_protocol(rule, scale, confidence)
    if confidence:
        report["confidence"] = quality.compute()
    if baseline is not None:
        report["baseline"] = {
            "name": baseline,
            "search": DEFAULT_SEARCH if search is None else search,
            **_summary(scores[1], rows[1]),
        }
    report["published"] = published_beside(report)
    return report


def select_scenes(data: Any, exclude: list[str], limit: int | None) -> list[int]:
    """Indices of the scenes to measure; see ``exclude`` and ``limit`` of :func:`evaluate_dataset`."""
    scenes = list(data.scenes)
    for name in exclude:
        if not any(_below(scene, name) for scene in scenes):
            raise UnknownNameError("scene", name, {scene.partition("/")[0] for scene in scenes} | set(scenes))
    kept = [index for index, scene in enumerate(scenes) if not any(_below(scene, name) for name in exclude)]
    return kept[:limit]


def _below(scene: str, name: str) -> bool:
    return scene == name or scene.startswith(name.rstrip("/") + "/")


def _run(
    data: Any,
    indices: list[int],
    matchers: list[Matcher],
    scores: list[ProtocolScore],
    observers: list[Observer],
    progress: Progress | None,
) -> tuple[list[list[dict[str, Any]]], list[dict[str, str]]]:
    """The rows of each matcher, and the scenes without truth."""
    rows: list[list[dict[str, Any]]] = [[] for _ in matchers]
    skipped = []
    for number, index in enumerate(indices):
        if progress is not None:
            progress(number, len(indices), data.scenes[index])
        sample = data[index]
        if not sample.valid.any():
            skipped.append({"scene": sample.scene, "reason": "no ground truth"})
            continue
        if not rows[0]:
            warm_up(matchers[0], sample)
        answers = [matcher(sample) for matcher in matchers]
        measured = [
            {"scene": sample.scene, **score.update(answer.disparity, sample), "seconds": answer.seconds}
            for score, answer in zip(scores, answers, strict=True)
        ]
        for observer in observers:
            observer(sample, answers, measured)
        for kept, row in zip(rows, measured, strict=True):
            kept.append(row)
    return rows, skipped


def _summary(score: ProtocolScore, rows: list[dict[str, Any]]) -> dict[str, Any]:
    figures = score.compute()
    figures["mean"]["seconds"] = sum(row["seconds"] for row in rows) / len(rows)
    return {"headline": figures.pop("headline"), "scenes": rows, **figures}


def describe_protocol(rule: Protocol, scale: float | str, confidence: bool) -> dict[str, Any]:
    """What was measured and how, for the report."""
    import torch

    from vision3d.evaluation.protocols import REGIONS

    return {
        "name": rule.name,
        "title": rule.title,
        "text": rule.text,
        "regions": {name: REGIONS[name] for name in rule.regions},
        "scale": scale,
        "passes": 2 if confidence else 1,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
