# SPDX-License-Identifier: Apache-2.0
"""CoVoNet: the compact cost-volume network of this project, the default for inference on a CPU.

A pyramid of shared features (1/2 to 1/16), group-wise cosine correlation at 1/4, 1/8 and 1/16, a 2-D hourglass over the
bins of all three volumes guided by the left features, soft-argmin around the best bin at 1/4, and one residual step at
1/2 on a local correlation of the warped right features; both enlargements are convex combinations. No 3-D convolution.
The parts follow known networks (group-wise correlation: GwcNet, Guo et al. 2019; 2-D aggregation with pyramid volumes:
AANet, Xu & Zhang 2020; local correlation after warping: PWC-Net, Sun et al. 2018; convex upsampling: RAFT, Teed & Deng
2020); their combination and the training recipe are the project's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vision3d.errors import InputError
from vision3d.io.checkpoints import load_into, unwrap_state_dict
from vision3d.models.normalization import Normalization
from vision3d.models.stereo.fadnet_checkpoints import detect_architecture
from vision3d.ops import convex_upsample, disparity_regression, groupwise_correlation, warp_by_disparity
from vision3d.registry import register_model
from vision3d.types import StereoOutput

_REGRESSION_RADIUS = 3  # bins on each side of the best one


class ConvUnit(nn.Sequential):
    """Convolution, batch normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, kernel: int = 3, dilation: int = 1) -> None:
        padding = (kernel // 2) * dilation
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class Residual(nn.Module):
    """Two 3x3 convolutions with an identity shortcut."""

    def __init__(self, channels: int, dilation: int = 1) -> None:
        super().__init__()
        self.first = ConvUnit(channels, channels, dilation=dilation)
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(self.first(x)), inplace=True)


