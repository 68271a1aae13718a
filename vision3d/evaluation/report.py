# SPDX-License-Identifier: Apache-2.0
"""The report of an evaluation as one HTML page that needs nothing from outside."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

import numpy as np

import vision3d
from vision3d.evaluation.charts import COLORS, Chart, Series
from vision3d.evaluation.gallery import ERROR_RANGE, Gallery, ScenePictures, scene_figure
from vision3d.evaluation.protocols import REGIONS
from vision3d.evaluation.published import published_beside
from vision3d.io.files import atomic_write
from vision3d.visualization import color_table

_UNITS = {"epe": "px", "rms": "px", "smooth_l1": "px", "ause": "px", "seconds": "s"}
_NAMES = {
    "epe": "EPE",
    "rms": "RMS",
    "d1": "D1",
    "smooth_l1": "smooth L1",
    "seconds": "time",
    "density": "density",
    "ause": "AUSE",
    "aurg": "AURG",
    "auc": "AUC",
}
_HIDDEN = ("scene", "regions", "nonoccluded", "images", "scenes")
_PLACES = {
    "truth": "truth",
    "prediction": "prediction",
    "error": "error",
    "baseline": "baseline",
    "error of the baseline": "baseline-error",
    "confidence": "confidence",
}
_CURVE = 2.0 ** np.arange(-3, 5.01, 0.05)  # pixels


def write_report(path: str | os.PathLike[str], report: dict[str, Any], gallery: Gallery) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        report: of ``evaluate_dataset`` or ``evaluate_folder``.
        gallery: the observer of that evaluation.

    Raises:
        OutputError: the file cannot be written.
    """
    page, own = files("vision3d.evaluation"), files("vision3d.viewer")
    styles = [own / "view.css", page / "report.css"]
    parts = {
        "{{title}}": _text(f"{report['model']} on {report.get('dataset', 'folder')}"),
        "{{subtitle}}": _text(_subtitle(report)),
        "{{style}}": "\n".join(style.read_text(encoding="utf-8") for style in styles),
        "{{script}}": (page / "report.js").read_text(encoding="utf-8"),
        "{{content}}": "\n".join(_content(report, gallery)),  # last, so that nothing inside it is taken for a key
    }
    text = (page / "report.html").read_text(encoding="utf-8")
    for key, value in parts.items():
        text = text.replace(key, value)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _subtitle(report: dict[str, Any]) -> str:
    rule = report["protocol"]
    facts = [f"{len(report['scenes'])} scenes"]
    facts += [f"split {report['split']}"] if "split" in report else []
    facts += [f"protocol: {rule['title']}"] if "title" in rule else ["all pixels with truth, mean over scenes"]
    facts += [f"images scaled by {rule['scale']}"] if rule["scale"] != 1.0 else []
    return ", ".join([*facts, f"vision3d {vision3d.__version__}, torch {rule['torch']}, {rule['threads']} threads"])


def _content(report: dict[str, Any], gallery: Gallery) -> Iterable[str]:
    yield _tiles(report)
    yield _charts(report, gallery)
    yield _figures(report)
    yield _published(report)
    worst, best = gallery.shown()
    if worst:
        yield _scenes("Worst scenes", worst, report, gallery)
    if best:
        yield _scenes("Best scenes", best, report, gallery)
    yield _scene_table(report)


def _tiles(report: dict[str, Any]) -> str:
    baseline = report.get("baseline")
    tiles = []
    headline = report.get("headline")
    if headline:
        other = baseline["headline"]["value"] if baseline else None
        over = "mean over images" if headline["mean"] == "images" else "over all pixels"
        unit = unit_of(headline["figure"])
        tiles.append(_tile(f"{headline['label']}, {over}", headline["value"], unit, other, baseline, True))
    shown = [name for name in ("epe", "bad1", "bad3", "d1", "seconds") if name in report["mean"]]
    for name in shown:
        if headline and (name, headline["mean"], headline["region"]) == (headline["figure"], "images", "all"):
            continue
        other = baseline["mean"].get(name) if baseline else None
        unit = "s a pair" if name == "seconds" else unit_of(name)
        label = "time" if name == "seconds" else f"{title_of(name)}, mean over scenes"
        tiles.append(_tile(label, report["mean"][name], unit, other, baseline))
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _tile(
    name: str, value: float, unit: str, other: float | None, baseline: dict[str, Any] | None, main: bool = False
) -> str:
    """A large figure; lower is better for all of them."""
    beside = ""
    if baseline is not None and other is not None:
        kind = "better" if value <= other else "worse"
        beside = f'<span class="{kind}">{_digits(other, unit)}</span> {_text(baseline["name"])}'
    return (
        f'<div class="tile{" main" if main else ""}"><div class="name">{_text(name)}</div>'
        f'<div class="value">{_digits(value, unit)} <small>{_text(unit)}</small></div>'
        f'<div class="beside">{beside}</div></div>'
    )


