# SPDX-License-Identifier: Apache-2.0
"""Textured meshes as GLB, read back by trimesh."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import trimesh

from vision3d.errors import InputError, OutputError
from vision3d.io.mesh import write_mesh
from vision3d.types import TexturedMesh


def square(**changes: np.ndarray) -> TexturedMesh:
    image = np.full((8, 16, 3), (200, 30, 60), dtype=np.uint8)
    parts = {
        "vertices": np.array([[0, 0, 2], [1, 0, 2], [1, 1, 2], [0, 1, 2]], dtype=np.float32),
        "faces": np.array([[0, 1, 2], [0, 2, 3]], dtype=np.int32),
        "coordinates": np.array([[0, 0], [1.25, 0], [1.25, 1], [0, 1]], dtype=np.float32),
        "image": image,
    }
    return TexturedMesh(**{**parts, **changes})


def test_trimesh_reads_what_was_written(tmp_path: Path) -> None:
    mesh = square()
    write_mesh(tmp_path / "mesh.glb", mesh)
    scene = trimesh.load_scene(tmp_path / "mesh.glb", process=False)
    (name,) = scene.graph.nodes_geometry
    transform, key = scene.graph[name]
    read = scene.geometry[key]
    np.testing.assert_allclose(trimesh.transform_points(read.vertices, transform), mesh.vertices * (1, -1, -1))
    np.testing.assert_array_equal(read.faces, mesh.faces)
    np.testing.assert_allclose(read.visual.uv, np.stack([mesh.coordinates[:, 0], 1 - mesh.coordinates[:, 1]], axis=1))
    picture = np.asarray(read.visual.material.baseColorTexture.convert("RGB"))
    assert picture.shape == (8, 16, 3)
    assert np.abs(picture.astype(int) - mesh.image).max() < 8  # JPEG


def test_chunks_are_aligned_and_unlit(tmp_path: Path) -> None:
    write_mesh(tmp_path / "mesh.glb", square())
    content = (tmp_path / "mesh.glb").read_bytes()
    length, text = int.from_bytes(content[8:12], "little"), int.from_bytes(content[12:16], "little")
    assert length == len(content)
    assert text % 4 == 0
    facts = json.loads(content[20 : 20 + text])
    assert facts["extensionsUsed"] == ["KHR_materials_unlit"]
    assert all(view["byteOffset"] % 4 == 0 for view in facts["bufferViews"])


def test_unusable_meshes(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"\.glb"):
        write_mesh(tmp_path / "mesh.obj", square())
    with pytest.raises(InputError):
        write_mesh(tmp_path / "mesh.glb", square(faces=np.zeros((0, 3), np.int32)))
    with pytest.raises(InputError):
        write_mesh(tmp_path / "mesh.glb", square(faces=np.array([[0, 1, 9]], np.int32)))
    assert list(tmp_path.iterdir()) == []
