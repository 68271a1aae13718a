# SPDX-License-Identifier: Apache-2.0
"""``vision3d predict``: disparity, depth, confidence and point cloud of one stereo pair or of many."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vision3d.cli.options import (
    add_calibration_options,
    add_cloud_options,
    add_model_options,
    add_normals_option,
    add_runtime_option,
    calibration_files,
    check_cloud_options,
    check_runtime,
    cloud_options,
    stated_cloud_options,
)
from vision3d.cli.output import console, to_json


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d predict``."""
    parser = subparsers.add_parser(
        "predict",
        help="disparity, depth, confidence and point cloud of a stereo pair",
        description="Disparity, depth, confidence and point cloud of one rectified stereo pair, or of two folders.",
    )
    parser.add_argument("left", nargs="?", metavar="LEFT", help="left image, or the folder of the left images")
    parser.add_argument("right", nargs="?", metavar="RIGHT", help="right image, or the folder of the right images")
    parser.add_argument("--list", metavar="FILE", help="text file with one pair a line: LEFT RIGHT")
    add_calibration_options(parser, "calibration of the pair: adds metric depth and cloud files")
    parser.add_argument("--out", type=Path, default=Path("vision3d_out"), metavar="DIR", help="default: vision3d_out")
    add_model_options(parser)
    add_runtime_option(parser)
    add_cloud_options(parser)
    parser.add_argument(
        "--cloud-format",
        type=cloud_formats,
        default=["ply", "glb"],
        metavar="LIST",
        help="of ply, glb, pcd, separated by commas, or none (default: ply,glb)",
    )
    parser.add_argument(
        "--max-display",
        type=float,
        metavar="D",
        help="disparity of the last colour (default: from the first pair, the same for all)",
    )
    add_normals_option(parser)
    parser.add_argument("--no-view", action="store_true", help="write no view.html")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def cloud_formats(text: str) -> list[str]:
    """``ply,glb`` as a list; ``none`` is an empty one."""
    from vision3d.results import CLOUD_FORMATS

    names = [] if text == "none" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in CLOUD_FORMATS:
            raise argparse.ArgumentTypeError(f"unknown format '{name}': use {', '.join(CLOUD_FORMATS)} or none")
    return names


def run(arguments: argparse.Namespace) -> int:
    """Predict every pair, write a folder for each, and say where they are."""
    from vision3d.io.pairs import find_pairs, name_pairs

    _check_options(arguments)
    pairs = find_pairs(arguments.left, arguments.right, arguments.list)
    folders = [arguments.out] if len(pairs) == 1 else [arguments.out / name for name in name_pairs(pairs)]
    with _output_folder(arguments.out):
        reports = _predict_all(arguments, pairs, folders)
    for report in reports:
        _tell(report)
    if arguments.json:
        print(to_json(reports[0] if len(pairs) == 1 else {"pairs": reports}))
    return 2 if any("error" in report for report in reports) else 0


def _check_options(arguments: argparse.Namespace) -> None:
    """Refuse wrong values before the network is loaded; say once which options have no effect."""
    from vision3d.errors import InputError

    high = arguments.max_display
    if high is not None and not 0 < high < float("inf"):
        raise InputError(f"--max-display is {high:g}: pass a positive number of pixels")
    check_cloud_options(arguments)
    check_runtime(arguments)
    if calibration_files(arguments) is None and (flags := stated_cloud_options(arguments)):
        print(f"vision3d: warning: {', '.join(flags)}: no effect without --calib FILE (no cloud)", file=sys.stderr)


@contextlib.contextmanager
def _output_folder(path: Path) -> Iterator[None]:
    """Make the folder, so that an unwritable one is known before the work, and remove it if nothing was put into it."""
    from vision3d.io.files import ensure_folder

    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    ensure_folder(path)
    try:
        yield
    finally:
        for folder in made:
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()


def _predict_all(
    arguments: argparse.Namespace, pairs: list[tuple[Path, Path]], folders: list[Path]
) -> list[dict[str, Any]]:
    """The report of each pair; of many, one that fails gets an entry ``error``."""
    from vision3d.errors import Vision3DError
    from vision3d.pipelines import load_stereo_model

    network, name, _ = load_stereo_model(arguments.model, arguments.weights, arguments.device)
    messages = console(stderr=True)
    reports: list[dict[str, Any]] = []
    with _progress(messages, len(pairs)) as advance:
        for (left, right), folder in zip(pairs, folders, strict=True):
            advance(left.name)
            try:
                reports.append(_predict(arguments, network, name, left, right, folder))
            except Vision3DError as error:
                if len(pairs) == 1:
                    raise
                reports.append({"files": {"left": str(left), "right": str(right)}, "error": str(error)})
    return reports


def _predict(
    arguments: argparse.Namespace, network: Any, name: str, left: Path, right: Path, folder: Path
) -> dict[str, Any]:
    from vision3d.pipelines import predict_stereo
    from vision3d.visualization import display_range

    result = predict_stereo(
        left,
        right,
        model=network,
        calibration=calibration_files(arguments),
        units=arguments.units,
        scale=arguments.scale,
        confidence=not arguments.no_confidence,
        precision=arguments.precision,
        check_memory=not arguments.force,
        normals=arguments.normals,
    )
    result.model = name
    if arguments.max_display is None:  # one range for all pairs, so that colours do not jump from frame to frame
        arguments.max_display = display_range(result.disparity)[1]
    written = result.save(
        folder,
        cloud_formats=arguments.cloud_format,
        view=not arguments.no_view,
        max_display=arguments.max_display,
        **cloud_options(arguments),
    )
    return {**result.report(), "output": {key: str(path) for key, path in written.items()}}


def _tell(report: dict[str, Any]) -> None:
    """One line a pair, its warnings before it, on stderr."""
    left = report["files"]["left"]
    if "error" in report:
        print(f"vision3d: error: {' '.join(report['error'].split())}", file=sys.stderr)
        return
    for warning in report["warnings"]:
        print(f"vision3d: warning: {left}: {warning}", file=sys.stderr)
    disparity = report["disparity"]
    if disparity["min"] is None:
        text = f"{left}: no disparity"
    else:
        text = f"{left}: disparity {disparity['min']} to {disparity['max']} px"
    if report["depth"] is not None and report["depth"]["min"] is not None:
        text += f", depth {report['depth']['min']} to {report['depth']['max']} m"
    folder = Path(report["output"]["report.json"]).parent
    page = "view.html" if "view.html" in report["output"] else "disparity.png"
    print(f"{text}, {report['seconds']} s -> {folder / page}", file=sys.stderr)


class _progress:  # noqa: N801  (used like a function)
    """A progress bar on stderr for many pairs, nothing for one."""

    def __init__(self, messages: Any, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=messages, transient=True, disable=total < 2)
        self.task = self.bar.add_task("", total=total, completed=-1)

    def __enter__(self) -> Any:
        self.bar.start()
        return lambda text: self.bar.update(self.task, description=text, advance=1)

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()
