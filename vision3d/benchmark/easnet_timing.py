# SPDX-License-Identifier: Apache-2.0
"""Timing of the parts of EASNet and of whole sub-networks; see :mod:`vision3d.benchmark.easnet`."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from vision3d.benchmark.easnet import Conditions, Entry, LatencyTable, block_key
from vision3d.benchmark.ops import describe_machine
from vision3d.errors import InputError
from vision3d.inference import choose_device
from vision3d.models.stereo.easnet import FULL_SPACE, EASNet, SearchSpace, Setting, sample_setting, scale_sizes
from vision3d.models.stereo.easnet.features import Block
from vision3d.models.stereo.easnet.settings import BLOCK_SHAPES, STAGES

SHORTEST_MS = 5.0  # a shorter part is called several times a repeat
MOST_CALLS = 50
WARM_UP = 2
REFERENCE = "refinement"  # the part that tells how fast the machine is now
Call = Callable[[], object]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class TableCheck:
    """A table beside whole sub-networks that were timed directly.

    Attributes:
        settings, predicted, measured: of each network, milliseconds.
        drift: time of the refinement during the check over that in the table: how much slower the machine was.
    """

    settings: list[Setting]
    predicted: list[float]
    measured: list[float]
    drift: float = 1.0

    @property
    def errors(self) -> np.ndarray:
        """|predicted - measured| / measured of each network."""
        measured = np.asarray(self.measured)
        return np.abs(np.asarray(self.predicted) - measured) / measured

    @property
    def median_error(self) -> float:
        """The median of :attr:`errors`; below 0.1 is asked for."""
        return float(np.median(self.errors))

    @property
    def corrected_error(self) -> float:
        """The median error of the predictions times :attr:`drift`: what the machine's other load did not do."""
        measured = np.asarray(self.measured)
        return float(np.median(np.abs(self.drift * np.asarray(self.predicted) - measured) / measured))

    @property
    def bias(self) -> float:
        """Median of predicted / measured - 1: what a constant factor would mend."""
        return float(np.median(np.asarray(self.predicted) / np.asarray(self.measured)) - 1)

    @property
    def r2(self) -> float:
        """Coefficient of determination of the predictions as they are (no fit); can be negative."""
        measured, predicted = np.asarray(self.measured), np.asarray(self.predicted)
        spread = float(np.square(measured - measured.mean()).sum())
        return 1.0 - float(np.square(predicted - measured).sum()) / spread if spread > 0 else float("nan")

    @property
    def correlation(self) -> float:
        """Pearson's r: what matters for a ranking."""
        if len(self.measured) < 2:
            return float("nan")
        return float(np.corrcoef(self.predicted, self.measured)[0, 1])


def protocol(conditions: Conditions, repeats: int) -> str:
    """How a figure is measured, in words."""
    clock = "process CPU time" if _counts_cpu_time(conditions) else "wall-clock time"
    return (
        f"{clock} of one pair, mean of the faster half of {repeats} repeats (the variance is theirs too), which go "
        f"round all parts in turn, after {WARM_UP} warm-up calls; parts below {SHORTEST_MS:g} ms are called several "
        "times a repeat"
    )


def build_table(conditions: Conditions, repeats: int = 8, progress: Progress | None = None) -> LatencyTable:
    """Measure the table of a device.

    Args:
        conditions: device, precision, threads, size.
        repeats: timed repeats of each of the 100 parts; at least 2.
        progress: is told each round.

    Raises:
        InputError: the device is not there, or fewer than 2 repeats.
    """
    return build_checked_table(conditions, 0, repeats=repeats, progress=progress)[0]


def build_checked_table(
    conditions: Conditions,
    networks: int = 30,
    seed: int = 0,
    repeats: int = 8,
    space: SearchSpace = FULL_SPACE,
    progress: Progress | None = None,
) -> tuple[LatencyTable, TableCheck]:
    """Measure the table, and whole random sub-networks in the same rounds, so that both see the same machine.

    Args:
        conditions, repeats, progress: as for :func:`build_table`.
        networks, seed, space: as for :func:`check_table`; 0 networks are legal.

    Raises:
        InputError: the device is not there, or fewer than 2 repeats.
    """
    settings = _draw(networks, seed, space)
    with _machine_state(conditions):
        calls = {**dict(_parts(conditions)), **dict(_whole(settings, conditions))}
        entries = time_calls(calls, conditions, repeats, progress)
    measured = [entries.pop(f"network {number}").mean for number in range(networks)]
    words = protocol(conditions, repeats)
    table = LatencyTable(entries, conditions, "ms", describe_device(conditions), words)
    return table, TableCheck(settings, [table.predict(setting) for setting in settings], measured)


