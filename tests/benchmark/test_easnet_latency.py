# SPDX-License-Identifier: Apache-2.0
"""The latency table of EASNet: sums, files, refusals, and the measurement itself at a small size."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vision3d.benchmark.easnet import Conditions, Entry, LatencyTable, all_keys
from vision3d.benchmark.easnet_timing import TableCheck, build_checked_table, check_table, time_calls
from vision3d.cli.main import main
from vision3d.errors import FileFormatError, InputError
from vision3d.models.stereo.easnet import (
    SearchSpace,
    count_macs,
    largest_setting,
    parse_setting,
    sample_setting,
    smallest_setting,
)


def made_table(seed: int = 0, **conditions: object) -> LatencyTable:
    """A table of random entries."""
    rng = random.Random(seed)
    entries = {key: Entry(3, rng.uniform(1, 9), 0.1) for key in all_keys()}
    return LatencyTable(entries, Conditions(**conditions), machine="made")  # type: ignore[arg-type]


def test_there_are_a_hundred_keys() -> None:
    keys = all_keys()
    assert len(keys) == len(set(keys)) == 4 * 2 * 12 + 3 + 1
    assert "stage3/rest/k5/e6" in keys


def test_a_prediction_is_the_sum_of_the_entries() -> None:
    table = made_table()
    setting = {"ks": [3, 5, 7, 3] * 4, "e": [2, 4, 6, 8] * 4, "d": [2, 3, 4, 2], "s": 3}
    parts = ["stage0/first/k3/e2", "stage0/rest/k5/e4", "stage1/first/k3/e2", "stage1/rest/k5/e4"]
    parts += ["stage1/rest/k7/e6", "stage2/first/k3/e2", "stage2/rest/k5/e4", "stage2/rest/k7/e6"]
    parts += ["stage2/rest/k3/e8", "aggregation/s3", "refinement"]
    assert table.predict(setting) == pytest.approx(sum(table.entries[key].mean for key in parts))


def test_the_mac_table_gives_the_exact_counts() -> None:
    table = LatencyTable.of_macs(50, 77)
    for seed in range(5):
        setting = sample_setting(seed)
        assert table.predict(setting) == pytest.approx(count_macs(setting, 50, 77).total / 1e9, rel=1e-12)
    assert table.fastest() == smallest_setting()


@pytest.mark.parametrize("seed", range(3))
def test_no_sampled_setting_is_faster_than_the_fastest(seed: int) -> None:
    table, rng = made_table(seed), random.Random(seed)
    least = table.predict(table.fastest())
    assert least < min(table.predict(sample_setting(rng)) for _ in range(300))
    space = SearchSpace(kernels=(5,), depths=(3,), scales=(3, 4))
    fastest = table.fastest(space)
    assert parse_setting(fastest, space) == fastest
    assert table.predict(fastest) < min(table.predict(sample_setting(rng, space)) for _ in range(300))


def test_saved_tables_come_back_whole(tmp_path: Path) -> None:
    table = made_table(device="cuda:1", precision="bfloat16", height=384, width=1280)
    table.save(tmp_path / "table.json")
    content = json.loads((tmp_path / "table.json").read_text())
    assert set(content["entries"]["refinement"]) == {"count", "mean", "var"}
    assert content["machine"] == "made"
    assert LatencyTable.load(tmp_path / "table.json") == table


@pytest.mark.parametrize(
    "damage", ["truncated", "no key", "not a number", "zero", "true", "device", "height", "other format", "absent"]
)
def test_damaged_tables_are_one_line(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    made_table().save(path)
    content = json.loads(path.read_text())
    if damage == "no key":
        del content["entries"]["aggregation/s2"]
    elif damage == "not a number":
        content["entries"]["refinement"]["mean"] = float("nan")
    elif damage in ("zero", "true"):
        content["entries"]["refinement"]["mean"] = {"zero": 0, "true": True}[damage]
    elif damage in ("device", "height"):
        content[damage] = 256.5
    elif damage == "other format":
        content["format"] = "else"
    path.write_text(json.dumps(content)[: 100 if damage == "truncated" else None])
    if damage == "absent":
        path.unlink()
    with pytest.raises(FileFormatError, match=r"table\.json"):
        LatencyTable.load(path)


@pytest.mark.parametrize(
    ("change", "command"),
    [
        ({"height": 384}, "--size 384x512 --device cpu --threads 1 --out"),
        ({"threads": 2}, "--size 256x512 --device cpu --threads 2 --out"),
        ({"device": "cuda"}, "--size 256x512 --device cuda --out"),
        ({"precision": "bfloat16"}, "--threads 1 --precision bfloat16 --out"),
    ],
)
def test_a_table_for_something_else_is_refused_with_the_command(change: dict, command: str) -> None:
    table = made_table()
    table.require(Conditions())
    with pytest.raises(InputError, match="measured for cpu, 1 thread, float32, 256x512, but") as error:
        table.require(Conditions(**change))
    assert command in str(error.value)


def test_the_faster_half_of_the_repeats_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(
        value
        for number, length in enumerate([9.0, 9.0, 1.0, 5.0, 3.0, 99.0])
        for value in (1000 * number, 1000 * number + length)
    )
    monkeypatch.setattr("vision3d.benchmark.easnet_timing.time.process_time", lambda: next(clock))
    entry = time_calls({"part": lambda: None}, Conditions(), repeats=4)["part"]
    assert entry == Entry(4, 2000.0, 1e6)


def test_figures_of_a_check() -> None:
    settings = [smallest_setting(), largest_setting()]
    check = TableCheck(settings, predicted=[11.0, 19.0], measured=[10.0, 20.0], drift=2.0)
    assert check.corrected_error == pytest.approx((1.2 + 0.9) / 2)
    assert check.errors.tolist() == pytest.approx([0.1, 0.05])
    assert check.median_error == pytest.approx(0.075)
    assert check.bias == pytest.approx(0.025)
    assert check.r2 == pytest.approx(1 - 2 / 50)


def test_a_measured_table_predicts_whole_networks() -> None:
    conditions = Conditions(height=48, width=96)
    table, check = build_checked_table(conditions, 3, repeats=2)
    assert set(table.entries) == set(all_keys())
    assert "1 thread" in table.machine
    assert "CPU time" in table.protocol
    assert check.predicted == [table.predict(setting) for setting in check.settings]
    assert 0.5 < 1 + check.bias < 2  # a loaded machine is no place for less
    slower = LatencyTable({key: Entry(2, entry.mean / 4) for key, entry in table.entries.items()}, conditions)
    with pytest.raises(InputError, match="measured on ''"):
        check_table(slower, 1)
    late = check_table(replace(slower, machine=table.machine), 2, repeats=2)
    assert 2 < late.drift < 8
    assert late.corrected_error < late.median_error
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--build-table"),
        (["--build-table"], "--out FILE"),
        (["--build-table", "--out", "t.json", "--device", "cuda:77"], "device 'cuda:77'"),
        (["--build-table", "--out", "t.json", "--size", "16x16"], "height 16: must be a whole number of at least 24"),
        (["--build-table", "--out", "t.json", "--device", "mps"], "device 'mps': must be cpu, cuda or cuda:N"),
        (["--build-table", "--out", "{table}/absent/t.json"], "cannot be written"),
        (["--table", "{table}", "--out", "t.json"], "--out FILE, or --table FILE"),
        (["--table", "{table}", "--check", "-3"], "--check: must be at least 1"),
        (["--table", "{table}", "--size", "48x96", "--check", "2"], "is asked for"),
        (["--table", "{table}", "--check", "2"], "measured on 'made', this is"),
    ],
)
def test_wrong_command_lines_are_one_line(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_table().save(tmp_path / "table.json")
    assert main(["benchmark", "easnet", *(flag.format(table=tmp_path / "table.json") for flag in flags)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_a_table_is_summarised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = made_table()
    table.save(tmp_path / "table.json")
    assert main(["benchmark", "easnet", "--table", str(tmp_path / "table.json"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["table"]["fastest"]["cost"] == pytest.approx(table.predict(table.fastest()))
    assert report["check"] is None
