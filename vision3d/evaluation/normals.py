# SPDX-License-Identifier: Apache-2.0
"""Angles of predicted normals on a data set, beside those of two ways to get normals from the same disparity."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vision3d.datasets.normal_axes import AxesFinding, check_normal_axes, spread_indices
from vision3d.errors import InputError, UnknownNameError
from vision3d.evaluation.dataset import DEFAULT_SPLITS, select_scenes
from vision3d.evaluation.matchers import WARM_UP_CROP, Progress
from vision3d.evaluation.metrics import DisparityMetrics
from vision3d.evaluation.normal_metrics import NormalSetMetrics, valid_normals
from vision3d.geometry.normals import fit_normals, normals_from_disparity
from vision3d.types import StereoRig, StereoSample

if TYPE_CHECKING:
    from torch import nn

_MOSTLY = 0.5  # share of the pixels of a scene without a valid true normal from which we warn
NORMAL_BASELINES = ("plane fitting", "finite differences")
_TEXT = (
    "angle between predicted and true normals, pooled over the pixels with unit true normals; the baselines take the "
    "disparity of the same network (plane fitting: windows of {side} x {side}); EPE over all pixels with true disparity"
)


@dataclass
class _Method:
    """The figures of one way to get normals."""

    metrics: NormalSetMetrics = field(default_factory=NormalSetMetrics)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, scene: str, normals: np.ndarray, truth: np.ndarray, seconds: float) -> None:
        self.rows.append({"scene": scene, **self.metrics.update(normals, truth), "seconds": seconds})

    def summary(self) -> dict[str, Any]:
        seconds = sum(row["seconds"] for row in self.rows) / max(len(self.rows), 1)
        return {"scenes": self.rows, "pooled": {**self.metrics.compute(), "seconds": seconds}}


def evaluate_normals(
    model: str | nn.Module,
    dataset: str,
    root: str | Path | None = None,
    *,
    split: str | None = None,
    options: Mapping[str, Any] | None = None,
    exclude: Iterable[str] = (),
    limit: int | None = None,
    weights: str | Path | None = None,
    scale: float | str = 1.0,
    device: str | None = None,
    fit_radius: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure the normals of a network on a registered data set with true normals and calibration.

    A network without normals is measured by plane fitting alone.

    Args:
        model: a registered name, or a network in eval mode.
        dataset: a name of ``list_datasets("stereo")``, e.g. ``irs``, ``pool``, ``synthetic_rooms``.
        root, split, options, exclude, limit: see :func:`vision3d.evaluation.dataset.evaluate_dataset`.
        weights, scale, device: see :func:`vision3d.evaluation.folder.evaluate_folder`.
        fit_radius: of the fitted planes, pixels; None: that of ``predict_stereo``.
        progress: called before each scene with its number, the number of scenes, and its name.

    Returns:
        ``{"task", "model", "dataset", "split", "scenes": [{"scene", "mean", "median", "rmse", "within11.25", ...,
        "seconds"}], "pooled" (with "image_mean", "invalid_truth", "invalid_prediction"), "disparity": {"epe", ...},
        "baselines": {name: {"scenes", "pooled"}}, "axes", "skipped", "warnings", "protocol"}``;
        angles in degrees, shares in percent, seconds a pair (of baselines, and so of a network without normals: beyond
        those of the disparity). Of a network without disparity ``disparity`` is None and there are no baselines.

    Raises:
        UnknownNameError: an unknown model, data set, or name in ``exclude``.
        InputError: no scene with true normals and calibration is left, or no valid true normal in any.
        ConfigError, FileFormatError: see ``open_dataset``.
    """
    from vision3d.datasets.registry import find_dataset, list_datasets, open_dataset
    from vision3d.pipelines import FIT_RADIUS, load_stereo_model

    if find_dataset(dataset).task != "stereo":
        raise UnknownNameError("stereo data set", dataset, list_datasets("stereo"))
    chosen = split or DEFAULT_SPLITS.get(dataset, "all")
    data: Any = open_dataset(dataset, root, chosen, **(options or {}))
    indices = select_scenes(data, list(exclude), limit)
    network, name, _ = load_stereo_model(model, weights=weights, device=device)
    axes = check_normal_axes(data[indices[place]] for place in spread_indices(len(indices)))
    radius = FIT_RADIUS if fit_radius is None else fit_radius
    run = _Run(network, scale, radius)
    for number, index in enumerate(indices):
        if progress is not None:
            progress(number, len(indices), data.scenes[index])
        run.add(data[index])
    if not any(method.rows for method in run.methods.values()):
        place = "" if root is None else f"{os.fspath(root)}: "
        reason = f" ({run.skipped[0]['reason']})" if run.skipped else ""
        raise InputError(f"{place}no scene of {dataset} ({chosen}) with true normals is left to evaluate{reason}")
    if not any(method.metrics.pooled.pixels for method in run.methods.values()):
        raise InputError(
            f"{dataset} ({chosen}): no pixel of any scene ({run.scenes}) has a valid true normal, so nothing can be "
            "measured; 'vision3d data verify' says what is wrong with them"
        )
    report = {"task": "normals", "model": name, "dataset": dataset, "split": chosen, **run.report()}
    report["axes"] = describe_axes(axes)
    report["protocol"] = _protocol(scale, radius)
    return report


