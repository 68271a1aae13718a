# SPDX-License-Identifier: Apache-2.0
"""How the depth error grows when the depth range that a network is given is wider than the scene needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from vision3d.benchmark.plane_sweep import PlaneSweep
from vision3d.errors import InputError
from vision3d.models.mvs.dispmvs import DispMVS
from vision3d.types import MultiViewBatch, MultiViewSample

FACTORS = (1.0, 2.0, 5.0, 20.0)
PROTOCOL = (
    "near end divided and far end multiplied by the factor; errors relative to the true depth, over all pixels with "
    "known depth of all samples; same network features and views in every row"
)


@dataclass(frozen=True)
class RangeRow:
    """Errors of one method at one width of the range.

    Attributes:
        data, method: their names.
        factor: how much wider the range was made at each end.
        median: median relative error, percent.
        mean: mean relative error, percent.
        within: pixels with a relative error below 2 %, percent.
        seconds: a sample.
    """

    data: str
    method: str
    factor: float
    median: float
    mean: float
    within: float
    seconds: float


def measure_ranges(
    data: str,
    samples: Iterable[MultiViewSample],
    network: DispMVS,
    *,
    factors: Sequence[float] = FACTORS,
    planes: Sequence[int] = (64,),
    progress: Callable[[str], None] = lambda text: None,
) -> list[RangeRow]:
    """Errors of a network, and of plane sweeps over its features, with each factor.

    Args:
        data: name of the data, for the table.
        samples: with depth, depth range and cameras; all views of one size.
        network: in eval mode.
        factors: at least 1 each.
        planes: numbers of planes of the sweeps.
        progress: told what is measured.

    Raises:
        InputError: a factor below 1, or no samples.
    """
    if min(factors) < 1:
        raise InputError(f"a depth range can only be widened: factors must be at least 1, got {list(factors)}")
    batches = [MultiViewBatch.collate([sample]) for sample in samples]
    if not batches:
        raise InputError(f"{data}: no samples to measure")
    methods: dict[str, nn.Module] = {"network": network}
    methods.update({f"sweep, {count} planes": PlaneSweep(network, count) for count in planes})
    rows = []
    for name, method in methods.items():
        for factor in factors:
            progress(f"{data}: {name}, range x{factor:g}")
            rows.append(_measure(data, name, method, batches, factor))
    return rows


def _measure(data: str, name: str, method: nn.Module, batches: list[MultiViewBatch], factor: float) -> RangeRow:
    errors: list[np.ndarray] = []
    start = time.perf_counter()
    for batch in batches:
        widened = replace(batch, depth_range=batch.depth_range * torch.tensor([1 / factor, factor]))
        with torch.inference_mode():
            answer = method(widened.images, widened.intrinsics, widened.world_to_camera, widened.depth_range).depth
        known = torch.isfinite(batch.depth) & (batch.depth > 0)
        error = ((answer.cpu() - batch.depth).abs() / batch.depth)[known]
        errors.append(torch.nan_to_num(error, nan=1e9, posinf=1e9).numpy().astype(np.float64))
    every = np.concatenate(errors)
    figures = (np.median(every), every.mean(), np.mean(every < 0.02)) if every.size else (np.nan, np.nan, np.nan)
    median, mean, within = (100.0 * float(value) for value in figures)
    return RangeRow(data, name, factor, median, mean, within, (time.perf_counter() - start) / len(batches))


def markdown_table(rows: Sequence[RangeRow]) -> str:
    """The rows as a Markdown table, one line a data set and method."""
    factors = sorted({row.factor for row in rows})
    head = [*(f"x{factor:g}: median %" for factor in factors), *(f"x{factor:g}: < 2 %" for factor in factors)]
    lines = ["| data | method | " + " | ".join(head) + " | s |", "|---|---|" + "---:|" * (len(head) + 1)]
    for data, method in dict.fromkeys((row.data, row.method) for row in rows):
        found = {row.factor: row for row in rows if (row.data, row.method) == (data, method)}
        cells = [f"{found[factor].median:.2f}" if factor in found else "" for factor in factors]
        cells += [f"{found[factor].within:.1f}" if factor in found else "" for factor in factors]
        seconds = np.mean([row.seconds for row in found.values()])
        lines.append(f"| {data} | {method} | " + " | ".join(cells) + f" | {seconds:.2f} |")
    return "\n".join([*lines, "", f"Protocol: {PROTOCOL}."])


def folder_samples(folder: str, size: tuple[int, int] | None, views: int, half_pixel: bool) -> list[MultiViewSample]:
    """Samples with true depth of a scene's folder (as ``vision3d mvs`` takes it), brought to (height, width).

    Raises:
        InputError: no view of the scene has a depth map.
    """
    from vision3d.datasets.multiview import resize_nearest
    from vision3d.multiview.scene import open_scene

    scene = open_scene(folder, size=size, half_pixel=half_pixel)
    samples = []
    for number in scene.references:
        entry = scene.entries[number]
        depth, _ = scene.data.read_truth(entry, scene.data.read_view(entry, number))
        if depth is None or not np.isfinite(depth).any():
            continue
        used = [number, *scene.sources(number, views - 1)]
        samples.append(
            MultiViewSample(
                images=[scene.image(view) for view in used],
                cameras=[scene.camera(view) for view in used],
                view_ids=used,
                depth=resize_nearest(depth, *scene.size),
                depth_range=scene.ranges[number],
                scene=scene.names[number],
            )
        )
    if not samples:
        raise InputError(f"{folder}: no view has a depth map to compare with (depths/%08d.pfm)")
    return samples
