# SPDX-License-Identifier: Apache-2.0
"""The training task of multi-view stereo networks (DispMVS, arXiv 2211.16905)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from vision3d.errors import ConfigError
from vision3d.evaluation.mvs_metrics import MultiViewMetrics
from vision3d.training.multiview_data import MultiViewTraining
from vision3d.training.multiview_losses import DispMVSLoss
from vision3d.training.task import TrainingTask, merge_over_processes
from vision3d.types import DepthOutput, MultiViewBatch


class MultiViewTask(TrainingTask):
    """A network of the task "mvs": a loss in inverse depth, depth errors in validation.

    Args:
        arguments, options: as for :class:`TrainingTask`.

    Raises:
        ConfigError: a loss for other networks.
    """

    metric_names = MultiViewMetrics.names()
    extra_metrics = ("loss_last",)
    preview_error = 0.1  # share of the range of inverse depths
    samples = MultiViewTraining
    collate = staticmethod(MultiViewBatch.collate)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not isinstance(self.loss, DispMVSLoss):
            name = self.config.loss.name
            raise ConfigError(f"loss {name} is not for depth maps: {self.config.model.name} needs loss.name: dispmvs")
        self._depths: MultiViewMetrics = MultiViewMetrics()

    @property
    def selection(self) -> float:
        """The mean relative error of the depth."""
        return self.validation_metrics["abs_rel"]

    def compute_loss(self, batch: MultiViewBatch) -> tuple[Tensor, DepthOutput]:
        """The loss to minimise on a batch, and the answer it comes from."""
        output = _call(self.model, batch)
        with torch.autocast(self.device.type, enabled=False):
            loss, parts = cast(DispMVSLoss, self.loss)(output, batch)
        self.last.update(parts)
        return loss, output

    def checked_tensors(self, batch: MultiViewBatch, output: DepthOutput) -> tuple[Tensor, ...]:
        """Images and the answered depth."""
        return batch.images, output.depth.detach()

    def preview_maps(self, batch: MultiViewBatch, prediction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reference image, true and predicted inverse depth as shares of the range (1: nearest)."""
        far, near = (1.0 / batch.depth_range[0, end] for end in (1, 0))
        maps = ((1.0 / depth[0, 0] - far) / (near - far) for depth in (batch.depth, prediction))
        return (batch.images[0, 0], *maps)  # type: ignore[return-value]

    @property
    def preview_range(self) -> float:
        """The nearest end of the range."""
        return 1.0

    def predict(self, batch: MultiViewBatch, network: nn.Module | None = None) -> Tensor:
        """[B, 1, H, W] depth of the evaluated network, or of another one."""
        return _call(self.evaluated if network is None else network, batch).depth.float()

    def on_validation_epoch_start(self) -> None:
        self._depths = MultiViewMetrics()
        self.previews = []

    def validation_step(self, batch: MultiViewBatch, batch_idx: int) -> None:
        """Measure the depth errors of a batch."""
        prediction = self.predict(batch)
        for answer, truth in zip(prediction, batch.depth, strict=True):
            self._depths.update(answer[0].cpu().numpy(), truth[0].cpu().numpy())
        self.keep_preview(batch, prediction)

    def on_validation_epoch_end(self) -> None:
        figures = merge_over_processes(self._depths).compute()
        self.validation_metrics = {name: figures[name] for name in self.metric_names}


def _call(network: nn.Module, batch: MultiViewBatch) -> DepthOutput:
    answer = network(batch.images, batch.intrinsics, batch.world_to_camera, batch.depth_range)
    return answer  # type: ignore[no-any-return]
