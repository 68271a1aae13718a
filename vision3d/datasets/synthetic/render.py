# SPDX-License-Identifier: Apache-2.0
"""Z-buffered rendering of textured layers in both views, with exact disparity and occlusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from vision3d.datasets.synthetic.surfaces import Surface

_INSIDE = 128  # mask value from which a point belongs to the layer
_SAME_SURFACE = 2e-3  # pixels of disparity below which two hits are the same surface


@dataclass(frozen=True)
class Layer:
    """A textured piece of a disparity surface; everything is defined in left-view coordinates.

    Attributes:
        surface: disparity of the layer.
        texture: [S, S, 3] uint8, repeats by reflection.
        texture_map: [2, 3] affine map from left-view pixels to texture pixels.
        shading: (gain, per x, per y): brightness factor over the image.
        mask: [h, w] uint8 outline whose pixel (0, 0) is left-view ``origin`` (x, y); None covers everything.
    """

    surface: Surface
    texture: np.ndarray
    texture_map: np.ndarray
    shading: tuple[float, float, float] = (1.0, 0.0, 0.0)
    mask: np.ndarray | None = None
    origin: tuple[int, int] = (0, 0)

    def rows(self, height: int) -> tuple[int, int]:
        if self.mask is None:
            return 0, height
        return max(self.origin[1] - 1, 0), min(self.origin[1] + self.mask.shape[0] + 1, height)

    def disparity_range(self) -> tuple[float, float]:
        """Bounds of the disparity over the mask (only of layers that have one)."""
        assert self.mask is not None
        h, w = self.mask.shape
        x = np.linspace(self.origin[0], self.origin[0] + w, 9)[None]
        y = np.linspace(self.origin[1], self.origin[1] + h, 9)[:, None]
        d = self.surface.disparity(x, y)
        slack = 0.1 * float(d.max() - d.min()) + 1.0
        return float(d.min()) - slack, float(d.max()) + slack

    def coverage(self, x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
        """Mask values (0 to 255) at left-view points, None for full cover."""
        if self.mask is None:
            return None
        return cv2.remap(self.mask, x - self.origin[0], y - self.origin[1], cv2.INTER_LINEAR, borderValue=0)

    def color(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """[h, w, 3] float32 colour at left-view points."""
        (ax, ay, a0), (bx, by, b0) = self.texture_map.tolist()
        u, v = ax * x + (ay * y + a0), bx * x + (by * y + b0)
        color = cv2.remap(self.texture, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101).astype(np.float32)
        gain, gain_x, gain_y = self.shading
        if gain_x or gain_y:
            color *= np.clip(gain + gain_x * x + gain_y * y, 0.25, 1.6)[..., None]
        elif gain != 1.0:
            color *= gain
        return color


def _grid(y0: int, y1: int, x0: int, x1: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.broadcast_to(np.arange(x0, x1, dtype=np.float32), (y1 - y0, x1 - x0))
    y = np.broadcast_to(np.arange(y0, y1, dtype=np.float32)[:, None], (y1 - y0, x1 - x0))
    return np.ascontiguousarray(x), np.ascontiguousarray(y)


def _columns(layer: Layer, width: int, right_view: bool) -> tuple[int, int]:
    if layer.mask is None:
        return 0, width
    x0, x1 = layer.origin[0] - 1, layer.origin[0] + layer.mask.shape[1] + 1
    if right_view:
        low, high = layer.disparity_range()
        x0, x1 = int(x0 - high) - 1, int(x1 - low) + 2
    return max(x0, 0), min(x1, width)


def render_view(
    layers: Sequence[Layer], height: int, width: int, right_view: bool, row_offset: float = 0.0, row_tilt: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Render one view.

    Args:
        layers: painted in this order; the one with the largest disparity wins each pixel.
        right_view: False for the left view.
        row_offset, row_tilt: rectification error: pixel (x, y) shows row
            ``y + row_offset + row_tilt * (x - width / 2)``.

    Returns:
        Colour [H, W, 3] float32 in 0..255, and disparity [H, W] float32 of this view's own pixels.
    """
    color = np.zeros((height, width, 3), np.float32)
    nearest = np.full((height, width), -np.inf, np.float32)
    for layer in layers:
        (y0, y1), (x0, x1) = layer.rows(height), _columns(layer, width, right_view)
        if y0 >= y1 or x0 >= x1:
            continue
        x, y = _grid(y0, y1, x0, x1)
        if row_offset or row_tilt:
            y = y + (row_offset + row_tilt * (x - width / 2))
        if right_view:
            x = layer.surface.left_x(x, y).astype(np.float32)
        disparity = layer.surface.disparity(x, y).astype(np.float32)
        region = (slice(y0, y1), slice(x0, x1))
        in_front = disparity > nearest[region]
        coverage = layer.coverage(x, y)
        if coverage is None:
            np.copyto(color[region], layer.color(x, y), where=in_front[..., None])
            np.copyto(nearest[region], disparity, where=in_front)
        elif coverage.any():
            opacity = (coverage * in_front).astype(np.float32)[..., None] * (1.0 / 255.0)
            color[region] += opacity * (layer.color(x, y) - color[region])
            np.copyto(nearest[region], disparity, where=in_front & (coverage >= _INSIDE))
    return color, nearest


def find_occlusion(layers: Sequence[Layer], disparity: np.ndarray) -> np.ndarray:
    """[H, W] bool: left pixels whose point is hidden in the right view by a nearer surface or lies outside it.

    Every layer is evaluated at the exact (sub-pixel) right-view position of every left pixel.
    """
    height, width = disparity.shape
    x, y = _grid(0, height, 0, width)
    right_x = x - disparity
    occluded = right_x < 0
    d_low, d_high = float(disparity.min()), float(disparity.max())
    for layer in layers:
        (y0, y1), (x0, x1) = layer.rows(height), _columns(layer, 10**6, True)
        if layer.mask is None:
            x1 = width
        else:
            if layer.disparity_range()[1] <= d_low:
                continue
            x0, x1 = max(int(x0 + d_low) - 1, 0), min(int(x1 + d_high) + 2, width)
        if y0 >= y1 or x0 >= x1:
            continue
        region = (slice(y0, y1), slice(x0, x1))
        rows = y[region]
        hit_x = layer.surface.left_x(right_x[region], rows).astype(np.float32)
        hides = layer.surface.disparity(hit_x, rows) > disparity[region] + _SAME_SURFACE
        coverage = layer.coverage(hit_x, rows)
        occluded[region] |= hides if coverage is None else hides & (coverage >= _INSIDE)
    return occluded
