# SPDX-License-Identifier: Apache-2.0
"""Pools of panoramas, their random transforms, and rooms made on the fly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from panoramas import box_panorama

from vision3d.cli.main import main
from vision3d.datasets.panorama_augment import panorama_augmentation
from vision3d.datasets.panorama_pool import PoolPanoramas, write_panorama_pool
from vision3d.datasets.registry import open_dataset
from vision3d.errors import ConfigError, FileFormatError, InputError, UnknownNameError
from vision3d.geometry.panorama import panorama_rays


def test_a_pool_gives_what_was_written(tmp_path: Path) -> None:
    samples = [box_panorama(16, "a"), box_panorama(16, "b"), box_panorama(24, "c")]
    samples[1].depth[3, 4] = np.nan
    assert write_panorama_pool(tmp_path, samples, shard_size=2) == 3
    pool = open_dataset("panorama_pool", tmp_path)
    assert pool.scenes == ["a", "b", "c"]
    for read, sample in zip(pool, samples, strict=False):
        np.testing.assert_array_equal(read.image, sample.image)
        np.testing.assert_array_equal(read.depth, sample.depth)
    assert isinstance(pool[2].image.base, np.memmap)
    assert len(PoolPanoramas(tmp_path, shards=1)) == 2
    with pytest.raises(IndexError):
        pool[3]


def test_half_precision_is_near(tmp_path: Path) -> None:
    write_panorama_pool(tmp_path, [box_panorama(16)], dtype="float16")
    np.testing.assert_allclose(PoolPanoramas(tmp_path)[0].depth, box_panorama(16).depth, rtol=1e-3)


def test_damaged_pools(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no pool"):
        PoolPanoramas(tmp_path)
    with pytest.raises(InputError, match="no depth"):
        write_panorama_pool(tmp_path, [replace(box_panorama(16), depth=None)])
    write_panorama_pool(tmp_path, [box_panorama(16)])
    np.save(tmp_path / "shard00000.depth.npy", np.ones((1, 16, 30), np.float32))
    with pytest.raises(FileFormatError, match="do not fit"):
        PoolPanoramas(tmp_path)
    (tmp_path / "shard00000.depth.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(FileFormatError, match="damaged"):
        PoolPanoramas(tmp_path)


@pytest.mark.parametrize("name", ["turn", "mirror", "tilt", "colors"])
def test_transforms_keep_image_and_depth_together(name: str) -> None:
    """The walls of a box have a colour each: image and depth belong together wherever they go."""
    sample = box_panorama(64)
    augment = panorama_augmentation([(name, {"p": 1.0})])
    one, two = (augment(sample, np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(one.image, two.image)
    np.testing.assert_array_equal(one.depth, two.depth)
    assert not np.array_equal(one.image, sample.image)
    brightness = one.image.max(axis=2) / (0.4 + 0.6 * one.depth / sample.depth.max())
    if name in ("turn", "mirror"):
        assert sorted(map(int, one.depth.ravel() * 1e4)) == sorted(map(int, sample.depth.ravel() * 1e4))
        np.testing.assert_allclose(
            np.sort(brightness, None),
            np.sort(sample.image.max(axis=2) / (0.4 + 0.6 * sample.depth / sample.depth.max()), None),
            rtol=1e-4,
        )
    if name == "tilt":
        assert np.mean((brightness > 190) & (brightness < 220)) > 0.9  # walls have 200 or 210
        assert set(np.unique(one.depth)) <= set(np.unique(sample.depth))
    if name == "colors":
        np.testing.assert_array_equal(one.depth, sample.depth)


def test_a_mirrored_room_is_the_other_hand() -> None:
    sample = box_panorama(32)
    mirrored = panorama_augmentation([("mirror", {"p": 1.0})])(sample, np.random.default_rng(0))
    points = panorama_rays(32) * sample.depth[..., None]
    flipped = panorama_rays(32) * mirrored.depth[..., None]
    np.testing.assert_allclose(flipped[:, ::-1] * (-1, 1, 1), points, atol=1e-5)


def test_unusable_transforms() -> None:
    with pytest.raises(UnknownNameError, match="turn"):
        panorama_augmentation([("trun", {})])
    with pytest.raises(ConfigError, match="degrees"):
        panorama_augmentation([("tilt", {"degree": 3})])
    for options in ({"p": 2}, {"gamma": -1}, {"brightness": "much"}):
        with pytest.raises(ConfigError):
            panorama_augmentation([("colors", options)])


def test_rooms_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("open3d")
    wish = ["data", "synthesize", str(tmp_path / "pool"), "--kind", "rooms", "--layout", "panorama_pool"]
    assert main([*wish, "--size", "16x32", "--scenes", "2", "--seed", "9"]) == 0
    assert "2 panoramas" in capsys.readouterr().out
    pool = PoolPanoramas(tmp_path / "pool")
    rooms = open_dataset("synthetic_panoramas", height=16, seed=9, scenes=2)
    assert pool.scenes == rooms.scenes
    np.testing.assert_array_equal(pool[1].depth, rooms[1].depth)
    with pytest.raises(TypeError):
        len(open_dataset("synthetic_panoramas"))
    assert main([*wish, "--size", "16x48"]) == 2
    assert "twice as wide" in capsys.readouterr().err
    assert main([*wish[:3], "--layout", "panorama_pool", "--size", "16x32"]) == 2
    assert "--kind rooms" in capsys.readouterr().err
