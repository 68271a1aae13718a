# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vision3d.errors import CalibrationError, InputError
from vision3d.io.calibration import read_calibration, write_calibration
from vision3d.types import Camera, StereoRig

MIDDLEBURY = """cam0=[994.978 0 311.193; 0 994.978 254.877; 0 0 1]
cam1=[994.978 0 342.279; 0 994.978 254.877; 0 0 1]
doffs=31.086
baseline=193.001
width=741
height=500
ndisp=70
isint=0
"""
OBJECT = """P0: 700 0 600 0 0 700 170 0 0 0 1 0
P1: 700 0 600 -370 0 700 170 0 0 0 1 0
P2: 700 0 600 35 0 700 170 0.2 0 0 1 0.003
P3: 700 0 600 -343 0 700 170 2.2 0 0 1 0.003
R0_rect: 1 0 0 0 1 0 0 0 1
"""
RAW = """calib_time: 09-Jan-2012 13:57:47
corner_dist: 9.95e-02
S_02: 1392 512
P_rect_02: 721.5377 0 609.5593 44.85728 0 721.5377 172.854 0.2163791 0 0 1 0.002745884
S_rect_02: 1242 375
S_rect_03: 1242 375
P_rect_03: 721.5377 0 609.5593 -339.5242 0 721.5377 172.854 2.199936 0 0 1 0.002729905
"""
PLAIN = "754.67 0.0 489.38 0.0 754.67 265.16 0.0 0.0 1.0\n0.063\n"
ROS = """image_width: 640
image_height: 480
camera_name: narrow_stereo
camera_matrix: {{rows: 3, cols: 3, data: [500, 0, 320, 0, 500, 240, 0, 0, 1]}}
distortion_model: plumb_bob
distortion_coefficients:
  rows: 1
  cols: 5
  data: [{distortion}, 0, 0, 0, 0]
rectification_matrix:
  rows: 3
  cols: 3
  data: [1, 0, 0, 0, 1, 0, 0, 0, 1]
projection_matrix:
  rows: 3
  cols: 4
  data: [500, 0, 320, {offset}, 0, 500, 240, 0, 0, 0, 1, 0]
"""


def save(tmp_path: Path, text: str, name: str = "calib.txt") -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


