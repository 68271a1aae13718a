# SPDX-License-Identifier: Apache-2.0
"""``vision3d evaluate --task panorama``: the errors of panorama depth."""

from __future__ import annotations

import argparse
from typing import Any

from vision3d.cli.output import console, to_json, write_json

_COLUMNS = {
    "abs_rel": ("MRE", 4),
    "mae": ("MAE m", 3),
    "rmse": ("RMSE m", 3),
    "rmse_log": ("RMSE log", 4),
    "rmse_log10": ("log10", 4),
    "delta1": ("d1 %", 2),
    "delta2": ("d2 %", 2),
    "delta3": ("d3 %", 2),
}
_WITHOUT = ("baseline", "search", "confidence", "report")  # options of stereo alone


def run_panorama(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    """Measure, then print the table or the JSON object.

    Raises:
        InputError: an option that has no meaning for panoramas.
    """
    from vision3d.errors import InputError
    from vision3d.evaluation.panoramas import evaluate_panoramas

    for name in _WITHOUT:
        if getattr(arguments, name):
            raise InputError(f"--{name} does not go with panoramas: leave it out")
    if arguments.scale != 1.0:
        raise InputError("--scale does not go with panoramas: set --height")
    if arguments.dataset == "folder":
        raise InputError("--task panorama needs a set of panoramas: name it, e.g. --dataset stanford2d3d --root DIR")
    messages = console(stderr=True)
    with messages.status("loading") as status:
        report = evaluate_panoramas(
            arguments.model,
            arguments.dataset,
            arguments.root,
            split=arguments.split,
            protocol=arguments.protocol,
            alignment=arguments.alignment,
            options=options,
            exclude=arguments.exclude,
            limit=arguments.limit,
            weights=arguments.weights,
            height=arguments.height,
            device=arguments.device,
            progress=lambda number, total, scene: status.update(f"{number + 1}/{total} {scene}"),
        )
    for entry in report["skipped"]:
        messages.print(f"skipped {entry['scene']}: {entry['reason']}", markup=False)
    for warning in report["warnings"]:
        messages.print(f"vision3d: warning: {warning}", markup=False)
    if arguments.json == "-":
        print(to_json(report))
        return 0
    if arguments.json:
        write_json(arguments.json, report)
    _print_table(report)
    return 0


def _print_table(report: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    rule = report["protocol"]
    caption = f"protocol {rule['name']}, alignment {rule['alignment']}; means over panoramas; s = seconds a panorama"
    table = Table(title=escape(f"{report['model']}, {report['dataset']} ({report['split']})"), caption=caption)
    table.add_column("scene", no_wrap=True)
    for title in (*(title for title, _ in _COLUMNS.values()), "s"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in report["scenes"]:
        table.add_row(escape(row["scene"]), *_cells(row, ""), f"{row['seconds']:.2f}")
    table.add_section()
    mean = report["mean"]
    table.add_row("[bold]mean, per pixel[/bold]", *_cells(mean, ""), f"{mean['seconds']:.2f}")
    table.add_row("[bold]mean, per area[/bold]", *_cells(mean, "sphere_"), "")
    console().print(table)


def _cells(row: dict[str, Any], prefix: str) -> list[str]:
    return [f"{row[prefix + name]:.{digits}f}" for name, (_, digits) in _COLUMNS.items()]
