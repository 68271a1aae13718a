# SPDX-License-Identifier: Apache-2.0
"""``vision3d panorama``: distances, point cloud and textured mesh of one equirectangular panorama or of many."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from vision3d.cli.options import add_runtime_option, check_runtime, positive
from vision3d.cli.output import to_json
from vision3d.cli.predict import cloud_formats


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d panorama``."""
    parser = subparsers.add_parser(
        "panorama",
        help="distances, point cloud and textured mesh of a panorama",
        description="Distances, coloured point cloud and textured mesh of equirectangular panoramas (2:1, any size).",
    )
    parser.add_argument("image", nargs="+", type=Path, metavar="IMAGE", help="one panorama, or several")
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="a network, NAME.TAG or exported file (default: panoramadepth_tiny; "
        "spheredepth_tiny with --level or --texture)",
    )
    parser.add_argument("--weights", metavar="PATH", help="a checkpoint; otherwise the shipped weights")
    parser.add_argument("--level", type=int, metavar="L", help="level of the mesh, of networks on one (4 to 8)")
    parser.add_argument("--texture", type=int, metavar="S", help="texture levels, of networks on a mesh (own weights)")
    parser.add_argument("--height", type=positive, metavar="ROWS", help="rows of the image that the network sees")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: CUDA where there is one)")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16", "float16"])
    add_runtime_option(parser)
    parser.add_argument("--force", action="store_true", help="run even if the picture seems to be no panorama")
    parser.add_argument("--out", type=Path, default=Path("vision3d_out"), metavar="DIR", help="default: vision3d_out")
    parser.add_argument(
        "--cloud-format",
        type=cloud_formats,
        default=["ply", "glb"],
        metavar="LIST",
        help="of ply, glb, pcd, separated by commas, or none (default: ply,glb)",
    )
    parser.add_argument("--min-depth", type=float, metavar="M", help="leave out nearer points, metres")
    parser.add_argument("--max-depth", type=float, metavar="M", help="leave out farther points, metres")
    parser.add_argument("--voxel", type=float, metavar="M", help="keep one point a cube of this edge, metres")
    parser.add_argument("--uniform", action="store_true", help="one point a face of the mesh instead of one a pixel")
    parser.add_argument("--keep-flying-pixels", action="store_true", help="keep the points at depth edges")
    parser.add_argument("--max-display", type=float, metavar="M", help="metres of the last colour")
    parser.add_argument("--no-mesh", action="store_true", help="write no mesh.glb")
    parser.add_argument("--no-view", action="store_true", help="write no view.html")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Predict every panorama, write a folder for each, and say where they are."""
    from vision3d.errors import Vision3DError
    from vision3d.panorama import load_panorama_model

    check_runtime(arguments)
    network, name, _ = load_panorama_model(
        arguments.model, arguments.weights, arguments.device, level=arguments.level, texture=arguments.texture
    )
    single = len(arguments.image) == 1
    reports: list[dict[str, Any]] = []
    for path, folder in zip(arguments.image, _folders(arguments.image, arguments.out), strict=True):
        try:
            reports.append(_predict(arguments, network, name, path, folder))
        except Vision3DError as error:
            if single:
                raise
            reports.append({"files": {"image": str(path)}, "error": str(error)})
        _tell(reports[-1])
    if arguments.json:
        print(to_json(reports[0] if single else {"panoramas": reports}))
    return 2 if any("error" in report for report in reports) else 0


def _folders(paths: list[Path], out: Path) -> list[Path]:
    """A folder for each panorama; equal names get a number."""
    if len(paths) == 1:
        return [out]
    names: list[str] = []
    for path in paths:
        repeats = sum(name.rpartition("_")[0] == path.stem or name == path.stem for name in names)
        names.append(path.stem if not repeats else f"{path.stem}_{repeats + 1}")
    return [out / name for name in names]


def _predict(arguments: argparse.Namespace, network: Any, name: str, path: Path, folder: Path) -> dict[str, Any]:
    from vision3d.panorama import predict_panorama

    result = predict_panorama(
        path,
        network,
        height=arguments.height,
        precision=arguments.precision,
        check_image=not arguments.force,
    )
    result.model = name
    written = result.save(
        folder,
        cloud_formats=arguments.cloud_format,
        mesh=not arguments.no_mesh,
        view=not arguments.no_view,
        max_display=arguments.max_display,
        min_depth=arguments.min_depth,
        max_depth=arguments.max_depth,
        voxel_size=arguments.voxel,
        uniform=arguments.uniform,
        remove_flying_pixels=not arguments.keep_flying_pixels,
    )
    return {**result.report(), "output": {key: str(file) for key, file in written.items()}}


def _tell(report: dict[str, Any]) -> None:
    """One line a panorama, its warnings before it, on stderr."""
    path = report["files"]["image"]
    if "error" in report:
        print(f"vision3d: error: {' '.join(report['error'].split())}", file=sys.stderr)
        return
    for warning in report["warnings"]:
        print(f"vision3d: warning: {path}: {warning}", file=sys.stderr)
    depth, output = report["depth"], report["output"]
    shown = output.get("view.html", output["distance.png"])
    print(
        f"{path}: {depth['min']} to {depth['max']} m, median {depth['median']} m, {report['seconds']} s -> {shown}",
        file=sys.stderr,
    )
