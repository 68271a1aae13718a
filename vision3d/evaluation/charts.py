# SPDX-License-Identifier: Apache-2.0
"""Line charts as SVG text, for pages that must need nothing from outside."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

COLORS = ("#6cb6ff", "#f0a35e", "#7ee2a8", "#98a1ad")
WIDTH, HEIGHT = 440, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 14, 44


@dataclass
class Series:
    """One line (or, with ``marker``, its points) of a chart.

    Attributes:
        name: for the legend.
        x, y: values of equal length; points that are not finite are left out.
        color: of the line.
        dashed, marker: how it is drawn.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = COLORS[0]
    dashed: bool = False
    marker: bool = False


@dataclass
class Chart:
    """A chart with labelled axes.

    Attributes:
        title: read out by screen readers.
        x_label, y_label: axis titles with units.
        series: the lines.
        x_range, y_range: (least, most); None: from the values, y from 0.
        log_x: logarithmic horizontal axis.
    """

    title: str
    x_label: str
    y_label: str
    series: list[Series] = field(default_factory=list)
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    log_x: bool = False

    def svg(self) -> str:
        """The chart as an ``<svg>`` element."""
        low_x, high_x = self.x_range or _limits([item.x for item in self.series])
        low_y, high_y = self.y_range or (0.0, _limits([item.y for item in self.series])[1] * 1.05)
        place_x = _scale(low_x, high_x, _LEFT, WIDTH - _RIGHT, self.log_x)
        place_y = _scale(low_y, high_y, HEIGHT - _BOTTOM, _TOP, False)
        parts = [
            f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(self.title)}">',
            f"<title>{html.escape(self.title)}</title>",
        ]
        for value in _log_ticks(low_x, high_x) if self.log_x else _ticks(low_x, high_x):
            x = place_x(value)
            parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM}"/>')
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
        for value in _ticks(low_y, high_y):
            y = place_y(value)
            parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        middle_x, middle_y = (_LEFT + WIDTH - _RIGHT) / 2, (_TOP + HEIGHT - _BOTTOM) / 2
        parts.append(
            f'<text class="axis" x="{middle_x:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{_text(self.x_label)}</text>'
            f'<text class="axis" x="14" y="{middle_y:.0f}" text-anchor="middle" '
            f'transform="rotate(-90 14 {middle_y:.0f})">{_text(self.y_label)}</text>'
        )
        for item in self.series:
            parts.append(_line(item, place_x, place_y, (low_y, high_y)))
        return "".join([*parts, "</svg>"])

    def legend(self) -> str:
        """The names of the lines as HTML."""
        keys = (
            f'<span class="key"><i class="{"dot" if item.marker else "dash" if item.dashed else "line"}" '
            f'style="--c:{item.color}"></i>{_text(item.name)}</span>'
            for item in self.series
        )
        return f'<div class="keys">{"".join(keys)}</div>'


def _line(item: Series, place_x, place_y, limits: tuple[float, float]) -> str:  # type: ignore[no-untyped-def]
    points = [
        (place_x(x), place_y(min(max(y, limits[0]), limits[1])))
        for x, y in zip(item.x, item.y, strict=True)
        if math.isfinite(x) and math.isfinite(y)
    ]
    if item.marker:
        dots = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{item.color}"/>' for x, y in points)
        return "".join(dots)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="6 5"' if item.dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{item.color}" stroke-width="2"{dash}/>'


def _scale(low: float, high: float, start: float, end: float, log: bool):  # type: ignore[no-untyped-def]
    if log:
        low, high = math.log(low), math.log(high)
    span = (high - low) or 1.0

    def place(value: float) -> float:
        position = math.log(max(value, 1e-12)) if log else value
        return start + (position - low) / span * (end - start)

    return place


def _limits(columns: Sequence[Sequence[float]]) -> tuple[float, float]:
    values = np.concatenate([np.asarray(column, dtype=np.float64) for column in columns] or [np.zeros(0)])
    values = values[np.isfinite(values)]
    if values.size == 0:
        return 0.0, 1.0
    return float(values.min()), float(values.max()) or 1.0


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers in a range."""
    rough = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{index * step:.10g}") for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    return [2.0**power for power in range(first, last + 1)]


def _text(value: str) -> str:
    return html.escape(value)
