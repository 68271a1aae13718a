# SPDX-License-Identifier: Apache-2.0
"""``vision3d submit``: the archive that a benchmark server takes."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vision3d.cli.options import scale
from vision3d.cli.output import console, to_json


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d submit``."""
    parser = subparsers.add_parser(
        "submit",
        help="the archive that a benchmark server takes",
        description="Predict every scene of a benchmark and write the archive that its server takes, checked.",
    )
    parser.add_argument("benchmark", choices=["kitti2015", "kitti2012", "middlebury", "eth3d"])
    parser.add_argument("--model", required=True, metavar="NAME", help="a network or NAME.TAG")
    parser.add_argument("--weights", metavar="PATH", help="a checkpoint; otherwise the shipped weights")
    parser.add_argument("--root", type=Path, metavar="DIR", help="folder of the data set (default: as configured)")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.zip", help="the archive")
    parser.add_argument("--scale", type=scale, default=1.0, help="resize the images by this factor first, or auto")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: CUDA where there is one)")
    parser.add_argument("--method", metavar="NAME", help="Middlebury: name of the method (default: of the network)")
    parser.add_argument("--size", choices=["F", "H", "Q"], help="Middlebury: resolution (default H)")
    parser.add_argument("--seconds", type=float, metavar="S", help="time to state for each pair (default: measured)")
    parser.add_argument("--allow-missing", action="store_true", help="write the archive even if scenes are missing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Predict, write, check, and say what the archive holds."""
    from vision3d.evaluation.submission import shortened, submit

    with console(stderr=True).status("loading") as status:
        done = submit(
            arguments.model,
            arguments.benchmark,
            arguments.root,
            arguments.out,
            weights=arguments.weights,
            scale=arguments.scale,
            device=arguments.device,
            method=arguments.method,
            size=arguments.size,
            seconds=arguments.seconds,
            allow_missing=arguments.allow_missing,
            progress=lambda number, total, scene: status.update(f"{number + 1}/{total} {scene}"),
        )
    if done.missing:
        print(f"vision3d: warning: incomplete, missing: {shortened(done.missing)}", file=sys.stderr)
    if arguments.json:
        print(to_json(asdict(done)))
        return 0
    print(
        f"{done.path}: {len(done.scenes)} scenes, {done.files} files, {done.bytes / 1e6:.1f} MB, read back and checked"
    )
    if done.changed:
        print(f"{sum(done.changed.values())} pixels in {len(done.changed)} scenes had no usable value and were filled")
    return 0
