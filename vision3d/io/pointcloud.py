# SPDX-License-Identifier: Apache-2.0
"""Point-cloud files: PLY and PCD (binary, colour, normals) and GLB (colour) for viewers."""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from vision3d.errors import FileFormatError, InputError, OutputError
from vision3d.io.files import atomic_write, read_bytes
from vision3d.types import PointCloud

# glTF: y up, z to the viewer; ours: y down, z forward.
_TO_GLTF = np.diag([1.0, -1.0, -1.0, 1.0])
_GLB_MOST = 2**32 - 2**16  # bytes; its lengths have 32 bits

Part = bytes | memoryview

_PLY_TYPES = {
    "char": "i1",
    "int8": "i1",
    "uchar": "u1",
    "uint8": "u1",
    "short": "i2",
    "int16": "i2",
    "ushort": "u2",
    "uint16": "u2",
    "int": "i4",
    "int32": "i4",
    "uint": "u4",
    "uint32": "u4",
    "float": "f4",
    "float32": "f4",
    "double": "f8",
    "float64": "f8",
}
_PLY_NAMES = {"f4": "float", "u1": "uchar"}


def write_pointcloud(path: str | os.PathLike[str], cloud: PointCloud) -> None:
    """Write a cloud by suffix.

    ``.ply``: binary little endian with colours and normals; ``.pcd``: binary with colours and normals; ``.glb``:
    colours, without normals, under a node that turns our axes (y down) upright for viewers.

    Raises:
        InputError: arrays that do not fit each other, or no points at all for ``.glb``.
        OutputError: another suffix, or the place is not writable.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".ply", ".pcd", ".glb"):
        raise OutputError(f"{path}: no point-cloud format has the suffix '{suffix}'; use .ply, .pcd or .glb")
    _check(cloud)
    parts = {".ply": _ply_parts, ".pcd": _pcd_parts, ".glb": _glb_parts}[suffix](cloud)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        for part in parts:  # one after the other, since joining them would double the memory of a large cloud
            file.write(part)


def read_pointcloud(path: str | os.PathLike[str]) -> PointCloud:
    """Read the points, colours and normals of a ``.ply``, ``.pcd`` or ``.glb`` file.

    Raises:
        FileFormatError: missing, truncated or damaged file, or a format that is not read.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".ply", ".pcd", ".glb"):
        raise FileFormatError(f"{path}: not a point cloud that can be read; convert it to .ply, .pcd or .glb")
    content = read_bytes(path, FileFormatError, "a point cloud")
    return {".ply": _read_ply, ".pcd": _read_pcd, ".glb": _read_glb}[suffix](path, content)


def _check(cloud: PointCloud) -> None:
    shape = np.shape(cloud.points)
    if len(shape) != 2 or shape[1] != 3:
        raise InputError(f"the points of a cloud must be Nx3, got shape {shape}")
    for name, array in (("colors", cloud.colors), ("normals", cloud.normals)):
        if array is not None and np.shape(array) != shape:
            raise InputError(f"the {name} of a cloud must be of the shape of its points {shape}, got {np.shape(array)}")
    if cloud.colors is not None and cloud.colors.dtype != np.uint8:
        raise InputError(f"the colors of a cloud must be uint8, got {cloud.colors.dtype}")


def _table(columns: list[tuple[str, str, np.ndarray]]) -> np.ndarray:
    """A packed structured array of the named columns (name, type, values)."""
    table = np.empty(len(columns[0][2]), dtype=[(name, "<" + kind) for name, kind, _ in columns])
    for name, _, values in columns:
        table[name] = values
    return table


def _ply_parts(cloud: PointCloud) -> list[Part]:
    columns = [(name, "f4", cloud.points[:, i]) for i, name in enumerate("xyz")]
    if cloud.normals is not None:
        columns += [(name, "f4", cloud.normals[:, i]) for i, name in enumerate(("nx", "ny", "nz"))]
    if cloud.colors is not None:
        columns += [(name, "u1", cloud.colors[:, i]) for i, name in enumerate(("red", "green", "blue"))]
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {len(cloud)}"]
    header += [f"property {_PLY_NAMES[kind]} {name}" for name, kind, _ in columns] + ["end_header", ""]
    return ["\n".join(header).encode("ascii"), _table(columns).view(np.uint8).data]


