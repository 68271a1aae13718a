# SPDX-License-Identifier: Apache-2.0
"""Which cheap ranker of sub-networks deserves trust: each one beside measured errors."""

from __future__ import annotations

import csv
import io
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from vision3d.errors import InputError
from vision3d.io.files import atomic_write
from vision3d.models.stereo.easnet import Setting, count_macs, setting_parameters
from vision3d.search.pareto import Point, write_pareto
from vision3d.search.predictor import fit_predictor
from vision3d.search.ranking import LEAST, RankQuality, rank_quality
from vision3d.search.session import DRIFT_BATCHES, Progress, SearchOptions, Session, sample_distinct

BAND = 0.05
BAND_SHARE = 1 / 3
PREDICTOR_SIZES = (20, 50, 100, 200, 500)
SPLITS = 5
_BAND_TRIES = 20_000
Ranker = Callable[[Setting], float]


@dataclass(frozen=True)
class StudyRow:
    """One ranker on one group: figures, and its seconds for 1,000 networks (without the measuring of networks)."""

    ranker: str
    group: str
    networks: int
    kendall: float
    spearman: float
    regret: float
    seconds: float


def study_indicators(
    options: SearchOptions, number: int = 60, private: bool = True, progress: Progress | None = None
) -> list[StudyRow]:
    """Measure networks, judge every ranker, and write ``study.csv``, ``study.md`` and the Pareto files.

    Two thirds of the networks are uniform, a third lies within 5 % of the median latency of these.

    Args:
        options: of a search; the limit is not used.
        number: of networks; 60 or more is asked for.
        private: also train private batch norms (I1).
        progress: is told what happens.

    Raises:
        InputError: fewer than 10 networks. Vision3DError: see :class:`~vision3d.search.session.Session`.
    """
    if number < 2 * LEAST:
        raise InputError(f"a study needs at least {2 * LEAST} networks, got {number}: 60 or more are worth reading")
    session = Session(options, progress)
    settings, centre = draw_networks(session, number)
    errors = np.asarray(session.measure(settings, "network"))
    kept = np.isfinite(errors)
    settings, errors = [s for s, good in zip(settings, kept, strict=True) if good], errors[kept]
    groups = make_groups(session, settings, centre)
    rows: list[StudyRow] = []
    for name, scores, seconds in _ranked(session, settings, private):
        for group, members in groups.items():
            quality = rank_quality(scores[members], errors[members])
            rows.append(StudyRow(name, group, *_values(quality), seconds))
    for size in [size for size in PREDICTOR_SIZES if size <= len(settings) - LEAST]:
        session.tell(f"predictor fitted to {size} networks")
        rows += _judge_predictor(settings, errors, groups, size)
    _write(session, rows, settings, centre)
    return rows


def draw_networks(session: Session, number: int) -> tuple[list[Setting], float]:
    """Distinct settings, two thirds of them uniform, and the middle of the band of the others."""
    rng, space = random.Random(session.options.seed), session.options.space
    uniform = sample_distinct(number - round(BAND_SHARE * number), rng, space)
    centre = float(np.median([session.table.predict(setting) for setting in uniform]))
    found = dict.fromkeys(uniform)
    for _ in range(_BAND_TRIES):
        if len(found) >= number:
            break
        (setting,) = sample_distinct(1, rng, space)
        if abs(session.table.predict(setting) / centre - 1) <= BAND:
            found[setting] = None
    return list(found), centre


def make_groups(session: Session, settings: Sequence[Setting], centre: float) -> dict[str, np.ndarray]:
    """Indices of all networks, of those inside and outside the latency band, and of each number of scales."""
    costs = np.array([session.table.predict(setting) for setting in settings])
    scales = np.array([setting.scales for setting in settings])
    inside = np.abs(costs / centre - 1) <= BAND
    groups = {"all": np.ones(len(settings), bool), "in the band": inside, "outside": ~inside}
    groups.update({f"{number} scales": scales == number for number in sorted(set(scales.tolist()))})
    return {name: np.flatnonzero(members) for name, members in groups.items()}


def _values(quality: RankQuality) -> tuple[int, float, float, float]:
    return quality.networks, quality.kendall, quality.spearman, quality.regret


