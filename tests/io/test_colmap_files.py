# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from vision3d.errors import CameraFileError, DisparityError, InputError
from vision3d.io.colmap import (
    CAMERA_MODELS,
    MODEL_SIZES,
    ColmapCamera,
    ColmapImage,
    ColmapModel,
    ColmapPoints,
    camera_from_colmap,
    colmap_from_camera,
    empty_points,
    find_colmap_model,
    quaternion_from_rotation,
    read_colmap,
    read_colmap_depth,
    rotation_from_quaternion,
    write_colmap,
    write_colmap_depth,
)
from vision3d.types import Camera

PARAMS = {
    "SIMPLE_PINHOLE": [500, 320, 240],
    "PINHOLE": [500, 510, 320, 240.5],
    "SIMPLE_RADIAL": [500, 320, 240, 0.05],
    "RADIAL": [500, 320, 240, 0.05, -0.01],
    "OPENCV": [500, 510, 320, 240, 0.05, -0.01, 0.001, -0.002],
    "FULL_OPENCV": [500, 510, 320, 240, 0.05, -0.01, 0.001, -0.002, 0.003, 0.01, 0.002, 0.001],
}


def make_model(count: int = 3, points: int = 5) -> ColmapModel:
    random = np.random.default_rng(0)
    cameras = {
        number + 1: ColmapCamera(model, 640, 480, np.array(params, dtype=np.float64))
        for number, (model, params) in enumerate(PARAMS.items())
    }
    images = {}
    for index in range(count):
        quaternion = quaternion_from_rotation(Rotation.random(random_state=index).as_matrix())
        observed = points if index != 1 else 0  # an image without observations
        images[index * 3 + 2] = ColmapImage(
            name=f"folder a/image {index}.jpg",
            camera_id=index % len(cameras) + 1,
            quaternion=quaternion,
            translation=random.normal(size=3),
            points2d=random.uniform(0, 480, (observed, 2)),
            point_ids=np.where(np.arange(observed) == 2, -1, np.arange(observed) + 1).astype(np.int64),
        )
    tracks = [np.array([[2, row], [8, row]], dtype=np.int32) for row in range(points)]
    if points:
        tracks[2] = np.zeros((0, 2), dtype=np.int32)
    cloud = ColmapPoints(
        np.arange(points) + 1,
        random.normal(size=(points, 3)),
        random.integers(0, 256, (points, 3), dtype=np.uint8),
        random.uniform(size=points),
        tracks,
    )
    return ColmapModel(cameras, images, cloud)


def assert_equal(have: ColmapModel, want: ColmapModel) -> None:
    assert have.cameras.keys() == want.cameras.keys()
    assert have.images.keys() == want.images.keys()
    for identity, camera in want.cameras.items():
        found = have.cameras[identity]
        assert (found.model, found.width, found.height) == (camera.model, camera.width, camera.height)
        np.testing.assert_array_equal(found.params, camera.params)
    for identity, image in want.images.items():
        found_image = have.images[identity]
        assert (found_image.name, found_image.camera_id) == (image.name, image.camera_id)
        for key in ("quaternion", "translation", "points2d", "point_ids"):
            np.testing.assert_array_equal(getattr(found_image, key), getattr(image, key))
    for key in ("ids", "positions", "colors", "errors"):
        np.testing.assert_array_equal(getattr(have.points, key), getattr(want.points, key))
    for found_track, track in zip(have.points.tracks, want.points.tracks, strict=True):
        np.testing.assert_array_equal(found_track, track)


@pytest.mark.parametrize("binary", [True, False])
def test_round_trip(tmp_path: Path, binary: bool) -> None:
    model = make_model()
    write_colmap(tmp_path, model, binary=binary)
    assert_equal(read_colmap(tmp_path), model)
    write_colmap(tmp_path, replace(model, points=empty_points()), binary=binary)
    assert len(read_colmap(tmp_path).points) == 0


