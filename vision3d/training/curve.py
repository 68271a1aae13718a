# SPDX-License-Identifier: Apache-2.0
"""The learning curve of a run: a short table and a picture from its ``metrics.csv``."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vision3d.errors import FileFormatError, InputError

COLUMNS = ("step", "split", "loss", "lr", "epe", "bad1", "bad2", "bad3", "d1", "seconds")
_MEASURED = ("epe", "bad1", "bad2", "bad3", "d1")
_WIDTH, _HEIGHT, _SHARPER = 1200, 640, 4  # drawn so many times larger, then reduced
_LEFT, _RIGHT, _TOP, _BOTTOM = 100, 100, 56, 84
_FACTORS = ((1, 1.2, 1.5, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1,))
_INK, _GRID, _PAPER = (45, 50, 58), (224, 227, 231), (255, 255, 255)
_LOSS, _ERROR = (59, 110, 190), (208, 86, 38)


def read_metrics(path: Path, last_step: int | None = None) -> list[dict[str, str]]:
    """The complete rows of a metrics file, up to ``last_step``; empty if there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values() and row.get("seconds")]
    return [row for row in rows if last_step is None or int(row["step"]) <= last_step]


def summarize_metrics(rows: Sequence[dict[str, str]], window: int) -> list[dict[str, str]]:
    """The validation rows of a run, and its training loss averaged over windows of steps.

    Args:
        rows: of ``metrics.csv``.
        window: steps in a window; the window of step s ends at the next multiple of ``window``.

    Returns:
        Rows with ``COLUMNS``: a window stands at its last step, with the mean loss and the last learning rate;
        ``seconds`` is the time since the start of the run, summed over its resumes. Steps without a finite loss do not
        count; the windows and validations are in the order of their steps.

    Raises:
        InputError: window < 1.
    """
    if window < 1:
        raise InputError(f"window must be at least 1 step, got {window}")
    summary: list[dict[str, str]] = []
    losses: list[float] = []
    open_row: dict[str, str] = {}
    seconds = 0.0

    def close() -> None:
        if losses:
            summary.append({**open_row, "loss": f"{np.mean(losses):.5g}"})
        losses.clear()

    for row in rows:
        step = int(row["step"])
        if losses and (step - 1) // window != (int(open_row["step"]) - 1) // window:
            close()
        seconds += float(row["seconds"])
        common = {"step": str(step), "split": row["split"], "seconds": f"{seconds:.0f}"}
        if row["split"] == "train":
            open_row = {**common, "lr": f"{float(row['lr']):.4g}"}
            losses += [float(row["loss"])] if math.isfinite(float(row["loss"])) else []
        else:
            summary.append({**common, **{name: f"{float(row[name]):.5g}" for name in _MEASURED}})
    close()
    return sorted(summary, key=lambda row: (int(row["step"]), row["split"]))


