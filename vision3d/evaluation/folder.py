# SPDX-License-Identifier: Apache-2.0
"""Error figures of a stereo network on a folder of pairs with ground truth.

Protocol: each pair goes through ``vision3d.predict_stereo``, so that padding and scaling are those of every user; all
pixels with finite truth count, occluded ones too; a mean is the mean of the scenes' figures, each scene weighing the
same. Seconds are those of the prediction alone (files are read before), after one untimed prediction on a small crop.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vision3d.errors import InputError, UnknownNameError
from vision3d.evaluation.baselines import BASELINES
from vision3d.evaluation.matchers import (
    Matcher,
    Observer,
    Prediction,
    Progress,
    baseline_matcher,
    network_matcher,
    warm_up,
)
from vision3d.evaluation.metrics import disparity_errors
from vision3d.evaluation.sparsification import Sparsification
from vision3d.types import StereoSample

if TYPE_CHECKING:
    from torch import nn

    from vision3d.datasets.folder import FolderStereo


def evaluate_folder(
    model: str | nn.Module,
    root: str | Path,
    exclude: Iterable[str] = (),
    baseline: str | None = None,
    *,
    weights: str | Path | None = None,
    scale: float | str = 1.0,
    device: str | None = None,
    progress: Progress | None = None,
    limit: int | None = None,
    confidence: bool = False,
    observers: Iterable[Observer] = (),
) -> dict[str, Any]:
    """Measure a network on ``root/<set>/<scene>/``.

    Args:
        model: a registered name (with its default weights, or a tag in the name), or a network in eval mode.
        root: the folder; its ``index.json``, if present, says which file is the truth and how it is encoded.
        exclude: sets (``kitti2015``) or scenes (``kitti2015/000000_10``) to leave out.
        baseline: also measure this classical matcher: ``bm``, ``sgbm``, ``sgbm_hh`` or
            ``sgbm_wls``.
        weights: a checkpoint or a weight tag instead of the default weights, where ``model`` is a name.
        scale: the images are resized by this factor before the network sees them, its answer back; or ``"auto"``.
        device: ``"cpu"``, ``"cuda"``, ...; None takes CUDA where there is one.
        progress: called before each scene with its number, the number of scenes, and its name.
        limit: measure only the first so many scenes.
        confidence: also say how well the confidence ranks the errors (twice the time): ``"confidence"``, see
            :class:`vision3d.evaluation.sparsification.Sparsification`.
        observers: called after each scene with the sample, each method's answer and each method's figures.

    Returns:
        ``{"model", "scenes": [{"scene", "epe", "rms", "bad0.5" ... "bad4", "d1", "density", "pixels", "seconds"}],
        "mean", "sets": {set: mean}, "skipped": [{"scene", "reason"}], "protocol"}``, with ``"baseline": {"name",
        "scenes", "mean", "sets"}`` on request; bad-k, D1 and density in percent, EPE and RMS in pixels. Where the data
        set says which pixels are visible in both views, a scene also has ``"nonoccluded"`` with the same figures.

    Raises:
        InputError: no scene with truth is left.
        UnknownNameError: an unknown model, baseline, or name in ``exclude``.
        WeightsError: no usable weights.
    """
    from vision3d.datasets.folder import FolderStereo

    if baseline is not None and baseline not in BASELINES:
        raise UnknownNameError("baseline", baseline, BASELINES)
    data = FolderStereo(root, exclude=tuple(exclude))
    name, network = network_matcher(model, weights, scale, device, confidence)
    matchers = [network]
    if baseline is not None:
        matchers.append(baseline_matcher(baseline, lambda sample: data.ndisp(sample.scene)))
    watchers, quality = list(observers), Sparsification()
    if confidence:
        watchers.append(quality_observer(quality))
    rows, skipped = _measure_all(data, matchers, progress, limit, watchers)
    if not rows[0]:
        raise InputError(f"{root}: no scene with ground truth is left to evaluate")
    report = {"model": name, **_summary(rows[0]), "skipped": skipped, "protocol": _protocol(scale)}
    if confidence:
        report["confidence"] = quality.compute()
    if baseline is not None:
        report["baseline"] = {"name": baseline, **_summary(rows[1])}
    return report


def quality_observer(quality: Sparsification) -> Observer:
    """An observer that adds each answer of the network with a confidence to ``quality`` and to the scene's figures."""

    def observe(sample: StereoSample, answers: list[Prediction], rows: list[dict[str, Any]]) -> None:
        answer = answers[0]
        if answer.confidence is not None and sample.disparity is not None:
            figures = quality.update(answer.disparity, sample.disparity, answer.confidence, answer.occlusion)
            rows[0].update(figures)

    return observe


def _measure_all(
    data: FolderStereo,
    matchers: list[Matcher],
    progress: Progress | None,
    limit: int | None,
    observers: list[Observer],
) -> tuple[list[list[dict[str, Any]]], list[dict[str, str]]]:
    """The rows of each matcher, and the scenes without truth."""
    rows: list[list[dict[str, Any]]] = [[] for _ in matchers]
    skipped = []
    count = len(data) if limit is None else min(limit, len(data))
    for number in range(count):
        sample = data[number]
        if progress is not None:
            progress(number, count, sample.scene)
        if sample.disparity is None or not sample.valid.any():
            skipped.append({"scene": sample.scene, "reason": "no dense ground truth"})
            continue
        if not rows[0]:
            warm_up(matchers[0], sample)
        answers = [matcher(sample) for matcher in matchers]
        measured = [_measure(sample, sample.disparity, answer) for answer in answers]
        for observer in observers:
            observer(sample, answers, measured)
        for kept, row in zip(rows, measured, strict=True):
            kept.append(row)
    return rows, skipped


def _measure(sample: StereoSample, truth: np.ndarray, answer: Prediction) -> dict[str, Any]:
    row: dict[str, Any] = {"scene": sample.scene, **disparity_errors(answer.disparity, truth)}
    row["seconds"] = answer.seconds
    if sample.occlusion is not None:
        row["nonoccluded"] = disparity_errors(answer.disparity, truth, ~sample.occlusion)
    return row


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The scenes, their mean, and the mean of each set."""
    sets: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        sets.setdefault(row["scene"].partition("/")[0], []).append(row)
    return {"scenes": rows, "mean": _mean(rows), "sets": {name: _mean(group) for name, group in sets.items()}}


def _mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each figure over the scenes that have it."""
    keys = [key for key in rows[0] if key not in ("scene", "pixels", "nonoccluded")]
    mean: dict[str, Any] = {key: float(np.mean([row[key] for row in rows if key in row])) for key in keys}
    visible = [row["nonoccluded"] for row in rows if "nonoccluded" in row]
    if visible:
        mean["nonoccluded"] = {**_mean(visible), "scenes": len(visible)}
    return mean


def _protocol(scale: float | str) -> dict[str, Any]:
    import torch

    return {
        "pixels": "all with finite truth",
        "mean": "over scenes",
        "scale": scale,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
