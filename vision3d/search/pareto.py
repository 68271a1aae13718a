# SPDX-License-Identifier: Apache-2.0
"""Cost and error of the measured networks as a table and a picture."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vision3d.io.files import atomic_write
from vision3d.models.stereo.easnet import Setting

COLUMNS = ("setting", "cost", "epe", "bad1", "bad3", "d1", "pareto", "chosen")
_WIDTH, _HEIGHT, _SHARPER = 1000, 640, 3
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 30, 40, 80
_INK, _GRID, _DOT, _FRONT, _CHOSEN = (45, 50, 58), (224, 227, 231), (150, 165, 190), (59, 110, 190), (208, 86, 38)


@dataclass(frozen=True)
class Point:
    """One measured network: its cost and its figures (EPE in pixels, the others in percent)."""

    setting: Setting
    cost: float
    figures: dict[str, float]
    chosen: bool = False


def pareto_front(costs: Sequence[float], errors: Sequence[float]) -> list[int]:
    """Indices of the points that no other one beats in cost and error at once, by ascending cost."""
    front: list[int] = []
    least = math.inf
    for index in sorted(range(len(costs)), key=lambda i: (costs[i], errors[i])):
        if errors[index] < least:
            front.append(index)
            least = errors[index]
    return front


def write_pareto(prefix: Path, points: Sequence[Point], unit: str, limit: float = math.inf) -> tuple[Path, Path]:
    """Write ``PREFIX.csv`` and ``PREFIX.png``; networks without a finite error are left out.

    Args:
        prefix: path without suffix.
        points: the measured networks.
        unit: of the cost.
        limit: drawn as a line where it is finite.

    Raises:
        OutputError: the place is not writable.
    """
    from vision3d.io.images import write_image

    points = sorted((point for point in points if math.isfinite(point.figures["epe"])), key=lambda point: point.cost)
    front = set(pareto_front([p.cost for p in points], [p.figures["epe"] for p in points]))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([name if name != "cost" else f"cost_{unit.lower()}" for name in COLUMNS])
    for number, point in enumerate(points):
        figures = [f"{point.figures[name]:.5g}" for name in COLUMNS[2:6]]
        text = json.dumps(point.setting.as_dict(), separators=(",", ":"))
        writer.writerow([text, f"{point.cost:.5g}", *figures, int(number in front), int(point.chosen)])
    table, picture = prefix.with_suffix(".csv"), prefix.with_suffix(".png")
    with atomic_write(table) as temporary:
        temporary.write_text(buffer.getvalue(), encoding="utf-8")
    write_image(picture, draw_pareto(points, sorted(front), unit, limit))
    return table, picture


def draw_pareto(points: Sequence[Point], front: Sequence[int], unit: str, limit: float = math.inf) -> np.ndarray:
    """[640, 1000, 3] uint8 RGB: EPE over cost; the front as a line, the chosen network in another colour."""
    import cv2

    canvas = np.full((_HEIGHT * _SHARPER, _WIDTH * _SHARPER, 3), 255, np.uint8)
    costs, errors = [p.cost for p in points] or [0.0], [p.figures["epe"] for p in points] or [0.0]
    across = _range([*costs, *([limit] if math.isfinite(limit) else [])])
    up = _range(errors)

    def place(cost: float, error: float) -> tuple[int, int]:
        x = _LEFT + (cost - across[0]) / (across[1] - across[0]) * (_WIDTH - _LEFT - _RIGHT)
        y = _HEIGHT - _BOTTOM - (error - up[0]) / (up[1] - up[0]) * (_HEIGHT - _TOP - _BOTTOM)
        return round(x * _SHARPER), round(y * _SHARPER)

    def line(a: tuple[int, int], b: tuple[int, int], color: tuple[int, int, int], width: int = 1) -> None:
        cv2.line(canvas, a, b, color, width * _SHARPER, cv2.LINE_AA)

    def text(words: str, at: tuple[int, int], shift: tuple[int, int]) -> None:
        corner = (at[0] + shift[0] * _SHARPER, at[1] + shift[1] * _SHARPER)
        cv2.putText(canvas, words, corner, cv2.FONT_HERSHEY_SIMPLEX, 0.55 * _SHARPER, _INK, _SHARPER, cv2.LINE_AA)

    for tick in np.linspace(*across, 6)[:-1]:
        line(place(tick, up[0]), place(tick, up[1]), _GRID)
        text(f"{tick:.4g}", place(tick, up[0]), (-18, 24))
    for tick in np.linspace(*up, 6):
        line(place(across[0], tick), place(across[1], tick), _GRID)
        text(f"{tick:.3g}", place(across[0], tick), (-60, 6))
    if math.isfinite(limit):
        line(place(limit, up[0]), place(limit, up[1]), _CHOSEN)
    text(f"cost, {unit}", place(across[0], up[0]), ((_WIDTH - _LEFT - _RIGHT) // 2 - 40, 54))
    text("EPE, pixels", place(across[0], up[1]), (-60, -16))
    for first, second in zip(front, front[1:], strict=False):  # noqa: RUF007
        line(place(costs[first], errors[first]), place(costs[second], errors[second]), _FRONT, 2)
    for number, point in sorted(enumerate(points), key=lambda item: item[1].chosen):
        color = _CHOSEN if point.chosen else _FRONT if number in front else _DOT
        size = (8 if point.chosen else 4) * _SHARPER
        cv2.circle(canvas, place(point.cost, point.figures["epe"]), size, color, -1, cv2.LINE_AA)
    return np.asarray(cv2.resize(canvas, (_WIDTH, _HEIGHT), interpolation=cv2.INTER_AREA))


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin
