# SPDX-License-Identifier: Apache-2.0
"""A look-up table of what the parts of EASNet cost on a device, so that any sub-network's latency is a sum.

A sub-network costs the sum of its blocks (by stage, position 0 or later, kernel, expand ratio), of everything between
features and refinement (by the number of scales), and of the refinement. Once-for-All (arXiv 1908.09791) predicts
latencies in this way; the parts are those of EASNet (arXiv 2207.09796).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vision3d.errors import FileFormatError, InputError
from vision3d.io.files import atomic_write, read_bytes
from vision3d.models.stereo.easnet.counters import aggregation_macs, block_macs, refinement_macs, scale_sizes
from vision3d.models.stereo.easnet.settings import (
    BLOCK_SHAPES,
    FULL_SPACE,
    STAGE_BLOCKS,
    STAGES,
    SearchSpace,
    Setting,
    parse_setting,
)

FORMAT = "easnet-latency 1"
PRECISIONS = ("float32", "bfloat16", "float16")
LEAST_SIZE = 24
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def block_key(block: int, kernel: int, expand_ratio: int) -> str:
    """The table's key of a block (0 to 15): blocks at position 1, 2 and 3 of a stage are alike."""
    shape = BLOCK_SHAPES[block]
    return f"stage{shape.stage}/{'rest' if shape.position else 'first'}/k{kernel}/e{expand_ratio}"


def setting_keys(setting: Setting) -> list[str]:
    """The keys whose sum is the cost of a setting."""
    blocks = [block_key(b, setting.kernels[b], setting.expand_ratios[b]) for b in setting.active_blocks]
    return [*blocks, f"aggregation/s{setting.scales}", "refinement"]


def all_keys() -> list[str]:
    """All 100 keys: 96 of blocks, 3 of numbers of scales, 1 of the refinement."""
    blocks = [
        block_key(stage * STAGE_BLOCKS + position, kernel, ratio)
        for stage in range(STAGES)
        for position in (0, 1)
        for kernel in FULL_SPACE.kernels
        for ratio in FULL_SPACE.expand_ratios
    ]
    return [*blocks, *(f"aggregation/s{scales}" for scales in FULL_SPACE.scales), "refinement"]


@dataclass(frozen=True)
class Entry:
    """One part: number of timed repeats, mean and variance of their faster half (milliseconds)."""

    count: int
    mean: float
    var: float = 0.0


