# SPDX-License-Identifier: Apache-2.0
"""Training pairs as functions of (seed, position); the pool they come from; crops and colours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_samples

from vision3d.datasets.cache import PoolStereo, write_pool
from vision3d.datasets.registry import list_datasets
from vision3d.datasets.transforms import published_color, random_crop, vertical_flip
from vision3d.errors import ConfigError, FileFormatError, InputError
from vision3d.io.disparity import write_disparity
from vision3d.io.images import write_image
from vision3d.training.config import AugmentConfig, DataConfig, SourceConfig, config_from_dict
from vision3d.training.data import TrainingPairs, open_sources, train_loader, validation_loader
from vision3d.types import StereoBatch, StereoSample


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    write_pool(tmp_path / "pool", tiny_samples(7), shard_size=3)
    return tmp_path / "pool"


def test_pool_round_trip(pool: Path) -> None:
    samples, read = list(tiny_samples(7)), PoolStereo(pool)
    assert len(read) == 7
    for index, sample in enumerate(samples):
        got = read[index]
        assert got.scene == sample.scene
        np.testing.assert_array_equal(got.left, sample.left)
        np.testing.assert_array_equal(got.right, sample.right)
        np.testing.assert_array_equal(got.disparity, sample.disparity)
    with pytest.raises(IndexError):
        read[7]
    assert len(PoolStereo(pool, shards=1)) == 3


def test_pool_of_mixed_sizes_and_half_precision(tmp_path: Path) -> None:
    samples = [*tiny_samples(2), *tiny_samples(2, height=48)]
    assert write_pool(tmp_path, samples, dtype="float16") == 4
    assert [PoolStereo(tmp_path)[index].left.shape[0] for index in range(4)] == [40, 40, 48, 48]


def test_damaged_pools(pool: Path, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no stereo pool"):
        PoolStereo(tmp_path / "nothing")
    part = pool / "shard00001.left.npy"
    part.write_bytes(part.read_bytes()[:200])
    with pytest.raises(FileFormatError, match="shard00001"):
        PoolStereo(pool)
    with pytest.raises(InputError, match="no disparity"):
        write_pool(tmp_path / "other", [StereoSample(np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4, 3), np.uint8))])


def config_of(pool: Path, **options: object) -> DataConfig:
    return DataConfig([SourceConfig("pool", str(pool))], crop=(32, 64), color="published", **options)  # type: ignore[arg-type]


def test_each_epoch_visits_each_pair_once(pool: Path) -> None:
    pairs = TrainingPairs(PoolStereo(pool), config_of(pool), seed=3)
    epochs = [[pairs.index_of(epoch * 7 + place) for place in range(7)] for epoch in range(4)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def batches(pool: Path, first: int, count: int, rank: int = 0, world: int = 1, workers: int = 0) -> list[StereoBatch]:
    pairs = TrainingPairs(PoolStereo(pool), config_of(pool, vertical_flip=0.5), seed=3)
    loader = iter(train_loader(pairs, lambda: first, 2, workers, rank, world))
    return [next(loader) for _ in range(count)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_later_start_gives_the_same_batches(pool: Path, workers: int) -> None:
    whole, rest = batches(pool, 0, 6), batches(pool, 4, 2, workers=workers)
    for want, got in zip(whole[4:], rest, strict=True):
        assert want.scenes == got.scenes
        assert torch.equal(want.left, got.left)
        assert torch.equal(want.right, got.right)
        assert torch.equal(want.disparity.nan_to_num(-1), got.disparity.nan_to_num(-1))


def test_processes_share_the_stream(pool: Path) -> None:
    single = [scene for batch in batches(pool, 0, 4) for scene in batch.scenes]
    first, second = (batches(pool, 0, 2, rank=rank, world=2) for rank in (0, 1))
    shared = [scene for pair in zip(first, second, strict=True) for batch in pair for scene in batch.scenes]
    assert shared == single


def test_validation_shards_cover_the_set_once(pool: Path) -> None:
    config = config_of(pool, validation=[SourceConfig("pool", str(pool))], validation_crop=(32, 64))
    scenes = [batch.scenes[0] for rank in (0, 1) for batch in validation_loader(config, 0, rank, 2) or ()]
    assert sorted(scenes) == [f"scene{number}" for number in range(7)]
    assert validation_loader(config_of(pool), 0, 0, 1) is None


def test_sources(pool: Path) -> None:
    source = SourceConfig("pool", str(pool), repeat=2)
    assert len(open_sources([source, SourceConfig("pool", str(pool))])) == 21  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="shard"):
        open_sources([SourceConfig("pool", str(pool), {"shard": 1})])
    assert len(open_sources([SourceConfig("3*pool", str(pool))])) == 21  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="VISION3D_ROOT_KITTI2015"):
        open_sources([SourceConfig("kitti2015")])
    with pytest.raises(ConfigError, match="endless"):
        open_sources([source, SourceConfig("synthetic")])


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("pool", {"shard": 1}, "data set pool: unknown option 'shard': did you mean 'shards'?"),
        ("kitti2015", {"skip_fil": "x"}, "data set kitti2015: unknown option 'skip_fil': did you mean 'skip_file'?"),
        ("kitti2015", {"spilt": "all"}, "did you mean 'split'?"),
        ("sceneflow", {"part": "monkaa"}, "did you mean 'parts'?"),
        ("synthetic", {"heigth": 40}, "data set synthetic: unknown option 'heigth': did you mean 'height'?"),
        ("synthetic", {"max_dispartiy": 40}, "did you mean 'max_disparity'?"),
        ("synthetic + 2*kitti2015", {"kitti2015": {"skip_fil": "x"}}, "data set kitti2015: unknown option 'skip_fil'"),
        ("synthetic + 2*pool", {"kitti2015": {}}, "unknown option 'kitti2015'"),
    ],
)
def test_an_unknown_reader_option_names_the_nearest(kind: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_sources([SourceConfig(kind, options=options)])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", list_datasets("stereo"))
def test_every_stereo_reader_names_the_nearest_option(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown option 'spilt': did you mean 'split'"):
        open_sources([SourceConfig(name, options={"spilt": "all"})])


def test_synthetic_scenes_are_fixed_by_their_position() -> None:
    config = DataConfig([SourceConfig("synthetic", options={"height": 40, "width": 72, "seed": 5})], crop=(32, 64))
    one, two = (TrainingPairs(open_sources(config.train), config, 0)[9] for _ in range(2))
    np.testing.assert_array_equal(one.left, two.left)
    assert one.left.shape == (32, 64, 3)


def test_crop_cuts_both_views_alike() -> None:
    sample = next(iter(tiny_samples(1)))
    ramp = np.arange(40 * 72, dtype=np.float32).reshape(40, 72)
    sample.disparity = ramp
    seen = set()
    for seed in range(40):
        cut = random_crop(sample, 32, 64, np.random.default_rng(seed), crop_top=0.5)
        assert cut.disparity is not None
        top, left = divmod(int(cut.disparity[0, 0]), 72)
        seen.add((top, left))
        np.testing.assert_array_equal(cut.left, sample.left[top : top + 32, left : left + 64])
        np.testing.assert_array_equal(cut.right, sample.right[top : top + 32, left : left + 64])
    assert {top for top, _ in seen} == {4, 5, 6, 7, 8}
    assert {left for _, left in seen} >= {0, 8}
    with pytest.raises(InputError, match="scene0"):
        random_crop(sample, 64, 64, np.random.default_rng(0))


def test_vertical_flip_keeps_disparities() -> None:
    sample = next(iter(tiny_samples(1)))
    flipped = vertical_flip(sample)
    assert sample.disparity is not None
    np.testing.assert_array_equal(flipped.disparity, sample.disparity[::-1])
    np.testing.assert_array_equal(flipped.right, sample.right[::-1])


def test_published_color_matches_the_plain_chain() -> None:
    image = np.random.default_rng(0).integers(60, 180, (30, 40, 3), dtype=np.uint8)
    vectors = [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
    luma = np.array([0.299, 0.587, 0.114])
    for seed in range(12):
        generator = np.random.default_rng(seed)
        pixels = image / 255.0
        for kind in generator.permutation(3):
            alpha = generator.uniform(0, 0.4)
            grey = (pixels @ luma)[..., None]
            other = [np.zeros_like(pixels), np.full_like(pixels, grey.mean()), np.broadcast_to(grey, pixels.shape)][
                kind
            ]
            pixels = (1 - alpha) * pixels + alpha * other
        strengths = generator.normal(0, 0.1, 3)
        pixels = pixels + np.array(vectors) @ (strengths * [0.2175, 0.0188, 0.0045])
        got = published_color(image, np.random.default_rng(seed))
        assert got.dtype == np.uint8
        assert np.abs(got - np.clip(pixels * 255, 0, 255)).max() <= 1.01  # fixed-point arithmetic


def test_kitti_tree(tmp_path: Path) -> None:
    for folder in ("image_2", "image_3", "disp_occ_0"):
        (tmp_path / "training" / folder).mkdir(parents=True)
    for number, sample in enumerate(tiny_samples(3)):
        name = f"{number:06d}_10.png"
        write_image(tmp_path / "training" / "image_2" / name, sample.left)
        write_image(tmp_path / "training" / "image_3" / name, sample.right)
        assert sample.disparity is not None
        write_disparity(tmp_path / "training" / "disp_occ_0" / name, sample.disparity)
    scenes = {
        split: open_sources([SourceConfig("kitti2015", str(tmp_path), {"split": split})]) for split in ("all", "train")
    }
    assert [len(scenes["all"]), len(scenes["train"])] == [3, 2]  # type: ignore[arg-type]
    config = DataConfig([], validation=[SourceConfig("kitti2015", str(tmp_path), {"split": "validation"})])
    (batch,) = validation_loader(config, 0, 0, 1) or ()
    want = StereoBatch.collate([list(tiny_samples(3))[1]])  # frame 1 is held back
    assert torch.equal(batch.right, want.right)
    assert torch.equal(batch.disparity.nan_to_num(-1), want.disparity.nan_to_num(-1))


def augmented(pool: Path, first: int, count: int, workers: int = 0) -> list[StereoBatch]:
    names = ("misalign", "shift_disparity", "occlude", "vertical_flip", "photometric")
    steps = [AugmentConfig("resize", {"octaves": [-0.1, 0.3]}), AugmentConfig("crop")]
    steps += [AugmentConfig(name, {"size": [4, 9]} if name == "occlude" else {}) for name in names]
    pairs = TrainingPairs(PoolStereo(pool), config_of(pool, augment=steps), seed=5)
    loader = iter(train_loader(pairs, lambda: first, 2, workers, 0, 1))
    return [next(loader) for _ in range(count)]


@pytest.mark.parametrize("workers", [0, 2])
def test_augmented_batches_are_those_of_an_uninterrupted_run(pool: Path, workers: int) -> None:
    pytest.importorskip("albumentations")
    whole, rest = augmented(pool, 0, 5), augmented(pool, 3, 2, workers)
    for want, got in zip(whole[3:], rest, strict=True):
        assert want.left.shape == (2, 3, 32, 64)
        assert torch.equal(want.left, got.left)
        assert torch.equal(want.right, got.right)
        assert torch.equal(want.disparity.nan_to_num(-1), got.disparity.nan_to_num(-1))


def test_recipes_name_their_transforms(pool: Path) -> None:
    recipe = {
        "model": {"name": "tiny"},
        "data": {
            "train": [{"kind": "pool", "root": str(pool)}],
            "crop": [32, 64],
            "augment": [{"name": "misalign", "options": {"shift": [-2, 2]}}, {"name": "published"}],
        },
    }
    config = config_from_dict(recipe).data
    assert [step.name for step in config.augment] == ["misalign", "published"]
    plain, changed = (
        TrainingPairs(PoolStereo(pool), data, seed=1)[4] for data in (replace(config, augment=[]), config)
    )
    np.testing.assert_array_equal(changed.disparity is None, plain.disparity is None)
    assert not np.array_equal(plain.right, changed.right)
    with pytest.raises(ConfigError, match="unknown option 'shfit'"):
        TrainingPairs(PoolStereo(pool), replace(config, augment=[AugmentConfig("misalign", {"shfit": 1})]), 0)
    with pytest.raises(ConfigError, match="unknown option"):
        config_from_dict({**recipe, "data": {**recipe["data"], "augment": [{"nam": "crop"}]}})  # type: ignore[dict-item]
