# SPDX-License-Identifier: Apache-2.0
"""``vision3d data verify``: every planted fault is found, and nothing in clean trees and on the real scenes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vision3d.cli.main import main
from vision3d.datasets.folder import FolderStereo
from vision3d.datasets.photometric import explain
from vision3d.datasets.registry import open_dataset
from vision3d.datasets.synthetic import SceneOptions, make_scene
from vision3d.datasets.toy import list_layouts, write_toy_tree
from vision3d.datasets.verify import KINDS, check_sample, find_problem, verify_dataset
from vision3d.errors import InputError
from vision3d.io.disparity import write_disparity
from vision3d.io.images import read_image, write_image
from vision3d.io.pfm import read_pfm, write_pfm
from vision3d.types import StereoSample

HEIGHT, WIDTH = 72, 112


@pytest.fixture(scope="module")
def samples() -> list[StereoSample]:
    return [make_scene(seed, HEIGHT, WIDTH, SceneOptions(max_disparity=(8.0, 16.0))) for seed in (3, 4, 5)]


@pytest.mark.filterwarnings("ignore:.*goes without")
@pytest.mark.parametrize("name", list_layouts())
def test_nothing_in_a_clean_tree(name: str, samples: list[StereoSample], tmp_path: Path) -> None:
    if name == "irs":
        pytest.importorskip("OpenEXR")
    write_toy_tree(name, tmp_path, samples)
    report = verify_dataset(open_dataset(name, tmp_path, "all"))
    assert report.problems == []
    assert len(report.pairs) == 3
    for pair in report.pairs:
        assert pair.similarity is not None
        assert pair.similarity > 0.5
        assert pair.margin is not None
        assert pair.margin > 0.2


Tree = tuple[Path, Path, Path, Path]  # left image, right image, disparity, disparity of the right view


def _change(path: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    if path.suffix == ".pfm":
        write_pfm(path, change(read_pfm(path)))
    else:
        write_image(path, change(read_image(path)))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def _swap(tree: Tree) -> None:
    left, right = read_image(tree[0]), read_image(tree[1])
    write_image(tree[0], right)
    write_image(tree[1], left)


FAULTS: dict[str, tuple[str, Callable[[Tree], object]]] = {
    "right image missing": ("missing", lambda tree: tree[1].unlink()),
    "truth missing": ("missing", lambda tree: tree[2].unlink()),
    "left image missing": ("orphan", lambda tree: tree[0].unlink()),
    "truncated image": ("unreadable", lambda tree: _cut(tree[0])),
    "truncated map": ("unreadable", lambda tree: _cut(tree[2])),
    "empty file": ("unreadable", lambda tree: tree[1].write_bytes(b"")),
    "text instead of an image": ("unreadable", lambda tree: tree[1].write_text("404 not found")),
    "smaller right image": ("size", lambda tree: _change(tree[1], lambda image: image[:, :-1])),
    "smaller map": ("size", lambda tree: _change(tree[2], lambda d: d[::2, ::2])),
    "swapped sizes": ("size", lambda tree: _change(tree[2], lambda d: d.T)),
    "black image": ("empty", lambda tree: _change(tree[1], np.zeros_like)),
    "zero map": ("empty", lambda tree: _change(tree[2], np.zeros_like)),
    "infinite map": ("empty", lambda tree: _change(tree[2], lambda d: np.full_like(d, np.inf))),
    "not-a-number map": ("empty", lambda tree: _change(tree[3], lambda d: np.full_like(d, np.nan))),
    "negative map": ("sign", lambda tree: _change(tree[2], np.negative)),
    "some negative values": ("sign", lambda tree: _change(tree[2], lambda d: np.where(d > d.mean(), d, -d))),
    "values beyond the width": ("range", lambda tree: _change(tree[2], lambda d: d * 100)),
    "swapped views": ("photometric", _swap),
    "map of another pair": ("photometric", lambda tree: write_pfm(tree[2], read_pfm(_third(tree)[2]))),
    "map upside down": ("photometric", lambda tree: _change(tree[2], lambda d: d[::-1])),
    "mirrored map": ("photometric", lambda tree: _change(tree[2], lambda d: d[:, ::-1])),
    "halved map": ("photometric", lambda tree: _change(tree[2], lambda d: d / 2)),
    "constant map": ("photometric", lambda tree: _change(tree[2], lambda d: np.full_like(d, 3))),
    "image of another pair": ("photometric", lambda tree: write_image(tree[1], read_image(_third(tree)[1]))),
    "left truth as right one": ("photometric", lambda tree: write_pfm(tree[3], read_pfm(tree[2])[:, ::-1])),
}


def _tree(root: Path, number: int) -> Tree:
    place = f"TRAIN/A/{number:04d}"
    images, truth = root / "frames_cleanpass" / place, root / "disparity" / place
    return (
        *(images / view / "0006.png" for view in ("left", "right")),
        *(truth / view / "0006.pfm" for view in ("left", "right")),
    )  # type: ignore[return-value]


def _third(tree: Tree) -> Tree:
    return _tree(tree[0].parents[5], 2)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_is_found(fault: str, samples: list[StereoSample], tmp_path: Path) -> None:
    kind, plant = FAULTS[fault]
    assert kind in KINDS
    write_toy_tree("flyingthings3d", tmp_path, samples)
    plant(_tree(tmp_path, 1))
    report = verify_dataset(open_dataset("flyingthings3d", tmp_path, "all", on_error="skip"))
    assert set(report.counts) == {kind}, report.problems  # swapped views: a problem of both maps
    for problem in report.problems:
        assert "0001" in problem.scene
        assert "\n" not in problem.problem


def test_faults_of_other_layouts(samples: list[StereoSample], tmp_path: Path) -> None:
    write_toy_tree("kitti2015", tmp_path, samples)
    calibration = tmp_path / "training/calib_cam_to_cam/000002.txt"
    calibration.write_text("P_rect_02: 1 2 3\nP_rect_03: 1\n", encoding="utf-8")
    (tmp_path / "training/image_2/000001_10.png").unlink()
    report = verify_dataset(open_dataset("kitti2015", tmp_path, "all", on_error="skip"))
    assert report.counts == {"orphan": 1, "calibration": 1}
    assert report.problems[0].scene == "training/image_2/000001_10.png"
    assert report.bad_scenes == ["000002_10"]
    write_toy_tree("folder", tmp_path / "own", samples)
    (tmp_path / "own/toy/0001/left.png").unlink()
    (tmp_path / "own/toy/0000/right.png").unlink()
    _cut(tmp_path / "own/toy/0002/disp_left.pfm")
    report = verify_dataset(open_dataset("folder", tmp_path / "own"))
    assert report.counts == {"orphan": 1, "missing": 1, "unreadable": 1}


@pytest.mark.parametrize(
    ("file", "kind"),
    [("disp_noc_0/000001_10.png", "occlusion"), ("calib_cam_to_cam/000001.txt", "calibration")],
)
def test_an_optional_file_that_others_have(file: str, kind: str, samples: list[StereoSample], tmp_path: Path) -> None:
    write_toy_tree("kitti2015", tmp_path, samples)
    (tmp_path / "training" / file).unlink()
    report = verify_dataset(open_dataset("kitti2015", tmp_path, "all", on_error="skip"))
    assert [(item.scene, item.kind) for item in report.problems] == [("000001_10", "missing")]
    assert report.problems[0].file == str(tmp_path / "training" / file)
    assert f"no {kind} file here, but other pairs have one" in report.problems[0].problem
    for path in (tmp_path / "training" / file).parent.iterdir():
        path.unlink()
    assert verify_dataset(open_dataset("kitti2015", tmp_path, "all", on_error="skip")).problems == []


def test_a_fault_of_a_file_that_two_maps_need_is_listed_once(samples: list[StereoSample], tmp_path: Path) -> None:
    write_toy_tree("kitti2015", tmp_path, samples)
    folder = tmp_path / "training/disp_occ_0"
    write_disparity(folder / "000000_10.png", np.full((HEIGHT, WIDTH - 3), 5, np.float32))
    write_image(folder / "000001_10.png", samples[1].left)
    report = verify_dataset(open_dataset("kitti2015", tmp_path, "all", on_error="skip"))
    assert [item.scene for item in report.problems] == ["000000_10", "000001_10"]
    assert report.counts == {"size": 1, "unreadable": 1}


@pytest.mark.parametrize("name", ["kitti2015", Path("some/folder")])
def test_a_name_is_no_data_set(name: object) -> None:
    with pytest.raises(InputError, match="a data set is expected, not its name: pass open_dataset"):
        verify_dataset(name)


def test_irs_partners(samples: list[StereoSample], tmp_path: Path) -> None:
    pytest.importorskip("OpenEXR")
    write_toy_tree("irs", tmp_path, samples)
    (tmp_path / "Home/ToyRoom/l_00002.png").unlink()
    report = verify_dataset(open_dataset("irs", tmp_path, "all", on_error="skip"))
    assert [(item.kind, item.scene) for item in report.problems] == [("orphan", "Home/ToyRoom/l_00002.png")]


def test_normals(samples: list[StereoSample]) -> None:
    normals = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    normals[..., 2] = -1.04  # within the 5 % of the evaluation
    normals[:10] = np.nan
    check = check_sample(replace(samples[0], normals=normals))
    assert (check.problems, check.unknown_normals) == ((), 10 * WIDTH)
    normals[: HEIGHT // 2 + 1, :, 0] = np.nan
    normals[-1, :, 2] = -1.06
    texts = [item.problem for item in check_sample(replace(samples[0], normals=normals)).problems]
    assert len(texts) == 2
    assert f"in {(HEIGHT // 2 + 1) * WIDTH} pixels, more than half" in texts[0]
    assert f"has {WIDTH} normals whose length is not 1 within 5 %" in texts[1]


def test_exposure_does_not_matter(samples: list[StereoSample]) -> None:
    sample = samples[0]
    assert sample.disparity is not None
    darker = np.clip(0.4 * (sample.right / 255.0) ** 1.6 * 255 + 12, 0, 255).astype(np.uint8)
    assert find_problem(replace(sample, right=darker)) is None
    explanation = explain(sample.left, darker, sample.disparity)
    assert explanation is not None
    assert explanation.problem is None
    assert explanation.similarity > 0.5
    flat = np.full_like(sample.left, 90)
    assert explain(flat, flat, sample.disparity) is None


def test_command(samples: list[StereoSample], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, skip, file = tmp_path / "set", tmp_path / "skip.txt", tmp_path / "report.json"
    write_toy_tree("flyingthings3d", root, samples)
    command = ["data", "verify", "flyingthings3d", "--root", str(root), "--skip-list", str(skip), "--json"]
    assert main(["data", "verify", "flyingthings3d", "--root", str(root)]) == 0
    assert "3 pairs read, 0 without truth, 3 compared by warping: nothing wrong" in capsys.readouterr().out
    write_disparity(_tree(root, 0)[2], np.full((HEIGHT, WIDTH), np.nan, np.float32))
    _tree(root, 1)[1].unlink()
    assert main([*command, str(file), "--workers", "2"]) == 1
    assert "has no known disparity" in capsys.readouterr().out
    assert main(command) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(file.read_text(encoding="utf-8"))
    assert printed["counts"] == {"missing": 1, "empty": 1}
    assert {item["scene"] for item in printed["problems"]} == {"TRAIN/A/0000/0006", "TRAIN/A/0001/0006"}
    kept = open_dataset("flyingthings3d", root, skip_file=skip)
    assert kept.scenes == ["TRAIN/A/0002/0006"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [["nothing"], ["kitti2015", "--workers", "0"], ["synthetic"], ["kitti2015"]])
def test_wrong_command_lines(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "verify", *words, "--root", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.real
def test_nothing_on_the_real_scenes(shared: Path) -> None:
    report = verify_dataset(FolderStereo(shared / "data/stereo"))
    assert report.problems == []
    compared = [pair for pair in report.pairs if pair.similarity is not None]
    assert len(compared) == 30
    assert min(pair.margin for pair in compared if pair.margin is not None) > 0.2


def test_normals_of_wrong_axes_and_lengths_are_found(tmp_path: Path) -> None:
    from corner import corner_sample

    from vision3d.datasets.cache import PoolStereo, write_pool
    from vision3d.datasets.verify import write_skip_file

    sample = corner_sample()
    for folder, factor in (("right", [1, 1, 1]), ("turned", [1, -1, -1]), ("long", [1.1, 1.1, 1.1])):
        write_pool(tmp_path / folder, [replace(sample, normals=sample.normals * np.float32(factor))])
    right, turned, long = (verify_dataset(PoolStereo(tmp_path / name)) for name in ("right", "turned", "long"))
    assert not {"axes", "normals"} & right.counts.keys()
    assert [item.scene for item in turned.problems if item.kind == "axes"] == ["pool"]
    assert any("as (x, -y, -z)" in item.problem for item in turned.problems)
    assert "axes" not in long.counts
    assert long.counts["normals"] == 1
    turned.problems = [item for item in turned.problems if item.kind == "axes"]
    write_skip_file(tmp_path / "skip.txt", turned.problems)  # no pair is to be left out for it
    assert (tmp_path / "skip.txt").read_text(encoding="utf-8").count("\n") == 1
    assert turned.bad_scenes == []