def failure(path: object, **options: object) -> str:
    with pytest.raises(CalibrationError) as caught:
        read_calibration(path, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def opencv_file(path: Path, entries: dict[str, object]) -> Path:
    storage = cv2.FileStorage(str(path), cv2.FILE_STORAGE_WRITE)
    for key, value in entries.items():
        storage.write(key, value)
    storage.release()
    return path


def test_middlebury(tmp_path: Path) -> None:
    rig = read_calibration(save(tmp_path, MIDDLEBURY), image_size=(741, 500))
    assert rig.baseline == pytest.approx(0.193001, abs=1e-12)
    assert rig.doffs == pytest.approx(31.086, abs=1e-9)
    assert (rig.left.fx, rig.left.cy, rig.size) == (994.978, 254.877, (741, 500))
    windows = save(tmp_path, "\ufeff" + MIDDLEBURY.replace("\n", "\r\n"), "windows.txt")
    assert read_calibration(windows).baseline == rig.baseline


def test_kitti(tmp_path: Path) -> None:
    rig = read_calibration(save(tmp_path, OBJECT), image_size=(1242, 375))
    assert rig.baseline == pytest.approx((35 + 343) / 700)
    assert (rig.doffs, rig.size) == (0, (1242, 375))
    assert read_calibration(save(tmp_path, OBJECT)).size is None
    rig = read_calibration(save(tmp_path, RAW))
    assert rig.baseline == pytest.approx(0.5327254, abs=1e-6)
    assert rig.size == (1242, 375)


def test_plain_text(tmp_path: Path) -> None:
    rig = read_calibration(save(tmp_path, PLAIN))
    np.testing.assert_array_equal(rig.left.intrinsics, [[754.67, 0, 489.38], [0, 754.67, 265.16], [0, 0, 1]])
    assert rig.baseline == 0.063
    rows = "754.67 0 489.38\n0 754.67 265.16\n0 0 1\n63\n"
    assert read_calibration(save(tmp_path, rows), units="mm").baseline == pytest.approx(0.063)


def test_ros_pair(tmp_path: Path) -> None:
    left = save(tmp_path, ROS.format(distortion=0, offset=0), "left.yaml")
    right = save(tmp_path, ROS.format(distortion=0, offset=-60), "right.yaml")
    for source in ((left, right), left):
        rig = read_calibration(source)
        assert rig.baseline == pytest.approx(0.12)
        assert (rig.left.fx, rig.left.cx, rig.size) == (500, 320, (640, 480))
    assert "swap" in failure((right, left))
    right.unlink()
    assert "one camera only" in failure(left)
    save(tmp_path, ROS.format(distortion=-0.3, offset=-60), "right.yaml")
    assert "rectify first" in failure(left)


def test_ros_in_one_file(tmp_path: Path) -> None:
    text = ""
    for view, offset in (("left", 0), ("right", -60)):
        text += f"{view}:\n" + "".join(
            "  " + line + "\n" for line in ROS.format(distortion=0, offset=offset).splitlines()
        )
    assert read_calibration(save(tmp_path, text)).baseline == pytest.approx(0.12)


def test_opencv_file_storage(tmp_path: Path) -> None:
    matrix = np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]])
    good = {"M1": matrix, "D1": np.zeros((1, 5)), "M2": matrix, "D2": np.zeros((1, 5)), "R": np.eye(3)}
    translation = np.array([[-0.12], [0.0], [0.0]])
    rig = read_calibration(opencv_file(tmp_path / "a.yml", {**good, "T": translation}), image_size=(640, 480))
    assert rig.baseline == pytest.approx(0.12)
    assert rig.size == (640, 480)
    intrinsics = opencv_file(tmp_path / "intrinsics.yml", {key: good[key] for key in ("M1", "D1", "M2", "D2")})
    extrinsics = opencv_file(tmp_path / "extrinsics.yml", {"R": np.eye(3), "T": translation})
    assert read_calibration((intrinsics, extrinsics)).baseline == pytest.approx(0.12)
    millimetres = opencv_file(tmp_path / "b.yml", {**good, "T": translation * 1000})
    assert "units='mm'" in failure(millimetres)
    assert read_calibration(millimetres, units="mm").baseline == pytest.approx(0.12)
    distorted = opencv_file(tmp_path / "c.yml", {**good, "T": translation, "D2": np.full((1, 5), 0.1)})
    assert "rectify first" in failure(distorted)
    rotation = cv2.Rodrigues(np.array([0.0, 0.01, 0.0]))[0]
    assert "rotated" in failure(opencv_file(tmp_path / "d.yml", {**good, "T": translation, "R": rotation}))
    vertical = opencv_file(tmp_path / "e.yml", {**good, "T": np.array([[0.0], [-0.12], [0.0]])})
    assert "rectify first" in failure(vertical)
    assert "missing T" in failure(opencv_file(tmp_path / "f.yml", good))


