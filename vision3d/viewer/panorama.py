# SPDX-License-Identifier: Apache-2.0
"""The page of a panorama: its cloud seen from the camera's place, its distances and its figures."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vision3d.types import PointCloud
from vision3d.viewer.page import cloud_payload, jpeg, map_step, quantized, table_payload, write_page
from vision3d.visualization import display_range

if TYPE_CHECKING:
    from vision3d.panorama_results import PanoramaResult


def write_panorama_view(
    path: str | os.PathLike[str], result: PanoramaResult, cloud: PointCloud, max_display: float | None = None
) -> None:
    """Write the page of a panorama.

    Args:
        path: the HTML file.
        result: the distances.
        cloud: the points to show.
        max_display: metres of the last colour; None takes the ``display_range``.

    Raises:
        OutputError: the file cannot be written.
    """
    height, width = result.depth.shape
    step = map_step(height, width)
    depth = result.depth[step // 2 :: step, step // 2 :: step]
    low, high = display_range(result.depth)
    name = result.files.get("image", "")
    points = cloud_payload(cloud)
    payload: dict[str, Any] = {
        "title": os.path.basename(name) if name else "panorama",
        "report": result.report(),
        "colors": table_payload(),
        "images": {"left": jpeg(result.image)},
        "size": [width, height],
        "maps": {
            "width": depth.shape[1],
            "height": depth.shape[0],
            "step": step,
            "range": [low, high if max_display is None else max_display],
            "distance": quantized(depth),
        },
        "rig": None,
        "cloud": None if points is None else {**points, "inside": True},
    }
    write_page(path, payload)
