# SPDX-License-Identifier: Apache-2.0
"""The search space of EASNet (arXiv 2207.09796): settings of sub-networks, their validation, number and sampling.

A setting is written ``{"ks": 7, "e": 8, "d": 4, "s": 4}``, as in the authors' code: kernel size and expand ratio of
each of 16 blocks (4 stages of 4), depth of each stage, number of scales. One number stands for a whole list.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vision3d.errors import ConfigError, check_option_names

STAGES = 4
STAGE_BLOCKS = 4
BLOCKS = STAGES * STAGE_BLOCKS
STAGE_CHANNELS = (24, 32, 64, 128)
STAGE_STRIDES = (3, 2, 2, 2)
STAGE_SQUEEZE = (False, True, False, True)

_KERNELS = (3, 5, 7)
_EXPAND_RATIOS = (2, 4, 6, 8)
_DEPTHS = (2, 3, 4)
_SCALES = (2, 3, 4)
_FIELDS = {"ks": "kernels", "e": "expand_ratios", "d": "depths", "s": "scales"}


def make_divisible(value: float, divisor: int = 8) -> int:
    """Round a channel count to a multiple of ``divisor`` without losing more than a tenth of it."""
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


@dataclass(frozen=True)
class BlockShape:
    """The fixed part of one block: its stage, position in it, channels in and out, stride, squeeze-and-excitation."""

    stage: int
    position: int
    inputs: int
    outputs: int
    stride: int
    squeeze: bool

    def middle(self, expand_ratio: int) -> int:
        """Middle channels of the inverted bottleneck."""
        return make_divisible(round(self.inputs * expand_ratio))

    def hidden(self, expand_ratio: int) -> int:
        """Hidden channels of the squeeze-and-excitation."""
        return make_divisible(self.middle(expand_ratio) // 4)


def _block_shape(stage: int, position: int) -> BlockShape:
    before = 3 if stage == 0 else STAGE_CHANNELS[stage - 1]
    inputs = STAGE_CHANNELS[stage] if position else before
    stride = 1 if position else STAGE_STRIDES[stage]
    return BlockShape(stage, position, inputs, STAGE_CHANNELS[stage], stride, STAGE_SQUEEZE[stage])


BLOCK_SHAPES = tuple(_block_shape(b // STAGE_BLOCKS, b % STAGE_BLOCKS) for b in range(BLOCKS))


@dataclass(frozen=True)
class SearchSpace:
    """The legal values of each dimension; a part of 3/5/7, 2/4/6/8, 2/3/4 and 2/3/4.

    Attributes:
        kernels: depthwise kernel sizes, chosen for each block.
        expand_ratios: widths of the blocks' middle, as multiples of the input channels, chosen for each block.
        depths: numbers of active blocks of a stage, chosen for each stage.
        scales: numbers of pyramid levels, chosen for the whole network.

    Raises:
        ConfigError: a dimension without values, or a value that the network cannot have.
    """

    kernels: tuple[int, ...] = _KERNELS
    expand_ratios: tuple[int, ...] = _EXPAND_RATIOS
    depths: tuple[int, ...] = _DEPTHS
    scales: tuple[int, ...] = _SCALES

    def __post_init__(self) -> None:
        widest = {"kernels": _KERNELS, "expand_ratios": _EXPAND_RATIOS, "depths": _DEPTHS, "scales": _SCALES}
        for name, legal in widest.items():
            given = getattr(self, name)
            values = tuple(given) if isinstance(given, Iterable) else (given,)
            if not values or any(value not in legal for value in values):
                raise ConfigError(f"search space: {name} must be one or more of {_listed(legal)}, got {given!r}")
            object.__setattr__(self, name, tuple(sorted({int(value) for value in values})))

    def count(self, *, functional: bool = False) -> int:
        """Number of distinct sub-networks: 261,256,911,359,830,272 for the whole space.

        Args:
            functional: count settings that make the same network once (6 and 8 give block 0 one width).
        """
        first = len({BLOCK_SHAPES[0].middle(ratio) for ratio in self.expand_ratios})
        choices = len(self.kernels) * len(self.expand_ratios)

        def variants(stage: int) -> int:
            head = len(self.kernels) * first if functional and stage == 0 else choices
            return sum(head * choices ** (depth - 1) for depth in self.depths)

        total = 0
        for scales in self.scales:
            product = 1
            for stage in range(scales):
                product *= variants(stage)
            total += product
        return total


FULL_SPACE = SearchSpace()

# The tasks of progressive shrinking, in their order; every new value of a dimension is opened at once.
PHASES: dict[str, SearchSpace] = {
    "large": SearchSpace((7,), (8,), (4,), (4,)),
    "kernel": SearchSpace(_KERNELS, (8,), (4,), (4,)),
    "depth": SearchSpace(_KERNELS, (8,), _DEPTHS, (4,)),
    "expand": SearchSpace(_KERNELS, _EXPAND_RATIOS, _DEPTHS, (4,)),
    "scale": FULL_SPACE,
}


@dataclass(frozen=True)
class Setting:
    """One sub-network. Entries of inactive blocks and stages are set to the smallest value, so that equal
    sub-networks are equal settings. Make it with :func:`parse_setting`, which checks the values.

    Attributes:
        kernels, expand_ratios: one a block (16).
        depths: active blocks of each stage (4).
        scales: active stages.
    """

    kernels: tuple[int, ...]
    expand_ratios: tuple[int, ...]
    depths: tuple[int, ...]
    scales: int

    @property
    def stage_lengths(self) -> tuple[int, ...]:
        """Number of blocks of each active stage."""
        return self.depths[: self.scales]

    @property
    def active_blocks(self) -> tuple[int, ...]:
        """Numbers (0 to 15) of the active blocks, in their order."""
        return _active_blocks(self.depths, self.scales)

    def as_dict(self) -> dict[str, Any]:
        """``{"ks": [...], "e": [...], "d": [...], "s": ...}``, as :func:`parse_setting` takes it; fit for JSON."""
        return {"ks": list(self.kernels), "e": list(self.expand_ratios), "d": list(self.depths), "s": self.scales}

    def __str__(self) -> str:
        """The short form: one number where all active entries are equal."""
        active = self.active_blocks
        parts = {
            "ks": _shortened(self.kernels, active),
            "e": _shortened(self.expand_ratios, active),
            "d": _shortened(self.depths, range(self.scales)),
            "s": self.scales,
        }
        return str(parts)


def _shortened(values: Sequence[int], active: Iterable[int]) -> int | list[int]:
    different = {values[index] for index in active}
    return different.pop() if len(different) == 1 else list(values)


def _active_blocks(depths: Sequence[int], scales: int) -> tuple[int, ...]:
    return tuple(stage * STAGE_BLOCKS + i for stage in range(scales) for i in range(depths[stage]))


def parse_setting(setting: Setting | Mapping[str, Any], space: SearchSpace = FULL_SPACE) -> Setting:
    """Check a setting against a search space.

    Args:
        setting: a :class:`Setting`, or a mapping with ``ks`` and ``e`` (a number or a list of 16), ``d`` (a number or
            a list of 4) and ``s`` (a number). Entries of inactive blocks and stages are ignored.
        space: the legal values.

    Raises:
        ConfigError: a field that is missing, unknown, of the wrong length or outside the space; the message names
            the field and its legal values.
    """
    if isinstance(setting, Setting):
        setting = setting.as_dict()
    if not isinstance(setting, Mapping):
        raise ConfigError(f"setting: a mapping with ks, e, d and s is needed, got {type(setting).__name__}")
    check_option_names("setting", _FIELDS, (str(name) for name in setting))
    for name, attribute in _FIELDS.items():
        if name not in setting:
            raise ConfigError(f"setting: '{name}' is missing: give one of {_listed(getattr(space, attribute))}")
    scales = _whole_number(setting["s"])
    if scales not in space.scales:
        raise ConfigError(f"setting: s must be one of {_listed(space.scales)}, got {setting['s']!r}")
    depths = _check_values("d", setting["d"], STAGES, range(scales), space.depths)
    active = _active_blocks(depths, scales)
    kernels = _check_values("ks", setting["ks"], BLOCKS, active, space.kernels)
    return Setting(kernels, _check_values("e", setting["e"], BLOCKS, active, space.expand_ratios), depths, scales)


def _whole_number(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _check_values(
    field: str, given: Any, length: int, active: Iterable[int], legal: tuple[int, ...]
) -> tuple[int, ...]:
    values = [given] * length if isinstance(given, str) or not _has_length(given) else list(given)
    if len(values) != length:
        raise ConfigError(
            f"setting: {field} must be one number or a list of {length} (each one of {_listed(legal)}), "
            f"got a list of {len(values)}"
        )
    numbers, checked = [_whole_number(value) for value in values], [legal[0]] * length
    for index in active:
        number = numbers[index]
        if number is None or number not in legal:
            place = field if numbers.count(number) == length else f"{field}[{index}]"
            raise ConfigError(f"setting: {place} must be one of {_listed(legal)}, got {values[index]!r}")
        checked[index] = number
    return tuple(checked)


def _has_length(value: object) -> bool:
    try:
        return len(value) >= 0  # type: ignore[arg-type]
    except TypeError:  # a number, an array without axes
        return False


def _listed(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in values)


def largest_setting(space: SearchSpace = FULL_SPACE) -> Setting:
    """The sub-network with the largest value of every dimension."""
    return parse_setting(
        {"ks": space.kernels[-1], "e": space.expand_ratios[-1], "d": space.depths[-1], "s": space.scales[-1]}, space
    )


def smallest_setting(space: SearchSpace = FULL_SPACE) -> Setting:
    """The sub-network with the smallest value of every dimension."""
    return parse_setting(
        {"ks": space.kernels[0], "e": space.expand_ratios[0], "d": space.depths[0], "s": space.scales[0]}, space
    )


def published_seed(step: int, index: int = 0) -> int:
    """The seed of the ``index``-th sub-network of a global training step: the digits of the step, of the index (3)
    and of a 0 (3), so that all processes draw the same one."""
    return int(f"{step}{index:03d}{0:03d}")


def sample_setting(seed: int | random.Random, space: SearchSpace = FULL_SPACE) -> Setting:
    """Draw a sub-network: every kernel, then every expand ratio, then every depth, then the scale, all uniform.

    Args:
        seed: a number (see :func:`published_seed`), or a generator to go on with.
        space: the legal values.
    """
    rng = seed if isinstance(seed, random.Random) else random.Random(seed)
    return parse_setting(
        {
            "ks": [rng.choice(space.kernels) for _ in range(BLOCKS)],
            "e": [rng.choice(space.expand_ratios) for _ in range(BLOCKS)],
            "d": [rng.choice(space.depths) for _ in range(STAGES)],
            "s": rng.choice(space.scales),
        },
        space,
    )


# The registered sizes. One table, so that searched settings can take their place.
NAMED_SETTINGS: dict[str, Setting] = {
    "easnet_s": parse_setting({"ks": 3, "e": 2, "d": 2, "s": 2}),
    "easnet_m": parse_setting({"ks": 5, "e": 4, "d": 3, "s": 3}),
    "easnet_l": parse_setting({"ks": 7, "e": 8, "d": 4, "s": 4}),
}