def test_opencv_rectified_projections(tmp_path: Path) -> None:
    matrix = np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]])
    none = np.zeros(5)
    _, _, first, second, *_ = cv2.stereoRectify(
        matrix, none, matrix, none, (640, 480), np.eye(3), np.array([[-0.12], [0.0], [0.0]])
    )
    rig = read_calibration(opencv_file(tmp_path / "p.yml", {"P1": first, "P2": second}))
    assert rig.baseline == pytest.approx(0.12)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    focal=st.floats(1, 1e5),
    center=st.tuples(*[st.floats(-1e4, 1e4)] * 3),
    baseline=st.floats(1e-6, 1e4),
    size=st.none() | st.tuples(st.integers(1, 10000), st.integers(1, 10000)),
)
def test_json_round_trip(
    tmp_path: Path, focal: float, center: tuple[float, ...], baseline: float, size: tuple[int, int] | None
) -> None:
    left = Camera(np.array([[focal, 0, center[0]], [0, focal, center[1]], [0, 0, 1]]))
    right = Camera(np.array([[focal, 0, center[2]], [0, focal, center[1]], [0, 0, 1]]))
    rig = StereoRig(left, right, baseline)
    rig = rig if size is None else rig.with_size(*size)
    write_calibration(tmp_path / "rig.json", rig)
    back = read_calibration(tmp_path / "rig.json", units="mm")  # the file states metres
    assert (back.baseline, back.size, back.doffs) == (rig.baseline, rig.size, rig.doffs)
    np.testing.assert_array_equal(back.left.intrinsics, rig.left.intrinsics)
    np.testing.assert_array_equal(back.right.intrinsics, rig.right.intrinsics)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("cam0=[994.978 0 311.193; 0 994.978 254.877; 0 0 1]\n", "", "row 'cam0' is missing"),
        ("baseline=193.001\n", "", "row 'baseline' is missing"),
        ("254.877; 0 0 1]\ncam1", "254.877; 0 0]\ncam1", "cam0 row has 8 numbers, 9 expected"),
        ("height=500\n", "", "row 'height' is missing"),
        ("193.001", "0", "baseline is 0"),
        ("193.001", "-193.001", "baseline is -193"),
        ("193.001", "0.193001", "units='m'"),
        ("193.001", "nan", "not a finite number"),
        ("193.001", "abc", "'abc' is not a number"),
        ("doffs=31.086", "doffs=0", "doffs is 0"),
        ("cam1=[994.978 0 342.279; 0 994.978", "cam1=[900 0 342.279; 0 900", "focal lengths"),
        ("cam0=[994.978", "cam0=[-994.978", "focal"),
        ("342.279; 0 994.978 254.877", "342.279; 0 994.978 264.877", "rectify"),
        ("width=741", "width=0", "illegal"),
    ],
)
def test_middlebury_errors(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert MIDDLEBURY.count(old) == 1 or old == "193.001"
    message = failure(save(tmp_path, MIDDLEBURY.replace(old, new)))
    assert words in message
    assert str(tmp_path / "calib.txt") in message


def test_line_numbers(tmp_path: Path) -> None:
    assert "line 2)" in failure(save(tmp_path, MIDDLEBURY.replace("342.279; 0", "342.279; 0 0")))
    assert "line 3)" in failure(save(tmp_path, OBJECT.replace("P2: 700", "P2:")))
    assert "line 1)" in failure(save(tmp_path, PLAIN.replace(" 1.0\n", "\n")))


def test_other_formats_errors(tmp_path: Path) -> None:
    assert "P_rect_03" in failure(save(tmp_path, "\n".join(RAW.splitlines()[:-1])))
    assert "both views must have one size" in failure(save(tmp_path, RAW.replace("S_rect_03: 1242", "S_rect_03: 1241")))
    assert "positive" in failure(save(tmp_path, OBJECT.replace("P2: 700", "P2: 0")))
    assert "units='mm'" in failure(save(tmp_path, PLAIN.replace("0.063", "63")))
    assert "2 expected" in failure(save(tmp_path, "1 2 3\n"))
    assert "baseline" in failure(save(tmp_path, PLAIN.replace("0.063", "0.063 1")))
    assert "unknown calibration format" in failure(save(tmp_path, "hello world"))
    assert "blank" in failure(save(tmp_path, " \n"))
    assert "empty" in failure(save(tmp_path, ""))
    assert "no such file" in failure(tmp_path / "none.txt")
    assert "folder" in failure(tmp_path)
    (tmp_path / "binary").write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    assert "not a text file" in failure(tmp_path / "binary")
    for text in ("%YAML:1.0\nM1: [1, 2", "%YAML:1.0\n---\n- 1", "%YAML:1.0\nM1: !!python/object:os.system {}"):
        failure(save(tmp_path, text, "a.yml"))
    for text in (
        "{",
        '{"a": 1}',
        '{"format": "vision3d-calibration"}',
        '{"format": "vision3d-calibration", "left": 3}',
    ):
        failure(save(tmp_path, text, "a.json"))


def test_size_mismatch_names_both_sizes_and_the_mend(tmp_path: Path) -> None:
    path = save(tmp_path, MIDDLEBURY)
    message = failure(path, image_size=(1482, 1000))
    for words in ("741x500", "1482x1000", "scaled by 2", "scale the calibration"):
        assert words in message
    assert "scale the calibration" in failure(path, image_size=(370, 250))
    message = failure(path, image_size=(500, 741))
    assert "other shape" in message
    assert "another size" in failure(save(tmp_path, OBJECT), image_size=(600, 180))


def test_illegal_arguments(tmp_path: Path) -> None:
    path = save(tmp_path, MIDDLEBURY)
    with pytest.raises(InputError):
        read_calibration(path, units="cm")
    with pytest.raises(InputError):
        read_calibration((path, path, path))
    assert "only YAML" in failure((path, path))


@pytest.mark.real
@pytest.mark.parametrize(
    ("scene", "size", "focal", "baseline", "doffs"),
    [
        ("eth3d/playground_1l", (941, 490), 542.019, 0.0595549, 0.0),
        ("kitti_object/demo_lidar", (1242, 375), 721.5377, 0.5327254, 0.0),
        ("middlebury2014/motorcycle_quarter", (741, 500), 994.978, 0.193001, 31.086),
    ],
)
def test_real_files(
    shared: Path, scene: str, size: tuple[int, int], focal: float, baseline: float, doffs: float
) -> None:
    rig = read_calibration(shared / "data/stereo" / scene / "calib.txt", image_size=size)
    assert rig.left.fx == focal
    assert rig.baseline == pytest.approx(baseline, abs=1e-7)
    assert rig.doffs == pytest.approx(doffs, abs=1e-6)
    assert rig.size == size
