# SPDX-License-Identifier: Apache-2.0
"""``vision3d nerf render``: pictures and a video of a radiance field."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from vision3d.cli.options import image_size, positive
from vision3d.cli.output import ProgressBars, to_json


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``render``."""
    parser = subparsers.add_parser(
        "render",
        help="pictures and a video of a radiance field",
        description="Render views of a radiance field that 'vision3d nerf fit' has made.",
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder of the radiance field")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the pictures")
    parser.add_argument(
        "--views",
        choices=["held-out", "all", "path", "spiral"],
        default="all",
        help="all: the registered frames (default); held-out: between their neighbours; path: along the frames; "
        "spiral: around them",
    )
    parser.add_argument("--count", type=positive, default=60, metavar="N", help="of path and spiral (default 60)")
    parser.add_argument("--size", type=image_size, metavar="HxW", help="of the pictures (default: as in the fit's end)")
    parser.add_argument("--depth", action="store_true", help="also pictures of the depth")
    parser.add_argument("--video", action="store_true", help="also one MP4")
    parser.add_argument("--rate", type=float, default=10.0, metavar="F", help="frames a second of it (default 10)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: CUDA where there is one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Render, and say where the pictures are."""
    from vision3d.inference import choose_device
    from vision3d.radiance_render import render_run
    from vision3d.training.nerf.run_folder import load_run

    fitted = load_run(arguments.run_folder, choose_device(arguments.device))
    with ProgressBars() as progress:
        report = render_run(
            fitted,
            arguments.out,
            views=arguments.views,
            count=arguments.count,
            size=arguments.size,
            depth=arguments.depth,
            video=arguments.video,
            rate=arguments.rate,
            progress=progress,
        )
    height, width = report["size"]
    where = report["video"] or arguments.out
    print(f"{arguments.run_folder}: {len(report['frames'])} views of {width}x{height} -> {where}", file=sys.stderr)
    if arguments.json:
        print(to_json({"output": arguments.out, **report}))
    return 0
