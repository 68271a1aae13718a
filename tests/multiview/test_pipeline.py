# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from known_depth import KnownDepth

import vision3d
from vision3d.cli.main import main
from vision3d.datasets.multiview import read_depth_pfm
from vision3d.datasets.toy_multiview import make_toy_views, render_view, write_multiview_tree, write_posed_images
from vision3d.errors import CameraFileError, ConfigError, FileFormatError, ImageError, InputError, OutputError
from vision3d.geometry.fusion import ConsistencyRule
from vision3d.io.camera_json import read_cameras_json, write_cameras_json
from vision3d.io.cameras import read_mvsnet_camera, read_pairs, write_pairs
from vision3d.io.images import read_image, write_image
from vision3d.io.pfm import read_pfm
from vision3d.io.ply_stream import write_ply_stream
from vision3d.io.pointcloud import read_pointcloud
from vision3d.multiview.filters import FilterSettings, official_settings
from vision3d.multiview.pipeline import predict_mvs
from vision3d.multiview.scene import open_scene
from vision3d.types import PointCloud

RULE = FilterSettings(rule=ConsistencyRule(2, 1.0, 0.01))


def surface_distance(points: np.ndarray) -> np.ndarray:
    """Distance of points to the toy scene: a sphere of radius 0.1 in a closed box."""
    sphere = np.abs(np.linalg.norm(points - [0.03, -0.02, 0.68], axis=1) - 0.1)
    walls = np.abs(points[:, :, None] - np.array([[-1.0, 1.0], [-0.8, 0.7], [-1.1, 0.9]])).min(axis=(1, 2))
    return np.minimum(sphere, walls)


@pytest.mark.parametrize("form", ["colmap", "colmap_text", "json", "transforms", "mvsnet"])
def test_every_layout_gives_the_scene(form: str, tmp_path: Path) -> None:
    if form == "mvsnet":
        views = write_multiview_tree("mvsnet_folder", tmp_path / "scan", 5)
    else:
        views = write_posed_images(tmp_path / "scan", form, 5)
    network = KnownDepth(views)
    result = predict_mvs(tmp_path / "scan", network, tmp_path / "out", views=3, filtering=RULE)
    assert len(network.calls) == 5
    assert all(len(set(call)) == 3 for call in network.calls)
    cloud = result.pointcloud()
    assert len(cloud) == result.points > 5 * 72 * 96 * 0.4
    assert np.percentile(surface_distance(cloud.points), 99) < 0.005
    assert cloud.normals is not None
    assert np.linalg.norm(cloud.normals, axis=1) == pytest.approx(1, abs=1e-5)
    assert cloud.colors is not None
    assert result.depth(0) == pytest.approx(views[0].depth, rel=1e-5)
    assert (result.confidence(0) == 0.75).all()
    assert bool(result.warnings) == (form == "transforms")  # which says nothing about the depth range


def test_written_files(tmp_path: Path) -> None:
    views = write_multiview_tree("mvsnet_folder", tmp_path / "scan")
    result = predict_mvs(tmp_path / "scan", KnownDepth(views), tmp_path / "out", views=4, filtering=RULE)
    assert read_depth_pfm(tmp_path / "out/depth_est/00000001.pfm") == pytest.approx(views[1].depth, rel=1e-5)
    kept = read_pfm(tmp_path / "out/depth_filtered/00000001.pfm") > 0
    assert kept.mean() == pytest.approx(result.kept[1])
    for name in ("image", "depth", "filtered", "confidence"):
        assert read_image(tmp_path / f"out/pictures/00000001_{name}.png").shape[0] == 72
    camera = read_mvsnet_camera(tmp_path / "out/cams/00000001_cam.txt", "range")
    assert camera.camera.intrinsics == pytest.approx(views[1].camera.intrinsics)
    assert read_pairs(tmp_path / "out/pair.txt")[0][0][0] == read_pairs(tmp_path / "scan/pair.txt")[0][0][0]
    assert (tmp_path / "out/names.txt").read_text().splitlines()[2] == "00000002 00000002.png"


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    views = write_multiview_tree("mvsnet_folder", tmp_path / "scan", 5)
    options = {"out": tmp_path / "out", "views": 3, "filtering": RULE}
    whole = predict_mvs(tmp_path / "scan", KnownDepth(views), tmp_path / "whole", views=3, filtering=RULE)
    with pytest.raises(KeyboardInterrupt):
        predict_mvs(tmp_path / "scan", KnownDepth(views, interrupt_at=3), **options)
    (tmp_path / "out/confidence/00000001.pfm").write_bytes(b"Pf\n96 72\n-1.0\n")  # killed while it was written
    network = KnownDepth(views)
    seen: list[tuple[str, int, int]] = []
    result = predict_mvs(tmp_path / "scan", network, progress=lambda *news: seen.append(news), **options)
    assert [call[0] for call in network.calls] == [1, 2, 3, 4]
    assert result.reused == 1
    assert (tmp_path / "out/cloud.ply").read_bytes() == whole.cloud_path.read_bytes()
    assert ("depth maps", 5, 5) in seen
    assert ("fusion", 5, 5) in seen
    with pytest.raises(OutputError, match="another views"):
        predict_mvs(tmp_path / "scan", KnownDepth(views), tmp_path / "out", views=4, filtering=RULE)
    other = KnownDepth(views)
    predict_mvs(tmp_path / "scan", other, tmp_path / "out", views=4, filtering=RULE, overwrite=True)
    assert len(other.calls) == 5
    relaxed = replace(RULE, rule=ConsistencyRule(1, 2.0, 0.05))
    idle = KnownDepth(views)
    loose = predict_mvs(tmp_path / "scan", idle, tmp_path / "out", views=4, filtering=relaxed)
    assert idle.calls == []  # filters are no reason to compute depth again
    assert loose.points > whole.points


