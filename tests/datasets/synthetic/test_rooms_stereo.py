# SPDX-License-Identifier: Apache-2.0
"""Rooms: their truth against closed forms, and against what the two views show."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from vision3d.datasets.registry import open_dataset
from vision3d.datasets.synthetic.rooms import RoomOptions, RoomStereo, make_room, make_room_stereo
from vision3d.datasets.synthetic.rooms.materials import Material
from vision3d.datasets.synthetic.rooms.meshes import quad, sphere
from vision3d.datasets.synthetic.rooms.poses import move_right
from vision3d.datasets.synthetic.rooms.room import Light, Part, Room, assemble
from vision3d.datasets.synthetic.rooms.stereo import find_occlusion, render_stereo
from vision3d.datasets.synthetic.rooms.views import PinholeRays, render_view
from vision3d.errors import ConfigError, InputError
from vision3d.geometry.normals import normals_from_depth
from vision3d.types import Camera, StereoRig, StereoSample

pytest.importorskip("open3d")

LAMBERTIAN = RoomOptions(
    photometric=0, specular=0, mirror=0, glass=0, bloom=0, lens_flare=0, dark=0, over_exposed=0, supersample=1
)
CENTER, RADIUS = np.array([0.2, -0.1, 2.0]), 0.4  # of the ball, camera axes
PLANE = 3.0  # z of the plane behind it


def rig_of(width: int = 160, height: int = 120) -> StereoRig:
    intrinsics = np.array([[130.0, 0, 76.3], [0, 140.0, 58.9], [0, 0, 1]])
    camera = Camera(intrinsics, width, height)
    moved = intrinsics.copy()
    moved[0, 2] += 4.5
    return StereoRig(camera, replace(camera, intrinsics=moved), 0.13)


def ball_and_plane() -> Room:
    """World axes are the camera's here: the pose is the identity."""
    plane = quad((-10, 10, PLANE), (20, 0, 0), (0, -20, 0))
    ball = sphere(RADIUS, 6).moved(*CENTER)
    texture = np.random.default_rng(0).integers(0, 255, (512, 512, 3)).astype(np.uint8)
    parts = [Part(plane, Material(), 0), Part(ball, Material(), 1)]
    return assemble(parts, [texture], [Light((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))], objects=["plane", "ball"])


def closed_form(camera: Camera) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """z-depth, normals and where the ball is, by algebra."""
    u, v = np.meshgrid(np.arange(160.0), np.arange(120.0))
    ray = np.stack([(u - camera.cx) / camera.fx, (v - camera.cy) / camera.fy, np.ones_like(u)], axis=-1)
    a, b, c = (ray**2).sum(-1), ray @ CENTER, CENTER @ CENTER - RADIUS**2
    root = b**2 - a * c
    hit = root > 0
    z = np.where(hit, (b - np.sqrt(np.maximum(root, 0))) / a, PLANE)
    normals = np.where(hit[..., None], (z[..., None] * ray - CENTER) / RADIUS, np.array([0, 0, -1.0]))
    return z, normals, hit


def test_plane_and_ball_have_the_depth_normals_and_disparity_of_the_closed_form() -> None:
    rig, room = rig_of(), ball_and_plane()
    left = render_view(room, PinholeRays(rig.left))
    z, normals, ball = closed_form(rig.left)
    rim = cv2.dilate(cv2.Canny(ball.astype(np.uint8) * 255, 1, 2), np.ones((3, 3))) > 0
    np.testing.assert_array_equal(left.object_ids[~rim], ball[~rim])
    inside, outside = ball & ~rim, ~ball & ~rim
    np.testing.assert_allclose(left.depth[outside], z[outside], rtol=2e-6)
    np.testing.assert_allclose(left.depth[inside], z[inside], rtol=1e-4)
    np.testing.assert_allclose(left.normals[outside], normals[outside], atol=1e-6)
    np.testing.assert_allclose(left.normals[inside], normals[inside], atol=4e-3)  # where the facets leave the sphere
    assert np.abs(np.linalg.norm(left.normals, axis=-1) - 1).max() < 1e-5
    assert left.reflectivity.max() == 0


