# SPDX-License-Identifier: Apache-2.0
"""Points and meshes of panoramas: a sphere, two walls, trimesh and SciPy as oracles."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh
from scipy.ndimage import map_coordinates

from vision3d.errors import InputError
from vision3d.geometry.icosphere import face_count, icosphere
from vision3d.geometry.panorama import panorama_pixels, panorama_rays
from vision3d.geometry.panorama_mesh import panorama_to_faces
from vision3d.geometry.panorama_surface import (
    faces_to_mesh,
    faces_to_pointcloud,
    panorama_edge_mask,
    panorama_to_pointcloud,
    resize_panorama_depth,
)

IMAGE = np.random.default_rng(0).integers(0, 256, (32, 64, 3), dtype=np.uint8)


def box(height: int) -> np.ndarray:
    """Distances in the middle of a cube of 4 m."""
    return (2 / np.abs(panorama_rays(height)).max(axis=-1)).astype(np.float32)


def test_points_lie_on_the_walls_of_a_box() -> None:
    depth = box(32)
    depth[0, 0] = np.nan
    cloud = panorama_to_pointcloud(depth, IMAGE)
    assert len(cloud) == depth.size - 1
    np.testing.assert_allclose(np.abs(cloud.points).max(axis=1), 2, rtol=1e-5)
    np.testing.assert_array_equal(cloud.colors, IMAGE.reshape(-1, 3)[1:])
    with pytest.raises(InputError, match="the mask"):
        panorama_to_pointcloud(depth, IMAGE, np.ones((3, 6), bool))


def test_points_of_faces() -> None:
    faces = np.full(face_count(3), 3.0)
    faces[5] = np.nan
    cloud = faces_to_pointcloud(faces, IMAGE)
    assert len(cloud) == face_count(3) - 1
    np.testing.assert_allclose(np.linalg.norm(cloud.points, axis=1), 3, rtol=1e-5)


def test_mesh_of_a_sphere_is_closed_and_faces_inwards() -> None:
    mesh = faces_to_mesh(np.full(face_count(4), 2.0), IMAGE)
    assert len(mesh.faces) == face_count(4)
    np.testing.assert_allclose(np.linalg.norm(mesh.vertices, axis=1), 2, rtol=1e-5)
    oracle = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False)
    oracle.merge_vertices(merge_tex=True, merge_norm=True)
    assert oracle.is_watertight
    assert oracle.volume == pytest.approx(-4 / 3 * np.pi * 8, rel=0.01)  # negative: the front is inside


def test_texture_places_are_the_pixels_of_the_vertices() -> None:
    mesh = faces_to_mesh(np.full(face_count(4), 2.0), IMAGE)
    u, v = panorama_pixels(mesh.vertices, 32).T
    away = np.hypot(mesh.vertices[:, 0], mesh.vertices[:, 2]) > 1e-6
    turns = (mesh.coordinates[:, 0] * 64 - 0.5 - u) / 64
    np.testing.assert_allclose(turns[away], np.rint(turns[away]), atol=1e-5)
    np.testing.assert_allclose(mesh.coordinates[:, 1] * 32 - 0.5, v, atol=1e-4)
    spans = np.ptp(mesh.coordinates[:, 0][mesh.faces], axis=1)
    assert spans.max() < 0.5
    assert mesh.coordinates[:, 0].min() >= 0


def test_triangles_between_surfaces_are_left_out() -> None:
    centres = icosphere(4).centres
    faces = np.where(centres[:, 0] > 0, 1.0, 3.0)
    faces[np.abs(centres[:, 1]) > 0.9] = np.nan
    mesh = faces_to_mesh(faces, IMAGE)
    reach = np.linalg.norm(mesh.vertices, axis=1)[mesh.faces]
    assert (reach.max(axis=1) <= 1.2 * reach.min(axis=1) + 1e-6).all()
    assert len(mesh.faces) < np.isfinite(faces).sum()
    with pytest.raises(InputError, match="no triangle"):
        faces_to_mesh(np.full(face_count(4), np.nan), IMAGE)
    with pytest.raises(InputError, match="max_ratio"):
        faces_to_mesh(faces, IMAGE, max_ratio=1.0)


def test_mesh_of_a_box_keeps_its_volume() -> None:
    mesh = faces_to_mesh(panorama_to_faces(box(128), 5, nearest=True), IMAGE, max_ratio=3)
    oracle = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False)
    assert oracle.volume == pytest.approx(-64, rel=0.03)


@pytest.mark.parametrize("height", [16, 50, 7])
def test_resizing_wraps_as_scipy_does(height: int) -> None:
    depth = np.random.default_rng(1).uniform(1, 5, (24, 48)).astype(np.float32)
    rows = (np.arange(height) + 0.5) * 24 / height - 0.5
    columns = (np.arange(2 * height) + 0.5) * 24 / height - 0.5
    padded = np.pad(depth, ((0, 0), (4, 4)), mode="wrap")
    grid = np.meshgrid(np.clip(rows, 0, 23), columns + 4, indexing="ij")
    expected = map_coordinates(padded.astype(float), grid, order=1)
    np.testing.assert_allclose(resize_panorama_depth(depth, height), expected, atol=0.08)  # 1/32 pixel of OpenCV


def test_edges_are_found_across_the_seam() -> None:
    depth = np.full((16, 32), 2.0, dtype=np.float32)
    depth[:, 16:] = 4.0
    edges = panorama_edge_mask(depth)
    assert edges[8, [0, 31, 15, 16]].any()
    assert not edges[:, 4:12].any()
    np.testing.assert_array_equal(edges, np.roll(panorama_edge_mask(np.roll(depth, 5, axis=1)), -5, axis=1))
