# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vision3d.datasets.panorama import PanoramaDataset, PanoramaList, decode_normals, turn
from vision3d.datasets.panorama_sets import Matterport3D, Pano3D, Panorama3D60, Stanford2D3D, Structured3D
from vision3d.datasets.registry import open_dataset
from vision3d.datasets.toy_panorama import (
    list_panorama_layouts,
    render_panorama,
    write_codes16,
    write_panorama_tree,
)
from vision3d.errors import ConfigError, DisparityError, FileFormatError, ImageError, InputError, UnknownNameError
from vision3d.geometry.panorama import panorama_pixels, panorama_rays
from vision3d.io.images import write_image
from vision3d.io.pfm import write_pfm

READERS: dict[str, Any] = {
    "stanford2d3d": Stanford2D3D,
    "matterport3d": lambda root, split, **options: Matterport3D(root, **options),
    "matterport3d_bifuse": lambda root, split, **options: Matterport3D(root, stitching="bifuse", **options),
    "panorama3d60": lambda root, split, **options: Panorama3D60(root, **options),
    "pano3d": lambda root, split, **options: Pano3D(root, **options),
    "structured3d": Structured3D,
    "panorama_list": lambda root, split, **options: PanoramaList(
        root, list_file="list.csv", depth_scale=0.001, **options
    ),
}
# The largest error of depth that each encoding may make.
PRECISION = {"stanford2d3d": 1 / 1024, "matterport3d": 1 / 8000, "structured3d": 0.0005, "panorama_list": 0.0005}


def test_rays_and_pixels() -> None:
    rays = panorama_rays(8)
    np.testing.assert_allclose(np.linalg.norm(rays, axis=-1), 1)
    rows, columns = np.mgrid[:8, :16]
    np.testing.assert_allclose(panorama_pixels(3 * rays, 8), np.stack([columns, rows], axis=-1), atol=1e-9)
    # Right of the centre is +x, above it is -y, the centre looks along +z.
    assert rays[4, 8, 2] > 0.9
    assert rays[4, 12, 0] > 0.9
    assert rays[0, 8, 1] < -0.9
    assert panorama_rays(3, 5).shape == (3, 5, 3)
    with pytest.raises(InputError):
        panorama_rays(0)


@pytest.mark.real
def test_rays_equal_published_table(shared: Path) -> None:
    table = np.genfromtxt(shared / "parity/spheredepth/erp_pixel_vectors.csv", delimiter=",", names=True, comments="#")
    names = list(table.dtype.names or ())
    sizes = [(int(height), int(width)) for height, width in zip(table["H"], table["W"], strict=True)]
    for row, (height, width) in zip(table, sizes, strict=True):
        ray = panorama_rays(height, width)[int(row["v"]), int(row["u"])]
        np.testing.assert_allclose(ray, [row[name] for name in names[-3:]], atol=1e-6)


def test_toy_room_is_exact() -> None:
    sample = render_panorama(64)
    assert sample.depth is not None
    assert sample.world_to_camera is not None
    points = panorama_rays(64) * sample.depth[..., None] - sample.world_to_camera[:3, 3]
    known = sample.valid
    walls = np.abs(np.abs(points - [0, -0.05, -0.1]) - [1, 0.75, 1]).min(axis=-1)
    sphere = np.abs(np.linalg.norm(points - [0.03, -0.02, 0.68], axis=-1) - 0.1)
    assert np.minimum(walls, sphere)[known].max() < 1e-6
    assert sphere[known].min() < 1e-6


@pytest.mark.parametrize("name", sorted(READERS))
def test_toy_trees(name: str, tmp_path: Path) -> None:
    if name in ("panorama3d60", "pano3d"):
        pytest.importorskip("OpenEXR")
    want = write_panorama_tree(name, tmp_path)
    data = READERS[name](tmp_path, "all", normals=True)
    assert data.scenes == [sample.scene for sample in want]
    for index, truth in enumerate(want):
        sample = data[index]
        assert sample.scene == truth.scene
        jpeg = name.startswith("matterport")
        if jpeg:  # which blurs the colours of this small picture
            assert np.corrcoef(sample.image.ravel(), truth.image.ravel())[0, 1] > 0.8
        else:
            np.testing.assert_array_equal(sample.image, truth.image)
        assert sample.depth is not None
        assert truth.depth is not None
        np.testing.assert_array_equal(sample.valid, truth.valid)
        error = np.abs(sample.depth - truth.depth)[sample.valid]
        assert error.max() <= PRECISION.get(name, 0) + 1e-6
        # The points lie on the walls of the known room, seen from the known centre.
        points = panorama_rays(32) * sample.depth[..., None] - np.asarray(truth.world_to_camera)[:3, 3]
        on_wall = np.abs(np.abs(points - [0, -0.05, -0.1]) - [1, 0.75, 1]).min(axis=-1) < 0.002
        assert on_wall[sample.valid].mean() > 0.95
        if name in ("stanford2d3d", "panorama3d60", "pano3d", "structured3d"):
            assert sample.normals is not None
            assert truth.normals is not None
            assert sample.normal_axes == "world"
            known = np.isfinite(truth.normals).all(axis=-1)
            np.testing.assert_array_equal(np.isfinite(sample.normals).all(axis=-1), known)
            np.testing.assert_allclose(sample.normals[known], truth.normals[known], atol=0.012)
            assert READERS[name](tmp_path, "all")[0].normals is None
        else:
            assert sample.normals is None


