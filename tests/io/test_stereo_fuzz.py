# SPDX-License-Identifier: Apache-2.0
"""Damaged PFM and calibration files: nothing but the project's own errors may come out, whatever the bytes are."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import CUTS, EDITS, damaged, mutate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vision3d.errors import Vision3DError
from vision3d.io.calibration import read_calibration, write_calibration
from vision3d.io.disparity import read_disparity
from vision3d.io.pfm import read_pfm
from vision3d.types import Camera, StereoRig

MAP = np.arange(12, dtype="<f4").tobytes()
MATRIX = "[50 0 32; 0 50 24; 0 0 1]"
YAML = """%YAML:1.0
---
M1: !!opencv-matrix
   rows: 3
   cols: 3
   dt: d
   data: [ 50., 0., 32., 0., 50., 24., 0., 0., 1. ]
P1: !!opencv-matrix
   rows: 3
   cols: 4
   dt: d
   data: [ 50., 0., 32., 0., 0., 50., 24., 0., 0., 0., 1., 0. ]
P2: !!opencv-matrix
   rows: 3
   cols: 4
   dt: d
   data: [ 50., 0., 32., -5., 0., 50., 24., 0., 0., 0., 1., 0. ]
"""
ROWS = [f"P{n}: 50 0 32 {-5.0 * n} 0 50 24 0 0 0 1 0" for n in range(4)]


def _json() -> bytes:
    camera = {"intrinsics": [[50.0, 0, 32], [0, 50, 24], [0, 0, 1]]}
    content = {"format": "vision3d-calibration", "version": 1, "width": 64, "height": 48, "baseline_m": 0.1}
    return json.dumps({**content, "left": camera, "right": camera}).encode()


READERS: dict[str, tuple[Callable[[Path], Any], str, bytes]] = {
    "pfm": (read_pfm, "a.pfm", b"Pf\n4 3\n-1.0\n" + MAP),
    "pfm_color": (read_pfm, "a.pfm", b"PF\n2 2\n1.0\n" + MAP),
    "pfm_disparity": (read_disparity, "a.pfm", b"Pf\n# text\n4 3\n-1.0\n" + MAP),
    "middlebury": (
        read_calibration,
        "calib.txt",
        f"cam0={MATRIX}\ncam1={MATRIX}\ndoffs=0\nbaseline=100\nwidth=64\nheight=48\nndisp=9\n".encode(),
    ),
    "kitti_object": (read_calibration, "calib.txt", "\n".join(ROWS).encode()),
    "kitti_raw": (
        read_calibration,
        "calib.txt",
        "\n".join(["calib_time: 9", "S_rect_02: 64 48", *(r.replace("P", "P_rect_0") for r in ROWS)]).encode(),
    ),
    "plain": (read_calibration, "K.txt", b"50 0 32 0 50 24 0 0 1\n0.1\n"),
    "json": (read_calibration, "calib.json", _json()),
    "yaml": (read_calibration, "calib.yaml", YAML.encode()),
}


def _try(read: Callable[[Path], Any], file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            read(file)
        except Vision3DError as error:
            if "\n" in str(error):
                pytest.fail(f"the message is no line: {str(error)!r}")


@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    read, file_name, content = READERS[name]
    file = tmp_path / file_name
    file.write_bytes(content)
    read(file)  # the undamaged file is good

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(EDITS, CUTS)
    def check(edits: list[tuple[int, int, bytes]], keep: int) -> None:
        _try(read, file, mutate(content, edits, keep))

    check()


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_damaged_files(name: str, tmp_path: Path) -> None:
    read, file_name, content = READERS[name]
    for damage in damaged(content, 10_000, seed=name):
        _try(read, tmp_path / file_name, damage)


@pytest.mark.parametrize("reader", [read_pfm, read_calibration])
@settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=200))
def test_any_bytes(reader: Callable[[Path], Any], tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with contextlib.suppress(Vision3DError):
        reader(tmp_path / "file")


def test_the_json_is_ours(tmp_path: Path) -> None:
    camera = Camera(np.array([[50.0, 0, 32], [0, 50, 24], [0, 0, 1]]), 64, 48)
    write_calibration(tmp_path / "a.json", StereoRig(camera, camera, 0.1))
    assert json.loads((tmp_path / "a.json").read_bytes()) == json.loads(_json())
