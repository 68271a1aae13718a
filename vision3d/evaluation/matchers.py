# SPDX-License-Identifier: Apache-2.0
"""Networks and classical matchers behind one call: a sample in, a prediction out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vision3d.evaluation.baselines import match_baseline
from vision3d.types import StereoSample

if TYPE_CHECKING:
    from torch import nn

WARM_UP_CROP = (128, 256)


@dataclass
class Prediction:
    """The answer to one pair.

    Attributes:
        disparity: [H, W] pixels, NaN where there is none.
        confidence: [H, W] in [0, 1], or None.
        occlusion: [H, W] bool of the left-right check, or None.
        seconds: what the answer took.
    """

    disparity: np.ndarray
    confidence: np.ndarray | None = None
    occlusion: np.ndarray | None = None
    seconds: float = 0.0


Matcher = Callable[[StereoSample], Prediction]
Observer = Callable[[StereoSample, list[Prediction], list[dict[str, Any]]], None]  # the sample, answers and figures
Progress = Callable[[int, int, str], None]


def network_matcher(
    model: str | nn.Module,
    weights: str | Path | None = None,
    scale: float | str = 1.0,
    device: str | None = None,
    confidence: bool = False,
) -> tuple[str, Matcher]:
    """The name of a network and its matcher, which goes through ``vision3d.predict_stereo``.

    Args:
        model, weights, device: see :func:`vision3d.pipelines.load_stereo_model`.
        scale: see ``predict_stereo``.
        confidence: also make the confidence and the left-right check (twice the time).

    Raises:
        UnknownNameError, WeightsError, InputError: see ``load_stereo_model``.
    """
    from vision3d.pipelines import load_stereo_model, predict_stereo

    network, name, _ = load_stereo_model(model, weights=weights, device=device)

    def predict(sample: StereoSample) -> Prediction:
        start = time.perf_counter()
        result = predict_stereo(
            sample.left, sample.right, model=network, scale=scale, confidence=confidence, check_pair=False
        )
        seconds = time.perf_counter() - start
        return Prediction(result.disparity, result.confidence, result.occlusion, seconds)

    return name, predict


def baseline_matcher(name: str, search: Callable[[StereoSample], float | None]) -> Matcher:
    """The matcher of a baseline; ``search`` gives the search range of a sample in pixels (None: the default)."""

    def match(sample: StereoSample) -> Prediction:
        start = time.perf_counter()
        disparity = match_baseline(name, sample.left, sample.right, search(sample))
        return Prediction(disparity, seconds=time.perf_counter() - start)

    return match


def warm_up(matcher: Matcher, sample: StereoSample) -> None:
    """One untimed prediction on a small crop."""
    height, width = WARM_UP_CROP
    matcher(StereoSample(sample.left[:height, :width], sample.right[:height, :width]))
