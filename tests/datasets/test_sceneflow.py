# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vision3d.datasets.sceneflow import SceneFlowStereo, read_list, write_sceneflow_tree
from vision3d.errors import DisparityError, FileFormatError, ImageError, InputError
from vision3d.io.disparity import write_disparity
from vision3d.io.images import write_image
from vision3d.types import StereoSample

RNG = np.random.default_rng(0)


def make_samples(count: int = 2) -> list[StereoSample]:
    samples = []
    for number in range(count):
        left, right = RNG.integers(0, 256, (2, 10, 14, 3), dtype=np.uint8)
        disparity = RNG.uniform(0, 5, (10, 14)).astype(np.float32)
        disparity[0, 0] = np.nan
        samples.append(StereoSample(left, right, disparity, right_disparity=disparity + 1 if number else None))
    return samples


def test_round_trip(tmp_path: Path) -> None:
    samples = make_samples()
    entries = write_sceneflow_tree(tmp_path / "tree", samples)
    assert entries[1] == (
        "frames_cleanpass/TRAIN/A/0001/left/0006.png",
        "frames_cleanpass/TRAIN/A/0001/right/0006.png",
        "disparity/TRAIN/A/0001/left/0006.pfm",
    )
    assert (tmp_path / "tree/disparity/TRAIN/A/0001/right/0006.pfm").is_file()
    assert read_list(tmp_path / "tree/TRAIN.list") == entries
    for data in (
        SceneFlowStereo(tmp_path / "tree", "TRAIN", parts=["flyingthings3d"]),
        SceneFlowStereo(tmp_path / "tree", list_file=tmp_path / "tree/TRAIN.list"),
    ):
        assert len(data) == 2
        files = [(entry.left, entry.right, entry.maps[0].path) for entry in data.entries]
        assert files == [tuple(str(tmp_path / "tree" / name) for name in entry) for entry in entries]
        for sample, expected in zip(data, samples, strict=True):
            np.testing.assert_array_equal(sample.left, expected.left)
            np.testing.assert_array_equal(sample.right, expected.right)
            np.testing.assert_array_equal(sample.disparity, expected.disparity)
            assert (sample.right_disparity is None) == (expected.right_disparity is None)
        np.testing.assert_array_equal(data[1].right_disparity, samples[1].right_disparity)


def test_errors(tmp_path: Path) -> None:
    write_sceneflow_tree(tmp_path, make_samples(1), split="TEST")
    for options in ({"split": "TRAIN"}, {"split": "TEST", "passname": "finalpass"}):
        with pytest.raises(FileFormatError):
            SceneFlowStereo(tmp_path, **options)
    data = SceneFlowStereo(tmp_path, "TEST")
    left, right, disparity = (Path(name) for name in data.entries[0].files())
    write_disparity(disparity, np.ones((5, 5)))
    with pytest.raises(DisparityError, match="5x5, the images are 14x10"):
        data[0]
    write_image(right, np.zeros((3, 3)))
    with pytest.raises(ImageError, match="one size"):
        data[0]
    write_image(right, np.zeros((10, 14, 3), np.uint8))
    disparity.unlink()
    with pytest.raises(DisparityError, match="no such file"):
        data[0]
    assert left.is_file()
    samples = make_samples(1)
    samples[0].disparity = None
    with pytest.raises(InputError):
        write_sceneflow_tree(tmp_path / "b", samples)


def test_lists(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text("a/left.png a/right.png a/d.pfm\n\n  b c d normals.exr \n")
    assert read_list(file) == [("a/left.png", "a/right.png", "a/d.pfm"), ("b", "c", "d")]
    for text in ("a b\n", "a b c d e\n", "\n"):
        file.write_text(text)
        with pytest.raises(FileFormatError):
            read_list(file)
