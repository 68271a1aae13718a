# SPDX-License-Identifier: Apache-2.0
"""Options that several sub-commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_CONFIDENCE_THRESHOLD = 0.5


def scale(text: str) -> float | str:
    """A factor, or ``auto``."""
    return text if text == "auto" else float(text)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def image_size(text: str) -> tuple[int, int]:
    """``HxW`` as (height, width), each at least 16."""
    height, _, width = text.lower().partition("x")
    if not (height.isdigit() and width.isdigit() and min(int(height), int(width)) >= 16):
        raise argparse.ArgumentTypeError(f"must be HEIGHTxWIDTH of at least 16x16, e.g. 540x960, got '{text}'")
    return int(height), int(width)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """``--model --weights --scale --device --precision --force --no-confidence``."""
    parser.add_argument("--model", metavar="NAME", help="a network, NAME.TAG or exported file (default: covonet)")
    parser.add_argument("--weights", metavar="PATH", help="a checkpoint; otherwise the shipped weights")
    parser.add_argument("--scale", type=scale, default=1.0, metavar="S", help="size of the network's images, or auto")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: CUDA where there is one)")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--force", action="store_true", help="run even if the memory seems too small")
    parser.add_argument("--no-confidence", action="store_true", help="one pass only: half the time, no confidence")


def add_runtime_option(parser: argparse.ArgumentParser) -> None:
    """``--runtime``."""
    parser.add_argument(
        "--runtime",
        choices=["torch", "onnx"],
        help="what runs the network; onnx: --model is a FILE.onnx of 'vision3d export' (default: by its name)",
    )


def check_runtime(arguments: argparse.Namespace) -> None:
    """Refuse a runtime that does not fit the model, and options that an exported file has no use for.

    Raises:
        InputError: one of these.
    """
    from vision3d.errors import InputError

    onnx = str(arguments.model).endswith(".onnx")
    if arguments.runtime == "onnx" and not onnx:
        raise InputError("--runtime onnx needs --model FILE.onnx: make it with 'vision3d export onnx NAME --out FILE'")
    if arguments.runtime == "torch" and onnx:
        raise InputError(
            f"--model {arguments.model} is not run by torch: pass --runtime onnx, or the name of a network"
        )
    if onnx and arguments.precision != "float32":
        raise InputError(f"{arguments.model} runs in float32: leave --precision out")


def add_normals_option(parser: argparse.ArgumentParser) -> None:
    """``--normals``."""
    parser.add_argument(
        "--normals",
        action="store_true",
        help="normals also from networks without: planes fitted to the disparity (networks such as dtnnet_tiny "
        "always answer some)",
    )


def add_calibration_options(parser: argparse.ArgumentParser, text: str, required: bool = False) -> None:
    """``--calib`` (twice for a pair of files) and ``--units``."""
    text = f"{text}; twice for a ROS pair: --calib LEFT --calib RIGHT"
    parser.add_argument("--calib", action="append", required=required, metavar="FILE", help=text)
    parser.add_argument(
        "--units", choices=["auto", "m", "mm"], default="auto", help="unit of its baseline (default: by the format)"
    )


def calibration_files(arguments: argparse.Namespace) -> tuple[Path, ...] | Path | None:
    """What ``--calib`` names: a file, a pair of files, or None.

    Raises:
        InputError: more than two files.
    """
    from vision3d.errors import InputError

    files = tuple(Path(name) for name in arguments.calib or ())
    if len(files) > 2:
        raise InputError(f"--calib is given {len(files)} times: give one file, or a pair: --calib LEFT --calib RIGHT")
    return files if len(files) == 2 else files[0] if files else None


def add_cloud_options(parser: argparse.ArgumentParser, confidence: bool = True) -> None:
    """``--min-depth --max-depth --voxel --keep-flying-pixels --remove-outliers`` and ``--confidence-threshold``."""
    parser.add_argument("--min-depth", type=float, metavar="M", help="leave out nearer points, metres")
    parser.add_argument("--max-depth", type=float, metavar="M", help="leave out farther points, metres")
    if confidence:
        parser.add_argument(
            "--confidence-threshold",
            type=float,
            default=_CONFIDENCE_THRESHOLD,
            metavar="C",
            help="0 to 1 (default: 0.5)",
        )
    parser.add_argument("--voxel", type=float, metavar="M", help="keep one point a cube of this edge, metres")
    parser.add_argument("--keep-flying-pixels", action="store_true", help="keep the points at depth edges")
    parser.add_argument("--remove-outliers", action="store_true", help="leave out points far from their neighbours")


def cloud_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of ``add_cloud_options`` as arguments of ``StereoResult.pointcloud``."""
    options = {
        "min_depth": arguments.min_depth,
        "max_depth": arguments.max_depth,
        "voxel_size": arguments.voxel,
        "remove_flying_pixels": not arguments.keep_flying_pixels,
        "remove_outliers": arguments.remove_outliers,
    }
    if hasattr(arguments, "confidence_threshold"):
        options["confidence_threshold"] = arguments.confidence_threshold
    return options


def check_cloud_options(arguments: argparse.Namespace) -> None:
    """Refuse limits that make no sense before anything is computed.

    Raises:
        InputError: one is out of range; the message names the flag.
    """
    from vision3d.errors import InputError
    from vision3d.results import check_limits

    threshold = getattr(arguments, "confidence_threshold", _CONFIDENCE_THRESHOLD)
    try:
        check_limits(arguments.min_depth, arguments.max_depth, threshold, arguments.voxel)
    except InputError as error:
        text = str(error).replace("voxel_size", "voxel")
        for name in ("min_depth", "max_depth", "confidence_threshold", "voxel"):
            text = text.replace(name, f"--{name.replace('_', '-')}")
        raise InputError(text) from error


def stated_cloud_options(arguments: argparse.Namespace) -> list[str]:
    """The flags of ``add_cloud_options`` that differ from their defaults."""
    stated = {
        "--min-depth": arguments.min_depth is not None,
        "--max-depth": arguments.max_depth is not None,
        "--confidence-threshold": getattr(arguments, "confidence_threshold", _CONFIDENCE_THRESHOLD)
        != _CONFIDENCE_THRESHOLD,
        "--voxel": arguments.voxel is not None,
        "--keep-flying-pixels": arguments.keep_flying_pixels,
        "--remove-outliers": arguments.remove_outliers,
    }
    return [flag for flag, given in stated.items() if given]
