# SPDX-License-Identifier: Apache-2.0
"""``vision3d nerf evaluate``: figures of a radiance field's cameras and views."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from vision3d.cli.options import positive
from vision3d.cli.output import ProgressBars, console, to_json, write_json

_POSES = {
    "fitted": "their own, of the fit",
    "interpolated": "between the neighbours",
    "reference": "reference, moved by Sim(3)",
    "refined": "fitted to the frame at test time",
}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``evaluate``."""
    parser = subparsers.add_parser(
        "evaluate",
        help="error figures of a radiance field's cameras and views",
        description="Errors of the cameras against a reference after Sim(3) alignment, and PSNR and SSIM of the "
        "rendered views. Held-out views are scored from each kind of poses, with and without looking at the frame.",
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder of the radiance field")
    parser.add_argument(
        "--reference", type=Path, metavar="FOLDER", help="folder with a COLMAP model, transforms.json or cameras.json"
    )
    parser.add_argument("--images", type=Path, metavar="PATH", help="where the frames are now (default: as in the fit)")
    parser.add_argument("--no-views", action="store_true", help="cameras only")
    parser.add_argument("--refine-steps", type=positive, default=300, metavar="N", help="at test time (default 300)")
    parser.add_argument("--refine-rays", type=positive, default=2048, metavar="N", help="of a step (default 2048)")
    parser.add_argument("--no-refinement", action="store_true", help="no row with poses fitted at test time")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: CUDA where there is one)")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="print one JSON object, or write it to FILE"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print the tables or one JSON object."""
    from vision3d.datasets.image_sequences import read_reference
    from vision3d.errors import InputError
    from vision3d.evaluation.radiance_fields import Refinement, evaluate_run, image_reader
    from vision3d.inference import choose_device
    from vision3d.training.nerf.run_folder import load_run

    if arguments.no_views and arguments.reference is None:
        raise InputError("--no-views leaves nothing to measure: add --reference FOLDER")
    fitted = load_run(arguments.run_folder, choose_device(arguments.device))
    reference = None
    if arguments.reference is not None:
        reference = read_reference(arguments.reference, fitted.names, fitted.size)
    refinement = Refinement(arguments.refine_steps, arguments.refine_rays)
    with ProgressBars() as progress:
        report = evaluate_run(
            fitted,
            reference=reference,
            read_images=None if arguments.no_views else image_reader(fitted, arguments.images),
            refinement=None if arguments.no_refinement else refinement,
            progress=progress,
        )
    for warning in report["warnings"]:
        print(f"vision3d: warning: {arguments.run_folder}: {warning}", file=sys.stderr)
    if arguments.json == "-":
        print(to_json(report))
        return 0
    if arguments.json:
        write_json(arguments.json, report)
    _print_tables(report)
    return 0


def _print_tables(report: dict[str, Any]) -> None:
    from rich.table import Table

    out = console()
    cameras = report["cameras"]
    if cameras is not None:
        table = Table(title=f"Cameras of {cameras['frames']} frames after Sim(3) alignment to the reference")
        names = ("ATE RMSE", "ATE mean", "rotation deg", "RPE", "RPE deg", "focal", "focal error %")
        for name in names:
            table.add_column(name)
        keys = ("ate_rmse", "ate_mean", "rotation_mean_deg", "rpe_translation", "rpe_rotation_deg", "focal")
        table.add_row(*(f"{cameras[key]:.4g}" for key in keys), f"{100 * cameras['focal_error']:.2f}")
        table.caption = (
            f"Lengths in the reference's unit; of a trajectory of RMS radius 1: ATE RMSE "
            f"{cameras['ate_rmse_normalized']:.4g}, mean {cameras['ate_mean_normalized']:.4g}."
        )
        out.print(table)
    if report["views"]:
        height, width = report["image_size"]
        table = Table(title=f"Views of {width}x{height} pixels")
        for name in ("frames", "poses", "test-time optimisation", "number", "PSNR dB", "SSIM"):
            table.add_column(name)
        for row in report["views"]:
            fitted = "yes" if row["test_time_optimization"] else "no"
            cells = (row["set"], _POSES[row["poses"]], fitted, str(row["frames"]))
            table.add_row(*cells, f"{row['psnr']:.2f}", f"{row['ssim']:.4f}")
        out.print(table)