@pytest.mark.parametrize("scale", [1e-3, 1e4])
def test_the_unit_of_the_world_does_not_matter(scale: float, tmp_path: Path) -> None:
    views = write_posed_images(tmp_path / "scan", "json")
    plain = predict_mvs(tmp_path / "scan", KnownDepth(views), tmp_path / "plain", views=3, filtering=RULE)
    images, _ = read_cameras_json(tmp_path / "scan/cameras.json")
    scaled = []
    for image in images:
        pose = image.camera.world_to_camera.copy()
        pose[:3, 3] *= scale
        near, far = image.depth_range or (0.0, 0.0)
        camera = replace(image.camera, world_to_camera=pose)
        scaled.append(replace(image, camera=camera, depth_range=(near * scale, far * scale)))
    write_cameras_json(tmp_path / "scan/cameras.json", scaled, "unknown")
    result = predict_mvs(tmp_path / "scan", KnownDepth(views), tmp_path / "out", views=3, filtering=RULE)
    assert 0.1 < result.scene.factor * scale < 1000
    # A few pixels lie at the very edge of the rule.
    assert result.points == pytest.approx(plain.points, rel=1e-3)
    assert np.percentile(surface_distance(result.pointcloud().points / scale), 99) < 0.005


def test_intrinsics_follow_the_network(tmp_path: Path) -> None:
    views = write_multiview_tree("mvsnet_folder", tmp_path / "scan")
    small = [render_view(view.camera.resized(48, 36)) for view in views]
    for half_pixel in (True, False):
        network = KnownDepth(small)
        network.half_pixel_intrinsics = half_pixel  # type: ignore[assignment]
        predict_mvs(tmp_path / "scan", network, tmp_path / f"out{half_pixel}", views=3, size=(36, 48), filtering=RULE)
        want = views[0].camera.resized(48, 36, half_pixel=half_pixel).intrinsics
        assert network.intrinsics[0] == pytest.approx(want)
    assert vision3d.create_model("dispmvs_tiny").half_pixel_intrinsics is True
    assert vision3d.models.mvs.dispmvs.DispMVS.half_pixel_intrinsics is False  # type: ignore[attr-defined]


