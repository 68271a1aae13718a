# SPDX-License-Identifier: Apache-2.0
"""Checks of a whole data set: files, sizes, values, and whether disparities explain the other view."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from vision3d.datasets.normal_axes import find_axes, spread_indices
from vision3d.datasets.orphans import find_incomplete, find_orphans
from vision3d.datasets.pairs import PairEntry, SkippingReader, StereoPairs
from vision3d.datasets.photometric import Explanation, explain
from vision3d.errors import CalibrationError, FileFormatError, InputError, Vision3DError
from vision3d.geometry.normals import UNIT_TOLERANCE
from vision3d.io.calibration import read_calibration
from vision3d.io.files import atomic_write
from vision3d.io.images import read_image
from vision3d.types import MultiViewSample, PanoramaSample, StereoSample

KINDS = {
    "missing": "a file of the pair is missing",
    "orphan": "a right image or a map without its left image",
    "unreadable": "truncated, damaged, empty, or of another format",
    "size": "sizes differ",
    "empty": "one colour, all zero, or no finite value",
    "sign": "negative disparities or depths",
    "range": "disparities beyond the width of the image",
    "normals": "normals that are not of unit length, or unknown in most pixels",
    "axes": "normals with other axes than x right, y down, z forward",
    "calibration": "a calibration that does not fit",
    "photometric": "the disparity does not explain the other view",
}
"""What can be wrong."""

_MAX_BEYOND = 0.01
_MAX_UNKNOWN_NORMALS = 0.5
_NO_SCENE = ("orphan", "axes")  # kinds of problems that are no pair's
Size = tuple[int, int]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class PairProblem:
    """Something wrong with a pair.

    Attributes:
        scene: its name; for an orphan the file that is missing, relative to the root; for axes the data set's name.
        problem: what is wrong, in words.
        kind: one of ``KINDS``.
        file: the file, where it is one.
    """

    scene: str
    problem: str
    kind: str
    file: str = ""


@dataclass(frozen=True)
class PairCheck:
    """What was found for one pair.

    Attributes:
        scene: its name.
        problems: what is wrong with it.
        has_truth: whether it has a disparity map (a depth map).
        similarity, margin: how well the disparity explains the right view, where known.
        unknown_normals: pixels without a normal (not finite) in the map of normals, where it has one.
    """

    scene: str
    problems: tuple[PairProblem, ...] = ()
    has_truth: bool = False
    similarity: float | None = None
    margin: float | None = None
    unknown_normals: int | None = None


@dataclass
class VerifyReport:
    """The result of ``verify_dataset``: all problems, and a ``PairCheck`` for each pair that could be read."""

    problems: list[PairProblem] = field(default_factory=list)
    pairs: list[PairCheck] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """The number of problems of each kind that occurs."""
        return dict(Counter(item.kind for item in self.problems))

    @property
    def bad_scenes(self) -> list[str]:
        """The scenes to leave out, in the order of the set."""
        return list(dict.fromkeys(item.scene for item in self.problems if item.kind not in _NO_SCENE))

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON holds it."""
        return {
            "pairs": len(self.pairs),
            "without_truth": sum(not item.has_truth for item in self.pairs),
            "compared": sum(item.similarity is not None for item in self.pairs),
            "unknown_normals": sum(item.unknown_normals or 0 for item in self.pairs),
            "counts": self.counts,
            "problems": [asdict(item) for item in self.problems],
            "scenes": [
                {"scene": item.scene, "similarity": item.similarity, "margin": item.margin} for item in self.pairs
            ],
        }


