# SPDX-License-Identifier: Apache-2.0
"""``vision3d evaluate --task normals``: the angles of surface normals."""

from __future__ import annotations

import argparse
from typing import Any

from vision3d.cli.evaluate import measured
from vision3d.cli.output import console, to_json, write_json

_COLUMNS = {
    "mean": "mean deg",
    "median": "median deg",
    "within11.25": "< 11.25 %",
    "within22.5": "< 22.5 %",
    "within30": "< 30 %",
    "seconds": "s",
}
_WITHOUT = ("protocol", "baseline", "search", "confidence", "report")  # options of stereo alone


def run_normals(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    """Measure, then print the table or the JSON object.

    Raises:
        InputError: an option that has no meaning for normals.
    """
    from vision3d.errors import InputError
    from vision3d.evaluation.normals import evaluate_normals
    from vision3d.pipelines import DEFAULT_STEREO_MODEL

    for name in _WITHOUT:
        if getattr(arguments, name):
            raise InputError(f"--{name} does not go with --task normals: leave it out")
    if arguments.dataset == "folder":
        raise InputError("--task normals needs a set with true normals: name it, e.g. --dataset irs --root DIR")
    messages = console(stderr=True)
    with messages.status("loading") as status:
        report = evaluate_normals(
            arguments.model or DEFAULT_STEREO_MODEL,
            arguments.dataset,
            arguments.root,
            split=arguments.split,
            options=options,
            exclude=arguments.exclude,
            limit=arguments.limit,
            weights=arguments.weights,
            scale=arguments.scale,
            device=arguments.device,
            progress=lambda number, total, scene: status.update(f"{number + 1}/{total} {scene}"),
        )
    for entry in report["skipped"]:
        messages.print(f"skipped {entry['scene']}: {entry['reason']}", markup=False)
    warnings = list(report["warnings"])
    if report["axes"] is not None and report["axes"]["wrong"]:
        warnings.append(report["axes"]["message"])
    for text in warnings:
        messages.print(f"vision3d: warning: {text}", markup=False, soft_wrap=True)
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

    title = f"{report['model']}, normals of {report['dataset']}"
    table = Table(title=escape(title), caption=escape(f"{measured(report)}; s = seconds per pair"))
    table.add_column("scene", no_wrap=True)
    for title in _COLUMNS.values():
        table.add_column(title, justify="right", no_wrap=True)
    for row in report["scenes"]:
        table.add_row(escape(row["scene"]), *_cells(row))
    table.add_section()
    table.add_row("[bold]over pixels[/bold]", *_cells(report["pooled"]))
    for name, part in report["baselines"].items():
        if name != report["normals_from"]:
            table.add_row(f"{name} of its disparity", *_cells(part["pooled"]))
    console().print(table)
    pooled = report["pooled"]
    means = {report["normals_from"]: pooled, **{n: part["pooled"] for n, part in report["baselines"].items()}}
    print("mean over images: " + ", ".join(f"{name} {part['image_mean']:.2f} deg" for name, part in means.items()))
    if report["disparity"] is not None:
        print(f"disparity: EPE {report['disparity']['epe']:.3f} px")
    print(
        f"left out: {pooled['invalid_truth']} pixels without a unit true normal, "
        f"{pooled['invalid_prediction']} without a predicted one"
    )


def _cells(row: dict[str, Any]) -> list[str]:
    return [f"{row[name]:.2f}" for name in _COLUMNS]
