# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from vision3d.errors import CameraFileError, InputError, OutputError
from vision3d.io.camera_json import (
    PosedImage,
    read_cameras_json,
    read_transforms,
    write_cameras_json,
    write_transforms,
)
from vision3d.io.cameras import (
    read_middlebury_parameters,
    read_mvsnet_camera,
    read_pairs,
    read_trajectory_log,
    write_mvsnet_camera,
    write_pairs,
    write_trajectory_log,
)
from vision3d.types import Camera

CAM = """extrinsic
0.970263 0.00747983 0.241939 -191.02
-0.0147429 0.999493 0.0282234 3.28832
-0.241605 -0.030951 0.969881 22.5401
0.0 0.0 0.0 1.0

intrinsic
361.54125 0.0 82.900625
0.0 360.3975 66.383875
0.0 0.0 1.0

{}
"""


def pose(seed: int = 0) -> np.ndarray:
    matrix = np.eye(4)
    matrix[:3, :3] = Rotation.random(random_state=seed).as_matrix()
    matrix[:3, 3] = np.random.default_rng(seed).normal(size=3) * 10
    return matrix


def camera(seed: int = 0, distortion: np.ndarray | None = None) -> Camera:
    intrinsics = np.array([[500.25 + seed, 0, 319.75], [0, 501.5, 239.125], [0, 0, 1]])
    return Camera(intrinsics, 640, 480, distortion, pose(seed))


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("line", "form", "expected"),
    [
        ("425.0 2.5", "interval", (425, 902.5, 2.5, 192)),
        ("425.0 937.5", "auto", (425, 937.5, None, None)),
        ("0.367867 6.127867", "range", (0.367867, 6.127867, None, None)),
        ("425 2.5 256", "auto", (425, 1062.5, 2.5, 256)),
        ("0.367867 0.00391897 730 3.22871", "auto", (0.367867, 3.22871, 0.00391897, 730)),
        ("0.367867 0.00391897 730.25 3.22871 ", "range", (0.367867, 3.22871, 0.00391897, 730.25)),
    ],
)
def test_depth_line_forms(tmp_path: Path, line: str, form: str, expected: tuple[float | None, ...]) -> None:
    file = write(tmp_path / "cam.txt", CAM.format(line))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_mvsnet_camera(file, form, image_size=(160, 128))  # type: ignore[arg-type]
    assert (found.depth_min, found.depth_interval, found.depth_planes) == (expected[0], *expected[2:])
    assert found.depth_max == pytest.approx(expected[1])
    assert found.depth_range == (found.depth_min, found.depth_max)
    assert (found.camera.fx, found.camera.cy, found.camera.width) == (361.54125, 66.383875, 160)
    assert found.camera.world_to_camera[0, 3] == -191.02


def test_interval_options_and_warning(tmp_path: Path) -> None:
    file = write(tmp_path / "cam.txt", CAM.format("425.0 2.5"))
    with pytest.warns(UserWarning, match="interval"):
        found = read_mvsnet_camera(file, interval_scale=1.06)
    assert found.depth_max == pytest.approx(931.15)  # the published end of MVSNet's DTU sweep
    assert read_mvsnet_camera(file, "interval", planes=2).depth_max == 427.5
    with pytest.raises(InputError, match="depth_line"):
        read_mvsnet_camera(file, "planes")  # type: ignore[arg-type]
    file = write(tmp_path / "cam.txt", CAM.format("-0.5 0.1 10 0.5"))
    assert read_mvsnet_camera(file).depth_range is None


def test_white_space_does_not_matter(tmp_path: Path) -> None:
    text = CAM.format("425.0 937.5")
    reference = read_mvsnet_camera(write(tmp_path / "a.txt", text))
    for variant in (
        text.replace("\n", " \r\n"),
        text.replace("\n\n", "\n").rstrip(),
        "\ufeff" + text.replace("\n", "\n\n"),
    ):
        found = read_mvsnet_camera(write(tmp_path / "b.txt", variant))
        np.testing.assert_array_equal(found.camera.world_to_camera, reference.camera.world_to_camera)
        assert found.depth_range == (425, 937.5)