def test_splits(tmp_path: Path) -> None:
    write_panorama_tree("stanford2d3d", tmp_path / "s")
    count = {fold: (len(Stanford2D3D(tmp_path / "s", "train", fold=fold)), 0) for fold in (1, 2, 3)}
    assert [count[fold][0] for fold in (1, 2, 3)] == [2, 2, 2]
    assert Stanford2D3D(tmp_path / "s", "test").scenes[0].startswith("area_5a")
    assert Stanford2D3D(tmp_path / "s", "test", fold=2).scenes[0].startswith("area_4")
    lines = "area_1/pano/rgb/" + next((tmp_path / "s/area_1/pano/rgb").iterdir()).name + " unused.png"
    (tmp_path / "list.txt").write_text(lines)  # without a newline at the end, as published
    assert len(Stanford2D3D(tmp_path / "s", list_file=tmp_path / "list.txt")) == 1
    with pytest.raises(ConfigError, match="fold"):
        Stanford2D3D(tmp_path / "s", fold=4)
    with pytest.raises(FileFormatError, match="no panorama"):
        Stanford2D3D(tmp_path / "s", rgb_folder="rgb_")
    write_panorama_tree("structured3d", tmp_path / "t")
    splits = ("train", "val", "test", "all")
    assert [len(Structured3D(tmp_path / "t", split)) for split in splits] == [1, 1, 1, 3]
    (tmp_path / "errata").write_text("scene_00000/485142  # published errata\n")
    assert len(Structured3D(tmp_path / "t", "all", skip_file=tmp_path / "errata")) == 2
    with pytest.raises(FileFormatError, match="no panorama"):
        Structured3D(tmp_path / "t", furniture="empty")
    with pytest.raises(ConfigError, match="split 'dev'"):
        Structured3D(tmp_path / "t", "dev")
    with pytest.raises(ConfigError, match="light"):
        Structured3D(tmp_path / "t", light="dark")
    write_panorama_tree("matterport3d", tmp_path / "m")
    (tmp_path / "list.txt").write_text("house/pano_skybox_color/0001.jpg house/pano_depth/0001.png")
    assert Matterport3D(tmp_path / "m", list_file=tmp_path / "list.txt").scenes == ["house/0001"]
    (tmp_path / "list.txt").write_text("\n\nhouse/0001.jpg")
    with pytest.raises(FileFormatError, match="line 3"):
        Matterport3D(tmp_path / "m", list_file=tmp_path / "list.txt")
    with pytest.raises(ConfigError, match="stitching"):
        Matterport3D(tmp_path / "m", stitching="own")
    with pytest.raises(FileFormatError, match="no panorama"):
        Matterport3D(tmp_path / "m", stitching="bifuse")


def test_3d60_lists_turn_the_view(tmp_path: Path) -> None:
    pytest.importorskip("OpenEXR")
    (first, *_) = write_panorama_tree("panorama3d60", tmp_path)
    line = "./Matterport3D/0_abc_color_0_Right_90.0.png ./Matterport3D/0_abc_color_0_Left_Down_90.0.png"
    (tmp_path / "list.txt").write_text(line)
    data = Panorama3D60(tmp_path, list_file=tmp_path / "list.txt")
    np.testing.assert_array_equal(data[0].image, np.roll(first.image, 16, axis=1))
    np.testing.assert_array_equal(data[0].depth, np.roll(np.asarray(first.depth), 16, axis=1))
    (tmp_path / "list.txt").write_text("a.png b.png")
    with pytest.raises(FileFormatError, match="line 1"):
        Panorama3D60(tmp_path, list_file=tmp_path / "list.txt")
    with pytest.raises(ConfigError, match="placement"):
        Panorama3D60(tmp_path, placement="Down")
    near = Panorama3D60(tmp_path, max_depth=0.9)[0].depth
    assert near is not None
    assert np.nanmax(near) <= 0.9
    assert np.isnan(near).sum() > 100