def check_table(
    table: LatencyTable,
    networks: int = 30,
    seed: int = 0,
    repeats: int = 4,
    space: SearchSpace = FULL_SPACE,
    progress: Progress | None = None,
) -> TableCheck:
    """Compare a table with whole random sub-networks, timed by the same protocol under the table's conditions.

    Args:
        table: measured on this machine.
        networks: how many; drawn uniformly.
        seed: of the draw.
        repeats: timed repeats of each network.
        space: where the networks are drawn.
        progress: is told each round.

    Raises:
        InputError: a table of multiply-accumulates, of another machine, or no network.
    """
    if table.unit != "ms" or networks < 1:
        raise InputError(f"{table.path}: only a table of milliseconds can be checked, with at least 1 network")
    here = describe_device(table.conditions)
    if table.machine != here:
        raise InputError(
            f"{table.path}: measured on '{table.machine}', this is '{here}': check it there, or measure a table here "
            f"with '{table.conditions.command()}'"
        )
    settings = _draw(networks, seed, space)
    with _machine_state(table.conditions):
        calls = {**dict(_whole(settings, table.conditions)), REFERENCE: _refine(table.conditions)}
        entries = time_calls(calls, table.conditions, repeats, progress)
    drift = entries.pop(REFERENCE).mean / table.entries[REFERENCE].mean
    measured = [entry.mean for entry in entries.values()]
    return TableCheck(settings, [table.predict(setting) for setting in settings], measured, drift)


def _draw(networks: int, seed: int, space: SearchSpace) -> list[Setting]:
    generator = random.Random(seed)
    return [sample_setting(generator, space) for _ in range(networks)]


def measure_settings(
    settings: Sequence[Setting], conditions: Conditions, repeats: int = 4, progress: Progress | None = None
) -> list[float]:
    """Milliseconds of whole sub-networks with random weights, by the protocol of the table.

    Raises:
        InputError: the device is not there, or fewer than 2 repeats.
    """
    with _machine_state(conditions):
        calls = dict(_whole(settings, conditions))
        return [entry.mean for entry in time_calls(calls, conditions, repeats, progress).values()]


def _whole(settings: Sequence[Setting], conditions: Conditions) -> Iterator[tuple[str, Call]]:
    views = [_random(1, 3, conditions.height, conditions.width, device=conditions.device) for _ in range(2)]
    for number, setting in enumerate(settings):
        yield f"network {number}", partial(_network(setting, conditions), *views)


def time_calls(
    calls: Mapping[str, Call], conditions: Conditions, repeats: int, progress: Progress | None = None
) -> dict[str, Entry]:
    """Time functions by the protocol: round after round, so that a slow moment of the machine hits all alike.

    Raises:
        InputError: fewer than 2 repeats.
    """
    if repeats < 2:
        raise InputError(f"repeats {repeats}: at least 2 are needed")
    times: dict[str, list[float]] = {key: [] for key in calls}
    number: dict[str, int] = {}
    with torch.inference_mode(), _autocast(conditions):
        for key, call in calls.items():
            warm = min(_milliseconds(call, 1, conditions) for _ in range(WARM_UP))
            number[key] = min(MOST_CALLS, max(1, math.ceil(SHORTEST_MS / max(warm, 1e-3))))
        for round_ in range(repeats):
            if progress is not None:
                progress(f"round {round_ + 1}/{repeats} of {len(calls)} parts")
            for key, call in calls.items():
                times[key].append(_milliseconds(call, number[key], conditions))
    return {key: _entry(values) for key, values in times.items()}


