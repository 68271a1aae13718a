# SPDX-License-Identifier: Apache-2.0
"""predict_panorama: any size, faults of cropping, pictures that are no panoramas, and what is written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import trimesh
from panoramas import RedIsDepth, RowIsDepth, box_panorama, picture
from PIL import Image
from torch import nn

from vision3d import inference, predict_panorama
from vision3d.datasets.depth_units import unit_warning
from vision3d.errors import ConfigError, ImageError, InputError
from vision3d.geometry.icosphere import face_count
from vision3d.geometry.panorama_mesh import faces_to_panorama
from vision3d.io.pointcloud import read_pointcloud
from vision3d.models.panorama.panoramadepth import PanoramaDepth
from vision3d.models.panorama.spheredepth import SphereDepth
from vision3d.panorama import load_panorama_model, network_height
from vision3d.panorama_checks import check_panorama_image
from vision3d.panorama_results import OUTPUT_NAMES, PanoramaResult
from vision3d.types import DepthOutput

BOX = box_panorama(64).image


def sphere() -> SphereDepth:
    torch.manual_seed(0)
    return SphereDepth(4, 0, 4).eval()


def test_depth_is_that_of_the_network_at_the_size_of_the_picture() -> None:
    result = predict_panorama(BOX, RedIsDepth(), height=64)
    np.testing.assert_allclose(result.depth, 1 + 4 * (BOX[..., 0] / 255), rtol=1e-5)
    assert result.faces is None
    assert result.warnings == []


def test_mesh_network_is_painted_at_full_size() -> None:
    result = predict_panorama(BOX, sphere())
    assert result.height == 64  # level 4 is as dense as 64 rows
    assert result.faces.shape == (face_count(4),)
    np.testing.assert_array_equal(result.depth, faces_to_panorama(result.faces, 64))


@pytest.mark.parametrize("height", [16, 17, 100, 129])
@pytest.mark.parametrize("network", [sphere(), PanoramaDepth(2, 2).eval()], ids=["mesh", "planar"])
def test_any_size(network: nn.Module, height: int) -> None:
    result = predict_panorama(box_panorama(height).image, network, height=64)
    assert result.depth.shape == (height, 2 * height)
    assert np.isfinite(result.depth).all()


def test_network_height_fits_the_network() -> None:
    assert network_height(SphereDepth(4, 1, 4)) == 128
    assert network_height(PanoramaDepth(2, 2)) == 256
    assert network_height(PanoramaDepth(2, 2), 33) == 64
    with pytest.raises(InputError):
        network_height(sphere(), 0)


def test_rounded_sides_are_resampled() -> None:
    result = predict_panorama(BOX[:, :127], RedIsDepth(), height=64)
    assert result.depth.shape == (64, 128)
    assert "127x64 is not 2:1" in result.warnings[0]


def test_missing_caps_are_unknown() -> None:
    result = predict_panorama(BOX[16:48], RedIsDepth(), height=64)
    assert result.depth.shape == (64, 128)
    assert np.isnan(result.depth[:16]).all()
    assert np.isnan(result.depth[48:]).all()
    np.testing.assert_allclose(result.depth[16:48], 1 + 4 * (BOX[16:48, :, 0] / 255), rtol=1e-5)
    assert any("without its caps" in text for text in result.warnings)


def test_black_caps_are_unknown() -> None:
    image = BOX.copy()
    image[:5] = 3
    image[-9:] = 0
    result = predict_panorama(image, sphere())
    assert np.isnan(result.depth[:5]).all()
    assert np.isnan(result.depth[-9:]).all()
    assert np.isfinite(result.depth[5:-9]).all()
    assert 0 < np.isnan(result.faces).sum() < result.faces.size / 2
    assert [text[:6] for text in result.warnings[:2]] == ["5 rows", "9 rows"]


def test_grey_and_alpha_are_said() -> None:
    assert any("grey" in text for text in predict_panorama(BOX.mean(axis=2) / 255, RedIsDepth()).warnings)
    alpha = np.dstack([BOX, np.full(BOX.shape[:2], 255, np.uint8)])
    result = predict_panorama(alpha, RedIsDepth(), height=64)
    assert any("alpha" in text for text in result.warnings)
    np.testing.assert_array_equal(result.image, BOX)
    for mode, words in (("LA", ["grey", "alpha"]), ("CMYK", []), ("P", [])):
        warnings = predict_panorama(Image.fromarray(BOX).convert(mode), RedIsDepth()).warnings
        assert [word for word in ("grey", "alpha") if any(word in text for text in warnings)] == words


def stripes(rows: int) -> np.ndarray:
    """Columns of different colours that continue across the border: no row is a pole."""
    wave = 128 + 100 * np.sin(np.arange(128)[:, None] * (2 * np.pi / 128) * np.array([3, 4, 5]))
    return np.tile(wave.astype(np.uint8), (rows, 1, 1))


def test_cut_panoramas_reach_no_poles() -> None:
    result = predict_panorama(stripes(40), RedIsDepth())
    assert ["without its caps" in text or "show nothing" in text for text in result.warnings] == [True] * 3
    np.testing.assert_array_equal(np.isfinite(result.depth).all(axis=1), np.abs(np.arange(64) - 31.5) < 20)


def test_a_pole_that_varies_is_said() -> None:
    image = np.concatenate([BOX[:48] // 4 + 96, stripes(16)])
    assert any("first or last row" in text for text in predict_panorama(image, RedIsDepth()).warnings)


@pytest.mark.parametrize(("rows", "words"), [(64, "lower level"), (4096, "lower height")])
def test_memory_is_that_of_the_mesh_or_of_the_rows(rows: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = inference.estimate_memory(sphere(), 128, 64)
    monkeypatch.setattr(inference, "available_memory", lambda device: needs - inference.weight_bytes(sphere()) - 1)
    with pytest.raises(InputError, match=words):
        predict_panorama(BOX, sphere(), height=rows)
    with pytest.raises(InputError, match="lower level"):
        predict_panorama(BOX, sphere(), height=1)  # the mesh is what it is


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (BOX[:1, :2], "too small"),
        (np.zeros((32, 64, 3), np.uint8), "black"),
        (picture(96, 128), "no equirectangular"),
        (picture(64, 64), "no equirectangular"),
        (picture(20, 120), "no equirectangular"),
        (picture(64, 128), "no equirectangular panorama: its left and right borders"),
        (picture(48, 128), "no equirectangular panorama: its left and right borders"),
        (np.concatenate([BOX, BOX]), "one above the other"),
        (np.concatenate([BOX, BOX], axis=1), "side by side"),
    ],
    ids=["1 row", "black", "4:3", "square", "strip", "photo 2:1", "photo wide", "over-under", "side by side"],
)
def test_what_is_no_panorama_is_refused(image: np.ndarray, words: str) -> None:
    with pytest.raises(InputError, match=words):
        predict_panorama(image, RedIsDepth())


def test_fisheye_circles_are_refused() -> None:
    rows, columns = np.mgrid[:64, :64]
    circle = ((rows - 31.5) ** 2 + (columns - 31.5) ** 2 < 32**2)[..., None]
    image = (np.concatenate([circle, circle], axis=1) * np.array([120, 130, 140])).astype(np.uint8)
    with pytest.raises(InputError, match="fisheye"):
        check_panorama_image(image, "raw.jpg")


def test_a_check_can_be_overruled() -> None:
    result = predict_panorama(picture(64, 128), RedIsDepth(), check_image=False)
    assert any("is this a whole" in text for text in result.warnings)


def test_unusable_arguments(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"none\.png"):
        predict_panorama(tmp_path / "none.png", RedIsDepth())
    with pytest.raises(InputError, match="no network for panoramas"):
        predict_panorama(BOX, "covonet")
    with pytest.raises(ConfigError, match="level"):
        predict_panorama(BOX, "panoramadepth_tiny", level=5)
    with pytest.raises(InputError, match="set them when"):
        predict_panorama(BOX, sphere(), level=5)
    with pytest.raises(InputError, match="instead of a depth map"):
        predict_panorama(BOX, nn.AvgPool2d(2))
    with pytest.raises(InputError):
        predict_panorama(np.full((32, 64, 3), np.nan), RedIsDepth())


def test_another_level_takes_the_same_weights(tmp_path: Path) -> None:
    torch.save(sphere().state_dict(), tmp_path / "weights.pth")
    small = torch.load(tmp_path / "weights.pth", weights_only=True)
    finer = SphereDepth(5, 0, 4).eval()
    finer.load_official_state_dict(small)
    coarse, fine = (predict_panorama(BOX, network, height=64).depth for network in (sphere(), finer))
    assert fine.shape == coarse.shape


class Broken(nn.Module):
    """Answers what it is given."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, image: torch.Tensor) -> DepthOutput:
        return DepthOutput(depth=torch.full_like(image[:, :1], self.value))


