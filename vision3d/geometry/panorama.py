# SPDX-License-Identifier: Apache-2.0
"""Equirectangular panorama pixels and viewing directions.

Camera axes: x right, y down, z forward. Width = 2 * height; the image centre looks along z, the left and right borders
along -z. Depth of a panorama is the distance along the ray, so a point is ``depth * ray``.
"""

from __future__ import annotations

import numpy as np

from vision3d.errors import InputError


def panorama_rays(height: int, width: int | None = None) -> np.ndarray:
    """Unit viewing direction of each pixel centre: [H, W, 3] float64, W = 2 * H unless given.

    ``lon = 2 pi ((u + 0.5) / W - 0.5)``, ``lat = pi (0.5 - (v + 0.5) / H)``,
    ``ray = (cos lat sin lon, -sin lat, cos lat cos lon)``.

    Raises:
        InputError: a size below 1.

    Example:
        >>> panorama_rays(2).shape
        (2, 4, 3)
    """
    width = 2 * height if width is None else width
    if height < 1 or width < 1:
        raise InputError(f"a panorama has at least 1 x 1 pixels, got {width} x {height}")
    lon = 2 * np.pi * ((np.arange(width) + 0.5) / width - 0.5)
    lat = np.pi * (0.5 - (np.arange(height) + 0.5) / height)[:, None]
    rays = (np.cos(lat) * np.sin(lon), np.broadcast_to(-np.sin(lat), (height, width)), np.cos(lat) * np.cos(lon))
    return np.stack(rays, axis=-1)


def panorama_pixels(directions: np.ndarray, height: int, width: int | None = None) -> np.ndarray:
    """Pixel (u, v) that looks along each direction: [..., 3] of any length to [..., 2]; u in [-0.5, W - 0.5]."""
    width = 2 * height if width is None else width
    x, y, z = np.moveaxis(np.asarray(directions, dtype=np.float64), -1, 0)
    lon, lat = np.arctan2(x, z), np.arctan2(-y, np.hypot(x, z))
    return np.stack([(lon / (2 * np.pi) + 0.5) * width - 0.5, (0.5 - lat / np.pi) * height - 0.5], axis=-1)