def _entry(values: list[float]) -> Entry:
    fast = np.sort(values)[: (len(values) + 1) // 2]
    return Entry(len(values), float(fast.mean()), float(fast.var()))


def _counts_cpu_time(conditions: Conditions) -> bool:
    return conditions.kind == "cpu" and conditions.threads == 1


def _milliseconds(call: Call, number: int, conditions: Conditions) -> float:
    clock = time.process_time if _counts_cpu_time(conditions) else time.perf_counter
    _wait(conditions)
    start = clock()
    for _ in range(number):
        call()
    _wait(conditions)
    return 1e3 * (clock() - start) / number


def _wait(conditions: Conditions) -> None:
    if conditions.kind == "cuda":
        torch.cuda.synchronize(conditions.device)


def _autocast(conditions: Conditions) -> contextlib.AbstractContextManager[object]:
    if conditions.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(conditions.kind, getattr(torch, conditions.precision))


@contextlib.contextmanager
def _machine_state(conditions: Conditions) -> Iterator[None]:
    """Threads and random numbers of the measurement; both are set back."""
    choose_device(conditions.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(conditions.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        torch.set_num_threads(threads)


def describe_device(conditions: Conditions) -> str:
    """The machine in one line: processor and threads, or the name of the GPU; empty where there is no such device."""
    if conditions.kind == "cuda":
        there = torch.cuda.is_available()
        return f"{torch.cuda.get_device_name(conditions.device)}, torch {torch.__version__}" if there else ""
    threads = torch.get_num_threads()
    torch.set_num_threads(conditions.threads)
    try:
        return describe_machine()
    finally:
        torch.set_num_threads(threads)


def _random(*shape: int, device: str) -> Tensor:
    return torch.rand(shape).to(device)


def _network(setting: Setting, conditions: Conditions) -> EASNet:
    # the published initialisation has offsets that are not zero, as those of a trained network
    return EASNet(setting, initialization="published").eval().to(conditions.device)


class _Given(nn.Module):
    """In place of the features: hands out ready maps."""

    def __init__(self, features: list[Tensor]) -> None:
        super().__init__()
        self.features = features

    def forward(self, image: Tensor) -> list[Tensor]:
        return self.features


class _Unrefined(nn.Module):
    """In place of a refinement step: hands the map on."""

    def forward(self, disparity: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return disparity


def _parts(conditions: Conditions) -> Iterator[tuple[str, Call]]:
    height, width, device = conditions.height, conditions.width, conditions.device
    sizes = [(height, width), *scale_sizes(height, width, STAGES)]
    for index, shape in enumerate(BLOCK_SHAPES):
        if shape.position > 1:
            continue
        maps = _random(2, shape.inputs, *sizes[shape.stage + (shape.position > 0)], device=device)
        for kernel in FULL_SPACE.kernels:
            for ratio in FULL_SPACE.expand_ratios:
                block = Block(shape, kernel, ratio).eval().to(device)
                yield block_key(index, kernel, ratio), partial(block, maps)
    views = [_random(1, 3, height, width, device=device) for _ in range(2)]
    channels = [shape.outputs for shape in BLOCK_SHAPES if shape.position == 0]
    features = [_random(2, c, *size, device=device) for c, size in zip(channels, sizes[1:], strict=True)]
    for scales in FULL_SPACE.scales:
        yield f"aggregation/s{scales}", _middle(scales, features, views, conditions)
    yield REFERENCE, _refine(conditions)


def _refine(conditions: Conditions) -> Call:
    """Both refinement steps."""
    height, width, device = conditions.height, conditions.width, conditions.device
    refinement = _network(sample_setting(0), conditions).refinement
    views = [_random(1, 3, height, width, device=device) for _ in range(2)]
    third = 20 * _random(1, 1, *scale_sizes(height, width, 1)[0], device=device)
    halves = [view[..., : height // 2, : width // 2].contiguous() for view in views]
    return lambda: refinement[1](refinement[0](third, *halves), *views)


def _middle(scales: int, features: list[Tensor], views: list[Tensor], conditions: Conditions) -> Call:
    """A network of so many scales without features and refinement."""
    network = _network(sample_setting(0, SearchSpace(scales=(scales,))), conditions)
    network.feature_extractor = _Given(features[:scales])
    network.refinement = nn.ModuleList([_Unrefined(), _Unrefined()])
    return lambda: network(*views)