@pytest.mark.parametrize("binary", [True, False])
def test_files_of_pycolmap(tmp_path: Path, binary: bool) -> None:
    """COLMAP's own library reads what is written here, and writes what is read here."""
    pycolmap = pytest.importorskip("pycolmap")
    folders = [tmp_path / name for name in ("ours", "theirs")]
    for folder in folders:
        folder.mkdir()
    model = make_model(points=0)
    if not binary:  # pycolmap cuts names at the first blank of its text files
        images = {key: replace(image, name=image.name.replace(" ", "_")) for key, image in model.images.items()}
        model = replace(model, images=images)
    write_colmap(folders[0], model, binary=binary)
    theirs = pycolmap.Reconstruction(str(folders[0]))
    (theirs.write_binary if binary else theirs.write_text)(str(folders[1]))
    found = read_colmap(folders[1])
    assert found.images.keys() == model.images.keys()
    for identity, image in model.images.items():
        assert found.images[identity].name == image.name
        pose = np.eye(4)
        pose[:3] = theirs.image(identity).cam_from_world().matrix()
        np.testing.assert_allclose(found.images[identity].world_to_camera, pose, atol=1e-12)
        np.testing.assert_allclose(image.world_to_camera, pose, atol=1e-12)
    for identity, camera in model.cameras.items():
        assert found.cameras[identity].model == camera.model
        np.testing.assert_allclose(found.cameras[identity].params, camera.params)


@pytest.mark.parametrize("model", list(PARAMS))
def test_projection_equals_pycolmap(model: str) -> None:
    """Our camera, through OpenCV, projects to the pixel of COLMAP's own model, half a pixel apart."""
    pycolmap = pytest.importorskip("pycolmap")
    cv2 = pytest.importorskip("cv2")
    row = ColmapCamera(model, 640, 480, np.array(PARAMS[model], dtype=np.float64))
    camera = camera_from_colmap("x", row)
    points = np.random.default_rng(0).uniform([-0.5, -0.4, 1], [0.5, 0.4, 1], (50, 3))
    theirs = pycolmap.Camera(model=model, width=640, height=480, params=row.params).img_from_cam(points)
    ours = cv2.projectPoints(points, np.zeros(3), np.zeros(3), camera.intrinsics, camera.distortion)[0][:, 0]
    np.testing.assert_allclose(ours, theirs - 0.5, atol=1e-9)


def test_depth_map_of_pycolmap(tmp_path: Path) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    depth = np.random.default_rng(0).uniform(1, 9, (5, 7)).astype(np.float32)
    pycolmap.DepthMap.from_array(depth, 1.0, 9.0).write(str(tmp_path / "a.bin"))
    np.testing.assert_array_equal(read_colmap_depth(tmp_path / "a.bin"), depth)
    write_colmap_depth(tmp_path / "b.bin", depth)
    theirs = pycolmap.DepthMap()
    theirs.read(str(tmp_path / "b.bin"))
    np.testing.assert_array_equal(theirs.to_array(), depth)


