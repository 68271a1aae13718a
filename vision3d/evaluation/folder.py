# SPDX-License-Identifier: Apache-2.0
"""Error figures of a stereo network on a folder of pairs with ground truth.

Protocol: each pair goes through ``vision3d.predict_stereo``, so that padding and scaling are those of every user; all
pixels with finite truth count, occluded ones too; a mean is the mean of the scenes' figures, each scene weighing the
same. Seconds are those of the prediction alone (files are read before), after one untimed prediction on a small crop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vision3d.errors import InputError, UnknownNameError
from vision3d.evaluation.baselines import BASELINES, match_baseline
from vision3d.evaluation.metrics import disparity_errors
from vision3d.types import StereoSample

if TYPE_CHECKING:
    from torch import nn

    from vision3d.datasets.folder import FolderStereo

Matcher = Callable[[StereoSample], np.ndarray]
Progress = Callable[[int, int, str], None]
WARM_UP_CROP = (128, 256)


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
) -> dict[str, Any]:
    """Measure a network on ``root/<set>/<scene>/``.

    Args:
        model: a registered name (with its default weights, or a tag in the name), or a network in eval mode.
        root: the folder; its ``index.json``, if present, says which file is the truth and how it is encoded.
        exclude: sets (``kitti2015``) or scenes (``kitti2015/000000_10``) to leave out.
        baseline: also measure this classical matcher: ``bm``, ``sgbm`` or ``sgbm_hh``.
        weights: a checkpoint or a weight tag instead of the default weights, where ``model`` is a name.
        scale: the images are resized by this factor before the network sees them, its answer back; or ``"auto"``.
        device: ``"cpu"``, ``"cuda"``, ...; None takes CUDA where there is one.
        progress: called before each scene with its number, the number of scenes, and its name.

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
    name, network = _network(model, weights, scale, device)
    matchers = [network]
    if baseline is not None:
        matchers.append(lambda sample: match_baseline(baseline, sample.left, sample.right, data.ndisp(sample.scene)))
    rows, skipped = _measure_all(data, matchers, progress)
    if not rows[0]:
        raise InputError(f"{root}: no scene with ground truth is left to evaluate")
    report = {"model": name, **_summary(rows[0]), "skipped": skipped, "protocol": _protocol(scale)}
    if baseline is not None:
        report["baseline"] = {"name": baseline, **_summary(rows[1])}
    return report


def _network(
    model: str | nn.Module, weights: str | Path | None, scale: float | str, device: str | None
) -> tuple[str, Matcher]:
    from vision3d.pipelines import load_stereo_model, predict_stereo

    network, name, _ = load_stereo_model(model, weights=weights, device=device)

    def predict(sample: StereoSample) -> np.ndarray:
        return predict_stereo(
            sample.left, sample.right, model=network, scale=scale, confidence=False, check_pair=False
        ).disparity

    return name, predict


def _measure_all(
    data: FolderStereo, matchers: list[Matcher], progress: Progress | None
) -> tuple[list[list[dict[str, Any]]], list[dict[str, str]]]:
    """The rows of each matcher, and the scenes without truth."""
    rows: list[list[dict[str, Any]]] = [[] for _ in matchers]
    skipped = []
    for number in range(len(data)):
        sample = data[number]
        if progress is not None:
            progress(number, len(data), sample.scene)
        if sample.disparity is None or not sample.valid.any():
            skipped.append({"scene": sample.scene, "reason": "no dense ground truth"})
            continue
        if not rows[0]:
            height, width = WARM_UP_CROP
            matchers[0](StereoSample(sample.left[:height, :width], sample.right[:height, :width]))
        for matcher, measured in zip(matchers, rows, strict=True):
            measured.append(_measure(sample, sample.disparity, matcher))
    return rows, skipped


def _measure(sample: StereoSample, truth: np.ndarray, matcher: Matcher) -> dict[str, Any]:
    start = time.perf_counter()
    disparity = matcher(sample)
    seconds = time.perf_counter() - start
    row: dict[str, Any] = {"scene": sample.scene, **disparity_errors(disparity, truth), "seconds": seconds}
    if sample.occlusion is not None:
        row["nonoccluded"] = disparity_errors(disparity, truth, ~sample.occlusion)
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
    mean: dict[str, Any] = {key: float(np.mean([row[key] for row in rows])) for key in keys}
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
