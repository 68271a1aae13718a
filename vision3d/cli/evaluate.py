# SPDX-License-Identifier: Apache-2.0
"""``vision3d evaluate``: error figures of a network on pairs with ground truth."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vision3d.cli.output import console, to_json

COLUMNS = ("epe", "bad1", "bad2", "bad3", "d1", "seconds")
TITLES = {"epe": "EPE px", "bad1": "bad-1 %", "bad2": "bad-2 %", "bad3": "bad-3 %", "d1": "D1 %", "seconds": "s"}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d evaluate``."""
    parser = subparsers.add_parser(
        "evaluate",
        help="error figures of a network on pairs with ground truth",
        description="EPE, bad-k and D1 per scene and as the mean over scenes, and the seconds per pair.",
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="a network, e.g. fadnetpp_slight or NAME.TAG")
    parser.add_argument("--weights", metavar="PATH", help="a checkpoint; otherwise the shipped weights")
    parser.add_argument("--dataset", choices=["folder"], default="folder", help="layout: folder = ROOT/set/scene/")
    parser.add_argument("--root", required=True, type=Path, metavar="DIR", help="the folder with the pairs")
    parser.add_argument("--exclude", nargs="+", action="extend", default=[], metavar="SET", help="leave out these sets")
    parser.add_argument("--baseline", choices=["bm", "sgbm", "sgbm_hh"], help="also measure a matcher of OpenCV")
    parser.add_argument("--scale", type=scale, default=1.0, help="resize the images by this factor first, or auto")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: CUDA where there is one)")
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="print one JSON object on stdout, or write it to FILE (the table is printed as well then)",
    )
    parser.set_defaults(run=run)


def scale(text: str) -> float | str:
    """A factor, or ``auto``."""
    return text if text == "auto" else float(text)


def run(arguments: argparse.Namespace) -> int:
    """Measure, then print the table or the JSON object."""
    from vision3d.evaluation.folder import evaluate_folder
    from vision3d.io.files import atomic_write

    messages = console(stderr=True)
    with messages.status("loading") as status:
        report = evaluate_folder(
            arguments.model,
            arguments.root,
            exclude=arguments.exclude,
            baseline=arguments.baseline,
            weights=arguments.weights,
            scale=arguments.scale,
            device=arguments.device,
            progress=lambda number, total, scene: status.update(f"{number + 1}/{total} {scene}"),
        )
    for entry in report["skipped"]:
        messages.print(f"skipped {entry['scene']}: {entry['reason']}", markup=False)
    if arguments.json == "-":
        print(to_json(report))
        return 0
    if arguments.json:
        with atomic_write(Path(arguments.json)) as temporary:
            temporary.write_text(to_json(report) + "\n", encoding="utf-8")
    _print_table(report)
    return 0


def _print_table(report: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    baseline = report.get("baseline")
    shown = [report, baseline] if baseline else [report]
    title = report["model"] if not baseline else f"{report['model']} / {baseline['name']}"
    table = Table(title=escape(title), caption="all pixels with ground truth; means over scenes; s = seconds per pair")
    table.add_column("scene", no_wrap=True)
    for column in COLUMNS:
        table.add_column(TITLES[column], justify="right", no_wrap=True)
    for index, row in enumerate(report["scenes"]):
        table.add_row(escape(row["scene"]), *_cells([part["scenes"][index] for part in shown]))
    table.add_section()
    for name in report["sets"]:
        table.add_row(f"mean of {escape(name)}", *_cells([part["sets"][name] for part in shown]))
    table.add_section()
    table.add_row("[bold]mean[/bold]", *_cells([part["mean"] for part in shown]))
    visible = [part["mean"].get("nonoccluded") for part in shown]
    if visible[0]:
        table.add_row(f"non-occluded ({visible[0]['scenes']} scenes)", *_cells(visible))
    console().print(table)


def _cells(rows: list[dict[str, Any]]) -> list[str]:
    """One cell a column: the network's figure, and the baseline's after a slash."""
    return [" / ".join(f"{row[column]:.2f}" if column in row else "-" for row in rows) for column in COLUMNS]