def _charts(report: dict[str, Any], gallery: Gallery) -> str:
    names = [report["model"], *([report["baseline"]["name"]] if "baseline" in report else [])]
    panels = [_panel("Cumulative error", _cumulative(names, gallery)), _panel("Scenes by error", _by_scene(report))]
    if report.get("confidence"):
        panels.append(_panel("Sparsification", _sparsification(report["confidence"])))
    return f'<div class="charts">{"".join(panels)}</div>'


def _cumulative(names: Sequence[str], gallery: Gallery) -> str:
    chart = Chart("share of pixels below an error", "absolute error, px", "pixels below, %", log_x=True)
    chart.x_range, chart.y_range = (float(_CURVE[0]), float(_CURVE[-1])), (0.0, 100.0)
    for name, color, histogram in zip(names, COLORS, gallery.histograms, strict=False):
        chart.series.append(Series(name, _CURVE.tolist(), histogram.percent_below(_CURVE).tolist(), color))
    return chart.svg() + chart.legend()


def _by_scene(report: dict[str, Any]) -> str:
    chart = Chart("EPE of the scenes, sorted", "share of scenes, %", "EPE, px", x_range=(0.0, 100.0))
    for part, color in zip([report, report.get("baseline")], COLORS, strict=False):
        if part is None:
            continue
        values = sorted(row["epe"] for row in part["scenes"] if math.isfinite(row["epe"]))
        steps = np.repeat(np.arange(len(values) + 1) * 100 / max(len(values), 1), 2)[1:-1]
        chart.series.append(
            Series(part.get("model") or part["name"], steps.tolist(), np.repeat(values, 2).tolist(), color)
        )
    return chart.svg() + chart.legend()


def _sparsification(figures: dict[str, Any]) -> str:
    removed = [100 * share for share in figures["removed"]]
    chart = Chart("mean error after removing pixels", "least confident pixels removed, %", "mean error, px")
    chart.x_range = (0.0, 100.0)
    chart.series = [
        Series("confidence", removed, figures["curve"], COLORS[0]),
        Series("oracle (largest errors first)", removed, figures["oracle"], COLORS[2], dashed=True),
        Series("at random", removed, [figures["random"]] * len(removed), COLORS[3], dashed=True),
    ]
    check = figures.get("left_right_check")
    facts = [f"AUSE {_number(figures['ause'])} px ({100 * figures['ause_relative']:.0f} % of the mean error)"]
    facts.append(f"AURG {_number(figures['aurg'])} px")
    if check:
        chart.series.append(
            Series("left-right check", [100 * (1 - check["kept"])], [check["error"]], COLORS[1], marker=True)
        )
        facts.append(
            f"left-right check keeps {100 * check['kept']:.1f} % with {_number(check['error'])} px, the confidence at "
            f"the same share {_number(check['confidence_error'])} px (means over images, each at its own share)"
        )
    return chart.svg() + chart.legend() + f'<p class="note">{_text("; ".join(facts))}</p>'