def _ranked(session: Session, settings: Sequence[Setting], private: bool) -> list[tuple[str, np.ndarray, float]]:
    """Name, scores (lower is better) and seconds for 1,000 networks of each ranker without a fit."""
    height, width = session.options.conditions.height, session.options.conditions.width
    results = []

    def add(name: str, make: Callable[[], Ranker]) -> None:
        session.tell(f"ranker {name}")
        start = time.perf_counter()
        ranker = make()
        prepared = time.perf_counter()
        scores = np.array([ranker(setting) for setting in settings])
        each = (time.perf_counter() - prepared) / len(settings)
        results.append((name, scores, prepared - start + 1000 * each))

    add("MACs", lambda: lambda setting: -count_macs(setting, height, width).total)
    add("parameters", lambda: lambda setting: -setting_parameters(setting))
    add("latency", lambda: lambda setting: -session.table.predict(setting))

    def scale() -> Ranker:
        indicator = session.scale_indicator()
        return lambda setting: -indicator.score(setting)

    add("I0", scale)
    if private:

        def trained() -> Ranker:
            indicator = session.private_indicator()
            return lambda setting: -indicator.score(setting)

        add("I1", trained)
    kept: dict[Setting, tuple[float, int]] = {}

    def drift() -> Ranker:
        indicator = session.drift_indicator()

        def score(setting: Setting) -> float:
            kept[setting] = indicator.drift(setting)
            return kept[setting][0]

        return score

    add("I2", drift)
    means = np.array([kept[setting][0] / kept[setting][1] for setting in settings])
    results.append(("I2, mean over channels", means, results[-1][2]))
    return results


def _judge_predictor(
    settings: Sequence[Setting], errors: np.ndarray, groups: dict[str, np.ndarray], size: int
) -> list[StudyRow]:
    """Fit to random networks, judge on the others; means over several splits."""
    found: dict[str, list[tuple[float, ...]]] = {group: [] for group in groups}
    seconds = []
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(len(settings))
        used, others = order[:size], order[size:]
        start = time.perf_counter()
        predictor = fit_predictor([settings[i] for i in used], errors[used], seed=split)
        fitted = time.perf_counter()
        scores = np.asarray(predictor.predict(settings))
        seconds.append(fitted - start + (time.perf_counter() - fitted) / len(settings) * 1000)
        for group, members in groups.items():
            rest = np.intersect1d(members, others)
            found[group].append(_values(rank_quality(scores[rest], errors[rest])))
    rows = []
    for group, values in found.items():
        array = np.array(values, float)
        known = [column[np.isfinite(column)] for column in array.T]
        count, kendall, spearman, regret = (float(column.mean()) if len(column) else float("nan") for column in known)
        name = f"predictor, {size} networks"
        rows.append(StudyRow(name, group, round(count), kendall, spearman, regret, float(np.mean(seconds))))
    return rows


def markdown(rows: Sequence[StudyRow], text: str) -> str:
    """The rows as a Markdown table, one line a ranker and group, and the protocol above it."""
    lines = [text, "", "| ranker | group | networks | Kendall tau | Spearman rho | top-5 regret, px | s per 1,000 |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        figures = [_cell(value) for value in (row.kendall, row.spearman, row.regret)]
        lines.append(f"| {row.ranker} | {row.group} | {row.networks} | {' | '.join(figures)} | {row.seconds:.2g} |")
    return "\n".join(lines) + "\n"


def _cell(value: float) -> str:
    return "-" if not np.isfinite(value) else f"{value:.3f}"


def _write(session: Session, rows: Sequence[StudyRow], settings: Sequence[Setting], centre: float) -> None:
    options, table = session.options, session.table
    measured = session.measurements.rows
    each = float(np.median([measured[setting]["seconds"] for setting in settings]))
    errors = [measured[setting]["epe"] for setting in settings]
    text = (
        f"{len(settings)} sub-networks; truth: EPE on {options.pairs} pairs after calibration of the batch-norm "
        f"statistics on {options.calibration_pairs} pairs ({each:.2g} s a network; EPE from {min(errors):.3f} to "
        f"{max(errors):.3f} px). Band: within {100 * BAND:.0f} % of {centre:.4g} {table.unit} ({table.conditions}; "
        f"{table.machine}). I2: {DRIFT_BATCHES} batches of {options.calibration_batch}. Predictor: judged on networks "
        f"it was not fitted to, mean of {SPLITS} splits; its seconds leave out the measuring of those it needs. Fewer "
        f"than {LEAST} networks: no figure."
    )
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(StudyRow.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    for name, content in (("study.csv", buffer.getvalue()), ("study.md", markdown(rows, text))):
        with atomic_write(Path(session.out) / name) as temporary:
            temporary.write_text(content, encoding="utf-8")
    points = [Point(setting, table.predict(setting), measured[setting]) for setting in settings]
    write_pareto(session.out / "pareto_study", points, table.unit)