def test_distortion_options() -> None:
    row = ColmapCamera("RADIAL", 640, 480, np.array(PARAMS["RADIAL"], dtype=np.float64))
    np.testing.assert_array_equal(camera_from_colmap("x", row).distortion, [0.05, -0.01, 0, 0])
    assert camera_from_colmap("x", row, distortion="ignore").distortion is None
    with pytest.raises(CameraFileError, match="undistort"):
        camera_from_colmap("x", row, distortion="refuse")
    with pytest.raises(InputError, match="distortion"):
        camera_from_colmap("x", row, distortion="drop")  # type: ignore[arg-type]
    straight = replace(row, params=np.array([500.0, 320, 240, 0, 0]))
    assert camera_from_colmap("x", straight, distortion="refuse").cx == 319.5
    for name in ("OPENCV_FISHEYE", "FOV", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE", "THIN_PRISM_FISHEYE"):
        with pytest.raises(CameraFileError, match="no pinhole"):
            camera_from_colmap("x", ColmapCamera(name, 640, 480, np.ones(MODEL_SIZES[name])))


def test_own_cameras_become_rows() -> None:
    intrinsics = np.array([[500.0, 0, 319.5], [0, 510, 240], [0, 0, 1]])
    for coefficients in (None, [0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4, 0.5]):
        camera = Camera(intrinsics, 640, 480, None if coefficients is None else np.array(coefficients))
        back = camera_from_colmap("x", colmap_from_camera(camera))
        np.testing.assert_allclose(back.intrinsics, intrinsics)
        if coefficients is None:
            assert back.distortion is None
        else:
            np.testing.assert_array_equal(back.distortion, coefficients)
    with pytest.raises(InputError, match="size"):
        colmap_from_camera(Camera(intrinsics))


def test_quaternions_equal_scipy() -> None:
    for seed in range(20):
        rotation = Rotation.random(random_state=seed)
        quaternion = quaternion_from_rotation(rotation.as_matrix())
        assert quaternion[0] >= 0
        np.testing.assert_allclose(rotation_from_quaternion(quaternion * 1.001), rotation.as_matrix(), atol=1e-12)


def test_where_models_lie(tmp_path: Path) -> None:
    assert find_colmap_model(tmp_path) is None
    (tmp_path / "sparse/0").mkdir(parents=True)
    write_colmap(tmp_path / "sparse/0", make_model())
    assert find_colmap_model(tmp_path) == tmp_path / "sparse/0"
    (tmp_path / "sparse/0/points3D.bin").unlink()
    (tmp_path / "sparse/0/rigs.bin").write_bytes(b"ignored")
    assert len(read_colmap(tmp_path / "sparse/0").points) == 0
    with pytest.raises(CameraFileError, match="no COLMAP model"):
        read_colmap(tmp_path)


@pytest.mark.parametrize("name", ["cameras", "images", "points3D"])
def test_truncated_binary(tmp_path: Path, name: str) -> None:
    write_colmap(tmp_path, make_model())
    content = (tmp_path / f"{name}.bin").read_bytes()
    for length in range(0, len(content), 7):
        (tmp_path / f"{name}.bin").write_bytes(content[:length])
        with pytest.raises(CameraFileError):
            read_colmap(tmp_path)
    (tmp_path / f"{name}.bin").write_bytes(content + b"x")
    with pytest.raises(CameraFileError, match="follow"):
        read_colmap(tmp_path)
    for count in (1 << 40, (1 << 64) - 1):  # an absurd count must not allocate
        (tmp_path / f"{name}.bin").write_bytes(struct.pack("<Q", count) + content[8:])
        with pytest.raises(CameraFileError, match="claims"):
            read_colmap(tmp_path)


def test_damaged_binary(tmp_path: Path) -> None:
    good = make_model()
    first = good.images[2]
    for model, words in (
        (replace(good, images={2: replace(first, quaternion=np.zeros(4))}), "quaternion"),
        (replace(good, images={2: replace(first, translation=np.full(3, np.nan))}), "translation"),
        (replace(good, images={2: replace(first, camera_id=77)}), "uses camera 77"),
        (replace(good, images={2: replace(first, name="")}), "no name"),
        (replace(good, cameras={1: ColmapCamera("PINHOLE", 0, 480, np.ones(4))}), "image size"),
        (replace(good, cameras={1: ColmapCamera("PINHOLE", 640, 480, np.full(4, np.nan))}), "finite"),
        (replace(good, points=replace(good.points, positions=np.full((5, 3), np.inf))), "position"),
    ):
        for binary in (True, False):
            folder = tmp_path / ("binary" if binary else "text")
            folder.mkdir(exist_ok=True)
            write_colmap(folder, model, binary=binary)
            with pytest.raises(CameraFileError):
                read_colmap(folder)
        with pytest.raises(CameraFileError, match=words):
            read_colmap(tmp_path / "binary")
    assert max(CAMERA_MODELS) == 10
    (tmp_path / "binary/cameras.bin").write_bytes(struct.pack("<QiiQQ", 1, 1, 55, 4, 4) + bytes(64))
    with pytest.raises(CameraFileError, match="unknown model 55"):
        read_colmap(tmp_path / "binary")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("cameras", "1 PINHOLE 640 480 1 2 3", "finite parameters"),
        ("cameras", "1 RATIONAL 640 480 1 2 3 4", "known model"),
        ("cameras", "1 PINHOLE 640 480 1 2 3 nan", "NaN"),
        ("cameras", "1 PINHOLE 640.5 480 1 2 3 4", "whole number"),
        ("images", "1 1 0 0 0 0 0 0 1\n\n", "words"),
        ("images", "1 1 0 0 0 0 0 0 1 a.png\n1 2\n", "triples"),
        ("images", f"{1 << 70} 1 0 0 0 0 0 0 1 a.png\n\n", "64 bits"),
        ("points3D", "1 0 0 0 1 2 3", "ID X Y Z"),
        ("points3D", "1 0 0 0 1 2 300 0.5", "colours"),
        ("points3D", f"1 0 0 0 1 2 30 0.5 {1 << 40} 2", "31 bits"),
    ],
)
def test_damaged_text(tmp_path: Path, name: str, text: str, words: str) -> None:
    write_colmap(tmp_path, make_model(), binary=False)
    (tmp_path / f"{name}.txt").write_text(text)
    with pytest.raises(CameraFileError, match=words):
        read_colmap(tmp_path)


