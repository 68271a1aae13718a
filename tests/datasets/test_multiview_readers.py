# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import cv2
import numpy as np
import pytest

from vision3d.datasets.blendedmvs import BlendedMvs
from vision3d.datasets.dtu import TEST_SCANS, TRAIN_SCANS, VALIDATION_SCANS, DtuTest, DtuTraining, training_camera
from vision3d.datasets.multiview import MultiViewDataset, MVSNetFolder, View, resize_nearest, resize_view
from vision3d.datasets.posed_images import ImageFolder, PosedImages
from vision3d.datasets.tanks_and_temples import TanksAndTemples
from vision3d.datasets.toy_multiview import (
    ToyView,
    cast_rays,
    list_multiview_layouts,
    make_toy_views,
    write_dtu_training,
    write_multiview_tree,
    write_mvsnet_scene,
    write_posed_images,
)
from vision3d.errors import (
    CameraFileError,
    ConfigError,
    DisparityError,
    FileFormatError,
    ImageError,
    UnknownNameError,
    Vision3DError,
)
from vision3d.io.cameras import read_mvsnet_camera, write_mvsnet_camera, write_pairs
from vision3d.io.images import write_image
from vision3d.io.pfm import write_pfm
from vision3d.types import Camera, MultiViewSample

pytestmark = pytest.mark.filterwarnings("ignore:.*scans of dtu")

READERS = {
    "dtu_test": DtuTest,
    "blendedmvs": lambda root: BlendedMvs(root, "all"),
    "tanks_and_temples": TanksAndTemples,
    "mvsnet_folder": MVSNetFolder,
    "posed_images": PosedImages,
}


