# SPDX-License-Identifier: Apache-2.0
"""Options that several sub-commands share."""

from __future__ import annotations

import argparse
from typing import Any


def scale(text: str) -> float | str:
    """A factor, or ``auto``."""
    return text if text == "auto" else float(text)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """``--model --weights --scale --device --precision --force --no-confidence``."""
    parser.add_argument("--model", metavar="NAME", help="a network or NAME.TAG (default: covonet)")
    parser.add_argument("--weights", metavar="PATH", help="a checkpoint; otherwise the shipped weights")
    parser.add_argument("--scale", type=scale, default=1.0, metavar="S", help="size of the network's images, or auto")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: CUDA where there is one)")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--force", action="store_true", help="run even if the memory seems too small")
    parser.add_argument("--no-confidence", action="store_true", help="one pass only: half the time, no confidence")


def add_cloud_options(parser: argparse.ArgumentParser, confidence: bool = True) -> None:
    """``--min-depth --max-depth --voxel --keep-flying-pixels --remove-outliers`` and ``--confidence-threshold``."""
    parser.add_argument("--min-depth", type=float, metavar="M", help="leave out nearer points, metres")
    parser.add_argument("--max-depth", type=float, metavar="M", help="leave out farther points, metres")
    if confidence:
        parser.add_argument(
            "--confidence-threshold", type=float, default=0.5, metavar="C", help="0 to 1 (default: 0.5)"
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
