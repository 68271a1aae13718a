# SPDX-License-Identifier: Apache-2.0
"""Archives for the benchmark servers of KITTI 2012, KITTI 2015, Middlebury v3 and ETH3D two-view.

An archive is written beside its name, read back and checked, and only then given its name. The same predictions and
times give the same bytes.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vision3d.errors import FileFormatError, InputError, OutputError, UnknownNameError
from vision3d.io.files import atomic_write
from vision3d.io.pfm import read_pfm

if TYPE_CHECKING:
    from torch import nn

    from vision3d.types import StereoSample

KITTI_LARGEST = 65535 / 256
_MIDDLEBURY_TRAINING = (
    "Adirondack ArtL Jadeplant Motorcycle MotorcycleE Piano PianoL Pipes Playroom Playtable PlaytableP Recycle Shelves "
    "Teddy Vintage"
)
_MIDDLEBURY_TEST = (
    "Australia AustraliaP Bicycle2 Classroom2 Classroom2E Computer Crusade CrusadeP Djembe DjembeL Hoops Livingroom "
    "Newkuba Plants Staircase"
)
_ETH3D_TRAINING = (
    "delivery_area_1l delivery_area_1s delivery_area_2l delivery_area_2s delivery_area_3l delivery_area_3s electro_1l "
    "electro_1s electro_2l electro_2s electro_3l electro_3s facade_1s forest_1s forest_2s playground_1l playground_1s "
    "playground_2l playground_2s playground_3l playground_3s terrace_1s terrace_2s terrains_1l terrains_1s terrains_2l "
    "terrains_2s"
)
_ETH3D_TEST = (
    "lakeside_1l lakeside_1s sand_box_1l sand_box_1s storage_room_1l storage_room_1s storage_room_2_1l "
    "storage_room_2_1s storage_room_2_2l storage_room_2_2s storage_room_2l storage_room_2s storage_room_3l "
    "storage_room_3s tunnel_1l tunnel_1s tunnel_2l tunnel_2s tunnel_3l tunnel_3s"
)


@dataclass(frozen=True)
class Benchmark:
    """What a server takes.

    Attributes:
        name, dataset: for the command line; the registered data set.
        title: for people.
        scenes: split of the reader -> the scenes that the server expects.
        folder: folder of a scene's files, with the fields {part}, {size} and {scene}.
        map_name: name of the disparity file, with {scene} and {method}; ``.png`` (KITTI codes) or ``.pfm``.
        time_name, time_text: of the file with the seconds, or empty.
        sizes: resolutions to choose from, or empty.
        sources: folders of the data set that hold the scenes, with the field {size}.
    """

    name: str
    dataset: str
    title: str
    scenes: dict[str, tuple[str, ...]]
    folder: str
    map_name: str
    time_name: str = ""
    time_text: str = "{seconds:.6g}\n"
    sizes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ("testing",)

    def files(self, split: str, scene: str, method: str, size: str) -> tuple[str, str]:
        """Names of the map and of the time file (empty: none) inside the archive."""
        fields = {"part": "test" if split == "test" else "training", "scene": scene, "method": method, "size": size}
        folder = self.folder.format(**fields)
        names = (self.map_name.format(**fields), self.time_name.format(**fields))
        return folder + names[0], folder + names[1] if names[1] else ""


def _kitti(count: int) -> dict[str, tuple[str, ...]]:
    return {"test": tuple(f"{number:06d}_10" for number in range(count))}


def _both(training: str, test: str) -> dict[str, tuple[str, ...]]:
    return {"train": tuple(training.split()), "test": tuple(test.split())}


BENCHMARKS: dict[str, Benchmark] = {
    item.name: item
    for item in (
        Benchmark("kitti2015", "kitti2015", "KITTI 2015", _kitti(200), "disp_0/", "{scene}.png"),
        Benchmark("kitti2012", "kitti2012", "KITTI 2012", _kitti(195), "", "{scene}.png"),
        Benchmark(
            "middlebury",
            "middlebury_v3",
            "Middlebury v3",
            _both(_MIDDLEBURY_TRAINING, _MIDDLEBURY_TEST),
            "{part}{size}/{scene}/",
            "disp0{method}.pfm",
            "time{method}.txt",
            sizes=("F", "H", "Q"),
            sources=("training{size}", "test{size}"),
        ),
        Benchmark(
            "eth3d",
            "eth3d",
            "ETH3D low-resolution two-view",
            _both(_ETH3D_TRAINING, _ETH3D_TEST),
            "low_res_two_view/",
            "{scene}.pfm",
            "{scene}.txt",
            "runtime {seconds:.6g}\n",
            sources=("two_view_training", "two_view_test"),
        ),
    )
}


@dataclass
class SceneResult:
    """One scene of a submission.

    Attributes:
        split, scene: as in ``Benchmark.scenes``.
        disparity: [H, W] pixels; holes are filled along the row, values are limited to what the format holds.
        seconds: time of the prediction.
    """

    split: str
    scene: str
    disparity: np.ndarray
    seconds: float


@dataclass
class Submission:
    """What was written.

    Attributes:
        path, benchmark, method, size: of the archive.
        scenes: those it holds, ``split/scene``.
        missing: those that the server expects and that are not there.
        changed: scene -> number of pixels that were filled or limited.
        files, bytes: number of files, and size of the archive.
    """

    path: Path
    benchmark: str
    method: str
    size: str
    scenes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    changed: dict[str, int] = field(default_factory=dict)
    files: int = 0
    bytes: int = 0


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of a name.

    Raises:
        UnknownNameError: there is none; the message lists near ones.
    """
    if name not in BENCHMARKS:
        raise UnknownNameError("benchmark", name, BENCHMARKS)
    return BENCHMARKS[name]


