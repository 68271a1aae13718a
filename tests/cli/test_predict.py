# SPDX-License-Identifier: Apache-2.0
"""The commands predict, demo, view and cloud."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from matcher import Matcher

from vision3d import visualization
from vision3d.cli.main import main
from vision3d.errors import FileFormatError, InputError
from vision3d.io.disparity import read_disparity, write_disparity
from vision3d.io.pairs import find_pairs, name_pairs
from vision3d.io.pointcloud import read_pointcloud

REPOSITORY = Path(__file__).resolve().parents[2]
CALIBRATION = "300 0 80 0 300 60 0 0 1\n0.1\n"


@pytest.fixture(autouse=True)
def _matcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """The semi-global matcher takes the place of every network of the zoo."""
    monkeypatch.setattr("vision3d.inference.cached_model", lambda name, device: Matcher(32))


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    for index, name in enumerate(("one", "two", "three")):
        noise = np.random.default_rng(index).integers(0, 255, (40, 60, 3), dtype=np.uint8)
        wide = cv2.resize(noise, (200, 120), interpolation=cv2.INTER_CUBIC)
        for side, start in (("left", 10), ("right", 18)):
            (folder / side).mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(folder / side / f"{name}.png"), wide[:, start : start + 160])
    (folder / "calib.txt").write_text(CALIBRATION, encoding="ascii")
    return folder


def test_one_pair_and_one_json_object(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    images = [str(pair / side / "one.png") for side in ("left", "right")]
    code = main(["predict", *images, "--calib", str(pair / "calib.txt"), "--out", str(out), "--json"])
    captured = capsys.readouterr()
    assert code == 0
    report = json.loads(captured.out)
    assert report["disparity"]["median"] == pytest.approx(8, abs=0.2)
    assert report["depth"]["median"] == pytest.approx(30 / 8, rel=0.03)
    assert report["model"] == "covonet"
    assert set(report["output"]) == {path.name for path in out.iterdir()}
    assert "view.html" in captured.err


def test_options_reach_the_result(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    images = [str(pair / side / "one.png") for side in ("left", "right")]
    options = ["--scale", "0.5", "--no-confidence", "--no-view", "--cloud-format", "pcd", "--max-depth", "0.1"]
    assert main(["predict", *images, "--calib", str(pair / "calib.txt"), "--out", str(out), "--json", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["scale"] == 0.5
    assert report["confidence_mean"] is None
    assert "no point passed" in report["warnings"][0]
    assert not {"view.html", "confidence.png", "cloud.ply"} & {path.name for path in out.iterdir()}


def test_folders_make_a_folder_a_pair(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["predict", str(pair / "left"), str(pair / "right"), "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in out.iterdir()) == ["one", "three", "two"]
    assert len(report["pairs"]) == 3
    assert (out / "two" / "disparity.pfm").is_file()


def test_a_bad_pair_among_many_is_told_and_the_rest_is_done(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pair / "right" / "three.png").write_bytes(b"broken")
    out = tmp_path / "out"
    assert main(["predict", str(pair / "left"), str(pair / "right"), "--out", str(out), "--json"]) == 2
    captured = capsys.readouterr()
    assert sum("error" in entry for entry in json.loads(captured.out)["pairs"]) == 1
    assert "three.png" in captured.err
    assert sorted(path.name for path in out.iterdir()) == ["one", "two"]


def test_many_pairs_share_one_range_of_colours(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bars: list[float | None] = []
    original = visualization.disparity_picture
    monkeypatch.setattr(visualization, "disparity_picture", lambda d, high: bars.append(high) or original(d, high))
    for name, shift in (("three", 4), ("two", 26)):  # of other disparities than the first pair
        left = cv2.imread(str(pair / "left" / f"{name}.png"))
        cv2.imwrite(str(pair / "right" / f"{name}.png"), np.roll(left, -shift, axis=1))
    out = tmp_path / "out"
    assert main(["predict", str(pair / "left"), str(pair / "right"), "--out", str(out)]) == 0
    assert bars == [10.0] * 3 or bars == [8.0] * 3
    for name in ("one", "two", "three"):
        assert f'"range":[0.0,{bars[0]}]' in (out / name / "view.html").read_text(encoding="utf-8")


def test_nothing_is_left_of_a_run_without_results(pair: Path, tmp_path: Path) -> None:
    images = [str(pair / side / "one.png") for side in ("left", "right")]
    out = tmp_path / "deep" / "out"
    assert main(["predict", images[0], str(pair / "none.png"), "--out", str(out)]) == 2
    assert main(["predict", *images, "--calib", str(pair / "none.txt"), "--out", str(out)]) == 2
    assert not (tmp_path / "deep").exists()
    (tmp_path / "mine").mkdir()
    assert main(["predict", images[0], str(pair / "none.png"), "--out", str(tmp_path / "mine")]) == 2
    assert (tmp_path / "mine").is_dir()


def test_cloud_formats_do_not_swallow_the_images(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [str(pair / side / "one.png") for side in ("left", "right")]
    common = ["--calib", str(pair / "calib.txt"), "--no-view", "--out", str(tmp_path / "out")]
    assert main(["predict", "--cloud-format", "pcd,ply", *images, *common]) == 0
    assert {path.name for path in (tmp_path / "out").glob("cloud.*")} == {"cloud.pcd", "cloud.ply"}
    assert main(["predict", "--cloud-format", "none", *images, *common]) == 0
    assert not list((tmp_path / "out").glob("cloud.*"))
    assert main(["predict", "--cloud-format", "stl", *images, *common]) == 2
    assert "unknown format 'stl'" in capsys.readouterr().err


def test_list_file(pair: Path, tmp_path: Path) -> None:
    (pair / "pairs.txt").write_text(
        "# left right\nleft/one.png right/one.png\n\n'left/two.png' right/two.png\n", encoding="utf-8"
    )
    assert main(["predict", "--list", str(pair / "pairs.txt"), "--out", str(tmp_path / "out"), "--no-view"]) == 0
    assert (tmp_path / "out" / "two" / "report.json").is_file()


def test_partnerless_image_is_named(pair: Path) -> None:
    (pair / "right" / "one.png").unlink()
    with pytest.raises(FileFormatError, match=r"left/one\.png: has no partner in .*right \(3 left and 2 right"):
        find_pairs(pair / "left", pair / "right")
    for index, image in enumerate(sorted((pair / "right").iterdir())):
        image.rename(pair / "right" / f"other{index}.png")
    with pytest.raises(FileFormatError, match=r"left/two\.png: has no partner"):
        find_pairs(pair / "left", pair / "right")


def test_folders_that_share_some_names_only_are_refused(pair: Path) -> None:
    (pair / "right" / "three.png").rename(pair / "right" / "four.png")
    with pytest.raises(FileFormatError, match=r"left/three\.png: has no partner in .*right \(3 left and 3 right"):
        find_pairs(pair / "left", pair / "right")
    (pair / "left" / "three.png").unlink()
    with pytest.raises(FileFormatError, match=r"right/four\.png: has no partner in .*left \(2 left and 3 right"):
        find_pairs(pair / "left", pair / "right")


def test_suffixes_of_partners_may_differ(pair: Path) -> None:
    (pair / "right" / "two.png").rename(pair / "right" / "two.ppm")
    assert [(a.name, b.name) for a, b in find_pairs(pair / "left", pair / "right")][2] == ("two.png", "two.ppm")
    (pair / "right" / "two.png").write_bytes(b"")
    (pair / "left" / "two.jpg").write_bytes(b"")
    with pytest.raises(FileFormatError, match="has no partner"):
        find_pairs(pair / "left", pair / "right")


def test_bad_command_lines(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="two images"):
        find_pairs("a.png", None)
    with pytest.raises(InputError, match="not both"):
        find_pairs("a.png", "b.png", "list.txt")
    with pytest.raises(InputError, match="is a folder"):
        find_pairs(pair / "left", pair / "right" / "one.png")
    (pair / "bad.txt").write_text("only_one.png\n", encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"bad\.txt, line 1: has 1 paths"):
        find_pairs(None, None, pair / "bad.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileFormatError, match="holds no images"):
        find_pairs(tmp_path / "empty", pair / "right")
    (tmp_path / "file").write_text("x", encoding="ascii")
    images = [str(pair / side / "one.png") for side in ("left", "right")]
    assert main(["predict", *images, "--out", str(tmp_path / "file")]) == 2
    assert main(["predict", images[0], str(pair / "none.png"), "--out", str(tmp_path / "out")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "is a file" in lines[0]
    assert "none.png" in lines[1]


def test_pair_names_differ() -> None:
    same = [(Path(f"{scene}/left.png"), Path("r.png")) for scene in ("a", "b")]
    assert name_pairs(same) == ["a_left", "b_left"]
    assert name_pairs(same[:1] * 2) == ["00000_a_left", "00001_a_left"]


def test_cloud_of_maps(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disparity = np.full((120, 160), 8.0, np.float32)
    write_disparity(tmp_path / "d.pfm", disparity)
    np.save(tmp_path / "depth.npy", np.full((120, 160), 3.75, np.float32))
    image, calibration = str(pair / "left" / "one.png"), str(pair / "calib.txt")
    for source, extra in (("d.pfm", []), ("depth.npy", ["--depth"])):
        out = tmp_path / f"{source}.ply"
        arguments = ["cloud", str(tmp_path / source), image, "--calib", calibration, "--out", str(out), "--json"]
        assert main(arguments + extra) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["points"] == 120 * 160
        cloud = read_pointcloud(out)
        np.testing.assert_allclose(cloud.points[:, 2], 3.75, rtol=1e-5)
        np.testing.assert_allclose(cloud.normals[:, 2], -1, atol=1e-4)
    assert main(["cloud", str(tmp_path / "d.pfm"), image, "--calib", calibration, "--max-depth", "1"]) == 2
    write_disparity(tmp_path / "small.pfm", disparity[:50])
    assert main(["cloud", str(tmp_path / "small.pfm"), image, "--calib", calibration]) == 2
    assert "160x50" in capsys.readouterr().err


def test_view_finds_or_makes_the_page(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = [str(pair / side / "one.png") for side in ("left", "right")]
    main(["predict", *images, "--calib", str(pair / "calib.txt"), "--out", str(tmp_path / "out" / "one")])
    assert main(["view", str(tmp_path / "out" / "one"), "--no-open"]) == 0
    assert capsys.readouterr().out.strip().endswith("view.html")
    assert main(["view", str(tmp_path / "out" / "one" / "cloud.ply"), "--no-open"]) == 0
    assert (tmp_path / "out" / "one" / "cloud.html").is_file()
    assert main(["view", str(tmp_path / "out"), "--no-open"]) == 2
    assert main(["view", str(tmp_path), "--no-open"]) == 2
    assert main(["view", str(tmp_path / "no.ply"), "--no-open"]) == 2


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vision3d.inference.cached_model", lambda name, device: Matcher(64))
    assert main(["demo", "--out", str(tmp_path / "demo"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["errors"]["covonet"]["epe"] < 3
    assert 0.5 < report["errors"]["OpenCV SGBM"]["epe"] < 4
    assert set(report["errors"]["covonet"]) == {"epe", "bad2", "bad3"}
    assert {"error.png", "view.html", "cloud.glb"} <= set(report["output"])
    assert read_disparity(tmp_path / "demo" / "disparity.pfm").shape == (500, 741)
    assert main(["demo", "--out", str(tmp_path / "demo"), "--no-confidence"]) == 0
    text = capsys.readouterr().out
    assert "OpenCV SGBM" in text
    assert "view.html" in text


def test_tools_are_the_same_commands() -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    for tool in ("predict.py", "export_pointcloud.py"):
        call = [sys.executable, str(REPOSITORY / "tools" / tool), "--help"]
        done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment, timeout=60)
        assert done.returncode == 0
        assert "--max-depth" in done.stdout


def _network_must_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, device: object) -> Matcher:
        raise AssertionError("the network was loaded")

    monkeypatch.setattr("vision3d.inference.cached_model", refuse)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-display", "-3"], "--max-display is -3"),
        (["--min-depth", "5", "--max-depth", "2"], "--min-depth 5.0 is not below --max-depth 2.0"),
        (["--confidence-threshold", "3"], "--confidence-threshold is 3.0"),
        (["--voxel", "-1"], "--voxel is -1.0"),
        (["--calib", "a", "--calib", "b", "--calib", "c"], "--calib is given 3 times"),
    ],
)
def test_wrong_values_are_refused_before_the_network(
    pair: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    _network_must_not_load(monkeypatch)
    images = [str(pair / side / "one.png") for side in ("left", "right")]
    assert main(["predict", *images, "--out", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_cloud_options_without_calibration_are_told_once(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["predict", str(pair / "left"), str(pair / "right"), "--no-view", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--max-depth", "3", "--voxel", "0.1"]) == 0
    warning = "vision3d: warning: --max-depth, --voxel: no effect without --calib FILE"
    assert capsys.readouterr().err.count(warning) == 1


def test_units_and_comments_of_a_plain_calibration(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pair / "mm.txt").write_text("# intrinsics\n\n300 0 80 0 300 60 0 0 1\n\n100  # baseline: mm\n", encoding="ascii")
    images = [str(pair / side / "one.png") for side in ("left", "right")]
    common = ["--calib", str(pair / "mm.txt"), "--no-view", "--json", "--out", str(tmp_path / "out")]
    assert main(["predict", *images, *common]) == 2
    assert "--units mm" in capsys.readouterr().err
    assert main(["predict", *images, *common, "--units", "mm"]) == 0
    assert json.loads(capsys.readouterr().out)["calibration"]["baseline_m"] == pytest.approx(0.1)
    cloud = ["cloud", str(tmp_path / "out" / "disparity.pfm"), images[0], "--calib", str(pair / "mm.txt")]
    assert main([*cloud, "--units", "mm", "--out", str(tmp_path / "c.ply")]) == 0


def test_a_ros_pair_is_two_calibrations(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, shift in (("l", 0), ("r", -30)):
        matrix = f"[300, 0, 80, {shift}, 0, 300, 60, 0, 0, 0, 1, 0]"
        text = f"image_width: 160\nimage_height: 120\nprojection_matrix: {{rows: 3, cols: 4, data: {matrix}}}\n"
        (pair / f"{name}.yaml").write_text(text, encoding="ascii")
    images = [str(pair / side / "one.png") for side in ("left", "right")]
    common = ["predict", *images, "--no-view", "--json", "--out", str(tmp_path / "out"), "--calib"]
    assert main([*common, str(pair / "l.yaml")]) == 2
    assert "--calib LEFT --calib RIGHT" in capsys.readouterr().err
    assert main([*common, str(pair / "l.yaml"), "--calib", str(pair / "r.yaml")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["calibration"]["baseline_m"] == pytest.approx(0.1)
    assert report["files"]["calibration"] == f"{pair / 'l.yaml'}, {pair / 'r.yaml'}"


def test_view_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path / "nothere"), "--no-open"]) == 2
    assert "nothere: does not exist" in capsys.readouterr().err


def test_weights_that_are_not_finite(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    from vision3d.zoo import create_model

    state = create_model("fadnetpp_micro").state_dict()
    name = next(iter(state))
    state[name].fill_(float("nan"))
    torch.save(state, tmp_path / "nan.pth")
    images = [str(pair / side / "one.png") for side in ("left", "right")]
    options = ["--model", "fadnetpp_micro", "--weights", str(tmp_path / "nan.pth"), "--out", str(tmp_path / "out")]
    assert main(["predict", *images, *options]) == 2
    assert f"'{name}' holds values that are not finite" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suffix", ["hdr", "tiff", "pam"])
def test_folders_of_rare_images(pair: Path, tmp_path: Path, suffix: str) -> None:
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        image = cv2.imread(str(pair / side / "one.png"))
        stored = image if suffix == "pam" else image.astype(np.float32) / 255
        cv2.imwrite(str(tmp_path / side / f"one.{suffix}"), stored)
    folders = [str(tmp_path / side) for side in ("left", "right")]
    assert main(["predict", *folders, "--no-view", "--out", str(tmp_path / "out")]) == 0
    assert np.nanmedian(read_disparity(tmp_path / "out" / "disparity.pfm")) == pytest.approx(8, abs=0.2)
