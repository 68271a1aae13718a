# SPDX-License-Identifier: Apache-2.0
"""A stereo "network" for tests: OpenCV's semi-global matcher behind the interface of the zoo."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from torch import nn

from vision3d.types import StereoOutput


class Matcher(nn.Module):
    """Answers [B, 1, H, W] like a network; notes the sizes that it saw."""

    name = "matcher"
    size_multiple = 32

    def __init__(self, max_disparity: int = 96, fill: bool = True) -> None:
        super().__init__()
        self.max_disparity = max_disparity
        self.fill = fill
        self.sizes: list[tuple[int, int]] = []

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> StereoOutput:
        self.sizes.append((left.shape[3], left.shape[2]))
        maps = [self._match(a, b) for a, b in zip(left, right, strict=True)]
        disparity = torch.from_numpy(np.stack(maps))[:, None]
        return StereoOutput(disparity=disparity, pyramid=[disparity])

    def _match(self, left: torch.Tensor, right: torch.Tensor) -> np.ndarray:
        views = [(255 * view.permute(1, 2, 0)).round().byte().numpy() for view in (left, right)]
        border = self.max_disparity  # columns whose search would leave the image get an answer, too
        padded = [cv2.copyMakeBorder(view, 0, 0, border, 0, cv2.BORDER_REPLICATE) for view in views]
        matcher = cv2.StereoSGBM.create(0, border, 5, P1=600, P2=2400, uniquenessRatio=5, mode=cv2.STEREO_SGBM_MODE_HH)
        found = matcher.compute(*padded)[:, border:].astype(np.float32) / 16
        found[found < 0] = np.nan
        if self.fill:
            from vision3d.geometry.disparity import fill_invalid

            found = fill_invalid(found)
        return np.nan_to_num(found) if self.fill else found


class Constant(nn.Module):
    """The same disparity everywhere; takes any size."""

    size_multiple = 64

    def __init__(self, value: float = 4.0) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> StereoOutput:
        disparity = self.value * torch.ones_like(left[:, :1])
        return StereoOutput(disparity=disparity, pyramid=[disparity])
