# SPDX-License-Identifier: Apache-2.0
"""Writing videos."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vision3d.errors import InputError, OutputError
from vision3d.io.files import atomic_write


def write_video(path: str | os.PathLike[str], frames: Iterable[np.ndarray], rate: float = 10.0) -> int:
    """Write an MP4 (MPEG-4 part 2) frame by frame; return the number of frames.

    The format has even sizes only: an odd last row or column is repeated.

    Args:
        path: the file, ``.mp4``.
        frames: [H, W, 3] uint8 RGB, all of one size.
        rate: frames a second.

    Raises:
        InputError: no frame, other shapes, or a rate that is not positive.
        OutputError: another suffix, or the file cannot be written.
    """
    import cv2

    if Path(path).suffix.lower() != ".mp4":
        raise OutputError(f"{path}: videos are written as .mp4; choose that suffix")
    if not rate > 0:
        raise InputError(f"{path}: {rate} frames a second are not possible; give a positive number")
    count, size, writer = 0, (0, 0), None
    with atomic_write(path) as temporary:
        try:
            for frame in frames:
                if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8 or 0 in frame.shape:
                    raise InputError(f"{path}: frames must be [H, W, 3] uint8, got {frame.shape} {frame.dtype}")
                even = np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)), mode="edge")
                if writer is None:
                    size = (even.shape[1], even.shape[0])
                    writer = cv2.VideoWriter(os.fspath(temporary), cv2.VideoWriter_fourcc(*"mp4v"), rate, size)  # type: ignore[attr-defined]
                if size != (even.shape[1], even.shape[0]):
                    raise InputError(f"{path}: the frames have different sizes; resize them")
                writer.write(np.ascontiguousarray(even[..., ::-1]))
                count += 1
        finally:
            if writer is not None:
                writer.release()
        if not count:
            raise InputError(f"{path}: a video needs at least one frame")
        if not temporary.is_file() or not temporary.stat().st_size:
            raise OutputError(f"{path}: OpenCV cannot write an MP4 here; keep the PNG frames instead")
    return count