def write_submission(
    path: str | os.PathLike[str],
    benchmark: str,
    results: Iterable[SceneResult],
    *,
    method: str = "",
    size: str = "",
    allow_missing: bool = False,
) -> Submission:
    """Write the archive, read it back and check it.

    Args:
        path: the ``.zip`` file.
        benchmark: ``kitti2015``, ``kitti2012``, ``middlebury`` or ``eth3d``.
        results: the scenes, in any order.
        method: name of the method in Middlebury's file names: letters, digits, ``_`` and ``-``.
        size: Middlebury's resolution, ``F``, ``H`` or ``Q``.
        allow_missing: write the archive even if scenes are missing that the server expects.

    Raises:
        InputError: missing scenes (the message names them), a scene twice, a map that cannot be written, or a bad name.
        OutputError: the place is not writable, or the archive read back is not what was meant.
        UnknownNameError: an unknown benchmark.
    """
    rule = find_benchmark(benchmark)
    if Path(path).suffix.lower() != ".zip":
        raise InputError(f"{os.fspath(path)}: the servers take a .zip file; end the name in .zip")
    if "{method}" in rule.map_name and not re.fullmatch(r"[A-Za-z0-9_-]+", method):
        raise InputError(f"method name '{method}': use letters, digits, _ and - only, they become part of file names")
    if rule.sizes and size not in rule.sizes:
        raise InputError(f"size '{size}' of {benchmark}: choose {', '.join(rule.sizes)}")
    done = Submission(Path(path), benchmark, method, size)
    shapes: dict[str, tuple[int, int]] = {}
    with atomic_write(path) as temporary:
        times: set[str] = set()
        with zipfile.ZipFile(temporary, "w") as archive:
            for result in results:
                _add(archive, rule, result, done, shapes, times)
        done.missing = missing_scenes(rule, done.scenes)
        if not done.scenes:
            raise InputError(
                f"none of the scenes that {rule.title} expects was predicted, so there is nothing to write"
            )
        if done.missing and not allow_missing:
            raise InputError(_missing_text(rule, done.missing))
        check_archive(temporary, shapes, times)
        done.files, done.bytes = len(shapes) + len(times), temporary.stat().st_size
    return done


def missing_scenes(rule: Benchmark, scenes: Iterable[str]) -> list[str]:
    """``split/scene`` that the server expects and that are not among ``scenes``."""
    there = set(scenes)
    return [
        f"{split}/{name}" for split, names in rule.scenes.items() for name in names if f"{split}/{name}" not in there
    ]


def shortened(names: list[str], most: int = 8) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _missing_text(rule: Benchmark, missing: list[str]) -> str:
    return (
        f"{rule.title} expects {sum(map(len, rule.scenes.values()))} scenes, missing: {shortened(missing)}; "
        "complete the data set, "
        "or write an incomplete archive with allow_missing (--allow-missing), which the server refuses"
    )