def _pcd_parts(cloud: PointCloud) -> list[Part]:
    columns = [(name, "f4", cloud.points[:, i]) for i, name in enumerate("xyz")]
    if cloud.normals is not None:
        columns += [(f"normal_{name}", "f4", cloud.normals[:, i]) for i, name in enumerate("xyz")]
    if cloud.colors is not None:  # the bits 0x00RRGGBB under the name of a float, as the Point Cloud Library wants it
        packed = np.zeros((len(cloud), 4), np.uint8)
        packed[:, :3] = cloud.colors[:, ::-1]
        columns.append(("rgb", "f4", packed.view("<f4")[:, 0]))
    count = len(columns)
    header = [
        "# .PCD v0.7 - Point Cloud Data file format",
        "VERSION 0.7",
        "FIELDS " + " ".join(name for name, _, _ in columns),
        "SIZE" + " 4" * count,
        "TYPE" + " F" * count,
        "COUNT" + " 1" * count,
        f"WIDTH {len(cloud)}",
        "HEIGHT 1",
        "VIEWPOINT 0 0 0 1 0 0 0",
        f"POINTS {len(cloud)}",
        "DATA binary",
        "",
    ]
    return ["\n".join(header).encode("ascii"), _table(columns).view(np.uint8).data]


def _glb_parts(cloud: PointCloud) -> list[Part]:
    """glTF 2.0 in one file: header, JSON chunk, and one binary chunk of positions and colours."""
    if len(cloud) == 0:
        raise InputError("a GLB file cannot hold an empty point cloud; write .ply, or keep some points")
    points = np.ascontiguousarray(cloud.points, dtype="<f4")
    low, high = points.min(axis=0).tolist(), points.max(axis=0).tolist()
    buffers = [points]
    accessors: list[dict[str, Any]] = [{"componentType": 5126, "type": "VEC3", "min": low, "max": high}]
    attributes = {"POSITION": 0}
    if cloud.colors is not None:
        colors = np.full((len(cloud), 4), 255, dtype=np.uint8)
        colors[:, :3] = cloud.colors
        buffers.append(colors)
        accessors.append({"componentType": 5121, "type": "VEC4", "normalized": True})
        attributes["COLOR_0"] = 1
    views, size = [], 0
    for index, buffer in enumerate(buffers):  # both have a multiple of four bytes, as the format wants it
        views.append({"buffer": 0, "byteOffset": size, "byteLength": buffer.nbytes, "target": 34962})
        accessors[index] |= {"bufferView": index, "byteOffset": 0, "count": len(cloud)}
        size += buffer.nbytes
    if size > _GLB_MOST:
        raise OutputError(f"{len(cloud)} points are too many for a GLB file (4 GiB): write .ply, or thin the cloud")
    content = {
        "asset": {"version": "2.0", "generator": "vision3d"},
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0, "matrix": _TO_GLTF.T.ravel().tolist()}],
        "meshes": [{"primitives": [{"attributes": attributes, "mode": 0}]}],
        "accessors": accessors,
        "bufferViews": views,
        "buffers": [{"byteLength": size}],
    }
    text = json.dumps(content).encode("ascii")
    text += b" " * (-len(text) % 4)
    head = struct.pack("<4sIII4s", b"glTF", 2, 28 + len(text) + size, len(text), b"JSON")
    return [head, text, struct.pack("<I4s", size, b"BIN\0"), *(buffer.data for buffer in buffers)]


def _from_table(path: str | os.PathLike[str], table: np.ndarray) -> PointCloud:
    names = table.dtype.names or ()

    def pick(*choices: tuple[str, str, str]) -> np.ndarray | None:
        for choice in choices:
            if all(name in names for name in choice):
                return np.stack([table[name] for name in choice], axis=1)
        return None

    points = pick(("x", "y", "z"))
    if points is None:
        raise FileFormatError(f"{path}: the points have no x, y and z; write the file again")
    colors = pick(("red", "green", "blue"), ("r", "g", "b"), ("diffuse_red", "diffuse_green", "diffuse_blue"))
    packed = next((name for name in ("rgb", "rgba") if name in names), None)
    if colors is None and packed is not None:
        bits = np.ascontiguousarray(table[packed]).astype(table[packed].dtype.newbyteorder("<")).view("<u4")
        colors = np.stack([bits >> 16 & 255, bits >> 8 & 255, bits & 255], axis=1)
    elif colors is not None and colors.dtype.kind == "f":
        colors = np.clip(np.rint(colors * 255), 0, 255)
    normals = pick(("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z"))
    return PointCloud(
        points=points.astype(np.float32),
        colors=None if colors is None else colors.astype(np.uint8),
        normals=None if normals is None else normals.astype(np.float32),
    )