def test_occlusion_is_that_of_the_closed_form() -> None:
    rig, room = rig_of(), ball_and_plane()
    pose = np.eye(4)
    left, _ = render_stereo(room, rig, pose)
    hidden = find_occlusion(room, left, replace(rig.right, world_to_camera=move_right(pose, rig.baseline)))
    z, _, ball = closed_form(rig.left)
    u, v = np.meshgrid(np.arange(160.0), np.arange(120.0))
    points = np.stack([(u - rig.left.cx) / rig.left.fx * z, (v - rig.left.cy) / rig.left.fy * z, z], axis=-1)
    center = np.array([rig.baseline, 0, 0])
    way, to_ball = points - center, CENTER - center
    along = (way @ to_ball) / (way**2).sum(-1)
    misses = np.linalg.norm(along[..., None] * way - to_ball, axis=-1) > RADIUS
    x = u - (rig.left.fx * rig.baseline / z - rig.doffs)
    expected = (~misses & ~ball) | (x < 0) | (x > 159)
    front = (way * (points - CENTER)).sum(-1) > 0  # the ball hides its own far side
    expected |= ball & front
    assert (hidden != expected).mean() < 0.003
    assert 0.02 < hidden.mean() < 0.5


def _warp(image: np.ndarray, disparity: np.ndarray, interpolation: int = cv2.INTER_LINEAR) -> np.ndarray:
    height, width = disparity.shape
    x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    return cv2.remap(image, x - disparity, y, interpolation)


def _parts(sample: StereoSample) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    assert sample.disparity is not None
    assert sample.right_disparity is not None
    assert sample.occlusion is not None
    assert sample.normals is not None
    return sample.disparity, sample.right_disparity, sample.occlusion, sample.normals


@pytest.fixture(scope="module", params=[0, 3, 9])
def pair(request: pytest.FixtureRequest) -> StereoSample:
    return make_room_stereo(request.param, 192, 384, options=LAMBERTIAN)


def test_right_image_warped_by_the_disparity_is_the_left_image(pair: StereoSample) -> None:
    disparity, _, hidden, _ = _parts(pair)
    error = np.abs(_warp(pair.right, disparity).astype(float) - pair.left).mean(axis=2)[~hidden]
    unwarped = np.abs(pair.right.astype(float) - pair.left).mean(axis=2)[~hidden]
    assert np.median(error) < 1.0
    assert error.mean() < 0.4 * unwarped.mean()
    assert (error > 25).mean() < 0.03


def test_both_views_agree_where_nothing_is_hidden_and_only_there(pair: StereoSample) -> None:
    disparity, other, hidden, _ = _parts(pair)
    x = np.arange(disparity.shape[1]) - disparity
    np.testing.assert_array_equal(hidden[x < -0.01], True)
    difference = _warp(other, disparity, cv2.INTER_NEAREST) - disparity
    assert (np.abs(difference[~hidden]) < 0.5).mean() > 0.985
    assert np.median(np.abs(difference[~hidden])) < 0.05
    covered = hidden & (x > 1)
    nearest = _warp(cv2.dilate(other, np.ones((3, 3))), disparity, cv2.INTER_NEAREST)  # thin things fall between pixels
    assert (nearest - disparity > 1e-3)[covered].mean() > 0.95
    gone = (difference > 1.0) & (x > 1)  # the consistency check finds the same pixels
    assert hidden[gone].mean() > 0.85


def test_normals_are_those_of_the_depth_inside_surfaces(pair: StereoSample) -> None:
    disparity, _, _, normals = _parts(pair)
    assert pair.rig is not None
    camera = pair.rig.left
    depth = camera.fx * pair.rig.baseline / disparity
    found = normals_from_depth(depth.astype(np.float32), camera)
    angle = np.degrees(np.arccos(np.clip((found * normals).sum(-1), -1, 1)))
    assert np.nanmedian(angle) < 0.2
    assert np.nanmean(angle < 5) > 0.85
    v, u = np.mgrid[0 : disparity.shape[0], 0 : disparity.shape[1]]
    ray = np.stack([(u - camera.cx) / camera.fx, (v - camera.cy) / camera.fy, np.ones(u.shape)], axis=-1)
    assert ((ray * normals).sum(-1) < 1e-6).all()


