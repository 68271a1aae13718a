# SPDX-License-Identifier: Apache-2.0
"""The search from a supernet's file to a network's files, with an untrained supernet and tiny images."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vision3d.benchmark.easnet import Conditions, Entry, LatencyTable, all_keys
from vision3d.cli.main import main
from vision3d.datasets.cache import write_pool
from vision3d.datasets.synthetic.scene import make_scene
from vision3d.errors import FileFormatError, InputError, WeightsError
from vision3d.models.stereo.easnet import (
    NAMED_SETTINGS,
    EASNet,
    EASNetSupernet,
    Setting,
    parse_setting,
    smallest_setting,
)
from vision3d.search.easnet import search_easnet
from vision3d.search.evolution import EvolutionOptions
from vision3d.search.measurements import AccuracyMeter, Measurements, open_pairs, read_batches
from vision3d.search.session import SearchOptions, Session
from vision3d.search.study import study_indicators
from vision3d.zoo import create_model

SIZE = (48, 96)
CONDITIONS = Conditions(height=48, width=96)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A supernet's file, a pool of five pairs, and a table of made-up latencies."""
    folder = tmp_path_factory.mktemp("search")
    torch.manual_seed(0)
    save_file(EASNetSupernet().state_dict(), folder / "supernet.safetensors")
    write_pool(folder / "pool", [make_scene(seed, *SIZE) for seed in range(5)])
    rng = random.Random(0)
    entries = {key: Entry(2, rng.uniform(1, 3)) for key in all_keys()}
    LatencyTable(entries, CONDITIONS, machine="made").save(folder / "table.json")
    return folder


def options(folder: Path, out: Path, **changes: object) -> SearchOptions:
    standard: dict = {
        "weights": str(folder / "supernet.safetensors"),
        "data": str(folder / "pool"),
        "out": out,
        "conditions": CONDITIONS,
        "table": folder / "table.json",
        "pairs": 2,
        "calibration_pairs": 2,
        "calibration_batch": 2,
        "warp_mode": "exact",
        "samples": 6,
        "finalists": 2,
        "evolution": EvolutionOptions(10, 4),
        "i1_steps": 1,
    }
    return SearchOptions(**{**standard, **changes})


def test_a_search_writes_a_network_that_loads_and_goes_on(folder: Path, tmp_path: Path) -> None:
    limit = 25.0
    result = search_easnet(options(folder, tmp_path, latency_ms=limit))
    written = json.loads((tmp_path / "setting.json").read_text())
    assert written["setting"] == result["setting"]
    assert result["predicted"] <= limit
    assert result["measured"] is None  # the table is of another machine
    rows = json.loads((tmp_path / "measurements.json").read_text())["rows"]
    table = LatencyTable.load(folder / "table.json")
    fitting = [row for row in rows if table.predict(row["setting"]) <= limit]
    assert result["figures"]["epe"] == min(row["epe"] for row in fitting)
    names = {str(parse_setting(setting)) for setting in NAMED_SETTINGS.values()}
    assert names <= {str(parse_setting(row["setting"])) for row in rows}

    explicit = create_model("easnet", tmp_path / "easnet.safetensors", setting=result["setting"])
    found = create_model("easnet", tmp_path / "easnet.safetensors")
    assert isinstance(found, EASNet)
    assert found.warp_mode == "exact"
    assert str(found.setting.depths) == str(parse_setting(result["setting"]).depths)
    batch = read_batches(open_pairs(str(folder / "pool")), range(2))
    views = batch[0].left, batch[0].right
    with torch.no_grad():
        assert torch.equal(found(*views).disparity, explicit(*views).disparity)
        errors = [
            (found(b.left, b.right).disparity - b.disparity)[b.disparity < 192].abs().mean().item() for b in batch
        ]
    assert np.mean(errors) == pytest.approx(result["figures"]["epe"], rel=1e-3)

    with (tmp_path / "pareto.csv").open() as file:
        points = list(csv.DictReader(file))
    assert len(points) == len(rows)
    assert sum(int(point["chosen"]) for point in points) == 1
    assert (tmp_path / "pareto.png").stat().st_size > 1000

    session = Session(options(folder, tmp_path, latency_ms=limit))
    session.meter.measure = None  # type: ignore[assignment,method-assign]  # nothing is measured again
    before = (tmp_path / "measurements.json").read_bytes()
    session.measure(session.sample_feasible(6, 0))
    assert (tmp_path / "measurements.json").read_bytes() == before
    with pytest.raises(InputError, match="measured with another pairs"):
        Session(options(folder, tmp_path, latency_ms=limit, pairs=1))


