# SPDX-License-Identifier: Apache-2.0
"""Fills the page template with the data of a result.

The page needs no network: style and script are inlined, maps and points are embedded as base64 typed arrays.
"""

from __future__ import annotations

import base64
import html
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from vision3d.geometry.pointcloud import limit_depth
from vision3d.types import Camera, PointCloud, StereoRig
from vision3d.visualization import color_table, display_range, normals_picture

if TYPE_CHECKING:
    from vision3d.results import StereoResult

MAX_POINTS = 300_000
_ERROR_TITLES = {"epe": "EPE px", "bad1": "bad-1 %", "bad2": "bad-2 %", "bad3": "bad-3 %", "d1": "D1 %"}
MAX_MAP_PIXELS = 1_000_000
_UNKNOWN = 65535  # code of an unknown value in the 16-bit maps
_FRUSTUM_DEPTH = 0.06  # of the pyramids that stand for cameras, as a share of the cloud's radius
_FAR_FACTOR = 4.0  # points beyond this multiple of the median distance are left out of the page's cloud


def write_view(
    path: str | os.PathLike[str],
    result: StereoResult,
    truth: np.ndarray | None = None,
    figures: dict[str, Any] | None = None,
    max_display: float | None = None,
) -> None:
    """Write the page of a stereo result.

    Args:
        path: the HTML file.
        truth: [H, W] true disparity, NaN where unknown; adds the error map and the truth to the readout.
        figures: further figures; the entry ``errors`` (name -> method -> number) becomes a table.
        max_display: disparity of the last colour; None takes the ``display_range`` of the truth or the disparity.

    Raises:
        OutputError: the file cannot be written.
    """
    rig = result.rig
    payload = {
        "title": _title(result),
        "report": {**result.report(), **_titled(figures or {})},
        "colors": table_payload(),
        "images": {"left": jpeg(result.image), "right": jpeg(result.right)},
        "size": [result.disparity.shape[1], result.disparity.shape[0]],
        "maps": _maps(result, truth, max_display),
        "rig": None if rig is None else {"fx": rig.left.fx, "baseline": rig.baseline, "doffs": rig.doffs, "unit": "m"},
        "cloud": cloud_payload(_display_cloud(result), metric=rig is not None),
    }
    write_page(path, payload)


