# SPDX-License-Identifier: Apache-2.0
"""The archives of the benchmark servers: names, sizes, types and values by other readers than ours."""

from __future__ import annotations

import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch import nn

from vision3d.cli.main import main
from vision3d.datasets.synthetic import SceneOptions, make_scene
from vision3d.datasets.toy import write_toy_tree
from vision3d.errors import InputError, OutputError, UnknownNameError
from vision3d.evaluation.submission import BENCHMARKS, SceneResult, check_archive, submit, write_submission
from vision3d.io.images import write_image
from vision3d.types import StereoOutput

COUNTS = {"kitti2015": 200, "kitti2012": 195, "middlebury": 30, "eth3d": 47}


def results(benchmark: str, width: int = 9) -> list[SceneResult]:
    """A small map for every scene that the server expects."""
    scenes = [(split, name) for split, names in BENCHMARKS[benchmark].scenes.items() for name in names]
    generator = np.random.default_rng(0)
    return [
        SceneResult(split, name, generator.uniform(0.5, 8, (6, width)).astype(np.float32), 0.25 + number)
        for number, (split, name) in enumerate(scenes)
    ]


def read_pfm_plainly(content: bytes) -> np.ndarray:
    magic, size, scale, data = content.split(b"\n", 3)
    assert (magic, scale) == (b"Pf", b"-1.0")
    width, height = map(int, size.split())
    return np.frombuffer(data, "<f4").reshape(height, width)[::-1]


@pytest.mark.parametrize(("benchmark", "folder"), [("kitti2015", "disp_0/"), ("kitti2012", "")])
def test_kitti(tmp_path: Path, benchmark: str, folder: str) -> None:
    scenes = results(benchmark)
    done = write_submission(tmp_path / "out.zip", benchmark, scenes)
    assert (len(done.scenes), done.files, done.missing, done.changed) == (COUNTS[benchmark], COUNTS[benchmark], [], {})
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        expected = [f"{folder}{number:06d}_10.png" for number in range(COUNTS[benchmark])]
        assert sorted(archive.namelist()) == expected
        for item in scenes[::50]:
            codes = cv2.imdecode(
                np.frombuffer(archive.read(f"{folder}{item.scene}.png"), np.uint8), cv2.IMREAD_UNCHANGED
            )
            assert codes.dtype == np.uint16
            np.testing.assert_array_equal(codes, np.rint(item.disparity.astype(np.float64) * 256))


def test_middlebury(tmp_path: Path) -> None:
    scenes = results("middlebury")
    write_submission(tmp_path / "out.zip", "middlebury", scenes, method="CoVo", size="H")
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        names = archive.namelist()
        assert len(names) == 60
        assert {name.split("/")[0] for name in names} == {"trainingH", "testH"}
        assert {"trainingH/Adirondack/disp0CoVo.pfm", "testH/Staircase/timeCoVo.txt"} <= set(names)
        np.testing.assert_array_equal(
            read_pfm_plainly(archive.read("trainingH/Adirondack/disp0CoVo.pfm")), scenes[0].disparity
        )
        assert float(archive.read("trainingH/ArtL/timeCoVo.txt")) == 1.25


def test_eth3d(tmp_path: Path) -> None:
    write_submission(tmp_path / "out.zip", "eth3d", results("eth3d"))
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        names = archive.namelist()
        assert len(names) == 94
        assert {"low_res_two_view/delivery_area_1l.pfm", "low_res_two_view/tunnel_3s.txt"} <= set(names)
        assert archive.read("low_res_two_view/delivery_area_1l.txt") == b"runtime 0.25\n"


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_same_results_give_the_same_bytes(tmp_path: Path, benchmark: str) -> None:
    for name in ("a.zip", "b.zip"):
        write_submission(tmp_path / name, benchmark, results(benchmark), method="m", size="Q")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_holes_and_values_beyond_the_format(tmp_path: Path) -> None:
    scenes = results("kitti2015")
    scenes[3].disparity[2, :4] = [np.nan, 300.0, -1.0, 0.0]
    done = write_submission(tmp_path / "out.zip", "kitti2015", scenes)
    assert done.changed == {"test/000003_10": 3}
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        codes = cv2.imdecode(np.frombuffer(archive.read("disp_0/000003_10.png"), np.uint8), cv2.IMREAD_UNCHANGED)
    assert codes[2, :4].tolist() == [65535, 65535, 1, 1]
    scenes[0].disparity[:] = np.nan
    with pytest.raises(InputError, match="test/000000_10: a map"):
        write_submission(tmp_path / "none.zip", "kitti2015", scenes)
    assert not list(tmp_path.glob("*none*"))


