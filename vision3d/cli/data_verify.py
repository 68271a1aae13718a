# SPDX-License-Identifier: Apache-2.0
"""``vision3d data verify``."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision3d.cli.options import image_size, positive
from vision3d.cli.output import console, to_json, write_json

if TYPE_CHECKING:
    from vision3d.datasets.verify import VerifyReport

_MAX_ROWS = 200


def add_verify(actions: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d data verify``."""
    parser = actions.add_parser(
        "verify",
        help="check every pair of a data set",
        description="Read every pair of a data set and say which are wrong: missing partners, unreadable files, sizes, "
        "empty maps, signs, disparities that do not explain the right image, and the axes of normals. Exit code 0: "
        "clean, 1: something is wrong, 2: the set cannot be checked.",
    )
    parser.add_argument("name", metavar="SET", help="a data set of 'vision3d data list', e.g. kitti2015")
    parser.add_argument("--root", type=Path, metavar="DIR", help="its folder (default: as configured)")
    parser.add_argument("--split", default="all", help="default: all pairs with truth")
    parser.add_argument("--size", type=image_size, metavar="HxW", help="the size that every pair must have")
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="processes (default 1)")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write the report as JSON; without FILE: print it"
    )
    parser.add_argument(
        "--skip-list",
        "--skip-file",
        dest="skip_list",
        type=Path,
        metavar="FILE",
        help="write the wrong pairs, one a line, for the option skip_file of the readers",
    )
    parser.set_defaults(run=run_verify)


def run_verify(arguments: argparse.Namespace) -> int:
    """Check the pairs and print what is wrong."""
    import warnings

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from vision3d.datasets.registry import find_dataset, open_dataset
    from vision3d.datasets.verify import verify_dataset, write_skip_file
    from vision3d.errors import InputError

    entry = find_dataset(arguments.name)
    if not entry.needs_root:
        raise InputError(f"{arguments.name}: is made, not read, so there is nothing to verify")
    size = None if arguments.size is None else arguments.size[::-1]  # (width, height)
    options = {"on_error": "skip"} if _skips(entry.load()) else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is skipped is reported below
        data = open_dataset(arguments.name, arguments.root, arguments.split, **options)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console(stderr=True), transient=True) as bar:
            task = bar.add_task(arguments.name, total=len(data))  # type: ignore[arg-type]
            report = verify_dataset(
                data, size, arguments.workers, lambda number, *_: bar.update(task, completed=number)
            )
    if arguments.skip_list is not None:
        write_skip_file(arguments.skip_list, report.problems)
    _give(arguments, report)
    return 1 if report.problems else 0


def _skips(reader: Any) -> bool:
    """Whether a reader has the option ``on_error``."""
    return "on_error" in inspect.signature(reader).parameters


def _give(arguments: argparse.Namespace, report: VerifyReport) -> None:
    """Write or print the report."""
    content = {"dataset": arguments.name, "split": arguments.split, **report.to_dict()}
    if arguments.json == "-":
        print(to_json(content))
        return
    if arguments.json is not None:
        write_json(arguments.json, content)
    _print_table(arguments.name, report)


def _print_table(name: str, report: VerifyReport) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console()
    if report.problems:
        table = Table("scene", "kind", "what is wrong", title=f"{name}: what is wrong")
        for item in report.problems[:_MAX_ROWS]:
            where = f"{item.file}: " if item.file and not item.problem.startswith(item.file) else ""
            table.add_row(escape(item.scene), item.kind, escape(where + item.problem))
        out.print(table)
        if len(report.problems) > _MAX_ROWS:
            out.print(f"... and {len(report.problems) - _MAX_ROWS} more, see --json")
    counts = ", ".join(f"{number} {kind}" for kind, number in report.counts.items()) or "nothing wrong"
    facts = report.to_dict()
    numbers = f"{facts['pairs']} pairs read, {facts['without_truth']} without truth, {facts['compared']} compared"
    if facts["unknown_normals"]:
        counts += f"; {facts['unknown_normals']} pixels without a normal"
    out.print(f"{numbers} by warping: {counts}")
