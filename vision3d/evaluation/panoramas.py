# SPDX-License-Identifier: Apache-2.0
"""Error figures of a panorama network on a registered data set."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vision3d.datasets.depth_units import unit_warning
from vision3d.errors import InputError, UnknownNameError
from vision3d.evaluation.dataset import select_scenes
from vision3d.evaluation.matchers import Progress
from vision3d.evaluation.panorama_metrics import PanoramaMetrics, check_alignment, find_protocol
from vision3d.panorama import load_panorama_model, run_panorama
from vision3d.panorama_checks import CheckedPanorama
from vision3d.types import PanoramaSample

if TYPE_CHECKING:
    from torch import nn

# Where and how the figures of papers are measured; the other sets are measured on all panoramas and pixels with truth.
DEFAULT_SPLITS = dict.fromkeys(("stanford2d3d", "structured3d"), "test")
DEFAULT_PROTOCOLS = {"stanford2d3d": "hohonet", "matterport3d": "unifuse", "panorama3d60": "unifuse"}


def evaluate_panoramas(
    model: str | nn.Module | None,
    dataset: str,
    root: str | Path | None = None,
    *,
    split: str | None = None,
    protocol: str | None = None,
    alignment: str = "none",
    options: Mapping[str, Any] | None = None,
    exclude: Iterable[str] = (),
    limit: int | None = None,
    weights: str | Path | None = None,
    height: int | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure a network on a registered data set of panoramas with depth.

    Args:
        model: a registered name, a network in eval mode, or None for the default one.
        dataset: a name of ``list_datasets("panorama")``.
        root: its folder; None: as configured.
        split: of the data set; None: ``test`` where papers measure there, else ``all``.
        protocol: a name of ``panorama_metrics.PROTOCOLS``; None: that of the papers of the set, else ``all``.
        alignment: "none", or "median" (each answer is scaled so that its median is that of the truth).
        options: further options of the reader, e.g. ``{"height": 512}``.
        exclude, limit: see :func:`vision3d.evaluation.dataset.evaluate_dataset`.
        weights, height, device: see :func:`vision3d.panorama.predict_panorama`.
        progress: called before each panorama with its number, the number of panoramas, and its name.

    Returns:
        ``{"task", "model", "dataset", "split", "scenes": [{"scene", "abs_rel", "mae", "rmse", "rmse_log", "delta1",
        ..., "sphere_abs_rel", ..., "seconds"}], "mean", "skipped", "warnings", "protocol"}``: errors in metres, shares
        in percent; those with the prefix ``sphere_`` weigh each pixel by its solid angle.

    Raises:
        UnknownNameError: an unknown model, data set, protocol, or name in ``exclude``.
        InputError: another alignment, or no panorama with truth is left. ConfigError, FileFormatError: see
        ``open_dataset``.
    """
    rule = find_protocol(protocol or DEFAULT_PROTOCOLS.get(dataset, "all"))
    check_alignment(alignment)
    metrics = PanoramaMetrics(rule.name, alignment)
    chosen = split or DEFAULT_SPLITS.get(dataset, "all")
    data, indices = open_panoramas(dataset, root, chosen, options, exclude, limit)
    network, name, home = load_panorama_model(model, weights, device)
    rows: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    depths: list[np.ndarray | None] = []
    for number, index in enumerate(indices):
        if progress is not None:
            progress(number, len(indices), data.scenes[index])
        sample = data[index]
        if sample.depth is None or not sample.valid.any():
            skipped.append({"scene": sample.scene, "reason": "no true depth"})
            continue
        if not rows:
            predict_sample(network, sample, home, height)  # warm up
        start = time.perf_counter()
        depth = predict_sample(network, sample, home, height)
        seconds = time.perf_counter() - start
        depths.append(np.asarray(sample.depth)[::8, ::8])
        rows.append({"scene": sample.scene, **metrics.update(depth, sample.depth), "seconds": seconds})
    if not rows:
        place = "" if root is None else f"{os.fspath(root)}: "
        raise InputError(f"{place}no panorama of {dataset} ({chosen}) with true depth is left to evaluate")
    warning = unit_warning(depths)
    mean = {**metrics.compute(), "seconds": sum(row["seconds"] for row in rows) / len(rows)}
    return {
        "task": "panorama",
        "model": name,
        "dataset": dataset,
        "split": chosen,
        "scenes": rows,
        "mean": mean,
        "skipped": skipped,
        "warnings": [] if warning is None else [f"truth: {warning}"],
        "protocol": {**asdict(rule), "alignment": alignment, "threads": torch.get_num_threads()},
    }


def open_panoramas(
    dataset: str,
    root: str | Path | None,
    split: str,
    options: Mapping[str, Any] | None = None,
    exclude: Iterable[str] = (),
    limit: int | None = None,
) -> tuple[Any, list[int]]:
    """A data set of panoramas, and the indices of those to measure.

    Raises:
        UnknownNameError: no such set, or it is of another task. InputError: it has no end.
        ConfigError, FileFormatError: see ``open_dataset``.
    """
    from vision3d.datasets.registry import find_dataset, list_datasets, open_dataset

    if find_dataset(dataset).task != "panorama":
        raise UnknownNameError("panorama data set", dataset, list_datasets("panorama"))
    data: Any = open_dataset(dataset, root, split, **(options or {}))
    if data.scenes is None:
        raise InputError(f"{dataset} has no end: set its option scenes (--option scenes=16)")
    return data, select_scenes(data, list(exclude), limit)


def predict_sample(
    network: nn.Module, sample: PanoramaSample, device: torch.device, height: int | None = None
) -> np.ndarray:
    """[H, 2H] distances that a network gives for a panorama of a data set, at its size."""
    image = np.ascontiguousarray(sample.image)
    checked = CheckedPanorama(image, np.ones(image.shape[:2], dtype=bool))
    return run_panorama(network, checked, device, height=height).depth
