# SPDX-License-Identifier: Apache-2.0
"""What a run with several processes costs: samples a second, time and bytes of communication, energy."""

from __future__ import annotations

import json
import logging
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from vision3d.io.files import atomic_write
from vision3d.training.distributed.energy import EnergyMeter
from vision3d.training.distributed.wire import Traffic
from vision3d.training.task import TrainingTask

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProcessReport:
    """Figures of one process.

    Attributes:
        samples_per_second: over all steps but the first; validation and checkpoints count in.
        communication_share: time in communication by the time of the steps; part of it may hide behind
            back-propagation. None: not measured.
        bytes_per_step: payload that the process sends for gradients (``Traffic``). None: not measured.
        joules_per_step: energy of ``energy_source`` by step; None: ``energy_missing`` says why.
    """

    rank: int
    hook: str
    steps: int
    samples_per_second: float
    communication_share: float | None
    bytes_per_step: float | None
    joules_per_step: float | None
    energy_source: str
    energy_missing: str | None


class CommunicationReport(Callback):
    """Measures each process and, at the end, writes ``communication.json`` and a few lines of log.

    The first step, in which memory is taken and buckets are made, counts for none of the figures.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start: tuple[float, float, float, int] | None = None
        self._meter: EnergyMeter | None = None

    def _traffic(self, trainer: Trainer) -> Traffic | None:
        communication = getattr(trainer.strategy, "communication", None)
        return None if communication is None else communication.traffic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Start the clocks after the first step."""
        assert isinstance(pl_module, TrainingTask)
        if self._start is None and (batch_idx + 1) % pl_module.config.trainer.accumulate == 0:
            traffic = self._traffic(trainer) or Traffic()
            self._meter = EnergyMeter(pl_module.device)
            self._start = (time.perf_counter(), traffic.seconds, traffic.bytes_sent, trainer.global_step)

    def measure(self, trainer: Trainer, task: TrainingTask) -> ProcessReport | None:
        """The figures of this process; None before the second step."""
        if self._start is None or trainer.global_step <= self._start[3] or self._meter is None:
            return None
        begin, waited, sent, first = self._start
        seconds, steps = time.perf_counter() - begin, trainer.global_step - first
        traffic, joules, settings = self._traffic(trainer), self._meter.joules(), task.config.trainer
        share = None if traffic is None else (traffic.seconds - waited) / seconds
        return ProcessReport(
            rank=trainer.global_rank,
            hook=task.config.communication.hook if traffic is not None else "none",
            steps=steps,
            samples_per_second=steps * settings.batch_size * settings.accumulate / seconds,
            communication_share=None if share is None or math.isnan(share) else share,
            bytes_per_step=None if traffic is None else (traffic.bytes_sent - sent) / steps,
            joules_per_step=None if joules is None else joules / steps,
            energy_source=self._meter.source,
            energy_missing=self._meter.missing,
        )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather and print the figures of all processes."""
        assert isinstance(pl_module, TrainingTask)
        reports: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(reports, self.measure(trainer, pl_module))
        if not trainer.is_global_zero or any(report is None for report in reports):
            return
        with atomic_write(self.path) as temporary:
            temporary.write_text(json.dumps([asdict(report) for report in reports], indent=1) + "\n", encoding="utf-8")
        for report in reports:
            logger.info("%s", describe(report))


def describe(report: ProcessReport) -> str:
    """One line about a process."""
    share, sent = report.communication_share, report.bytes_per_step
    parts = [f"process {report.rank}: {report.samples_per_second:.2f} samples/s"]
    parts.append("communication not measured" if share is None else f"{100 * share:.1f} % of the time in communication")
    parts.append("bytes not measured" if sent is None else f"{sent:,.0f} bytes a step by hook {report.hook}")
    if report.joules_per_step is None:
        parts.append(f"energy not measured: {report.energy_missing}")
    else:
        parts.append(f"{report.joules_per_step:.3g} J a step, {report.energy_source}")
    return ", ".join(parts)
