# SPDX-License-Identifier: Apache-2.0
"""The icosphere against independent tables, trimesh, and what holds on every sphere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from vision3d.errors import InputError
from vision3d.geometry import icosphere as module
from vision3d.geometry.icosphere import dilated_neighbours, face_count, find_faces, icosphere, ring_neighbours
from vision3d.geometry.panorama import panorama_rays


@pytest.mark.real
@pytest.mark.parametrize("level", range(4))
def test_tables_equal_the_reference(level: int, shared: Path) -> None:
    tables = np.load(shared / "parity/spheredepth/icosphere_l0_l3.npz")
    mesh = icosphere(level)
    np.testing.assert_array_equal(mesh.faces, tables[f"F{level}"])
    np.testing.assert_array_equal(mesh.adjacency, tables[f"adj{level}"])
    np.testing.assert_allclose(mesh.vertices, tables[f"V{level}"], rtol=0, atol=1e-15)
    np.testing.assert_allclose(mesh.centres, tables[f"centre{level}"], rtol=0, atol=1e-15)
    np.testing.assert_allclose(mesh.solid_angles, tables[f"omega{level}"], rtol=1e-12)


@pytest.mark.real
def test_levels_equal_the_reference(shared: Path) -> None:
    for row in json.loads((shared / "parity/spheredepth/levels.json").read_text())[:8]:
        mesh = icosphere(row["level"], cache=False)
        degree = np.bincount(mesh.faces.reshape(-1))
        assert (len(mesh.vertices), len(mesh.faces)) == (row["vertices"], row["faces"])
        assert ((degree == 5).sum(), (degree == 6).sum()) == (row["deg5"], row["deg6"])
        assert mesh.solid_angles.max() == pytest.approx(row["max"], rel=1e-6)
        assert mesh.solid_angles.min() == pytest.approx(row["min"], rel=1e-6)
        assert mesh.solid_angles.sum() == pytest.approx(4 * np.pi, rel=1e-12)


@pytest.mark.real
@pytest.mark.parametrize("level", [0, 3, 5])
def test_faces_behind_pixels_equal_the_reference(level: int, shared: Path) -> None:
    expected = np.load(shared / "parity/spheredepth/erp_to_face.npz")[f"face_l{level}"]
    np.testing.assert_array_equal(find_faces(panorama_rays(64), level), expected)


@pytest.mark.parametrize("level", [0, 1, 4])
def test_counts_and_areas_equal_trimesh(level: int) -> None:
    import trimesh

    mesh, other = icosphere(level), trimesh.creation.icosphere(subdivisions=level, radius=1.0)
    ours = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False)
    assert ours.is_watertight
    assert ours.is_winding_consistent
    assert ours.volume == pytest.approx(other.volume)  # positive: counter-clockwise from outside
    np.testing.assert_allclose(np.sort(ours.area_faces), np.sort(other.area_faces), rtol=1e-9)
    pairs = {tuple(sorted(pair)) for pair in ours.face_adjacency.tolist()}
    assert pairs == {tuple(sorted((f, int(g)))) for f, row in enumerate(mesh.adjacency) for g in row}


@pytest.mark.parametrize("level", [0, 2, 4])
def test_neighbours_share_the_opposite_edge(level: int) -> None:
    mesh = icosphere(level)
    sides = mesh.faces[:, [[1, 2], [2, 0], [0, 1]]].reshape(-1, 2)
    np.testing.assert_array_equal(sides[mesh.twins], sides[:, ::-1])  # the other side runs backwards
    np.testing.assert_array_equal(mesh.twins[mesh.twins], np.arange(3 * len(mesh.faces)))
    np.testing.assert_array_equal(mesh.twins // 3, mesh.adjacency.reshape(-1))


def test_children_and_parents() -> None:
    coarse, fine = icosphere(2), icosphere(3)
    np.testing.assert_array_equal(fine.parents[coarse.children], np.arange(len(coarse.faces))[:, None].repeat(4, 1))
    for k in range(3):  # corner children keep their corner
        np.testing.assert_array_equal(fine.faces[coarse.children[:, k], 0], coarse.faces[:, k])
    np.testing.assert_array_equal(find_faces(fine.centres, 2), fine.parents)
    with pytest.raises(InputError, match="no parents"):
        _ = icosphere(0).parents


def test_ring_and_dilated_neighbours_by_walking() -> None:
    mesh = icosphere(2)
    ring, far = ring_neighbours(mesh), dilated_neighbours(mesh, 3)
    np.testing.assert_array_equal(dilated_neighbours(mesh, 1), mesh.adjacency)
    for face in (0, 17, 100, 319):
        for k, entered in enumerate(mesh.adjacency[face].tolist()):
            turning = mesh.adjacency[entered].tolist()
            at = turning.index(face)
            assert ring[face, 3 * k : 3 * k + 3].tolist() == [turning[at - 2], entered, turning[at - 1]]
            previous = turning[at - 1]
            again = mesh.adjacency[previous].tolist()
            assert far[face, k] == again[again.index(entered) - 2]  # then to the next side
    with pytest.raises(InputError, match="at least 1"):
        dilated_neighbours(mesh, 0)


@pytest.mark.parametrize("level", [0, 3, 6])
def test_lookup_against_all_half_spaces(level: int) -> None:
    directions = np.random.default_rng(level).normal(size=(300, 3))
    mesh, found = icosphere(level), find_faces(directions, level)
    a, b, c = np.moveaxis(mesh.vertices[mesh.faces[found]], 1, 0)
    for p, q in ((a, b), (b, c), (c, a)):
        assert (np.einsum("ij,ij->i", np.cross(p, q), directions) >= -1e-12).all()
    np.testing.assert_array_equal(find_faces(mesh.centres, level), np.arange(face_count(level)))


def test_lookup_shapes() -> None:
    assert find_faces(np.ones((2, 0, 3)), 2).shape == (2, 0)
    assert find_faces(np.array([0.0, 0.0, 1.0]), 2).shape == ()
    with pytest.raises(InputError, match=r"\[\.\.\., 3\]"):
        find_faces(np.ones((4, 2)), 2)


@pytest.mark.parametrize("level", [-1, 9, 2.0, True])
def test_unusable_levels(level: object) -> None:
    with pytest.raises(InputError, match="0 to 8"):
        icosphere(level)  # type: ignore[arg-type]


@pytest.fixture
def cached_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own that keeps every level, and nothing remembered in the process before or after."""
    monkeypatch.setenv("VISION3D_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_FIRST_CACHED", 3)
    module._icosphere.cache_clear()
    yield tmp_path / "cache"
    module._icosphere.cache_clear()


@pytest.mark.parametrize("damage", ["none", "cut", "bit", "empty", "folder", "other level"])
def test_damaged_cache_is_built_again(damage: str, cached_levels: Path) -> None:
    expected = icosphere(3)
    (path,) = cached_levels.glob("icosphere_3*")
    content = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage == "other level":
        icosphere(4)
        (other,) = cached_levels.glob("icosphere_4*")
        path.write_bytes(other.read_bytes())
    else:
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 1
        path.write_bytes({"none": content, "cut": content[:-9], "bit": bytes(changed), "empty": b""}[damage])
    module._icosphere.cache_clear()
    again = icosphere(3)
    assert again is not expected
    for name in ("vertices", "faces", "adjacency"):
        np.testing.assert_array_equal(getattr(again, name), getattr(expected, name))
    assert damage == "folder" or path.read_bytes() == content
    assert len(list(cached_levels.iterdir())) == (2 if damage == "other level" else 1)  # no temporary file left


def test_no_cache_folder_is_no_error(cached_levels: Path) -> None:
    cached_levels.write_text("a file where the folder should be")
    assert len(icosphere(3).faces) == 1280
