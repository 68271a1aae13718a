# SPDX-License-Identifier: Apache-2.0
"""Splits, folder names and options of the stereo readers; real scenes arranged as the data sets have them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vision3d.datasets.irs_frames import frame_counts, published_index
from vision3d.datasets.registry import open_dataset
from vision3d.datasets.synthetic import SceneOptions, make_scene
from vision3d.datasets.toy import write_toy_tree
from vision3d.errors import ConfigError, DisparityError, FileFormatError
from vision3d.types import StereoSample


@pytest.fixture(scope="module")
def sample() -> StereoSample:
    return make_scene(3, 32, 48, SceneOptions(max_disparity=(6.0, 12.0)))


def scenes(name: str, root: Path, split: str = "train", **options: object) -> list[str]:
    return open_dataset(name, root, split, **options).scenes  # type: ignore[attr-defined, no-any-return]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("images", "truth"),
    [
        ("frames_cleanpass", "disparity"),
        ("RGB_cleanpass", "disparity"),
        ("frames_cleanpass", "frames_disparity"),
        ("flyingthings3d__frames_cleanpass", "flyingthings3d__disparity"),
        ("flyingthings3d_frames_cleanpass", "flyingthings3d_disparity"),
        ("FlyingThings3D_release/frames_cleanpass", "FlyingThings3D_release/disparity"),
        ("FlyingThings3D/RGB_cleanpass", "FlyingThings3D/disparity"),
        ("flyingthings3d/frames_finalpass", "flyingthings3d/disparity"),
    ],
)
def test_names_of_sceneflow_folders(images: str, truth: str, sample: StereoSample, tmp_path: Path) -> None:
    write_toy_tree("flyingthings3d", tmp_path / "made", [sample])
    for source, target in (("frames_cleanpass", images), ("disparity", truth)):
        (tmp_path / "tree" / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(tmp_path / "made" / source, tmp_path / "tree" / target)
    passname = images[-9:]
    data = open_dataset("sceneflow", tmp_path / "tree", passname=passname, parts=["flyingthings3d"])
    assert data.scenes == ["TRAIN/A/0000/0006"]  # type: ignore[attr-defined]
    assert data[0].disparity is not None
    with pytest.raises(FileFormatError, match="no frames of driving"):
        open_dataset("sceneflow", tmp_path / "tree", passname=passname, parts=["driving"])
    with pytest.raises(FileFormatError, match="holds no pair"):
        open_dataset("sceneflow", tmp_path / "tree", "test", passname=passname)


@pytest.mark.parametrize("nested", [False, True])
def test_sceneflow_joins_its_parts(nested: bool, sample: StereoSample, tmp_path: Path) -> None:
    for part, name in (("flyingthings3d", "FlyingThings3D"), ("monkaa", "monkaa_release"), ("driving", "Driving")):
        if part == "driving":
            with pytest.warns(UserWarning, match="no driving"):
                assert len(scenes("sceneflow", tmp_path)) == 4
        write_toy_tree(part, tmp_path / name if nested else tmp_path, [sample] * 2)
    found = scenes("sceneflow", tmp_path)
    assert len(set(found)) == 6
    assert found[::2] == ["TRAIN/A/0000/0006", "15mm_focallength/scene_backwards/fast/0000", "toy_x2/0000"]
    assert scenes("monkaa", tmp_path) == found[4:]
    assert scenes("flyingthings3d", tmp_path, "all") == found[:2]


def test_filters_of_sceneflow(sample: StereoSample, tmp_path: Path) -> None:
    from dataclasses import replace

    assert sample.disparity is not None
    write_toy_tree("flyingthings3d", tmp_path, [sample, replace(sample, disparity=sample.disparity + 20), sample])
    unused = tmp_path / "all_unused_files.txt"
    unused.write_text("TRAIN/A/0000/left/0006.png\r\nTEST/A/0001/left/0006.png\n")
    assert scenes("flyingthings3d", tmp_path, unused_files=unused) == ["TRAIN/A/0001/0006", "TRAIN/A/0002/0006"]
    unused.write_text("TRAIN/A/0002\n")
    assert scenes("flyingthings3d", tmp_path, unused_files=unused) == ["TRAIN/A/0000/0006", "TRAIN/A/0001/0006"]
    unused.write_text("something else\n")
    with pytest.raises(FileFormatError, match="names no frame"):
        open_dataset("flyingthings3d", tmp_path, unused_files=unused)
    assert scenes("flyingthings3d", tmp_path, large_disparities=(20, 0.25)) == scenes("flyingthings3d", tmp_path)[::2]
    with pytest.raises(ConfigError, match="large_disparities"):
        open_dataset("flyingthings3d", tmp_path, large_disparities=[20, 25])
    skip = tmp_path / "skip.txt"
    skip.write_text("# bad\nTRAIN/A/0000/0006  # reason\n\n")
    assert scenes("flyingthings3d", tmp_path, skip_file=skip) == ["TRAIN/A/0001/0006", "TRAIN/A/0002/0006"]


def test_kitti_splits(sample: StereoSample, tmp_path: Path) -> None:
    write_toy_tree("kitti2015", tmp_path / "2015", [sample] * 8)
    assert scenes("kitti2015", tmp_path / "2015", "validation") == ["000001_10", "000006_10"]
    assert scenes("kitti2015", tmp_path / "2015", "val") == ["000001_10", "000006_10"]
    assert len(scenes("kitti2015", tmp_path / "2015")) == 6
    assert scenes("kitti2015", tmp_path / "2015" / "training", "all") == scenes("kitti2015", tmp_path / "2015", "all")
    visible = open_dataset("kitti2015", tmp_path / "2015", "all", truth="noc")[0]
    assert visible.occlusion is None
    assert sample.occlusion is not None
    np.testing.assert_array_equal(visible.valid, ~sample.occlusion)
    with pytest.raises(FileFormatError, match="holds no pair"):
        open_dataset("kitti2015", tmp_path / "2015", "test")
    for name in ("image_2", "image_3"):
        shutil.copytree(tmp_path / "2015/training" / name, tmp_path / "2015/testing" / name)
    test = open_dataset("kitti2015", tmp_path / "2015", "test")
    assert len(test) == 8  # type: ignore[arg-type]
    assert test[0].disparity is None
    with pytest.raises(ConfigError, match="occ or noc"):
        open_dataset("kitti2015", tmp_path / "2015", truth="all")


def test_kitti_2012_splits_and_grey(sample: StereoSample, tmp_path: Path) -> None:
    write_toy_tree("kitti2012", tmp_path, [sample] * 2)
    training = tmp_path / "training"
    for path in sorted(training.rglob("000001*")):
        path.rename(path.with_name(path.name.replace("000001", "000180")))
    assert scenes("kitti2012", tmp_path, "train") == ["000000_10"]
    assert scenes("kitti2012", tmp_path, "validation") == ["000180_10"]
    assert scenes("kitti2012", tmp_path, "all") == ["000000_10", "000180_10"]
    grey = open_dataset("kitti2012", tmp_path, grey=True)[0]
    assert (grey.left[..., 0] == grey.left[..., 2]).all()
    assert grey.rig is None


def test_published_split_of_irs() -> None:
    totals = {"Home": (31145, 4450), "Office": (43417, 6203), "Restaurant": (22058, 3152), "Store": (6696, 957)}
    for category, (total, test) in totals.items():
        counts = frame_counts(category)
        assert sum(counts.values()) == total
        assert -(-total // 7) == test
        last = list(counts)[-1]
        end = 977 if last == "RoyalRoom_T1" else counts[last]
        assert published_index(category, last, end) == total - 1
        assert published_index(category, last, end + 1) is None
    assert len([name for category in totals for name in frame_counts(category)]) == 76
    numbers = [published_index("Home", "RoyalRoom_T1", number) for number in range(1, 978)]
    present = [number for number in numbers if number is not None]
    assert len(present) == 964
    assert present == list(range(present[0], present[0] + 964))
    assert published_index("Home", "RoyalRoom_T1", 803) is None


def fake_irs(root: Path, names: list[str], digits: int = 5) -> None:
    for name in names:
        scene, number = name.rsplit("/", 1)
        (root / scene).mkdir(parents=True, exist_ok=True)
        for file in ("l_{}.png", "r_{}.png", "d_{}.exr", "n_{}.exr"):
            (root / scene / file.format(number.zfill(digits))).touch()


def test_split_of_a_partial_irs(tmp_path: Path) -> None:
    fake_irs(tmp_path / "Store/Store", [f"Supermarket/{number}" for number in (1, 5, 7, 12, 14)])
    offset = 1044 + 1045  # the two folders before it, which are not there
    test = [number for number in (1, 5, 7, 12, 14) if (offset + number - 1) % 7 == 0]
    assert scenes("irs", tmp_path, "test") == [f"Store/Supermarket/{number:05d}" for number in test]
    assert len(scenes("irs", tmp_path)) == 5 - len(test)
    fake_irs(tmp_path / "own", [f"home/MyRoom/{number}" for number in range(1, 10)], digits=1)
    assert scenes("irs", tmp_path, "test", categories=["Home"]) == ["Home/MyRoom/00001", "Home/MyRoom/00008"]


def test_lists_of_irs(tmp_path: Path) -> None:
    fake_irs(tmp_path, ["Home/A/7", "Office/B/12"])
    lines = "IRSDataset/Home/A/l_7.png r d n\nSIRSDataset/office/B/l_00012.png r d\t\t\n"
    (tmp_path / "a.list").write_text(lines)
    assert scenes("irs", tmp_path, list_file=tmp_path / "a.list") == ["Home/A/00007", "Office/B/00012"]
    (tmp_path / "a.list").write_text(lines + "Home/A/l_00008.png r d n\n")
    with pytest.raises(FileFormatError, match=r"Home/A/l_00008\.png: no such file"):
        open_dataset("irs", tmp_path, list_file=tmp_path / "a.list")
    with pytest.warns(UserWarning, match="1 pairs skipped"):
        assert len(scenes("irs", tmp_path, list_file=tmp_path / "a.list", on_error="skip")) == 2
    (tmp_path / "a.list").write_text("left right\n")
    with pytest.raises(FileFormatError, match="line 1"):
        open_dataset("irs", tmp_path, list_file=tmp_path / "a.list")


def test_sizes_of_middlebury(sample: StereoSample, tmp_path: Path) -> None:
    root = tmp_path / "Art"
    root.mkdir()
    for name in ("view1.png", "view5.png"):
        Image.new("RGB", (40, 370)).save(root / name)
    Image.new("L", (40, 370), 90).save(root / "disp1.png")
    for name, size, expected in (("middlebury2005", None, 30), ("middlebury2006", "half", 45)):
        assert float(np.unique(open_dataset(name, tmp_path, size=size)[0].disparity)[0]) == expected
    Image.new("RGB", (40, 371)).save(root / "view5.png")
    with pytest.raises(FileFormatError, match="40x371"):
        open_dataset("middlebury2005", tmp_path)[0]
    for name in ("view1.png", "view5.png"):
        Image.new("RGB", (40, 200)).save(root / name)
    Image.new("L", (40, 200), 90).save(root / "disp1.png")
    with pytest.raises(DisparityError, match="200 rows are no published size"):
        open_dataset("middlebury2005", tmp_path)[0]
    (root / "Illum1/Exp0").mkdir(parents=True)
    for name in ("view1.png", "view5.png"):
        Image.new("RGB", (40, 200), (9, 9, 9)).save(root / "Illum1/Exp0" / name)
    lit = open_dataset("middlebury2005", tmp_path, light="Illum1/Exp0", size="third")
    assert lit.scenes == ["Art/Illum1/Exp0"]  # type: ignore[attr-defined]
    assert lit[0].left.max() == 9


def test_tsukuba_has_names_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "tsukuba").mkdir()
    for column in (3, 4):
        Image.new("RGB", (20, 10)).save(tmp_path / f"tsukuba/scene1.row3.col{column}.ppm")
    Image.new("L", (20, 10), 80).save(tmp_path / "tsukuba/truedisp.row3.col3.pgm")
    data = open_dataset("middlebury2001", tmp_path)
    assert data.scenes == ["tsukuba"]  # type: ignore[attr-defined]
    assert (data[0].disparity == 5).all()


def test_several_sizes_of_the_benchmark(sample: StereoSample, tmp_path: Path) -> None:
    write_toy_tree("middlebury_v3", tmp_path, [sample])
    shutil.copytree(tmp_path / "trainingH", tmp_path / "trainingQ")
    with pytest.raises(ConfigError, match="size='H'"):
        open_dataset("middlebury_v3", tmp_path)
    assert scenes("middlebury_v3", tmp_path, size="Q") == ["Toy0"]
    shutil.move(tmp_path / "trainingQ", tmp_path / "MiddEval3/testQ")
    assert open_dataset("middlebury_v3", tmp_path, "test")[0].disparity is None


def test_archives_of_virtual_kitti_apart(sample: StereoSample, tmp_path: Path) -> None:
    write_toy_tree("vkitti2", tmp_path / "made", [sample])
    for kind in ("rgb", "depth"):
        target = tmp_path / "tree" / f"vkitti_2.0.3_{kind}" / "Scene01/clone/frames"
        target.mkdir(parents=True)
        shutil.move(tmp_path / "made/Scene01/clone/frames" / kind, target / kind)
    assert scenes("vkitti2", tmp_path / "tree") == ["Scene01/clone/00000"]
    assert scenes("vkitti2", tmp_path / "tree", variations=["clone"]) == ["Scene01/clone/00000"]
    with pytest.raises(FileFormatError, match="holds no pair"):
        open_dataset("vkitti2", tmp_path / "tree", variations=["fog"])


@pytest.mark.real
def test_real_irs_sample(shared: Path) -> None:
    pytest.importorskip("OpenEXR")
    root = shared / "data/irs_sample"
    for options in ({"split": "all"}, {"list_file": root / "irs_sample.list"}):
        data = open_dataset("irs", root, **options)  # type: ignore[arg-type]
        assert data.scenes == ["Home/SyntheticRoom/00001", "Home/SyntheticRoom_Dark/00001"]  # type: ignore[attr-defined]
    sample = data[0]
    figures = np.nanmin(sample.disparity), np.nanmax(sample.disparity), np.nanmean(sample.disparity)
    np.testing.assert_allclose(figures, (7.25099, 22.98587, 15.24108), atol=1e-4)
    assert sample.disparity[269, 479] == pytest.approx(7.637844, abs=1e-5)
    np.testing.assert_allclose(sample.normals[430, 480], 2 * np.array([0.566187, 0.244655, 0.075243]) - 1, atol=2e-6)
    assert (sample.normals[..., 2] > 0).mean() == pytest.approx(0.1776, abs=1e-4)
    assert (sample.rig.left.fx, sample.rig.left.cx, sample.rig.left.cy, sample.rig.baseline) == (480, 479.5, 269.5, 0.1)


@pytest.mark.real
def test_real_pairs_in_their_layouts(shared: Path, tmp_path: Path) -> None:
    source = shared / "data/stereo"
    links = {
        "kitti2015/training/image_2/000000_10.png": "kitti2015/000000_10/left.png",
        "kitti2015/training/image_3/000000_10.png": "kitti2015/000000_10/right.png",
        "kitti2015/training/disp_occ_0/000000_10.png": "kitti2015/000000_10/disp_occ_0.png",
        "kitti2012/training/colored_0/000000_10.png": "kitti2012/000000_10/left.png",
        "kitti2012/training/colored_1/000000_10.png": "kitti2012/000000_10/right.png",
        "kitti2012/training/disp_occ/000000_10.png": "kitti2012/000000_10/disp_occ.png",
        "eth3d/two_view_training/playground_1l/im0.png": "eth3d/playground_1l/left.png",
        "eth3d/two_view_training/playground_1l/im1.png": "eth3d/playground_1l/right.png",
        "eth3d/two_view_training/playground_1l/calib.txt": "eth3d/playground_1l/calib.txt",
        "eth3d/two_view_training_gt/playground_1l/disp0GT.pfm": "eth3d/playground_1l/disp0.pfm",
        "middlebury2003/cones/im2.png": "middlebury2003/cones/left.png",
        "middlebury2003/cones/im6.png": "middlebury2003/cones/right.png",
        "middlebury2003/cones/disp2.png": "middlebury2003/cones/disp_left.png",
        "middlebury2003/cones/disp6.png": "middlebury2003/cones/disp_right.png",
        "middlebury2005/Reindeer/view1.png": "middlebury2005/reindeer_half/left.png",
        "middlebury2005/Reindeer/view5.png": "middlebury2005/reindeer_half/right.png",
        "middlebury2005/Reindeer/disp1.png": "middlebury2005/reindeer_half/disp_left.png",
        "middlebury2006/Aloe/view1.png": "middlebury2006/aloe_third/left.png",
        "middlebury2006/Aloe/view5.png": "middlebury2006/aloe_third/right.png",
        "middlebury2006/Aloe/disp1.png": "middlebury2006/aloe_third/disp_left.png",
        "flyingthings3d/frames_cleanpass/TRAIN/A/0000/left/0006.png": "sceneflow/flying_train_a_0000_0006/left.png",
        "flyingthings3d/frames_cleanpass/TRAIN/A/0000/right/0006.png": "sceneflow/flying_train_a_0000_0006/right.png",
        "flyingthings3d/disparity/TRAIN/A/0000/left/0006.pfm": "sceneflow/flying_train_a_0000_0006/disp_left.pfm",
    }
    for target, file in links.items():
        (tmp_path / target).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / target).symlink_to(source / file)
    ranges = {
        "kitti2015": (4.621, 64.086),
        "kitti2012": (4.402, 69.816),
        "eth3d": (2.127, 20.001),
        "middlebury2003": (5.5, 55.0),
        "middlebury2005": (5.5, 100.5),
        "middlebury2006": (14.333, 70.333),
        "flyingthings3d": (1.206, 152.119),
    }
    for name, limits in ranges.items():
        data = open_dataset(name, tmp_path / name)
        disparity = data[0].disparity
        np.testing.assert_allclose((np.nanmin(disparity), np.nanmax(disparity)), limits, atol=6e-4)
    assert open_dataset("eth3d", tmp_path / "eth3d")[0].rig.baseline == pytest.approx(0.05955, abs=1e-5)


@pytest.mark.real
def test_real_sceneflow_list(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "nano.list").write_text("left.png right.png 0001.pfm\n")
    data = open_dataset("sceneflow", shared / "data/sceneflow_sample", list_file=tmp_path / "nano.list")
    assert float(data[0].disparity.mean()) == pytest.approx(37.758743, abs=1e-4)
