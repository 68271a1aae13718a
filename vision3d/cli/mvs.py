# SPDX-License-Identifier: Apache-2.0
"""``vision3d mvs``: depth maps, point cloud and mesh of a folder of posed images."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision3d.cli.options import image_size, positive
from vision3d.cli.output import ProgressBars, to_json, write_json

if TYPE_CHECKING:
    from vision3d.multiview.filters import FilterSettings


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d mvs``."""
    parser = subparsers.add_parser(
        "mvs",
        help="depth maps, point cloud and mesh of a folder of posed images",
        description="Depth and confidence of each view of a scene (COLMAP model, MVSNet layout, cameras.json, "
        "transforms.json), and their fusion to a coloured point cloud. A killed run goes on where it stopped.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of the scene")
    parser.add_argument("--model", metavar="NAME", help="a network or NAME.TAG (default: dispmvs_tiny)")
    parser.add_argument("--weights", metavar="PATH", help="a checkpoint; otherwise the shipped weights")
    parser.add_argument("--out", type=Path, default=Path("vision3d_mvs"), metavar="DIR", help="default: vision3d_mvs")
    parser.add_argument("--views", type=positive, default=5, metavar="N", help="views of a depth map (default 5)")
    parser.add_argument("--size", type=image_size, metavar="HxW", help="of images and maps (default: as they are)")
    parser.add_argument("--depth-range", type=float, nargs=2, metavar=("MIN", "MAX"), help="instead of the files'")
    parser.add_argument("--depth-line", choices=["auto", "range", "interval"], default="auto", help="of MVSNet cameras")
    parser.add_argument(
        "--filter",
        choices=["default", "official"],
        default="default",
        help="default: one setting for all scenes; official: tuned by the authors for each test scene of DTU and Tanks "
        "and Temples, without photometric filter",
    )
    parser.add_argument("--min-views", type=positive, metavar="N", help="source views that confirm a depth (default 3)")
    parser.add_argument("--pixel-error", type=float, metavar="PX", help="largest reprojection error (default 0.5)")
    parser.add_argument("--depth-error", type=float, metavar="E", help="largest relative depth error (default 0.01)")
    parser.add_argument("--min-confidence", type=float, metavar="C", help="confidence must exceed it (default 0)")
    parser.add_argument("--mesh", action="store_true", help="also write mesh.ply (TSDF; extra '3d')")
    parser.add_argument("--voxel", type=float, metavar="SIZE", help="of the mesh, in the unit of the cameras")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: CUDA where there is one)")
    parser.add_argument("--overwrite", action="store_true", help="replace depth maps of other settings in --out")
    parser.add_argument("--no-pictures", action="store_true", help="no PNG pictures of the maps")
    parser.add_argument("--force", action="store_true", help="run even if the memory seems too small")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Reconstruct the scene and say where the results are."""
    from vision3d.multiview.pipeline import predict_mvs

    settings = _filter(arguments)
    with ProgressBars() as progress:
        result = predict_mvs(
            arguments.folder,
            arguments.model,
            arguments.out,
            views=arguments.views,
            size=arguments.size,
            weights=arguments.weights,
            filtering=settings,
            mesh=arguments.mesh,
            voxel_size=arguments.voxel,
            depth_range=None if arguments.depth_range is None else tuple(arguments.depth_range),
            depth_line=arguments.depth_line,
            device=arguments.device,
            overwrite=arguments.overwrite,
            pictures=not arguments.no_pictures,
            check_memory=not arguments.force,
            progress=progress,
        )
    report = result.report()
    write_json(result.folder / "report.json", report)
    for warning in result.warnings:
        print(f"vision3d: warning: {arguments.folder}: {warning}", file=sys.stderr)
    text = f"{len(result.views)} depth maps ({result.reused} of an earlier run), {result.points} points"
    print(f"{arguments.folder}: {text}, {result.seconds[1]:.1f} s -> {result.cloud_path}", file=sys.stderr)
    if arguments.json:
        print(to_json(report))
    return 0


def _filter(arguments: argparse.Namespace) -> FilterSettings:
    """The filter that the flags ask for."""
    from dataclasses import replace

    from vision3d.geometry.fusion import ConsistencyRule
    from vision3d.multiview.filters import FilterSettings, official_settings

    official = arguments.filter == "official"
    settings = official_settings(arguments.folder.resolve().name) if official else FilterSettings()
    own = {
        "min_views": arguments.min_views,
        "max_pixel_error": arguments.pixel_error,
        "max_relative_error": arguments.depth_error,
    }
    rule: ConsistencyRule = replace(settings.rule, **{key: value for key, value in own.items() if value is not None})
    settings = replace(settings, rule=rule)
    if arguments.min_confidence is not None:
        settings = replace(settings, min_confidence=arguments.min_confidence)
    return settings