def test_missing_scenes_are_named(tmp_path: Path) -> None:
    scenes = results("eth3d")[1:]
    with pytest.raises(InputError, match="expects 47 scenes, missing: train/delivery_area_1l; complete"):
        write_submission(tmp_path / "out.zip", "eth3d", scenes)
    assert list(tmp_path.iterdir()) == []
    done = write_submission(tmp_path / "out.zip", "eth3d", scenes, allow_missing=True)
    assert done.missing == ["train/delivery_area_1l"]


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="benchmark 'kitti': did you mean"):
        write_submission(tmp_path / "out.zip", "kitti", [])
    with pytest.raises(InputError, match=r"end the name in \.zip"):
        write_submission(tmp_path / "out.tar", "eth3d", [])
    with pytest.raises(InputError, match="letters, digits"):
        write_submission(tmp_path / "out.zip", "middlebury", [], method="a/b", size="H")
    with pytest.raises(InputError, match="choose F, H, Q"):
        write_submission(tmp_path / "out.zip", "middlebury", [], method="a", size="X")
    with pytest.raises(InputError, match="comes twice"):
        write_submission(tmp_path / "out.zip", "eth3d", results("eth3d")[:1] * 2)
    with pytest.raises(OutputError, match="does not exist"):
        write_submission(tmp_path / "nowhere" / "out.zip", "eth3d", results("eth3d"))


def tamper(path: Path, name: str, content: bytes | None, added: str = "") -> None:
    """Write the archive again with one file changed, left out or added."""
    with zipfile.ZipFile(path) as archive:
        files = {item: archive.read(item) for item in archive.namelist()}
    if content is None:
        del files[name]
    else:
        files[name] = content
    if added:
        files[added] = b""
    with zipfile.ZipFile(path, "w") as archive:
        for item, data in files.items():
            archive.writestr(item, data)


def png(codes: np.ndarray) -> bytes:
    return bytes(cv2.imencode(".png", codes)[1].tobytes())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing in the archive"),
        (b"text", "not a PNG"),
        (png(np.ones((6, 9), np.uint8)), "16-bit grey PNG"),
        (png(np.ones((6, 8), np.uint16)), "holds 8x6, the image is 9x6"),
        (png(np.zeros((6, 9), np.uint16)), "54 pixels without an answer"),
    ],
)
def test_check_finds_faults_in_kitti(tmp_path: Path, content: bytes | None, message: str) -> None:
    write_submission(tmp_path / "out.zip", "kitti2015", results("kitti2015"))
    shapes = {f"disp_0/{number:06d}_10.png": (6, 9) for number in range(200)}
    check_archive(tmp_path / "out.zip", shapes)
    tamper(tmp_path / "out.zip", "disp_0/000007_10.png", content)
    with pytest.raises(OutputError, match=message):
        check_archive(tmp_path / "out.zip", shapes)


def test_check_finds_faults_in_maps_and_times(tmp_path: Path) -> None:
    path, name = tmp_path / "out.zip", "low_res_two_view/tunnel_1l"
    names = [f"low_res_two_view/{scene}" for scenes in BENCHMARKS["eth3d"].scenes.values() for scene in scenes]
    shapes, times = {f"{item}.pfm": (6, 9) for item in names}, [f"{item}.txt" for item in names]
    header = b"Pf\n9 6\n-1.0\n"
    faults = [
        (f"{name}.pfm", header + np.full(54, np.inf, "<f4").tobytes(), "not finite"),
        (f"{name}.pfm", header + np.full(54, -1, "<f4").tobytes(), "negative"),
        (f"{name}.pfm", header + np.ones(50, "<f4").tobytes(), "not a PFM"),
        (f"{name}.pfm", b"PF\n9 6\n-1.0\n", "a grey PFM"),
        (f"{name}.txt", b"soon\n", "a number of seconds"),
        (f"{name}.txt", b"runtime inf\n", "a number of seconds"),
    ]
    for file, content, message in faults:
        write_submission(path, "eth3d", results("eth3d"))
        tamper(path, file, content)
        with pytest.raises(OutputError, match=message):
            check_archive(path, shapes, times)
    write_submission(path, "eth3d", results("eth3d"))
    tamper(path, f"{name}.txt", b"runtime 1\n", added="notes.txt")
    with pytest.raises(OutputError, match=r"notes\.txt: does not belong"):
        check_archive(path, shapes, times)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(OutputError, match="not a usable archive"):
        check_archive(path, shapes, times)


