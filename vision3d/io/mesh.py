# SPDX-License-Identifier: Apache-2.0
"""Textured triangle meshes as GLB (glTF 2.0 in one file)."""

from __future__ import annotations

import io
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from vision3d.errors import InputError, OutputError
from vision3d.io.files import atomic_write
from vision3d.types import TexturedMesh

_TO_GLTF = np.diag([1.0, -1.0, -1.0, 1.0])  # glTF: y up, z to the viewer; ours: y down, z forward
_TEXTURE_SIDE = 8192  # pixels; larger pictures are reduced, since viewers refuse them


def write_mesh(path: str | os.PathLike[str], mesh: TexturedMesh) -> None:
    """Write a ``.glb``: the picture as JPEG, shown without lighting and repeated to the sides.

    Raises:
        InputError: no triangles, or corners that do not exist.
        OutputError: another suffix, or the place is not writable.
    """
    if Path(path).suffix.lower() != ".glb":
        raise OutputError(f"{path}: textured meshes are written as .glb; choose that suffix")
    count = len(mesh.vertices)
    if not len(mesh.faces) or mesh.faces.min() < 0 or mesh.faces.max() >= count or len(mesh.coordinates) != count:
        raise InputError("the mesh has no triangles, or its arrays do not fit each other")
    buffers = [
        np.ascontiguousarray(mesh.vertices, dtype="<f4").tobytes(),
        np.ascontiguousarray(mesh.coordinates, dtype="<f4").tobytes(),
        np.ascontiguousarray(mesh.faces, dtype="<u4").tobytes(),
        _jpeg(mesh.image),
    ]
    content, binary = _content(mesh, buffers)
    text = json.dumps(content).encode("ascii")
    text += b" " * (-len(text) % 4)
    head = struct.pack("<4sIII4s", b"glTF", 2, 28 + len(text) + len(binary), len(text), b"JSON")
    with atomic_write(path) as temporary:
        temporary.write_bytes(head + text + struct.pack("<I4s", len(binary), b"BIN\0") + binary)


def _content(mesh: TexturedMesh, buffers: list[bytes]) -> tuple[dict[str, Any], bytes]:
    """The JSON part and the binary part."""
    views, parts, size = [], [], 0
    for number, buffer in enumerate(buffers):
        target = {0: 34962, 1: 34962, 2: 34963}.get(number)
        view: dict[str, Any] = {"buffer": 0, "byteOffset": size, "byteLength": len(buffer)}
        views.append(view if target is None else {**view, "target": target})
        padded = buffer + b"\0" * (-len(buffer) % 4)
        parts.append(padded)
        size += len(padded)
    low, high = mesh.vertices.min(axis=0).tolist(), mesh.vertices.max(axis=0).tolist()
    count = len(mesh.vertices)
    content = {
        "asset": {"version": "2.0", "generator": "vision3d"},
        "extensionsUsed": ["KHR_materials_unlit"],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0, "matrix": _TO_GLTF.T.ravel().tolist()}],
        "meshes": [
            {"primitives": [{"attributes": {"POSITION": 0, "TEXCOORD_0": 1}, "indices": 2, "material": 0, "mode": 4}]}
        ],
        "materials": [
            {
                "pbrMetallicRoughness": {"baseColorTexture": {"index": 0}, "metallicFactor": 0, "roughnessFactor": 1},
                "extensions": {"KHR_materials_unlit": {}},
            }
        ],
        "textures": [{"source": 0, "sampler": 0}],
        "samplers": [{"wrapS": 10497, "wrapT": 33071, "magFilter": 9729, "minFilter": 9729}],
        "images": [{"bufferView": 3, "mimeType": "image/jpeg"}],
        "accessors": [
            {"bufferView": 0, "componentType": 5126, "type": "VEC3", "count": count, "min": low, "max": high},
            {"bufferView": 1, "componentType": 5126, "type": "VEC2", "count": count},
            {"bufferView": 2, "componentType": 5125, "type": "SCALAR", "count": mesh.faces.size},
        ],
        "bufferViews": views,
        "buffers": [{"byteLength": size}],
    }
    return content, b"".join(parts)


def _jpeg(image: np.ndarray) -> bytes:
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(image, dtype=np.uint8))
    if max(picture.size) > _TEXTURE_SIDE:
        factor = _TEXTURE_SIDE / max(picture.size)
        picture = picture.resize((round(picture.width * factor), round(picture.height * factor)), Image.Resampling.BOX)
    target = io.BytesIO()
    picture.save(target, format="JPEG", quality=92)
    return target.getvalue()
