# SPDX-License-Identifier: Apache-2.0
"""``vision3d benchmark data``: reading speed beside plain calls, and memory over many samples."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from vision3d.cli.options import image_size
from vision3d.cli.output import console, to_json


def add_data(kinds: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d benchmark data``."""
    parser = kinds.add_parser(
        "data",
        help="reading of images and maps beside the plain calls of OpenCV, OpenEXR and NumPy",
        description="Samples a second and loader process, beside the plain calls of OpenCV, OpenEXR and NumPy.",
    )
    parser.add_argument("--size", type=image_size, default=(540, 960), metavar="HxW", help="default 540x960")
    parser.add_argument("--formats", nargs="+", metavar="F", help="pfm, png, png16, exr, sample (default: all)")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2], metavar="N", help="default: 1 2")
    parser.add_argument("--seconds", type=float, default=2.0, help="a round (default 2)")
    parser.add_argument("--memory", type=int, default=0, metavar="N", help="also read N samples and watch the memory")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_data)


def run_data(arguments: argparse.Namespace) -> int:
    """Measure and print the table or one JSON object."""
    import importlib.util
    from dataclasses import asdict

    from vision3d.datasets.speed import FORMATS, PROTOCOL, measure_memory, measure_speed, write_speed_files
    from vision3d.errors import InputError

    if min(arguments.workers) < 1 or not arguments.seconds > 0 or arguments.memory < 0:
        raise InputError("--workers must be at least 1, --seconds positive and --memory not negative")
    exr = importlib.util.find_spec("OpenEXR") is not None
    formats = tuple(arguments.formats or (name for name in FORMATS if exr or name != "exr"))
    with tempfile.TemporaryDirectory() as folder:
        names = write_speed_files(Path(folder), arguments.size[0], arguments.size[1], exr=exr)
        rows = list(measure_speed(names, formats, tuple(arguments.workers), arguments.seconds))
        memory = measure_memory(names, arguments.memory) if arguments.memory else []
    if arguments.json:
        size = "x".join(map(str, arguments.size))
        print(to_json({"size": size, "protocol": PROTOCOL, "rows": [asdict(row) for row in rows], "memory": memory}))
        return 0
    from rich.table import Table

    table = Table("format", "workers", title=f"{arguments.size[0]}x{arguments.size[1]}, items a second and worker")
    for column in ("ours", "plain", "ours, CPU ms", "plain, CPU ms", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        times = (f"{row.ours_ms:.2f}", f"{row.plain_ms:.2f}", f"{row.ratio:.2f}")
        table.add_row(row.format, str(row.workers), f"{row.ours:.1f}", f"{row.plain:.1f}", *times)
    console().print(table)
    console().print(f"Protocol: {PROTOCOL}.")
    for number, resident in memory:
        console().print(f"after {number} samples: {resident:.1f} MiB")
    return 0
