# SPDX-License-Identifier: Apache-2.0
"""The learning curve of a run: its table against averages made by hand, and its picture."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vision3d.errors import FileFormatError, InputError
from vision3d.io.images import read_image
from vision3d.training.curve import draw_curve, read_metrics, summarize_metrics, write_learning_curve

HEAD = "step,split,loss,lr,grad_norm,epe,bad1,bad2,bad3,d1,seconds\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """25 steps with the loss 100 / step, of which step 7 has none, and validations after 10 and 20 steps."""
    lines = []
    for step in range(1, 26):
        loss = "nan" if step == 7 else f"{100 / step}"
        lines.append(f"{step},train,{loss},{0.001 * step},1.0,,,,,,0.5\n")
        if step % 10 == 0:
            lines.append(f"{step},validation,,,,{20 / step},30.0,20.0,10.0,9.0,2.0\n")
    (tmp_path / "metrics.csv").write_text(HEAD + "".join(lines), encoding="utf-8")
    return tmp_path


def test_table(run: Path) -> None:
    table, _ = write_learning_curve(run, run / "out" / "curve", window=10)
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["split"]) for row in rows] == [
        *(("10", "train"), ("10", "validation"), ("20", "train"), ("20", "validation"), ("25", "train")),
    ]
    windows = [[*range(1, 7), 8, 9, 10], range(11, 21), range(21, 26)]
    means = [np.mean([100 / step for step in window]) for window in windows]
    assert [float(row["loss"]) for row in rows if row["split"] == "train"] == pytest.approx(means, rel=1e-4)
    assert [float(row["lr"]) for row in rows if row["split"] == "train"] == pytest.approx([0.01, 0.02, 0.025])
    assert [float(row["epe"]) for row in rows if row["split"] == "validation"] == [2.0, 1.0]
    assert [row["seconds"] for row in rows] == ["5", "7", "12", "14", "16"]


def test_a_validation_within_a_window_keeps_the_window_whole(run: Path) -> None:
    rows = summarize_metrics(read_metrics(run / "metrics.csv"), 20)
    assert [(row["step"], row["split"]) for row in rows] == [
        *(("10", "validation"), ("20", "train"), ("20", "validation"), ("25", "train")),
    ]
    assert float(rows[1]["loss"]) == pytest.approx(
        np.mean([100 / step for step in range(1, 21) if step != 7]), rel=1e-4
    )


def test_picture(run: Path) -> None:
    _, path = write_learning_curve(run, run / "curve")
    picture = read_image(path)
    assert picture.shape == (640, 1200, 3)
    blue, orange = (np.abs(picture.astype(int) - color).sum(2) < 30 for color in ((59, 110, 190), (208, 86, 38)))
    inside = np.s_[60:550, 105:1095]
    rows, columns = np.nonzero(blue[inside])
    assert columns.max() - columns.min() > 900  # the loss spans all steps, and falls
    assert rows[columns == columns.min()].mean() < rows[columns == columns.max()].mean()
    rows, columns = np.nonzero(orange[inside])
    assert 395 - 10 < columns.min() < 395 + 10  # step 10 of 25 on an axis of 1000 pixels
    # Titles and tick labels stand outside the axes.
    assert blue[:50].any()
    assert orange[:50].any()
    assert (picture[560:] < 100).any()


@pytest.mark.parametrize("splits", [("train",), ("validation",), ("train", "validation")])
def test_short_runs_draw(run: Path, splits: tuple[str, ...]) -> None:
    rows = [row for row in read_metrics(run / "metrics.csv", 10) if row["split"] in splits][-2:]
    assert draw_curve(summarize_metrics(rows, 5)).shape == (640, 1200, 3)


def test_errors(run: Path) -> None:
    with pytest.raises(FileFormatError, match="no metrics"):
        write_learning_curve(run / "nothing", run / "curve")
    (run / "other.csv").write_text("a,seconds\n1,2\n", encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"other\.csv"):
        write_learning_curve(run / "other.csv", run / "curve")
    with pytest.raises(InputError, match="window"):
        write_learning_curve(run, run / "curve", window=0)
    assert not list(run.glob("curve*"))


def test_tool(run: Path) -> None:
    tool = Path(__file__).resolve().parents[2] / "tools" / "learning_curve.py"
    done = subprocess.run([sys.executable, tool, run, run / "x"], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [str(run / "x.csv"), str(run / "x.png")]
    failed = subprocess.run([sys.executable, tool, run / "no", run / "y"], capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (2, "", 1)
