# SPDX-License-Identifier: Apache-2.0
"""Walks through rooms: their motion, their truth, and their files."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from vision3d.cli.main import main
from vision3d.datasets.image_sequences import read_sequence
from vision3d.datasets.synthetic.rooms import RoomOptions, make_room_sequence, write_room_sequence
from vision3d.errors import InputError
from vision3d.io.disparity import read_depth_png16
from vision3d.types import Camera

pytest.importorskip("open3d")
PLAIN = RoomOptions(
    width=(3.5, 4.5),
    furniture=(3, 5),
    focal=(0.9375, 0.9375),
    mirror=0,
    glass=0,
    specular=0,
    photometric=0,
    shadows=False,
    supersample=1,
)


def motion(cameras: list[Camera]) -> tuple[np.ndarray, np.ndarray]:
    """Length in metres and angle in degrees of each step."""
    poses = np.linalg.inv([camera.world_to_camera for camera in cameras])
    turns = Rotation.from_matrix(poses[:, :3, :3])
    angles = np.degrees((turns[:-1].inv() * turns[1:]).magnitude())
    return np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=1), angles


def test_steps_and_turns() -> None:
    first, double = (make_room_sequence(4, 10, 24, 32, PLAIN, turn=turn) for turn in (1.0, 2.0))
    steps, angles = motion(first.cameras)
    assert 0.129 < steps.min() < steps.max() < 0.171
    assert 0.99 < angles.min() < angles.max() < 2.01
    steps_again, angles_again = motion(double.cameras)
    np.testing.assert_allclose(steps_again, steps)
    np.testing.assert_allclose(angles_again, 2 * angles)
    np.testing.assert_array_equal(first.images[0], double.images[0])
    centers = [np.linalg.inv(camera.world_to_camera)[:3, 3] for camera in first.cameras]
    np.testing.assert_allclose(centers, [np.linalg.inv(c.world_to_camera)[:3, 3] for c in double.cameras])
    camera = first.cameras[3]
    assert (camera.fx, camera.cx, camera.cy) == pytest.approx((30, 15.5, 11.5))
    again = make_room_sequence(4, 10, 24, 32, PLAIN)
    np.testing.assert_array_equal(first.images, again.images)


def test_depth_and_poses_warp_one_frame_to_another() -> None:
    """The colour of a point that both frames see is the same there (diffuse light, no tone differences)."""
    sequence = make_room_sequence(5, 4, 60, 80, PLAIN)
    source, target = sequence.cameras[3], sequence.cameras[0]
    rows, columns = np.mgrid[:60, :80].astype(float)
    rays = np.stack([columns, rows, np.ones_like(rows)], -1) @ np.linalg.inv(target.intrinsics).T
    world = (rays * sequence.depths[0][..., None] - target.world_to_camera[:3, 3]) @ target.world_to_camera[:3, :3]
    local = world @ source.world_to_camera[:3, :3].T + source.world_to_camera[:3, 3]
    place = local @ source.intrinsics.T
    place = (place[..., :2] / place[..., 2:]).astype(np.float32)
    seen = cv2.remap(sequence.depths[3], place, None, cv2.INTER_NEAREST)
    same = np.abs(seen / local[..., 2] - 1) < 0.02
    assert same.mean() > 0.5
    warped = cv2.remap(sequence.images[3], place, None, cv2.INTER_LINEAR)
    error = np.abs(warped.astype(int) - sequence.images[0])[same]
    unmoved = np.abs(sequence.images[3].astype(int) - sequence.images[0])[same]
    assert np.median(error) <= 2
    assert error.mean() < 0.4 * unmoved.mean()


def test_files_come_back(tmp_path: Path) -> None:
    sequence = make_room_sequence(4, 3, 24, 32, PLAIN)
    write_room_sequence(tmp_path, sequence)
    read = read_sequence(tmp_path)
    assert read.names == ["0000.png", "0001.png", "0002.png"]
    np.testing.assert_array_equal(read.images, sequence.images)
    assert read.cameras is not None
    for own, camera in zip(sequence.cameras, read.cameras, strict=True):
        assert camera is not None
        np.testing.assert_allclose(camera.world_to_camera, own.world_to_camera, atol=1e-12)
        np.testing.assert_allclose(camera.intrinsics, own.intrinsics)
    for number, depth in enumerate(sequence.depths):
        np.testing.assert_allclose(read_depth_png16(tmp_path / f"depth/{number:04d}.png"), depth, atol=6e-4)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["data", "synthesize", str(tmp_path), "--layout", "sequence", "--size", "16x32", "--seed", "4"]
    call += ["--scenes", "1", "--views", "2", "--turn", "2", "--set", "furniture=[0,1]", "--focal", "0.9", "0.9"]
    assert main([*call, "--kind", "rooms"]) == 0
    read = read_sequence(tmp_path / "room_00000004")
    assert len(read) == 2
    assert read.cameras is not None
    assert read.cameras[0] is not None
    assert read.cameras[0].fx == pytest.approx(0.9 * 32)
    assert "1 sequences" in capsys.readouterr().out
    assert main(call) == 2
    assert "--kind rooms" in capsys.readouterr().err


def test_impossible_walks() -> None:
    with pytest.raises(InputError, match="no clear path"):
        make_room_sequence(0, 200, 16, 32, PLAIN)
    with pytest.raises(InputError, match="turn"):
        make_room_sequence(0, 4, 16, 32, PLAIN, turn=30)
