# SPDX-License-Identifier: Apache-2.0
"""Fit a radiance field and its cameras to an ordered sequence of images.

Example:
    >>> import vision3d  # doctest: +SKIP
    >>> run = vision3d.fit_radiance_field("frames", out="scene")  # doctest: +SKIP
    >>> run.focal_length, run.camera(3).world_to_camera, run.model.render_view(3).rgb  # doctest: +SKIP
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vision3d.errors import InputError, OutputError, Vision3DError
from vision3d.inference import choose_device
from vision3d.training.nerf.images import ImagePyramid
from vision3d.training.nerf.incremental import FitCallback, IncrementalFit
from vision3d.training.nerf.optimization import DEFAULT_SEED
from vision3d.training.nerf.run_folder import NerfRun, build_model, check_empty, is_run, load_run, save_run
from vision3d.training.nerf.schedule import Schedule, make_schedule

if TYPE_CHECKING:
    from vision3d.datasets.image_sequences import ImageSequence

_LEAST_IMAGES = 3
_LEAST_CONTRAST = 2.0  # standard deviation of the grey values below which an image shows nothing
_SAME = 0.5  # mean difference of grey values below which two images are the same
_POLL = 0.5  # seconds


def fit_radiance_field(
    images: str | os.PathLike[str] | Sequence[np.ndarray] | ImageSequence,
    out: str | os.PathLike[str] | None = None,
    schedule: str | Schedule = "fast",
    *,
    options: Mapping[str, Any] | None = None,
    hold_out: int = 0,
    seed: int = DEFAULT_SEED,
    resume: bool = True,
    overwrite: bool = False,
    device: str | torch.device | None = None,
    processes: int = 1,
    callback: FitCallback | None = None,
) -> NerfRun:
    """Fit a radiance field, the poses of all images and their common focal length to the images alone.

    The state is saved in ``out`` after each registered frame. The same call goes on where a run was killed, to the same
    result (on one machine, on the CPU).

    Args:
        images: a folder or video (see :func:`vision3d.datasets.image_sequences.read_sequence`), its result, or
            [H, W, 3] uint8 RGB arrays of one size; in the order in which the camera moved.
        out: folder of the run; None keeps it in memory.
        schedule: fast, published, nerfmm or barf (see :mod:`vision3d.training.nerf.schedule`).
        options: settings of the schedule that are changed, e.g. ``{"rays": 1024, "pyramid_level": 0, "near": 0.5}``.
        hold_out: keep every so-many-th frame out of the fit, to score views that were never seen; 0: none.
        seed: of all random numbers.
        resume: go on with a run in ``out``.
        overwrite: throw away a run in ``out`` that cannot be gone on with.
        device: None takes CUDA where there is one.
        processes: share the rays of a step among so many processes of this machine.
        callback: told every few steps where the fit stands.

    Raises:
        InputError: fewer than three images, sizes that differ, images that show nothing or are all the same, an illegal
            argument, or a loss that is not finite. ImageError: files that cannot be read. ConfigError,
            UnknownNameError: an unknown schedule or setting. OutputError: ``out`` is not writable, or holds other files
            or another run.
    """
    settings = make_schedule(schedule, options)
    home = choose_device(device)
    names, arrays, source = _sequence(images)
    held_out = _held_out(len(arrays), hold_out)
    _check_images(names, arrays, held_out)
    settings = settings.fitted_to((arrays[0].shape[0], arrays[0].shape[1]))
    if processes < 1:
        raise InputError(f"processes is {processes}: at least 1")
    run = _new_run(names, arrays, source, settings, held_out, seed)
    if out is not None:
        run = _open(run, Path(out), resume, overwrite)
    if run.finished:
        run.model.to(home)
        return run
    if processes > 1:
        return _fit_in_processes(run, arrays, settings, out, home, processes, callback)
    return _fit(run, arrays, settings, out, home, callback)


def _fit(
    run: NerfRun,
    arrays: Sequence[np.ndarray],
    settings: Schedule,
    out: str | os.PathLike[str] | None,
    device: torch.device,
    callback: FitCallback | None,
) -> NerfRun:
    run.model.to(device)
    save = None if out is None else lambda state: save_run(state, out)
    return IncrementalFit(run, ImagePyramid(arrays), settings, save, callback).work()


def _sequence(images: Any) -> tuple[list[str], list[np.ndarray], str | None]:
    """Names, arrays and origin of the images."""
    if isinstance(images, str | os.PathLike):
        from vision3d.datasets.image_sequences import read_sequence

        images = read_sequence(images)
    if hasattr(images, "images"):
        return list(images.names), list(images.images), str(images.source)
    arrays = list(images)
    for number, array in enumerate(arrays):
        if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
            raise InputError(f"image {number} is no [H, W, 3] array of uint8 colours: convert it, or give a folder")
    return [f"{number:04d}.png" for number in range(len(arrays))], arrays, None


def _held_out(count: int, every: int) -> list[int]:
    """Every ``every``-th frame, not the first and as far as possible from it."""
    if every == 0:
        return []
    if every < 2:
        raise InputError(f"hold_out is {every}: 2 holds out every second frame, 0 none")
    return list(range(every // 2, count, every))


def _check_images(names: Sequence[str], arrays: Sequence[np.ndarray], held_out: Sequence[int]) -> None:
    if len(arrays) - len(held_out) < _LEAST_IMAGES:
        raise InputError(f"{len(arrays) - len(held_out)} images to fit: give at least {_LEAST_IMAGES}")
    sizes = {array.shape[:2] for array in arrays}
    if len(sizes) > 1:
        (height, width), (other_height, other_width) = sorted(sizes)[:2]
        raise InputError(f"images of {width}x{height} and of {other_width}x{other_height} pixels: give one size")
    for name, array in zip(names, arrays, strict=True):
        if array.std() < _LEAST_CONTRAST:
            raise InputError(f"{name}: shows one colour only (mean {array.mean():.0f} of 255): leave it out")
    first = arrays[0].astype(np.float32)
    if all(np.abs(array - first).mean() < _SAME for array in arrays[1:]):
        raise InputError(f"all {len(arrays)} images are the same: the camera must move between them")


def _new_run(
    names: list[str],
    arrays: Sequence[np.ndarray],
    source: str | None,
    settings: Schedule,
    held_out: list[int],
    seed: int,
) -> NerfRun:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    size = int(arrays[0].shape[0]), int(arrays[0].shape[1])
    model_options = settings.model_options()
    return NerfRun(
        model=build_model(len(arrays), size, model_options, seed),
        names=names,
        size=size,
        schedule=settings.plain(),
        model_options=model_options,
        seed=seed,
        held_out=held_out,
        images_source=source,
        images_digest=digest.hexdigest()[:16],
    )


def _open(run: NerfRun, folder: Path, resume: bool, overwrite: bool) -> NerfRun:
    """The run in the folder where it is the same one, otherwise the new one, saved there."""
    check_empty(folder)
    if is_run(folder) and not overwrite:
        if not resume:
            raise OutputError(f"{folder}: holds a run: choose another folder, or overwrite it (--overwrite)")
        before = load_run(folder)
        for key in ("images_digest", "seed", "held_out", "schedule"):
            old, new = (json.loads(json.dumps(getattr(state, key))) for state in (before, run))
            if old != new:
                what = {"images_digest": "images", "held_out": "held-out frames"}.get(key, key)
                raise OutputError(
                    f"{folder}: holds a run with another {what}: choose another folder, or overwrite it (--overwrite)"
                )
        return before
    save_run(run, folder)
    return run


def _fit_in_processes(
    run: NerfRun,
    arrays: Sequence[np.ndarray],
    settings: Schedule,
    out: str | os.PathLike[str] | None,
    device: torch.device,
    processes: int,
    callback: FitCallback | None,
) -> NerfRun:
    """Start the processes, pass on what the first one tells, and read its result."""
    import torch.multiprocessing as mp

    if device.type == "cuda" and torch.cuda.device_count() < processes:
        raise InputError(f"{processes} processes, but {torch.cuda.device_count()} CUDA devices: give one for each")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run" if out is None else Path(out)
        save_run(run, folder)
        messages = mp.get_context("spawn").SimpleQueue()
        work = (processes, f"file://{scratch}/meeting", list(arrays), settings, str(folder), device.type, messages)
        started = mp.spawn(_worker, args=work, nprocs=processes, join=False)  # type: ignore[no-untyped-call]
        ended: mp.ProcessExitedException | None = None
        try:
            while not started.join(timeout=_POLL):
                _pass_on(messages, callback)
        except mp.ProcessExitedException as error:
            ended = error
        finally:
            for process in started.processes:
                process.terminate()
        _pass_on(messages, callback)  # what a process said before it ended explains its end
        if ended is not None:
            raise InputError(f"a process of the fit ended ({ended}): see its output, or use one process") from ended
        return load_run(folder, device)


def _pass_on(messages: Any, callback: FitCallback | None) -> None:
    """Give the callback what the first process has told; an error that any process met is raised here."""
    while not messages.empty():
        message = messages.get()
        if isinstance(message, Vision3DError):
            raise message
        if callback is not None:
            callback(message)


def _worker(
    rank: int,
    processes: int,
    meeting: str,
    arrays: list[np.ndarray],
    settings: Schedule,
    folder: str,
    kind: str,
    messages: Any,
) -> None:
    import torch.distributed as dist

    torch.set_num_threads(max(torch.get_num_threads() // processes, 1))
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", init_method=meeting, rank=rank, world_size=processes)
    try:
        run = load_run(folder)
        dist.barrier()  # nobody saves before everybody has read
        _fit(run, arrays, settings, folder if rank == 0 else None, device, messages.put if rank == 0 else None)
        dist.barrier()  # nobody leaves before everybody is done
    except Vision3DError as error:  # from any process: the end of the first one may take the others down
        messages.put(error)
    finally:
        dist.destroy_process_group()
