# SPDX-License-Identifier: Apache-2.0
"""What a prediction returns, and how it is written to a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import vision3d
from vision3d.errors import InputError, OutputError
from vision3d.types import PointCloud, StereoRig
from vision3d.visualization import display_range

CLOUD_FORMATS = ("ply", "glb", "pcd")
DEFAULT_CONFIDENCE_THRESHOLD = 0.5
OUTPUT_NAMES = frozenset(
    ["report.json", "view.html", "disparity.pfm", "depth.npy", "normals.npy"]
    + [f"{name}.png" for name in ("disparity", "confidence", "occlusion", "error", "depth", "normals")]
    + [f"cloud.{name}" for name in CLOUD_FORMATS]
)
_DEPTH_PNG_LIMIT = 65.535  # metres; a 16-bit PNG of millimetres has no code for more
_FARTHEST_DISPARITY = 1.0  # pixels from infinity: beyond it an error of one pixel is as large as the depth itself


@dataclass
class StereoResult:
    """Disparity, and what follows from it, of one stereo pair.

    Attributes:
        disparity: [H, W] float32, pixels of the left image, NaN where the network gave no finite number.
        image, right: the pair, [H, W, 3] uint8 RGB.
        confidence: [H, W] float32 in [0, 1], or None where it was switched off.
        occlusion: [H, W] bool, True where the left pixel has no consistent partner in the right view, or None.
        depth: [H, W] float32 metres, NaN where unknown or beyond measure (disparity below 0.05 px), or None without
            calibration.
        rig: the calibration of these images, or None.
        warnings: doubts about the pair, one sentence each.
        seconds: time of the network passes.
        model: name of the network.
        scale: size of the images that the network saw, relative to the input.
        files: where the pair came from, if it was read from files.
        normals: [H, W, 3] float32, unit, left camera axes, facing the camera, NaN where unknown; or None.
        normals_source: "network", "disparity" (fitted planes), or "".
    """

    disparity: np.ndarray
    image: np.ndarray
    right: np.ndarray
    confidence: np.ndarray | None = None
    occlusion: np.ndarray | None = None
    depth: np.ndarray | None = None
    rig: StereoRig | None = None
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    model: str = ""
    scale: float = 1.0
    files: dict[str, str] = field(default_factory=dict)
    normals: np.ndarray | None = None
    normals_source: str = ""

    def pointcloud(
        self,
        *,
        min_depth: float | None = None,
        max_depth: float | None = None,
        confidence_threshold: float = DEFAULT_CONFIDENCE_THRESHOLD,
        remove_flying_pixels: bool = True,
        voxel_size: float | None = None,
        remove_outliers: bool = False,
        normals: bool = True,
    ) -> PointCloud:
        """The coloured points of the left view, in metres, OpenCV axes of the left camera.

        Args:
            min_depth, max_depth: metres. Without ``max_depth``, points closer than one pixel of disparity to infinity
                are left out, since their depth is unknown by as much as its own size.
            confidence_threshold: points below it are left out (no effect without a confidence map).
            remove_flying_pixels: leave out pixels at depth edges, which hang between two surfaces.
            voxel_size: edge of a grid in metres; one point a cell is kept.
            remove_outliers: leave out points that lie far from their neighbours (slow for millions of points).
            normals: give each point a unit normal towards the camera: that of the result where there is one, else
                that of the neighbouring depths.

        Raises:
            InputError: the result has no calibration, or a threshold is out of range.
        """
        if self.depth is None or self.rig is None:
            raise InputError("a metric point cloud needs the calibration: pass calibration=... (--calib FILE)")
        check_limits(min_depth, max_depth, confidence_threshold, voxel_size)
        from vision3d.geometry import pointcloud as clouds

        mask = self._cloud_mask(self.depth, self.rig, min_depth, max_depth, confidence_threshold)
        if remove_flying_pixels:
            mask &= ~clouds.depth_edge_mask(self.depth)
        directions = self._cloud_normals(self.depth, self.rig) if normals else None
        cloud = clouds.depth_to_pointcloud(self.depth, self.rig.left, image=self.image, mask=mask, normals=directions)
        if voxel_size is not None and len(cloud):
            cloud = clouds.voxel_downsample(cloud, voxel_size)
        if remove_outliers and len(cloud):
            cloud = clouds.remove_outliers(cloud)
        return cloud

    def _cloud_normals(self, depth: np.ndarray, rig: StereoRig) -> np.ndarray:
        from vision3d.geometry.normals import normals_from_depth

        if self.normals is None:
            return np.asarray(normals_from_depth(depth, rig.left))
        unknown = ~np.isfinite(self.normals).all(axis=2)
        if not unknown.any():
            return self.normals
        return np.where(unknown[..., None], normals_from_depth(depth, rig.left), self.normals)

    def _cloud_mask(
        self, depth: np.ndarray, rig: StereoRig, min_depth: float | None, max_depth: float | None, threshold: float
    ) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            mask = np.isfinite(depth) & (depth > 0)
            if min_depth is not None:
                mask &= depth >= min_depth
            if max_depth is not None:
                mask &= depth <= max_depth
            else:
                mask &= self.disparity + rig.doffs >= _FARTHEST_DISPARITY
            if self.confidence is not None:
                mask &= self.confidence >= threshold
        return mask

    def report(self) -> dict[str, Any]:
        """The figures of the result as a JSON object: sizes, ranges, shares, warnings, files."""
        height, width = self.disparity.shape
        content: dict[str, Any] = {
            "vision3d": vision3d.__version__,
            "model": self.model,
            "files": dict(self.files),
            "width": width,
            "height": height,
            "scale": self.scale,
            "seconds": round(self.seconds, 3),
            "disparity": {"unit": "px", **summarize(self.disparity)},
            "depth": None if self.depth is None else {"unit": "m", **summarize(self.depth)},
            "confidence_mean": None if self.confidence is None else _number(np.nanmean(self.confidence)),
            "occluded_percent": None if self.occlusion is None else _number(100 * self.occlusion.mean()),
            "normals": self._normals_report(),
            "calibration": None,
            "warnings": list(self.warnings),
        }
        if self.rig is not None:
            left = self.rig.left
            content["calibration"] = {
                "fx": left.fx,
                "fy": left.fy,
                "cx": left.cx,
                "cy": left.cy,
                "doffs": self.rig.doffs,
                "baseline_m": self.rig.baseline,
            }
        return content

    def _normals_report(self) -> dict[str, Any] | None:
        if self.normals is None:
            return None
        share = np.isfinite(self.normals).all(axis=2).mean()
        return {"source": self.normals_source, "valid_percent": _number(100 * share)}

    def save(
        self,
        folder: str | os.PathLike[str],
        cloud_formats: Sequence[str] = ("ply", "glb"),
        view: bool = True,
        truth: np.ndarray | None = None,
        figures: dict[str, Any] | None = None,
        max_display: float | None = None,
        **cloud_options: Any,
    ) -> dict[str, Path]:
        """Write everything into a folder and return the files by name.

        disparity.pfm, disparity.png (turbo colours over a printed range), with calibration depth.png (16 bit, mm),
        depth.npy and cloud.*, with confidence confidence.png and occlusion.png, with normals normals.png (red right,
        green up, blue towards the camera) and normals.npy ([H, W, 3], OpenCV axes), report.json, view.html. All files
        are made in a hidden folder first, so that a failure leaves the old ones as they were; files of these names that
        an earlier result left there and that this one does not have are removed.

        Args:
            folder: created where missing.
            cloud_formats: of ``ply``, ``glb``, ``pcd``.
            view: write the viewer page.
            truth: [H, W] true disparity (NaN unknown); its error is written as error.png and shown on the page.
            figures: further figures for the report and the page.
            max_display: disparity of the last colour in the picture and on the page; None takes a rounded number above
                the 99th percentile (of the truth, where there is one). Pass one number for pictures to be compared.
            cloud_options: arguments of :meth:`pointcloud`.

        Raises:
            OutputError: the folder cannot be written. InputError: unknown cloud format, or an illegal limit.
        """
        from vision3d.io.files import staged_folder

        self._check_save(cloud_formats, truth, max_display)
        with staged_folder(folder, OUTPUT_NAMES) as hidden:
            high = display_range(self.disparity if truth is None else truth)[1] if max_display is None else max_display
            names = self._write_maps(hidden, truth, high)
            names += self._write_clouds(hidden, cloud_formats, cloud_options)
            names += self._write_report(hidden, truth, figures or {}, high if view else None)
        return {name: Path(folder) / name for name in names}

    def _check_save(self, cloud_formats: Sequence[str], truth: np.ndarray | None, max_display: float | None) -> None:
        if max_display is not None and not (np.isfinite(max_display) and max_display > 0):
            raise InputError(f"max_display is {max_display}: pass a positive number of pixels")
        for name in cloud_formats:
            if name not in CLOUD_FORMATS:
                raise InputError(f"unknown cloud format '{name}': use {', '.join(CLOUD_FORMATS)}")
        if truth is not None and truth.shape != self.disparity.shape:
            raise InputError(f"the truth is {truth.shape}, the disparity {self.disparity.shape}: pass maps of one size")

    def _write_maps(self, folder: Path, truth: np.ndarray | None, high: float) -> list[str]:
        from vision3d import visualization
        from vision3d.io.disparity import write_depth_png16, write_disparity

        write_disparity(folder / "disparity.pfm", self.disparity)
        pictures = {"disparity.png": visualization.disparity_picture(self.disparity, high)}
        if self.confidence is not None:
            pictures["confidence.png"] = visualization.unit_picture(self.confidence)
        if self.occlusion is not None:
            pictures["occlusion.png"] = self.occlusion.astype(np.uint8) * 255
        if truth is not None:
            pictures["error.png"] = visualization.error_picture(self.disparity, truth)
        if self.normals is not None:
            pictures["normals.png"] = visualization.normals_picture(self.normals)
        for name, picture in pictures.items():
            _write_png(folder / name, picture)
        names = ["disparity.pfm", *pictures]
        if self.normals is not None:
            np.save(folder / "normals.npy", self.normals)
            names.append("normals.npy")
        if self.depth is not None:
            write_depth_png16(folder / "depth.png", self.depth)
            self._warn_of_depth_beyond(_DEPTH_PNG_LIMIT)
            np.save(folder / "depth.npy", self.depth)
            names += ["depth.png", "depth.npy"]
        return names

    def _warn_of_depth_beyond(self, limit: float) -> None:
        with np.errstate(invalid="ignore"):
            share = 0.0 if self.depth is None else 100 * float(np.mean(self.depth > limit))
        text = f"{share:.3g} % of the pixels are farther than {limit} m: depth.png has 0 there, depth.npy their depth"
        if share > 0 and text not in self.warnings:
            self.warnings.append(text)

    def _write_clouds(self, folder: Path, formats: Sequence[str], options: dict[str, Any]) -> list[str]:
        if self.depth is None or not formats:
            return []
        from vision3d.io.pointcloud import write_pointcloud

        cloud = self.pointcloud(**options)
        if len(cloud) == 0:
            self.warnings.append("no point passed the limits of depth and confidence: no cloud was written")
            return []
        names = [f"cloud.{name}" for name in formats]
        for name in names:
            write_pointcloud(folder / name, cloud)
        return names

    def _write_report(
        self, folder: Path, truth: np.ndarray | None, figures: dict[str, Any], high: float | None
    ) -> list[str]:
        """report.json, and view.html with colours up to ``high`` (None: no page)."""
        content = {**self.report(), **figures}
        (folder / "report.json").write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        if high is None:
            return ["report.json"]
        from vision3d.viewer import write_view

        write_view(folder / "view.html", self, truth=truth, figures=figures, max_display=high)
        return ["report.json", "view.html"]


def summarize(values: np.ndarray) -> dict[str, float | None]:
    """Minimum, median, maximum of the finite values (None where there are none) and their share in percent."""
    finite = values[np.isfinite(values)]
    share = {"valid_percent": _number(100.0 * finite.size / max(values.size, 1))}
    if finite.size == 0:
        return {"min": None, "median": None, "max": None, **share}
    return {
        "min": _number(finite.min()),
        "median": _number(np.median(finite)),
        "max": _number(finite.max()),
        **share,
    }


def _number(value: Any) -> float | None:
    return float(f"{float(value):.6g}") if np.isfinite(value) else None


def check_limits(
    min_depth: float | None, max_depth: float | None, confidence_threshold: float, voxel_size: float | None
) -> None:
    """Check the arguments of :meth:`StereoResult.pointcloud`.

    Raises:
        InputError: one is out of range.
    """
    if not 0.0 <= confidence_threshold <= 1.0:
        raise InputError(f"confidence_threshold is {confidence_threshold}: pass a number between 0 and 1")
    for name, value in (("min_depth", min_depth), ("max_depth", max_depth), ("voxel_size", voxel_size)):
        if value is not None and not (np.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value}: pass a positive number of metres")
    if min_depth is not None and max_depth is not None and min_depth >= max_depth:
        raise InputError(f"min_depth {min_depth} is not below max_depth {max_depth}: exchange them")


def _write_png(path: Path, picture: np.ndarray) -> None:
    """Write grey [H, W] or RGB [H, W, 3] uint8."""
    stored = picture if picture.ndim == 2 else picture[..., ::-1]
    done, data = cv2.imencode(".png", np.ascontiguousarray(stored))
    if not done:
        raise OutputError(f"{path}: the picture of {picture.shape[1]}x{picture.shape[0]} cannot be encoded")
    path.write_bytes(data.tobytes())