def test_turning_matches_the_rays() -> None:
    """A point at ray d is found, after turning by 90 degrees, at the ray turned about the vertical axis."""
    rays = panorama_rays(8)
    turned = turn(rays, 90)
    np.testing.assert_allclose(turned @ np.array([[0, 0, -1], [0, 1, 0], [1, 0, 0]]), rays, atol=1e-12)

    class Turned(PanoramaList):
        normal_axes = "camera"

    np.testing.assert_allclose(Turned._turn_normals(Turned, rays.astype(np.float32), 90), rays, atol=1e-6)  # type: ignore[arg-type]


def test_list_options(tmp_path: Path) -> None:
    (first, *_) = write_panorama_tree("panorama_list", tmp_path)
    depth = np.asarray(first.depth)
    mask = np.full(depth.shape, 255, np.uint8)
    mask[10:20] = 0
    write_image(tmp_path / "mask.png", np.repeat(mask[..., None], 3, axis=2))
    rays = np.abs(panorama_rays(32)).max(axis=-1)
    write_pfm(tmp_path / "cube.pfm", np.nan_to_num(depth * rays, nan=7.5))
    np.save(tmp_path / "flat.npy", np.nan_to_num(depth, nan=-1).clip(0))
    (tmp_path / "list.txt").write_text("0.png cube.pfm mask.png  # a comment\n\n0.png flat.npy\n0.png\n")
    sample = PanoramaList(tmp_path, list_file="list.txt", depth_kind="z-cube", missing_value=7.5)[0]
    assert sample.depth is not None
    assert np.isnan(sample.depth[10:20]).all()
    np.testing.assert_allclose(sample.depth[20:], depth[20:], rtol=1e-6)
    np.testing.assert_array_equal(sample.valid[:10], np.isfinite(depth[:10]))
    flat = PanoramaList(tmp_path, list_file="list.txt")[1]
    np.testing.assert_array_equal(flat.valid, np.isfinite(depth))
    assert PanoramaList(tmp_path, list_file="list.txt")[2].depth is None
    small = PanoramaList(tmp_path, list_file="list.csv", depth_scale=0.001, height=16)[0]
    assert small.depth is not None
    assert (small.image.shape, small.depth.shape) == ((16, 32, 3), (16, 32))
    assert set(np.unique(small.depth[np.isfinite(small.depth)])) <= set(
        np.rint(depth[np.isfinite(depth)] * 1000).astype(np.float32) * np.float32(0.001)
    )
    (tmp_path / "images").mkdir()
    write_image(tmp_path / "images/a.png", first.image)
    assert PanoramaList(tmp_path / "images").scenes == ["a"]
    assert PanoramaList(tmp_path / "images")[0].depth is None
    (tmp_path / "list.txt").write_text("a b c d")
    with pytest.raises(FileFormatError, match="line 1"):
        PanoramaList(tmp_path, list_file="list.txt")
    for options in ({"depth_kind": "planar"}, {"depth_scale": 0}, {"height": 0}, {"max_depth": -1}):
        with pytest.raises(ConfigError):
            PanoramaList(tmp_path, list_file="list.csv", **options)


