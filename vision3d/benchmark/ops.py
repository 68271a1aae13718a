# SPDX-License-Identifier: Apache-2.0
"""Processor time of the ops beside their plain loops, on this machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vision3d.errors import InputError

if TYPE_CHECKING:
    import torch

PROTOCOL = (
    "process CPU time, minimum of repeats after one warm-up call, fresh result each call; "
    "forward without gradients, forward + backward to all inputs"
)


@dataclass(frozen=True)
class Case:
    """One op at one shape: the plain loop, the op, and further variants of it by name."""

    op: str
    shape: str
    inputs: tuple[torch.Tensor, ...]
    loop: Callable[..., torch.Tensor]
    variants: dict[str, Callable[..., torch.Tensor]]


@dataclass(frozen=True)
class Row:
    """The figures of one variant: milliseconds, ratios loop / variant, largest difference to the loop."""

    op: str
    shape: str
    dtype: str
    variant: str
    forward_ms: float
    forward_loop_ms: float
    forward_ratio: float
    both_ms: float
    both_loop_ms: float
    both_ratio: float
    difference: float


def measure_ops(
    only: str = "", seconds: float = 0.1, threads: int = 1, progress: Callable[[str], None] | None = None
) -> tuple[list[Row], str]:
    """Measure the ops; see ``PROTOCOL``.

    Args:
        only: only ops whose name holds this text.
        seconds: processor time for the repeats of one figure.
        threads: threads of torch meanwhile.
        progress: called before each case with its op and shape.

    Returns:
        The rows, and a description of the machine.

    Raises:
        InputError: no op has such a name, or ``seconds`` or ``threads`` is not positive.
    """
    import torch

    if threads < 1 or not seconds > 0:
        raise InputError(f"threads {threads} and seconds {seconds} must be positive")
    cases = [case for case in _cases() if only in case.op]
    if not cases:
        names = ", ".join(sorted({case.op for case in _cases()}))
        raise InputError(f"no op is named like '{only}': known are {names}")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows: list[Row] = []
        for case in cases:
            if progress is not None:
                progress(f"{case.op} {case.shape}")
            rows += _measure(case, seconds)
        return rows, describe_machine()
    finally:
        torch.set_num_threads(before)


def describe_machine() -> str:
    """Processor, cores, torch and threads; no names of hosts or users."""
    import torch

    name = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    capability = torch.backends.cpu.get_cpu_capability()
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    return f"{name} ({capability}), {cores} cores, torch {torch.__version__}, {threads} thread{'s' * (threads > 1)}"


def _features(*shape: int, count: int = 2, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
    import torch

    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator).to(dtype or torch.float32) for _ in range(count))


def _cases() -> Iterator[Case]:
    """All cases, in the order of the table."""
    yield from _correlations()
    yield from _volumes()
    yield from _maps()
    yield from _deformable()
    yield from _epipolar()
    yield from _faces()


def _correlations() -> Iterator[Case]:
    import torch

    from vision3d import ops
    from vision3d.ops import reference
    from vision3d.ops.correlation import banded_product

    shapes = ((1, 32, 136, 240, 48, None), (1, 128, 68, 120, 40, 40), (4, 48, 48, 96, 48, 48))
    for b, c, h, w, d, tile in shapes:
        for dtype in (torch.float32, torch.bfloat16):
            yield Case(
                "correlation_1d",
                f"B{b} C{c} {h}x{w} D{d}",
                _features(b, c, h, w, dtype=dtype),
                lambda left, right, d=d: reference.correlation_1d(left, right, d),
                {
                    "default": lambda left, right, d=d: ops.correlation_1d(left, right, d),
                    # the form that the default does not take at this width
                    f"tiles of {tile}" if tile else "whole rows": lambda left, right, d=d, c=c, tile=tile: (
                        banded_product(left, right, d, 1 / c, tile)
                    ),
                },
            )
    yield Case(
        "correlation_2d",
        "B1 C128 68x120 r4",
        _features(1, 128, 68, 120),
        lambda left, right: reference.correlation_2d(left, right, 4),
        {"default": lambda left, right: ops.correlation_2d(left, right, 4)},
    )


def _volumes() -> Iterator[Case]:
    from vision3d import ops
    from vision3d.ops import reference

    yield Case(
        "groupwise_correlation",
        "B1 C96 G8 68x120 D48",
        _features(1, 96, 68, 120),
        lambda left, right: reference.groupwise_correlation(left, right, 48, 8),
        {"default": lambda left, right: ops.groupwise_correlation(left, right, 48, 8)},
    )
    for name in ("concatenation_volume", "difference_volume"):
        yield Case(
            name,
            "B1 C32 34x60 D24",
            _features(1, 32, 34, 60),
            lambda left, right, name=name: getattr(reference, name)(left, right, 24),
            {"default": lambda left, right, name=name: getattr(ops, name)(left, right, 24)},
        )


def _maps() -> Iterator[Case]:
    from vision3d import ops
    from vision3d.ops import reference

    yield Case(
        "warp_by_disparity",
        "B1 C3 272x480",
        (*_features(1, 3, 272, 480, count=1), 4 * _features(1, 1, 272, 480, count=1)[0]),
        reference.warp_by_disparity,
        {"default": ops.warp_by_disparity},
    )
    yield Case(
        "disparity_regression",
        "B1 D48 136x240",
        _features(1, 48, 136, 240, count=1),
        reference.disparity_regression,
        {"default": ops.disparity_regression},
    )
    yield Case(
        "convex_upsample",
        "B1 136x240 x4",
        (*_features(1, 1, 136, 240, count=1), *_features(1, 144, 136, 240, count=1)),
        lambda disparity, weights: reference.convex_upsample(disparity, weights, 4),
        {"default": lambda disparity, weights: ops.convex_upsample(disparity, weights, 4)},
    )


def _deformable() -> Iterator[Case]:
    from vision3d import ops
    from vision3d.ops import reference

    for c, h, w in ((64, 182, 320), (32, 91, 160), (16, 46, 80), (64, 54, 118)):
        offset, mask = 2 * _features(1, 36, h, w, count=1)[0], _features(1, 18, h, w, count=1)[0]
        weight = _features(c, c, 3, 3, count=1)[0] / (3 * c**0.5)
        yield Case(
            "deform_conv2d",
            f"B1 C{c} G2 {h}x{w} 3x3",
            (*_features(1, c, h, w, count=1), offset, weight, mask),
            lambda x, o, k, m: reference.deform_conv2d(x, o, k, mask=m, padding=2, dilation=2),
            {"default": lambda x, o, k, m: ops.deform_conv2d(x, o, k, mask=m, padding=2, dilation=2)},
        )


def _faces() -> Iterator[Case]:
    import torch

    from vision3d import ops
    from vision3d.geometry.icosphere import icosphere
    from vision3d.ops import reference

    for level, channels in ((5, 64), (3, 256)):
        mesh = icosphere(level)
        adjacency, twins = (torch.from_numpy(table.astype("int64")) for table in (mesh.adjacency, mesh.twins))
        inputs = (
            *_features(1, len(mesh.faces), channels, count=1),
            *_features(channels, channels, 4, count=1),
        )
        yield Case(
            "face_convolution",
            f"B1 F{len(mesh.faces)} C{channels}",
            inputs,
            lambda features, weight, adjacency=adjacency: reference.face_convolution(features, adjacency, weight),
            {
                "default": lambda features, weight, adjacency=adjacency, twins=twins: ops.face_convolution(
                    features, adjacency, weight, twins=twins
                )
            },
        )


def _epipolar() -> Iterator[Case]:
    import torch

    from vision3d import ops
    from vision3d.ops import reference

    for c, h, w, levels, radius in ((96, 128, 160, 2, 2), (128, 32, 40, 4, 4)):
        first, second = _features(1, c, h, w)
        noise = _features(1, 2, h, w, count=1)[0]
        y, x = torch.meshgrid(torch.arange(float(h)), torch.arange(float(w)), indexing="ij")
        base, direction = torch.stack([x, y])[None] + noise, torch.tensor([0.8, 0.6]).view(1, 2, 1, 1).expand_as(noise)
        # base, direction and flow are constants, as in the network that this op is for
        line = (base, direction, noise[:, :1], radius)
        yield Case(
            "epipolar_cost",
            f"B1 C{c} {h}x{w} L{levels} r{radius}",
            (first, second),
            lambda a, b, v=levels, line=line: reference.epipolar_cost(a, ops.feature_pyramid(b, v), *line),
            {"default": lambda a, b, v=levels, line=line: ops.epipolar_cost(a, ops.feature_pyramid(b, v), *line)},
        )


def _best(function: Callable[[], object], seconds: float) -> float:
    """Milliseconds of CPU time: minimum of 1 to 30 repeats that fit into ``seconds``, after one warm-up call.

    On a crowded machine, where a second of CPU time takes long, it stops after ten times the seconds of wall time.
    """
    function()
    end = time.monotonic() + 10 * seconds
    times: list[float] = []
    while not times or (len(times) < 30 and sum(times) < seconds and time.monotonic() < end):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def _times(function: Callable[..., torch.Tensor], case: Case, seconds: float) -> tuple[float, float, torch.Tensor]:
    """Forward and forward + backward milliseconds, and the result."""
    import torch

    with torch.no_grad():
        result = function(*case.inputs)
        forward = _best(lambda: function(*case.inputs), seconds)
    leaves = [value.detach().requires_grad_() for value in case.inputs]
    seed = torch.ones_like(result)
    both = _best(lambda: torch.autograd.grad(function(*leaves), leaves, seed), seconds)
    return forward, both, result


def _measure(case: Case, seconds: float) -> Iterator[Row]:
    """The rows of one case; the loop is measured once."""
    loop_forward, loop_both, expected = _times(case.loop, case, seconds)
    dtype = str(case.inputs[0].dtype).removeprefix("torch.")
    for name, function in case.variants.items():
        forward, both, result = _times(function, case, seconds)
        difference = float((result.double() - expected.double()).abs().max())
        yield Row(
            op=case.op,
            shape=case.shape,
            dtype=dtype,
            variant=name,
            forward_ms=round(forward, 3),
            forward_loop_ms=round(loop_forward, 3),
            forward_ratio=round(loop_forward / forward, 2),
            both_ms=round(both, 3),
            both_loop_ms=round(loop_both, 3),
            both_ratio=round(loop_both / both, 2),
            difference=difference,
        )