@pytest.mark.parametrize(
    ("value", "words"), [(float("nan"), "no finite depth"), (2500.0, "millimetres"), (0.01, "0, 1")]
)
def test_unlikely_answers_are_said(value: float, words: str) -> None:
    result = predict_panorama(BOX, Broken(value))
    assert any(words in text for text in result.warnings)
    assert np.isnan(result.depth).all() == np.isnan(value)


def test_units_are_judged_by_the_median() -> None:
    assert unit_warning([box_panorama(16).depth]) is None
    assert unit_warning([None, np.full((2, 4), np.nan)]) is None
    assert "millimetres" in str(unit_warning([1000 * box_panorama(16).depth]))


def test_everything_is_written(tmp_path: Path) -> None:
    Image.fromarray(BOX).save(tmp_path / "room.png")
    result = predict_panorama(tmp_path / "room.png", sphere())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "cloud.pcd").write_text("old")
    (tmp_path / "out" / "mine.txt").write_text("kept")
    files = result.save(tmp_path / "out")
    assert set(files) == OUTPUT_NAMES - {"cloud.pcd"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*files, "mine.txt"}
    np.testing.assert_array_equal(np.load(files["depth.npy"]), result.depth)
    stored = np.load(files["faces.npz"])
    assert stored["level"] == 4
    np.testing.assert_array_equal(stored["distance"], result.faces)
    assert (
        len(read_pointcloud(files["cloud.ply"])) == len(read_pointcloud(files["cloud.glb"])) == len(result.pointcloud())
    )
    assert len(trimesh.load_scene(files["mesh.glb"]).geometry) == 1
    report = json.loads(files["report.json"].read_text())
    assert report["mesh_level"] == 4
    assert report["files"]["image"].endswith("room.png")
    page = files["view.html"].read_text()
    assert '"inside":true' in page
    assert '"distance":{' in page