def test_bad_files(tmp_path: Path) -> None:
    write_panorama_tree("panorama_list", tmp_path)
    data = PanoramaList(tmp_path, list_file="list.csv", depth_scale=0.001)
    write_codes16(tmp_path / "0_depth.png", np.ones((32, 63)), 1000, 0)
    write_image(tmp_path / "1.png", np.zeros((32, 60, 3), np.uint8))
    content = (tmp_path / "2_depth.png").read_bytes()
    (tmp_path / "2_depth.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(DisparityError, match="63x32"):
        data[0]
    with pytest.raises(ImageError, match="twice as wide"):
        data[1]
    with pytest.raises(DisparityError, match="truncated"):
        data[2]
    write_image(tmp_path / "2_depth.png", np.zeros((32, 64, 3), np.uint8))
    with pytest.raises(DisparityError, match="rendering"):
        data[2]
    (tmp_path / "2_depth.png").unlink()
    with pytest.raises(FileFormatError, match="no such file"):
        PanoramaList(tmp_path, list_file="list.csv")
    with pytest.raises(FileFormatError, match="no such folder"):
        Pano3D(tmp_path / "none")
    with pytest.raises(FileFormatError, match="no panorama"):
        Pano3D(tmp_path)
    (tmp_path / "list.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="text file"):
        PanoramaList(tmp_path, list_file="list.csv")
    with pytest.raises(UnknownNameError):
        write_panorama_tree("panosuncg", tmp_path)
    assert "pano3d" in list_panorama_layouts()
    with pytest.raises(NotImplementedError):
        PanoramaDataset(tmp_path)


def test_damaged_exr(tmp_path: Path) -> None:
    pytest.importorskip("OpenEXR")
    from vision3d.io.exr import write_exr

    write_panorama_tree("pano3d", tmp_path)
    data = Pano3D(tmp_path, normals=True)
    depth = tmp_path / "scene_a/0_spherical_1_depth_center_0.exr"
    for content in (b"x" * 50, depth.read_bytes()[:300]):
        depth.write_bytes(content)
        with pytest.raises(DisparityError):
            data[0]
    write_exr(depth, {"A": np.ones((32, 64)), "B": np.ones((32, 64))})
    with pytest.raises(DisparityError, match="channels"):
        data[0]
    write_exr(tmp_path / "scene_a/1_spherical_1_normal_map_center_0.exr", {"Y": np.ones((32, 64))})
    with pytest.raises(DisparityError, match="R, G, B are needed"):
        data[1]


@pytest.mark.real
def test_real_synthetic_room(shared: Path) -> None:
    root = shared / "data/pano_sample/synthetic_room"
    data = Stanford2D3D(root, normals=True)
    cameras = json.loads((root / "cameras.json").read_text())
    assert len(data) == 2
    rays = panorama_rays(256)
    clouds = []
    for sample in data:
        name = sample.scene.split("/")[1]
        entry = cameras[f"{name}_"]
        assert sample.depth is not None
        exact = np.load(root / "area_1" / f"{name}_distance_f32.npz")["distance"]
        np.testing.assert_array_equal(sample.valid, exact > 0)
        assert np.abs(sample.depth - exact)[sample.valid].max() <= 1 / 1024 + 1e-6
        assert np.isnan(sample.depth).mean() == pytest.approx(entry["missing_fraction"])
        assert np.nanmin(sample.depth) == pytest.approx(entry["min"], abs=0.001)
        assert np.nanmax(sample.depth) == pytest.approx(entry["max"], abs=0.001)
        # World: y up; the camera's right is -x of the world (README).
        points = (sample.depth[..., None] * rays)[sample.valid] * [-1, -1, 1] + entry["camera_xyz"]
        assert np.all(points.min(axis=0) > np.array([-3, 0, -2.25]) - 0.01)
        assert np.all(points.max(axis=0) < np.array([3, 2.8, 2.25]) + 0.01)
        assert sample.normals is not None
        floor = sample.valid & (sample.normals[..., 1] > 0.99) & (rays[..., 1] > 0.9)
        heights = (sample.depth * rays[..., 1])[floor]
        assert np.median(heights) == pytest.approx(entry["camera_xyz"][1], abs=0.002)
        towards = -np.sum(sample.normals * (rays * [-1, -1, 1]), axis=-1)[sample.valid]
        assert (towards > -0.02).all()
        clouds.append(points[::7])
    from scipy.spatial import cKDTree

    distance, _ = cKDTree(clouds[0]).query(clouds[1])
    assert np.median(distance) < 0.05  # both cameras see one room


@pytest.mark.real
def test_real_panoramas_without_depth(shared: Path) -> None:
    data = PanoramaList(shared / "data/pano_sample/cc0_indoor")
    assert data.scenes == ["apartment", "lab", "lobby", "workshop"]
    assert all(sample.image.shape == (256, 512, 3) and not sample.valid.any() for sample in data)


def test_normal_codes(tmp_path: Path) -> None:
    codes = np.full((2, 4, 3), 128, np.uint8)
    codes[0, 0] = (255, 128, 128)
    codes[0, 1] = (128, 0, 128)
    write_image(tmp_path / "n.png", codes)
    normals = decode_normals(str(tmp_path / "n.png"), 127.5, 127.5, (128, 128, 128))
    np.testing.assert_allclose(normals[0, :2], [[1, 0, 0], [0, -1, 0]], atol=0.005)
    assert np.isnan(normals[1]).all()


def test_options_handed_on_are_named_too(tmp_path: Path) -> None:
    write_panorama_tree("structured3d", tmp_path / "s")
    with pytest.raises(ConfigError) as caught:
        open_dataset("structured3d", tmp_path / "s", hight=16)
    message = str(caught.value)
    assert "__init__" not in message
    assert "its options: furniture, light, height, max_depth, normals, skip_file" in message
