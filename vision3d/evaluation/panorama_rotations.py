# SPDX-License-Identifier: Apache-2.0
"""What becomes of the answer of a panorama network when the camera is rotated: it should rotate along.

A panorama is rotated, predicted, and the answer rotated back and compared with that of the unrotated one, each pixel
by its solid angle. Rotations other than by whole columns resample the panorama; the control is a panorama that was
rotated forth and back before it was predicted, which is blurred in the same way but not turned.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vision3d.errors import InputError
from vision3d.evaluation.panorama_metrics import panorama_errors
from vision3d.geometry.panorama import panorama_rays
from vision3d.geometry.panorama_mesh import pixel_solid_angles
from vision3d.geometry.panorama_rotation import rotate_panorama, rotation_matrix
from vision3d.types import PanoramaSample

Predict = Callable[[PanoramaSample], np.ndarray]

ROTATIONS: dict[str, np.ndarray] = {
    "yaw 45": rotation_matrix(yaw=45),
    "yaw 90": rotation_matrix(yaw=90),
    "yaw 180": rotation_matrix(yaw=180),
    "pitch 15": rotation_matrix(pitch=15),
    "pitch 45": rotation_matrix(pitch=45),
    "pitch 90": rotation_matrix(pitch=90),
    "roll 15": rotation_matrix(roll=15),
    "roll 90": rotation_matrix(roll=90),
}
_POLE = 60.0  # degrees of latitude beyond which a pixel belongs to a pole
_SEAM = 10.0  # degrees of longitude from the border within which a pixel belongs to the seam
FIGURES = {
    "change": "change %",
    "poles": "poles %",
    "seam": "seam %",
    "elsewhere": "elsewhere %",
    "resampling": "resampling alone %",
    "truth_before": "MRE before",
    "truth_after": "MRE after",
}


@dataclass(frozen=True)
class RotationRow:
    """The mean over panoramas for one network and rotation.

    Attributes:
        model, rotation: names.
        change: mean relative difference of the answer from that of the unrotated panorama, percent.
        poles, seam, elsewhere: the same where a pixel is within 30 degrees of a pole, within 10 degrees of the border
            (outside of the poles), in the unrotated or in the rotated panorama; and at all others.
        resampling: the change by resampling alone, percent.
        truth_before, truth_after: mean relative error against the truth, without and with the rotation.
        panoramas: how many.
    """

    model: str
    rotation: str
    change: float
    poles: float
    seam: float
    elsewhere: float
    resampling: float
    truth_before: float
    truth_after: float
    panoramas: int


def measure_rotations(
    predict: Predict,
    samples: Iterable[PanoramaSample],
    model: str = "",
    rotations: Mapping[str, np.ndarray] | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[list[RotationRow], float]:
    """Rotate panoramas and measure how far the answers rotate along.

    Args:
        predict: gives the distances [H, 2H] of a panorama.
        samples: panoramas; those without depth have no error against the truth (NaN).
        model: its name in the rows.
        rotations: names and [3, 3] matrices; None: ``ROTATIONS``.
        progress: called with a text before each panorama.

    Returns:
        A row a rotation, and the step at the seam: the mean change of log distance from the last to the first column,
        divided by that between other neighbouring columns (1: no seam).

    Raises:
        InputError: no panorama.
    """
    turns = ROTATIONS if rotations is None else rotations
    found: dict[str, list[dict[str, float]]] = {name: [] for name in turns}
    steps = []
    for number, sample in enumerate(samples):
        if progress is not None:
            progress(f"{model} {number + 1} {sample.scene}")
        plain = predict(sample)
        steps.append(seam_step(plain))
        for name, rotation in turns.items():
            found[name].append(_compare(predict, sample, plain, rotation))
    if not steps:
        raise InputError("no panorama to rotate: name a data set that has some")
    rows = [RotationRow(model, name, **_mean(figures), panoramas=len(steps)) for name, figures in found.items()]
    return rows, statistics.fmean(steps)


def seam_step(depth: np.ndarray) -> float:
    """Mean change of log distance across the border of [H, 2H], by that between other columns, between the poles."""
    height = depth.shape[0]
    logs = np.log(depth[round(height * (90 - _POLE) / 180) : round(height * (90 + _POLE) / 180)])
    inner = float(np.nanmean(np.abs(np.diff(logs, axis=1))))
    return float(np.nanmean(np.abs(logs[:, 0] - logs[:, -1]))) / max(inner, 1e-9)


def _compare(predict: Predict, sample: PanoramaSample, plain: np.ndarray, rotation: np.ndarray) -> dict[str, float]:
    image = np.asarray(sample.image)
    turned = rotate_panorama(image, rotation)
    back = rotate_panorama(predict(PanoramaSample(turned)), rotation.T)
    again = rotate_panorama(turned, rotation.T)
    control = plain if np.array_equal(again, image) else predict(PanoramaSample(again))
    height = len(plain)
    poles, seam = _regions(height)
    poles |= rotate_panorama(poles, rotation.T, nearest=True)
    seam = (seam | rotate_panorama(seam, rotation.T, nearest=True)) & ~poles
    area = np.broadcast_to(pixel_solid_angles(height)[:, None], plain.shape)
    change = np.abs(back - plain) / plain
    truth = np.full(plain.shape, np.nan) if sample.depth is None else np.asarray(sample.depth)
    errors = [panorama_errors(answer, truth, weights=area)["abs_rel"] for answer in (plain, back)]
    return {
        "change": 100 * _weighted(change, area, np.ones_like(poles)),
        "poles": 100 * _weighted(change, area, poles),
        "seam": 100 * _weighted(change, area, seam),
        "elsewhere": 100 * _weighted(change, area, ~poles & ~seam),
        "resampling": 100 * _weighted(np.abs(control - plain) / plain, area, np.ones_like(poles)),
        "truth_before": errors[0],
        "truth_after": errors[1],
    }


def _regions(height: int) -> tuple[np.ndarray, np.ndarray]:
    """[H, 2H] bool each: the poles, and the seam between them."""
    x, y, z = np.moveaxis(panorama_rays(height), -1, 0)
    poles = np.abs(np.degrees(np.arcsin(y))) > _POLE
    return poles, ~poles & (np.abs(np.degrees(np.arctan2(x, z))) > 180 - _SEAM)


def _weighted(values: np.ndarray, area: np.ndarray, mask: np.ndarray) -> float:
    used = mask & np.isfinite(values)
    return float((values[used] * area[used]).sum() / area[used].sum()) if used.any() else float("nan")


def _mean(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    means = {}
    for name in figures[0]:
        known = [row[name] for row in figures if np.isfinite(row[name])]
        means[name] = statistics.fmean(known) if known else float("nan")
    return means


def rotation_table(rows: Sequence[RotationRow], steps: Mapping[str, float]) -> str:
    """The rows, and the step at the seam of each network, as a Markdown table."""
    lines = [
        "| network | rotation | " + " | ".join(FIGURES.values()) + " |",
        "|---|---|" + "---|" * len(FIGURES),
    ]
    for row in rows:
        values = asdict(row)
        cells = [f"{values[name]:.3f}" if name.startswith("truth") else f"{values[name]:.2f}" for name in FIGURES]
        lines.append(f"| {row.model} | {row.rotation} | " + " | ".join(cells) + " |")
    count = rows[0].panoramas if rows else 0
    lines += [
        "",
        "Step at the seam (1: as between other columns): " + ", ".join(f"{n} {s:.2f}" for n, s in steps.items()) + ".",
        "",
        f"Means over {count} panoramas, each pixel by its solid angle. Change: relative difference of the answer, "
        "rotated back, from that of the unrotated panorama; poles and seam: places that lie there in one of the two. "
        "Resampling alone: the change when the panorama is rotated forth and back before it is predicted.",
    ]
    return "\n".join(lines) + "\n"


def write_rotation_table(path: str | Path, rows: Sequence[RotationRow], steps: Mapping[str, float]) -> None:
    """Write :func:`rotation_table` to a file.

    Raises:
        OutputError: the file cannot be written.
    """
    from vision3d.io.files import atomic_write

    with atomic_write(path) as temporary:
        temporary.write_text(rotation_table(rows, steps), encoding="utf-8")


def rotation_report(rows: Sequence[RotationRow], steps: Mapping[str, float]) -> dict[str, Any]:
    """The same as a JSON object."""
    return {"rows": [asdict(row) for row in rows], "seam_step": dict(steps)}