def verify_dataset(
    data: Any, size: Size | None = None, workers: int = 1, progress: Progress | None = None
) -> VerifyReport:
    """Read every sample of a data set and say what is wrong.

    Checked for stereo pairs: missing partners, unreadable files, sizes, blank images, maps without any known or any
    positive value, negative values, disparities beyond the width, lengths of normals, the calibration, and whether
    each disparity map explains the other view (:mod:`vision3d.datasets.photometric`); on a few pairs of the set the
    axes of the normals (:mod:`vision3d.datasets.normal_axes`). Of multi-view and panorama samples: files, blank images
    and depth maps.

    Args:
        data: a data set of ``open_dataset``, best opened with ``on_error="skip"`` where it has that option; pairs that
            were skipped when it was opened count as wrong.
        size: (width, height) that every pair must have, or None.
        workers: processes.
        progress: called after each sample with the number of those done, of all, and its name.

    Raises:
        InputError: ``data`` is a name or a folder instead of a data set.
        Vision3DError: a process was killed (too little memory).
    """
    if isinstance(data, (str, os.PathLike)):
        text = os.fspath(data)
        raise InputError(f"'{text}': a data set is expected, not its name: pass open_dataset(name, root, 'all')")
    report = VerifyReport()
    for scene, message in getattr(data, "skipped", {}).items():
        report.problems.append(PairProblem(scene, message, "missing" if "no such file" in message else "unreadable"))
    report.problems += [
        PairProblem(missing, f"{missing}: no such file, but {partner} is there; complete the pair", "orphan", partner)
        for missing, partner in find_orphans(data)
    ]
    report.problems += [
        PairProblem(scene, f"{file}: no {kind} file here, but other pairs have one; complete the pair", "missing", file)
        for scene, kind, file in find_incomplete(data)
    ]
    total = len(data)
    for number, check in enumerate(_run(data, size, workers), 1):
        report.pairs.append(check)
        report.problems += check.problems
        if progress is not None:
            progress(number, total, check.scene)
    report.problems += _axes_problems(data)
    return report


def _axes_problems(data: Any) -> list[PairProblem]:
    """What is wrong with the axes of the true normals, by a few pairs that can be read."""
    samples = []
    for index in spread_indices(len(data)):
        with contextlib.suppress(Vision3DError, MemoryError):  # reported for the pair itself
            samples.append(data[index])
    findings = find_axes(sample for sample in samples if isinstance(sample, StereoSample))
    return [PairProblem(data.name, finding.message, "axes") for finding in findings if finding.wrong]


def verify_pairs(data: StereoPairs, size: Size | None = None, progress: Progress | None = None) -> list[PairProblem]:
    """The wrong pairs of a stereo set, each with the first thing that is wrong; see ``verify_dataset``."""
    first: dict[str, PairProblem] = {}
    for item in verify_dataset(data, size, progress=progress).problems:
        first.setdefault(item.scene, item)
    return list(first.values())


def write_skip_file(path: str | os.PathLike[str], problems: Iterable[PairProblem]) -> None:
    """Write a skip list for the option ``skip_file``: one scene a line, the reason behind ``#``.

    Raises:
        OutputError: the place is not writable.
    """
    reasons: dict[str, str] = {}
    for item in problems:
        if item.kind not in _NO_SCENE:
            reasons.setdefault(item.scene, " ".join(item.problem.split()))
    lines = [f"{scene}  # {reason}" for scene, reason in reasons.items()]
    with atomic_write(path) as temporary:
        temporary.write_text("\n".join(["# scenes to leave out", *lines]) + "\n", encoding="utf-8")


def _run(data: Any, size: Size | None, workers: int) -> Iterator[PairCheck]:
    if workers == 1:
        yield from map(partial(_check, data, size), range(len(data)))
        return
    context = multiprocessing.get_context("spawn")  # forks of a process with threads can hang
    with ProcessPoolExecutor(workers, context, _start_process, (data, size)) as pool:
        try:
            yield from pool.map(_check_in_process, range(len(data)), chunksize=4)
        except BrokenProcessPool as error:
            raise Vision3DError(
                "a process of the check was killed, maybe for lack of memory; use fewer --workers"
            ) from error


_in_process: Callable[[int], PairCheck]


def _start_process(data: Any, size: Size | None) -> None:
    global _in_process
    _in_process = partial(_check, data, size)


def _check_in_process(index: int) -> PairCheck:
    return _in_process(index)


