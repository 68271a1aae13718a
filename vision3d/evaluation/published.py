# SPDX-License-Identifier: Apache-2.0
"""The figures of papers (cards of the networks) beside those that we measured."""

from __future__ import annotations

import re
from typing import Any

from vision3d.errors import UnknownNameError

# Data sets on which a figure published for the key was or may have been measured.
_SAME_DATA = {
    "sceneflow": ("sceneflow", "flyingthings3d"),
    "flyingthings3d": ("flyingthings3d", "sceneflow"),
    "middlebury": ("middlebury_v3", "middlebury2014"),
}
# What "error %" means on a data set: the usual outlier rule of its benchmark.
_OUTLIERS = {"kitti2015": "d1", "kitti2012": "bad3", "middlebury_v3": "bad2", "middlebury2014": "bad2", "eth3d": "bad1"}
_FIGURES = {"epe": "epe", "d1": "d1", "d1-all": "d1", "bad-1": "bad1", "bad-2": "bad2", "bad-3": "bad3"}


def published_beside(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What the card of the network publishes, each with our figure where the data set of the report is the same.

    Args:
        report: of ``evaluate_dataset`` or ``evaluate_folder``.

    Returns:
        ``[{"data", "metric", "published", "source", "ours", "ours_protocol"}]``; ``ours`` is None for another data set.
        Protocols may differ: that of the publication is what ``source`` says, ours is ``ours_protocol``. [] for a
        network without a card.
    """
    from vision3d.zoo import load_card

    try:
        card = load_card(str(report["model"]))
    except UnknownNameError:
        return []
    rows = []
    for entry in card.published:
        figure, ours = _ours(report, str(entry.get("data", "")), str(entry.get("metric", "")))
        text = None if ours is None else f"{figure}; {_protocol_text(report)}"
        rows.append(
            {
                "data": entry.get("data", ""),
                "metric": entry.get("metric", ""),
                "published": entry.get("value"),
                "source": entry.get("source", ""),
                "ours": ours,
                "ours_protocol": text,
            }
        )
    return rows


def _ours(report: dict[str, Any], data: str, metric: str) -> tuple[str, float | None]:
    dataset = str(report.get("dataset", "folder"))
    key = re.sub(r"[^a-z0-9]", "", data.partition("(")[0].lower())
    if dataset not in _SAME_DATA.get(key, (key,)):
        return "", None
    headline = report.get("headline", {})
    figure = _FIGURES.get(metric.lower()) or (_OUTLIERS.get(dataset) if metric.lower() == "error %" else None)
    source = report["mean"] if headline.get("mean", "images") == "images" else report["pooled"]
    value = source.get(figure) if figure else None
    return (figure or "", None if value is None else float(value))


def _protocol_text(report: dict[str, Any]) -> str:
    rule = report["protocol"]
    mean = "images" if report.get("headline", {}).get("mean", "images") == "images" else "pixels"
    return f"{rule.get('title', rule.get('pixels', ''))}, split {report.get('split', '-')}, mean over {mean}"