def test_mesh(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    open3d = pytest.importorskip("open3d")
    views = write_multiview_tree("mvsnet_folder", tmp_path / "scan")
    result = predict_mvs(
        tmp_path / "scan", KnownDepth(views), tmp_path / "out", views=3, filtering=RULE, mesh=True, pictures=False
    )
    mesh = open3d.io.read_triangle_mesh(str(result.mesh_path))
    vertices = np.asarray(mesh.vertices)
    assert 0.2 < np.asarray(mesh.vertex_colors).mean() < 0.8
    assert len(mesh.triangles) > 1000
    assert np.percentile(surface_distance(vertices), 90) < 0.02
    assert not (tmp_path / "out/pictures/00000000_depth.png").exists()
    assert capfd.readouterr().out == ""


def test_nothing_certain_gives_an_empty_cloud(tmp_path: Path) -> None:
    """NaN, infinity and negative depths never reach the cloud."""
    views = write_multiview_tree("mvsnet_folder", tmp_path / "scan")

    def spoil(depth: np.ndarray) -> np.ndarray:
        depth = depth.copy()
        depth[::3], depth[1::3], depth[2::3] = np.nan, np.inf, -1.0
        return depth

    result = predict_mvs(
        tmp_path / "scan", KnownDepth(views, change=spoil), tmp_path / "out", filtering=RULE, mesh=True
    )
    assert (result.points, result.mesh_path) == (0, None)
    assert "cloud is empty" in result.warnings[-1]

    def holes(depth: np.ndarray) -> np.ndarray:
        depth = depth.copy()
        depth[::2] = np.nan
        return depth

    result = predict_mvs(tmp_path / "scan", KnownDepth(views, change=holes), tmp_path / "half", filtering=RULE)
    cloud = result.pointcloud()
    assert np.isfinite(cloud.points).all()
    assert np.isfinite(cloud.normals).all()  # type: ignore[arg-type]


def test_two_views_are_enough_and_one_is_not(tmp_path: Path) -> None:
    views = write_multiview_tree("mvsnet_folder", tmp_path / "two", 2)
    result = predict_mvs(tmp_path / "two", KnownDepth(views), tmp_path / "out")  # the default rule wants 3 sources
    assert result.points > 1000
    assert result.warnings == ["2 view(s) have fewer than 3 source views: all of them must confirm a depth"]
    write_posed_images(tmp_path / "one", "json", 1)
    with pytest.raises(InputError, match="two or more"):
        predict_mvs(tmp_path / "one", KnownDepth(views), tmp_path / "out1")
    with pytest.raises(InputError, match="at least one source"):
        predict_mvs(tmp_path / "two", KnownDepth(views), tmp_path / "out1", views=1)


def test_bad_scenes(tmp_path: Path) -> None:
    views = make_toy_views(3)
    network = KnownDepth(views)

    def fresh(name: str) -> Path:
        write_multiview_tree("mvsnet_folder", tmp_path / name, 3)
        return tmp_path / name

    scan = fresh("absent")
    write_pairs(scan / "pair.txt", {0: [(1, 1.0), (7, 0.5)], 1: [(0, 1.0)], 2: [(0, 1.0)]})
    with pytest.raises(ImageError, match="00000007"):
        predict_mvs(scan, network, tmp_path / "out")
    scan = fresh("camera")
    (scan / "cams/00000001_cam.txt").unlink()
    with pytest.raises(CameraFileError, match="00000001_cam"):
        predict_mvs(scan, network, tmp_path / "out")
    scan = fresh("singular")
    text = (scan / "cams/00000001_cam.txt").read_text().splitlines()
    place = text.index("intrinsic") + 1
    text[place] = "0 0 0"
    (scan / "cams/00000001_cam.txt").write_text("\n".join(text))
    with pytest.raises(CameraFileError, match="focal lengths must be positive"):
        predict_mvs(scan, network, tmp_path / "out")
    for content, problem in ((b"", "empty"), (b"2\n0\n1 1 ", "truncated")):
        (scan / "pair.txt").write_bytes(content)
        with pytest.raises(FileFormatError, match=problem):
            predict_mvs(scan, network, tmp_path / "out")
    with pytest.raises(FileFormatError, match="no such folder"):
        predict_mvs(tmp_path / "nowhere", network, tmp_path / "out")
    with pytest.raises(InputError, match="0 < min < max"):
        predict_mvs(fresh("range"), network, tmp_path / "out", depth_range=(2.0, 1.0))
    with pytest.raises(InputError, match="no network of multi-view"):
        predict_mvs(fresh("model"), "covonet", tmp_path / "out")
    assert not network.calls


def test_images_without_camera_and_mixed_sizes_are_told(tmp_path: Path) -> None:
    views = write_multiview_tree("mvsnet_folder", tmp_path / "scan")
    write_image(tmp_path / "scan/images/00000009.png", views[0].image)
    scene = open_scene(tmp_path / "scan")
    assert scene.warnings == ["1 image(s) without camera or pairs are left out: 00000009.png"]
    large = render_view(views[2].camera.resized(192, 144))
    write_image(tmp_path / "scan/images/00000002.png", large.image)
    path = tmp_path / "scan/cams/00000002_cam.txt"
    camera = read_mvsnet_camera(path, "range")
    from vision3d.io.cameras import write_mvsnet_camera

    write_mvsnet_camera(path, large.camera, [camera.depth_min, camera.depth_max])
    result = predict_mvs(tmp_path / "scan", KnownDepth(views), tmp_path / "out", views=3, filtering=RULE)
    assert "1 are resized to 96x72" in " ".join(result.warnings)
    assert result.scene.camera(2).intrinsics == pytest.approx(views[2].camera.intrinsics)
    assert np.percentile(surface_distance(result.pointcloud().points), 99) < 0.005


def test_official_settings() -> None:
    assert official_settings("scan114").rule == ConsistencyRule(3, 0.5, 0.01)
    assert official_settings("scan118").rule.max_pixel_error == 0.75
    assert official_settings("scan110").rule.max_pixel_error == 0.25
    assert official_settings("Francis").rule == ConsistencyRule(8, 2.0, 0.0025)
    assert official_settings("Temple").min_confidence is None
    for scene in ("scan2", "myroom"):
        with pytest.raises(ConfigError, match="--filter default"):
            official_settings(scene)


def test_streamed_ply(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    clouds = [
        PointCloud(
            generator.normal(size=(count, 3)).astype(np.float32),
            generator.integers(0, 256, (count, 3), dtype=np.uint8),
            generator.normal(size=(count, 3)).astype(np.float32),
        )
        for count in (5, 0, 8)
    ]
    clouds[2].points[3, 1] = np.nan
    path = tmp_path / "cloud.ply"
    assert write_ply_stream(path, iter(clouds)) == 12
    cloud = read_pointcloud(path)
    kept = np.delete(np.arange(13), 8)
    assert np.array_equal(cloud.points, np.concatenate([item.points for item in clouds])[kept])
    assert np.array_equal(cloud.colors, np.concatenate([item.colors for item in clouds])[kept])  # type: ignore[arg-type, misc]
    assert write_ply_stream(path, []) == 0
    assert len(read_pointcloud(path)) == 0
    with pytest.raises(OutputError, match="cannot be written"):
        write_ply_stream(tmp_path / "nowhere/cloud.ply", clouds)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import save_file

    write_posed_images(tmp_path / "scan", "colmap", 3)
    save_file(vision3d.create_model("dispmvs_tiny").state_dict(), tmp_path / "tiny.safetensors")
    arguments = ["mvs", str(tmp_path / "scan"), "--weights", str(tmp_path / "tiny.safetensors"), "--json"]
    arguments += ["--out", str(tmp_path / "out"), "--views", "2", "--size", "36x48", "--min-views", "1"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["size"] == [48, 36]
    assert report["filter"]["min_views"] == 1
    assert [view["name"] for view in report["views"]] == ["0000.png", "0001.png", "0002.png"]
    assert json.loads((tmp_path / "out/report.json").read_text()) == report
    assert "3 depth maps (0 of an earlier run)" in captured.err
    assert main([*arguments, "--pixel-error", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["reused"] == 3
    assert main([*arguments, "--filter", "official"]) == 2
    assert "use --filter default" in capsys.readouterr().err


@pytest.mark.real
def test_real_castle(shared: Path, tmp_path: Path) -> None:
    """The reference depths of the sample as answers: they confirm each other; both layouts choose like sources."""
    from vision3d.datasets.toy_multiview import ToyView

    root = shared / "data/mvs_sample/sceaux"
    scene = open_scene(root)
    views = []
    for number in range(10):
        image, camera = scene.image(number), scene.camera(number)
        path = root / f"depths/{number:08d}.pfm"
        depth = read_depth_pfm(path) if path.is_file() else np.full(image.shape[:2], np.nan, np.float32)
        views.append(ToyView(image, camera, depth))
    rule = FilterSettings(rule=ConsistencyRule(2, 1.0, 0.01), sources=3)
    result = predict_mvs(root, KnownDepth(views), tmp_path / "out", views=2, filtering=rule, pictures=False)
    known = np.isfinite(views[1].depth).mean()
    assert result.kept[1] > 0.6 * known
    assert result.kept[7] == 0
    assert np.isfinite(result.pointcloud().points).all()
    from vision3d.datasets.posed_images import PosedImages

    sparse = PosedImages(root, poses="colmap")
    for entry in sparse.entries:
        assert len(set(entry.sources[:4]) & set(scene.sources(entry.reference, 4))) >= 2