def _check(data: Any, size: Size | None, index: int) -> PairCheck:
    if isinstance(data, StereoPairs):
        return check_entry(data.entries[index], size)
    scenes = getattr(data, "scenes", None)
    scene = str(scenes[index]) if scenes is not None and index < len(scenes) else str(index)
    try:
        sample = data.read(index) if isinstance(data, SkippingReader) else data[index]
    except (FileFormatError, MemoryError) as error:
        return PairCheck(scene, (_unusable(scene, "", error),))
    if isinstance(sample, StereoSample):
        return check_sample(sample, size)
    return PairCheck(scene, tuple(_depth_problems(scene, sample)), sample.depth is not None)


def check_entry(entry: PairEntry, size: Size | None = None) -> PairCheck:
    """Read the files of a pair one by one, so that all that is wrong is found."""
    problems: list[PairProblem] = []
    parts: dict[str, np.ndarray] = {}
    paths: dict[str, str] = {}
    readers: list[tuple[str, str, Callable[[str], np.ndarray]]] = [
        ("left", entry.left, read_image),
        ("right", entry.right, read_image),
        *((item.field, item.path, item.read) for item in entry.maps),
    ]
    shape: tuple[int, ...] | None = None
    faulty: set[str] = set()  # a file that two maps are read from is named once
    for name, path, read in readers:
        if path in faulty:
            continue
        try:
            values = read(path)
        except (FileFormatError, MemoryError) as error:
            faulty.add(path)
            problems.append(_unusable(entry.scene, path, error))
            continue
        shape = shape or values.shape[:2]
        if values.shape[:2] != shape:
            faulty.add(path)
            text = f"{path}: is {values.shape[1]}x{values.shape[0]}, the images are {shape[1]}x{shape[0]}"
            problems.append(PairProblem(entry.scene, text, "size", path))
            continue
        parts[name], paths[name] = values, path
    if shape is not None:
        problems += _rig_problems(entry, (shape[1], shape[0]))
    if "left" not in parts or "right" not in parts:
        return PairCheck(entry.scene, tuple(problems), "disparity" in parts)
    check = check_sample(StereoSample(scene=entry.scene, **parts), size, paths)  # type: ignore[arg-type]
    return replace(check, scene=entry.scene, problems=(*problems, *check.problems))


def check_sample(sample: StereoSample, size: Size | None = None, paths: dict[str, str] | None = None) -> PairCheck:
    """Check the values of a pair; ``paths`` are the files of its fields, where known."""
    files, found = paths or {}, []
    height, width = sample.left.shape[:2]
    if size is not None and (width, height) != size:
        found.append(("size", "left", f"is {width}x{height}, {size[0]}x{size[1]} is expected"))
    for name in ("left", "right"):
        image = getattr(sample, name)
        if image.min() == image.max():
            found.append(("empty", name, f"the {name} image has one colour only"))
    if sample.occlusion is not None and sample.occlusion.all():
        found.append(("empty", "occlusion", "the mask marks every pixel as hidden"))
    found += _normal_problems(sample.normals)
    explanation = None
    for name in ("disparity", "right_disparity"):
        problems, explanation_here = _disparity_problems(sample, name)
        found += problems
        explanation = explanation_here if name == "disparity" else explanation
    return PairCheck(
        sample.scene,
        tuple(PairProblem(sample.scene, text, kind, files.get(name, "")) for kind, name, text in found),
        sample.disparity is not None,
        None if explanation is None or not explanation.points else round(explanation.similarity, 4),
        None if explanation is None or not explanation.points else round(explanation.margin, 4),
        None if sample.normals is None else int((~np.isfinite(sample.normals).all(axis=-1)).sum()),
    )


def find_problem(sample: StereoSample, size: Size | None = None) -> str | None:
    """The first thing that is wrong with the values of a pair, or None; see ``verify_dataset``."""
    return next((item.problem for item in check_sample(sample, size).problems), None)


