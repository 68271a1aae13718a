# SPDX-License-Identifier: Apache-2.0
"""What the prediction of a panorama returns, and how it is written to a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import vision3d
from vision3d.errors import InputError
from vision3d.geometry import panorama_surface
from vision3d.geometry.panorama_mesh import level_of, panorama_to_faces, partner_level
from vision3d.results import CLOUD_FORMATS, check_limits, summarize
from vision3d.types import PointCloud, TexturedMesh

OUTPUT_NAMES = frozenset(
    ["report.json", "view.html", "depth.npy", "depth.png", "distance.png", "faces.npz", "mesh.glb"]
    + [f"cloud.{name}" for name in CLOUD_FORMATS]
)
_MESH_LEVEL = 7  # of meshes from networks without faces, at most


@dataclass
class PanoramaResult:
    """The distances of one panorama, and what follows from them.

    Points and meshes have the camera's axes (x right, y down, z forward: the middle of the picture) and its centre.

    Attributes:
        depth: [H, 2H] float32, metres along the ray, NaN where unknown (cut or black caps).
        image: [H, 2H, 3] uint8 RGB, the panorama as the network saw it.
        faces: [F] float32 metres at the faces of the mesh, NaN where unknown; None for planar networks.
        warnings: doubts about the picture and the answer, one sentence each.
        seconds: time of the network's pass.
        model: name of the network.
        height: rows of the image that the network saw.
        files: where the panorama came from, if it was read from a file.
    """

    depth: np.ndarray
    image: np.ndarray
    faces: np.ndarray | None = None
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    model: str = ""
    height: int = 0
    files: dict[str, str] = field(default_factory=dict)

    def pointcloud(
        self,
        *,
        min_depth: float | None = None,
        max_depth: float | None = None,
        remove_flying_pixels: bool = True,
        voxel_size: float | None = None,
        remove_outliers: bool = False,
        uniform: bool = False,
    ) -> PointCloud:
        """The coloured points, in metres.

        Args:
            min_depth, max_depth: metres along the ray.
            remove_flying_pixels: leave out pixels at depth edges, which hang between two surfaces.
            voxel_size: edge of a grid in metres; one point a cell is kept.
            remove_outliers: leave out points that lie far from their neighbours (slow for millions of points).
            uniform: one point a face of the mesh, evenly spread over the sphere, instead of one a pixel, which crowd
                at the poles.

        Raises:
            InputError: a limit is out of range.
        """
        check_limits(min_depth, max_depth, 0.0, voxel_size)
        from vision3d.geometry import pointcloud as clouds

        with np.errstate(invalid="ignore"):
            mask = np.isfinite(self.depth)
            mask &= self.depth >= (0.0 if min_depth is None else min_depth)
            mask &= self.depth <= (np.inf if max_depth is None else max_depth)
        if remove_flying_pixels:
            mask &= ~panorama_surface.panorama_edge_mask(self.depth)
        if uniform:
            faces = self.mesh_depths()
            wanted = panorama_to_faces(mask, level_of(len(faces)), nearest=True)
            cloud = panorama_surface.faces_to_pointcloud(np.where(wanted, faces, np.nan), self.image)
        else:
            cloud = panorama_surface.panorama_to_pointcloud(self.depth, self.image, mask)
        if voxel_size is not None and len(cloud):
            cloud = clouds.voxel_downsample(cloud, voxel_size)
        if remove_outliers and len(cloud):
            cloud = clouds.remove_outliers(cloud)
        return cloud

    def mesh_depths(self, level: int | None = None) -> np.ndarray:
        """[F] metres at the faces of a level; None: the network's own, or the one as dense as the panorama (7 at most).

        Raises:
            InputError: a level outside 0 to 8.
        """
        if self.faces is not None and level in (None, level_of(len(self.faces))):
            return self.faces
        chosen = min(partner_level(self.depth.shape[0]), _MESH_LEVEL) if level is None else level
        return panorama_to_faces(self.depth, chosen, nearest=True)

    def mesh(self, level: int | None = None, max_ratio: float = 1.2) -> TexturedMesh:
        """The surface around the camera as triangles with the panorama on them, seen from inside.

        Args:
            level: of the mesh; see :meth:`mesh_depths`.
            max_ratio: triangles whose corners' distances differ by more are left out.

        Raises:
            InputError: an illegal level or ratio, or no triangle is left.
        """
        return panorama_surface.faces_to_mesh(self.mesh_depths(level), self.image, max_ratio)

    def report(self) -> dict[str, Any]:
        """The figures of the result as a JSON object: sizes, range, warnings, files."""
        height, width = self.depth.shape
        return {
            "vision3d": vision3d.__version__,
            "task": "panorama",
            "model": self.model,
            "files": dict(self.files),
            "width": width,
            "height": height,
            "network_height": self.height,
            "mesh_level": None if self.faces is None else level_of(len(self.faces)),
            "seconds": round(self.seconds, 3),
            "depth": {"unit": "m", **summarize(self.depth)},
            "warnings": list(self.warnings),
        }

    def save(
        self,
        folder: str | os.PathLike[str],
        cloud_formats: Sequence[str] = ("ply", "glb"),
        mesh: bool = True,
        view: bool = True,
        max_display: float | None = None,
        **cloud_options: Any,
    ) -> dict[str, Path]:
        """Write everything into a folder and return the files by name.

        depth.npy (metres), depth.png (16 bit, mm), distance.png (turbo colours over a printed range), faces.npz (level
        and values of the mesh, if the network has one), cloud.*, mesh.glb, report.json and view.html, which looks
        around from the camera's place. Old files of these names are replaced or removed.

        Args:
            folder: created where missing.
            cloud_formats: of ``ply``, ``glb``, ``pcd``.
            mesh: write the textured mesh.
            view: write the viewer page.
            max_display: metres of the last colour; None takes a rounded number above the 99th percentile.
            cloud_options: arguments of :meth:`pointcloud`.

        Raises:
            OutputError: the folder cannot be written. InputError: unknown cloud format, or an illegal limit.
        """
        from vision3d.io.files import staged_folder

        for name in cloud_formats:
            if name not in CLOUD_FORMATS:
                raise InputError(f"unknown cloud format '{name}': use {', '.join(CLOUD_FORMATS)}")
        if max_display is not None and not (np.isfinite(max_display) and max_display > 0):
            raise InputError(f"max_display is {max_display}: pass a positive number of metres")
        with staged_folder(folder, OUTPUT_NAMES) as hidden:
            self._write_maps(hidden, max_display)
            cloud = self.pointcloud(**cloud_options)
            self._write_surfaces(hidden, cloud, cloud_formats, mesh)
            text = json.dumps(self.report(), indent=2, allow_nan=False)
            (hidden / "report.json").write_text(text + "\n", encoding="utf-8")
            if view:
                from vision3d.viewer.panorama import write_panorama_view

                write_panorama_view(hidden / "view.html", self, cloud, max_display)
            names = sorted(path.name for path in hidden.iterdir())
        return {name: Path(folder) / name for name in names}

    def _write_maps(self, folder: Path, max_display: float | None) -> None:
        from vision3d.io.disparity import write_depth_png16
        from vision3d.io.images import write_image
        from vision3d.visualization import colorize, display_range, with_color_bar

        high = display_range(self.depth)[1] if max_display is None else max_display
        np.save(folder / "depth.npy", self.depth)
        write_depth_png16(folder / "depth.png", self.depth)
        picture = with_color_bar(colorize(self.depth, 0.0, high), 0.0, high, "m")
        write_image(folder / "distance.png", picture)
        if self.faces is not None:
            np.savez_compressed(folder / "faces.npz", level=level_of(len(self.faces)), distance=self.faces)

    def _write_surfaces(self, folder: Path, cloud: PointCloud, formats: Sequence[str], mesh: bool) -> None:
        from vision3d.io.mesh import write_mesh
        from vision3d.io.pointcloud import write_pointcloud

        if len(cloud) == 0:
            self.warnings.append("no point passed the limits of depth: no cloud was written")
        for name in formats if len(cloud) else ():
            write_pointcloud(folder / f"cloud.{name}", cloud)
        if mesh:
            try:
                write_mesh(folder / "mesh.glb", self.mesh())
            except InputError as error:
                self.warnings.append(f"no mesh was written: {error}")