class Merge(nn.Module):
    """Enlarge a coarse map twice, add a projected skip map, and convolve."""

    def __init__(self, coarse: int, skip: int, outputs: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(coarse, outputs, 1)
        self.skip = nn.Identity() if skip == outputs else nn.Conv2d(skip, outputs, 1)
        self.mix = ConvUnit(outputs, outputs)

    def forward(self, coarse: Tensor, skip: Tensor) -> Tensor:
        enlarged = F.interpolate(self.project(coarse), scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.mix(enlarged + self.skip(skip))


class FeaturePyramid(nn.Module):
    """Features of one view at 1/2, 1/4, 1/8 and 1/16 with ``widths`` channels."""

    def __init__(self, widths: tuple[int, int, int, int]) -> None:
        super().__init__()
        half, quarter, eighth, sixteenth = widths
        self.to_half = nn.Sequential(ConvUnit(3, half, 2), ConvUnit(half, half))
        self.to_quarter = nn.Sequential(ConvUnit(half, quarter, 2), Residual(quarter))
        self.to_eighth = nn.Sequential(ConvUnit(quarter, eighth, 2), Residual(eighth))
        self.to_sixteenth = nn.Sequential(ConvUnit(eighth, sixteenth, 2), Residual(sixteenth), Residual(sixteenth))
        self.merge_eighth = Merge(sixteenth, eighth, eighth)
        self.merge_quarter = Merge(eighth, quarter, quarter)

    def forward(self, image: Tensor) -> list[Tensor]:
        half = self.to_half(image)
        quarter = self.to_quarter(half)
        eighth = self.to_eighth(quarter)
        sixteenth = self.to_sixteenth(eighth)
        eighth = self.merge_eighth(sixteenth, eighth)
        return [half, self.merge_quarter(eighth, quarter), eighth, sixteenth]


class Volume(nn.Module):
    """Group-wise cosine correlation of projected features, bins folded into channels."""

    def __init__(self, features: int, channels: int, bins: int, groups: int) -> None:
        super().__init__()
        self.bins, self.groups = bins, groups
        self.project = nn.Conv2d(features, channels, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        both = self.project(torch.cat([left, right]))
        left, right = both.tensor_split(2)  # chunk would fix the batch size of an exported graph
        return groupwise_correlation(left, right, self.bins, self.groups, normalize=True).flatten(1, 2)


class Hourglass(nn.Module):
    """2-D aggregation of the three volumes, guided by the left features."""

    def __init__(self, features: tuple[int, int, int], volumes: tuple[int, int, int], widths: tuple[int, int, int]):
        super().__init__()
        w4, w8, w16 = widths
        self.guide = nn.ModuleList(nn.Conv2d(f, w // 2, 1) for f, w in zip(features, widths, strict=True))
        self.enter_quarter = ConvUnit(volumes[0] + w4 // 2, w4)
        self.down_eighth = ConvUnit(w4, w8, 2)
        self.enter_eighth = nn.Sequential(ConvUnit(w8 + volumes[1] + w8 // 2, w8), Residual(w8))
        self.down_sixteenth = ConvUnit(w8, w16, 2)
        self.enter_sixteenth = nn.Sequential(
            ConvUnit(w16 + volumes[2] + w16 // 2, w16), Residual(w16), Residual(w16, dilation=2)
        )
        self.merge_eighth = Merge(w16, w8, w8)
        self.merge_quarter = Merge(w8, w4, w4)

    def forward(self, features: list[Tensor], volumes: list[Tensor]) -> Tensor:
        guides = [guide(feature) for guide, feature in zip(self.guide, features, strict=True)]
        quarter = self.enter_quarter(torch.cat([volumes[0], guides[0]], 1))
        eighth = self.enter_eighth(torch.cat([self.down_eighth(quarter), volumes[1], guides[1]], 1))
        sixteenth = self.enter_sixteenth(torch.cat([self.down_sixteenth(eighth), volumes[2], guides[2]], 1))
        return self.merge_quarter(self.merge_eighth(sixteenth, eighth), quarter)


def _unit_length(features: Tensor) -> Tensor:
    return features * (features.square().sum(1, keepdim=True) + 1e-6).rsqrt()


class Refinement(nn.Module):
    """A residual at 1/2 from the local correlation of left and warped right features."""

    def __init__(self, features: int, context: int, width: int, matching: int = 16, reach: int = 4) -> None:
        super().__init__()
        self.reach = reach
        self.project = nn.Conv2d(features, matching, 1)
        # The context fills the input up to 2 * width channels: multiples of 16 are what fast convolutions want.
        shared = 2 * width - (2 * reach + 2) - features
        self.context = nn.Sequential(nn.Conv2d(context, 4 * shared, 1), nn.PixelShuffle(2))
        self.enter = ConvUnit(2 * width, width)
        self.body = nn.Sequential(Residual(width), ConvUnit(width, width, dilation=2))
        self.residual = nn.Conv2d(width, 1, 3, 1, 1)
        self.weights = nn.Conv2d(width, 36, 1)

    def local_correlation(self, left: Tensor, right: Tensor, disparity: Tensor) -> Tensor:
        """Cosine of left features and right features within ``reach`` columns of the warped position."""
        width = left.shape[-1]
        left, right = (_unit_length(self.project(view).float()) for view in (left, right))
        warped = F.pad(warp_by_disparity(right, disparity), (self.reach, self.reach, 0, 0), mode="replicate")
        shifts = [(left * warped[..., i : i + width]).sum(1) for i in range(2 * self.reach + 1)]
        return torch.stack(shifts, 1)

    def forward(self, left: Tensor, right: Tensor, context: Tensor, disparity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``disparity``: [B, 1, H/2, W/2] in pixels of that size; returns the refined map, weights for x2, features."""
        start = disparity.detach().float()
        local = self.local_correlation(left, right, start)
        inputs = [local.to(left.dtype), (start / 32.0).to(left.dtype), left, self.context(context)]
        x = self.body(self.enter(torch.cat(inputs, 1)))
        return F.relu(disparity + self.residual(x).float()), self.weights(x).float(), x


@dataclass
class Estimate:
    """What CoVoNet knows after its last step.

    Attributes:
        disparity: [B, 1, H, W], full-resolution pixels, as all maps but ``half``.
        half: [B, 1, H/2, W/2] the map before refinement, in pixels of that size.
        quarter: [B, 1, H/4, W/4] the first estimate, in pixels of that size.
        logits: [B, D/4, H/4, W/4] scores of the bins.
        context: features of the hourglass at 1/4.
        features: the left and right features at 1/2.
        refined: features of the refinement at 1/2.
    """

    disparity: Tensor
    half: Tensor
    quarter: Tensor
    logits: Tensor
    context: Tensor
    features: tuple[Tensor, Tensor]
    refined: Tensor


class CoVoNet(nn.Module):
    """Compact cost-volume stereo network.

    Args:
        max_disparity: reach of the cost volume, pixels, a multiple of 16.
        feature_widths: channels of the features at 1/2, 1/4, 1/8, 1/16.
        hourglass_widths: channels of the aggregation at 1/4, 1/8, 1/16.
        groups: correlation groups at 1/4, 1/8, 1/16.
        refinement_width: channels of the residual step at 1/2.
    """

    size_multiple = 16
    bytes_per_pixel = 650.0  # peak memory of a float32 pass, measured on a CPU

    def __init__(
        self,
        max_disparity: int = 192,
        feature_widths: tuple[int, int, int, int] = (32, 48, 96, 128),
        hourglass_widths: tuple[int, int, int] = (96, 128, 160),
        groups: tuple[int, int, int] = (2, 4, 4),
        refinement_width: int = 32,
    ) -> None:
        super().__init__()
        if max_disparity < 16 or max_disparity % 16:
            raise InputError(f"max_disparity must be a positive multiple of 16, got {max_disparity}")
        self.max_disparity = max_disparity
        self.normalization = Normalization((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
        self.features = FeaturePyramid(feature_widths)
        bins = [max_disparity // 4, max_disparity // 8, max_disparity // 16]
        sides = feature_widths[1:]
        self.volumes = nn.ModuleList(
            Volume(side, 16 * group, count, group) for side, count, group in zip(sides, bins, groups, strict=True)
        )
        folded = tuple(count * group for count, group in zip(bins, groups, strict=True))
        self.hourglass = Hourglass(sides, folded, hourglass_widths)  # type: ignore[arg-type]
        context = hourglass_widths[0]
        self.logits = nn.Conv2d(context, bins[0], 1)
        # The scores start as plain block matching, which the hourglass learns to correct.
        self.match_scale = nn.Parameter(torch.tensor(10.0))
        self.weights = nn.Conv2d(context, 36, 1)
        self.refinement = Refinement(feature_widths[0], context, refinement_width)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for head in (self.logits, self.weights, self.refinement.residual, self.refinement.weights):
            nn.init.normal_(head.weight, std=0.01)

    def load_official_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Load this project's weights: with or without an outer dictionary, ``module.`` and ``num_batches_tracked``.

        Those of CoVoNet-SGM fit too: its fusion is left out.

        Raises:
            WeightsError: the weights are of another network; the first names that differ are listed.
        """
        weights = unwrap_state_dict(state_dict)
        own = {name: value for name, value in weights.items() if not name.startswith("fusion.")}
        load_into(self, own, detect_architecture)

    def forward(self, left: Tensor, right: Tensor) -> StereoOutput:
        """Estimate the disparity of the left view.

        Args:
            left, right: [B, 3, H, W] RGB in [0, 1]; H and W multiples of 16.

        Returns:
            ``pyramid``: the refined map at 1/1 and the first estimate at 1/4, both in full-resolution pixels. In
            training mode ``stages`` holds the first estimate enlarged to 1/1 and the refined map, and
            ``auxiliary["logits"]`` the [B, D/4, H/4, W/4] scores of the bins.

        Raises:
            InputError: sizes that differ or are no multiples of 16.
        """
        self._check_sizes(left, right)
        estimate = self.estimate(left, right)
        output = StereoOutput(disparity=estimate.disparity, pyramid=[estimate.disparity, estimate.quarter * 4.0])
        if self.training:
            output.stages = [[enlarged(estimate.half)], [estimate.disparity]]
            output.auxiliary = {"logits": estimate.logits}
        return output

    def _check_sizes(self, left: Tensor, right: Tensor) -> None:
        if left.shape != right.shape or left.shape[-1] % 16 or left.shape[-2] % 16:
            raise InputError(
                f"left {tuple(left.shape)} and right {tuple(right.shape)} must have one size, a multiple of 16: "
                "use vision3d.predict_stereo or vision3d.ops.pad_to_multiple"
            )

    def estimate(self, left: Tensor, right: Tensor) -> Estimate:
        """Everything that ``forward`` and networks built on this one need; arguments as there."""
        both = self.features(self.normalization(torch.cat([left, right])))
        pairs = [feature.tensor_split(2) for feature in both]
        volumes = [volume(*pair) for volume, pair in zip(self.volumes, pairs[1:], strict=True)]
        context = self.hourglass([pair[0] for pair in pairs[1:]], volumes)
        match = volumes[0].unflatten(1, (-1, self.logits.out_channels)).float().mean(1)
        logits = self.logits(context).float() + self.match_scale * match
        quarter = disparity_regression(logits, radius=_REGRESSION_RADIUS)
        half = convex_upsample(quarter, self.weights(context).float(), 2)
        refined, weights, features = self.refinement(*pairs[0], context, half)
        disparity = convex_upsample(refined, weights, 2)
        return Estimate(disparity, half, quarter, logits, context, pairs[0], features)


def enlarged(half: Tensor) -> Tensor:
    """A disparity map at 1/2, in pixels of that size, as a full-resolution map in full-resolution pixels."""
    return F.interpolate(half * 2.0, scale_factor=2.0, mode="bilinear", align_corners=False)


@register_model(task="stereo", family="covonet")
def covonet(**options: object) -> CoVoNet:
    """CoVoNet, the default size."""
    return CoVoNet(**options)  # type: ignore[arg-type]
