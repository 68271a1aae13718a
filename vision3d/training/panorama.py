# SPDX-License-Identifier: Apache-2.0
"""The training task of networks that estimate the depth of a panorama."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from vision3d.datasets.depth_units import unit_warning
from vision3d.datasets.normal_axes import spread_indices
from vision3d.datasets.panorama_augment import panorama_augmentation
from vision3d.errors import ConfigError
from vision3d.evaluation.panorama_metrics import PanoramaMetrics
from vision3d.inference import size_multiple
from vision3d.training.config import DataConfig
from vision3d.training.data import TrainingPairs, data_length, open_sources
from vision3d.training.panorama_losses import PanoramaDepthLoss
from vision3d.training.task import TrainingTask, merge_over_processes
from vision3d.types import DepthOutput, PanoramaBatch, PanoramaSample

logger = logging.getLogger(__name__)
METRICS = ("abs_rel", "mae", "rmse", "rmse_log", "delta1", "delta2", "delta3")
SPHERE_METRICS = ("sphere_abs_rel", "sphere_mae", "sphere_rmse", "sphere_delta1")


class TrainingPanoramas(TrainingPairs):
    """Augmented panoramas by their position in the run; they keep their size (set ``height`` of the data set).

    Raises:
        ConfigError: an option of stereo pairs.
    """

    def __init__(self, dataset: Dataset, config: DataConfig, seed: int) -> None:
        self.dataset, self.config, self.seed = dataset, config, seed
        self.length = data_length(dataset)
        self._order = None
        stereo = {
            "color": config.color != "none",
            "vertical_flip": config.vertical_flip > 0,
            "crop_top": config.crop_top > 0,
            "validation_crop": config.validation_crop is not None,
        }
        for name, given in stereo.items():
            if given:
                raise ConfigError(f"data.{name} has no meaning for panoramas: remove it")
        self.panorama_augment = panorama_augmentation([(step.name, step.options) for step in config.augment])

    def transformed(self, index: int, generator: np.random.Generator) -> PanoramaSample:  # type: ignore[override]
        """Panorama ``index`` of the data set with the random transforms that the generator draws."""
        return self.panorama_augment(self.dataset[index], generator)


class PanoramaTask(TrainingTask):
    """A network of the task "panorama"; validation measures distances per pixel and per area of the sphere.

    Args:
        arguments, options: as for :class:`TrainingTask`.

    Raises:
        ConfigError: another loss than that of panoramas.
    """

    metric_names = (*METRICS, *SPHERE_METRICS)
    extra_metrics = ("loss_fine",)
    samples = TrainingPanoramas
    collate = staticmethod(PanoramaBatch.collate)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not isinstance(self.loss, PanoramaDepthLoss):
            raise ConfigError(f"loss {self.config.loss.name} is not for panoramas: set loss.name to panorama")
        self._errors: PanoramaMetrics = PanoramaMetrics()

    @property
    def selection(self) -> float:
        """The relative error, each pixel by its area on the sphere."""
        return self.validation_metrics["sphere_abs_rel"]

    def on_fit_start(self) -> None:
        """Say if the depths of the training data cannot be metres."""
        super().on_fit_start()
        if self.global_rank == 0:
            data: Any = open_sources(self.config.data.train)
            indices = spread_indices(data_length(data))[:4]
            warning = unit_warning(data[index].depth for index in indices)
            if warning is not None:
                logger.warning("training data: %s", warning)

    def compute_loss(self, batch: PanoramaBatch) -> tuple[Tensor, DepthOutput]:
        """The loss to minimise on a batch, and the answer it comes from."""
        output = self.model(batch.image)
        with torch.autocast(self.device.type, enabled=False):
            loss, parts = self.loss(output, batch)  # type: ignore[arg-type]
        self.last.update(parts)
        return loss, output

    def checked_tensors(self, batch: PanoramaBatch, output: DepthOutput) -> tuple[Tensor, ...]:
        """The panorama and its depth."""
        return batch.image, output.depth.detach()

    def preview_maps(self, batch: PanoramaBatch, prediction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The first panorama, its true and its predicted depth."""
        return batch.image[0], batch.depth[0, 0], prediction[0, 0]

    @property
    def preview_range(self) -> float:
        """The largest depth that the network can answer, metres."""
        return float(getattr(self.model, "max_depth", 10.0))

    def predict(self, batch: PanoramaBatch, network: nn.Module | None = None) -> Tensor:
        """[B, 1, H, 2H] distance of the evaluated network, or of another one, at any size."""
        network = self.evaluated if network is None else network
        height, multiple = batch.image.shape[2], size_multiple(network)
        fitting = -(-height // multiple) * multiple
        if fitting == height:
            return network(batch.image).depth.float()  # type: ignore[no-any-return]
        enlarged = F.interpolate(batch.image, (fitting, 2 * fitting), mode="bilinear", align_corners=False)
        depth = network(enlarged).depth.float()
        return F.interpolate(depth, (height, 2 * height), mode="nearest-exact")

    def on_validation_epoch_start(self) -> None:
        self._errors = PanoramaMetrics()
        self.previews = []

    def validation_step(self, batch: PanoramaBatch, batch_idx: int) -> None:
        """Measure each panorama."""
        prediction = self.predict(batch)
        for answer, truth in zip(prediction, batch.depth, strict=True):
            self._errors.update(answer[0].cpu().numpy(), truth[0].cpu().numpy())
        self.keep_preview(batch, prediction)

    def on_validation_epoch_end(self) -> None:
        figures = merge_over_processes(self._errors).compute()
        self.validation_metrics = {name: figures[name] for name in self.metric_names}
