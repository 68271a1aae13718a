# SPDX-License-Identifier: Apache-2.0
"""Small exact panoramas and networks for tests."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from torch import nn

from vision3d.geometry.panorama import panorama_rays
from vision3d.types import DepthOutput, PanoramaSample


def box_panorama(height: int = 32, scene: str = "box") -> PanoramaSample:
    """The inside of a box of 4 x 3 x 6 m with coloured walls and exact distances."""
    half = (2, 1.5, 3)
    rays = panorama_rays(height)
    reach = np.array(half) / np.maximum(np.abs(rays), 1e-9)
    depth = reach.min(axis=-1)
    wall = 2 * reach.argmin(axis=-1) + (np.take_along_axis(rays, reach.argmin(axis=-1)[..., None], -1)[..., 0] > 0)
    colors = np.array([[200, 60, 60], [60, 200, 60], [90, 90, 210], [210, 210, 80], [80, 200, 210], [200, 90, 200]])
    image = colors[wall] * (0.4 + 0.6 * depth[..., None] / depth.max())
    return PanoramaSample(image.astype(np.uint8), depth.astype(np.float32), scene=scene)


def picture(height: int, width: int) -> np.ndarray:
    """A smooth picture that is no panorama: other colours at each side, top and bottom."""
    values = np.random.default_rng(3).integers(0, 256, (5, 9, 3)).astype(np.uint8)
    image = cv2.resize(values, (width, height), interpolation=cv2.INTER_CUBIC)
    image[:, : width // 2] //= 3
    return image


class RedIsDepth(nn.Module):
    """Answers 1 + 4 times the red channel, pixel by pixel: it turns along with any rotation."""

    max_depth = 10.0
    size_multiple = 1

    def forward(self, image: torch.Tensor) -> DepthOutput:
        return DepthOutput(depth=1 + 4 * image[:, :1])


class RowIsDepth(nn.Module):
    """Answers a distance that grows with the row, whatever it sees."""

    size_multiple = 8

    def forward(self, image: torch.Tensor) -> DepthOutput:
        rows = torch.linspace(1, 3, image.shape[2], device=image.device)
        return DepthOutput(depth=rows[None, None, :, None].expand(len(image), 1, -1, image.shape[3]))