def _rows(path: str | os.PathLike[str], data: bytes, dtype: np.dtype, count: int, text: bool) -> np.ndarray:
    """``count`` rows of ``dtype`` from binary or text data."""
    try:
        if text:
            words = data.decode("ascii").split()
            width = len(dtype.names or ())
            if len(words) < count * width:
                raise ValueError(f"{len(words)} numbers, {count * width} expected")
            table = np.empty(count, dtype=dtype)
            for i, name in enumerate(dtype.names or ()):
                column = words[i : count * width : width]
                table[name] = np.array(column, dtype=np.float64) if dtype[name].kind == "f" else np.array(column, "i8")
            return table
        if len(data) < count * dtype.itemsize:
            raise ValueError(f"{len(data)} bytes of data, {count * dtype.itemsize} expected")
        return np.frombuffer(data, dtype=dtype, count=count)
    except (ValueError, OverflowError) as error:
        raise FileFormatError(f"{path}: the point cloud is truncated or damaged ({error}); write it again") from error


def _read_ply(path: str | os.PathLike[str], content: bytes) -> PointCloud:
    head = re.match(rb"ply\r?\n(.*?)end_header\r?\n", content, re.DOTALL)
    if head is None:
        raise FileFormatError(f"{path}: not a PLY file, or its header is truncated; write it again")
    words = [line.split() for line in head.group(1).decode("latin-1").splitlines() if line.split()]
    form = next((line[1] for line in words if line[0] == "format" and len(line) > 1), "")
    elements = [i for i, line in enumerate(words) if line[0] == "element"]
    try:
        if form not in ("ascii", "binary_little_endian", "binary_big_endian"):
            raise ValueError(f"format '{form}'")
        if not elements or words[elements[0]][1] != "vertex":
            raise ValueError("the first element must be 'vertex'")
        count = int(words[elements[0]][2])
        stop = elements[1] if len(elements) > 1 else len(words)
        properties = [line for line in words[elements[0] + 1 : stop] if line[0] == "property"]
        order = ">" if form == "binary_big_endian" else "<"
        dtype = np.dtype([(line[2], order + _PLY_TYPES[line[1]]) for line in properties])
        if count < 0 or not properties:
            raise ValueError("no vertices with properties")
    except (ValueError, KeyError, IndexError) as error:
        raise FileFormatError(f"{path}: this PLY header cannot be read ({error}); write plain points") from error
    return _from_table(path, _rows(path, content[head.end() :], dtype, count, form == "ascii"))


def _read_pcd(path: str | os.PathLike[str], content: bytes) -> PointCloud:
    head = re.match(rb"(.*?)^DATA[ \t]+(\w+)[ \t]*\r?\n", content[:65536], re.DOTALL | re.MULTILINE)
    if head is None:
        raise FileFormatError(f"{path}: not a PCD file, or its header is truncated; write it again")
    lines = [line.split() for line in head.group(1).decode("latin-1").splitlines() if line.split()]
    keys = {line[0].upper(): line[1:] for line in lines}
    form = head.group(2).decode("latin-1").lower()
    if form not in ("ascii", "binary"):
        raise FileFormatError(f"{path}: PCD data '{form}' is not read; save it as binary or ascii")
    try:
        count = int(keys["POINTS"][0])
        kinds = {"F": "f", "U": "u", "I": "i"}
        counts = keys.get("COUNT", ["1"] * len(keys["FIELDS"]))
        fields = zip(keys["FIELDS"], keys["SIZE"], keys["TYPE"], counts, strict=True)
        layout = []
        for index, (name, size, kind, number) in enumerate(fields):
            names = [name] if number == "1" else [f"{name}_{index}_{i}" for i in range(int(number))]
            layout += [(f"_{index}_{i}" if n == "_" else n, f"<{kinds[kind]}{size}") for i, n in enumerate(names)]
        dtype = np.dtype(layout)
        if count < 0:
            raise ValueError(f"{count} points")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise FileFormatError(f"{path}: this PCD header cannot be read ({error}); write it again") from error
    return _from_table(path, _rows(path, content[head.end() :], dtype, count, form == "ascii"))


def _read_glb(path: str | os.PathLike[str], content: bytes) -> PointCloud:
    import io

    import trimesh

    try:
        scene = trimesh.load_scene(io.BytesIO(content), file_type="glb")
    except (ValueError, LookupError, TypeError, EOFError, OSError, AttributeError, RuntimeError, struct.error) as error:
        raise FileFormatError(f"{path}: not a GLB file, or truncated ({error}); write it again") from error
    points, colors = [], []
    for node in scene.graph.nodes_geometry:
        transform, name = scene.graph[node]
        geometry = scene.geometry[name]
        points.append(trimesh.transform_points(geometry.vertices, _TO_GLTF @ transform))
        color = getattr(geometry, "colors", None)
        colors.append(None if color is None or len(color) != len(points[-1]) else np.asarray(color)[:, :3])
    if not points:
        raise FileFormatError(f"{path}: the GLB file holds no points; write it again")
    known = [color for color in colors if color is not None]
    return PointCloud(
        points=np.concatenate(points).astype(np.float32),
        colors=np.concatenate(known).astype(np.uint8) if len(known) == len(points) else None,
    )
