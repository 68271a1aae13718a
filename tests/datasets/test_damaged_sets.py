# SPDX-License-Identifier: Apache-2.0
"""What users get from damaged, incomplete or oddly named data sets: one line, or a counted warning."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from vision3d.datasets.registry import open_dataset
from vision3d.datasets.synthetic import SceneOptions, make_scene
from vision3d.datasets.toy import list_layouts, write_toy_tree
from vision3d.errors import ConfigError, FileFormatError, Vision3DError
from vision3d.types import StereoSample

LAYOUTS = [name for name in list_layouts() if name not in ("folder", "pool", "sceneflow")]
OPTIONAL = ("occlusion", "right_disparity", "normals", "rig", "foreground")


@pytest.fixture(scope="module")
def samples() -> list[StereoSample]:
    return [make_scene(seed, 32, 48, SceneOptions(max_disparity=(5.0, 10.0), photometric=0.0)) for seed in range(2)]


def one_line(error: BaseException) -> bool:
    return "\n" not in str(error) and ("; " in str(error) or "expected" in str(error))


def reopened(name: str, root: Path) -> str | list[StereoSample]:
    """The pairs, or the message of the error."""
    try:
        return list(open_dataset(name, root, "all"))  # type: ignore[call-overload]
    except FileFormatError as error:
        return str(error)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_damaged_file_of_every_layout(name: str, samples: list[StereoSample], tmp_path: Path) -> None:
    """Each file that reading opens, cut short, empty, or missing: a typed error that names it."""
    if name == "irs":
        pytest.importorskip("OpenEXR")
    write_toy_tree(name, tmp_path, samples)
    data = open_dataset(name, tmp_path, "all")
    absent = sum(getattr(data[0], field) is None for field in OPTIONAL)
    for file in dict.fromkeys(data.entries[0].files()):  # type: ignore[attr-defined]
        path = Path(file)
        content = path.read_bytes()
        for damaged in (content[: len(content) // 2], b"", b"\x00\x01 nonsense"):
            path.write_bytes(damaged)
            with pytest.raises(FileFormatError, match=path.name) as caught:
                data[0]
            assert one_line(caught.value), caught.value
        path.write_bytes(content)
        path.unlink()
        outcome = reopened(name, tmp_path)
        if isinstance(outcome, str):
            assert path.name in outcome
        elif len(outcome) == 2:  # an optional file: the map is None
            assert sum(getattr(outcome[0], field) is None for field in OPTIONAL) > absent
        else:  # the file that makes the pair
            assert len(outcome) == 1
        path.write_bytes(content)
    assert data[0].scene == data.scenes[0]  # type: ignore[attr-defined]


def test_skipping_counts(samples: list[StereoSample], tmp_path: Path) -> None:
    write_toy_tree("eth3d", tmp_path, samples * 2)
    (tmp_path / "two_view_training_gt/toy_1l/disp0GT.pfm").unlink()
    with pytest.warns(UserWarning, match=r"eth3d: 1 pairs skipped so far; .*toy_1l/disp0GT\.pfm: no such file"):
        data = open_dataset("eth3d", tmp_path, on_error="skip")
    assert data.scenes == ["toy_0l", "toy_2l", "toy_3l"]  # type: ignore[attr-defined]
    image = tmp_path / "two_view_training/toy_3l/im1.png"
    image.write_bytes(image.read_bytes()[:100])
    with pytest.warns(UserWarning, match="2 pairs skipped so far"):
        assert data[2].scene == "toy_0l"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert data[2].scene == "toy_0l"
    assert set(data.skipped) == {"toy_1l", "toy_3l"}  # type: ignore[attr-defined]
    with pytest.raises(IndexError):
        data[3]
    assert len(list(data)) == 3  # type: ignore[call-overload]
    for path in (tmp_path / "two_view_training").glob("*/im0.png"):
        path.write_bytes(b"x")
    with pytest.warns(UserWarning, match="4 pairs"), pytest.raises(FileFormatError, match="none of the 3 pairs"):
        data[0]


def test_missing_files_are_counted(samples: list[StereoSample], tmp_path: Path) -> None:
    write_toy_tree("instereo2k", tmp_path, samples * 2)
    for number in (1, 3):
        (tmp_path / f"train/part1/{number:06d}/right.png").unlink()
    with pytest.raises(FileFormatError, match=r"2 of 4 pairs .* the first: .*000001/right\.png: no such file"):
        open_dataset("instereo2k", tmp_path)


@pytest.mark.parametrize("name", LAYOUTS)
def test_empty_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=f"holds no pair of {name}") as caught:
        open_dataset(name, tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(FileFormatError, match="no such folder"):
        open_dataset(name, tmp_path / "nowhere")


def test_swapped_sizes(samples: list[StereoSample], tmp_path: Path) -> None:
    turned = replace(samples[0], disparity=samples[0].disparity.T, occlusion=None, right_disparity=None)  # type: ignore[union-attr]
    write_toy_tree("flyingthings3d", tmp_path, [turned])
    with pytest.raises(FileFormatError, match="the map is 32x48, the images are 48x32"):
        open_dataset("flyingthings3d", tmp_path)[0]


def test_lists_with_missing_entries(samples: list[StereoSample], tmp_path: Path) -> None:
    write_toy_tree("monkaa", tmp_path, samples)
    place = "monkaa__{}/toy_x2/{}/{}.{}"
    lines = [
        " ".join(
            place.format(*part, number, suffix)
            for *part, suffix in (
                ("frames_cleanpass", "left", "png"),
                ("frames_cleanpass", "right", "png"),
                ("disparity", "left", "pfm"),
            )
        )
        for number in ("0000", "0001", "0002")
    ]
    (tmp_path / "train.list").write_text("\n".join(lines))
    with pytest.raises(FileFormatError, match=r"left/0002\.png: no such file"):
        open_dataset("monkaa", tmp_path, list_file=tmp_path / "train.list")
    with pytest.warns(UserWarning, match="1 pairs skipped"):
        assert len(open_dataset("monkaa", tmp_path, list_file=tmp_path / "train.list", on_error="skip")) == 2  # type: ignore[arg-type]
    (tmp_path / "train.list").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="UTF-8"):
        open_dataset("monkaa", tmp_path, list_file=tmp_path / "train.list")


def test_links_and_loops(samples: list[StereoSample], tmp_path: Path) -> None:
    write_toy_tree("tartanair", tmp_path / "elsewhere", samples)
    root = tmp_path / "root"
    root.mkdir()
    (root / "toy").symlink_to(tmp_path / "elsewhere/toy")
    (tmp_path / "elsewhere/toy/Easy/again").symlink_to(root)  # a loop through the link
    (root / "self").symlink_to(root)
    (root / "a").symlink_to(root / "b")
    (root / "b").symlink_to(root / "a")
    assert open_dataset("tartanair", root).scenes == ["toy/Easy/P000/000000", "toy/Easy/P000/000001"]  # type: ignore[attr-defined]
    left = tmp_path / "elsewhere/toy/Easy/P000/image_left/000000_left.png"
    left.unlink()
    left.symlink_to(left)
    with pytest.raises(FileFormatError, match=r"000000_left\.png"):
        open_dataset("tartanair", root)[0]


def test_names_that_are_not_utf8(samples: list[StereoSample], tmp_path: Path) -> None:
    write_toy_tree("eth3d", tmp_path, samples)
    for top in ("two_view_training", "two_view_training_gt"):
        try:
            os.rename(tmp_path / top / "toy_1l", os.fsencode(tmp_path / top) + b"/toy_\xff")
        except OSError:
            pytest.skip("this file system refuses such names")
    with pytest.raises(FileFormatError, match="not UTF-8; rename") as caught:
        open_dataset("eth3d", tmp_path)
    str(caught.value).encode("utf-8")
    with pytest.warns(UserWarning, match="not UTF-8"):
        data = open_dataset("eth3d", tmp_path, on_error="skip")
    assert data.scenes == ["toy_0l"]  # type: ignore[attr-defined]


def test_a_skip_list_of_all_splits_is_known_in_each(samples: list[StereoSample], tmp_path: Path) -> None:
    write_toy_tree("kitti2015", tmp_path, samples)
    skip = tmp_path / "skip.txt"
    skip.write_text("000001_10\n")  # of the validation split
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_dataset("kitti2015", tmp_path, "train", skip_file=skip).scenes == ["000000_10"]  # type: ignore[attr-defined]


def test_options_and_splits_are_checked(samples: list[StereoSample], tmp_path: Path) -> None:
    write_toy_tree("sintel", tmp_path, samples)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: open_dataset("sintel", tmp_path, "test"), "choose train, all"),
        (lambda: open_dataset("sintel", tmp_path, passnam="final"), "unknown option 'passnam': choose passname"),
        (lambda: open_dataset("sintel", tmp_path, passname="dirty"), "choose clean or final"),
        (lambda: open_dataset("sintel", tmp_path, on_error="ignore"), "choose raise or skip"),
    ]
    for call, message in cases:
        with pytest.raises(ConfigError, match=message):
            call()
    skip = tmp_path / "skip.txt"
    skip.write_text("\n".join(f"toy_1/frame_{number:04d}" for number in (1, 2)))
    with pytest.raises(FileFormatError, match="left after skipping"):
        open_dataset("sintel", tmp_path, skip_file=skip)
    with pytest.raises(Vision3DError, match="no such file"):
        open_dataset("sintel", tmp_path, skip_file=tmp_path / "none.txt")
    skip.write_text("toy_1/frame_0001\ntoy_1/frame_0099\n")
    with pytest.warns(
        UserWarning, match="a name of this skip list is not among the scenes of sintel, 'toy_1/frame_0099'"
    ):
        assert len(open_dataset("sintel", tmp_path, skip_file=skip)) == 1  # type: ignore[arg-type]
    hidden = tmp_path / "training/final_left/toy_1/._frame_0001.png"
    hidden.write_bytes(b"made by a file manager")
    assert len(open_dataset("sintel", tmp_path)) == 2  # type: ignore[arg-type]


@pytest.mark.real
def test_the_damaged_irs_map(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip("OpenEXR")
    folder = tmp_path / "Home/Room"
    folder.mkdir(parents=True)
    source = shared / "data/irs_sample"
    for name in "lrn":
        suffix = "exr" if name == "n" else "png"
        (folder / f"{name}_00001.{suffix}").symlink_to(source / f"Home/SyntheticRoom/{name}_00001.{suffix}")
    (folder / "d_00001.exr").symlink_to(source / "bad/d_00003.exr")
    data = open_dataset("irs", tmp_path, "all")
    with pytest.raises(FileFormatError, match=r"d_00001\.exr: the map is 480x270, the images are 960x540"):
        data[0]