def test_measurements_survive_an_interruption(folder: Path, tmp_path: Path) -> None:
    session = Session(options(folder, tmp_path, gmac=1e3, table=None))
    settings = session.sample_feasible(3, 1)
    real, calls = session.meter.measure, []

    def stops(setting: object) -> dict[str, float]:
        calls.append(setting)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(settings[0])

    session.meter.measure = stops  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        session.measure(settings)
    again = Measurements.open(tmp_path / "measurements.json", session.measurements.conditions)
    assert list(again.rows) == settings[:1]
    assert again.rows[settings[0]]["epe"] == session.measurements.rows[settings[0]]["epe"]
    (tmp_path / "measurements.json").write_text('{"format": "else"}')
    with pytest.raises(FileFormatError, match="remove the file"):
        Measurements.open(tmp_path / "measurements.json", {})


def test_an_unreachable_latency_tells_the_fastest(folder: Path, tmp_path: Path) -> None:
    table = LatencyTable.load(folder / "table.json")
    least = table.predict(table.fastest())
    with pytest.raises(InputError, match=rf"at most 1 ms .*the fastest takes {least:.4g} ms"):
        Session(options(folder, tmp_path, latency_ms=1.0))
    with pytest.raises(InputError, match="needs a limit"):
        search_easnet(options(folder, tmp_path))
    macs = LatencyTable.of_macs(*SIZE)
    with pytest.raises(InputError, match=f"{macs.predict(smallest_setting()):.4g} GMAC"):
        Session(options(folder, tmp_path, gmac=0.1, table=None))


def test_a_table_of_another_size_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"table\.json: measured for .*48x96.*--size 96x192"):
        Session(options(folder, tmp_path, latency_ms=99.0, conditions=Conditions(height=96, width=192)))


