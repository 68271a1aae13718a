# SPDX-License-Identifier: Apache-2.0
"""From the depth of a panorama to points and to a textured mesh, in camera axes."""

from __future__ import annotations

import cv2
import numpy as np

from vision3d.errors import InputError
from vision3d.geometry.icosphere import icosphere
from vision3d.geometry.panorama import panorama_pixels, panorama_rays
from vision3d.geometry.panorama_mesh import level_of, panorama_to_faces
from vision3d.geometry.pointcloud import depth_edge_mask
from vision3d.types import PointCloud, TexturedMesh


def resize_panorama_depth(depth: np.ndarray, height: int) -> np.ndarray:
    """Resample [h, 2h] bilinearly to [height, 2 height] without a seam; unknown where a neighbour is unknown."""
    rows = depth.shape[0]
    if rows == height:
        return depth
    ends = [depth[:, -1:], depth, depth[:, :1]]
    padded = np.ascontiguousarray(np.concatenate(ends, axis=1), dtype=np.float32)
    u = ((np.arange(2 * height) + 0.5) * rows / height + 0.5).astype(np.float32)
    v = ((np.arange(height) + 0.5) * rows / height - 0.5).astype(np.float32)
    u, v = np.meshgrid(u, v)
    return np.asarray(cv2.remap(padded, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))


def panorama_edge_mask(depth: np.ndarray) -> np.ndarray:
    """[H, 2H] bool: pixels at depth edges, across the seam too; see ``depth_edge_mask``."""
    padded = np.concatenate([depth[:, -1:], depth, depth[:, :1]], axis=1)
    return np.asarray(depth_edge_mask(padded)[:, 1:-1])


def panorama_to_pointcloud(
    depth: np.ndarray, image: np.ndarray | None = None, mask: np.ndarray | None = None
) -> PointCloud:
    """One point a pixel: ``depth * ray``, row by row.

    Args:
        depth: [H, 2H] metres along the ray, NaN where unknown.
        image: [H, 2H, 3] uint8, or None.
        mask: [H, 2H] bool, True where points are wanted.

    Raises:
        InputError: sizes that do not fit each other.
    """
    height = depth.shape[0]
    for name, array in (("depth", depth), ("image", image), ("mask", mask)):
        if array is not None and array.shape[:2] != (height, 2 * height):
            raise InputError(f"the {name} is of size {array.shape[:2]}; ({height}, {2 * height}) is expected")
    with np.errstate(invalid="ignore"):
        wanted = np.isfinite(depth) & (depth > 0)
    if mask is not None:
        wanted &= mask
    points = (panorama_rays(height)[wanted] * depth[wanted][:, None]).astype(np.float32)
    return PointCloud(points, None if image is None else np.ascontiguousarray(image[wanted]))


def faces_to_pointcloud(faces: np.ndarray, image: np.ndarray | None = None) -> PointCloud:
    """One point a face at its centre, evenly spread over the sphere.

    Args:
        faces: [F] metres along the ray, NaN where unknown.
        image: [H, 2H, 3] uint8, or None.

    Raises:
        InputError: F is no number of faces.
    """
    level = level_of(len(faces))
    known = np.isfinite(faces) & (faces > 0)
    points = (icosphere(level).centres[known] * faces[known][:, None]).astype(np.float32)
    colors = None
    if image is not None:
        samples = panorama_to_faces(image, level, reduce=True)[known]
        colors = np.clip(np.rint(samples), 0, 255).astype(np.uint8)
    return PointCloud(points, colors)


def faces_to_mesh(faces: np.ndarray, image: np.ndarray, max_ratio: float = 1.2) -> TexturedMesh:
    """The triangles of the mesh moved out to their distances, with the panorama as their texture, seen from inside.

    The distance of a vertex is the mean over the known faces around it. Triangles whose corners differ by more than
    ``max_ratio`` would bridge two surfaces and are left out, and so are unknown ones.

    Args:
        faces: [F] metres along the ray, NaN where unknown.
        image: [H, 2H, 3] uint8.
        max_ratio: largest by smallest distance of the corners of a triangle, above 1.

    Returns:
        Vertices on the border of the picture, and at its poles, are doubled, so that no triangle stretches over it.

    Raises:
        InputError: F is no number of faces, an illegal ratio, or no triangle is left.
    """
    if not max_ratio > 1:
        raise InputError(f"max_ratio is {max_ratio}: pass a number above 1")
    mesh = icosphere(level_of(len(faces)))
    corners = mesh.faces
    known = np.isfinite(faces) & (faces > 0)
    distance = _vertex_distances(np.where(known, faces, 0.0), known, corners, len(mesh.vertices))
    reach = distance[corners]
    with np.errstate(invalid="ignore"):
        kept = known & (reach.max(axis=1) <= max_ratio * reach.min(axis=1))
    if not kept.any():
        raise InputError("no triangle of the mesh has a known and even depth: raise max_ratio")
    corners = corners[kept]
    places = _texture_places(mesh.vertices, corners)
    key = np.concatenate([corners.reshape(-1, 1), np.rint(places.reshape(-1, 2) * 2**20)], axis=1).astype(np.int64)
    _, first, index = np.unique(key, axis=0, return_index=True, return_inverse=True)
    vertex = corners.reshape(-1)[first]
    return TexturedMesh(
        vertices=(mesh.vertices[vertex] * distance[vertex][:, None]).astype(np.float32),
        faces=np.ascontiguousarray(index.reshape(-1, 3)[:, ::-1], dtype=np.int32),  # the front is inside
        coordinates=places.reshape(-1, 2)[first].astype(np.float32),
        image=image,
    )


def _vertex_distances(faces: np.ndarray, known: np.ndarray, corners: np.ndarray, count: int) -> np.ndarray:
    """[V] mean over the known faces around each vertex, NaN where there are none."""
    index = corners.reshape(-1)
    total = np.bincount(index, weights=np.repeat(faces, 3), minlength=count)
    number = np.bincount(index, weights=np.repeat(known.astype(np.float64), 3), minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(total / number)


def _texture_places(vertices: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """[T, 3, 2] place in the picture of each corner, 0 to 1 from the upper left; triangles across the border go on
    beyond 1, and a pole lies above the middle of its triangle."""
    pixels = panorama_pixels(vertices, 1, 1) + 0.5  # of a picture with a width and height of 1
    places = pixels[corners]
    u = places[..., 0]
    u += (u.max(axis=1, keepdims=True) - u > 0.5).astype(np.float64)
    pole = np.hypot(vertices[:, 0], vertices[:, 2])[corners] < 1e-9
    for corner in range(3):
        others = [number for number in range(3) if number != corner]
        at = pole[:, corner]
        pair = u[np.ix_(at, others)]
        pair += (pair.max(axis=1, keepdims=True) - pair > 0.5).astype(np.float64)
        u[np.ix_(at, others)] = pair
        u[at, corner] = pair.mean(axis=1)
    return places