class Constant(nn.Module):
    """Answers with 6 pixels everywhere."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> StereoOutput:
        disparity = torch.full_like(left[:, :1], 6.0)
        return StereoOutput(disparity, [disparity])


def test_submit_kitti_from_its_tree(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (20, 40, 3), dtype=np.uint8)
    for view in ("image_2", "image_3"):
        folder = tmp_path / "kitti" / "testing" / view
        folder.mkdir(parents=True)
        for number in range(200):
            write_image(folder / f"{number:06d}_10.png", image)
        write_image(folder / "000000_11.png", image)
    done = submit(Constant(), "kitti2015", tmp_path / "kitti", tmp_path / "out.zip")
    assert (len(done.scenes), done.missing) == (200, [])
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        codes = cv2.imdecode(np.frombuffer(archive.read("disp_0/000199_10.png"), np.uint8), cv2.IMREAD_UNCHANGED)
    assert codes.shape == (20, 40)
    assert (codes == 6 * 256).all()


def test_submit_middlebury_takes_both_sets_and_the_size(tmp_path: Path) -> None:
    sample = make_scene(0, 32, 64, SceneOptions(max_disparity=(4.0, 8.0)))
    write_toy_tree("middlebury_v3", tmp_path / "mb", [sample])
    (tmp_path / "mb" / "trainingH" / "Toy0").rename(tmp_path / "mb" / "trainingH" / "Teddy")
    for view in ("im0.png", "im1.png"):
        folder = tmp_path / "mb" / "testH" / "Plants"
        folder.mkdir(parents=True, exist_ok=True)
        write_image(folder / view, sample.left)
    with pytest.raises(InputError, match="missing: train/Adirondack, train/ArtL"):
        submit(Constant(), "middlebury", tmp_path / "mb", tmp_path / "out.zip")
    done = submit(
        Constant(), "middlebury", tmp_path / "mb", tmp_path / "out.zip", method="six", seconds=0.5, allow_missing=True
    )
    assert done.scenes == ["train/Teddy", "test/Plants"]
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert sorted(archive.namelist()) == [
            "testH/Plants/disp0six.pfm",
            "testH/Plants/timesix.txt",
            "trainingH/Teddy/disp0six.pfm",
            "trainingH/Teddy/timesix.txt",
        ]
        assert archive.read("testH/Plants/timesix.txt") == b"0.5\n"


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_toy_tree("eth3d", tmp_path / "eth3d", [make_scene(0, 64, 96, SceneOptions(max_disparity=(4.0, 8.0)))])
    for folder in ("two_view_training", "two_view_training_gt"):
        (tmp_path / "eth3d" / folder / "toy_0l").rename(tmp_path / "eth3d" / folder / "facade_1s")
    call = [
        "submit",
        "eth3d",
        "--model",
        "covonet",
        "--root",
        str(tmp_path / "eth3d"),
        "--out",
        str(tmp_path / "o.zip"),
    ]
    assert main(call) == 2
    error = capsys.readouterr().err
    assert "ETH3D low-resolution two-view expects 47 scenes, missing: train/delivery_area_1l" in error
    assert error.count("\n") == 1
    assert main([*call, "--allow-missing"]) == 0
    captured = capsys.readouterr()
    assert "1 scenes, 2 files" in captured.out
    assert "incomplete, missing: train/delivery_area_1l" in captured.err
    assert (tmp_path / "o.zip").is_file()


@pytest.mark.parametrize("allow_missing", [False, True])
def test_no_scene_at_all_says_where_they_were_sought(tmp_path: Path, allow_missing: bool) -> None:
    sample = make_scene(0, 32, 64, SceneOptions(max_disparity=(4.0, 8.0)))
    write_toy_tree("kitti2015", tmp_path / "kitti", [sample])
    write_toy_tree("middlebury_v3", tmp_path / "mb", [sample])

    def message(benchmark: str, folder: str, size: str | None = None) -> str:
        out = tmp_path / "out.zip"
        with pytest.raises(InputError) as caught:
            submit(Constant(), benchmark, tmp_path / folder, out, size=size, allow_missing=allow_missing)
        return str(caught.value)

    text = message("kitti2015", "kitti")
    assert "kitti: holds none of the 200 scenes of KITTI 2015: there is no folder testing" in text
    assert "allow" not in text
    assert "there is no folder trainingQ or testQ" in message("middlebury", "mb", "Q")
    assert "the folder trainingH lacks them, e.g. train/Adirondack" in message("middlebury", "mb", "H")


def test_an_incomplete_archive_names_eight_scenes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = make_scene(0, 32, 64, SceneOptions(max_disparity=(4.0, 8.0)))
    write_toy_tree("kitti2015", tmp_path / "kitti", [sample])
    (tmp_path / "kitti/training").rename(tmp_path / "kitti/testing")
    command = ["submit", "kitti2015", "--model", "covonet", "--root", str(tmp_path / "kitti"), "--allow-missing"]
    assert main([*command, "--out", str(tmp_path / "out.zip")]) == 0
    assert "test/000007_10, test/000008_10 and 191 more\n" in capsys.readouterr().err
