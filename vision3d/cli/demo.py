# SPDX-License-Identifier: Apache-2.0
"""``vision3d demo``: a network on a real pair with ground truth, beside a classical matcher."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision3d.cli.options import add_model_options, add_normals_option
from vision3d.cli.output import console, to_json

if TYPE_CHECKING:
    import numpy as np

COLUMNS = {"EPE px": "epe", "bad-2 %": "bad2", "bad-3 %": "bad3"}
SEARCH_RANGE = 64  # pixels; the true disparities reach 60


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d demo``."""
    parser = subparsers.add_parser(
        "demo",
        help="run a network on a real pair with ground truth: pictures, cloud, page, figures",
        description="Predict the Middlebury motorcycle pair that scikit-image ships, and measure the error.",
    )
    parser.add_argument("--out", type=Path, default=Path("vision3d_demo"), metavar="DIR", help="default: vision3d_demo")
    add_model_options(parser)
    add_normals_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Predict, write the results, print the table."""
    from vision3d.datasets.demo import load_motorcycle
    from vision3d.io.files import ensure_folder
    from vision3d.io.images import write_image
    from vision3d.pipelines import load_stereo_model, predict_stereo

    out = ensure_folder(arguments.out)
    left, right, truth, rig = load_motorcycle()
    network, name, _ = load_stereo_model(arguments.model, arguments.weights, arguments.device)
    result = predict_stereo(
        left,
        right,
        model=network,
        calibration=rig,
        scale=arguments.scale,
        confidence=not arguments.no_confidence,
        precision=arguments.precision,
        check_memory=not arguments.force,
        normals=arguments.normals,
    )
    result.model = name
    errors, times = _measure(name, result.disparity, result.seconds, left, right, truth)
    for side, view in (("left.png", left), ("right.png", right)):
        write_image(out / side, view)
        result.files[side.split(".")[0]] = str(out / side)
    written = result.save(out, truth=truth, figures={"errors": errors, "seconds_by_method": times})
    for warning in result.warnings:
        print(f"vision3d: warning: {warning}", file=sys.stderr)
    if arguments.json:
        report = {**result.report(), "errors": errors, "seconds_by_method": times}
        print(to_json({**report, "output": {key: str(path) for key, path in written.items()}}))
    else:
        _print_table(errors, times, out, list(written))
    return 0


def _measure(
    name: str, disparity: np.ndarray, seconds: float, left: np.ndarray, right: np.ndarray, truth: np.ndarray
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Errors (method -> figure) and seconds (method -> time) of the network and of SGBM."""
    from vision3d.evaluation.baselines import match_baseline
    from vision3d.evaluation.metrics import DisparityMetrics

    start = time.perf_counter()
    classical = match_baseline("sgbm", left, right, SEARCH_RANGE)
    times = {name: round(seconds, 3), "OpenCV SGBM": round(time.perf_counter() - start, 3)}
    errors = {}
    for method, answer in zip(times, (disparity, classical), strict=True):
        metrics = DisparityMetrics()
        metrics.update(answer, truth)
        figures = metrics.compute()
        errors[method] = {key: round(float(figures[key]), 4) for key in COLUMNS.values()}
    return errors, times


def _print_table(errors: dict[str, dict[str, float]], times: dict[str, float], out: Path, written: list[str]) -> None:
    from rich.table import Table

    print("Middlebury motorcycle, 741 x 500, all pixels with ground truth:")
    table = Table()
    table.add_column("method", no_wrap=True)
    for title in (*COLUMNS, "seconds"):
        table.add_column(title, justify="right")
    for method, figures in errors.items():
        table.add_row(method, *(f"{figures[key]:.2f}" for key in COLUMNS.values()), f"{times[method]:.2f}")
    console().print(table)
    print(f"page:     {out / 'view.html'}  (vision3d view {out})")
    pictures = [name for name in ("disparity.png", "error.png", "confidence.png", "normals.png") if name in written]
    print(f"pictures: {', '.join(str(out / name) for name in pictures)}")
    clouds = [name for name in written if name.startswith("cloud.")]
    print(f"cloud:    {', '.join(str(out / name) for name in clouds) or '-'}")
    print(f"figures:  {out / 'report.json'}")