def write_learning_curve(run: str | Path, prefix: str | Path, window: int | None = None) -> tuple[Path, Path]:
    """Write ``PREFIX.csv`` (see ``summarize_metrics``) and ``PREFIX.png`` of a run.

    Args:
        run: the run folder, or its metrics file.
        prefix: path of the two files without their suffix.
        window: steps that the training loss is averaged over; None: about 100 windows, of a round number of steps.

    Returns:
        The two files.

    Raises:
        FileFormatError: no metrics there. InputError: window < 1. OutputError: the place is not writable.
    """
    from vision3d.io.files import atomic_write, ensure_folder
    from vision3d.io.images import write_image

    source = Path(run) / "metrics.csv" if Path(run).is_dir() else Path(run)
    try:
        rows = read_metrics(source)
        summary = summarize_metrics(rows, _round_window(len(rows)) if window is None else window)
    except (KeyError, TypeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{source}: not the metrics of a training run ({error}): check the path") from error
    if not summary:
        raise FileFormatError(f"{source}: no metrics of a training run: check the path")
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(summary)
    table, picture = (Path(f"{prefix}{suffix}") for suffix in (".csv", ".png"))
    ensure_folder(table.parent)
    with atomic_write(table) as temporary:
        temporary.write_text(buffer.getvalue(), encoding="utf-8")
    write_image(picture, draw_curve(summary))
    return table, picture


def _round_window(steps: int) -> int:
    """1, 2, 5 times a power of ten: the smallest with at most about 100 windows."""
    power = 10 ** max(0, math.floor(math.log10(max(1, steps) / 100)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power * 100 >= steps)


@dataclass(frozen=True)
class _Axis:
    """A logarithmic or linear axis from ``low`` to ``high`` along ``start`` to ``stop`` pixels."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for factors in _FACTORS:
                every = [factor * 10.0**power for power in powers for factor in factors]
                inside = [value for value in every if self.low <= value <= self.high]
                if len(inside) <= 9:
                    break
            return inside
        step = 10 ** math.floor(math.log10((self.high - self.low) / 4))
        step = next(factor * step for factor in (1, 2, 5, 10) if (self.high - self.low) / (factor * step) <= 8)
        return [step * index for index in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1)]


def _points(rows: Sequence[dict[str, str]], split: str, column: str) -> list[tuple[float, float]]:
    found = [(float(row["step"]), float(row[column])) for row in rows if row["split"] == split]
    return [(step, value) for step, value in found if math.isfinite(value) and value > 0]


def _vertical(points: Sequence[tuple[float, float]]) -> _Axis:
    """The logarithmic axis that holds these values."""
    values = [value for _, value in points] or [1.0]
    return _Axis(min(values) / 1.15, max(values) * 1.15, _HEIGHT - _BOTTOM, _TOP, log=True)


def draw_curve(rows: Sequence[dict[str, str]]) -> np.ndarray:
    """[640, 1200, 3] uint8 RGB: training loss (left axis) and validation EPE (right axis) over the steps, logarithmic.

    Args:
        rows: as ``summarize_metrics`` gives them.
    """
    losses, errors = _points(rows, "train", "loss"), _points(rows, "validation", "epe")
    across = _Axis(0, max(float(row["step"]) for row in rows), _LEFT, _WIDTH - _RIGHT)
    canvas = _Canvas()
    bottom = _HEIGHT - _BOTTOM
    for tick in across.ticks():
        canvas.line([(across.place(tick), _TOP), (across.place(tick), bottom)], _GRID, 1)
        canvas.text(f"{tick:g}", across.place(tick), bottom + 24, _INK)
    canvas.text("optimiser step", (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 22, _INK)
    for points, color, right, title in (
        (losses, _LOSS, False, "training loss"),
        (errors, _ERROR, True, "validation EPE, pixels"),
    ):
        if not points:
            continue
        axis, edge = _vertical(points), _WIDTH - _RIGHT if right else _LEFT
        for tick in axis.ticks():
            row = axis.place(tick)
            if not right:
                canvas.line([(_LEFT, row), (_WIDTH - _RIGHT, row)], _GRID, 1)
            canvas.line([(edge, row), (edge + (6 if right else -6), row)], _INK, 1)
            canvas.text(f"{tick:g}", edge + (12 if right else -12), row + 6, color, "left" if right else "right")
        canvas.text(title, _WIDTH - 14 if right else 14, 32, color, "right" if right else "left")
        canvas.line([(across.place(step), axis.place(value)) for step, value in points], color, 2)
        if right:
            canvas.dots([(across.place(step), axis.place(value)) for step, value in points], color)
    canvas.line([(_LEFT, _TOP), (_LEFT, bottom), (_WIDTH - _RIGHT, bottom), (_WIDTH - _RIGHT, _TOP)], _INK, 1)
    return canvas.picture()


class _Canvas:
    """Lines and text in pixels of the finished picture, drawn larger for smooth edges."""

    def __init__(self) -> None:
        self.pixels = np.full((_HEIGHT * _SHARPER, _WIDTH * _SHARPER, 3), _PAPER, np.uint8)

    def line(self, points: Sequence[tuple[float, float]], color: tuple[int, int, int], width: int) -> None:
        import cv2

        corners = np.rint(np.array(points) * _SHARPER).astype(np.int32)
        cv2.polylines(self.pixels, [corners], False, color, width * _SHARPER, cv2.LINE_AA)

    def dots(self, points: Sequence[tuple[float, float]], color: tuple[int, int, int]) -> None:
        import cv2

        for x, y in points:
            cv2.circle(self.pixels, (round(x * _SHARPER), round(y * _SHARPER)), 4 * _SHARPER, color, -1, cv2.LINE_AA)

    def text(self, words: str, x: float, y: float, color: tuple[int, int, int], align: str = "center") -> None:
        """Write ``words`` with their base line at ``y`` and the given side or the middle at ``x``."""
        import cv2

        font, size, stroke = cv2.FONT_HERSHEY_SIMPLEX, 0.6 * _SHARPER, round(1.4 * _SHARPER)
        width = cv2.getTextSize(words, font, size, stroke)[0][0]
        left = x * _SHARPER - {"left": 0.0, "center": width / 2, "right": width}[align]
        cv2.putText(self.pixels, words, (round(left), round(y * _SHARPER)), font, size, color, stroke, cv2.LINE_AA)

    def picture(self) -> np.ndarray:
        import cv2

        return np.asarray(cv2.resize(self.pixels, (_WIDTH, _HEIGHT), interpolation=cv2.INTER_AREA))