def test_too_few_pairs_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="5 pairs, 4 to validate and 2 to calibrate"):
        Session(options(folder, tmp_path, latency_ms=99.0, pairs=4))
    write_pool(folder / "single", [make_scene(9, *SIZE)])
    single = str(folder / "single")
    with pytest.raises(InputError, match="single: 1 pairs, 2 to calibrate are asked for"):
        Session(options(folder, tmp_path, latency_ms=99.0, calibration_data=single))
    with pytest.raises(InputError, match="single: 1 pairs, 2 to validate are asked for"):
        Session(options(folder, tmp_path, latency_ms=99.0, data=single, calibration_data=str(folder / "pool")))
    Session(options(folder, tmp_path, latency_ms=99.0, pairs=4, calibration_data=str(folder / "pool")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latency_ms": 9.0, "gmac": 3.0}, "in ms and in GMAC"),
        ({"gmac": 3.0}, r"table\.json: a latency table says nothing of a limit in GMAC"),
        ({"latency_ms": float("nan")}, "limit nan: must be a finite number"),
        ({"latency_ms": float("inf")}, "limit inf: must be a finite number"),
        ({"rank": "luck"}, "rank 'luck': must be one of predictor, measured, i0, i1, i2"),
        ({"samples": 4}, r"samples 4: must be at least 5 \(--samples\)"),
        ({"rank": "i1", "i1_steps": 0}, r"i1_steps 0: must be at least 1 \(--i1-steps\)"),
        ({"calibration_pairs": 0}, "calibration_pairs 0: must be at least 1"),
    ],
)
def test_options_that_no_search_can_go_by(folder: Path, tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        options(folder, tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"weights": "absent.safetensors"}, WeightsError, "absent.safetensors: no such weights file"),
        ({"data": "absent/pool"}, FileFormatError, "absent/pool: no such folder"),
        ({"eval_device": "cuda:77"}, InputError, "device 'cuda:77'"),
        ({"eval_device": "abacus"}, InputError, "unknown device 'abacus'"),
        ({"latency_ms": -1.0}, InputError, "limit -1 ms: no network takes that little"),
    ],
)
def test_nothing_is_timed_before_everything_fits(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict,
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.delattr("vision3d.search.session.build_table")
    with pytest.raises(error, match=message):
        Session(options(folder, tmp_path, **{"latency_ms": 99.0, "table": None, **changes}))


def test_a_table_of_another_machine_is_told_and_one_of_macs_refused(folder: Path, tmp_path: Path) -> None:
    told: list[str] = []
    Session(options(folder, tmp_path, latency_ms=99.0), told.append)
    assert any("of another machine (made)" in line for line in told)
    LatencyTable.of_macs(*SIZE).save(tmp_path / "macs.json")
    with pytest.raises(InputError, match=r"macs\.json: holds GMAC"):
        Session(options(folder, tmp_path, latency_ms=99.0, table=tmp_path / "macs.json"))


def test_the_least_latency_leaves_one_network(folder: Path, tmp_path: Path) -> None:
    table = LatencyTable.load(folder / "table.json")
    result = search_easnet(options(folder, tmp_path, latency_ms=table.predict(table.fastest())))
    assert parse_setting(result["setting"]) == table.fastest()
    assert result["predicted_epe"] is None


def test_a_network_without_a_finite_error_is_null_in_the_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = AccuracyMeter.measure

    def measure(meter: AccuracyMeter, setting: Setting) -> dict[str, float]:
        figures = real(meter, setting)
        return {**figures, "epe": float("nan")} if setting == NAMED_SETTINGS["easnet_l"] else figures

    monkeypatch.setattr(AccuracyMeter, "measure", measure)
    search_easnet(options(folder, tmp_path, gmac=99.0, table=None, rank="measured", evolution=EvolutionOptions(3, 1)))

    def refuse(text: str) -> None:
        raise AssertionError(text)

    written = json.loads((tmp_path / "setting.json").read_text(), parse_constant=refuse)
    assert written["references"]["easnet_l"]["epe"] is None


def test_a_study_judges_every_ranker(folder: Path, tmp_path: Path) -> None:
    rows = study_indicators(options(folder, tmp_path), 10)
    assert {row.ranker for row in rows} == {
        *("MACs", "parameters", "latency", "I0", "I1", "I2", "I2, mean over channels")
    }
    everything = [row for row in rows if row.group == "all"]
    assert all(row.networks == 10 and row.seconds > 0 for row in everything)
    assert all(-1 <= row.kendall <= 1 and row.regret >= 0 for row in everything)
    text = (tmp_path / "study.md").read_text()
    assert text.count("\n| ") == len(rows) + 1
    assert "10 sub-networks" in text
    with (tmp_path / "study.csv").open() as file:
        assert [row["ranker"] for row in csv.DictReader(file)] == [row.ranker for row in rows]


def test_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["search", "easnet", "--weights", str(folder / "supernet.safetensors"), "--data", str(folder / "pool")]
    command += ["--out", str(tmp_path), "--size", "48x96", "--pairs", "1", "--calibration-pairs", "1"]
    assert main([*command, "--study", "20", "--latency-ms", "9"]) == 2
    assert "give one of" in capsys.readouterr().err
    assert main([*command, "--table", str(folder / "table.json"), "--latency-ms", "1"]) == 2
    assert "the fastest takes" in capsys.readouterr().err
    few = ["--gmac", "2.9", "--rank", "i0", "--population", "6", "--generations", "2", "--finalists", "1"]
    assert main([*command, *few, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["unit"] == "GMAC"
    assert result["predicted"] <= 2.9
    assert result["networks_measured"] <= 4
