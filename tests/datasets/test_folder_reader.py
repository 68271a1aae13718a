# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vision3d.datasets.cache import write_pool
from vision3d.datasets.folder import FolderStereo
from vision3d.datasets.registry import open_dataset
from vision3d.datasets.synthetic import SceneOptions, make_scene
from vision3d.errors import (
    CalibrationError,
    ConfigError,
    DisparityError,
    FileFormatError,
    ImageError,
    UnknownNameError,
)
from vision3d.io.disparity import write_disparity
from vision3d.io.images import write_image

HEIGHT, WIDTH = 12, 16
LEFT = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
TRUTH = np.full((HEIGHT, WIDTH), 3.5, dtype=np.float32)
TRUTH[0, 0] = np.nan
CALIBRATION = (
    "cam0=[20 0 8; 0 20 6; 0 0 1]\ncam1=[20 0 8; 0 20 6; 0 0 1]\ndoffs=0\nbaseline=100\nwidth={width}\nheight=12\n"
)


def add_scene(root: Path, name: str, truth: str | None = "disp_left.pfm") -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    write_image(folder / "left.png", LEFT)
    write_image(folder / "right.png", LEFT[:, ::-1])
    if truth is not None:
        write_disparity(folder / truth, TRUTH)
    return folder


def test_well_known_names(tmp_path: Path) -> None:
    for number, truth in enumerate(["disp0.pfm", "disp_left.npy", "disp_occ_0.png", "disp0GT.pfm", None]):
        add_scene(tmp_path, f"set/{number}", truth)
    (tmp_path / "set/no_pair").mkdir()
    (tmp_path / ".hidden/x").mkdir(parents=True)
    data = FolderStereo(tmp_path)
    assert data.scenes == ["set/0", "set/1", "set/2", "set/3", "set/4"]
    assert len(data) == 5
    samples = list(data)
    for sample in samples[:4]:
        np.testing.assert_array_equal(sample.disparity, TRUTH)
        np.testing.assert_array_equal(sample.left, LEFT)
        np.testing.assert_array_equal(sample.right, LEFT[:, ::-1])
        assert sample.right_disparity is None
    assert samples[4].disparity is None
    assert samples[4].scene == "set/4"
    assert data.ndisp("set/0") is None
    with pytest.raises(UnknownNameError, match="set/0"):
        data.ndisp("set/00")


def test_extras_of_a_scene(tmp_path: Path) -> None:
    folder = add_scene(tmp_path, "set/full")
    write_disparity(folder / "disp_right.pfm", TRUTH + 1)
    mask = np.full((HEIGHT, WIDTH), 255, dtype=np.uint8)
    mask[3, 4] = 128
    mask[5, 6] = 0
    Image.fromarray(mask).save(folder / "nonocc.png")
    (folder / "calib.txt").write_text(CALIBRATION.format(width=WIDTH))
    sample = FolderStereo(tmp_path)[0]
    np.testing.assert_array_equal(sample.right_disparity, TRUTH + 1)
    assert sample.occlusion is not None
    assert np.argwhere(sample.occlusion).tolist() == [[3, 4], [5, 6]]
    assert sample.rig is not None
    assert (sample.rig.baseline, sample.rig.size) == (0.1, (WIDTH, HEIGHT))
    (folder / "calib.txt").write_text(CALIBRATION.format(width=WIDTH * 2))
    with pytest.raises(CalibrationError, match="32x12"):
        FolderStereo(tmp_path)[0]


def test_index_decides(tmp_path: Path) -> None:
    folder = add_scene(tmp_path, "set/a", None)
    codes = np.full((HEIGHT, WIDTH), 9, dtype=np.uint8)
    codes[0, 0] = 0
    Image.fromarray(codes).save(folder / "disp_left.png")
    with pytest.raises(DisparityError, match=r"index\.json"):
        FolderStereo(tmp_path)[0]
    entry = {"left": "left.png", "right": "right.png", "ndisp": 64}
    entry["gt"] = {"file": "disp_left.png", "encoding": "uint8", "divide_by": 3, "invalid": "0"}  # type: ignore[assignment]
    (tmp_path / "index.json").write_text(json.dumps({"set/a": entry}))
    data = FolderStereo(tmp_path)
    disparity = data[0].disparity
    assert disparity is not None
    assert np.isnan(disparity[0, 0])
    assert disparity[1, 1] == 3
    assert data.ndisp("set/a") == 64
    entry["gt"] = None  # type: ignore[assignment]
    (tmp_path / "index.json").write_text(json.dumps({"set/a": entry}))
    assert FolderStereo(tmp_path)[0].disparity is None
    for text in ("{", "[]", '{"set/a": 3}', '{"set/a": {"gt": {"file": "x"}}}'):
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(FileFormatError, match=r"index\.json"):
            FolderStereo(tmp_path)


def test_exclude(tmp_path: Path) -> None:
    for name in ("one/a", "one/b", "two/a"):
        add_scene(tmp_path, name, None)
    assert FolderStereo(tmp_path, exclude=["one/a"]).scenes == ["one/b", "two/a"]
    assert FolderStereo(tmp_path, exclude=["one"]).scenes == ["two/a"]
    assert FolderStereo(tmp_path, exclude="two").scenes == ["one/a", "one/b"]
    assert FolderStereo(tmp_path, exclude=["one", "two"]).scenes == []
    with pytest.raises(UnknownNameError, match="did you mean one"):
        FolderStereo(tmp_path, exclude=["onee"])


