# SPDX-License-Identifier: Apache-2.0
"""``vision3d benchmark easnet``: the latency table of a device, and its check."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vision3d.cli.options import image_size, positive
from vision3d.cli.output import console, tell, to_json


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """``--size --device --threads --precision``: what a latency belongs to."""
    parser.add_argument("--size", type=image_size, default=(256, 512), metavar="HxW", help="default 256x512")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1 ...")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of torch on a CPU (default 1)")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16", "float16"])


def conditions(arguments: argparse.Namespace) -> Any:
    """The conditions that ``add_conditions`` asked for."""
    from vision3d.benchmark.easnet import Conditions

    return Conditions(arguments.device, arguments.precision, arguments.threads, *arguments.size)


def add_easnet(kinds: Any) -> None:
    """Add the kind ``easnet`` to ``vision3d benchmark``."""
    parser = kinds.add_parser(
        "easnet",
        help="latency table of EASNet's parts on a device",
        description="Measure the parts of EASNet, whose sum predicts the latency of a sub-network; check the sum.",
    )
    parser.add_argument("--build-table", action="store_true", help="measure the table and write it to --out")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the table that is written (JSON)")
    parser.add_argument("--table", type=Path, metavar="FILE", help="a table measured before, for --check")
    parser.add_argument("--check", type=positive, default=0, metavar="N", help="also time N random whole networks")
    repeats = "timed repeats of each part and network (default 8)"
    parser.add_argument("--repeats", type=int, default=8, metavar="N", help=repeats)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the networks of --check (default 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_conditions(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Build or load the table, check it, and print what was found."""
    from vision3d.benchmark.easnet import LatencyTable
    from vision3d.benchmark.easnet_timing import build_checked_table, check_table
    from vision3d.errors import InputError
    from vision3d.io.files import atomic_write

    files = (arguments.out is not None, arguments.table is not None)
    if files != (arguments.build_table, not arguments.build_table):
        raise InputError("give --build-table with --out FILE, or --table FILE with or without --check N")
    wanted, check = conditions(arguments), None
    how = (arguments.check, arguments.seed, arguments.repeats)
    if arguments.build_table:
        with atomic_write(arguments.out) as temporary:  # a place that cannot be written shows before the measurement
            table, check = build_checked_table(wanted, *how, progress=tell)
            table.save(temporary)
    else:
        table = LatencyTable.load(arguments.table)
        table.require(wanted)
        if arguments.check:
            check = check_table(table, *how, progress=tell)
    check = check if arguments.check else None
    if arguments.json:
        print(to_json({"table": _summary(table), "check": None if check is None else _check_figures(check)}))
    else:
        _print(table, check)
    return 0


def _summary(table: Any) -> dict[str, Any]:
    from vision3d.models.stereo.easnet import largest_setting

    fastest = table.fastest()
    return {
        "conditions": str(table.conditions),
        "machine": table.machine,
        "protocol": table.protocol,
        "unit": table.unit,
        "fastest": {"setting": fastest.as_dict(), "cost": table.predict(fastest)},
        "largest": {"cost": table.predict(largest_setting())},
    }


def _check_figures(check: Any) -> dict[str, Any]:
    return {
        "networks": len(check.measured),
        "median_relative_error": check.median_error,
        "largest_relative_error": float(check.errors.max()),
        "bias": check.bias,
        "drift": check.drift,
        "median_relative_error_without_drift": check.corrected_error,
        "r2": check.r2,
        "correlation": check.correlation,
        "predicted": check.predicted,
        "measured": check.measured,
    }


def _print(table: Any, check: Any) -> None:
    lines = console()
    figures = _summary(table)
    lines.print(f"{figures['conditions']}; {figures['machine']}", markup=False)
    lines.print(f"fastest sub-network {figures['fastest']['cost']:.1f} {table.unit}", markup=False)
    lines.print(f"largest sub-network {figures['largest']['cost']:.1f} {table.unit}", markup=False)
    lines.print(f"Protocol: {table.protocol}.", markup=False)
    if check is not None:
        lines.print(
            f"{len(check.measured)} whole networks ({min(check.measured):.1f} to {max(check.measured):.1f} ms): median "
            f"relative error {100 * check.median_error:.1f} %, largest {100 * check.errors.max():.1f} %, bias "
            f"{100 * check.bias:+.1f} %, R^2 {check.r2:.3f}, correlation {check.correlation:.3f}",
            markup=False,
        )
        if check.drift != 1.0:
            lines.print(
                f"the refinement takes {check.drift:.2f} times what it took in the table; median relative error "
                f"without this drift {100 * check.corrected_error:.1f} %",
                markup=False,
            )
