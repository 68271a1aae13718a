# SPDX-License-Identifier: Apache-2.0
"""The U-Nets of the FADNet family: one encoder and decoder for both stages, and what the whole networks share.

Scale k = 0..6 has the size H/2^k x W/2^k; disparities are in full-resolution pixels at every scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from vision3d.errors import InputError
from vision3d.io.checkpoints import load_into, unwrap_state_dict
from vision3d.models.normalization import Normalization
from vision3d.models.stereo.blocks import (
    LEAKY_SLOPE,
    DisparityUpsampler,
    Predictor,
    convolution,
    deconvolution,
    error_norm,
    fusion,
)
from vision3d.models.stereo.fadnet_checkpoints import detect_architecture
from vision3d.ops import correlation_1d, warp_by_disparity
from vision3d.types import StereoOutput

BlockFactory = Callable[[int, int, int], nn.Module]  # (in_channels, out_channels, stride)
RESIDUAL_INPUT_CHANNELS = 11  # left, right, warped right, disparity, error norm


@dataclass(frozen=True)
class UNetWidths:
    """Channel counts of one U-Net.

    Attributes:
        encoder: outputs of conv1 .. conv6.
        context: output of conv3_1 (of conv3 where there is no conv3_1): the skip of scale 3.
        decoder: outputs of iconv5 .. iconv0.
        refined: the scales that have a second layer ``conv<k>_1``.
    """

    encoder: tuple[int, int, int, int, int, int]
    context: int
    decoder: tuple[int, int, int, int, int, int]
    refined: tuple[int, ...] = (3, 4, 5, 6)

    @property
    def scales(self) -> tuple[int, ...]:
        """Channels that scale 0 (the left image) to scale 6 hand to the decoder."""
        conv1, conv2, _, conv4, conv5, conv6 = self.encoder
        return (3, conv1, conv2, self.context, conv4, conv5, conv6)


def extractor_layers(in_channels: int, widths: UNetWidths, block: BlockFactory) -> dict[str, nn.Module]:
    """The layers conv1, conv2, conv3, each halving the size."""
    conv1, conv2, conv3 = widths.encoder[:3]
    return {
        "conv1": convolution(in_channels, conv1, stride=2, kernel=7),
        "conv2": block(conv1, conv2, 2),
        "conv3": block(conv2, conv3, 2),
    }


class FeatureExtractor(nn.Module):
    """Features of one view at 1/2, 1/4 and 1/8 of its size."""

    def __init__(self, widths: UNetWidths, block: BlockFactory) -> None:
        super().__init__()
        for name, layer in extractor_layers(3, widths, block).items():
            self.add_module(name, layer)

    def forward(self, image: torch.Tensor) -> list[torch.Tensor]:
        return extract_features(self, image)


def extract_features(network: nn.Module, image: torch.Tensor) -> list[torch.Tensor]:
    """Outputs of conv1, conv2 and conv3 of a network that has them."""
    features = [image]
    for scale in (1, 2, 3):
        features.append(getattr(network, f"conv{scale}")(features[-1]))
    return features[1:]


class UNet(nn.Module):
    """Encoder and decoder to seven disparity maps; ``entry`` holds the layers down to conv3_1, which stages differ in.

    Args:
        entry: layers by name, in the order of the state dict.
        widths: channel counts.
        block: builds the layers of scales 4 to 6.
        predictor: name of the prediction layers, ``pred_flow`` or ``pred_res``.
    """

    def __init__(
        self, entry: Mapping[str, nn.Module], widths: UNetWidths, block: BlockFactory, predictor: str = "pred_flow"
    ) -> None:
        super().__init__()
        self._refined = widths.refined
        self._predictor = predictor
        for name, layer in entry.items():
            self.add_module(name, layer)
        channels = widths.scales
        for scale in (4, 5, 6):
            self.add_module(f"conv{scale}", block(channels[scale - 1], channels[scale], 2))
            if scale in widths.refined:
                self.add_module(f"conv{scale}_1", block(channels[scale], channels[scale], 1))
        self._add_decoder(channels, dict(zip((5, 4, 3, 2, 1, 0), widths.decoder, strict=True)))

    def _add_decoder(self, skips: tuple[int, ...], outputs: dict[int, int]) -> None:
        self.add_module(f"{self._predictor}6", Predictor(skips[6]))
        for scale, width in outputs.items():
            self.add_module(f"iconv{scale}", fusion(width + 1 + skips[scale], width))
        below = skips[6]
        for scale, width in outputs.items():
            self.add_module(f"upconv{scale}", deconvolution(below, width))
            self.add_module(f"upflow{scale + 1}to{scale}", DisparityUpsampler())
            self.add_module(f"{self._predictor}{scale}", Predictor(width))
            below = width

    def encode(self, x: torch.Tensor, first_scale: int) -> list[torch.Tensor]:
        """Features of the scales ``first_scale`` .. 6 from the input of the first of them."""
        features = []
        for scale in range(first_scale, 7):
            x = getattr(self, f"conv{scale}")(x)
            if scale in self._refined:
                x = getattr(self, f"conv{scale}_1")(x)
            features.append(x)
        return features

    def decode(
        self,
        scales: list[torch.Tensor],
        base: list[torch.Tensor] | None = None,
        collected: list[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """Seven raw maps, finest first, from the left image and the features of scales 1 to 6.

        The prediction of a scale is added to ``base`` of that scale, and the next finer scale sees the sum. A list
        ``collected`` receives the decoder's features of scales 0 to 5 (which are not kept otherwise).
        """
        features = scales[6]
        maps = [self._predict(6, features, base)]
        for scale in (5, 4, 3, 2, 1, 0):
            up = getattr(self, f"upconv{scale}")(features)
            disparity = getattr(self, f"upflow{scale + 1}to{scale}")(maps[0])
            joined = torch.cat((up, disparity.to(up.dtype), scales[scale].to(up.dtype)), dim=1)
            features = getattr(self, f"iconv{scale}")(joined)
            if collected is not None:
                collected.insert(0, features)
            maps.insert(0, self._predict(scale, features, base))
        return maps

    def _predict(self, scale: int, features: torch.Tensor, base: list[torch.Tensor] | None) -> torch.Tensor:
        predicted = getattr(self, f"{self._predictor}{scale}")(features)
        return predicted if base is None else predicted + base[scale]


class CorrelationUNet(UNet):
    """Stage 1: correlation at 1/8 of the size, then the U-Net; only the finest map is rectified.

    ``entry`` must hold conv_redir and conv3_1.
    """

    conv_redir: nn.Module
    conv3_1: nn.Module

    def __init__(
        self,
        entry: Mapping[str, nn.Module],
        widths: UNetWidths,
        block: BlockFactory,
        correlation_bins: int,
        beyond_width: str,
    ) -> None:
        super().__init__(entry, widths, block)
        self.correlation_bins = correlation_bins
        self.beyond_width = beyond_width

    def forward(
        self,
        image: torch.Tensor,
        left: list[torch.Tensor],
        right: torch.Tensor,
        collected: list[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """Seven maps, finest first.

        Args:
            image: the normalised left image, [B, 3, H, W].
            left: left features of scales 1 to 3.
            right: right features of scale 3.
            collected: a list that receives the decoder's features of scales 0 to 5.
        """
        correlation = correlation_1d(left[2], right, self.correlation_bins, beyond_width=self.beyond_width)
        redirected = self.conv_redir(left[2])
        joined = torch.cat((redirected, F.leaky_relu(correlation, LEAKY_SLOPE).to(redirected.dtype)), dim=1)
        context = self.conv3_1(joined)
        scales = [image, *left[:2], context, *self.encode(context, first_scale=4)]
        maps = self.decode(scales, collected=collected)
        return [F.relu(maps[0]), *maps[1:]]


class RefinementUNet(UNet):
    """Stage 2: the U-Net on both images, the warped right image, the disparity and the error norm (11 channels)."""

    def __init__(self, widths: UNetWidths, block: BlockFactory, predictor: str = "pred_res") -> None:
        entry = extractor_layers(RESIDUAL_INPUT_CHANNELS, widths, block)
        if 3 in widths.refined:
            entry["conv3_1"] = block(widths.encoder[2], widths.context, 1)
        super().__init__(entry, widths, block, predictor)

    def forward(self, x: torch.Tensor, base: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """Seven rectified maps, finest first, from [B, 11, H, W]; residuals are added to the maps of ``base``."""
        return [F.relu(map_) for map_ in self.decode([x[:, :3], *self.encode(x, first_scale=1)], base)]


@dataclass(frozen=True)
class WarpRule:
    """How stage 1's disparity warps the right image, and how the remaining error is measured.

    Attributes:
        align_corners, padding_mode: as in ``torch.nn.functional.grid_sample``.
        epsilon: added to the sum of squares below the root of the error norm.
    """

    align_corners: bool
    padding_mode: str
    epsilon: float


def pass_bytes_per_pixel(finest_channels: int) -> float:
    """Peak memory of a float32 pass a pixel, without the weights, for a number of channels of the finest layer.

    A line above the peak resident memory measured on a CPU at 768x512 and 1280x768: micro (2 channels) 378, tiny (4)
    379 and 392, slight (8) 499 and 494, mobile (16) 726 and 665 bytes; at 640x384 crl (32) 1226, dispnetc (32)
    1111 and mobilefadnet_v1 (64 and 16) 950. Wider networks are extrapolated along it.
    """
    return 330.0 + 28.0 * finest_channels


class DisparityNetwork(nn.Module):
    """What the networks of the family share: input check, normalisation, output, loading of the authors' weights."""

    size_multiple = 64

    def __init__(self, warp: WarpRule, max_disparity: int, finest_channels: int) -> None:
        super().__init__()
        self.bytes_per_pixel = pass_bytes_per_pixel(finest_channels)
        self.warp = warp
        self.max_disparity = max_disparity
        self.normalization: nn.Module = Normalization()

    def predict_stages(self, left: torch.Tensor, right: torch.Tensor) -> list[list[torch.Tensor]]:
        """The maps of each stage, finest first, from the normalised views."""
        raise NotImplementedError

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> StereoOutput:
        """Disparity of the left view.

        Args:
            left, right: [B, 3, H, W], RGB in [0, 1], rectified; H and W are multiples of 64.

        Returns:
            ``disparity`` [B, 1, H, W]; ``pyramid``: seven maps of the last stage in full-resolution pixels, map k of
            size [B, 1, H / 2^k, W / 2^k]; in training mode ``stages``: such a list for each stage (the coarse maps
            of stage 1 are not rectified and may be negative).

        Raises:
            InputError: shapes that do not fit.
        """
        check_pair(left, right, self.size_multiple)
        stages = self.predict_stages(self.normalization(left), self.normalization(right))
        return StereoOutput(disparity=stages[-1][0], pyramid=stages[-1], stages=stages if self.training else [])

    def refinement_input(self, left: torch.Tensor, right: torch.Tensor, disparity: torch.Tensor) -> torch.Tensor:
        """The 11 input channels of a refinement stage, [B, 11, H, W], in the dtype of the views."""
        disparity = disparity.to(left.dtype)
        rule = self.warp
        warped = warp_by_disparity(right, disparity, align_corners=rule.align_corners, padding_mode=rule.padding_mode)
        return torch.cat((left, right, warped, disparity, error_norm(left - warped, rule.epsilon)), dim=1)

    def load_official_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Load the authors' weights: with or without an outer dictionary, ``module.`` and ``num_batches_tracked``.

        Raises:
            WeightsError: the weights are of another network; the first names that differ are listed.
        """
        load_into(self, self._official_names(unwrap_state_dict(state_dict)), detect_architecture)

    def _official_names(self, state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return state_dict


def check_pair(left: torch.Tensor, right: torch.Tensor, multiple: int) -> None:
    """Raise InputError unless both views are [B, 3, H, W] of one size with sides that are multiples of ``multiple``."""
    if left.dim() != 4 or left.shape[1] != 3:
        raise InputError(f"left must be [B, 3, H, W], got {list(left.shape)}: pass RGB images with a batch axis")
    if left.shape != right.shape:
        raise InputError(f"left is {list(left.shape)} but right is {list(right.shape)}: both views must be of one size")
    height, width = left.shape[-2:]
    if height % multiple or width % multiple or not height or not width:
        raise InputError(
            f"height {height} and width {width} must be multiples of {multiple}: pad the pair with "
            f"vision3d.ops.pad_to_multiple(image, {multiple}), or call vision3d.predict_stereo, which does it"
        )