@dataclass(frozen=True)
class Conditions:
    """What a latency belongs to.

    Attributes:
        device: ``cpu``, ``cuda``, ``cuda:1`` ...
        precision: one of ``PRECISIONS``; other than float32: autocast.
        threads: of torch; only counts on a CPU.
        height, width: image size, pixels, each at least 24.

    Raises:
        InputError: a value that none of these is.
    """

    device: str = "cpu"
    precision: str = "float32"
    threads: int = 1
    height: int = 256
    width: int = 512

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise InputError(f"precision {self.precision!r}: must be one of {', '.join(PRECISIONS)}")
        if not isinstance(self.device, str) or _DEVICE.fullmatch(self.device) is None:
            raise InputError(f"device {self.device!r}: must be cpu, cuda or cuda:N")
        for name, least in (("threads", 1), ("height", LEAST_SIZE), ("width", LEAST_SIZE)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} {value!r}: must be a whole number of at least {least}")

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``."""
        return self.device.partition(":")[0]

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}, " if self.kind == "cpu" else ""
        return f"{self.kind}, {threads}{self.precision}, {self.height}x{self.width}"

    def command(self) -> str:
        """The command line that measures a table for these conditions."""
        threads = f" --threads {self.threads}" if self.kind == "cpu" else ""
        precision = f" --precision {self.precision}" if self.precision != "float32" else ""
        return (
            f"vision3d benchmark easnet --build-table --size {self.height}x{self.width} --device {self.device}"
            f"{threads}{precision} --out FILE"
        )


@dataclass(frozen=True)
class LatencyTable:
    """Costs of the parts, whose sum is the cost of a sub-network.

    Attributes:
        entries: by the keys of :func:`all_keys`.
        conditions: what they were measured for; device, threads and precision mean nothing if ``unit`` is GMAC.
        unit: ``ms``, or ``GMAC`` (10^9 multiply-accumulates, counted).
        machine, protocol: in words.
        path: the file that it was read from, for messages.
    """

    entries: Mapping[str, Entry]
    conditions: Conditions
    unit: str = "ms"
    machine: str = ""
    protocol: str = ""
    path: str = field(default="latency table", compare=False)

    @classmethod
    def of_macs(cls, height: int, width: int) -> LatencyTable:
        """The table of exact multiply-accumulates (in GMAC), which needs no device."""
        sizes = [(height, width), *scale_sizes(height, width, STAGES)]
        entries = {"refinement": Entry(1, refinement_macs(height, width) / 1e9)}
        for scales in FULL_SPACE.scales:
            entries[f"aggregation/s{scales}"] = Entry(1, aggregation_macs(sizes[1 : scales + 1]) / 1e9)
        for block, kernel, ratio in _distinct_blocks():
            shape = BLOCK_SHAPES[block]
            macs = 2 * block_macs(block, kernel, ratio, sizes[shape.stage + (shape.position > 0)])
            entries[block_key(block, kernel, ratio)] = Entry(1, macs / 1e9)
        conditions = Conditions(height=height, width=width)
        return cls(entries, conditions, "GMAC", "any", "counted: convolutions of one pair", "MAC table")

    def predict(self, setting: Setting | Mapping[str, Any]) -> float:
        """The cost of a sub-network for one pair: the sum of the entries of its parts.

        Args:
            setting: what ``parse_setting`` takes.

        Returns:
            Milliseconds, or GMAC for a table of multiply-accumulates.

        Raises:
            ConfigError: an illegal setting.
        """
        checked = setting if isinstance(setting, Setting) else parse_setting(setting)
        return sum(self.entries[key].mean for key in setting_keys(checked))

    def fastest(self, space: SearchSpace = FULL_SPACE) -> Setting:
        """The sub-network of a space with the least cost: found part by part, which is exact for a sum."""
        choices = [(kernel, ratio) for kernel in space.kernels for ratio in space.expand_ratios]
        best = [
            min(choices, key=lambda pair, b=block: self.entries[block_key(b, *pair)].mean)  # type: ignore[misc]
            for block in range(len(BLOCK_SHAPES))
        ]
        kernels, ratios = [pair[0] for pair in best], [pair[1] for pair in best]
        depths = [space.depths[0]] * STAGES
        candidates = [
            parse_setting({"ks": kernels, "e": ratios, "d": depths, "s": scales}, space) for scales in space.scales
        ]
        return min(candidates, key=self.predict)

    def require(self, conditions: Conditions) -> None:
        """Refuse a table that was measured for something else.

        Raises:
            InputError: device, threads, precision or size differ; the message has the command that measures anew.
        """
        if self.unit == "GMAC":
            same = (conditions.height, conditions.width) == (self.conditions.height, self.conditions.width)
        else:
            same = str(conditions) == str(self.conditions)
        if not same:
            raise InputError(
                f"{self.path}: measured for {self.conditions}, but {conditions} is asked for: measure a table with "
                f"'{conditions.command()}'"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as JSON, ``entries`` being ``{key: {count, mean, var}}``.

        Raises:
            OutputError: the file cannot be written.
        """
        content = {
            "format": FORMAT,
            "unit": self.unit,
            "machine": self.machine,
            "protocol": self.protocol,
            **asdict(self.conditions),
            "entries": {key: asdict(entry) for key, entry in self.entries.items()},
        }
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LatencyTable:
        """Read what :meth:`save` wrote.

        Raises:
            FileFormatError: no such file, or it is not a whole table.
        """
        mend = "measure it anew with 'vision3d benchmark easnet --build-table --out FILE'"
        try:
            content = json.loads(read_bytes(path, FileFormatError, "a latency table"))
            if content["format"] != FORMAT or content["unit"] not in ("ms", "GMAC"):
                raise ValueError(f"format {content['format']!r}, unit {content['unit']!r}")
            entries = {key: Entry(**content["entries"][key]) for key in all_keys()}
            wrong = [key for key, entry in entries.items() if not _is_cost(entry.mean)]
            if wrong:
                raise ValueError(f"the mean of {wrong[0]} is not a positive number")
            names = Conditions.__dataclass_fields__
            conditions = Conditions(**{name: content[name] for name in names})
            texts = (str(content["unit"]), str(content["machine"]), str(content["protocol"]))
        except FileFormatError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(f"{path}: not a latency table of EASNet ({error}): {mend}") from error
        return cls(entries, conditions, *texts, path=str(path))


def _is_cost(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _distinct_blocks() -> Iterator[tuple[int, int, int]]:
    for block in range(len(BLOCK_SHAPES)):
        if BLOCK_SHAPES[block].position < 2:
            for kernel in FULL_SPACE.kernels:
                for ratio in FULL_SPACE.expand_ratios:
                    yield block, kernel, ratio
