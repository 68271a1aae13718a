# SPDX-License-Identifier: Apache-2.0
"""The training task of stereo networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vision3d.evaluation.metrics import DisparityMetrics
from vision3d.inference import size_multiple
from vision3d.ops import pad_to_multiple
from vision3d.training.task import NonFiniteError, TrainingTask, merge_over_processes
from vision3d.types import StereoBatch, StereoOutput

__all__ = ["METRICS", "THRESHOLDS", "NonFiniteError", "StereoTask", "merge_over_processes"]
METRICS = ("epe", "bad1", "bad2", "bad3", "d1")
THRESHOLDS = (1.0, 2.0, 3.0)


class StereoTask(TrainingTask):
    """A stereo network, measured by its disparities; arguments as for :class:`TrainingTask`."""

    metric_names = METRICS
    preview_error = 5.0  # pixels

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._errors = DisparityMetrics(THRESHOLDS)

    @property
    def selection(self) -> float:
        """The end-point error."""
        return self.validation_metrics["epe"]

    def compute_loss(self, batch: StereoBatch) -> tuple[Tensor, StereoOutput]:
        """The loss to minimise on a batch, and the answer it comes from."""
        output = self.model(batch.left, batch.right)
        with torch.autocast(self.device.type, enabled=False):
            loss, parts = self.loss(output, batch)
        self.last.update(parts)
        return loss, output

    def checked_tensors(self, batch: StereoBatch, output: StereoOutput) -> tuple[Tensor, ...]:
        """Both views and the disparity."""
        return batch.left, batch.right, output.disparity.detach()

    def preview_maps(self, batch: StereoBatch, prediction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Left view, true and predicted disparity of the first pair."""
        return batch.left[0], batch.disparity[0, 0], prediction[0, 0]

    @property
    def preview_range(self) -> float:
        """The largest disparity of the loss, pixels."""
        return float(self.config.loss.options.get("max_disparity", 192))

    def predict(self, batch: StereoBatch, network: nn.Module | None = None) -> Tensor:
        """[B, 1, H, W] disparity of the evaluated network, or of another one, at any size."""
        network = self.evaluated if network is None else network
        left, padding = pad_to_multiple(batch.left, size_multiple(network))
        right, _ = pad_to_multiple(batch.right, size_multiple(network))
        return padding.undo(network(left, right).disparity).float()

    def on_validation_epoch_start(self) -> None:
        self._errors = DisparityMetrics(THRESHOLDS)
        self.previews = []

    def validation_step(self, batch: StereoBatch, batch_idx: int) -> None:
        prediction = self.predict(batch)
        for answer, truth in zip(prediction, batch.disparity, strict=True):
            self._errors.update(answer, truth)
        self.keep_preview(batch, prediction)

    def on_validation_epoch_end(self) -> None:
        figures = merge_over_processes(self._errors).compute()
        self.validation_metrics = {name: figures[name] for name in METRICS}
