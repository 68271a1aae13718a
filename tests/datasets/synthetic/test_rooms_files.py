# SPDX-License-Identifier: Apache-2.0
"""Rooms in files: pools with normals, and the files of IRS."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vision3d.cli.main import main
from vision3d.datasets.cache import PoolStereo, write_pool
from vision3d.datasets.registry import open_dataset
from vision3d.datasets.synthetic import make_scene
from vision3d.datasets.synthetic.kinds import make_pair
from vision3d.datasets.synthetic.rooms import make_room_stereo
from vision3d.errors import FileFormatError, UnknownNameError

pytest.importorskip("open3d")


def test_a_pool_carries_the_normals_of_those_that_have_some(tmp_path: Path) -> None:
    samples = [make_room_stereo(1, 32, 64), make_scene(1, 32, 64), make_room_stereo(2, 32, 64)]
    assert write_pool(tmp_path, samples, shard_size=2) == 3
    read = PoolStereo(tmp_path)
    for index in (0, 2):
        normals = read[index].normals
        assert normals is not None
        assert normals.dtype == np.float16
        np.testing.assert_allclose(normals, samples[index].normals, atol=5e-4)
        np.testing.assert_array_equal(read[index].disparity, samples[index].disparity)
    unknown = read[1].normals
    assert unknown is not None
    assert np.isnan(unknown).all()


def test_a_pool_without_normals_stays_as_it_was(tmp_path: Path) -> None:
    write_pool(tmp_path, [make_scene(1, 32, 64)])
    assert PoolStereo(tmp_path)[0].normals is None
    assert not list(tmp_path.glob("*normals*"))


def test_a_pool_that_lost_its_normals_is_damaged(tmp_path: Path) -> None:
    write_pool(tmp_path, [make_room_stereo(1, 32, 64)])
    np.save(tmp_path / "shard00000.normals.npy", np.zeros((1, 31, 64, 3), np.float16))
    with pytest.raises(FileFormatError, match="do not fit"):
        PoolStereo(tmp_path)
    (tmp_path / "shard00000.normals.npy").unlink()
    with pytest.raises(FileFormatError, match="damaged shard"):
        PoolStereo(tmp_path)


def test_the_command_writes_rooms_that_the_reader_of_irs_reads(tmp_path: Path) -> None:
    pytest.importorskip("OpenEXR")
    options = ["--kind", "rooms", "--layout", "irs", "--scenes", "2", "--seed", "5", "--size", "48x96"]
    assert main(["data", "synthesize", str(tmp_path / "irs"), *options]) == 0
    assert len(list((tmp_path / "irs" / "Home").glob("*/n_*.exr"))) == 2
    data = open_dataset("irs", tmp_path / "irs", split="all")
    for index in range(2):
        read, made = data[index], make_room_stereo(5 + index, 48, 96)
        for name in ("left", "right", "disparity"):
            np.testing.assert_array_equal(getattr(read, name), getattr(made, name))
        np.testing.assert_allclose(read.normals, made.normals, atol=1e-6)
        assert read.rig.baseline == made.rig.baseline
        np.testing.assert_allclose(read.rig.left.intrinsics, made.rig.left.intrinsics)


def test_the_command_writes_a_mixture(tmp_path: Path) -> None:
    options = ["--kind", "mixture", "--layout", "pool", "--scenes", "3", "--size", "32x64", "--baseline", "0.1", "0.3"]
    assert main(["data", "synthesize", str(tmp_path / "pool"), *options]) == 0
    assert [name.split("_")[0] for name in PoolStereo(tmp_path / "pool").scenes] == ["room", "synthetic", "room"]


@pytest.mark.parametrize(
    "options",
    [
        ["--kind", "cellar"],
        ["--baseline", "0.1", "0.2"],
        ["--kind", "rooms", "--baseline", "0.3", "0.2"],
        ["--kind", "rooms", "--layout", "irs", "--focal", "0.4", "0.6"],
        ["--kind", "rooms", "--rectification-error", "1"],
    ],
)
def test_the_command_refuses(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "synthesize", str(tmp_path / "out"), "--scenes", "1", "--size", "32x64", *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="layered"):
        make_pair(0, 32, 64, kind="layerd")