def _titled(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures with column titles for people in the entry ``errors``."""
    if "errors" not in figures:
        return figures
    rows = {
        method: {_ERROR_TITLES.get(key, key): number for key, number in row.items()}
        for method, row in figures["errors"].items()
    }
    return {**figures, "errors": rows}


def write_cloud_view(
    path: str | os.PathLike[str],
    cloud: PointCloud,
    title: str,
    *,
    cameras: Sequence[Camera] = (),
    report: Mapping[str, Any] | None = None,
    metric: bool = True,
) -> None:
    """Write a page that shows a cloud and, if given, the cameras that saw it.

    Args:
        path: the HTML file.
        cloud: the points, world axes.
        title: of the page.
        cameras: drawn as pyramids, joined by the path of their centres; the page starts behind the middle one.
        report: further figures (``files``, ``warnings`` and the entries that :file:`view.js` knows).
        metric: the unit is the metre; False says that the scale is arbitrary.

    Raises:
        OutputError: the file cannot be written.
    """
    if cameras:
        cloud, cameras = _seen_from_middle(cloud, cameras)
    shown = cloud_payload(cloud, metric=metric)
    if shown is not None and cameras:
        shown["lines"] = _frusta(cameras, shown["radius"])
    figures = {"points": len(cloud), "warnings": [], **(report or {})}
    write_page(path, {"title": title, "report": figures, "colors": {}, "maps": {}, "cloud": shown})


def _seen_from_middle(cloud: PointCloud, cameras: Sequence[Camera]) -> tuple[PointCloud, list[Camera]]:
    """Cloud and cameras in the axes of the middle camera, where the page's eye starts."""
    pose = cameras[len(cameras) // 2].world_to_camera
    points = (cloud.points @ pose[:3, :3].T + pose[:3, 3]).astype(np.float32)
    back = np.linalg.inv(pose)
    moved = [replace(camera, world_to_camera=camera.world_to_camera @ back) for camera in cameras]
    return replace(cloud, points=points), moved


def _frusta(cameras: Sequence[Camera], radius: float) -> dict[str, Any]:
    """Line segments (pairs of points): a pyramid for each camera in orange, the path of the centres in blue."""
    segments: list[np.ndarray] = []
    centers = []
    for camera in cameras:
        width, height = camera.width or round(2 * camera.cx + 1), camera.height or round(2 * camera.cy + 1)
        corners = np.array([[-0.5, -0.5], [width - 0.5, -0.5], [width - 0.5, height - 0.5], [-0.5, height - 0.5]])
        rays = np.column_stack([corners, np.ones(4)]) @ np.linalg.inv(camera.intrinsics).T
        local = np.concatenate([np.zeros((1, 3)), _FRUSTUM_DEPTH * radius * rays])
        to_world = np.linalg.inv(camera.world_to_camera)
        world = local @ to_world[:3, :3].T + to_world[:3, 3]
        segments += [world[[0, corner]] for corner in range(1, 5)]
        segments += [world[[corner, corner % 4 + 1]] for corner in range(1, 5)]
        centers.append(world[0])
    path = [np.stack(pair) for pair in itertools.pairwise(centers)]
    points = np.concatenate([*segments, *path]).astype("<f4")
    colors = np.full((len(points), 4), (255, 170, 60, 255), np.uint8)
    colors[2 * len(segments) :] = 90, 180, 255, 255
    return {"count": len(points), "positions": _base64(points), "colors": _base64(colors)}


def cloud_payload(cloud: PointCloud, max_points: int = MAX_POINTS, metric: bool = True) -> dict[str, Any] | None:
    """The points as 16-bit positions in their bounding box and 8-bit colours, base64; None for an empty cloud.

    Larger clouds are thinned at random (always the same points). Layout: ``positions`` uint16 x, y, z, 0; ``colors``
    uint8 r, g, b, 255.
    """
    kept = np.flatnonzero(np.isfinite(cloud.points).all(axis=1))
    total = len(kept)
    if total == 0:
        return None
    if total > max_points:
        kept = np.sort(np.random.default_rng(0).choice(kept, max_points, replace=False))
    points = cloud.points[kept].astype(np.float64)
    low, high = points.min(axis=0), points.max(axis=0)
    extent = np.maximum(high - low, 1e-9)
    positions = np.zeros((len(points), 4), dtype="<u2")
    positions[:, :3] = np.round((points - low) / extent * 65535)
    colors = np.full((len(points), 4), 255, dtype=np.uint8)
    colors[:, :3] = 200 if cloud.colors is None else cloud.colors[kept]
    center = np.median(points, axis=0)
    radius = float(np.percentile(np.linalg.norm(points - center, axis=1), 90))
    return {
        "count": len(points),
        "total": total,
        "metric": metric,
        "low": low.tolist(),
        "extent": extent.tolist(),
        "center": center.tolist(),
        "radius": max(radius, 1e-6),
        "positions": _base64(positions),
        "colors": _base64(colors),
    }


def _display_cloud(result: StereoResult) -> PointCloud:
    """The cloud of the page: metric if calibrated, else of a nominal camera (right in shape only roughly)."""
    shown = result if result.rig is not None else replace(result, **_nominal_depth(result))
    cloud = shown.pointcloud(normals=False)
    if len(cloud) < 100:
        cloud = shown.pointcloud(normals=False, confidence_threshold=0.0, remove_flying_pixels=False)
    if len(cloud) == 0:
        return cloud
    return limit_depth(cloud, _FAR_FACTOR * float(np.median(cloud.points[:, 2])))


def _nominal_depth(result: StereoResult) -> dict[str, Any]:
    height, width = result.disparity.shape
    intrinsics = np.array([[width, 0, (width - 1) / 2], [0, width, (height - 1) / 2], [0, 0, 1.0]])
    camera = Camera(intrinsics, width, height)
    rig = StereoRig(camera, camera, baseline=0.1)
    with np.errstate(divide="ignore", invalid="ignore"):
        depth = np.where(result.disparity > 0, width * rig.baseline / result.disparity, np.nan)
    return {"rig": rig, "depth": depth.astype(np.float32)}


def _maps(result: StereoResult, truth: np.ndarray | None, max_display: float | None) -> dict[str, Any]:
    height, width = result.disparity.shape
    step = map_step(height, width)

    def thinned(values: np.ndarray) -> np.ndarray:
        return values[step // 2 :: step, step // 2 :: step] if min(height, width) > step else values

    low, high = display_range(result.disparity if truth is None else truth)
    disparity = thinned(result.disparity)
    content: dict[str, Any] = {
        "width": disparity.shape[1],
        "height": disparity.shape[0],
        "step": step,
        "range": [low, high if max_display is None else max_display],
        "disparity": quantized(disparity),
    }
    if truth is not None:
        content["truth"] = quantized(thinned(truth))
    if result.confidence is not None:
        content["confidence"] = _base64(np.round(np.clip(thinned(result.confidence), 0, 1) * 255).astype(np.uint8))
    if result.occlusion is not None:
        content["occlusion"] = _base64(thinned(result.occlusion).astype(np.uint8))
    if result.normals is not None:
        content["normals"] = _base64(normals_picture(thinned(result.normals)))
    return content


def map_step(height: int, width: int) -> int:
    """Every how manieth row and column of a map the page holds."""
    return max(1, int(np.ceil(np.sqrt(height * width / MAX_MAP_PIXELS))))


def table_payload() -> dict[str, str]:
    """The colour tables of the maps."""
    return {name: _base64(color_table(name)) for name in ("turbo", "inferno", "viridis")}


def quantized(values: np.ndarray) -> dict[str, Any]:
    """16-bit codes with ``value = low + code * step``; 65535 is unknown."""
    finite = np.isfinite(values)
    low = float(values[finite].min()) if finite.any() else 0.0
    high = float(values[finite].max()) if finite.any() else 1.0
    step = max((high - low) / (_UNKNOWN - 1), 1e-12)
    codes = np.full(values.shape, _UNKNOWN, dtype="<u2")
    codes[finite] = np.round((values[finite] - low) / step)
    return {"low": low, "step": step, "data": _base64(codes)}


def jpeg(image: np.ndarray, longest: int = 1600) -> str:
    """A picture [H, W, 3] uint8 as the address of an embedded JPEG, reduced to ``longest`` pixels a side."""
    factor = longest / max(image.shape[:2])
    if factor < 1:
        size = (max(1, round(image.shape[1] * factor)), max(1, round(image.shape[0] * factor)))
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    _, data = cv2.imencode(".jpg", np.ascontiguousarray(image[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 90])
    return "data:image/jpeg;base64," + base64.b64encode(data.tobytes()).decode("ascii")


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def _title(result: StereoResult) -> str:
    left = result.files.get("left", "")
    return os.path.basename(left) if left else "stereo result"


def write_page(path: str | os.PathLike[str], payload: dict[str, Any]) -> None:
    """Fill the template with the data.

    Raises:
        OutputError: the file cannot be written.
    """
    from vision3d.io.files import atomic_write

    folder = files("vision3d.viewer")
    # "</" could end the script element, so it is written as "<\/", which JSON reads as the same text
    data = json.dumps(payload, allow_nan=False, separators=(",", ":")).replace("</", "<\\/")
    page = (folder / "view.html").read_text(encoding="utf-8")
    parts = {"{{style}}": (folder / "view.css").read_text(encoding="utf-8")}
    parts["{{script}}"] = "\n".join(
        (folder / name).read_text(encoding="utf-8") for name in ("cloud.js", "maps.js", "view.js")
    )
    parts["{{title}}"] = html.escape(str(payload["title"]))
    parts["{{data}}"] = data
    for key, text in parts.items():  # the data comes last, so that nothing inside it is taken for a key
        page = page.replace(key, text, 1)
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
