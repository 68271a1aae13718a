# SPDX-License-Identifier: Apache-2.0
"""Collects what a report shows while an evaluation runs: error histograms, pictures of the best and worst scenes."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np

from vision3d.evaluation.matchers import Prediction
from vision3d.evaluation.protocols import Protocol
from vision3d.evaluation.quantiles import ErrorHistogram
from vision3d.types import StereoSample
from vision3d.visualization import colorize, display_range

ERROR_RANGE = 5.0  # pixels at the last colour of every error map
UNKNOWN_COLOR = (40, 48, 60)
PICTURE_WIDTH = 640


@dataclass
class ScenePictures:
    """A scene of the report.

    Attributes:
        scene, figure: its name, and the figure that ranks it.
        row, baseline_row: figures of the network and of the baseline.
        high: disparity of the last colour, pixels.
        pictures: title -> JPEG data URI.
    """

    scene: str
    figure: float
    row: dict[str, Any]
    baseline_row: dict[str, Any] | None
    high: float
    pictures: dict[str, str]


@dataclass
class Gallery:
    """An observer of an evaluation; only the pictures of the scenes that will be shown are kept.

    Attributes:
        keep: how many best and how many worst scenes.
        figure: the figure that ranks the scenes, of the network's row (``region`` where it is not over all pixels).
        protocol: says which pixels the histograms count; None: all with truth.
        histograms: errors of the network, and of the baseline if there is one.
        best, worst: most extreme first.
    """

    keep: int = 3
    figure: str = "epe"
    region: str = "all"
    protocol: Protocol | None = None
    histograms: list[ErrorHistogram] = field(default_factory=list)
    best: list[ScenePictures] = field(default_factory=list)
    worst: list[ScenePictures] = field(default_factory=list)

    def __call__(self, sample: StereoSample, answers: list[Prediction], rows: list[dict[str, Any]]) -> None:
        """Take in one scene."""
        truth = np.asarray(sample.disparity)
        counted = sample.valid if self.protocol is None else self.protocol.masks(sample)["all"]
        errors = [np.abs(answer.disparity - truth) for answer in answers]
        self.histograms = self.histograms or [ErrorHistogram() for _ in answers]
        for histogram, error in zip(self.histograms, errors, strict=True):
            known = np.where(np.isfinite(error), error, np.float32(np.inf))  # no answer: larger than any error
            histogram.update(known[counted])
        value = scene_figure(rows[0], self.figure, self.region)
        if not math.isfinite(value):
            return
        is_best = len(self.best) < self.keep or value < self.best[-1].figure
        is_worst = len(self.worst) < self.keep or value > self.worst[-1].figure
        if not (is_best or is_worst):
            return
        item = _pictures(sample, answers, errors, rows, value)
        if is_best:
            self.best = sorted([*self.best, item], key=lambda scene: scene.figure)[: self.keep]
        if is_worst:
            self.worst = sorted([*self.worst, item], key=lambda scene: -scene.figure)[: self.keep]

    def shown(self) -> tuple[list[ScenePictures], list[ScenePictures]]:
        """The worst and the best scenes, none of them twice: with few scenes each side has half of them."""
        names = {item.scene for item in self.best} | {item.scene for item in self.worst}
        half = (len(names) + 1) // 2
        worst = self.worst[: min(self.keep, half)]
        taken = {item.scene for item in worst}
        return worst, [item for item in self.best if item.scene not in taken]


def scene_figure(row: dict[str, Any], figure: str, region: str = "all") -> float:
    """A figure of a scene; that over all pixels where the region has none."""
    source = row.get("regions", {}).get(region) or row
    return float(source.get(figure, row.get(figure, math.nan)))


def _pictures(
    sample: StereoSample,
    answers: list[Prediction],
    errors: list[np.ndarray],
    rows: list[dict[str, Any]],
    value: float,
) -> ScenePictures:
    truth = np.asarray(sample.disparity)
    step = max(1, math.ceil(truth.shape[1] / PICTURE_WIDTH))
    _, high = display_range(truth)
    names = ("prediction", "baseline")
    pictures = {"left image": _jpeg(_shrink_image(sample.left, step))}
    pictures["truth"] = _jpeg(colorize(_shrink(truth, step), 0, high, invalid=UNKNOWN_COLOR))
    for name, answer, error in zip(names, answers, errors, strict=False):
        pictures[name] = _jpeg(colorize(_shrink(answer.disparity, step), 0, high, invalid=UNKNOWN_COLOR))
        picture = colorize(_shrink(error, step), 0, ERROR_RANGE, "inferno", UNKNOWN_COLOR)
        pictures["error" if name == "prediction" else f"error of the {name}"] = _jpeg(picture)
    if answers[0].confidence is not None:
        pictures["confidence"] = _jpeg(colorize(_shrink(answers[0].confidence, step), 0, 1, "viridis"))
    return ScenePictures(sample.scene, value, rows[0], rows[1] if len(rows) > 1 else None, high, pictures)


def _shrink(values: np.ndarray, step: int) -> np.ndarray:
    """Means over the known pixels of ``step`` x ``step`` blocks, so that sparse truth stays visible."""
    if step == 1:
        return values
    height, width = (-(-size // step) * step for size in values.shape)
    padded = np.full((height, width), np.nan, dtype=np.float32)
    padded[: values.shape[0], : values.shape[1]] = np.where(np.isfinite(values), values, np.nan)
    blocks = padded.reshape(height // step, step, width // step, step)
    known = np.isfinite(blocks)
    count = known.sum(axis=(1, 3))
    total = np.where(known, blocks, 0).sum(axis=(1, 3))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)


def _shrink_image(image: np.ndarray, step: int) -> np.ndarray:
    if step == 1:
        return image
    size = (-(-image.shape[1] // step), -(-image.shape[0] // step))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA))


def _jpeg(picture: np.ndarray) -> str:
    _, data = cv2.imencode(".jpg", np.ascontiguousarray(picture[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 88])
    return "data:image/jpeg;base64," + base64.b64encode(data.tobytes()).decode("ascii")
