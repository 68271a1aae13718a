# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from vision3d.errors import InputError, OutputError
from vision3d.io.video import write_video


def read_frames(path: Path) -> list[np.ndarray]:
    video, frames = cv2.VideoCapture(str(path)), []
    while True:
        good, frame = video.read()
        if not good:
            return frames
        frames.append(frame[..., ::-1])


@pytest.mark.parametrize(("height", "width"), [(48, 64), (47, 63)])
def test_frames_come_back(height: int, width: int, tmp_path: Path) -> None:
    colors = [(200, 40, 40), (40, 200, 40), (40, 40, 200), (90, 90, 90)]
    frames = [np.full((height, width, 3), color, np.uint8) for color in colors]
    assert write_video(tmp_path / "a.mp4", iter(frames), 5.0) == 4
    found = read_frames(tmp_path / "a.mp4")
    assert [frame.shape for frame in found] == [(48, 64, 3)] * 4
    for frame, color in zip(found, colors, strict=True):
        assert np.abs(frame.astype(int) - color).mean() < 6  # lossy
        assert np.abs(frame[-1, -1].astype(int) - color).max() < 20  # the repeated row and column
    video = cv2.VideoCapture(str(tmp_path / "a.mp4"))
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(5)


def test_illegal_videos_leave_nothing(tmp_path: Path) -> None:
    frame = np.zeros((16, 16, 3), np.uint8)
    with pytest.raises(OutputError, match=r"\.mp4"):
        write_video(tmp_path / "a.gif", [frame])
    with pytest.raises(InputError, match="at least one"):
        write_video(tmp_path / "a.mp4", [])
    with pytest.raises(InputError, match="sizes"):
        write_video(tmp_path / "a.mp4", [frame, frame[:8]])
    with pytest.raises(InputError, match="uint8"):
        write_video(tmp_path / "a.mp4", [frame / 255])
    with pytest.raises(InputError, match="a second"):
        write_video(tmp_path / "a.mp4", [frame], 0)
    with pytest.raises(OutputError, match="does not exist"):
        write_video(tmp_path / "none/a.mp4", [frame])
    assert list(tmp_path.iterdir()) == []
