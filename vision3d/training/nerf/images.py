# SPDX-License-Identifier: Apache-2.0
"""The images of a sequence in memory, at any pyramid level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vision3d.errors import InputError


class ImagePyramid:
    """Images of one size and their halved versions (5-tap Gaussian, (n + 1) // 2 pixels a side), made when asked for.

    Args:
        images: [N, 3, H, W] RGB in [0, 1], or a list of [H, W, 3] uint8 arrays.

    Raises:
        InputError: no image, different sizes, or another layout.
    """

    def __init__(self, images: Tensor | Sequence[np.ndarray]) -> None:
        if not isinstance(images, Tensor):
            images = _stacked(images)
        if images.dim() != 4 or images.shape[1] != 3 or 0 in images.shape or not images.is_floating_point():
            raise InputError(f"images must be [N, 3, H, W] numbers in [0, 1], got {list(images.shape)} {images.dtype}")
        self._levels = [images.float()]

    def __len__(self) -> int:
        return len(self._levels[0])

    def level(self, level: int) -> Tensor:
        """Images [N, 3, h, w] after ``level`` halvings."""
        while len(self._levels) <= level:
            self._levels.append(_halved(self._levels[-1]))
        return self._levels[level]

    def size(self, level: int) -> tuple[int, int]:
        """(height, width) of a level."""
        height, width = self.level(level).shape[2:]
        return height, width


def _stacked(images: Sequence[np.ndarray]) -> Tensor:
    shapes = {np.shape(image) for image in images}
    if len(shapes) != 1 or any(len(shape) != 3 or shape[2] != 3 for shape in shapes):
        raise InputError(f"the images must be [H, W, 3] of one size, got {sorted(shapes)[:3] or 'none'}; resize them")
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255


def _halved(images: Tensor) -> Tensor:
    import cv2

    rows = [cv2.pyrDown(np.ascontiguousarray(image)) for image in images.permute(0, 2, 3, 1).cpu().numpy()]
    return torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2).to(images.device)
