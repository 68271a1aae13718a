# SPDX-License-Identifier: Apache-2.0
"""``vision3d benchmark comm``: seconds and bytes a step of the communication hooks over slow links."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from vision3d.benchmark.communication import HOOKS, PROTOCOL, Plan, Row, measure_communication
from vision3d.cli.output import console, tell, to_json


def add_comm(kinds: Any) -> None:
    """Add the kind ``comm`` to ``vision3d benchmark``."""
    plan = Plan()
    parser = kinds.add_parser("comm", help="communication hooks over slow links", description=f"Protocol: {PROTOCOL}.")
    parser.add_argument("--hooks", nargs="+", default=list(HOOKS), metavar="HOOK", help="default: all")
    parser.add_argument("--processes", type=int, default=plan.processes, help=f"default {plan.processes}")
    parser.add_argument("--width", type=int, default=plan.width, help="the network has 4 x width^2 parameters")
    parser.add_argument("--density", type=float, default=plan.density, help=f"default {plan.density}")
    parser.add_argument("--steps", type=int, default=plan.steps, help=f"default {plan.steps}")
    parser.add_argument("--megabits", type=float, default=plan.megabits, help="rate of each link, Mbit/s")
    parser.add_argument("--emulate", action="store_true", help="no network namespaces (they need root)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print the table or one JSON object."""
    names = ("processes", "width", "density", "steps", "megabits")
    plan = Plan(hooks=tuple(arguments.hooks), **{name: getattr(arguments, name) for name in names})
    rows, kind = measure_communication(plan, arguments.emulate, tell)
    if arguments.json:
        print(
            to_json({"plan": asdict(plan), "link": kind, "protocol": PROTOCOL, "rows": [asdict(row) for row in rows]})
        )
    else:
        _print_table(rows, kind)
    return 0


def _print_table(rows: list[Row], kind: str) -> None:
    from rich.table import Table

    table = Table(title=f"communication hooks, {kind}", caption=PROTOCOL)
    for column in ("hook", "s/step", "MB/step sent", "MB/step on the interface", "times faster"):
        table.add_column(column, justify="left" if column == "hook" else "right", no_wrap=True)
    for row in rows:
        interface = "-" if row.interface_bytes is None else f"{row.interface_bytes / 1e6:.3f}"
        faster = f"{rows[0].seconds / row.seconds:.2f}"
        table.add_row(row.hook, f"{row.seconds:.3f}", f"{row.sent_bytes / 1e6:.3f}", interface, faster)
    console().print(table)
