# SPDX-License-Identifier: Apache-2.0
"""Reading image sequences: order, sizes, reference cameras, videos."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from vision3d.datasets.cards import load_dataset_card
from vision3d.datasets.image_sequences import natural_order, read_sequence
from vision3d.datasets.registry import find_dataset, open_dataset
from vision3d.datasets.toy_multiview import make_toy_views, write_posed_images
from vision3d.errors import CameraFileError, FileFormatError, ImageError, InputError
from vision3d.io.colmap import ColmapCamera, ColmapImage, ColmapModel, empty_points, write_colmap
from vision3d.io.files import ensure_folder
from vision3d.io.images import write_image
from vision3d.resources import resource_folder


def make_frames(count: int = 6, height: int = 40, width: int = 56) -> list[np.ndarray]:
    """Flat images whose grey value tells the frame."""
    return [np.full((height, width, 3), 30 * number, np.uint8) for number in range(count)]


def write_frames(folder: Path, frames: list[np.ndarray], name: str = "{:04d}.png") -> Path:
    ensure_folder(folder)
    for number, frame in enumerate(frames):
        write_image(folder / name.format(number), frame)
    return folder


def write_video(path: Path, frames: list[np.ndarray]) -> Path:
    height, width = frames[0].shape[:2]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 10, (width, height))
    for frame in frames:
        writer.write(frame[..., ::-1])
    writer.release()
    return path


def test_unpadded_names_come_in_order_of_their_numbers(tmp_path: Path) -> None:
    frames = [np.full((20, 24, 3), 10 * number, np.uint8) for number in range(12)]
    sequence = read_sequence(write_frames(tmp_path, frames, "shot{}.png"))
    assert sequence.names == [f"shot{number}.png" for number in range(12)]
    assert [int(image[0, 0, 0]) for image in sequence.images] == [10 * number for number in range(12)]
    assert (sequence.size, sequence.cameras, len(sequence)) == ((20, 24), None, 12)
    padded = ["IMG_0009.JPG", "IMG_0010.JPG", "a-1.png", "a_1.png"]
    assert natural_order(padded[::-1]) == sorted(padded)
    assert natural_order(["a10b2", "a10b1", "a9", "9", "10"]) == ["9", "10", "a9", "a10b1", "a10b2"]


def test_step_count_and_size(tmp_path: Path) -> None:
    write_frames(tmp_path / "images", make_frames())
    sequence = read_sequence(tmp_path, every=2, max_frames=2, size=(20, 28))
    assert sequence.names == ["0000.png", "0002.png"]
    assert [image.shape for image in sequence.images] == [(20, 28, 3)] * 2
    assert int(sequence.images[1].mean()) == 60
    with pytest.raises(InputError, match="proportions"):
        read_sequence(tmp_path, size=(20, 20))
    with pytest.raises(InputError, match="every"):
        read_sequence(tmp_path, every=0)


def test_alpha_is_dropped(tmp_path: Path) -> None:
    pixels = np.full((20, 20, 4), (200, 100, 50, 7), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "0.png")
    np.testing.assert_array_equal(read_sequence(tmp_path).images[0], pixels[..., :3])


def test_unusable_folders(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="no images"):
        read_sequence(ensure_folder(tmp_path / "empty"))
    with pytest.raises(ImageError, match="no such file"):
        read_sequence(tmp_path / "nowhere")
    folder = write_frames(tmp_path / "frames", make_frames(3))
    with pytest.raises(ImageError, match="holds no images; name a folder inside"):
        read_sequence(folder, images="images_8")
    with pytest.raises(ImageError, match="single image"):
        read_sequence(folder / "0001.png")
    (folder / "0001.png").write_bytes((folder / "0001.png").read_bytes()[:60])
    with pytest.raises(ImageError, match=r"0001\.png"):
        read_sequence(folder)
    write_image(folder / "0001.png", np.zeros((41, 56, 3), np.uint8))
    with pytest.raises(ImageError, match=r"0001\.png: is 56x41, the first image 56x40"):
        read_sequence(folder)
    write_image(folder / "0000.jpg", make_frames(1)[0])
    with pytest.raises(ImageError, match=r"0000\.jpg.*0000\.png|0000\.png.*0000\.jpg"):
        read_sequence(folder)


def test_video(tmp_path: Path) -> None:
    path = write_video(tmp_path / "walk.mp4", make_frames(8))
    sequence = read_sequence(path, every=3)
    assert sequence.names == ["frame_000000", "frame_000003", "frame_000006"]
    assert [round(float(image.mean()) / 30) for image in sequence.images] == [0, 3, 6]
    assert sequence.cameras is None
    assert len(read_sequence(path, max_frames=2)) == 2
    with pytest.raises(InputError, match="no folder"):
        read_sequence(path, images="images")


@pytest.mark.parametrize("content", [b"", b"no video at all" * 100])
def test_videos_that_cannot_be_decoded(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "walk.mp4").write_bytes(content)
    with pytest.raises(ImageError, match=r"walk\.mp4"):
        read_sequence(tmp_path / "walk.mp4")


@pytest.mark.parametrize("layout", ["colmap", "transforms"])
def test_reference_cameras(layout: str, tmp_path: Path) -> None:
    views = write_posed_images(tmp_path, layout, 4)
    sequence = read_sequence(tmp_path)
    assert sequence.cameras is not None
    for camera, view in zip(sequence.cameras, views, strict=True):
        np.testing.assert_allclose(camera.world_to_camera, view.camera.world_to_camera, atol=1e-9)
        np.testing.assert_allclose(camera.intrinsics, view.camera.intrinsics, atol=1e-9)


@pytest.mark.parametrize(
    ("model", "params", "focal", "distortion"),
    [
        ("PINHOLE", [300, 310, 112, 80], (300, 310), None),
        ("SIMPLE_RADIAL", [300, 112, 80, 0.1], (300, 300), [0.1, 0, 0, 0]),
        ("OPENCV", [300, 310, 112, 80, 0.1, 0.2, 0.3, 0.4], (300, 310), [0.1, 0.2, 0.3, 0.4]),
    ],
)
@pytest.mark.parametrize("binary", [True, False])
def test_nerfbuster_layout_with_reduced_images(
    binary: bool, model: str, params: list[float], focal: tuple[float, float], distortion: object, tmp_path: Path
) -> None:
    """The reference belongs to images of four times the size, and lacks the last frame."""
    scene = tmp_path / "aloe"
    write_frames(scene / "images", make_frames(3), "frame_{:05d}.png")
    rows = {
        number + 1: ColmapImage(f"frame_{number:05d}.png", 1, np.array([1.0, 0, 0, 0]), np.array([0.1 * number, 0, 2]))
        for number in range(2)
    }
    camera = ColmapCamera(model, 224, 160, np.array(params, dtype=float))
    write_colmap(ensure_folder(scene / "sparse"), ColmapModel({1: camera}, rows, empty_points()), binary=binary)
    cameras = read_sequence(scene).cameras
    assert cameras is not None
    first, second, last = cameras
    assert last is None
    assert first is not None
    assert second is not None
    assert (first.fx, first.fy) == pytest.approx((focal[0] / 4, focal[1] / 4))
    # The centre of the image stays the centre: 112 of 224 from the corner is 28 of 56, and pixel 27.5.
    assert (first.cx, first.cy) == pytest.approx((27.5, 19.5))
    assert (first.width, first.height) == (56, 40)
    assert second.world_to_camera[0, 3] == pytest.approx(0.1)
    if distortion is None:
        assert first.distortion is None
    else:
        np.testing.assert_allclose(first.distortion, distortion)


def test_reference_of_other_images(tmp_path: Path) -> None:
    write_posed_images(tmp_path, "colmap", 3)
    paths = sorted((tmp_path / "images").iterdir())
    for path in paths:
        write_image(path, np.zeros((50, 50, 3), np.uint8))
    with pytest.raises(CameraFileError, match="images of 96x72, the images here are 50x50"):
        read_sequence(tmp_path)
    for path in paths:
        path.rename(path.with_name("x" + path.name))
    with pytest.raises(CameraFileError, match="none of the images"):
        read_sequence(tmp_path)


def test_poses_bounds(tmp_path: Path) -> None:
    """LLFF's file is made here from cameras in OpenGL axes, as its own scripts describe it."""
    views = make_toy_views(3)
    rows = []
    for view in views:
        opengl = np.linalg.inv(view.camera.world_to_camera) @ np.diag([1.0, -1, -1, 1])
        right, up, back, center = opengl[:3].T
        matrix = np.stack([-up, right, back, center, [4 * 72, 4 * 96, 4 * 140.0]], 1)
        rows.append([*matrix.ravel(), 0.5, 2.0])
    write_frames(tmp_path / "images", [view.image for view in views], "IMG_{}.png")
    np.save(tmp_path / "poses_bounds.npy", rows)
    cameras = read_sequence(tmp_path).cameras
    assert cameras is not None
    for camera, view in zip(cameras, views, strict=True):
        assert camera is not None
        np.testing.assert_allclose(camera.world_to_camera, view.camera.world_to_camera, atol=1e-12)
        assert (camera.fx, camera.cx, camera.cy) == pytest.approx((140, 47.5, 35.5))
    np.save(tmp_path / "poses_bounds.npy", rows[:2])
    with pytest.raises(FileFormatError, match="2 poses, but there are 3 images"):
        read_sequence(tmp_path)
    np.save(tmp_path / "poses_bounds.npy", np.full((3, 17), np.nan))
    with pytest.raises(CameraFileError, match="Nx17"):
        read_sequence(tmp_path)
    (tmp_path / "poses_bounds.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(CameraFileError, match="copy it again"):
        read_sequence(tmp_path)


@pytest.mark.parametrize("name", ["nerfbuster", "llff"])
def test_registered_scenes(name: str, tmp_path: Path) -> None:
    views = write_posed_images(tmp_path / "fern", "colmap", 4)
    for data in (open_dataset(name, tmp_path, scene="fern"), open_dataset(name, tmp_path / "fern")):
        assert len(data) == 4  # type: ignore[arg-type]
        np.testing.assert_array_equal(data[2].images[0], views[2].image)
    card, reader = load_dataset_card(name), find_dataset(name).load()
    assert (card.task, reader.name) == ("nerf", name)  # type: ignore[attr-defined]
    assert f"`{name}`" in (resource_folder("datasets") / "README.md").read_text()


@pytest.mark.real
@pytest.mark.parametrize(("name", "count", "focal"), [("room16", 16, 150.0), ("fox12", 12, 343.75125)])
def test_real_sequences(name: str, count: int, focal: float, shared: Path) -> None:
    root = shared / "data/nerf_sample" / name
    sequence = read_sequence(root)
    truth = np.load(root / "poses.npz")
    assert len(sequence) == count
    assert sequence.size == (int(truth["height"]), int(truth["width"]))
    assert sequence.cameras is not None
    for camera, pose in zip(sequence.cameras, truth["c2w_opencv"], strict=True):
        assert camera is not None
        # The rotations of poses.npz (fox12) are rotations to 1e-6 only, at a distance of 6 from the origin.
        np.testing.assert_allclose(np.linalg.inv(camera.world_to_camera), pose, atol=1e-5)
        assert camera.fx == pytest.approx(focal, abs=1e-3)
