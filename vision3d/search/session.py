# SPDX-License-Identifier: Apache-2.0
"""What a search and a study of indicators share: the supernet, the pairs, the table and the measurements."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch.utils.data import Dataset

from vision3d.benchmark.easnet import Conditions, LatencyTable
from vision3d.benchmark.easnet_timing import build_table, describe_device
from vision3d.errors import InputError
from vision3d.inference import choose_device
from vision3d.io.files import ensure_folder
from vision3d.models.stereo.easnet import FULL_SPACE, EASNetSupernet, SearchSpace, Setting, sample_setting
from vision3d.search import RANKERS
from vision3d.search.evolution import EvolutionOptions, draw_feasible
from vision3d.search.indicators import DriftIndicator, ScaleIndicator
from vision3d.search.measurements import AccuracyMeter, Measurements, open_pairs, read_batches
from vision3d.search.predictor import LEAST_PAIRS
from vision3d.search.private_norms import PrivateNormIndicator
from vision3d.types import StereoBatch, StereoSample

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
        rank: what the evolution goes by: one of ``vision3d.search.RANKERS``.
        samples: networks that are measured for the predictor; at least 5.
        finalists: the best of the evolution, which are measured.
        i1_steps: training steps of the private batch norms (I1).
        evolution: population, generations and shares.
        space: legal settings.
        eval_device: where errors are measured; None: the device of the conditions.
        seed: of all draws.

    Raises:
        InputError: options that contradict each other, or that no search can go by.
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

    def __post_init__(self) -> None:
        if self.latency_ms is not None and self.gmac is not None:
            raise InputError("the limit is given in ms and in GMAC: leave one out")
        if self.gmac is not None and self.table is not None:
            raise InputError(f"{self.table}: a latency table says nothing of a limit in GMAC: leave one out")
        if self.limit is not None and not math.isfinite(self.limit):
            raise InputError(f"limit {self.limit}: must be a finite number")
        if self.rank not in RANKERS:
            raise InputError(f"rank {self.rank!r}: must be one of {', '.join(RANKERS)}")
        least = {"pairs": 1, "calibration_pairs": 1, "calibration_batch": 1, "finalists": 0}
        least["samples"] = LEAST_PAIRS if self.rank == "predictor" else 0
        least["i1_steps"] = 1 if self.rank == "i1" else 0
        for name, number in least.items():
            if getattr(self, name) < number:
                flag = name.replace("_", "-")
                raise InputError(f"{name} {getattr(self, name)}: must be at least {number} (--{flag})")

    @property
    def limit(self) -> float | None:
        """The one that is given, in its unit."""
        return self.latency_ms if self.gmac is None else self.gmac


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
        self.options, self.tell = options, progress or (lambda text: None)
        device = str(choose_device(options.eval_device or options.conditions.device))
        self.supernet = self._open_supernet().to(device)
        validation, calibration = self._read_pairs()
        self.out = ensure_folder(options.out)
        self.table = self._open_table()
        self.limit = math.inf if options.limit is None else options.limit
        fastest = self.table.fastest(options.space)
        if not self.table.predict(fastest) <= self.limit:
            raise InputError(
                f"no sub-network takes at most {self.limit:g} {self.table.unit} ({self.table.conditions}): the fastest "
                f"takes {self.table.predict(fastest):.4g} {self.table.unit}: raise the limit, or use smaller images"
            )
        self.fastest = fastest
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
            if table.unit != "ms":
                raise InputError(
                    f"{path}: holds {table.unit}, a table of milliseconds is needed: leave it out, or measure one"
                )
            table.require(conditions)
            if table.machine != describe_device(conditions):
                self.tell(f"{path} is of another machine ({table.machine}): the latency is predicted, not measured")
            return table
        if options.limit is not None and options.limit <= 0:
            raise InputError(f"limit {options.limit:g} ms: no network takes that little: give a positive one")
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
        wanted = {"to validate": options.pairs, "to calibrate": options.calibration_pairs}
        data = other = open_pairs(options.data)
        if options.calibration_data is None:
            length = _require_pairs(options.data, data, wanted)
            places = range(length - options.calibration_pairs, length)
        else:
            other = open_pairs(options.calibration_data)
            _require_pairs(options.data, data, {"to validate": wanted.pop("to validate")})
            _require_pairs(options.calibration_data, other, wanted)
            places = range(options.calibration_pairs)
        validation = read_batches(data, range(options.pairs), 1, options.crop)
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


def _require_pairs(source: str, pairs: Dataset[StereoSample], wanted: Mapping[str, int]) -> int:
    """The number of pairs.

    Raises:
        InputError: fewer than are wanted.
    """
    length = len(pairs)  # type: ignore[arg-type]
    if length < sum(wanted.values()):
        asked = " and ".join(f"{number} {purpose}" for purpose, number in wanted.items())
        raise InputError(
            f"{source}: {length} pairs, {asked} are asked for: ask for fewer (--pairs, --calibration-pairs), or name "
            "other data (--data, --calibration-data)"
        )
    return length


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