def warp(sample: MultiViewSample, source: int, depth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The source image seen from the reference view through a depth map, and where the source sees the point."""
    reference, other = sample.cameras[0], sample.cameras[source]
    height, width = depth.shape
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    rays = np.stack([columns, rows, np.ones_like(columns)], axis=-1) @ np.linalg.inv(reference.intrinsics).T
    relative = other.world_to_camera @ np.linalg.inv(reference.world_to_camera)
    points = (rays * np.nan_to_num(depth, nan=-1)[..., None]) @ relative[:3, :3].T + relative[:3, 3]
    pixels = points @ other.intrinsics.T
    place = (pixels[..., :2] / np.where(pixels[..., 2:] > 0, pixels[..., 2:], np.nan)).astype(np.float32)
    inside = np.isfinite(place).all(axis=-1) & (place > 0).all(axis=-1)
    inside &= (place < np.array([other.width, other.height]) - 1).all(axis=-1)
    image = cv2.remap(sample.images[source], np.nan_to_num(place, nan=-9), None, cv2.INTER_LINEAR)
    return image, inside


def photometric_error(sample: MultiViewSample, source: int, depth: np.ndarray) -> float:
    """Median difference, grey levels, between the reference view and a source view warped by depth."""
    image, inside = warp(sample, source, depth)
    assert inside.mean() > 0.3
    return float(np.median(np.abs(image.astype(float) - sample.images[0])[inside]))


def assert_photometric(sample: MultiViewSample, depth: np.ndarray, exact: float = 2.0) -> None:
    for source in range(1, len(sample.images)):
        good = photometric_error(sample, source, depth)
        assert good < exact
        assert good < 0.4 * photometric_error(sample, source, depth * np.float32(1.08))
        assert good < 0.4 * photometric_error(sample, source, depth * np.float32(0.92))


def assert_view(sample: MultiViewSample, views: list[ToyView], atol: float) -> None:
    for image, camera, number in zip(sample.images, sample.cameras, sample.view_ids, strict=True):
        want = views[number]
        np.testing.assert_allclose(camera.intrinsics, want.camera.intrinsics, atol=1e-9)
        np.testing.assert_allclose(camera.world_to_camera, want.camera.world_to_camera, atol=1e-9)
        assert (camera.width, camera.height) == image.shape[1::-1]
        assert np.abs(image.astype(int) - want.image).mean() <= atol


def test_scene_is_exact() -> None:
    directions = np.random.default_rng(0).normal(size=(2000, 3))
    origin = np.array([0.1, 0.05, -0.1])
    multiple, colors, normals = cast_rays(origin, directions)
    points = origin + multiple[:, None] * directions
    sphere = np.abs(np.linalg.norm(points - [0.03, -0.02, 0.68], axis=1) - 0.1) < 1e-9
    walls = (np.abs(np.abs(points - [0, -0.05, -0.1]) - [1, 0.75, 1]) < 1e-9).any(axis=1)
    assert (sphere | walls).all()
    assert 2 < sphere.sum() < 200
    assert colors.min() >= 0
    assert colors.max() <= 1
    np.testing.assert_allclose(np.linalg.norm(normals, axis=1), 1)
    assert (np.sum(normals * directions, axis=1) < 0).all()


@pytest.mark.parametrize("name", sorted(READERS))
def test_toy_trees(name: str, tmp_path: Path) -> None:
    views = write_multiview_tree(name, tmp_path)
    data = READERS[name](tmp_path)
    jpeg = name in ("dtu_test", "blendedmvs", "tanks_and_temples")
    assert len(data) == len(views) * (2 if jpeg else 1)
    assert len(set(data.scenes)) == len(data)
    for index in (0, len(data) - 1):
        sample = data[index]
        assert len(sample.images) == len(views)
        assert sample.reference_id == index % len(views)
        assert sorted(sample.source_ids) == [i for i in range(len(views)) if i != sample.reference_id]
        assert sample.scene == data.scenes[index]
        assert_view(sample, views, 3.0 if jpeg else 0.0)
        truth = views[sample.reference_id].depth
        near, far = sample.depth_range or (0, 0)
        assert 0 < near <= truth.min() * 1.3
        assert far >= truth.max() * 0.8
        assert_photometric(sample, truth, 4.0 if jpeg else 2.0)
        if name in ("dtu_test", "tanks_and_temples"):
            assert sample.depth is None
            assert not sample.valid.any()
        else:
            assert sample.depth is not None
            known = np.isfinite(sample.depth)
            np.testing.assert_array_equal(sample.depth[known], truth[known])
            assert (~known).sum() == (0 if name == "posed_images" else 6)
            assert sample.valid.sum() == known.sum()
    assert sample.unit == ("mm" if name == "dtu_test" else "unknown")
    assert data[-1].scene == data.scenes[-1]
    with pytest.raises(IndexError):
        data[len(data)]


@pytest.mark.parametrize(("cameras", "depths"), [("train", "low"), ("full", "raw"), ("range", "renamed")])
def test_dtu_training(tmp_path: Path, cameras: str, depths: str) -> None:
    views = write_dtu_training(tmp_path, 2, lights=2, cameras=cameras, depths=depths)
    data = DtuTraining(tmp_path, lights=(0, 1))
    assert data.scenes == [f"scan2/0000000{view}/{light}" for view in range(2) for light in range(2)]
    sample = data[3]
    assert (sample.view_ids, sample.unit, sample.names[0]) == ([1, 0], "mm", "rect_002_1_r5000.png")
    assert sample.images[0].mean() < data[2].images[0].mean()
    assert_view(data[0], views, 0.0)
    assert sample.depth_range == pytest.approx((425, 937.5 if cameras == "range" else 931.15))
    assert sample.depth_interval == (None if cameras == "range" else pytest.approx(2.65))
    truth = views[1].depth
    assert sample.depth is not None
    known = np.isfinite(sample.depth)
    np.testing.assert_allclose(sample.depth[known], truth[known], rtol=2e-6)
    assert sample.valid.any()
    if depths == "low":
        assert known.sum() == 128 * 160
        assert known[::4, ::4].all()  # pixel (i, j) of the low map stands for pixel (4 i, 4 j)
        np.testing.assert_array_equal(np.flatnonzero(sample.valid.any(axis=1))[0], 4 * (128 // 6))
    else:
        assert known.all()
        assert np.flatnonzero(sample.valid.any(axis=1))[0] == 1200 // 6 // 2 - 44  # the mask is halved and cropped
        assert DtuTraining(tmp_path, lights=[0], mask_level=4)[1].valid.all()
        assert photometric_error(data[2], 1, truth) < 2


def test_dtu_published_numbers() -> None:
    assert (len(TRAIN_SCANS), len(VALIDATION_SCANS), len(TEST_SCANS)) == (79, 18, 22)
    assert len({*TRAIN_SCANS, *VALIDATION_SCANS, *TEST_SCANS}) == 119
    assert 27_097 == 79 * 49 * 7
    quarter = Camera(np.array([[361.54125, 0, 82.900625], [0, 360.3975, 66.383875], [0, 0, 1]]))
    camera = training_camera(quarter)
    assert (camera.fx, camera.cx, camera.cy) == pytest.approx((1446.165, 331.6025, 265.5355))
    full = Camera(np.array([[2892.33, 0, 823.205], [0, 2883.18, 619.071], [0, 0, 1]]))
    np.testing.assert_allclose(training_camera(full).intrinsics, camera.intrinsics, atol=1e-3)
    np.testing.assert_allclose(training_camera(camera).intrinsics, camera.intrinsics)


def test_dtu_errors(tmp_path: Path) -> None:
    write_dtu_training(tmp_path, 2, lights=1, depths="low")
    with pytest.raises(ConfigError, match="lights"):
        DtuTraining(tmp_path, lights=[7])
    with pytest.raises(FileFormatError, match="no sample"):
        DtuTraining(tmp_path, "validation")
    with pytest.warns(UserWarning, match="78 scans"):
        data = DtuTraining(tmp_path, lights=[0])
    write_pfm(tmp_path / "Depths/scan2_train/depth_map_0000.pfm", np.ones((10, 10)))
    with pytest.raises(DisparityError, match="10x10"):
        data[0]
    shutil.rmtree(tmp_path / "Depths")
    with pytest.raises(FileFormatError, match="Depths_raw"):
        data[0]
    write_image(tmp_path / "Rectified/scan2_train/rect_001_0_r5000.png", np.zeros((10, 10, 3), np.uint8))
    with pytest.raises(ImageError, match="640x512"):
        data[0]
    shutil.rmtree(tmp_path / "Cameras/train")
    with pytest.raises(CameraFileError, match="Cameras"):
        data[1]


def test_blendedmvs_rules(tmp_path: Path) -> None:
    views = write_multiview_tree("blendedmvs", tmp_path)
    train = BlendedMvs(tmp_path)
    assert {scene.split("/")[0] for scene in train.scenes} == {"5a3ca9cb270f0e3f14d0eddb"}
    assert BlendedMvs(tmp_path, "val").scenes[0].startswith("5b7a3890fc8fcf6781e2593a/")
    assert len(BlendedMvs(tmp_path, scene_list=tmp_path / "BlendedMVS_list.txt")) == 8
    assert BlendedMvs(tmp_path, masked=True)[0].images[0].mean() < 0.6 * train[0].images[0].mean()
    scaled = BlendedMvs(tmp_path, normalize=100)[1]
    least = min(0.95 * float(view.depth.min()) for view in views)
    factor = 100 / least
    assert scaled.depth is not None
    np.testing.assert_allclose(np.nanmin(scaled.depth), np.nanmin(train[1].depth) * factor, rtol=1e-6)
    assert scaled.depth_range is not None
    assert scaled.depth_range[0] >= 100 - 1e-9
    assert scaled.depth_interval == pytest.approx(train[1].depth_interval * factor)
    assert photometric_error(scaled, 1, views[1].depth * factor) < 4
    scene = tmp_path / "5a3ca9cb270f0e3f14d0eddb"
    write_mvsnet_camera(scene / "cams/00000002_cam.txt", views[2].camera, [-0.1, 0.01, 100, 0.9])
    write_pfm(scene / "rendered_depth_maps/00000003.pfm", np.full(views[0].depth.shape, np.nan))
    assert [name[-1] for name in BlendedMvs(tmp_path).scenes] == ["0", "1", "3"]
    assert [name[-1] for name in BlendedMvs(tmp_path, check="maps").scenes] == ["0", "1"]
    everything = BlendedMvs(tmp_path, check="none")
    assert len(everything) == 4
    assert not everything[2].valid.any()
    nested = tmp_path / "high/5a3ca9cb270f0e3f14d0eddb/5a3ca9cb270f0e3f14d0eddb"
    shutil.copytree(scene, nested / "5a3ca9cb270f0e3f14d0eddb")
    assert len(BlendedMvs(tmp_path / "high")) == 3
    (scene / "rendered_depth_maps/00000000.pfm").unlink()
    with pytest.raises(FileFormatError, match="no such file"):
        BlendedMvs(tmp_path)[0]
    for options in ({"check": "all"}, {"normalize": -1}):
        with pytest.raises(ConfigError):
            BlendedMvs(tmp_path, **options)  # type: ignore[arg-type]


def test_tanks_cameras(tmp_path: Path) -> None:
    views = write_multiview_tree("tanks_and_temples", tmp_path)
    data = TanksAndTemples(tmp_path, "intermediate")
    assert data.scenes[0] == "intermediate/Family/00000000"
    assert data[0].depth_range == (0.5, 1.5)  # the short range comes first
    assert TanksAndTemples(tmp_path, cameras="range")[0].depth_interval is None
    assert TanksAndTemples(tmp_path, cameras="long")[0].depth_interval is not None
    assert len(TanksAndTemples(tmp_path / "advanced", "advanced")) == 4
    for pose, view in zip(data.read_trajectory("intermediate/Family"), views, strict=True):
        np.testing.assert_allclose(pose, view.camera.world_to_camera, atol=1e-9)
    write_pairs(tmp_path / "intermediate/Family/pair.txt", {0: [(1, 2.0)], 1: [(0, 2.0), (2, 1.0)], 2: []})
    assert TanksAndTemples(tmp_path, "intermediate").scenes == ["intermediate/Family/00000001"]
    with pytest.raises(FileFormatError, match="cams_museum"):
        TanksAndTemples(tmp_path, "advanced", cameras="short")
    with pytest.raises(ConfigError, match="cameras"):
        TanksAndTemples(tmp_path, cameras="best")
    with pytest.raises(ConfigError, match="split 'train'"):
        TanksAndTemples(tmp_path, "train")


def test_options_of_all(tmp_path: Path) -> None:
    views = write_multiview_tree("mvsnet_folder", tmp_path, 6)
    assert [len(MVSNetFolder(tmp_path, views=count)[0].images) for count in (1, 3, 50)] == [1, 3, 6]
    assert len(MVSNetFolder(tmp_path, views=None)[0].images) == 6
    random = MVSNetFolder(tmp_path, views=3, source_choice="random", seed=1)
    first = [random[index].source_ids for index in range(6)]
    assert first == [random[index].source_ids for index in range(6)]
    random.epoch = 1
    assert first != [random[index].source_ids for index in range(6)]
    small = MVSNetFolder(tmp_path, size=(48, 40), unit="mm")[0]
    assert small.images[1].shape == (40, 48, 3)
    assert small.depth is not None
    assert small.depth.shape == (40, 48)
    assert small.cameras[0].fy == pytest.approx(views[0].camera.fy * 40 / 72)
    assert small.unit == "mm"
    assert photometric_error(small, 1, small.depth) < 3
    with pytest.raises(FileFormatError, match="no sample"):
        MVSNetFolder(tmp_path, min_sources=6)
    for options in ({"views": 0}, {"size": (0, 4)}, {"source_choice": "worst"}):
        with pytest.raises(ConfigError):
            MVSNetFolder(tmp_path, **options)
    with pytest.raises(FileFormatError, match="no such folder"):
        MVSNetFolder(tmp_path / "none")
    with pytest.raises(UnknownNameError, match="layout"):
        write_multiview_tree("dtux", tmp_path)
    assert "dtu" in list_multiview_layouts()


def test_resizing_is_exact_where_it_can_be() -> None:
    values = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(resize_nearest(values, 4, 3), values)
    np.testing.assert_array_equal(resize_nearest(values, 12, 9)[1::3, 1::3], values)
    (view,) = make_toy_views(1)
    half = resize_view(View(view.image, view.camera, "x"), 48, 36)
    assert half.camera is not None
    # The centre of a block of 2 x 2 pixels lies half a pixel off the first one.
    point = np.linalg.inv(half.camera.intrinsics) @ [10, 7, 1]
    np.testing.assert_allclose(view.camera.intrinsics @ point, [20.5, 14.5, 1])
    cropped = view.camera.cropped(5, 3, 40, 30)
    np.testing.assert_allclose(cropped.intrinsics @ point, [15.5, 11.5, 1])


@pytest.mark.parametrize("form", ["colmap", "colmap_text", "transforms", "json"])
def test_posed_images(tmp_path: Path, form: str) -> None:
    views = write_posed_images(tmp_path, form)
    data = PosedImages(tmp_path)
    sample = data[1]
    assert_view(sample, views, 0.0)
    assert_photometric(sample, views[1].depth)
    assert sample.unit == ("m" if form == "json" else "unknown")
    if form == "json":
        assert sample.depth_range == (0.4, 2.0)
    elif form == "transforms":
        assert sample.depth_range is None
        assert sample.depth is None
    else:
        np.testing.assert_array_equal(sample.depth, views[1].depth)
        assert sample.depth_range is not None
        assert 0.7 < sample.depth_range[0] / views[1].depth.min() < 0.9
        assert 1.1 < sample.depth_range[1] / views[1].depth.max() < 1.3
    assert PosedImages(tmp_path, unit="mm")[0].unit == "mm"


def test_distortion_is_taken_off(tmp_path: Path) -> None:
    from dataclasses import replace

    from vision3d.io.camera_json import read_cameras_json, write_cameras_json

    views = write_posed_images(tmp_path, "json")
    images, _ = read_cameras_json(tmp_path / "cameras.json")
    coefficients = np.array([0.6, -0.3, 0.01, -0.01])
    for image, view in zip(images, views, strict=True):
        # Distort the picture: pixel p of the distorted image shows the ray that OpenCV finds for p.
        height, width = view.depth.shape
        grid = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).reshape(-1, 1, 2).astype(np.float64)
        matrix = view.camera.intrinsics
        straight = cv2.undistortPoints(grid, matrix, coefficients, P=matrix).reshape(height, width, 2)
        picture = cv2.remap(
            view.image, straight.astype(np.float32), None, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT
        )
        write_image(tmp_path / image.name, picture)
    bent = [replace(image, camera=replace(image.camera, distortion=coefficients)) for image in images]
    write_cameras_json(tmp_path / "cameras.json", bent)
    inner = (slice(8, -8), slice(8, -8))
    difference = {}
    for treatment in ("undistort", "ignore"):
        sample = PosedImages(tmp_path, distortion=treatment)[0]  # type: ignore[arg-type]
        assert sample.cameras[0].distortion is None
        difference[treatment] = np.abs(sample.images[0].astype(float) - views[0].image)[inner].mean()
    assert difference["undistort"] < 3 < difference["ignore"]
    with pytest.raises(CameraFileError, match="undistort"):
        PosedImages(tmp_path, distortion="refuse")[0]
    with pytest.raises(ConfigError, match="distortion"):
        PosedImages(tmp_path, distortion="drop")  # type: ignore[arg-type]


def test_posed_images_errors(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no poses"):
        PosedImages(tmp_path)
    write_posed_images(tmp_path, "colmap")
    data = PosedImages(tmp_path, poses="colmap")
    with pytest.raises(FileFormatError, match="no poses"):
        PosedImages(tmp_path, poses="json")
    with pytest.raises(ConfigError, match="choose auto"):
        PosedImages(tmp_path, poses="bundler")  # type: ignore[arg-type]
    write_image(tmp_path / "images/0000.png", np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(ImageError, match="4x4"):
        data[0]
    (tmp_path / "images/0000.png").unlink()
    with pytest.raises(ImageError, match="the poses name it"):
        data[0]
    shutil.rmtree(tmp_path / "images")
    with pytest.raises(ImageError, match="no such image"):
        PosedImages(tmp_path)[1]


def test_images_without_poses(tmp_path: Path) -> None:
    views = write_multiview_tree("image_folder", tmp_path, 5)
    data = ImageFolder(tmp_path, views=3)
    assert [data[index].view_ids for index in range(5)] == [[0, 1, 2], [1, 0, 2], [2, 1, 3], [3, 2, 4], [4, 3, 2]]
    sample = ImageFolder(tmp_path / "images", views=None)[0]
    assert sample.cameras == []
    assert sample.names == [f"000{index}.png" for index in range(5)]
    np.testing.assert_array_equal(sample.images[4], views[4].image)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileFormatError, match="no sample"):
        ImageFolder(tmp_path / "empty")


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda root: (root / "pair.txt").unlink(), FileFormatError),
        (lambda root: (root / "pair.txt").write_text("4\n0\n"), CameraFileError),
        (lambda root: (root / "images/00000001.png").unlink(), ImageError),
        (lambda root: (root / "cams/00000001_cam.txt").unlink(), CameraFileError),
        (lambda root: shutil.rmtree(root / "cams"), FileFormatError),
        (lambda root: (root / "cams/00000000_cam.txt").write_text("extrinsic\n1 2"), CameraFileError),
        (lambda root: (root / "images/00000000.png").write_bytes(b"\x89PNG"), ImageError),
        (lambda root: (root / "depths/00000000.pfm").write_bytes(b"Pf\n96 72\n-1\n1234"), DisparityError),
        (lambda root: (root / "depths/00000000.pfm").write_bytes(b"Pf\n99999 99999\n-1\n1234"), DisparityError),
        (lambda root: write_pfm(root / "depths/00000000.pfm", np.ones((72, 95))), DisparityError),
        (lambda root: write_pfm(root / "depths/00000000.pfm", np.ones((72, 96, 3))), DisparityError),
    ],
)
def test_bad_scenes(tmp_path: Path, damage: object, error: type[Vision3DError]) -> None:
    write_multiview_tree("mvsnet_folder", tmp_path)
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(error) as caught:
        MVSNetFolder(tmp_path)[0]
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_invalid_depth_codes(tmp_path: Path) -> None:
    views = make_toy_views(2)
    depth = views[0].depth.copy()
    depth[0, :4] = [0, np.inf, np.nan, -1]
    write_mvsnet_scene(tmp_path, views, numbers=4)
    write_pfm(tmp_path / "depths/00000000.pfm", depth)
    sample = MVSNetFolder(tmp_path)[0]
    assert sample.depth is not None
    assert np.isnan(sample.depth[0, :4]).all()
    assert np.isfinite(sample.depth[1:]).all()


def test_base_class_is_abstract(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError):
        MultiViewDataset(tmp_path, "all")


@pytest.mark.real
def test_real_sceaux(shared: Path) -> None:
    data = MVSNetFolder(shared / "data/mvs_sample/sceaux", views=2)
    assert len(data) == 10
    assert [data[index].depth is not None for index in range(5)] == [True] * 4 + [False]
    sample = data[0]
    assert (sample.view_ids, sample.images[0].shape) == ([0, 1], (480, 640, 3))
    assert 0.55 < sample.valid.mean() < 0.61  # the README: 40 to 45 % of the pixels have no surface
    assert sample.depth is not None
    errors = {}
    for factor in (1.0, 1.03, 0.97):  # the README's figures: 19.6 against 30.0 and 30.9 grey levels
        image, inside = warp(sample, 1, sample.depth * np.float32(factor))
        errors[factor] = np.abs(image.astype(float) - sample.images[0])[inside].mean()
    assert errors[1.0] == pytest.approx(19.6, abs=1.0)
    assert errors[1.03] > 28
    assert errors[0.97] > 28
    # The same scene through its COLMAP model: same cameras, and the order of the best sources of pair.txt.
    colmap = PosedImages(shared / "data/mvs_sample/sceaux", views=3, margin=(1, 1))
    for index in range(10):
        ours, theirs = colmap[index], data[index]
        np.testing.assert_allclose(ours.cameras[0].intrinsics, theirs.cameras[0].intrinsics, atol=1e-5)
        np.testing.assert_allclose(ours.cameras[0].world_to_camera, theirs.cameras[0].world_to_camera, atol=1e-7)
        assert ours.depth_range == pytest.approx(theirs.depth_range, rel=0.12)
        assert theirs.source_ids[0] in ours.source_ids


@pytest.mark.real
def test_real_dino_and_table(shared: Path) -> None:
    root = shared / "data/mvs_sample"
    dino = MVSNetFolder(root / "dino_sparse_ring", views=None, unit="m")
    assert len(dino) == 16
    assert dino[0].images[0].shape == (480, 640, 3)
    box = np.array([[-0.061897, -0.018874, -0.057845], [0.010897, 0.068227, 0.015495]])
    corners = np.array([[box[i, 0], box[j, 1], box[k, 2], 1] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
    for index in range(16):
        sample = dino[index] if index < 2 else None
        camera = read_mvsnet_camera(root / f"dino_sparse_ring/cams/{index:08d}_cam.txt")
        depths = corners @ camera.camera.world_to_camera[2]
        assert camera.depth_range is not None
        assert camera.depth_range[0] < depths.min()
        assert camera.depth_range[1] > depths.max()
        if sample is not None:
            # The object (brighter than 0.19, as the README says) projects into the box of the corners.
            pixels = (corners @ camera.camera.world_to_camera[:3].T) @ camera.camera.intrinsics.T
            low, high = (pixels[:, :2] / pixels[:, 2:]).min(axis=0), (pixels[:, :2] / pixels[:, 2:]).max(axis=0)
            rows, columns = np.nonzero(sample.images[0].mean(axis=2) > 0.3 * 255)
            inside = (columns > low[0]) & (columns < high[0]) & (rows > low[1]) & (rows < high[1])
            assert inside.mean() > 0.95
    parameters = root / "dino_sparse_ring/dinoSR_par.txt"
    with pytest.raises(ImageError, match="dinoSR0001"):  # the sample renames the images
        PosedImages(root / "dino_sparse_ring", poses="middlebury", poses_file=parameters)[0]
    table = MVSNetFolder(root / "rmvd_sample", views=7)
    assert len(table) == 7
    assert table[0].view_ids == [0, 1, 2, 3, 4, 6, 5]
    assert table[0].depth_range == (0.45, 1.6)
    assert all(image.shape == (360, 640, 3) for image in table[0].images)


@pytest.mark.real
def test_real_sequences(shared: Path) -> None:
    room = PosedImages(shared / "data/nerf_sample/room16", views=None)
    assert len(room) == 16
    sample = room[4]
    assert sample.depth is not None
    assert 0.8 < np.isfinite(sample.depth).mean() < 0.85  # the window has no depth
    assert np.nanmax(sample.depth) < 6
    source = sample.view_ids.index(7)
    # The README's figures for frames 4 to 7: 0.4 of 255 against 8.7 without warping.
    assert photometric_error(sample, source, sample.depth) < 1
    assert np.median(np.abs(sample.images[source].astype(float) - sample.images[0])) > 5
    assert set(sample.source_ids[:2]) <= {2, 3, 5, 6}
    fox = PosedImages(shared / "data/nerf_sample/fox12", views=3)
    assert len(fox) == 12
    assert (fox[0].cameras[0].fx, fox[0].images[0].shape) == (pytest.approx(343.75, abs=0.01), (480, 270, 3))
    frames = ImageFolder(shared / "data/nerf_sample/fox12", views=None)
    assert len(frames[0].images) == 12


def test_no_warnings_with_explicit_forms(tmp_path: Path) -> None:
    views = make_toy_views(2)
    write_mvsnet_scene(tmp_path, views, numbers=-2)
    with pytest.warns(UserWarning, match="interval"):
        MVSNetFolder(tmp_path)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample = MVSNetFolder(tmp_path, depth_line="interval")[0]
    assert sample.depth_range is not None
    assert sample.depth_range[1] == pytest.approx(1.05 * float(views[0].depth.max()))