def _figures(report: dict[str, Any]) -> str:
    """Regions and kinds of mean as rows, figures as columns, the baseline's figure below."""
    baseline = report.get("baseline")
    parts = [(report["model"], report), *([(baseline["name"], baseline)] if baseline else [])]
    columns = [name for name in report["mean"] if name not in (*_HIDDEN, "seconds", "pixels")]
    rows = []
    for kind, label in (("mean", "mean over images"), ("pooled", "over the pixels of all images")):
        if kind in report:
            rows.append(f'<tr class="group"><th colspan="{len(columns) + 2}">{label}</th></tr>')
            rows += _figure_rows(parts, kind, columns)
    heads = "".join(f"<th>{_text(title_of(name))} {_text(unit_of(name))}</th>" for name in columns)
    head = f'<tr><th class="text">pixels</th><th class="text">method</th>{heads}</tr>'
    note = report["protocol"].get("text", "All pixels with a finite truth count; each scene weighs the same.")
    return _panel(
        "Figures",
        f'<div class="scroll"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'
        f'<p class="note">{_text(note)}</p>',
    )


def _figure_rows(parts: list[tuple[str, dict[str, Any]]], kind: str, columns: list[str]) -> Iterable[str]:
    """For each region the network's figures, and the baseline's below."""
    for region, source in _regions(parts[0][1][kind]):
        for index, (name, part) in enumerate(parts):
            figures = source if index == 0 else dict(_regions(part[kind])).get(region, {})
            cells = "".join(f"<td>{_figure(figures.get(column), column)}</td>" for column in columns)
            place = REGIONS.get(region, region) if index == 0 else ""
            style = "first" if index == 0 and len(parts) > 1 else "second" if index else ""
            texts = "".join(f'<td class="text">{_text(text)}</td>' for text in (place, name))
            yield f'<tr class="{style}">{texts}{cells}</tr>'