def _disparity_problems(sample: StereoSample, name: str) -> tuple[list[tuple[str, str, str]], Explanation | None]:
    """(kind, field, text) of what is wrong with a disparity map, and how well it explains the other view."""
    disparity = getattr(sample, name)
    if disparity is None:
        return [], None
    words, width = name.replace("_", " "), disparity.shape[1]
    known = disparity[np.isfinite(disparity)]
    if known.size == 0:
        return [("empty", name, f"has no known {words}")], None
    if known.min() < 0:
        return [("sign", name, f"has {words} down to {known.min():.4g}, positive values are expected")], None
    if known.max() == 0:
        return [("empty", name, f"the {words} is zero everywhere")], None
    if (known >= width).mean() > _MAX_BEYOND:
        text = f"has {words} {known.min():.4g} to {known.max():.4g}, values within 0 and the width {width} are expected"
        return [("range", name, text)], None
    if sample.left.min() == sample.left.max() or sample.right.min() == sample.right.max():
        return [], None
    if name == "disparity":
        explanation = explain(sample.left, sample.right, disparity, sample.occlusion)
    else:  # mirrored, the right view is a left one
        explanation = explain(sample.right[:, ::-1], sample.left[:, ::-1], disparity[:, ::-1])
    if explanation is None or explanation.problem is None:
        return [], explanation
    text = f"{words}: {explanation.problem}"
    if explanation.points:
        text += f" (similarity {explanation.similarity:.2f}, margin {explanation.margin:.2f})"
    return [("photometric", name, text)], explanation


def _normal_problems(normals: np.ndarray | None) -> list[tuple[str, str, str]]:
    if normals is None:
        return []
    known = normals[np.isfinite(normals).all(axis=-1)]
    if not len(known):
        return [("empty", "normals", "has no valid normal")]
    found = []
    unknown = normals.shape[0] * normals.shape[1] - len(known)
    if unknown > _MAX_UNKNOWN_NORMALS * (unknown + len(known)):
        found.append(f"has no normal (NaN, or a component outside [-1, 1]) in {unknown} pixels, more than half")
    bad = int((np.abs(np.linalg.norm(known, axis=-1) - 1) > UNIT_TOLERANCE).sum())
    if bad:
        found.append(f"has {bad} normals whose length is not 1 within {100 * UNIT_TOLERANCE:.0f} %")
    return [("normals", "normals", text) for text in found]


def _rig_problems(entry: PairEntry, size: Size) -> Iterator[PairProblem]:
    if entry.rig is None:
        return
    file = entry.rig if isinstance(entry.rig, str) else ""
    try:
        if callable(entry.rig):
            entry.rig(*size)
        else:
            read_calibration(entry.rig, size)
    except CalibrationError as error:
        yield PairProblem(entry.scene, str(error), "calibration", file)


def _depth_problems(scene: str, sample: MultiViewSample | PanoramaSample) -> Iterator[PairProblem]:
    """What is wrong with the images and the depth of a multi-view or panorama sample."""
    images = sample.images if isinstance(sample, MultiViewSample) else [sample.image]
    for number, image in enumerate(images):
        if image.min() == image.max():
            yield PairProblem(scene, f"image {number} has one colour only", "empty")
    if sample.depth is None:
        return
    if sample.depth.shape != images[0].shape[:2]:
        text = f"the depth map is {sample.depth.shape[::-1]}, the image {images[0].shape[1::-1]}"
        yield PairProblem(scene, text, "size")
    known = sample.depth[np.isfinite(sample.depth)]
    if known.size == 0:
        yield PairProblem(scene, "has no known depth", "empty")
    elif known.min() < 0:
        yield PairProblem(scene, f"has depths down to {known.min():.4g}, positive values are expected", "sign")
    elif known.max() == 0:
        yield PairProblem(scene, "the depth is zero everywhere", "empty")


def _unusable(scene: str, path: str, error: BaseException) -> PairProblem:
    """The problem that an error of a reader tells."""
    text = " ".join(str(error).split()) or f"{path}: too large for the memory"
    if "no such file" in text or "is missing" in text:
        kind = "missing"
    elif "negative" in text:
        kind = "sign"
    elif isinstance(error, CalibrationError):
        kind = "calibration"
    elif "must have one size" in text or "the images are" in text or "of another size" in text:
        kind = "size"
    else:
        kind = "unreadable"
    return PairProblem(scene, text, kind, path)