def _add(
    archive: zipfile.ZipFile,
    rule: Benchmark,
    result: SceneResult,
    done: Submission,
    shapes: dict[str, tuple[int, int]],
    times: set[str],
) -> None:
    key = f"{result.split}/{result.scene}"
    if key in done.scenes:
        raise InputError(f"scene {key} comes twice")
    name, time_name = rule.files(result.split, result.scene, done.method, done.size)
    is_png = name.endswith(".png")
    values, changed = prepare_map(result.disparity, KITTI_LARGEST if is_png else float(result.disparity.shape[1]), key)
    _store(archive, name, _png_bytes(values) if is_png else _pfm_bytes(values))
    shapes[name] = values.shape
    if time_name:
        if not 0 <= result.seconds < float("inf"):
            raise InputError(f"scene {key}: the time must be a number of seconds, got {result.seconds}")
        _store(archive, time_name, rule.time_text.format(seconds=result.seconds).encode("ascii"))
        times.add(time_name)
    done.scenes.append(key)
    if changed:
        done.changed[key] = changed


def prepare_map(disparity: np.ndarray, largest: float, scene: str = "") -> tuple[np.ndarray, int]:
    """A map without holes and within 0 to ``largest``, float32, and the number of pixels that were changed.

    Raises:
        InputError: not a map [H, W], or one without any finite value.
    """
    from vision3d.geometry.disparity import fill_invalid

    values = np.asarray(disparity, dtype=np.float32)
    if values.ndim != 2 or not np.isfinite(values).any():
        raise InputError(f"scene {scene}: a map [H, W] with finite disparities is needed, got shape {values.shape}")
    holes = ~np.isfinite(values)
    if holes.any():
        values = np.asarray(fill_invalid(np.where(holes, np.float32(np.nan), values)), dtype=np.float32)
    limited = np.clip(values, 0, np.float32(largest))
    return limited, int((holes | (limited != values)).sum())


def _png_bytes(values: np.ndarray) -> bytes:
    """KITTI codes ``round(256 d)``, at least 1 because 0 means no answer."""
    import cv2

    codes = np.clip(np.rint(values.astype(np.float64) * 256), 1, 65535).astype(np.uint16)
    return bytes(cv2.imencode(".png", codes)[1].tobytes())


def _pfm_bytes(values: np.ndarray) -> bytes:
    header = f"Pf\n{values.shape[1]} {values.shape[0]}\n-1.0\n".encode("ascii")
    return header + np.ascontiguousarray(values[::-1]).astype("<f4").tobytes()