def test_limits_of_the_cloud() -> None:
    sample = box_panorama(64)
    result = PanoramaResult(np.asarray(sample.depth), sample.image)
    cloud = result.pointcloud(max_depth=2.5, remove_flying_pixels=False)
    assert len(cloud) == (sample.depth <= 2.5).sum()
    np.testing.assert_allclose(np.max(np.abs(cloud.points) / (2, 1.5, 3), axis=1), 1, rtol=1e-4)
    even = result.pointcloud(uniform=True, remove_flying_pixels=False)
    assert len(even) == face_count(4)
    with pytest.raises(InputError):
        result.pointcloud(min_depth=-1)
    with pytest.raises(InputError, match="cloud format"):
        result.save("unused", cloud_formats=("obj",))


def test_pages_of_planar_networks(tmp_path: Path) -> None:
    result = predict_panorama(BOX, RowIsDepth())
    files = result.save(tmp_path, cloud_formats=(), max_display=4.0)
    assert "faces.npz" not in files
    assert "mesh.glb" in files


@pytest.mark.real
def test_real_panoramas_raise_no_doubt(shared: Path) -> None:
    paths = sorted((shared / "data" / "pano_sample" / "cc0_indoor").glob("*.png"))
    assert len(paths) == 4
    for path in paths:
        assert predict_panorama(path, sphere()).warnings == []


@pytest.mark.real
def test_real_photographs_are_refused(shared: Path) -> None:
    for name in ("cloth4_third", "baby3_third", "flowerpots_third", "plastic_third"):
        path = shared / "data" / "stereo" / "middlebury2006" / name / "left.png"
        image = np.asarray(Image.open(path).convert("RGB"))
        with pytest.raises(InputError, match="equirectangular"):
            predict_panorama(image, RedIsDepth())
        with pytest.raises(InputError, match="borders"):
            predict_panorama(image[: image.shape[1] // 2], RedIsDepth())


@pytest.mark.real
def test_the_shipped_weights_know_an_exact_room(shared: Path) -> None:
    folder = shared / "data" / "pano_sample" / "synthetic_room" / "area_1"
    for image in sorted((folder / "rgb").glob("*.png")):
        truth = np.load(next(folder.glob(f"{image.name[:39]}*_distance_f32.npz")))["distance"]
        valid = truth > 0
        errors = {}
        for model in (None, "spheredepth_tiny"):
            result = predict_panorama(image, model)
            scale = np.median(truth[valid]) / np.median(result.depth[valid]) if model else 1.0
            errors[model] = float(np.mean(np.abs(scale * result.depth - truth)[valid] / truth[valid]))
        assert errors[None] < 0.14  # 0.115 on average, as it is
        assert errors["spheredepth_tiny"] < 0.25  # 0.195 on average, its median aligned


def test_a_level_without_a_name_means_the_mesh_network() -> None:
    assert load_panorama_model()[1] == "panoramadepth_tiny"
    assert load_panorama_model(level=4)[1] == "spheredepth_tiny"
