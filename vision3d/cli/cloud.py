# SPDX-License-Identifier: Apache-2.0
"""``vision3d cloud``: a point cloud from a disparity or depth map and a calibration."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision3d.cli.options import (
    add_calibration_options,
    add_cloud_options,
    calibration_files,
    check_cloud_options,
    cloud_options,
)
from vision3d.cli.output import to_json

if TYPE_CHECKING:
    import numpy as np

    from vision3d.results import StereoResult


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d cloud``."""
    parser = subparsers.add_parser(
        "cloud",
        help="point cloud from a disparity or depth map and a calibration",
        description="Point cloud of a disparity map (PFM, KITTI PNG, npy, npz) or a depth map, coloured by the image.",
    )
    parser.add_argument("map", metavar="MAP", help="disparity map of the left view")
    parser.add_argument("image", metavar="IMAGE", help="left image, of the same size")
    add_calibration_options(parser, "calibration of these images", required=True)
    parser.add_argument("--out", type=Path, default=Path("cloud.ply"), metavar="FILE", help=".ply, .glb or .pcd")
    parser.add_argument("--depth", action="store_true", help="MAP is depth: 16-bit PNG in mm, or PFM or npy in metres")
    parser.add_argument("--encoding", help="of MAP: pfm, uint16, uint8, npy, npz, npz:KEY (default: by the file)")
    parser.add_argument("--divide-by", type=float, metavar="N", help="codes a pixel of disparity (a metre of depth)")
    add_cloud_options(parser, confidence=False)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, unproject, filter, write."""
    from vision3d.errors import InputError
    from vision3d.io.pointcloud import write_pointcloud

    check_cloud_options(arguments)
    result = read_result(arguments)
    cloud = result.pointcloud(**cloud_options(arguments))
    if len(cloud) == 0:
        raise InputError(f"{arguments.map}: no point passed the limits of depth: widen them")
    write_pointcloud(arguments.out, cloud)
    low, high = cloud.points.min(axis=0), cloud.points.max(axis=0)
    if arguments.json:
        bounds = {"min": low.tolist(), "max": high.tolist()}
        print(to_json({"output": arguments.out, "points": len(cloud), "unit": "m", "bounds": bounds}))
    else:
        size = " x ".join(f"{extent:.3g}" for extent in high - low)
        print(f"{arguments.out}: {len(cloud)} points, {size} m", file=sys.stderr)
    return 0


def read_result(arguments: argparse.Namespace) -> StereoResult:
    """The map, the image and the calibration of the command line.

    Raises:
        FileFormatError: a file that cannot be used. InputError: sizes that differ.
    """
    from vision3d.errors import InputError
    from vision3d.geometry.disparity import depth_to_disparity, disparity_to_depth
    from vision3d.io.calibration import read_calibration
    from vision3d.io.images import read_image
    from vision3d.results import StereoResult

    files = calibration_files(arguments)
    if files is None:
        raise InputError("a metric point cloud needs the calibration: pass --calib FILE")
    values = _read_map(arguments)
    image = read_image(arguments.image)
    height, width = values.shape
    if image.shape[:2] != values.shape:
        raise InputError(
            f"{arguments.map} is {width}x{height} but {arguments.image} is {image.shape[1]}x{image.shape[0]}: "
            "pass the map and the image of one size"
        )
    rig = read_calibration(files, image_size=(width, height), units=arguments.units)
    disparity = depth_to_disparity(values, rig) if arguments.depth else values
    depth = values if arguments.depth else disparity_to_depth(values, rig)
    return StereoResult(disparity=disparity, image=image, right=image, depth=depth, rig=rig)


def _read_map(arguments: argparse.Namespace) -> np.ndarray:
    from vision3d.io.disparity import read_depth_png16, read_disparity

    stated = arguments.encoding is not None or arguments.divide_by is not None
    if arguments.depth and arguments.map.lower().endswith(".png") and not stated:
        return read_depth_png16(arguments.map)
    return read_disparity(arguments.map, encoding=arguments.encoding, divide_by=arguments.divide_by)
