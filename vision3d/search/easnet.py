# SPDX-License-Identifier: Apache-2.0
"""The search for an EASNet that keeps a limit of latency, from the supernet to a network's files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vision3d.benchmark.easnet_timing import describe_device, measure_settings
from vision3d.errors import InputError
from vision3d.io.files import atomic_write
from vision3d.models.stereo.easnet import NAMED_SETTINGS, EASNet, Setting, count_macs, count_parameters
from vision3d.search.evolution import Evolution, evolve
from vision3d.search.pareto import Point, write_pareto
from vision3d.search.predictor import LEAST_PAIRS, AccuracyPredictor, fit_predictor
from vision3d.search.session import Progress, SearchOptions, Session

SETTING_FILE, WEIGHTS_FILE = "setting.json", "easnet.safetensors"
_EVERY = 50  # generations between two lines of progress


def search_easnet(options: SearchOptions, progress: Progress | None = None) -> dict[str, Any]:
    """Search, and write ``setting.json``, ``easnet.safetensors``, ``pareto.csv``, ``pareto.png``,
    ``measurements.json`` and, where it was measured here, ``latency.json`` to ``options.out``.

    1. Networks within the limit are drawn and measured: the EPE on the validation pairs, after calibration of their
    batch-norm statistics. 2. The evolution goes by the predictor that was fitted to them (or by ``options.rank``).
    3. The first ones of its last generation are measured. The best measured network within the limit is chosen.

    Args:
        options: of the search; a limit is needed.
        progress: is told what happens.

    Returns:
        What ``setting.json`` holds.

    Raises:
        Vision3DError: see :class:`~vision3d.search.session.Session`; a limit that no sub-network keeps among others.
    """
    if options.limit is None:
        raise InputError("a search needs a limit: latency_ms or gmac")
    session = Session(options, progress)
    predictor = None
    if options.rank == "predictor":
        predictor = _fit_predictor(session)
    found = _evolve(session, _scorer(session, predictor))
    session.measure(found.ranked[: options.finalists], "finalist")
    session.measure(NAMED_SETTINGS.values(), "reference")
    rows = session.measurements.rows
    within = [setting for setting in rows if session.fits(setting) and rows[setting]["epe"] == rows[setting]["epe"]]
    chosen = min(within or [found.best], key=lambda setting: (rows[setting]["epe"], session.table.predict(setting)))
    return _write(session, chosen, found, predictor)


def _fit_predictor(session: Session) -> AccuracyPredictor | None:
    """Fitted to all networks that were ever measured; None where hardly any network keeps the limit."""
    options = session.options
    sampled = session.sample_feasible(options.samples, options.seed)
    session.measure(sampled, "sample")
    if len(sampled) < LEAST_PAIRS:
        session.tell(f"{len(sampled)} networks were found within the limit: they are measured, not predicted")
        return None
    settings, errors = session.measurements.finite()
    predictor = fit_predictor(settings, errors, options.seed)
    session.tell(f"predictor: held-out error {predictor.held_out_error:.3f} px from {len(settings)} networks")
    return predictor


def _scorer(session: Session, predictor: AccuracyPredictor | None) -> Callable[[Sequence[Setting]], list[float]]:
    """The function that the evolution minimises."""
    rank = session.options.rank
    if predictor is not None:
        return predictor.predict
    if rank in ("measured", "predictor"):
        return lambda settings: session.measure(settings, "candidate")
    if rank == "i2":
        drift = session.drift_indicator()
        return lambda settings: [drift.score(setting) for setting in settings]
    indicator = session.scale_indicator() if rank == "i0" else session.private_indicator()
    return lambda settings: [-indicator.score(setting) for setting in settings]


def _evolve(session: Session, score: Callable[[Sequence[Setting]], list[float]]) -> Evolution:
    options = session.options

    def tell(generation: int, best: float) -> None:
        if generation % _EVERY == 0:
            session.tell(f"generation {generation}/{options.evolution.generations}: {options.rank} {best:.4g}")

    return evolve(
        score,
        session.table.predict,
        session.limit,
        session.fastest,
        space=options.space,
        seed=options.seed,
        options=options.evolution,
        progress=tell,
    )


def _write(session: Session, chosen: Setting, found: Evolution, predictor: AccuracyPredictor | None) -> dict[str, Any]:
    options, table, rows = session.options, session.table, session.measurements.rows
    network = session.meter.network(chosen).cpu()
    _save(network, session.out / WEIGHTS_FILE)
    points = [Point(setting, table.predict(setting), row, setting == chosen) for setting, row in rows.items()]
    write_pareto(session.out / "pareto", points, table.unit, session.limit)
    height, width = options.conditions.height, options.conditions.width
    result: dict[str, Any] = {
        "setting": chosen.as_dict(),
        "warp_mode": options.warp_mode,
        "weights": WEIGHTS_FILE,
        "limit": session.limit,
        "unit": table.unit,
        "predicted": table.predict(chosen),
        "measured": _measured_cost(session, chosen),
        "conditions": str(options.conditions) if table.unit == "ms" else f"{height}x{width}",
        "machine": table.machine,
        "gmac": count_macs(chosen, height, width).total / 1e9,
        "parameters": count_parameters(network),
        "figures": {name: _finite(value) for name, value in rows[chosen].items() if name != "seconds"},
        "predicted_epe": None if predictor is None else predictor.predict([chosen])[0],
        "references": {
            name: {"cost": table.predict(setting), "epe": _finite(rows[setting]["epe"])}
            for name, setting in NAMED_SETTINGS.items()
        },
        "rank": options.rank,
        "networks_measured": len(rows),
        "seed": options.seed,
        "history": [_finite(score) for score in found.history[:: max(1, len(found.history) // 50)]],
        "measurement": session.measurements.conditions,
    }
    with atomic_write(session.out / SETTING_FILE) as temporary:
        temporary.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return result


def _finite(value: float) -> float | None:
    """The number, or None for what JSON has no number for."""
    return value if math.isfinite(value) else None


def _measured_cost(session: Session, setting: Setting) -> float | None:
    """Milliseconds of the whole network, where the table is of this machine."""
    table = session.table
    if table.unit != "ms" or describe_device(table.conditions) != table.machine:
        return None
    return measure_settings([setting], table.conditions)[0]


def _save(network: EASNet, path: Path) -> None:
    from safetensors.torch import save_file

    state = {name: value.detach().contiguous().clone() for name, value in network.exported_state_dict().items()}
    with atomic_write(path) as temporary:
        save_file(state, temporary)
