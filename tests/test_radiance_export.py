# SPDX-License-Identifier: Apache-2.0
"""Renders and exports of a field with exact geometry, read back by independent code."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from radiance_runs import (
    BALL,
    FAR,
    FOCAL,
    HEIGHT,
    INTERVAL,
    RADIUS,
    WALL,
    WIDTH,
    exact_run,
    poses,
    true_depth,
    write_images,
)
from scipy.spatial.transform import Rotation

from vision3d.datasets.image_sequences import read_sequence
from vision3d.datasets.posed_images import PosedImages
from vision3d.errors import ConfigError, ImageError, InputError
from vision3d.io.camera_json import read_cameras_json, read_transforms
from vision3d.io.colmap import read_colmap
from vision3d.io.images import read_image
from vision3d.io.pfm import read_pfm
from vision3d.io.pointcloud import read_pointcloud
from vision3d.models.nerf.views import with_cameras
from vision3d.radiance_export import export_run
from vision3d.radiance_render import all_poses, choose_poses, render_run, training_size


@pytest.mark.parametrize("binary", [True, False])
def test_colmap_round_trip(binary: bool, tmp_path: Path) -> None:
    run = exact_run(held_out=(3,), skipped=(5,))
    name = "colmap-binary" if binary else "colmap"
    report = export_run(run, tmp_path, [name])
    assert report["files"] == {name: tmp_path / "sparse"}
    model = read_colmap(tmp_path / "sparse")
    kept = [0, 1, 2, 4, 6, 7]
    assert [image.name for image in model.images.values()] == [f"{frame:04d}.png" for frame in kept]
    assert list(model.images) == [1, 2, 3, 4, 5, 6]
    read = np.stack([np.linalg.inv(image.world_to_camera) for image in model.images.values()])
    np.testing.assert_allclose(read, poses().numpy()[kept], atol=1e-6)
    camera = model.cameras[1]
    assert (camera.model, camera.width, camera.height) == ("PINHOLE", WIDTH, HEIGHT)
    np.testing.assert_allclose(camera.params, [FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2], rtol=1e-6)


def test_colmap_text_as_the_format_says(tmp_path: Path) -> None:
    """The lines themselves, taken apart without the project's reader."""
    run = exact_run(held_out=())
    export_run(run, tmp_path, ["colmap"])
    lines = (tmp_path / "sparse/images.txt").read_text().splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    assert len(rows) == 16
    assert not any(rows[1::2])  # no observations
    for frame, row in enumerate(rows[::2]):
        number, w, x, y, z, *shift, camera, name = row.split()
        assert (number, camera, name) == (str(frame + 1), "1", f"{frame:04d}.png")
        rotation = Rotation.from_quat([float(x), float(y), float(z), float(w)]).as_matrix()
        centre = -rotation.T @ np.array(shift, dtype=float)
        np.testing.assert_allclose(centre, poses()[frame, :3, 3], atol=1e-6)
        np.testing.assert_allclose(rotation.T, poses()[frame, :3, :3], atol=1e-6)


def test_transforms_have_opengl_axes(tmp_path: Path) -> None:
    run = exact_run(held_out=())
    export_run(run, tmp_path, ["transforms"])
    frames = json.loads((tmp_path / "transforms.json").read_text())["frames"]
    for frame, pose in zip(frames, poses().double().numpy(), strict=True):
        matrix = np.array(frame["transform_matrix"])
        np.testing.assert_allclose(matrix[:3, 2], -pose[:3, 2], atol=1e-6)  # z points backwards
        np.testing.assert_allclose(matrix[:3, 1], -pose[:3, 1], atol=1e-6)  # y points up
        np.testing.assert_allclose(matrix[:3, [0, 3]], pose[:3, [0, 3]], atol=1e-6)
        assert (frame["fl_x"], frame["cx"], frame["cy"]) == pytest.approx((FOCAL, WIDTH / 2, HEIGHT / 2), rel=1e-6)
    read = read_transforms(tmp_path / "transforms.json")
    np.testing.assert_allclose(np.linalg.inv(read[5].camera.world_to_camera), poses()[5], atol=1e-6)