def _store(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a file without the traces of the moment and the machine."""
    entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    entry.create_system, entry.external_attr = 3, 0o644 << 16
    level = None if name.endswith(".png") else 6
    entry.compress_type = zipfile.ZIP_STORED if level is None else zipfile.ZIP_DEFLATED
    archive.writestr(entry, content, compresslevel=level)


def check_archive(path: str | os.PathLike[str], shapes: dict[str, tuple[int, int]], times: Iterable[str] = ()) -> None:
    """Read an archive back.

    Args:
        path: the file.
        shapes: name of each disparity file -> (height, width).
        times: names of the time files.

    Raises:
        OutputError: damaged, files missing or too many, a wrong size, type or value; the message names the file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
            if broken is not None:
                raise OutputError(f"{broken}: damaged inside the archive; write it again")
            _check_names(archive.namelist(), {*shapes, *times})
            for name, shape in shapes.items():
                _check_map(name, archive.read(name), shape)
            for name in times:
                _check_time(name, archive.read(name))
    except (zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise OutputError(f"{os.fspath(path)}: not a usable archive ({error}); write it again") from error


def _check_names(found: list[str], expected: set[str]) -> None:
    odd = sorted(expected.symmetric_difference(found))
    if odd or len(found) != len(expected):
        name = odd[0] if odd else next(name for name in found if found.count(name) > 1)
        problem = "is missing in" if name in expected - set(found) else "does not belong into"
        raise OutputError(f"{name}: {problem} the archive ({len(found)} files, {len(expected)} expected)")


def _check_map(name: str, content: bytes, shape: tuple[int, int]) -> None:
    values = _read_png(name, content) if name.endswith(".png") else _read_pfm(name, content)
    if values.shape != shape:
        raise OutputError(f"{name}: holds {values.shape[1]}x{values.shape[0]}, the image is {shape[1]}x{shape[0]}")
    if not np.isfinite(values).all() or values.min() < 0 or values.max() > max(shape[1], KITTI_LARGEST):
        raise OutputError(f"{name}: holds disparities that are not finite, negative or wider than the image")


def _read_png(name: str, content: bytes) -> np.ndarray:
    """Disparities of a KITTI PNG, by another decoder than that which wrote it."""
    from PIL import Image

    try:
        picture = Image.open(io.BytesIO(content))
        codes = np.asarray(picture)
    except (OSError, SyntaxError, ValueError) as error:
        raise OutputError(f"{name}: not a PNG file ({error})") from error
    if picture.format != "PNG" or not picture.mode.startswith("I;16") or codes.dtype != np.uint16:
        raise OutputError(f"{name}: a 16-bit grey PNG is expected, this is {picture.format} of mode {picture.mode}")
    if codes.min() < 1:
        raise OutputError(f"{name}: holds {int((codes == 0).sum())} pixels without an answer")
    return codes.astype(np.float64) / 256


def _read_pfm(name: str, content: bytes) -> np.ndarray:
    if not content.startswith(b"Pf\n"):
        raise OutputError(f"{name}: a grey PFM file is expected")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "map.pfm"
        file.write_bytes(content)
        try:
            return read_pfm(file)
        except FileFormatError as error:
            raise OutputError(f"{name}: not a PFM file ({str(error).partition(': ')[2]})") from error


def _check_time(name: str, content: bytes) -> None:
    match = re.fullmatch(rb"(?:runtime )?([0-9.e+-]+)\n", content)
    try:
        seconds = float(match[1]) if match else -1.0
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise OutputError(f"{name}: a number of seconds is expected, found {content[:40]!r}")


def submit(
    model: str | nn.Module,
    benchmark: str,
    root: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    weights: str | Path | None = None,
    scale: float | str = 1.0,
    device: str | None = None,
    method: str | None = None,
    size: str | None = None,
    seconds: float | None = None,
    allow_missing: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Submission:
    """Predict every scene of a benchmark and write the archive.

    Args:
        model, weights, scale, device: see :func:`vision3d.evaluation.folder.evaluate_folder`.
        benchmark, out, allow_missing: see ``write_submission``.
        root: folder of the data set; None: as configured.
        method: Middlebury's method name; None: the name of the network.
        size: Middlebury's resolution; None: H.
        seconds: the time to state for every pair instead of the measured ones.
        progress: called before each scene with its number, the number of scenes, and its name.

    Raises:
        As ``write_submission``; ConfigError, FileFormatError: see ``open_dataset``.
    """
    from vision3d.evaluation.matchers import network_matcher, warm_up

    rule = find_benchmark(benchmark)
    letter = (size or "H") if rule.sizes else ""
    scenes = list(_open(rule, root, letter))
    if not scenes:
        raise InputError(_none_text(rule, root, letter))
    missing = missing_scenes(rule, (f"{split}/{data.scenes[index]}" for split, data, index in scenes))
    if missing and not allow_missing:
        raise InputError(_missing_text(rule, missing))
    name, matcher = network_matcher(model, weights, scale, device)

    def results() -> Iterator[SceneResult]:
        for number, (split, data, index) in enumerate(scenes):
            if progress is not None:
                progress(number, len(scenes), data.scenes[index])
            sample: StereoSample = data[index]
            if number == 0:
                warm_up(matcher, sample)
            answer = matcher(sample)
            yield SceneResult(split, sample.scene, answer.disparity, answer.seconds if seconds is None else seconds)

    label = method if method is not None else re.sub(r"[^A-Za-z0-9_-]", "-", name)
    return write_submission(out, benchmark, results(), method=label, size=letter, allow_missing=allow_missing)


def _none_text(rule: Benchmark, root: str | os.PathLike[str] | None, size: str) -> str:
    """That no scene of the server was found, and where they were sought."""
    from vision3d.datasets.roots import find_root

    folder = Path(find_root(rule.dataset, root))
    names = [name.format(size=size) for name in rule.sources]
    there = [name for name in names if any(folder.glob(name)) or any(folder.glob(f"MiddEval3/{name}"))]
    split, scenes = next(iter(rule.scenes.items()))
    text = f"the folder {' or '.join(there)} lacks them, e.g. {split}/{scenes[0]}"
    if not there:
        text = f"there is no folder {' or '.join(names)}"
    total = sum(map(len, rule.scenes.values()))
    return (
        f"{folder}: holds none of the {total} scenes of {rule.title}: {text}; complete the data set or correct --root"
    )


def _open(rule: Benchmark, root: str | os.PathLike[str] | None, size: str) -> Iterator[tuple[str, Any, int]]:
    """(split, data set, index) of each scene, those that the server does not know left out."""
    from vision3d.datasets.registry import open_dataset

    options = {"size": size} if size else {}
    for split, names in rule.scenes.items():
        try:
            data: Any = open_dataset(rule.dataset, root, split, **options)
        except FileFormatError as error:
            if "holds no pair" in str(error):
                continue  # the missing scenes are named together
            raise
        for index, scene in enumerate(data.scenes):
            if scene in names:
                yield split, data, index
