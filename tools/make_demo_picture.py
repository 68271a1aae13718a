# SPDX-License-Identifier: Apache-2.0
"""Make docs/images/demo.png: the left image of the demo pair, its disparity, and its point cloud seen from the side."""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np

from vision3d import PointCloud, predict_stereo
from vision3d.datasets.demo import load_motorcycle
from vision3d.io.images import write_image
from vision3d.visualization import disparity_picture

YAW, PITCH = np.deg2rad(-15.0), np.deg2rad(9.0)  # of the camera around the middle of the cloud


def render(cloud: PointCloud, width: int, height: int) -> np.ndarray:
    """Points as small squares, near ones over far ones: [height, width, 3] uint8 on dark ground."""
    middle = np.median(cloud.points, axis=0)
    yaw = np.array([[np.cos(YAW), 0, np.sin(YAW)], [0, 1, 0], [-np.sin(YAW), 0, np.cos(YAW)]])
    pitch = np.array([[1, 0, 0], [0, np.cos(PITCH), -np.sin(PITCH)], [0, np.sin(PITCH), np.cos(PITCH)]])
    points = (cloud.points - middle) @ (pitch @ yaw).T + np.array([0, 0, 1.25 * middle[2]])
    points, colors = points[points[:, 2] > 0.1], cloud.colors[points[:, 2] > 0.1]  # type: ignore[index]
    order = np.argsort(-points[:, 2])
    focal = 1.0 * width
    x = np.round(width / 2 + focal * points[order, 0] / points[order, 2]).astype(int)
    y = np.round(height / 2 + focal * points[order, 1] / points[order, 2]).astype(int)
    canvas = np.full((height, width, 3), 18, np.uint8)
    for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)):
        inside = (x + dx >= 0) & (x + dx < width) & (y + dy >= 0) & (y + dy < height)
        canvas[y[inside] + dy, x[inside] + dx] = colors[order][inside]
    return canvas


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images/demo.png"))
    out = parser.parse_args().out
    left, right, _, rig = load_motorcycle()
    result = predict_stereo(left, right, calibration=rig)
    height, width = left.shape[:2]
    panels = [left, disparity_picture(result.disparity), render(result.pointcloud(max_depth=5.0), width, height)]
    picture = np.hstack(panels)
    size = (1500, round(1500 * height / picture.shape[1]))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_image(out, cv2.resize(picture, size, interpolation=cv2.INTER_AREA))


if __name__ == "__main__":
    main()
