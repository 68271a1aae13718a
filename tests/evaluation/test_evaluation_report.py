# SPDX-License-Identifier: Apache-2.0
"""The report page: what it says, that it needs nothing from outside, and how a real browser shows and sorts it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from vision3d.evaluation.charts import Chart, Series
from vision3d.evaluation.gallery import Gallery, _shrink
from vision3d.evaluation.matchers import Prediction
from vision3d.evaluation.protocols import PROTOCOLS, ProtocolScore
from vision3d.evaluation.published import published_beside
from vision3d.evaluation.report import write_report
from vision3d.evaluation.sparsification import Sparsification
from vision3d.types import StereoSample

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = shlex.split(
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --enable-logging=stderr --v=0 "
    "--window-size=1300,2400 --virtual-time-budget=4000"
)


def make_report(count: int = 8, model: str = "fadnetpp", dataset: str = "sceneflow") -> tuple[dict[str, Any], Gallery]:
    """A report of made-up predictions whose error grows with the scene, except for one scene with an odd name."""
    rule = PROTOCOLS["sceneflow"]
    scores, rows = [ProtocolScore(rule), ProtocolScore(rule)], [[], []]  # type: ignore[var-annotated]
    gallery, quality = Gallery(keep=2, protocol=rule), Sparsification()
    generator = np.random.default_rng(0)
    for number in range(count):
        truth = np.linspace(5, 50, 60 * 90, dtype=np.float32).reshape(60, 90)
        image = cv2.resize(generator.integers(0, 255, (6, 9, 3), dtype=np.uint8), (90, 60))
        name = f"a/<b>{{{{script}}}}&{number}" if number == 3 else f"a/{number:04d}"
        sample = StereoSample(image, image, truth, scene=name)
        error = generator.exponential(0.2 + number, truth.shape).astype(np.float32)
        answers = [Prediction(truth + error, 1 / (1 + error), error > 3), Prediction(truth + 1)]
        measured = [
            {"scene": name, **score.update(answer.disparity, sample), "seconds": 0.5}
            for score, answer in zip(scores, answers, strict=True)
        ]
        quality.update(answers[0].disparity, truth, 1 / (1 + error), error > 3)
        gallery(sample, answers, measured)
        for kept, row in zip(rows, measured, strict=True):
            kept.append(row)
    parts = [{"scenes": kept, **score.compute()} for kept, score in zip(rows, scores, strict=True)]
    protocol = {"name": rule.name, "title": rule.title, "text": rule.text, "scale": 1.0, "torch": "2", "threads": 1}
    report = {"model": model, "dataset": dataset, "split": "test", **parts[0], "skipped": [], "protocol": protocol}
    return {**report, "confidence": quality.compute(), "baseline": {"name": "sgbm", **parts[1]}}, gallery


class Checker(HTMLParser):
    """Collects elements and text; fails on tags that do not close in order."""

    VOID = ("meta", "link", "img", "input", "line", "circle", "polyline", "br")

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.text: list[str] = []
        self.images = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.images += tag == "img"
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, *make_report())
    return path


def test_page_is_whole_and_alone(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(text)
    assert checker.stack == []
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", text)
    assert "http://" not in text
    assert "https://" not in text
    assert "a/&lt;b&gt;{{script}}&amp;3" in text
    assert "<b>{{" not in text
    assert len(text) < 3e6
    assert checker.images == 4 * 7  # two worst and two best scenes


def test_page_says_the_figures(page: Path) -> None:
    checker = Checker()
    checker.feed(page.read_text(encoding="utf-8"))
    text = "\n".join(checker.text)
    report, _ = make_report()
    assert f"{report['headline']['value']:.3f}" in text
    assert "SceneFlow, per pixel" in text
    assert "Worst scenes" in text
    assert "Best scenes" in text
    assert "AUSE" in text
    assert "OpenStereo model zoo, column of the original paper" in text
    assert "epe; SceneFlow, per pixel, split test, mean over pixels" in text


def test_best_and_worst_scenes() -> None:
    report, gallery = make_report()
    worst, best = gallery.shown()
    assert [item.scene for item in worst] == ["a/0007", "a/0006"]
    assert [item.scene for item in best] == ["a/0000", "a/0001"]
    assert gallery.histograms[0].total == report["pooled"]["pixels"]
    for count in (1, 2, 3):
        worst, best = make_report(count)[1].shown()
        names = [item.scene for item in (*worst, *best)]
        assert len(names) == len(set(names)) == count


def test_published_figures_stand_beside_ours_only_on_the_same_data() -> None:
    report, _ = make_report()
    rows = published_beside(report)
    ours = {row["data"]: row["ours"] for row in rows}
    assert ours["SceneFlow"] == pytest.approx(report["pooled"]["epe"])
    assert ours["KITTI 2015 (zero-shot)"] is None
    assert published_beside({**report, "model": "MyNetwork"}) == []


def test_chart_is_svg_with_points_in_place() -> None:
    chart = Chart("t <&>", "x", "y", [Series("s", [0.0, 5.0, 10.0], [0.0, float("nan"), 2.0])], y_range=(0.0, 2.0))
    root = ElementTree.fromstring(chart.svg())
    (line,) = root.iter("polyline")
    points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert points == [(54.0, 246.0), (426.0, 14.0)]
    labels = [item.text for item in root.iter("text")]
    assert {"0", "2", "4", "6", "8", "10"} <= set(labels)
    ElementTree.fromstring(Chart("empty", "x", "y").svg())
    logarithmic = Chart("log", "x", "y", [Series("s", [1.0, 4.0, 16.0], [1.0, 2.0, 3.0])], log_x=True)
    (line,) = ElementTree.fromstring(logarithmic.svg()).iter("polyline")
    columns = [float(pair.split(",")[0]) for pair in line.attrib["points"].split()]
    assert columns[1] - columns[0] == pytest.approx(columns[2] - columns[1], abs=0.11)


def test_sparse_truth_stays_visible_when_shrunk() -> None:
    values = np.full((5, 7), np.nan, np.float32)
    values[0, 0], values[4, 6] = 3.0, 8.0
    small = _shrink(values, 3)
    assert small.shape == (2, 3)
    assert (small[0, 0], small[1, 2]) == (3.0, 8.0)
    assert np.isnan(small[0, 1])


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_browser_shows_and_sorts(page: Path, tmp_path: Path) -> None:
    script = (
        "<script>const heads = [...document.querySelectorAll('#scenes th')];"
        "const first = () => document.querySelector('#scenes tbody tr td').textContent; const seen = [];"
        "const epe = heads.find((head) => head.textContent.startsWith('EPE px'));"
        "epe.click(); seen.push(first()); epe.click(); seen.push(first());"
        "const filter = document.querySelector('input.filter'); filter.value = '0005';"
        "filter.dispatchEvent(new Event('input'));"
        "seen.push([...document.querySelectorAll('#scenes tbody tr')].filter((row) => !row.hidden).length);"
        "document.body.dataset.seen = JSON.stringify(seen);</script></body>"
    )
    driven = tmp_path / "driven.html"
    driven.write_text(page.read_text(encoding="utf-8").replace("</body>", script), encoding="utf-8")
    call = [str(BROWSER), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*call, "--dump-dom", driven.as_uri()], capture_output=True, text=True, timeout=90, check=False
    )
    match = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert match is not None, done.stderr[-500:]
    assert match[1] == "[&quot;a/0000&quot;,&quot;a/0007&quot;,1]"
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    target = tmp_path / "shot.png"
    subprocess.run([*call, f"--screenshot={target}", page.as_uri()], capture_output=True, timeout=90, check=False)
    picture = cv2.imread(str(target))
    assert picture is not None
    assert len(np.unique(picture.reshape(-1, 3) // 32, axis=0)) > 60  # pictures with colours, not an empty page


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("confidence", [True, False])
@pytest.mark.parametrize("baseline", [True, False])
def test_rows_of_pictures_have_no_holes(page: Path, tmp_path: Path, confidence: bool, baseline: bool) -> None:
    script = (
        "<script>for (const maps of document.querySelectorAll('.maps')) {"
        f"if (!{str(confidence).lower()}) maps.querySelector('.confidence').remove();"
        f"if (!{str(baseline).lower()}) {{ maps.classList.remove('two');"
        "maps.querySelectorAll('.baseline, .baseline-error').forEach((item) => item.remove()); } }"
        "const rows = {}; for (const item of document.querySelector('.maps').children) {"
        "const box = item.getBoundingClientRect(); (rows[Math.round(box.top)] ??= []).push(Math.round(box.left)); }"
        "document.body.dataset.rows = JSON.stringify(Object.values(rows).map((row) => row.sort((a, b) => a - b)));"
        "</script></body>"
    )
    driven = tmp_path / "driven.html"
    driven.write_text(page.read_text(encoding="utf-8").replace("</body>", script), encoding="utf-8")
    call = [str(BROWSER), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1300,900", "--dump-dom"]
    done = subprocess.run([*call, driven.as_uri()], capture_output=True, text=True, timeout=90, check=False)
    match = re.search(r'data-rows="([^"]*)"', done.stdout)
    assert match is not None, done.stderr[-500:]
    rows = json.loads(match[1])
    assert [len(row) for row in rows] == ([3 + confidence, 3] if baseline else [4 + confidence])
    for row in rows:
        assert row == rows[0][: len(row)]  # every row begins at the left