def test_exported_folder_is_a_scene(tmp_path: Path) -> None:
    """Images and cameras together can be opened as posed images and as a sequence with reference."""
    run = exact_run(held_out=(3,))
    images = write_images(run, tmp_path / "in")
    export_run(run, tmp_path / "out", ["colmap", "images"])
    data = PosedImages(tmp_path / "out", views=2)
    assert len(data) == 7
    np.testing.assert_array_equal(data[3].images[0], images[4])
    cameras = read_sequence(tmp_path / "out").cameras
    assert cameras is not None
    assert all(camera is not None for camera in cameras)
    run.images_source = str(tmp_path / "out")  # a frame is missing there, but not one that is needed
    export_run(run, tmp_path / "again", ["images"], images=tmp_path / "in")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImageError, match=r"does not hold the images 0000\.png"):
        export_run(run, tmp_path / "again", ["images"], images=tmp_path / "empty")
    run.images_source = None
    with pytest.raises(InputError, match="arrays"):
        export_run(run, tmp_path / "again", ["images"])


def test_depth_maps_are_exact(tmp_path: Path) -> None:
    run = exact_run()
    report = export_run(run, tmp_path, ["depth"], size=(27, 36))
    assert report["size"] == [27, 36]
    listed, unit = read_cameras_json(tmp_path / "depth_maps/cameras.json")
    assert unit == "unknown"
    assert len(listed) == 7
    for posed in listed:
        depth = read_pfm(tmp_path / "depth_maps" / posed.name.replace("png", "pfm"))
        pose = np.linalg.inv(posed.camera.world_to_camera)
        truth = true_depth(pose, posed.camera.intrinsics, 27, 36)
        seen = np.isfinite(depth)
        assert seen.mean() > 0.95
        late = depth[seen] - truth[seen]  # the first sample behind the surface answers
        assert late.min() > -1e-3
        assert np.percentile(late, 99) < INTERVAL + 1e-3
        assert (truth[~seen] > FAR - 2 * INTERVAL).all()


def test_cloud_lies_on_the_surfaces(tmp_path: Path) -> None:
    run = exact_run()
    report = export_run(run, tmp_path, ["cloud"])
    cloud = read_pointcloud(tmp_path / "cloud.ply")
    assert report["points"] == len(cloud) > 5000
    ball = np.abs(np.linalg.norm(cloud.points - BALL.numpy(), axis=1) - RADIUS)
    wall = np.abs(cloud.points[:, 2] - WALL)
    assert np.minimum(ball, wall).max() < 2 * INTERVAL
    assert (ball < 2 * INTERVAL).sum() > 500
    phases = cloud.points * [4.0, 5.0, 3.0]
    green = 255 * (0.5 + 0.45 * np.sin(phases[:, 0] - phases[:, 1]))
    assert cloud.colors is not None
    assert np.median(np.abs(cloud.colors[:, 1] - green)) < 3
    thinned = export_run(run, tmp_path / "thin", ["cloud"], voxel_size=0.1)
    assert thinned["points"] < report["points"] / 3


def test_mesh_in_world_units(tmp_path: Path) -> None:
    pytest.importorskip("open3d")
    import trimesh

    report = export_run(exact_run(held_out=()), tmp_path, ["mesh"], voxel_size=0.03, size=(72, 96))
    mesh = trimesh.load_mesh(tmp_path / "mesh.ply")
    assert report["triangles"] == len(mesh.faces) > 1000
    ball = np.abs(np.linalg.norm(mesh.vertices - BALL.numpy(), axis=1) - RADIUS)
    wall = np.abs(mesh.vertices[:, 2] - WALL)
    assert np.percentile(np.minimum(ball, wall), 95) < 0.03


def test_transparent_field(tmp_path: Path) -> None:
    run = exact_run()
    run.model.rendering = type(run.model.rendering)(near=0.5, far=1.0, samples=20)
    with pytest.raises(InputError, match="transparent everywhere"):
        export_run(run, tmp_path, ["cloud"])


def test_unknown_formats_and_empty_runs(tmp_path: Path) -> None:
    run = exact_run()
    with pytest.raises(ConfigError, match="obj"):
        export_run(run, tmp_path / "a", ["cloud", "obj"])
    with pytest.raises(InputError, match="opacity"):
        export_run(run, tmp_path / "a", ["cloud"], min_opacity=2)
    run.registered = []
    with pytest.raises(InputError, match="no registered frame"):
        export_run(run, tmp_path / "a", ["colmap"])


