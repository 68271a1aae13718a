# SPDX-License-Identifier: Apache-2.0
"""EASNet: search space, settings, sampling and counters."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
import torch
from torch import nn

from vision3d.errors import ConfigError
from vision3d.models.stereo.easnet import (
    FULL_SPACE,
    NAMED_SETTINGS,
    PHASES,
    EASNet,
    SearchSpace,
    aggregation_macs,
    block_macs,
    count_macs,
    count_parameters,
    largest_setting,
    parse_setting,
    published_mac_count,
    published_seed,
    refinement_macs,
    sample_setting,
    scale_sizes,
    setting_parameters,
    smallest_setting,
)

LARGEST = {"ks": 7, "e": 8, "d": 4, "s": 4}
LOGGED = {"ks": 7, "e": 8, "d": 2, "s": 4}  # the one of the authors' log
SMALLEST = {"ks": 3, "e": 2, "d": 2, "s": 2}


def test_the_number_of_sub_networks() -> None:
    assert FULL_SPACE.count() == 261_256_911_359_830_272
    assert FULL_SPACE.count(functional=True) == 195_942_683_519_872_704
    assert PHASES["large"].count() == 1


def test_the_number_of_a_small_space_equals_its_listing() -> None:
    space = SearchSpace(kernels=(3,), expand_ratios=(6, 8), depths=(2,), scales=(2,))
    settings = {
        parse_setting({"ks": 3, "e": [*e[:2], 6, 6, *e[2:], *[6] * 10], "d": 2, "s": 2}, space)
        for e in itertools.product((6, 8), repeat=4)
    }
    assert space.count() == len(settings) == 16
    assert space.count(functional=True) == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ks": 4}, "ks must be one of 3, 5, 7, got 4"),
        ({"ks": [3] * 15}, r"ks must be one number or a list of 16 \(each one of 3, 5, 7\), got a list of 15"),
        ({"e": [2] * 9 + [3] + [2] * 6}, r"e\[9\] must be one of 2, 4, 6, 8, got 3"),
        ({"e": 2.0}, "e must be one of 2, 4, 6, 8, got 2.0"),
        ({"d": [2, 3]}, r"d must be one number or a list of 4 \(each one of 2, 3, 4\), got a list of 2"),
        ({"d": [2, 3, 4, 1]}, r"d\[3\] must be one of 2, 3, 4, got 1"),
        ({"s": 5}, "s must be one of 2, 3, 4, got 5"),
        ({"s": True}, "s must be one of 2, 3, 4, got True"),
        ({"s": [4]}, "s must be one of 2, 3, 4, got"),
        ({"ks": "7"}, "ks must be one of 3, 5, 7, got '7'"),
        ({"depth": 3}, "unknown option 'depth'"),
        ({"ks": np.array(4)}, "ks must be one of 3, 5, 7, got array"),
        ({"e": np.full((16, 2), 8)}, "e must be one of 2, 4, 6, 8, got array"),
        ({"ks": [7] * 5 + [None] + [7] * 10}, r"ks\[5\] must be one of 3, 5, 7, got None"),
    ],
)
def test_illegal_settings_are_refused_by_field(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_setting({**LARGEST, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["ks", "e", "d", "s"])
def test_every_field_is_needed(field: str) -> None:
    with pytest.raises(ConfigError, match=f"'{field}' is missing: give one of"):
        parse_setting({name: value for name, value in LARGEST.items() if name != field})


def test_a_setting_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match="mapping with ks, e, d and s"):
        parse_setting(7)  # type: ignore[arg-type]


def test_inactive_entries_are_ignored() -> None:
    longer = {"ks": [3, 3, None, None] * 4, "e": [2, 2, 99, 99] * 4, "d": [2, 2, 0, None], "s": 2}
    assert parse_setting(longer) == parse_setting(SMALLEST)
    with pytest.raises(ConfigError, match=r"ks\[2\] must be one of"):
        parse_setting({**longer, "d": [3, 2, 2, 2]})


@pytest.mark.parametrize("setting", [LARGEST, LOGGED, SMALLEST])
def test_settings_survive_json_and_their_short_form(setting: dict) -> None:
    parsed = parse_setting(setting)
    assert parse_setting(json.loads(json.dumps(parsed.as_dict()))) == parsed
    assert str(parsed) == str(setting)
    rest = {name: setting[name] for name in "eds"}
    for kernels in (np.int64(setting["ks"]), torch.tensor(setting["ks"]), np.full(16, setting["ks"])):
        assert parse_setting({"ks": kernels, **rest}) == parsed


def test_active_blocks() -> None:
    parsed = parse_setting({"ks": 3, "e": 2, "d": [3, 2, 4, 2], "s": 3})
    assert parsed.stage_lengths == (3, 2, 4)
    assert parsed.active_blocks == (0, 1, 2, 4, 5, 8, 9, 10, 11)
    assert (largest_setting(), smallest_setting()) == (parse_setting(LARGEST), parse_setting(SMALLEST))


@pytest.mark.parametrize("change", [{"kernels": (9,)}, {"scales": (1, 2)}, {"depths": ()}, {"expand_ratios": 3}])
def test_illegal_spaces_are_refused(change: dict) -> None:
    (name,) = change
    with pytest.raises(ConfigError, match=f"{name} must be one or more of"):
        SearchSpace(**change)


def test_the_phases_open_one_dimension_each() -> None:
    opened = [
        [name for name in ("kernels", "expand_ratios", "depths", "scales") if len(getattr(space, name)) > 1]
        for space in PHASES.values()
    ]
    assert [len(names) for names in opened] == [0, 1, 2, 3, 4]
    assert PHASES["scale"] == FULL_SPACE


def test_sampling_follows_the_published_seeds_and_order() -> None:
    assert published_seed(17, 3) == 17003000
    setting = sample_setting(published_seed(17, 3))
    random.seed(17003000)
    kernels = [random.choice([3, 5, 7]) for _ in range(16)]
    ratios = [random.choice([2, 4, 6, 8]) for _ in range(16)]
    depths = [random.choice([2, 3, 4]) for _ in range(4)]
    scales = random.choice([2, 3, 4])
    assert setting == parse_setting({"ks": kernels, "e": ratios, "d": depths, "s": scales})


def test_sampling_is_uniform() -> None:
    generator = random.Random(0)
    settings = [sample_setting(generator) for _ in range(900)]
    for values in ((s.scales for s in settings), (s.depths[0] for s in settings), (s.kernels[0] for s in settings)):
        counts = np.unique(list(values), return_counts=True)[1]
        assert len(counts) == 3
        assert counts.min() > 230


def test_the_authors_counter_is_reproduced() -> None:
    assert published_mac_count(LOGGED, 384, 1280) == 93_254_606_848
    assert published_mac_count(LOGGED, 540, 960) == 98_311_086_080


@pytest.mark.parametrize(
    ("setting", "size", "giga"),
    [
        (LARGEST, (540, 960), (14.72, 29.45, 72.50)),
        (LOGGED, (540, 960), (6.31, 29.45, 72.50)),
        (SMALLEST, (540, 960), (0.69, 21.59, 72.50)),
        (SMALLEST, (96, 192), (0.0247, 0.7676, 2.5779)),
        ({**SMALLEST, "s": 3}, (96, 192), (0.0325, 0.8963, 2.5779)),
        ({**SMALLEST, "s": 4}, (96, 192), (0.0401, 1.0470, 2.5779)),
    ],
)
def test_multiply_accumulates(setting: dict, size: tuple[int, int], giga: tuple[float, float, float]) -> None:
    count = count_macs(setting, *size)
    assert (count.features / 1e9, count.aggregation / 1e9, count.refinement / 1e9) == pytest.approx(giga, abs=6e-3)
    assert count.total == count.features + aggregation_macs(scale_sizes(*size, setting["s"])) + refinement_macs(*size)


def test_counts_equal_those_of_the_running_network() -> None:
    torch.manual_seed(0)
    setting = sample_setting(3, SearchSpace(scales=(3,)))
    network = EASNet(setting).eval()
    counted: dict[str, int] = {}

    def hook(module: nn.Conv2d, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        counted["plain"] = counted.get("plain", 0) + output.numel() * module.weight[0].numel()

    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(hook)
    with torch.no_grad():
        network(torch.zeros(1, 3, 50, 77), torch.zeros(1, 3, 50, 77))
    areas = [height * width for height, width in scale_sizes(50, 77, 3)]
    deformable = 3 * sum(area * 9 * bins * bins for area, bins in zip(areas, (64, 32, 16), strict=True))
    assert count_macs(setting, 50, 77).total == counted["plain"] + deformable


def test_blocks_add_up_to_the_features() -> None:
    sizes = [(50, 77), *scale_sizes(50, 77, 4)]
    total = sum(block_macs(b, 7, 8, sizes[b // 4 + (b % 4 > 0)]) for b in range(16))
    assert count_macs(LARGEST, 50, 77).features == 2 * total


@pytest.mark.parametrize(
    ("setting", "parameters"),
    [
        (LARGEST, 5_067_210),
        (LOGGED, 3_032_042),
        (SMALLEST, 782_158),
        ({**SMALLEST, "s": 3}, 1_152_384),
        ({**SMALLEST, "s": 4}, 1_854_922),
        (NAMED_SETTINGS["easnet_m"], 1_277_848),
    ],
)
def test_parameters(setting: dict, parameters: int) -> None:
    with torch.device("meta"):
        assert count_parameters(EASNet(setting)) == parameters
    assert setting_parameters(setting) == parameters


@pytest.mark.parametrize("seed", range(5))
def test_parameters_without_the_network(seed: int) -> None:
    setting = sample_setting(seed)
    with torch.device("meta"):
        assert setting_parameters(setting) == count_parameters(EASNet(setting))
