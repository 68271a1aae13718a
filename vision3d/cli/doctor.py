# SPDX-License-Identifier: Apache-2.0
"""``vision3d doctor``: a report on this installation and machine."""

from __future__ import annotations

import argparse
from typing import Any

from vision3d.cli.output import console, to_json
from vision3d.environment import examine


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d doctor``."""
    parser = subparsers.add_parser(
        "doctor",
        help="report on this installation and machine",
        description="Report on this installation and machine. Exit code 1 if something essential is broken.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 1 if something is broken."""
    report = examine()
    if arguments.json:
        print(to_json(report))
    else:
        _print(report)
    return 1 if report["problems"] else 0


def _print(report: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for label, text in _lines(report):
        table.add_row(f"[bold]{escape(label)}[/bold]", escape(text))
    out = console()
    out.print(table)
    for problem in report["problems"]:
        out.print(f"[red]problem:[/red] {escape(problem)}")
    if not report["problems"]:
        out.print("[green]no problems found[/green]")


def _lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    cpu, cuda, data = report["cpu"], report["cuda"], report["data"]
    lines = [
        ("vision3d", f"{report['vision3d']} in {report['location']}"),
        ("python", f"{report['python']} on {report['platform']}"),
        *report["packages"].items(),
        ("cpu", f"{cpu['model']}, {cpu['usable_cores']} of {cpu['cores']} cores, {cpu['threads']} threads"),
        ("cpu features", f"{' '.join(cpu['features']) or 'none known'} (torch uses {cpu['torch_capability']})"),
    ]
    devices = [f"{device['name']} ({device['memory_gib']} GiB)" for device in cuda.get("devices", [])]
    lines.append(("cuda", ", ".join(devices) or f"not available (torch is built for {cuda['built_for'] or 'CPU'})"))
    for module, entry in report["extras"].items():
        state = entry["version"] or "missing"
        if "failure" in entry:
            state = f"{state}, does not load ({entry['failure']})"
        mend = f"  mend: {entry['mend']}" if "mend" in entry else ""
        lines.append((f"[{entry['extra']}] {module}", f"{state} ({entry['purpose']}){mend}"))
    lines += [(f"{kind} folder", folder or "missing") for kind, folder in data["folders"].items()]
    lines.append(("networks", str(data["networks"])))
    return lines + [(f"weights {name}", state) for name, state in data["weights"].items()]