@pytest.mark.parametrize("numbers", [(425.0, 2.5), (0.1, 7.25), (1.0, 0.5, 10), (0.3, 0.1, 9.5, 1.2)])
def test_mvsnet_round_trip(tmp_path: Path, numbers: tuple[float, ...]) -> None:
    write_mvsnet_camera(tmp_path / "c.txt", camera(3), numbers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = read_mvsnet_camera(tmp_path / "c.txt")
    np.testing.assert_array_equal(found.camera.intrinsics, camera(3).intrinsics)
    np.testing.assert_array_equal(found.camera.world_to_camera, camera(3).world_to_camera)
    with pytest.raises(InputError, match="got 1"):
        write_mvsnet_camera(tmp_path / "c.txt", camera(), [1.0])
    with pytest.raises(OutputError):
        write_mvsnet_camera(tmp_path / "none/c.txt", camera(), [1.0, 2.0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CAM[:60], "truncated"),
        (CAM.format(""), "depth line has 0 numbers"),
        (CAM.format("1 2 3 4 5"), "has 5 numbers"),
        (CAM.format("1 x"), "numbers are expected"),
        (CAM.format("1 nan"), "NaN"),
        (CAM.format("1 2").replace("0.970263", "inf"), "NaN or an infinite"),
        (CAM.format("1 2").replace("0.970263", "0.5"), "rigid"),
        (CAM.format("1 2").replace("0.969881", "-0.969881"), "rigid"),
        (CAM.format("1 2").replace("0.0 0.0 0.0 1.0", "0 0 1 1"), "rigid"),
        (CAM.format("1 2").replace("361.54125", "-361"), "positive"),
        (CAM.format("1 2").replace("intrinsic", "intrinsics"), "'intrinsic' expected"),
        ("P5\n3 3\n", "'extrinsic' expected"),
        (b"\x89PNG\xff\x00", "binary"),
        ("", "empty"),
    ],
)
def test_bad_camera_files(tmp_path: Path, text: str | bytes, words: str) -> None:
    file = write(tmp_path / "cam.txt", text)
    with pytest.raises(CameraFileError, match=words) as caught:
        read_mvsnet_camera(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pairs(tmp_path: Path) -> None:
    file = write(tmp_path / "pair.txt", "3\n0\n3 2 1.5 1 0.5 0 0\n1\n0\n7\n2 0 2346.41 9 0 \r\n")
    pairs = read_pairs(file)
    assert pairs == {0: [(2, 1.5), (1, 0.5)], 1: [], 7: [(0, 2346.41)]}  # the view itself and zero scores are dropped
    write_pairs(tmp_path / "b.txt", pairs)
    assert read_pairs(tmp_path / "b.txt") == pairs
    with pytest.raises(CameraFileError, match="no such file"):
        read_pairs(tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2\n0\n1 1 2.0\n", "truncated"),
        ("1\n0\n3 1 2.0 2\n", "truncated"),
        ("99999999999\n", "damaged"),
        ("1\n0\n888888888 1 2\n", "damaged"),
        ("1\n0\n-1\n", "damaged"),
        ("1\n0\n1 1.5 2\n", "whole number"),
        ("1\n0\n1 1 nan\n", "NaN"),
        ("1\n0\n1 1 2\n5", "follow"),
        ("2\n0\n1 1 2\n0\n1 1 2", "twice"),
        ("x", "whole number"),
    ],
)
def test_bad_pairs(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(CameraFileError, match=words):
        read_pairs(write(tmp_path / "pair.txt", text))


def test_trajectory_log(tmp_path: Path) -> None:
    poses = [pose(seed) for seed in range(3)]
    write_trajectory_log(tmp_path / "x.log", poses)
    np.testing.assert_allclose(read_trajectory_log(tmp_path / "x.log"), poses, atol=1e-12)
    assert (tmp_path / "x.log").read_text().startswith("0 0 0\n")
    text = (tmp_path / "x.log").read_text()
    np.testing.assert_allclose(np.linalg.inv(np.loadtxt(text.splitlines()[1:5])), poses[0], atol=1e-9)
    with pytest.raises(CameraFileError, match="truncated"):
        read_trajectory_log(write(tmp_path / "y.log", text[:-20]))


def test_middlebury_parameters(tmp_path: Path) -> None:
    row = "a.png " + " ".join(map(str, [*camera().intrinsics.ravel(), *pose()[:3, :3].ravel(), *pose()[:3, 3]]))
    cameras = read_middlebury_parameters(write(tmp_path / "a_par.txt", f"1\n{row}\n"))
    np.testing.assert_allclose(cameras["a.png"].world_to_camera, pose(), atol=1e-14)
    for text, words in ((f"2\n{row}\n", "2 expected"), (f"1\n{row} 5", "22 numbers"), ("1\na.png b", "numbers")):
        with pytest.raises(CameraFileError, match=words):
            read_middlebury_parameters(write(tmp_path / "b_par.txt", text))


@pytest.mark.parametrize("distortion", [None, [0.1, -0.02, 0.001, 0.002], [0.1, 0, 0, 0, 0.3, 0, 0, 0.1]])
def test_json_round_trips(tmp_path: Path, distortion: list[float] | None) -> None:
    coefficients = None if distortion is None else np.array(distortion)
    images = [PosedImage(f"images/{seed}.png", camera(seed, coefficients), (0.5, 2.0 + seed)) for seed in range(2)]
    write_cameras_json(tmp_path / "cameras.json", images, "mm")
    write_transforms(tmp_path / "transforms.json", images)
    found, unit = read_cameras_json(tmp_path / "cameras.json")
    assert unit == "mm"
    assert [image.depth_range for image in found] == [(0.5, 2.0), (0.5, 3.0)]
    for list_ in (found, read_transforms(tmp_path / "transforms.json")):
        for have, want in zip(list_, images, strict=True):
            assert (have.name, have.camera.width, have.camera.height) == (want.name, 640, 480)
            np.testing.assert_allclose(have.camera.intrinsics, want.camera.intrinsics, atol=1e-12)
            np.testing.assert_allclose(have.camera.world_to_camera, want.camera.world_to_camera, atol=1e-12)
            if coefficients is None:
                assert have.camera.distortion is None
            else:
                np.testing.assert_array_equal(have.camera.distortion, coefficients)


def test_transforms_conventions(tmp_path: Path) -> None:
    # A camera 3 m above the origin of a z-up world, looking down: OpenGL's back axis is +z, its up axis +y.
    text = (
        '{"camera_angle_x": 1.5707963267948966, "frames": [{"file_path": "./train/r_0", "transform_matrix":'
        "[[1,0,0,0],[0,1,0,0],[0,0,1,3],[0,0,0,1]]}]}"
    )
    (image,) = read_transforms(write(tmp_path / "transforms_train.json", text), lambda name: (200, 100))
    assert image.name == "train/r_0"
    np.testing.assert_allclose(image.camera.intrinsics, [[100, 0, 99.5], [0, 100, 49.5], [0, 0, 1]])
    point = image.camera.world_to_camera @ [0.3, 0.6, 0, 1]
    np.testing.assert_allclose(point, [0.3, -0.6, 3, 1])  # right of, above and in front of the camera
    with pytest.raises(CameraFileError, match="camera_angle_x"):
        read_transforms(tmp_path / "transforms_train.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not a JSON"),
        ("[1]", "object"),
        ('{"frames": []}', "no list 'frames'"),
        ('{"frames": [3]}', "object"),
        ('{"frames": [{"file_path": "a", "transform_matrix": [[1]]}]}', "shape"),
        ('{"frames": [{"file_path": "a", "transform_matrix": "x"}]}', "numbers"),
        ('{"frames": [{"transform_matrix": [[1]]}]}', "file_path"),
        ('{"frames": [{"file_path": "a", "camera_model": "OPENCV_FISHEYE"}]}', "undistort"),
    ],
)
def test_bad_transforms(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(CameraFileError, match=words):
        read_transforms(write(tmp_path / "transforms.json", text))
    with pytest.raises(CameraFileError):
        read_cameras_json(tmp_path / "transforms.json")


@pytest.mark.real
def test_real_camera_files(shared: Path) -> None:
    root = shared / "data/mvs_sample"
    sceaux = [read_mvsnet_camera(root / f"sceaux/cams/{index:08d}_cam.txt", "range") for index in range(10)]
    assert sceaux[0].depth_range == (5.819737, 10.626591)
    scaled = 2985.328 * 640 / 2832, (1452.136 + 0.5) * 640 / 2832 - 0.5  # figures of the sample's README
    assert (sceaux[0].camera.fx, sceaux[0].camera.cx) == pytest.approx(scaled, abs=2e-4)
    pairs = read_pairs(root / "sceaux/pair.txt")
    assert len(pairs) == 10
    assert pairs[0][0] == (1, 1811.772223)
    identity = read_mvsnet_camera(root / "rmvd_sample/cams/00000000_cam.txt")
    np.testing.assert_allclose(identity.camera.world_to_camera, np.eye(4), atol=1e-7)
    assert identity.depth_range == (0.45, 1.6)
    rmvd = [read_mvsnet_camera(root / f"rmvd_sample/cams/{index:08d}_cam.txt").camera for index in range(1, 7)]
    baselines = [np.linalg.norm(view.world_to_camera[:3, 3]) for view in rmvd]
    assert 0.065 < min(baselines) < max(baselines) < 0.265
    dino = read_middlebury_parameters(root / "dino_sparse_ring/dinoSR_par.txt", (640, 480))
    assert len(dino) == 16
    for index, (name, view) in enumerate(dino.items()):
        assert name == f"dinoSR{index + 1:04d}.png"
        copy = read_mvsnet_camera(root / f"dino_sparse_ring/cams/{index:08d}_cam.txt").camera
        np.testing.assert_allclose(copy.world_to_camera, view.world_to_camera, atol=1e-9)
        np.testing.assert_allclose(copy.intrinsics, view.intrinsics)