class _Run:
    """One network over scenes; collects the figures of its normals and of the baselines."""

    def __init__(self, network: nn.Module, scale: float | str, radius: int) -> None:
        self.network, self.scale, self.radius = network, scale, radius
        self.methods = {name: _Method() for name in ("network", *NORMAL_BASELINES)}
        self.disparity = DisparityMetrics((1.0, 2.0, 3.0))
        self.skipped: list[dict[str, str]] = []
        self.warnings: list[str] = []
        self.scenes = 0
        self._warm = False

    def add(self, sample: StereoSample) -> None:
        """Measure one scene, or note why not."""
        from vision3d.pipelines import predict_stereo

        if sample.normals is None or sample.rig is None:
            missing = "no true normals" if sample.normals is None else "no calibration"
            self.skipped.append({"scene": sample.scene, "reason": missing})
            return
        if not self._warm:
            height, width = WARM_UP_CROP
            left, right = (view[:height, :width] for view in (sample.left, sample.right))
            predict_stereo(left, right, model=self.network, confidence=False, check_pair=False)
            self._warm = True
        start = time.perf_counter()
        result = predict_stereo(
            sample.left,
            sample.right,
            model=self.network,
            calibration=sample.rig,
            scale=self.scale,
            confidence=False,
            check_pair=False,
        )
        seconds = time.perf_counter() - start
        truth = np.asarray(sample.normals, dtype=np.float32)
        self.scenes += 1
        self._warn(sample.scene, truth)
        if result.normals is not None:
            self.methods["network"].add(sample.scene, result.normals, truth, seconds)
        if not np.isfinite(result.disparity).any():  # normals alone
            return
        if sample.disparity is not None:
            self.disparity.update(result.disparity, np.asarray(sample.disparity, dtype=np.float32))
        for name in NORMAL_BASELINES:
            start = time.perf_counter()
            normals = baseline_normals(name, result.disparity, sample.rig, self.radius)
            self.methods[name].add(sample.scene, normals, truth, time.perf_counter() - start)

    def _warn(self, scene: str, truth: np.ndarray) -> None:
        """Note a scene where most of the true normals are left out."""
        left_out = 1.0 - float(valid_normals(truth).mean())
        if left_out > _MOSTLY:
            self.warnings.append(
                f"{scene}: {100 * left_out:.0f} % of the true normals are left out: NaN or no unit vectors "
                "(IRS stores (n + 1) / 2)"
            )

    def report(self) -> dict[str, Any]:
        """The figures; those of a network without normals are the ones of plane fitting."""
        network = self.methods["network"]
        main = network if network.rows else self.methods[NORMAL_BASELINES[0]]
        return {
            **main.summary(),
            "normals_from": "network" if network.rows else NORMAL_BASELINES[0],
            "disparity": self.disparity.compute() if self.methods[NORMAL_BASELINES[0]].rows else None,
            "baselines": {name: self.methods[name].summary() for name in NORMAL_BASELINES if self.methods[name].rows},
            "skipped": self.skipped,
            "warnings": self.warnings,
        }


def baseline_normals(name: str, disparity: np.ndarray, rig: StereoRig, radius: int) -> np.ndarray:
    """[H, W, 3] unit normals of a disparity map by one of ``NORMAL_BASELINES``.

    Raises:
        UnknownNameError: another name.
    """
    if name == "plane fitting":
        return np.asarray(fit_normals(disparity, rig.left, radius, doffs=rig.doffs), dtype=np.float32)
    if name == "finite differences":
        return np.asarray(normals_from_disparity(disparity, rig.left, doffs=rig.doffs), dtype=np.float32)
    raise UnknownNameError("baseline of normals", name, NORMAL_BASELINES)


def describe_axes(finding: AxesFinding | None) -> dict[str, Any] | None:
    """The finding about the axes for a report."""
    if finding is None:
        return None
    return {
        "wrong": finding.wrong,
        "angle": finding.angle,
        "best": list(finding.best),
        "best_angle": finding.best_angle,
        "message": finding.message,
    }


def _protocol(scale: float | str, radius: int) -> dict[str, Any]:
    import torch

    return {
        "name": "normals",
        "title": "surface normals",
        "text": _TEXT.format(side=2 * radius + 1),
        "fit_radius": radius,
        "scale": scale,
        "passes": 1,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
