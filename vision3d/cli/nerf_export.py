# SPDX-License-Identifier: Apache-2.0
"""``vision3d nerf export``: files of a radiance field for other programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from vision3d.cli.options import image_size
from vision3d.cli.output import ProgressBars, to_json

_FORMATS = ["colmap", "colmap-binary", "transforms", "images", "depth", "cloud", "mesh", "page"]
_DEFAULT = ["colmap", "transforms", "cloud", "page"]


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``export``."""
    parser = subparsers.add_parser(
        "export",
        help="cameras, depth maps, cloud, mesh and page of a radiance field",
        description="Write files of a radiance field for other programs. Lengths are in the unit of the scene.",
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder of the radiance field")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the files")
    parser.add_argument(
        "--format",
        nargs="+",
        choices=_FORMATS,
        default=_DEFAULT,
        metavar="F",
        help=f"of {', '.join(_FORMATS)} (default: {' '.join(_DEFAULT)}); mesh needs the extra '3d'",
    )
    parser.add_argument("--size", type=image_size, metavar="HxW", help="of depth, cloud, mesh (default: as in the fit)")
    parser.add_argument("--images", type=Path, metavar="PATH", help="where the frames are now (default: as in the fit)")
    parser.add_argument("--voxel", type=float, metavar="SIZE", help="of the mesh (default 0.02); also thins the cloud")
    parser.add_argument("--min-opacity", type=float, default=0.5, metavar="A", help="of a known depth (default 0.5)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: CUDA where there is one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the files and say where they are."""
    from vision3d.inference import choose_device
    from vision3d.radiance_export import export_run
    from vision3d.training.nerf.run_folder import load_run

    fitted = load_run(arguments.run_folder, choose_device(arguments.device))
    with ProgressBars() as progress:
        report = export_run(
            fitted,
            arguments.out,
            arguments.format,
            size=arguments.size,
            images=arguments.images,
            voxel_size=arguments.voxel,
            min_opacity=arguments.min_opacity,
            title=arguments.run_folder.resolve().name,
            progress=progress,
        )
    for name, path in report["files"].items():
        print(f"{name}: {path}", file=sys.stderr)
    if arguments.json:
        print(to_json(report))
    return 0
