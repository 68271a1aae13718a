# SPDX-License-Identifier: Apache-2.0
"""Panoramas and multi-view sets of rooms."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from vision3d.datasets.synthetic.photometric import degrade
from vision3d.datasets.synthetic.rooms import RoomOptions, make_room, make_room_panorama, make_room_views
from vision3d.datasets.synthetic.rooms.materials import Material
from vision3d.datasets.synthetic.rooms.meshes import (
    Mesh,
    blob,
    box,
    capsule,
    curtain,
    cylinder,
    face_normals,
    lathe,
    rounded_box,
    sphere,
    torus,
    tube,
)
from vision3d.datasets.synthetic.rooms.room import Part, assemble
from vision3d.datasets.synthetic.rooms.views import EquirectangularRays, PinholeRays, camera_center, render_view
from vision3d.errors import InputError
from vision3d.geometry.panorama import panorama_rays
from vision3d.types import Camera

pytest.importorskip("open3d")

PLAIN = RoomOptions(photometric=0, specular=0, mirror=0, glass=0, bloom=0, lens_flare=0, dark=0, over_exposed=0)


def test_a_panorama_inside_a_box_has_the_distances_of_the_closed_form() -> None:
    center, half = np.array([0.3, -0.2, 0.1]), np.array([2.0, 1.5, 1.2])
    walls = box(*(2 * half)).moved(z=-half[2])
    texture = np.full((512, 512, 3), 128, np.uint8)
    room = assemble([Part(walls, Material(), 0)], [texture])
    pose = np.eye(4)
    pose[:3, 3] = -center
    view = render_view(room, EquirectangularRays(64, pose))
    rays = panorama_rays(64)
    expected = ((np.sign(rays) * half - center) / rays).min(axis=-1)
    np.testing.assert_allclose(view.distance, expected, rtol=3e-6)
    axis = ((np.sign(rays) * half - center) / rays).argmin(axis=-1)
    normals = -np.sign(np.take_along_axis(rays, axis[..., None], -1)) * np.eye(3)[axis]
    np.testing.assert_allclose(view.normals, normals, atol=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_panoramas_are_complete_and_level_and_their_seam_is_continuous(seed: int) -> None:
    sample = make_room_panorama(seed, 96, PLAIN)
    assert sample.depth is not None
    assert sample.normals is not None
    assert sample.world_to_camera is not None
    assert np.isfinite(sample.depth).all()
    np.testing.assert_allclose(sample.world_to_camera[1, :3], [0, 0, -1], atol=1e-9)
    size, center = make_room(seed, PLAIN).size, camera_center(sample.world_to_camera)
    assert size is not None
    assert sample.depth[0].mean() == pytest.approx((size[2] - center[2]) / np.cos(np.pi / 192), rel=0.2)
    rays = panorama_rays(96)
    assert ((rays * sample.normals).sum(-1) < 1e-6).all()
    for values in (sample.image.astype(float).mean(-1), np.log(sample.depth)):
        seam = np.median(np.abs(values[:, 0] - values[:, -1]))
        steps = np.median(np.abs(np.diff(values, axis=1)), axis=0)
        assert seam <= np.quantile(steps, 0.98) + 1e-6


def test_a_panorama_sees_what_a_pinhole_camera_sees() -> None:
    room = make_room(5, PLAIN)
    pose = np.asarray(make_room_panorama(5, 128, PLAIN).world_to_camera)
    camera = Camera(np.array([[60.0, 0, 31.5], [0, 60.0, 31.5], [0, 0, 1]]), 64, 64, world_to_camera=pose)
    rays = PinholeRays(camera)
    pinhole = render_view(room, rays, color=False)
    from vision3d.geometry.panorama import panorama_pixels

    v, u = np.mgrid[0:64, 0:64].astype(float)
    place = panorama_pixels(rays.directions(u, v), 512).astype(np.float32)
    wide = render_view(room, EquirectangularRays(512, pose), color=False)
    there = cv2.remap(wide.distance.astype(np.float32), place, None, cv2.INTER_LINEAR)
    assert np.median(np.abs(there / pinhole.distance - 1)) < 1e-4
    assert (np.abs(there / pinhole.distance - 1) < 0.01).mean() > 0.9


def test_a_tilted_panorama_is_turned_and_still_complete() -> None:
    level, tilted = make_room_panorama(3, 32, PLAIN), make_room_panorama(3, 32, PLAIN, tilt=0.2)
    assert level.world_to_camera is not None
    assert tilted.world_to_camera is not None
    assert abs(tilted.world_to_camera[1, 2] + 1) > 1e-4
    np.testing.assert_allclose(camera_center(level.world_to_camera), camera_center(tilted.world_to_camera), atol=1e-9)


def test_views_show_the_same_place_where_the_cameras_say() -> None:
    sample = make_room_views(2, 4, 96, 128, PLAIN)
    assert sample.depth is not None
    assert sample.depth_range is not None
    assert sample.depth_range[0] < sample.depth.min() <= sample.depth.max() < sample.depth_range[1]
    assert len(sample.images) == len(sample.cameras) == 4
    assert sample.unit == "m"
    reference = sample.cameras[0]
    v, u = np.mgrid[0:96, 0:128].astype(float)
    rays = np.stack([u, v, np.ones_like(u)], -1) @ np.linalg.inv(reference.intrinsics).T
    points = rays * sample.depth[..., None]
    world = (points - reference.world_to_camera[:3, 3]) @ reference.world_to_camera[:3, :3]
    for camera, image in list(zip(sample.cameras, sample.images, strict=True))[1:]:
        seen = (world @ camera.world_to_camera[:3, :3].T + camera.world_to_camera[:3, 3]) @ camera.intrinsics.T
        x, y = (seen[..., axis] / seen[..., 2] for axis in (0, 1))
        inside = (seen[..., 2] > 0) & (x >= 0) & (x <= 127) & (y >= 0) & (y <= 95)
        assert inside.mean() > 0.3
        warped = cv2.remap(image, x.astype(np.float32), y.astype(np.float32), cv2.INTER_LINEAR)
        error = np.abs(warped.astype(float) - sample.images[0]).mean(-1)[inside]
        unmoved = np.abs(image.astype(float) - sample.images[0]).mean(-1)[inside]
        assert np.median(error) < 0.5 * np.median(unmoved)


def test_panoramas_and_views_follow_from_the_seed() -> None:
    np.testing.assert_array_equal(make_room_panorama(7, 24).image, make_room_panorama(7, 24).image)
    first, again = make_room_views(7, 3, 32, 64), make_room_views(7, 3, 32, 64)
    np.testing.assert_array_equal(first.images[2], again.images[2])
    np.testing.assert_array_equal(first.cameras[2].world_to_camera, again.cameras[2].world_to_camera)


def test_mirrors_and_glass_keep_the_truth_and_change_the_picture() -> None:
    from vision3d.datasets.synthetic.rooms.meshes import quad
    from vision3d.datasets.synthetic.rooms.room import Light

    texture = np.random.default_rng(0).integers(0, 255, (512, 512, 3)).astype(np.uint8)
    camera = PinholeRays(Camera(np.array([[40.0, 0, 15.5], [0, 40.0, 15.5], [0, 0, 1]]), 32, 32))
    far = Part(quad((-9, 9, 4.0), (18, 0, 0), (0, -18, 0)), Material(tint=(1, 0, 0)), 0)
    behind = Part(quad((-9, -9, -1.0), (18, 0, 0), (0, 18, 0)), Material(tint=(0, 1, 0)), 0)
    pane = quad((-9, 9, 2.0), (18, 0, 0), (0, -18, 0))
    views = {}
    for name, material in (("glass", Material(glass=1.0)), ("mirror", Material(mirror=1.0))):
        room = assemble([far, behind, Part(pane, material, 1)], [texture], [Light((0, 0, 1.0), (1, 1, 1))])
        views[name] = render_view(room, camera, RoomOptions(shadows=False))
        np.testing.assert_allclose(views[name].depth, 2.0, rtol=1e-6)
        np.testing.assert_allclose(views[name].reflectivity, 1.0)
    red, green = views["glass"].color.mean((0, 1)), views["mirror"].color.mean((0, 1))
    assert red[0] > 0.01 > red[1]
    assert green[1] > 0.01 > green[0]


_RNG = np.random.default_rng(1)
SOLIDS: dict[str, tuple[Mesh, float | None]] = {
    "box": (box(1, 2, 3), 6.0),
    "sphere": (sphere(1.0, 5), 4 / 3 * np.pi),
    "cylinder": (cylinder(0.5, 2.0, 200), np.pi / 2),
    "cone": (lathe([(0.5, 0.0), (0.0, 1.5)], 200), np.pi / 8),
    "rounded_box": (rounded_box(1, 1, 1, 0.499, 40), 4 / 3 * np.pi * 0.5**3),
    "torus": (torus(1.0, 3), 2 * np.pi**2 * 0.09),
    "capsule": (capsule(0.5, 4), np.pi * 0.25 * 1.0 + 4 / 3 * np.pi * 0.125),
    "blob": (blob(_RNG, 1.0), None),
    "tube": (tube(np.array([[0, 0, 0], [0, 0.2, 1], [0.3, 0.2, 2.0]]), 0.05), None),
    "curtain": (curtain(_RNG, 1.0, 2.0), None),
}


@pytest.mark.parametrize("name", SOLIDS)
def test_solids_face_outwards_and_have_their_volume(name: str) -> None:
    mesh, volume = SOLIDS[name]
    outward = (face_normals(mesh.corners)[:, None] * mesh.normals).sum(-1)
    assert outward.min() > 0.5
    np.testing.assert_allclose(np.linalg.norm(mesh.normals, axis=-1), 1, atol=1e-6)
    if volume is not None:
        a, b, c = mesh.corners.transpose(1, 0, 2)
        assert (a * np.cross(b, c)).sum() / 6 == pytest.approx(volume, rel=0.02)


def test_illegal_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="8 rows"):
        make_room_panorama(0, 4)
    with pytest.raises(InputError, match="tilt"):
        make_room_panorama(0, 32, tilt=-1.0)
    with pytest.raises(InputError, match="2 views"):
        make_room_views(0, 1)
    with pytest.raises(InputError, match="rectified"):
        PinholeRays(replace(Camera(np.eye(3), 8, 8), distortion=np.ones(4)))


@pytest.mark.parametrize("panorama", [True, False])
def test_the_degradations_of_a_panorama_have_no_seam(panorama: bool) -> None:
    ramp = 127 + 60 * np.cos(np.linspace(0, 2 * np.pi, 64, endpoint=False))
    image = np.repeat(ramp.astype(np.float32)[None, :, None], 256, 0).repeat(3, 2)
    steps = []
    for seed in range(60):
        degraded = degrade(image.copy(), np.random.default_rng(seed), 1.0, panorama=panorama)
        columns = degraded.astype(np.float64).mean((0, 2))
        steps.append(abs(columns[0] - columns[-1]))
    assert (max(steps) < 2) == panorama  # of a pinhole image some are darker at one side
