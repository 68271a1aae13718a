# SPDX-License-Identifier: Apache-2.0
"""A room as the renderer needs it: triangles, materials, lights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from vision3d.datasets.synthetic.rooms.materials import Material, TextureAtlas
from vision3d.datasets.synthetic.rooms.meshes import Mesh
from vision3d.errors import InputError, MissingExtraError


@dataclass(frozen=True)
class Light:
    """A point light.

    Attributes:
        position: metres, world axes.
        color: linear RGB intensity.
        radius: shadow rays end at this distance, so that the lamp's own shade casts none.
    """

    position: tuple[float, float, float]
    color: tuple[float, float, float]
    radius: float = 0.05


@dataclass(frozen=True)
class Part:
    """A mesh of one material that belongs to an object."""

    mesh: Mesh
    material: Material
    object_id: int


@dataclass
class Room:
    """A scene of triangles in world axes (z up, metres), ready for ray casting.

    Attributes:
        corners, normals: [F, 3, 3] float32, see :class:`Mesh`.
        uv: [F, 3, 2] float32 metres on the texture.
        part_of_face: [F] number of the part.
        objects: name of each object id; 0 is the room itself.
        object_of_part: [P] object id of each part.
        materials: attribute of :class:`Material` -> [P] or [P, 3] float32.
        lights, ambient: light of the lamps, and linear RGB light from everywhere.
        size: (x, y, z) extent of the closed room from the origin, or None for open test scenes.
        atlas: the textures.
        effects: what was drawn for the photographs (exposure, bloom ...), see ``effects``.
        seed: of the room.
    """

    corners: np.ndarray
    normals: np.ndarray
    uv: np.ndarray
    part_of_face: np.ndarray
    objects: list[str]
    object_of_part: np.ndarray
    materials: dict[str, np.ndarray]
    lights: list[Light]
    ambient: np.ndarray
    atlas: TextureAtlas
    size: tuple[float, float, float] | None = None
    effects: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    _caster: Any = None

    @property
    def caster(self) -> Any:
        """The ray-casting scene of Open3D.

        Raises:
            MissingExtraError: Open3D is not installed.
        """
        if self._caster is None:
            try:
                import open3d
            except (ImportError, OSError) as problem:
                raise MissingExtraError("open3d", "3d", "ray casting of synthetic rooms") from problem
            scene = open3d.t.geometry.RaycastingScene(nthreads=1)
            vertices = np.ascontiguousarray(self.corners.reshape(-1, 3))
            triangles = np.arange(len(vertices), dtype=np.uint32).reshape(-1, 3)
            tensor: Any = open3d.core.Tensor
            scene.add_triangles(tensor(vertices), tensor(triangles))
            self._caster = scene
        return self._caster

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_caster": None}


def assemble(
    parts: Sequence[Part],
    textures: Sequence[np.ndarray],
    lights: Sequence[Light] = (),
    ambient: Sequence[float] | np.ndarray = (1.0, 1.0, 1.0),
    objects: Sequence[str] = ("room",),
    **attributes: Any,
) -> Room:
    """Make a room of parts.

    Args:
        parts: meshes in world axes.
        textures: [512, 512, 3] uint8, numbered by the materials.
        lights, ambient, objects, attributes: those of :class:`Room`.

    Raises:
        InputError: no part.
    """
    if not parts:
        raise InputError("a room needs at least one part, got none")
    names = [item.name for item in fields(Material)]
    materials = {
        name: np.array([getattr(part.material, name) for part in parts],
                       np.int32 if name == "texture" else np.float32)
        for name in names
    }  # fmt: skip
    lengths = [len(part.mesh.corners) for part in parts]
    return Room(
        corners=np.concatenate([part.mesh.corners for part in parts]).astype(np.float32),
        normals=np.concatenate([part.mesh.normals for part in parts]).astype(np.float32),
        uv=np.concatenate([part.mesh.texture_coordinates() for part in parts]).astype(np.float32),
        part_of_face=np.repeat(np.arange(len(parts), dtype=np.int32), lengths),
        objects=list(objects),
        object_of_part=np.array([part.object_id for part in parts], np.int32),
        materials=materials,
        lights=list(lights),
        ambient=np.asarray(ambient, np.float32),
        atlas=TextureAtlas(textures),
        **attributes,
    )
