# SPDX-License-Identifier: Apache-2.0
"""The training task of networks that answer disparity and surface normals (DTN-Net, arXiv 1912.09678)."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vision3d.datasets.normal_axes import check_normal_axes, spread_indices
from vision3d.errors import ConfigError, InputError
from vision3d.evaluation.normal_metrics import NormalSetMetrics, unit_normal_mask
from vision3d.inference import size_multiple
from vision3d.io.checkpoints import read_checkpoint
from vision3d.ops import pad_to_multiple
from vision3d.registry import registered_models
from vision3d.training.config import TrainConfig
from vision3d.training.data import data_length, open_sources
from vision3d.training.normal_losses import DisparityAndNormals
from vision3d.training.stereo import StereoTask
from vision3d.types import StereoBatch, StereoOutput
from vision3d.zoo import create_model

logger = logging.getLogger(__name__)
NORMAL_METRICS = {
    "angle": "mean",
    "angle_median": "median",
    "within11.25": "within11.25",
    "within22.5": "within22.5",
    "within30": "within30",
}


def stage_one_weights(source: str) -> dict[str, Any]:
    """The state dict of a first stage: of a registered network's shipped weights (``name`` or ``name.tag``), or a file.

    Raises:
        WeightsError: no such weights, or no such file.
    """
    if source.partition(".")[0] in registered_models() and not Path(source).exists():
        return dict(create_model(source, True if "." not in source else source.partition(".")[2]).state_dict())
    return dict(read_checkpoint(Path(source)))


class NormalsTask(StereoTask):
    """A network of the task "normals": true intrinsics go in, and validation measures angles as well.

    ``model.stage_one`` of the recipe names the weights that the disparity stage starts from, and with
    ``model.freeze_stage_one`` it keeps them: neither they nor its batch statistics change.

    Args:
        arguments, options: as for :class:`StereoTask`.

    Raises:
        ConfigError: a recipe that cannot work: a frozen stage with a disparity loss, or none to freeze.
        WeightsError: weights that do not fit the first stage.
    """

    extra_metrics = (*NORMAL_METRICS, "loss_normal", "loss_angle", "invalid_normals")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._check(self.config)
        settings = self.config.model
        if settings.stage_one:
            weights = stage_one_weights(settings.stage_one)
            for network in filter(None, (self.model, self.average)):
                network.load_stage_one(weights)  # type: ignore[operator]
        self.frozen: nn.Module | None = None
        if settings.freeze_stage_one:
            self.frozen = getattr(self.model, str(self.model.stage_one_name)).requires_grad_(False)
        self.train()
        self._angles = NormalSetMetrics()
        self._told = False

    def on_fit_start(self) -> None:
        """Say if the true normals seem to have other axes than the library's."""
        super().on_fit_start()
        if self.global_rank == 0 and not self._told:
            self._told = True
            data: Any = open_sources(self.config.data.train)
            finding = check_normal_axes(data[index] for index in spread_indices(data_length(data)))
            if finding is not None and finding.wrong:
                logger.warning("%s", finding.message)

    def _check(self, config: TrainConfig) -> None:
        settings = config.model
        if not isinstance(self.loss, DisparityAndNormals):
            raise ConfigError(f"loss {config.loss.name} ignores normals: {settings.name} needs disparity_and_normals")
        if (settings.stage_one or settings.freeze_stage_one) and not getattr(self.model, "stage_one_name", ""):
            raise ConfigError(f"model {settings.name} has no first stage: remove model.stage_one, freeze_stage_one")
        if settings.freeze_stage_one and self.loss.inner is not None:
            raise ConfigError("model.freeze_stage_one: nothing is left for a disparity loss; set its option to none")

    def train(self, mode: bool = True) -> NormalsTask:
        """As usual, but a frozen first stage stays in eval mode."""
        super().train(mode)
        if getattr(self, "frozen", None) is not None:
            self.frozen.eval()  # type: ignore[union-attr]
        return self

    def compute_loss(self, batch: StereoBatch) -> tuple[Tensor, StereoOutput]:
        """The loss to minimise on a batch, and the answer it comes from.

        Raises:
            InputError: the batch has no intrinsics.
        """
        if batch.intrinsics is None:
            raise InputError(
                f"{', '.join(batch.scenes)}: normals need the calibration: set the option focal of a pool, leave out "
                "the transform misalign, or choose data with calibration"
            )
        truth, invalid = mask_normals(batch.normals)
        batch = dataclasses.replace(batch, normals=truth)
        output = self.model(batch.left, batch.right, batch.intrinsics, batch.doffs)
        with torch.autocast(self.device.type, enabled=False):
            loss, parts = self.loss(output, batch)
        self.last.update(parts, invalid_normals=invalid)
        return loss, output

    def answer(self, batch: StereoBatch) -> tuple[Tensor, Tensor]:
        """Disparity [B, 1, H, W] and normals [B, 3, H, W] of the evaluated network, at any size."""
        network = self.evaluated
        left, padding = pad_to_multiple(batch.left, size_multiple(network))
        right, _ = pad_to_multiple(batch.right, size_multiple(network))
        intrinsics = None
        if batch.intrinsics is not None:
            intrinsics = batch.intrinsics.clone()
            intrinsics[:, 0, 2] += padding.left
            intrinsics[:, 1, 2] += padding.top
        output = network(left, right, intrinsics, batch.doffs)
        return padding.undo(output.disparity).float(), padding.undo(output.normals).float()

    def on_validation_epoch_start(self) -> None:
        super().on_validation_epoch_start()
        self._angles = NormalSetMetrics()

    def validation_step(self, batch: StereoBatch, batch_idx: int) -> None:
        """Measure disparities and angles; pictures are of the disparity."""
        disparity, normals = self.answer(batch)
        for item, truth in zip(disparity, batch.disparity, strict=True):
            self._errors.update(item, truth)
        if batch.normals is not None:
            for item, truth in zip(normals, batch.normals, strict=True):
                self._angles.update(*(part.permute(1, 2, 0).cpu().numpy() for part in (item, truth)))
        if self.global_rank == 0 and len(self.previews) < self.config.trainer.images:
            self.previews.append((batch, disparity))

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        figures = _merge_over_processes(self._angles).compute()
        self.validation_metrics.update({name: figures[key] for name, key in NORMAL_METRICS.items()})

    @property
    def selection(self) -> float:
        """The mean angle; without true normals the disparity error."""
        angle = self.validation_metrics["angle"]
        return angle if math.isfinite(angle) else self.validation_metrics["epe"]


def mask_normals(normals: Tensor | None) -> tuple[Tensor | None, float]:
    """True normals [B, 3, H, W] with NaN where they are not of unit length, and that share in percent; unknown (NaN)
    ones count as well. The rule is that of ``vision3d.evaluation.normal_metrics.unit_normal_mask``.
    """
    if normals is None:
        return None, 100.0
    valid = unit_normal_mask(normals)
    length = torch.linalg.vector_norm(torch.where(valid, normals, 1.0), dim=1, keepdim=True)
    unit = torch.where(valid, normals / length, torch.nan).clamp(-1, 1)
    return unit, 100.0 * (1.0 - float(valid.float().mean()))


def _merge_over_processes(metrics: NormalSetMetrics) -> NormalSetMetrics:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return metrics
    parts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, metrics)
    return functools.reduce(NormalSetMetrics.merge, parts)
