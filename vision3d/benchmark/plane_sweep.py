# SPDX-License-Identifier: Apache-2.0
"""A plane sweep over the matching features of a network: the reference that range-free networks are compared with.

Collins, "A space-sweep approach to true multi-image matching", CVPR 1996, with the features of the network that is
compared, at 1/4 of the image: same features, same views, but the cost is sampled at fixed depths of the range.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vision3d.errors import InputError
from vision3d.models.mvs.dispmvs import DispMVS
from vision3d.models.mvs.dispmvs_stage import scale_intrinsics
from vision3d.ops import pad_to_multiple
from vision3d.ops.epipolar import pixel_grid
from vision3d.types import DepthOutput

_SCALE = 4


class PlaneSweep(nn.Module):
    """Depth by the best of a fixed number of planes, evenly spaced in inverse depth, refined by a parabola.

    Args:
        network: its matching features of the fine stage are used.
        planes: their number; memory grows with it.

    Raises:
        InputError: fewer than 3 planes.
    """

    def __init__(self, network: DispMVS, planes: int = 64) -> None:
        super().__init__()
        if planes < 3:
            raise InputError(f"a plane sweep needs 3 or more planes, got {planes}")
        self.network, self.planes = network, planes

    @torch.no_grad()
    def forward(self, images: Tensor, intrinsics: Tensor, world_to_camera: Tensor, depth_range: Tensor) -> DepthOutput:
        """Arguments as of :class:`vision3d.models.mvs.dispmvs.DispMVS`; returns ``depth`` [B, 1, H, W]."""
        batch, views = images.shape[:2]
        padded, padding = pad_to_multiple(self.network.normalization(images.flatten(0, 1)), 16)
        features = F.normalize(self.network.fnet(padded)[1], dim=1).unflatten(0, (batch, views))
        ends = 1.0 / depth_range.double()
        shares = torch.linspace(0, 1, self.planes, dtype=torch.float64, device=images.device)
        inverse = ends[:, 1:] + shares * (ends[:, :1] - ends[:, 1:])  # far to near, [B, D]
        small = scale_intrinsics(intrinsics.double(), 1.0 / _SCALE)
        score = torch.stack(
            [self._score(features, small, world_to_camera.double(), 1.0 / inverse[:, k]) for k in range(self.planes)], 1
        )
        place = _peak(score)
        step = (ends[:, 0] - ends[:, 1]) / (self.planes - 1)
        depth = 1.0 / (ends[:, 1, None, None] + place * step[:, None, None])
        full = F.interpolate(depth[:, None].float(), size=padded.shape[-2:], mode="nearest")
        return DepthOutput(depth=padding.undo(full))

    def _score(self, features: Tensor, intrinsics: Tensor, poses: Tensor, depth: Tensor) -> Tensor:
        """[B, h, w] mean cosine of the features over the source views that see the plane at ``depth`` [B]."""
        height, width = features.shape[-2:]
        rays = torch.einsum(
            "bij,jhw->bihw", torch.linalg.inv(intrinsics[:, 0]), pixel_grid(height, width, features.device)
        )
        points = rays / rays[:, 2:] * depth[:, None, None, None]
        total, count = features.new_zeros(()), features.new_zeros(())
        for view in range(1, features.shape[1]):
            motion = poses[:, view] @ torch.linalg.inv(poses[:, 0])
            moved = torch.einsum("bij,bjhw->bihw", motion[:, :3, :3], points) + motion[:, :3, 3, None, None]
            x, y, z = torch.einsum("bij,bjhw->bihw", intrinsics[:, view], moved).unbind(1)
            safe = torch.where(z > 0, z, 1.0)
            x, y = x / safe, y / safe
            seen = (z > 0) & (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
            grid = torch.stack([2 * x / max(width - 1, 1) - 1, 2 * y / max(height - 1, 1) - 1], -1)
            grid = torch.where(seen[..., None], grid, 2.0).to(features.dtype)
            sampled = F.grid_sample(features[:, view], grid, align_corners=True)
            total = total + (features[:, 0] * sampled).sum(1) * seen
            count = count + seen
        return torch.where(count > 0, total / count.clamp(min=1), -1.0)


def _peak(score: Tensor) -> Tensor:
    """[B, h, w] float64 place of the largest score of [B, D, h, w], between planes by a parabola."""
    best = score.argmax(1, keepdim=True)
    middle = best.clamp(1, score.shape[1] - 2)
    left, center, right = (score.gather(1, middle + shift).double() for shift in (-1, 0, 1))
    bend = left - 2 * center + right
    shift = torch.where(bend < 0, 0.5 * (left - right) / torch.where(bend < 0, bend, -1.0), 0.0).clamp(-0.5, 0.5)
    return torch.where(best == middle, middle + shift, best.double())[:, 0]
