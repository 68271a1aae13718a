# SPDX-License-Identifier: Apache-2.0
"""Training of a supernet: each step sums the gradients of several sub-networks on one batch.

The stages of progressive shrinking (EASNet, arXiv 2207.09796; Once-for-All, arXiv 1908.09791) are recipes of their own,
each of which starts from the weights of the one before and opens more values.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vision3d.errors import ConfigError
from vision3d.evaluation.metrics import DisparityMetrics
from vision3d.models.batch_norm import recalibrate_batch_norm
from vision3d.models.stereo.easnet import (
    FULL_SPACE,
    EASNet,
    EASNetSupernet,
    SearchSpace,
    Setting,
    largest_setting,
    parse_setting,
    published_seed,
    sample_setting,
    smallest_setting,
)
from vision3d.training.config import ElasticConfig
from vision3d.training.data import TrainingPairs, open_sources
from vision3d.training.stereo import METRICS, THRESHOLDS, StereoTask, merge_over_processes
from vision3d.types import StereoBatch, StereoOutput

logger = logging.getLogger(__name__)
PUBLISHED_VALIDATION = (
    {"ks": 7, "e": 8, "d": 4, "s": 4},
    {"ks": 7, "e": 8, "d": 2, "s": 2},
    {"ks": 3, "e": 2, "d": 2, "s": 2},
)
CALIBRATION_SEED = 937162211  # of the authors


def open_space(config: ElasticConfig) -> SearchSpace:
    """The values that a recipe opens.

    Raises:
        ConfigError: a value that no sub-network has; the message names the field and its legal values.
    """
    fields = {"kernel": "kernels", "expand": "expand_ratios", "depth": "depths", "scale": "scales"}
    for field, dimension in fields.items():
        values, legal = getattr(config, field), getattr(FULL_SPACE, dimension)
        if not values or set(values) - set(legal):
            raise ConfigError(f"elastic.{field} must be one or more of {', '.join(map(str, legal))}, got {values}")
    return SearchSpace(tuple(config.kernel), tuple(config.expand), tuple(config.depth), tuple(config.scale))


def step_settings(config: ElasticConfig, space: SearchSpace, step: int) -> list[Setting]:
    """The sub-networks of a training step (from 0): the same in every process, and after every resume."""
    settings = [sample_setting(published_seed(step, i), space) for i in range(config.subnets_per_step)]
    if config.sandwich:
        settings[0], settings[-1] = largest_setting(space), smallest_setting(space)
    return settings


def validation_settings(config: ElasticConfig, space: SearchSpace) -> list[Setting]:
    """The sub-networks to validate, without duplicates; see ``ElasticConfig.validation``.

    Raises:
        ConfigError: a setting that no sub-network has.
    """
    try:
        named = [parse_setting(setting) for setting in config.validation]
    except ConfigError as error:
        raise ConfigError(f"elastic.validation: {error}") from error
    if named:
        return list(dict.fromkeys(named))
    legal = {"ks": space.kernels, "e": space.expand_ratios, "d": space.depths, "s": space.scales}
    moved = [
        {name: min(legal[name], key=lambda value: abs(value - wish)) for name, wish in setting.items()}
        for setting in PUBLISHED_VALIDATION
    ]
    return list(dict.fromkeys(parse_setting(setting) for setting in moved))


class ElasticTask(StereoTask):
    """The training of an :class:`~vision3d.models.stereo.easnet.EASNetSupernet` as ``config.elastic`` says.

    The loss of a step is the sum over its sub-networks; ``last["loss"]`` is their mean, so that it can be compared
    between stages. Validation measures networks taken out of the supernet, whose batch-norm statistics were measured
    anew on training pairs; the supernet itself stays as it is. The metrics are means over these networks.

    Args:
        arguments, options: as for :class:`StereoTask`.

    Raises:
        ConfigError: the model of the recipe is no supernet, or illegal values.
    """

    model: EASNetSupernet

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not isinstance(self.model, EASNetSupernet):
            raise ConfigError(f"elastic: {self.config.model.name} has no sub-networks: use easnet_supernet")
        self.elastic = self.config.elastic
        self.space = open_space(self.elastic)
        self.settings = validation_settings(self.elastic, self.space)
        if self.elastic.sort_channels:  # a checkpoint that is resumed overwrites this
            for network in filter(None, (self.model, self.average)):
                network.sort_channels()  # type: ignore[operator]
        self.candidates: list[EASNet] = []
        self._candidate_errors: list[DisparityMetrics] = []
        self._calibration: list[StereoBatch] = []

    def compute_loss(self, batch: StereoBatch) -> tuple[Tensor, StereoOutput]:
        """The sum of the losses of the step's sub-networks, and the answer of the last one."""
        settings = step_settings(self.elastic, self.space, self.global_step)
        teacher = self._teach(batch) if self.elastic.distillation else None
        total = batch.left.new_zeros(())
        for setting in settings:
            self.model.set_active(setting)
            loss, output = super().compute_loss(batch)
            total = total + loss
            if teacher is not None and setting != largest_setting(self.space):
                total = total + self.elastic.distillation * F.smooth_l1_loss(output.disparity.float(), teacher)
        return total, output

    def training_step(self, batch: StereoBatch, batch_idx: int) -> Tensor:
        """As for one network; the loss that is reported is the mean of the step's sub-networks."""
        loss = super().training_step(batch, batch_idx)
        self.last["loss"] = loss.detach() / self.elastic.subnets_per_step
        return loss

    @torch.no_grad()
    def _teach(self, batch: StereoBatch) -> Tensor:
        """The answer of the largest open sub-network with the statistics of the batch; no statistic is moved."""
        self.model.set_active(largest_setting(self.space))
        before = [buffer.clone() for buffer in self.model.buffers()]
        answer = self.model(batch.left, batch.right).disparity.float()
        for buffer, value in zip(self.model.buffers(), before, strict=True):
            buffer.copy_(value)
        return answer

    def calibration_batches(self) -> list[StereoBatch]:
        """The training pairs that statistics are measured with: the authors' choice of pairs, transformed once."""
        if not self._calibration:
            data = self.config.data
            pairs = TrainingPairs(open_sources(data.train), data, self.config.trainer.seed)
            wanted = self.elastic.calibration_pairs
            generator = torch.Generator().manual_seed(CALIBRATION_SEED)
            order = list(range(wanted))
            if pairs.length is not None:
                order = torch.randperm(pairs.length, generator=generator)[:wanted].tolist()
            samples = [
                pairs.transformed(index, np.random.default_rng([self.config.trainer.seed, 3, place]))
                for place, index in enumerate(order)
            ]
            size = self.elastic.calibration_batch
            parts = [samples[first : first + size] for first in range(0, len(samples), size)]
            self._calibration = [StereoBatch.collate(part) for part in parts]
        return self._calibration

    def calibrated(self, setting: Setting) -> EASNet:
        """The sub-network of the evaluated weights as a network of its own, with statistics of its own."""
        network = self.evaluated.extract(setting).eval().requires_grad_(False)  # type: ignore[operator]
        batches = (self.transfer_batch_to_device(batch, self.device, 0) for batch in self.calibration_batches())
        with self._precision():
            recalibrate_batch_norm(network, batches)
        return network

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        wanted = self.config.trainer.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if wanted else contextlib.nullcontext()

    def on_validation_epoch_start(self) -> None:
        """Take the sub-networks to validate out of the supernet, with statistics of their own."""
        super().on_validation_epoch_start()
        self.candidates = [self.calibrated(setting) for setting in self.settings]
        self._candidate_errors = [DisparityMetrics(THRESHOLDS) for _ in self.settings]

    def validation_step(self, batch: StereoBatch, batch_idx: int) -> None:
        """Measure every candidate; pictures are those of the first."""
        for number, (network, errors) in enumerate(zip(self.candidates, self._candidate_errors, strict=True)):
            prediction = self.predict(batch, network)
            for answer, truth in zip(prediction, batch.disparity, strict=True):
                errors.update(answer, truth)
            if number == 0:
                self.keep_preview(batch, prediction)

    def on_validation_epoch_end(self) -> None:
        """Average the metrics over the sub-networks, and tell each one's end-point error."""
        figures = [merge_over_processes(errors).compute() for errors in self._candidate_errors]
        self.validation_metrics = {name: float(np.mean([item[name] for item in figures])) for name in METRICS}
        for setting, item in zip(self.settings, figures, strict=True):
            self.validation_metrics[f"epe {setting}"] = item["epe"]
        self.candidates = []
