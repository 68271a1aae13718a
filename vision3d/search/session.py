# SPDX-License-Identifier: Apache-2.0
"""What a search and a study of indicators share: the supernet, the pairs, the table and the measurements."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from vision3d.benchmark.easnet import Conditions, LatencyTable
from vision3d.benchmark.easnet_timing import build_table
from vision3d.errors import InputError
from vision3d.io.files import ensure_folder
from vision3d.models.stereo.easnet import FULL_SPACE, EASNetSupernet, SearchSpace, Setting, sample_setting
from vision3d.search.evolution import EvolutionOptions, draw_feasible
from vision3d.search.indicators import DriftIndicator, ScaleIndicator
from vision3d.search.measurements import AccuracyMeter, Measurements, open_pairs, read_batches
from vision3d.search.private_norms import PrivateNormIndicator
from vision3d.types import StereoBatch

RANKERS = ("predictor", "measured", "i0", "i1", "i2")
DRIFT_BATCHES = 2
Progress = Callable[[str], None]


@dataclass(frozen=True)
class SearchOptions:
    """All options of a search or study.

    Attributes:
        weights: file or weight tag of the supernet.
        data: validation pairs; see :func:`vision3d.search.measurements.open_pairs`.
        out: folder of the results; measurements that lie there are gone on with.
        latency_ms, gmac: the limit: one of both, or none for a study.
        conditions: device, precision, threads and size that latencies belong to.
        table: latency table; None measures one (``out/latency.json``, kept).
        calibration_data: pairs for the batch-norm statistics; None: the last ones of ``data``.
        pairs, calibration_pairs, calibration_batch: how many pairs of either, and pairs a calibration batch.
        crop: (height, width) cut from the centre of all pairs.
        warp_mode: of the supernet, as it was trained.
        rank: what the evolution goes by: one of ``RANKERS``.
        samples: networks that are measured for the predictor.
        finalists: the best of the evolution, which are measured.
        i1_steps: training steps of the private batch norms (I1).
        evolution: population, generations and shares.
        space: legal settings.
        eval_device: where errors are measured; None: the device of the conditions.
        seed: of all draws.
    """

    weights: str
    data: str
    out: Path
    latency_ms: float | None = None
    gmac: float | None = None
    conditions: Conditions = field(default_factory=Conditions)
    table: Path | None = None
    calibration_data: str | None = None
    pairs: int = 32
    calibration_pairs: int = 16
    calibration_batch: int = 4
    crop: tuple[int, int] | None = None
    warp_mode: str = "official"
    rank: str = "predictor"
    samples: int = 100
    finalists: int = 10
    i1_steps: int = 200
    evolution: EvolutionOptions = field(default_factory=EvolutionOptions)
    space: SearchSpace = FULL_SPACE
    eval_device: str | None = None
    seed: int = 0


class Session:
    """The opened parts of a search.

    Args:
        options: of the search.
        progress: is told what happens.

    Attributes:
        table: costs in the unit of the limit.
        limit: largest cost, infinite for a study.

    Raises:
        Vision3DError: whatever does not fit: limit, table, weights, data, earlier measurements.
    """

    def __init__(self, options: SearchOptions, progress: Progress | None = None) -> None:
        if options.latency_ms is not None and options.gmac is not None:
            raise InputError("the limit is given in ms and in GMAC: leave one out")
        if options.rank not in RANKERS:
            raise InputError(f"rank {options.rank!r}: must be one of {', '.join(RANKERS)}")
        self.options, self.tell = options, progress or (lambda text: None)
        self.out = ensure_folder(options.out)
        self.table = self._open_table()
        given = options.gmac if options.latency_ms is None else options.latency_ms
        self.limit = float("inf") if given is None else given
        fastest = self.table.fastest(options.space)
        if not self.table.predict(fastest) <= self.limit:
            raise InputError(
                f"no sub-network takes at most {self.limit:g} {self.table.unit} ({self.table.conditions}): the fastest "
                f"takes {self.table.predict(fastest):.4g} {self.table.unit}: raise the limit, or use smaller images"
            )
        self.fastest = fastest
        device = options.eval_device or options.conditions.device
        self.supernet = self._open_supernet().to(device)
        validation, calibration = self._read_pairs()
        self.calibration = [_moved(batch, device) for batch in calibration]
        self.views = [(batch.left, batch.right) for batch in self.calibration]
        self.meter = AccuracyMeter(self.supernet, validation, self.views, device)
        self.measurements = Measurements.open(self.out / "measurements.json", self._conditions())

    def _open_table(self) -> LatencyTable:
        options, conditions = self.options, self.options.conditions
        if options.gmac is not None:
            return LatencyTable.of_macs(conditions.height, conditions.width)
        stored = self.out / "latency.json"
        path = options.table or (stored if stored.exists() else None)
        if path is not None:
            table = LatencyTable.load(path)
            table.require(conditions)
            return table
        self.tell(f"measuring the latency table: {conditions}")
        table = build_table(conditions, progress=self.tell)
        table.save(stored)
        return table

    def _open_supernet(self) -> EASNetSupernet:
        from vision3d.zoo import create_model

        model = create_model("easnet_supernet", self.options.weights, warp_mode=self.options.warp_mode)
        assert isinstance(model, EASNetSupernet)
        return model

    def _read_pairs(self) -> tuple[list[StereoBatch], list[StereoBatch]]:
        options = self.options
        data = open_pairs(options.data)
        other = data if options.calibration_data is None else open_pairs(options.calibration_data)
        length, wanted = len(other), options.calibration_pairs  # type: ignore[arg-type]
        shared = options.pairs if options.calibration_data is None else 0
        if min(options.pairs, wanted, options.calibration_batch) < 1:
            raise InputError("at least one validation pair, one calibration pair and one pair a batch are needed")
        if len(data) < options.pairs or length < wanted + shared:  # type: ignore[arg-type]
            raise InputError(
                f"{options.data}: {len(data)} pairs, {options.pairs} to validate and {wanted} to calibrate are asked "  # type: ignore[arg-type]
                "for: ask for fewer (--pairs, --calibration-pairs), or name other calibration data"
            )
        validation = read_batches(data, range(options.pairs), 1, options.crop)
        places = range(length - wanted, length) if shared else range(wanted)
        return validation, read_batches(other, places, options.calibration_batch, options.crop)

    def _conditions(self) -> dict[str, object]:
        """What the measured errors depend on."""
        options = self.options
        return {
            "weights": state_digest(self.supernet),
            "warp_mode": options.warp_mode,
            "data": options.data,
            "calibration_data": options.calibration_data or options.data,
            "pairs": options.pairs,
            "calibration_pairs": options.calibration_pairs,
            "calibration_batch": options.calibration_batch,
            "crop": options.crop,
        }

    def measure(self, settings: Iterable[Setting], purpose: str = "networks") -> list[float]:
        """EPE of sub-networks in pixels; those that were measured before are not measured again."""
        settings = list(settings)
        for number, setting in enumerate(settings):
            if setting in self.measurements.rows:
                continue
            start = time.perf_counter()
            figures = self.meter.measure(setting)
            self.measurements.add(setting, figures, time.perf_counter() - start)
            self.tell(f"{purpose} {number + 1}/{len(settings)}: EPE {figures['epe']:.3f}")
        return [self.measurements.rows[setting]["epe"] for setting in settings]

    def sample_feasible(self, number: int, seed: int) -> list[Setting]:
        """Distinct settings within the limit, as far as chance finds so many."""
        rng, found = random.Random(seed), dict[Setting, None]()
        for _ in range(4 * number):
            if len(found) == number:
                break
            found[draw_feasible(self.fits, self.fastest, rng, self.options.space)] = None
        return list(found)

    def fits(self, setting: Setting) -> bool:
        """Whether a setting keeps the limit."""
        return self.table.predict(setting) <= self.limit

    def scale_indicator(self) -> ScaleIndicator:
        """I0."""
        return ScaleIndicator(self.supernet)

    def private_indicator(self) -> PrivateNormIndicator:
        """I1."""
        options = self.options

        def tell(step: int, loss: float) -> None:
            if step % 20 == 0:
                self.tell(f"I1 step {step}/{options.i1_steps}: loss {loss:.3f}")

        return PrivateNormIndicator(self.supernet, self.calibration, options.i1_steps, options.seed, progress=tell)

    def drift_indicator(self) -> DriftIndicator:
        """I2."""
        return DriftIndicator(self.supernet, self.views[:DRIFT_BATCHES])


def _moved(batch: StereoBatch, device: str) -> StereoBatch:
    """The images and the truth of a batch on a device."""
    return StereoBatch(batch.left.to(device), batch.right.to(device), batch.disparity.to(device), batch.scenes)


def sample_distinct(number: int, rng: random.Random, space: SearchSpace) -> list[Setting]:
    """So many distinct uniform settings, or fewer where the space is small."""
    found = dict[Setting, None]()
    for _ in range(10 * number):
        if len(found) == number:
            break
        found[sample_setting(rng, space)] = None
    return list(found)


def state_digest(model: EASNetSupernet) -> str:
    """SHA-256 of all weights, the first 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
