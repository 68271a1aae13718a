# SPDX-License-Identifier: Apache-2.0
"""Damaged camera files: nothing but the project's own errors may come out, whatever the bytes are."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import CUTS, EDITS, damaged, mutate
from hypothesis import HealthCheck, given, settings

from vision3d.errors import Vision3DError
from vision3d.io import colmap_binary, colmap_text
from vision3d.io.camera_json import read_cameras_json, read_transforms
from vision3d.io.cameras import (
    read_middlebury_parameters,
    read_mvsnet_camera,
    read_pairs,
    read_trajectory_log,
)
from vision3d.io.colmap import ColmapCamera, ColmapImage, ColmapPoints, read_colmap_depth

CAMERAS = {
    1: ColmapCamera("PINHOLE", 64, 48, np.array([50.0, 51, 32, 24])),
    2: ColmapCamera("RADIAL", 64, 48, np.array([50.0, 32, 24, 0.1, 0.2])),
}
IMAGES = {
    1: ColmapImage("a b.png", 1, np.array([1.0, 0, 0, 0]), np.zeros(3), np.ones((2, 2)), np.array([1, -1])),
    2: ColmapImage("c.png", 2, np.array([0.6, 0.8, 0, 0]), np.ones(3)),
}
POINTS = ColmapPoints(
    np.array([1, 5]), np.ones((2, 3)), np.ones((2, 3), np.uint8), np.ones(2), [np.array([[1, 0]]), np.array([[2, 0]])]
)
POSE = "1 0 0 0.5\n0 1 0 0\n0 0 1 2\n0 0 0 1\n"
FRAME = {"file_path": "a.png", "transform_matrix": np.eye(4).tolist(), "fl_x": 50, "w": 64, "h": 48, "cx": 32.0}
OURS = {"name": "a", "intrinsics": [[9, 0, 3], [0, 9, 3], [0, 0, 1]], "world_to_camera": np.eye(4).tolist()}

READERS: dict[str, tuple[Callable[[Path], Any], bytes]] = {
    "cam_txt": (read_mvsnet_camera, f"extrinsic\n{POSE}\nintrinsic\n50 0 32\n0 50 24\n0 0 1\n\n1.5 0.25 9 3".encode()),
    "pair_txt": (read_pairs, b"2\n0\n2 1 5.5 2 1.5\n1\n1 0 5.5\n"),
    "par_txt": (read_middlebury_parameters, b"1\na.png 9 0 1 0 9 1 0 0 1 1 0 0 0 1 0 0 0 1 0 0 0\n"),
    "log": (read_trajectory_log, f"0 0 0\n{POSE}1 1 0\n{POSE}".encode()),
    "transforms": (read_transforms, json.dumps({"k1": 0.1, "frames": [FRAME, FRAME]}).encode()),
    "cameras_json": (
        read_cameras_json,
        json.dumps({"format": "vision3d-cameras", "version": 1, "images": [OURS]}).encode(),
    ),
    "cameras_bin": (colmap_binary.read_cameras, colmap_binary.pack_cameras(CAMERAS)),
    "images_bin": (colmap_binary.read_images, colmap_binary.pack_images(IMAGES)),
    "points_bin": (colmap_binary.read_points, colmap_binary.pack_points(POINTS)),
    "cameras_txt": (colmap_text.read_cameras, colmap_text.pack_cameras(CAMERAS)),
    "images_txt": (colmap_text.read_images, colmap_text.pack_images(IMAGES)),
    "points_txt": (colmap_text.read_points, colmap_text.pack_points(POINTS)),
    "depth_bin": (read_colmap_depth, b"3&2&1&" + np.ones(6, "<f4").tobytes()),
}


@pytest.fixture
def file() -> Iterator[Path]:
    """A file in memory where the system offers it: opening others costs more than reading them."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder) / "file"


def _try(name: str, file: Path, content: bytes) -> None:
    """Read damaged content: nothing but one-line errors of the project may come out."""
    file.write_bytes(content)
    try:
        READERS[name][0](file)
    except Vision3DError as error:
        message = str(error)
        if "\n" in message or len(message) > 600:
            pytest.fail(f"the message is no short line: {message!r}")


@pytest.mark.parametrize("name", READERS)
def test_undamaged_files(name: str, file: Path) -> None:
    read, content = READERS[name]
    file.write_bytes(content)
    read(file)


@pytest.mark.filterwarnings("ignore:.*depth lines of 2 numbers")
@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name: str, file: Path) -> None:
    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(EDITS, CUTS)
    def check(edits: list[tuple[int, int, bytes]], keep: int) -> None:
        _try(name, file, mutate(READERS[name][1], edits, keep))

    check()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*depth lines of 2 numbers")
@pytest.mark.parametrize("name", READERS)
def test_many_damaged_files(name: str, file: Path) -> None:
    for content in damaged(READERS[name][1], 10_000, seed=name):
        _try(name, file, content)