def test_broken_scenes(tmp_path: Path) -> None:
    for root in (tmp_path / "missing", tmp_path):
        with pytest.raises(FileFormatError):
            FolderStereo(root)
    folder = add_scene(tmp_path, "set/a")
    write_disparity(folder / "disp_left.pfm", TRUTH.T)
    with pytest.raises(DisparityError, match=r"12x16.*16x12"):
        FolderStereo(tmp_path)[0]
    write_image(folder / "right.png", LEFT.transpose(1, 0, 2))
    with pytest.raises(ImageError, match="one size"):
        FolderStereo(tmp_path)[0]
    (folder / "right.png").unlink()
    with pytest.raises(ImageError, match="right image is missing"):
        FolderStereo(tmp_path)[0]


@pytest.mark.real
def test_every_real_scene(shared: Path) -> None:
    root = shared / "data/stereo"
    index = json.loads((root / "index.json").read_text())
    data = FolderStereo(root)
    assert data.scenes == sorted(index)
    assert len(data) == 32
    for sample in data:
        entry = index[sample.scene]
        assert sample.left.shape == sample.right.shape == (entry["height"], entry["width"], 3)
        assert data.ndisp(sample.scene) == entry.get("ndisp")
        assert (sample.rig is not None) == bool(entry["calib"])
        assert (sample.right_disparity is not None) == bool(entry["gt_right"])
        if "disp_min" not in entry:
            assert sample.disparity is None
            continue
        assert sample.disparity is not None
        assert np.nanmin(sample.disparity) == pytest.approx(entry["disp_min"], abs=6e-4)
        assert np.nanmax(sample.disparity) == pytest.approx(entry["disp_max"], abs=6e-4)
        assert sample.valid.mean() == pytest.approx(entry["gt_density"], abs=6e-5)


@pytest.mark.real
def test_real_scenes_without_index(shared: Path, tmp_path: Path) -> None:
    for name in ("eth3d/playground_1l", "kitti2015/000000_10", "middlebury2014/motorcycle_quarter"):
        shutil.copytree(shared / "data/stereo" / name, tmp_path / name)
    with_index = FolderStereo(shared / "data/stereo")
    for sample in FolderStereo(tmp_path):
        np.testing.assert_array_equal(sample.disparity, with_index[with_index.scenes.index(sample.scene)].disparity)


def test_skip_file_and_on_error(tmp_path: Path) -> None:
    for name in ("one/a", "one/b", "two/a", "two/b"):
        add_scene(tmp_path, name)
    (tmp_path / "one/b/right.png").unlink()
    (tmp_path / "two/a/left.png").write_bytes(b"no image")
    skip = tmp_path / "skip.txt"
    skip.write_text("one/a  # blurred\n", encoding="utf-8")
    with pytest.warns(UserWarning, match="folder: 1 pairs skipped so far; .*one/b.*no such file"):
        data = open_dataset("folder", tmp_path, skip_file=skip, on_error="skip")
    assert isinstance(data, FolderStereo)
    assert data.scenes == ["two/a", "two/b"]
    with pytest.warns(UserWarning, match="folder: 2 pairs skipped so far"):
        assert data[0].scene == "two/b"
    assert list(data.skipped) == ["one/b", "two/a"]
    skip.write_text("one/a\none/zz\none/yy\n", encoding="utf-8")
    with pytest.warns(
        UserWarning, match=r"skip\.txt: 2 names of this skip list are not .* folder, the first: 'one/yy'"
    ):
        assert FolderStereo(tmp_path, skip_file=skip).scenes == ["one/b", "two/a", "two/b"]
    with pytest.raises(ConfigError, match="raise or skip"):
        FolderStereo(tmp_path, on_error="ignore")  # type: ignore[arg-type]


def test_skip_file_and_on_error_of_a_pool(tmp_path: Path) -> None:
    scenes = [make_scene(seed, 32, 48, SceneOptions(max_disparity=(4.0, 8.0))) for seed in range(4)]
    write_pool(tmp_path, scenes, shard_size=2)
    names = [scene.scene for scene in scenes]
    skip = tmp_path / "skip.txt"
    skip.write_text(f"{names[1]}\n", encoding="utf-8")
    data = open_dataset("pool", tmp_path, skip_file=skip)
    assert [data[index].scene for index in range(3)] == [names[0], names[2], names[3]]
    np.testing.assert_array_equal(data[1].left, scenes[2].left)
    with pytest.raises(IndexError):
        data[3]
    (tmp_path / "shard00001.left.npy").write_bytes(b"")
    with pytest.raises(FileFormatError, match="damaged shard"):
        open_dataset("pool", tmp_path)
    with pytest.warns(UserWarning, match="pool: 1 pairs skipped so far; .*shard00001: damaged shard"):
        assert open_dataset("pool", tmp_path, on_error="skip").scenes == names[:2]  # type: ignore[attr-defined]