def test_renders(tmp_path: Path) -> None:
    run = exact_run(held_out=(3, 7))
    images = write_images(run, tmp_path)
    np.testing.assert_allclose(all_poses(run), poses().numpy(), atol=0.02)  # a nearly steady motion
    report = render_run(run, tmp_path / "held", views="held-out", depth=True)
    assert report["frames"] == ["0003", "0007"]
    assert sorted(path.name for path in (tmp_path / "held").iterdir()) == [
        "0003.png", "0003_depth.png", "0007.png", "0007_depth.png"
    ]  # fmt: skip
    # The true motion is curved: 2.5 mm off at frame 3, 15 mm at the last one, of a scene of 3 m.
    for frame, most in ((3, 2), (7, 8)):
        error = np.abs(read_image(tmp_path / f"held/{frame:04d}.png").astype(int) - images[frame])
        assert np.median(error) <= most
    report = render_run(run, tmp_path / "all", size=(18, 24))
    assert len(report["frames"]) == 6
    assert read_image(tmp_path / "all/0001.png").shape == (18, 24, 3)


@pytest.mark.parametrize("views", ["path", "spiral"])
def test_video_of_a_path(views: str, tmp_path: Path) -> None:
    run = exact_run(held_out=())
    report = render_run(run, tmp_path, views=views, count=3, size=(19, 25), video=True)  # type: ignore[arg-type]
    assert report["video"] == tmp_path / f"{views}.mp4"
    assert report["frames"] == [f"{views}_{number:04d}" for number in range(3)]
    assert read_sequence(tmp_path / f"{views}.mp4").size == (20, 26)
    names, path = choose_poses(run, "path", 15)
    assert len(names) == 15
    np.testing.assert_allclose(path[::2], poses().numpy(), atol=1e-6)


def test_view_choice_errors() -> None:
    run = exact_run(held_out=())
    with pytest.raises(InputError, match="no frame was held out"):
        choose_poses(run, "held-out")
    with pytest.raises(ConfigError, match="spiral"):
        choose_poses(run, "circle")  # type: ignore[arg-type]


def test_training_size_follows_the_pyramid() -> None:
    run = exact_run(level=2)
    assert training_size(run) == (9, 12)
    run.size = (37, 50)
    assert training_size(run) == (10, 13)


def test_other_cameras_share_the_field() -> None:
    run = exact_run()
    before = run.model.cameras.t.clone()
    other = with_cameras(run.model, poses(3), (12, 16))
    assert other.field is run.model.field
    assert other.cameras is not run.model.cameras
    assert (len(other.cameras), len(run.model.cameras)) == (3, 8)
    assert other.cameras.focal_length().item() == pytest.approx(FOCAL / 3)
    np.testing.assert_array_equal(run.model.cameras.t.detach(), before.detach())


def test_page_with_cameras(tmp_path: Path) -> None:
    run = exact_run(held_out=(3,))
    run.warnings = ["frame 4 is </script> doubtful"]
    export_run(run, tmp_path, ["page"], title="ball")
    text = (tmp_path / "view.html").read_text()
    data = json.loads(text.partition('type="application/json">')[2].partition("</script>")[0])
    assert data["report"]["cameras"] == "7 of 8 frames"
    assert data["report"]["warnings"] == run.warnings
    assert data["cloud"]["metric"] is False
    lines = data["cloud"]["lines"]
    points = np.frombuffer(base64.b64decode(lines["positions"]), "<f4").reshape(-1, 2, 3)
    assert len(points) == lines["count"] / 2 == 7 * 8 + 6  # pyramids and the path
    centers = poses().numpy()[[0, 1, 2, 4, 5, 6, 7]]
    local = np.linalg.inv(centers[3]) @ centers  # in the axes of the middle camera
    np.testing.assert_allclose(points[-6:, 0], local[:-1, :3, 3], atol=1e-5)
    np.testing.assert_allclose(points[-6:, 1], local[1:, :3, 3], atol=1e-5)
    rays = points[:4, 1] - points[:4, 0]  # of the first camera, to its corners
    rays = rays @ local[0, :3, :3]
    np.testing.assert_allclose(
        np.abs(rays[:, :2] / rays[:, 2:]), [[WIDTH / 2 / FOCAL, HEIGHT / 2 / FOCAL]] * 4, rtol=1e-4
    )