def _regions(figures: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    visible = figures.get("nonoccluded")
    return [("all", figures), *figures.get("regions", {}).items(), *([("noc", visible)] if visible else [])]


def _published(report: dict[str, Any]) -> str:
    rows = published_beside(report)
    if not rows:
        return ""
    body = "".join(
        f'<tr><td class="text">{_text(row["data"])}</td><td class="text">{_text(row["metric"])}</td>'
        f"<td>{_number(row['published'])}</td><td>{_number(row['ours'])}</td>"
        f'<td class="text long">{_text(row["source"])}</td>'
        f'<td class="text long">{_text(row["ours_protocol"] or "another data set, not measured here")}</td></tr>'
        for row in rows
    )
    head = (
        '<tr><th class="text">data</th><th class="text">metric</th><th>published</th><th>ours</th>'
        '<th class="text">source of the published figure</th><th class="text">protocol of ours</th></tr>'
    )
    note = "Published figures are of the authors' weights unless the source says otherwise; weights here may differ."
    return _panel(
        "Published beside ours",
        f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'
        f'<p class="note">{note}</p>',
    )


def _scenes(title: str, scenes: list[ScenePictures], report: dict[str, Any], gallery: Gallery) -> str:
    blocks = [_scales()]
    grid = "maps two" if "baseline" in report else "maps"
    for item in scenes:
        facts = [_scene_fact(report["model"], item.row)]
        if item.baseline_row is not None:
            facts.append(_scene_fact(report["baseline"]["name"], item.baseline_row))
        facts.append(f"disparity colours 0 to {item.high:g} px")
        pictures = "".join(_picture(item.scene, name, data, report) for name, data in item.pictures.items())
        spans = "".join(f"<span>{_text(fact)}</span>" for fact in facts)
        blocks.append(
            f'<div class="scene"><h3>{_text(item.scene)}{spans}</h3><div class="{grid}">{pictures}</div></div>'
        )
    rank = f"{title_of(gallery.figure)}, {REGIONS.get(gallery.region, gallery.region)}"
    return _panel(f"{title} (by {rank})", "".join(blocks))


def _scene_fact(name: str, row: dict[str, Any]) -> str:
    return f"{name}: EPE {_figure(row['epe'], 'epe')} px, D1 {_figure(row.get('d1'), 'd1')} %"


def _picture(scene: str, name: str, data: str, report: dict[str, Any]) -> str:
    return (
        f'<figure class="{_PLACES.get(name, "left")}">'
        f'<img src="{data}" alt="{_text(name)} of {_text(scene)}" loading="lazy">'
        f"<figcaption>{_text(_caption(name, report))}</figcaption></figure>"
    )


def _caption(name: str, report: dict[str, Any]) -> str:
    if "baseline" in name:
        return name.replace("the baseline", "baseline").replace("baseline", report["baseline"]["name"])
    return {"prediction": f"{report['model']}", "error": f"error of {report['model']}"}.get(name, name)


def _scales() -> str:
    return (
        f'<div class="scales"><span>disparity, px: 0<i class="ramp" style="{_gradient("turbo")}"></i>see scene</span>'
        f'<span>error, px: 0<i class="ramp" style="{_gradient("inferno")}"></i>{ERROR_RANGE:g} or more</span>'
        '<span><i class="swatch" style="background:rgb(40,48,60)"></i>no truth or no answer</span></div>'
    )


def _gradient(name: str) -> str:
    stops = ",".join(f"rgb({r},{g},{b})" for r, g, b in color_table(name)[::15].tolist())
    return f"background:linear-gradient(90deg,{stops})"


def _scene_table(report: dict[str, Any]) -> str:
    baseline = report.get("baseline")
    first = report["scenes"][0]
    columns = [name for name in first if name not in _HIDDEN and not name.startswith("a5")]
    columns = [name for name in columns if name not in ("density", "a90", "a95")]
    regions = [name for name in first.get("regions", {}) if name in ("noc", "bg", "fg")]
    figure = report.get("headline", {}).get("figure", "epe")
    heads = "".join(f"<th>{_text(title_of(name))} {_text(unit_of(name))}</th>" for name in columns)
    heads += "".join(f"<th>{_text(title_of(figure))} {name}</th>" for name in regions)
    heads += f"<th>EPE {_text(baseline['name'])}</th><th>D1 {_text(baseline['name'])}</th>" if baseline else ""
    rows = []
    for index, row in enumerate(report["scenes"]):
        values = [(row.get(name, math.nan), name) for name in columns]
        known = row.get("regions", {})
        values += [(scene_figure(row, figure, name) if name in known else math.nan, figure) for name in regions]
        if baseline:
            values += [(baseline["scenes"][index].get(name, math.nan), name) for name in ("epe", "d1")]
        rows.append(f"<tr><td>{_text(row['scene'])}</td>{''.join(_cell(*value) for value in values)}</tr>")
    table = (
        f'<div class="scroll tall"><table class="sortable" id="scenes"><thead><tr><th>scene</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    skipped = [f"{item['scene']}: {item['reason']}" for item in report.get("skipped", [])]
    note = f'<p class="note">skipped: {_text("; ".join(skipped))}</p>' if skipped else ""
    search = '<input class="filter" data-table="#scenes" placeholder="filter scenes" aria-label="filter scenes">'
    return _panel("All scenes (click a column to sort)", table + note, search)


def _cell(value: float, figure: str) -> str:
    known = value is not None and math.isfinite(value)
    return f'<td data-value="{value if known else ""}">{_figure(value, figure)}</td>'


def _panel(title: str, content: str, tools: str = "") -> str:
    return f'<section class="panel"><div class="bar"><h2>{_text(title)}</h2>{tools}</div>{content}</section>'


def title_of(figure: str) -> str:
    """How people call a figure: ``bad1`` is bad-1."""
    if figure.startswith("bad"):
        return f"bad-{figure[3:]}"
    return _NAMES.get(figure, figure.upper() if figure[:1] == "a" and figure[1:].isdigit() else figure)


def unit_of(figure: str) -> str:
    """The unit of a figure, or nothing for a count."""
    if figure in _UNITS or figure == "pixels":
        return _UNITS.get(figure, "")
    if figure in ("d1", "density") or figure.startswith("bad"):
        return "%"
    return "px"


def _figure(value: float | None, figure: str) -> str:
    """A figure with the digits of its unit: percent with 2, the others with 3."""
    if value is None or not math.isfinite(value):
        return "-"
    return str(value) if isinstance(value, int) else _digits(value, unit_of(figure))


def _digits(value: float, unit: str) -> str:
    return f"{value:.{2 if unit == '%' else 3}f}"


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    if isinstance(value, int):
        return str(value)
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}"


def _text(value: Any) -> str:
    return html.escape(str(value))