def test_a_seed_makes_the_same_pair_and_another_seed_another() -> None:
    first, again, other = (make_room_stereo(seed, 48, 96) for seed in (4, 4, 5))
    for name in ("left", "right", "disparity", "normals", "occlusion", "right_disparity"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.left, other.left)


def test_the_default_rig_is_that_of_irs_and_options_draw_another() -> None:
    from vision3d.datasets.irs import irs_rig

    sample, expected = make_room_stereo(1, 48, 96), irs_rig(96, 48)
    assert sample.rig is not None
    np.testing.assert_allclose(sample.rig.left.intrinsics, expected.left.intrinsics)
    assert sample.rig.baseline == expected.baseline
    wide = make_room_stereo(1, 48, 96, options=RoomOptions(baseline=(0.2, 0.3), focal=(0.7, 0.9)))
    assert wide.rig is not None
    assert 0.2 <= wide.rig.baseline <= 0.3
    assert 0.7 * 96 <= wide.rig.left.fx <= 0.9 * 96


def test_highlights_change_the_picture_alone() -> None:
    camera = PinholeRays(Camera(np.array([[40.0, 0, 15.5], [0, 40.0, 15.5], [0, 0, 1]]), 32, 32))
    texture = np.full((512, 512, 3), 90, np.uint8)
    views = {}
    for specular in (0.0, 0.6):
        wall = Part(quad((-9, 9, PLANE), (18, 0, 0), (0, -18, 0)), Material(specular=specular, shininess=60.0), 0)
        room = assemble([wall], [texture], [Light((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))])
        views[specular] = render_view(room, camera)
    np.testing.assert_array_equal(views[0.0].depth, views[0.6].depth)
    np.testing.assert_array_equal(views[0.0].normals, views[0.6].normals)
    gain = views[0.6].color.mean(-1) - views[0.0].color.mean(-1)
    assert gain[15:17, 15:17].min() > 0.05  # the mirror direction: the lamp is at the camera
    assert gain[0, 0] < 0.2 * gain[15, 15]


def test_exposure_changes_the_picture_alone() -> None:
    common = replace(LAMBERTIAN, furniture=(1, 2))
    kinds = {"dark": {"dark": 1.0}, "usual": {}, "over-exposed": {"over_exposed": 1.0}}
    pairs = [make_room_stereo(2, 32, 64, options=replace(common, **change)) for change in kinds.values()]  # type: ignore[arg-type]
    dark, usual, bright = (pair.left.mean() for pair in pairs)
    assert 1.3 * dark < usual < bright / 1.1
    for pair in pairs:
        np.testing.assert_array_equal(_parts(pair)[0], _parts(pairs[0])[0])


def test_rooms_are_closed_and_hold_named_objects() -> None:
    sizes = []
    for seed in range(4):
        room = make_room(seed)
        assert len(room.objects) > 8
        assert room.object_of_part.max() == len(room.objects) - 1
        sizes.append(room.size)
        sample = make_room_stereo(seed, 40, 80)
        assert np.isfinite(_parts(sample)[0]).all()
    assert len(set(sizes)) == 4


def test_the_data_set_is_registered_and_counts() -> None:
    data = open_dataset("synthetic_rooms", height=32, width=64, seed=3, scenes=2, furniture=[2, 3])
    assert isinstance(data, RoomStereo)
    assert len(data) == 2
    assert data[1].scene == data.scenes[1] == "room_00000004"
    with pytest.raises(IndexError):
        data[2]


@pytest.mark.parametrize(
    "options",
    [{"mirror": 1.5}, {"furniture": (5, 2)}, {"baseline": (0.0, 0.1)}, {"supersample": 9}, {"photometric": -1.0}],
)
def test_illegal_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        RoomOptions(**options)  # type: ignore[arg-type]


def test_other_illegal_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mirror'"):
        RoomStereo(miror=0.5)
    with pytest.raises(InputError, match="16 x 32"):
        make_room_stereo(0, 8, 8)
    with pytest.raises(InputError, match="rig"):
        make_room_stereo(0, 48, 96, rig=rig_of())
    with pytest.raises(InputError, match="image size"):
        PinholeRays(Camera(np.eye(3)))
    with pytest.raises(InputError, match="at least one part"):
        assemble([], [])
