# SPDX-License-Identifier: Apache-2.0
"""The error of sub-networks on a validation set, measured once each and kept in a file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from vision3d.errors import FileFormatError, InputError
from vision3d.evaluation.metrics import DisparityMetrics
from vision3d.io.files import atomic_write, read_bytes
from vision3d.models.batch_norm import recalibrate_batch_norm
from vision3d.models.stereo.easnet import EASNet, EASNetSupernet, Setting, parse_setting
from vision3d.types import StereoBatch, StereoSample

FORMAT = "easnet-measurements 1"
LARGEST_DISPARITY = 192.0
FIGURES = ("epe", "bad1", "bad3", "d1")
_THRESHOLDS = (1.0, 3.0)
Views = tuple[Tensor, Tensor]


def open_pairs(source: str) -> Dataset[StereoSample]:
    """Open validation pairs.

    Args:
        source: a folder (a pool, else ``set/scene/left.png``), ``NAME=FOLDER`` for a stereo set of ``vision3d data
            list``, or ``NAME`` alone where its folder is configured.

    Raises:
        FileFormatError: no such folder. UnknownNameError: no such data set. ConfigError: no folder is known.
    """
    from vision3d.datasets.registry import open_dataset

    name, mark, folder = source.partition("=")
    if mark and not Path(source).exists():
        return open_dataset(name, folder, split="all")
    path = Path(source)
    if path.is_dir():
        kind = "pool" if next(path.rglob("*.left.npy"), None) is not None else "folder"
        return open_dataset(kind, source)
    if os.sep in source or path.suffix:
        raise FileFormatError(f"{source}: no such folder: give a pool, a folder of pairs, or NAME=FOLDER")
    return open_dataset(source, None, split="all")


def read_batches(
    dataset: Dataset[StereoSample], indices: Iterable[int], batch_size: int = 1, crop: tuple[int, int] | None = None
) -> list[StereoBatch]:
    """Batches of pairs with ground truth, in memory.

    Args:
        dataset: of stereo samples.
        indices: which pairs.
        batch_size: pairs a batch; only pairs of one size can share one.
        crop: (height, width) cut from the centre; None: the whole pair.

    Raises:
        InputError: a pair is smaller than the crop, or sizes differ within a batch, or there is no truth.
    """
    from vision3d.datasets.transforms import center_crop

    samples = [dataset[index] if crop is None else center_crop(dataset[index], *crop) for index in indices]
    parts = [samples[start : start + batch_size] for start in range(0, len(samples), batch_size)]
    for part in parts:
        if len({sample.left.shape for sample in part}) > 1:
            raise InputError(
                f"pairs of different sizes ({part[0].scene} ...): cut them to one with a crop (--crop HxW)"
            )
    return [StereoBatch.collate(part) for part in parts]


@dataclass
class AccuracyMeter:
    """Measures sub-networks of one supernet.

    Attributes:
        supernet: with trained weights, in eval mode.
        validation: batches with ground truth.
        calibration: (left, right) batches; the batch-norm statistics of every sub-network are measured on them.
        device: where the networks run.
    """

    supernet: EASNetSupernet
    validation: list[StereoBatch]
    calibration: list[Views]
    device: str = "cpu"

    def network(self, setting: Setting) -> EASNet:
        """The sub-network with its own statistics, in eval mode."""
        network = self.supernet.extract(setting).eval().requires_grad_(False).to(self.device)
        recalibrate_batch_norm(network, [tuple(v.to(self.device) for v in views) for views in self.calibration])
        return network

    def measure(self, setting: Setting) -> dict[str, float]:
        """``epe`` (pixels), ``bad1``, ``bad3``, ``d1`` (percent) over all pixels with truth below 192 px."""
        network, errors = self.network(setting), DisparityMetrics(_THRESHOLDS)
        with torch.inference_mode():
            for batch in self.validation:
                answers = network(batch.left.to(self.device), batch.right.to(self.device)).disparity.float().cpu()
                for answer, truth in zip(answers, batch.disparity, strict=True):
                    errors.update(answer, truth, (truth < LARGEST_DISPARITY)[0])
        figures = errors.compute()
        return {name: float(figures[name]) for name in FIGURES}


def fingerprint(parts: dict[str, Any]) -> dict[str, Any]:
    """What measurements depend on, as JSON gives it back."""
    return dict(json.loads(json.dumps(parts)))


@dataclass
class Measurements:
    """Figures by setting, kept in a file that is rewritten whole after each new one, so that a search can go on.

    Attributes:
        path: the file; None keeps them in memory.
        conditions: what the figures depend on: weights, data, protocol.
        rows: setting -> figures, in the order of the measuring.
    """

    path: Path | None
    conditions: dict[str, Any]
    rows: dict[Setting, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None, conditions: dict[str, Any]) -> Measurements:
        """Read the file where there is one.

        Raises:
            InputError: its figures were measured under other conditions. FileFormatError: it is no such file.
        """
        conditions = fingerprint(conditions)
        result = cls(None if path is None else Path(path), conditions)
        if path is None or not Path(path).exists():
            return result
        try:
            content = json.loads(read_bytes(path, FileFormatError, "measurements of a search"))
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']!r}")
            stored = dict(content["conditions"])
            for row in content["rows"]:
                figures = {name: float(row[name]) for name in FIGURES}
                result.rows[parse_setting(row["setting"])] = {**figures, "seconds": float(row["seconds"])}
        except FileFormatError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(f"{path}: not the measurements of a search ({error}): remove the file") from error
        different = sorted(key for key in {*stored, *conditions} if stored.get(key) != conditions.get(key))
        if different:
            raise InputError(
                f"{path}: measured with another {different[0]} ({stored.get(different[0])}, now "
                f"{conditions.get(different[0])}): use another --out folder, or the same options"
            )
        return result

    def add(self, setting: Setting, figures: dict[str, float], seconds: float) -> None:
        """Keep figures, and rewrite the file.

        Raises:
            OutputError: the file cannot be written.
        """
        self.rows[setting] = {**figures, "seconds": seconds}
        if self.path is None:
            return
        rows = [{"setting": setting.as_dict(), **row} for setting, row in self.rows.items()]
        with atomic_write(self.path) as temporary:
            content = {"format": FORMAT, "conditions": self.conditions, "rows": rows}
            temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")

    def finite(self) -> tuple[list[Setting], list[float]]:
        """The settings whose EPE is finite, and their EPE in pixels."""
        found = [(setting, row["epe"]) for setting, row in self.rows.items() if math.isfinite(row["epe"])]
        return [setting for setting, _ in found], [epe for _, epe in found]