def test_depth_maps(tmp_path: Path) -> None:
    depth = np.array([[1, np.nan, 3], [4, 5, 6.5]], dtype=np.float32)
    write_colmap_depth(tmp_path / "a.bin", depth)
    np.testing.assert_array_equal(read_colmap_depth(tmp_path / "a.bin"), depth)
    content = (tmp_path / "a.bin").read_bytes()
    assert content.startswith(b"3&2&1&")
    cases = (content[:-1], b"3&2&3&" + content[6:], b"9999999999&9999999999&1&", b"P5", b"0&0&1&", b"3&x&1&", b"")
    for bad in cases:
        (tmp_path / "b.bin").write_bytes(bad)
        with pytest.raises(DisparityError):
            read_colmap_depth(tmp_path / "b.bin")
    with pytest.raises(InputError):
        write_colmap_depth(tmp_path / "c.bin", np.zeros((2, 2, 2)))


@pytest.mark.real
def test_real_models(shared: Path, tmp_path: Path) -> None:
    from vision3d.io.cameras import read_mvsnet_camera

    root = shared / "data/mvs_sample/sceaux"
    model = read_colmap(root / "sparse")
    assert (len(model.cameras), len(model.images), len(model.points)) == (1, 10, 2244)
    assert set(model.points.errors) == {0.5}
    for identity, image in model.images.items():
        camera = camera_from_colmap(root, model.cameras[image.camera_id], image.world_to_camera, "refuse")
        expected = read_mvsnet_camera(root / f"cams/{image.name[:-4]}_cam.txt", "range").camera
        assert image.name == f"{identity - 1:08d}.jpg"
        np.testing.assert_allclose(camera.intrinsics, expected.intrinsics, atol=1e-5)
        np.testing.assert_allclose(camera.world_to_camera, expected.world_to_camera, atol=1e-7)
        # The observations are projections of the points (README), so they reproject exactly.
        # Two of them name points that the file lacks.
        known = np.isin(image.point_ids, model.points.ids)
        assert (~known).sum() == {5: 1, 8: 1}.get(identity, 0)
        rows = np.searchsorted(model.points.ids, image.point_ids[known])
        world = np.c_[model.points.positions[rows], np.ones(len(rows))]
        pixels = (camera.world_to_camera @ world.T)[:3].T @ camera.intrinsics.T
        assert np.abs(pixels[:, :2] / pixels[:, 2:] + 0.5 - image.points2d[known]).max() < 0.006
    write_colmap(tmp_path, model)
    assert_equal(read_colmap(tmp_path), model)
    for name, count in (("room16", 16), ("fox12", 12)):
        model = read_colmap(shared / "data/nerf_sample" / name / "sparse")
        poses = np.load(shared / "data/nerf_sample" / name / "poses.npz")
        assert len(model.images) == count
        for image, camera_to_world in zip(model.images.values(), poses["c2w_opencv"], strict=True):
            np.testing.assert_allclose(image.world_to_camera @ camera_to_world, np.eye(4), atol=1e-5)
        camera = camera_from_colmap("x", model.cameras[1])
        assert (camera.width, camera.height) == (int(poses["width"]), int(poses["height"]))
        np.testing.assert_allclose(camera.fx, poses["K"][0, 0], atol=1e-5)
