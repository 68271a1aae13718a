# SPDX-License-Identifier: Apache-2.0
"""One stage of DispMVS: the iterations at one scale (arXiv 2211.16905, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vision3d.errors import ConfigError
from vision3d.models.mvs.dispmvs_update import UpdateBlock
from vision3d.ops import EpipolarLines, convex_upsample, epipolar_cost, epipolar_lines, feature_pyramid
from vision3d.ops.epipolar import METHODS

_FACTOR = 4  # a stage's result is this much larger than its grid


@dataclass(frozen=True)
class Switches:
    """Behaviour in which the published code and the recommendation differ, see :class:`DispMVS`."""

    epipolar: str
    upsampling_border: str
    mask_hidden_views: bool
    half_pixel_pyramid: bool

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("epipolar", self.epipolar, METHODS),
            ("upsampling_border", self.upsampling_border, ("zeros", "replicate")),
        ):
            if value not in choices:
                raise ConfigError(f"DispMVS: {name} must be one of {', '.join(choices)}, got '{value}'")


@dataclass(frozen=True)
class StageInputs:
    """What both stages share.

    Attributes:
        cameras: intrinsics [B, N, 3, 3] of the images and world_to_camera [B, N, 4, 4].
        far, near: [B, 1, 1, 1] inverse of the largest and of the least depth.
        group: source views that go through the network at once.
        switches: see :class:`Switches`.
    """

    cameras: tuple[Tensor, Tensor]
    far: Tensor
    near: Tensor
    group: int
    switches: Switches

    def lines(self, views: slice, depth: Tensor, scale: int) -> EpipolarLines:
        """The lines of a slice of source views, folded into the batch: [B * S, ...]."""
        intrinsics, world_to_camera = (matrix.to(torch.float64) for matrix in self.cameras)
        intrinsics = scale_intrinsics(intrinsics, 1.0 / scale)
        motion = world_to_camera[:, views] @ torch.linalg.inv(world_to_camera[:, :1])
        first = intrinsics[:, :1].expand_as(intrinsics[:, views])
        depth = depth.expand(len(motion), -1, -1, -1).repeat_interleave(motion.shape[1], 0)
        matrices = (matrix.flatten(0, 1) for matrix in (first, intrinsics[:, views], motion))
        return epipolar_lines(depth, *matrices, method=self.switches.epipolar)


class SourceViews:
    """A group of source views, folded into the batch: their lines, features and recurrent state."""

    def __init__(
        self, lines: EpipolarLines, pyramid: list[Tensor], reference: Tensor, hidden: Tensor, size: tuple[int, int]
    ) -> None:
        self.lines, self.pyramid, self.reference, self.hidden, self.size = lines, pyramid, reference, hidden, size
        self.flow = torch.zeros_like(lines.base_depth)

    def seek(self, depth: Tensor) -> None:
        """Move to where the points at ``depth`` [B, 1, h, w] of the reference view are seen."""
        repeats = len(self.flow) // len(depth)
        depth = depth.repeat_interleave(repeats, 0)
        flow = self.lines.flow_from_depth(depth)
        if self.lines.method != "official":  # behind the camera: start from the base point again
            flow = torch.where(self.lines.source_depth(depth) > 0, flow, 0.0)
        self.flow = flow

    def hidden_from_view(self, inverse: Tensor, masked: bool) -> Tensor:
        """[B * S, 1, h, w] bool: the view says nothing about this pixel."""
        if not masked:
            return self.lines.degenerate
        depth = 1.0 / inverse.clamp(min=1e-6 * inverse.detach().abs().amax() + 1e-30)
        return self.lines.degenerate | ~self.lines.visible(depth, self.size)


class Stage:
    """The iterations at one scale.

    Args:
        block: update block of the stage.
        scale: the grid is 1 / scale of the image.
        levels, radius: of the cost.
        size: (height, width) of the grid without padding.
    """

    def __init__(self, block: UpdateBlock, scale: int, levels: int, radius: int, size: tuple[int, int]) -> None:
        self.block, self.scale, self.levels, self.radius, self.size = block, scale, levels, radius, size

    def run(
        self,
        inputs: StageInputs,
        features: Tensor,
        context: Tensor,
        depth: Tensor,
        iterations: int,
        clip_last: bool = True,
    ) -> tuple[list[Tensor], Tensor]:
        """Iterate from ``depth`` [B, 1, h, w].

        Args:
            features: [B, N, C, h, w] of all views.
            context: [B, 2 C', h, w] of the reference view.
            iterations: their number.
            clip_last: clip the last result to the depth range, as all before it.

        Returns:
            The depth after each iteration and the largest weight of a view after the last, [B, 1, 4h, 4w].
        """
        hidden, context = context.chunk(2, 1)
        terms = self.block.gru.context_terms(torch.relu(context))
        groups = self._groups(inputs, features, torch.tanh(hidden), depth)
        maps: list[Tensor] = []
        for step in range(iterations):
            last = step == iterations - 1
            if step:
                for group in groups:
                    group.seek(maps[-1][..., ::_FACTOR, ::_FACTOR].detach())
            found = [self._update(group, terms, inputs, clip_last or not last) for group in groups]
            share, score, silent = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
            share, confidence = _merge(share, score, silent)
            maps.append(1.0 / (share * (inputs.near - inputs.far) + inputs.far))
        return maps, confidence

    def _groups(self, inputs: StageInputs, features: Tensor, hidden: Tensor, depth: Tensor) -> list[SourceViews]:
        groups = []
        for start in range(1, features.shape[1], inputs.group):
            views = slice(start, min(start + inputs.group, features.shape[1]))
            count = views.stop - views.start
            groups.append(
                SourceViews(
                    inputs.lines(views, _fit(depth, features), self.scale),
                    feature_pyramid(features[:, views].flatten(0, 1), self.levels),
                    features[:, 0].repeat_interleave(count, 0),
                    hidden.repeat_interleave(count, 0),
                    self.size,
                )
            )
        return groups

    def _update(
        self, views: SourceViews, terms: list[Tensor], inputs: StageInputs, clip: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One iteration of a group: inverse depth as a share of the range, score, and where the view is silent.

        Each is [B, S, 4h, 4w].
        """
        switches, lines = inputs.switches, views.lines
        flow = views.flow.detach()
        cost = epipolar_cost(
            views.reference,
            views.pyramid,
            lines.base,
            lines.direction,
            flow,
            self.radius,
            half_pixel=switches.half_pixel_pyramid,
        )
        views.hidden, step, score, mask = self.block(views.hidden, terms, cost, flow)
        inverse = lines.inverse_depth_from_flow(flow + step)
        count = len(flow) // len(inputs.far)
        far, near = inputs.far.repeat_interleave(count, 0), inputs.near.repeat_interleave(count, 0)
        share = (inverse - far) / (near - far)
        # Without clipping, a thousandth of the far end keeps the depth finite.
        share = share.clamp(0.0, 1.0) if clip else torch.maximum(share, -0.999 * far / (near - far))
        weights = torch.softmax(mask.unflatten(1, (9, -1)), 1).flatten(1, 2)
        border = switches.upsampling_border
        share, score = (
            convex_upsample(value, weights, _FACTOR, padding=border, scale=False, normalized=True)
            for value in (share, score)
        )
        silent = views.hidden_from_view(inverse.detach(), switches.mask_hidden_views)
        silent = silent.repeat_interleave(_FACTOR, 2).repeat_interleave(_FACTOR, 3)
        return tuple(value[:, 0].unflatten(0, (-1, count)) for value in (share, score, silent))  # type: ignore[return-value]


def scale_intrinsics(intrinsics: Tensor, factor: float) -> Tensor:
    """[..., 3, 3] intrinsics of every ``1 / factor``-th pixel: a grid index i stands for pixel ``i / factor``."""
    scale = intrinsics.new_tensor([factor, factor, 1.0])
    return intrinsics * scale[:, None]


def _fit(depth: Tensor, features: Tensor) -> Tensor:
    """The depth on the padded grid: the last row and column are repeated."""
    height, width = features.shape[-2:]
    missing = (0, width - depth.shape[-1], 0, height - depth.shape[-2])
    return torch.nn.functional.pad(depth, missing, mode="replicate") if any(missing) else depth


def _merge(share: Tensor, score: Tensor, silent: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of the views weighted by the softmax of their scores, and the largest weight: [B, 1, H, W] each.

    A silent view has no weight; where all are silent, all take part and the largest weight counts as 0.
    """
    nobody = silent.all(1, keepdim=True)
    weights = torch.softmax(score.masked_fill(silent & ~nobody, -torch.inf), 1)
    confidence = weights.amax(1, keepdim=True).masked_fill(nobody, 0.0)
    return (weights * share).sum(1, keepdim=True), confidence
