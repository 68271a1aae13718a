# SPDX-License-Identifier: Apache-2.0
"""How fast samples are read, beside the plain calls of OpenCV, OpenEXR and NumPy, and whether memory stays flat."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from vision3d.datasets.codecs import read_exr_disparity
from vision3d.errors import InputError
from vision3d.io.disparity import read_disparity, write_disparity
from vision3d.io.exr import write_exr
from vision3d.io.files import ensure_folder
from vision3d.io.images import read_image, write_image

FORMATS = ("pfm", "png", "png16", "exr", "sample")
PROTOCOL = (
    "files in the page cache; rates by the clock in loader processes, ratio by their median CPU time an item, ours "
    "/ plain, both in turn, best of 3 rounds; pfm, png16 and exr: a disparity map, png: an RGB image, sample: two png "
    "and a pfm; plain: the calls of NumPy, OpenCV and OpenEXR alone, without any check"
)
Read = Callable[[str], Any]


@dataclass(frozen=True)
class SpeedRow:
    """Items a second and worker of our reader and of the plain calls, their CPU milliseconds and the ratio."""

    format: str
    workers: int
    ours: float
    plain: float
    ours_ms: float
    plain_ms: float
    ratio: float


def plain_pfm(path: str) -> np.ndarray:
    """[H, W] of a little-endian PFM file, without any check."""
    with open(path, "rb") as file:
        file.readline()
        width, height = map(int, file.readline().split())
        file.readline()
        return np.ascontiguousarray(np.fromfile(file, "<f4", width * height).reshape(height, width)[::-1])


def plain_png(path: str) -> np.ndarray:
    """[H, W, 3] RGB by OpenCV."""
    import cv2

    return np.asarray(cv2.cvtColor(np.asarray(cv2.imread(path, cv2.IMREAD_COLOR)), cv2.COLOR_BGR2RGB))


def plain_png16(path: str) -> np.ndarray:
    """[H, W] pixels of a KITTI map by OpenCV; unknown pixels stay 0."""
    import cv2

    return np.asarray(cv2.imread(path, cv2.IMREAD_UNCHANGED)).astype(np.float32) / np.float32(256)


def plain_exr(path: str) -> np.ndarray:
    """[H, W] of the channel G by OpenEXR."""
    import OpenEXR

    return np.asarray(OpenEXR.File(path, separate_channels=True).channels()["G"].pixels)


def _ours_sample(path: str) -> tuple[np.ndarray, ...]:
    return read_image(f"{path}.png"), read_image(f"{path}.right.png"), read_disparity(f"{path}.pfm")


def _plain_sample(path: str) -> tuple[np.ndarray, ...]:
    return plain_png(f"{path}.png"), plain_png(f"{path}.right.png"), plain_pfm(f"{path}.pfm")


_READERS: dict[str, tuple[str, Read, Read]] = {
    "pfm": (".pfm", read_disparity, plain_pfm),
    "png": (".png", read_image, plain_png),
    "png16": (".16.png", read_disparity, plain_png16),
    "exr": (".exr", read_exr_disparity, plain_exr),
    "sample": ("", _ours_sample, _plain_sample),
}


class _Reads(Dataset):
    """``count`` reads of a few files; only (CPU seconds, resident kB) leave the worker: no transport is measured."""

    def __init__(self, read: Read, files: list[str], count: int) -> None:
        self.read, self.files, self.count = read, files, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[float, int]:
        start = time.process_time()
        self.read(self.files[index % len(self.files)])
        return time.process_time() - start, _resident_kb()


def write_speed_files(folder: Path, height: int, width: int, count: int = 4, exr: bool = True) -> list[str]:
    """Write ``count`` synthetic pairs in every format; returns their names without suffix."""
    from vision3d.datasets.synthetic import make_scene

    ensure_folder(folder)
    names = []
    for number in range(count):
        sample = make_scene(number, height, width)
        name = os.fspath(folder / f"{number:03d}")
        disparity = np.minimum(np.asarray(sample.disparity), 255)
        write_image(f"{name}.png", sample.left)
        write_image(f"{name}.right.png", sample.right)
        write_disparity(f"{name}.pfm", disparity)
        write_disparity(f"{name}.16.png", disparity)
        if exr:
            write_exr(f"{name}.exr", {"G": disparity})
        names.append(name)
    return names


def measure_speed(
    names: list[str], formats: tuple[str, ...] = FORMATS, workers: tuple[int, ...] = (1, 2), seconds: float = 2.0
) -> Iterator[SpeedRow]:
    """Yield the figures of each format and number of loader processes; three rounds of about ``seconds`` for each.

    Raises:
        InputError: an unknown format.
    """
    for name in formats:
        if name not in _READERS:
            raise InputError(f"format '{name}' is unknown: choose {', '.join(FORMATS)}")
        suffix, ours, plain = _READERS[name]
        files = [f"{stem}{suffix}" for stem in names]
        start = time.perf_counter()
        for file in files:
            plain(file)
            ours(file)
        once = (time.perf_counter() - start) / (2 * len(files))
        for number in workers:
            count = max(20, int(seconds * number / once / 6))
            rounds = [[_round(_Reads(read, files, count), number) for read in (ours, plain)] for _ in range(3)]
            rates = [max(pair[place][0] for pair in rounds) / number for place in (0, 1)]
            times = [min(pair[place][1] for pair in rounds) for place in (0, 1)]
            yield SpeedRow(name, number, rates[0], rates[1], times[0], times[1], times[0] / times[1])


def measure_memory(names: list[str], samples: int, workers: int = 1) -> list[tuple[int, float]]:
    """(samples read, resident MiB of the loader process) at ten places of a run over ``samples`` samples."""
    data = _Reads(_ours_sample, names, samples)
    places = {max(1, samples * step // 10) for step in range(1, 11)} | {min(100, samples)}
    found = []
    for number, (_, resident) in enumerate(DataLoader(data, batch_size=None, num_workers=workers), 1):
        if number in places:
            found.append((number, float(resident) / 1024))
    return found


def _round(data: _Reads, workers: int) -> tuple[float, float]:
    """Items a second, from the first item of each worker on (their start is not counted), and median CPU ms an item."""
    loader = iter(DataLoader(data, batch_size=None, num_workers=workers))
    for _ in range(workers):
        next(loader)
    start = time.perf_counter()
    times = [seconds for seconds, _ in loader]
    return len(times) / (time.perf_counter() - start), 1000 * float(np.median(times))


def _resident_kb() -> int:
    """Resident memory of this process now; where the system does not say it, the largest so far."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * (os.sysconf("SC_PAGE_SIZE") // 1024)
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most // 1024 if sys.platform == "darwin" else most
