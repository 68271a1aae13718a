# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vision3d.errors import FileFormatError, InputError, OutputError
from vision3d.io.pointcloud import read_pointcloud, write_pointcloud
from vision3d.types import PointCloud

RNG = np.random.default_rng(0)
COUNT = 57
POINTS = RNG.normal(size=(COUNT, 3)).astype(np.float32) * 10
COLORS = RNG.integers(0, 256, (COUNT, 3), dtype=np.uint8)
NORMALS = RNG.normal(size=(COUNT, 3)).astype(np.float32)
NORMALS /= np.linalg.norm(NORMALS, axis=1, keepdims=True)
FULL = PointCloud(POINTS, COLORS, NORMALS)


def same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b))


@pytest.mark.parametrize("suffix", [".ply", ".pcd"])
@pytest.mark.parametrize(
    "cloud",
    [
        FULL,
        PointCloud(POINTS),
        PointCloud(POINTS, COLORS),
        PointCloud(POINTS, normals=NORMALS),
        FULL.select(np.zeros(COUNT, dtype=bool)),
        FULL.select(np.arange(1)),
    ],
)
def test_round_trip(tmp_path: Path, suffix: str, cloud: PointCloud) -> None:
    write_pointcloud(tmp_path / f"a{suffix}", cloud)
    back = read_pointcloud(tmp_path / f"a{suffix}")
    assert same(back.points, cloud.points)
    assert same(back.colors, cloud.colors)
    assert same(back.normals, cloud.normals)


@pytest.mark.parametrize("suffix", [".ply", ".pcd"])
def test_open3d_reads_the_same_values(tmp_path: Path, suffix: str) -> None:
    open3d = pytest.importorskip("open3d")
    write_pointcloud(tmp_path / f"a{suffix}", FULL)
    cloud = open3d.io.read_point_cloud(str(tmp_path / f"a{suffix}"))
    np.testing.assert_array_equal(np.asarray(cloud.points), POINTS.astype(np.float64))
    np.testing.assert_allclose(np.asarray(cloud.normals), NORMALS, atol=1e-6)
    np.testing.assert_array_equal(np.rint(np.asarray(cloud.colors) * 255), COLORS)


@pytest.mark.parametrize("suffix", [".ply", ".pcd"])
@pytest.mark.parametrize("ascii_text", [True, False])
def test_reads_what_open3d_writes(tmp_path: Path, suffix: str, ascii_text: bool) -> None:
    open3d = pytest.importorskip("open3d")
    cloud = open3d.geometry.PointCloud(open3d.utility.Vector3dVector(POINTS.astype(np.float64)))
    cloud.colors = open3d.utility.Vector3dVector(COLORS / 255.0)
    cloud.normals = open3d.utility.Vector3dVector(NORMALS.astype(np.float64))
    open3d.io.write_point_cloud(str(tmp_path / f"a{suffix}"), cloud, write_ascii=ascii_text)
    back = read_pointcloud(tmp_path / f"a{suffix}")
    np.testing.assert_allclose(back.points, POINTS, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(back.colors, COLORS)
    np.testing.assert_allclose(back.normals, NORMALS, atol=1e-5)


def test_trimesh_reads_the_same_ply(tmp_path: Path) -> None:
    import trimesh

    write_pointcloud(tmp_path / "a.ply", FULL)
    cloud = trimesh.load(tmp_path / "a.ply")
    np.testing.assert_array_equal(cloud.vertices, POINTS.astype(np.float64))
    np.testing.assert_array_equal(cloud.colors[:, :3], COLORS)


def test_glb(tmp_path: Path) -> None:
    import trimesh

    write_pointcloud(tmp_path / "a.glb", FULL)
    back = read_pointcloud(tmp_path / "a.glb")
    np.testing.assert_allclose(back.points, POINTS, rtol=1e-6)
    np.testing.assert_array_equal(back.colors, COLORS)
    scene = trimesh.load_scene(tmp_path / "a.glb")
    upright = scene.to_geometry().vertices  # as a viewer with y up shows it
    np.testing.assert_allclose(upright, POINTS * [1, -1, -1], rtol=1e-6)
    write_pointcloud(tmp_path / "plain.glb", PointCloud(POINTS))
    np.testing.assert_allclose(read_pointcloud(tmp_path / "plain.glb").points, POINTS, rtol=1e-6)
    with pytest.raises(InputError, match="empty"):
        write_pointcloud(tmp_path / "b.glb", PointCloud(np.zeros((0, 3), np.float32)))


def test_big_endian_ply(tmp_path: Path) -> None:
    header = (
        b"ply\r\nformat binary_big_endian 1.0\r\ncomment x\r\nelement vertex 2\r\nproperty double x\r\n"
        b"property double y\r\nproperty double z\r\nproperty uchar flag\r\nelement face 0\r\n"
        b"property list uchar int vertex_indices\r\nend_header\r\n"
    )
    table = np.array([(1, 2, 3, 9), (4, 5, 6, 9)], dtype=[("x", ">f8"), ("y", ">f8"), ("z", ">f8"), ("flag", "u1")])
    (tmp_path / "a.ply").write_bytes(header + table.tobytes())
    np.testing.assert_array_equal(read_pointcloud(tmp_path / "a.ply").points, [[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize("suffix", [".ply", ".pcd", ".glb"])
@pytest.mark.parametrize("keep", [0.0, 0.03, 0.5, 0.97])
def test_truncated_files(tmp_path: Path, suffix: str, keep: float) -> None:
    file = tmp_path / f"a{suffix}"
    write_pointcloud(file, FULL)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(FileFormatError) as caught:
        read_pointcloud(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.ply", b"ply\nformat binary_little_endian 1.0\nelement vertex x\nproperty float x\nend_header\n"),
        ("a.ply", b"ply\nformat binary_little_endian 1.0\nelement face 1\nproperty float x\nend_header\n"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float a\nend_header\n1\n"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 999999999999\nproperty float x\nend_header\n1\n"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nend_header\nhello\n"),
        ("a.ply", b"solid stl\n"),
        ("a.pcd", b"VERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nPOINTS 1\nDATA binary_compressed\n1234"),
        ("a.pcd", b"VERSION 0.7\nFIELDS x y z\nSIZE 4 4\nTYPE F F F\nPOINTS 1\nDATA ascii\n1 2 3\n"),
        ("a.pcd", b"hello"),
        ("a.glb", b"glTF" + bytes(40)),
        ("a.obj", b"v 1 2 3"),
    ],
)
def test_illegal_files(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileFormatError) as caught:
        read_pointcloud(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_illegal_arguments(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no such file"):
        read_pointcloud(tmp_path / "a.ply")
    with pytest.raises(OutputError):
        write_pointcloud(tmp_path / "a.obj", FULL)
    for cloud in (
        PointCloud(POINTS[0]),
        PointCloud(POINTS, COLORS[:3]),
        PointCloud(POINTS, COLORS.astype(np.float32)),
        PointCloud(POINTS, normals=NORMALS[:, :2]),
    ):
        with pytest.raises(InputError):
            write_pointcloud(tmp_path / "a.ply", cloud)
    assert not list(tmp_path.iterdir())
