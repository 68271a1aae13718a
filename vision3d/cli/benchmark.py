# SPDX-License-Identifier: Apache-2.0
"""``vision3d benchmark``: ``ops`` beside plain loops, ``data``, reading speed, ``comm``, communication hooks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vision3d.benchmark.ops import PROTOCOL, Row, measure_ops
from vision3d.cli.benchmark_comm import add_comm
from vision3d.cli.benchmark_data import add_data
from vision3d.cli.benchmark_easnet import add_easnet
from vision3d.cli.benchmark_range import add_range
from vision3d.cli.benchmark_rotation import add_rotation
from vision3d.cli.output import console, tell, to_json
from vision3d.errors import InputError


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d benchmark``."""
    parser = subparsers.add_parser(
        "benchmark", help="time of operators on this machine", description="Measure on this machine."
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    ops = kinds.add_parser("ops", help="the ops beside their plain loops", description=f"Protocol: {PROTOCOL}.")
    ops.add_argument("--only", metavar="TEXT", default="", help="only ops whose name holds this text")
    ops.add_argument("--seconds", type=float, default=0.1, help="CPU time for the repeats of one figure (default 0.1)")
    ops.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    ops.add_argument("--json", action="store_true", help="print one JSON object")
    ops.set_defaults(run=run)
    add_data(kinds)
    add_easnet(kinds)
    add_comm(kinds)
    add_range(kinds)
    add_rotation(kinds)


def main(argv: Sequence[str] | None = None) -> int:
    """``vision3d benchmark`` with these arguments (the process's own by default); returns the exit code."""
    from vision3d.cli.main import main as command

    return command(["benchmark", *(sys.argv[1:] if argv is None else argv)])


def run(arguments: argparse.Namespace) -> int:
    """Measure the ops and print the table or one JSON object."""
    if arguments.threads < 1 or not arguments.seconds > 0:
        raise InputError(f"--threads {arguments.threads} and --seconds {arguments.seconds} must be positive")
    rows, machine = measure_ops(arguments.only, arguments.seconds, arguments.threads, tell)
    if arguments.json:
        print(to_json({"machine": machine, "protocol": PROTOCOL, "rows": [asdict(row) for row in rows]}))
    else:
        _print_table(rows, machine)
    return 0


def _print_table(rows: Sequence[Row], machine: str) -> None:
    from rich.table import Table

    table = Table(title="ops, CPU milliseconds", caption=f"{machine}\n{PROTOCOL}; ratio = loop / op")
    for column in ("op", "shape", "type", "variant"):
        table.add_column(column, no_wrap=True)
    for column in ("forward", "loop", "ratio", "fwd+bwd", "loop", "ratio", "max difference"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            *(row.op, row.shape, row.dtype, row.variant),
            *(f"{row.forward_ms:.1f}", f"{row.forward_loop_ms:.1f}", f"{row.forward_ratio:.1f}x"),
            *(f"{row.both_ms:.1f}", f"{row.both_loop_ms:.1f}", f"{row.both_ratio:.1f}x"),
            f"{row.difference:.1e}",
        )
    console().print(table)
