# SPDX-License-Identifier: Apache-2.0
"""FADNet++ in all its sizes, and CRL, DispNetC and DispNetCSS built from the same parts.

Wang et al., "FADNet++: Real-Time and Accurate Disparity Estimation with Configurable Networks", arXiv 2110.02582.
"""

from __future__ import annotations

import torch
from torch import nn

from vision3d.errors import ConfigError
from vision3d.models.stereo.blocks import DynamicResBlock, ResBlock, convolution, initialize_kaiming
from vision3d.models.stereo.fadnet_checkpoints import convert_fadnetpp_names
from vision3d.models.stereo.unet import (
    BlockFactory,
    CorrelationUNet,
    DisparityNetwork,
    FeatureExtractor,
    RefinementUNet,
    UNetWidths,
    WarpRule,
)
from vision3d.registry import register_model

MAX_DYNAMIC_BINS = 66
_WARP_EPSILON = 1e-8


def correlation_bins(max_disparity: int) -> int:
    """Number of correlation bins (8 px each) for a search range: 40 for 192."""
    return max_disparity // 8 + 16


def _widths(encoder_ratio: int, decoder_ratio: int) -> UNetWidths:
    e, d = 2 * encoder_ratio, 2 * decoder_ratio
    return UNetWidths((e, 2 * e, 4 * e, 8 * e, 16 * e, 32 * e), 4 * e, (16 * d, 8 * d, 4 * d, 2 * d, d, d))


def _stage_one(widths: UNetWidths, block: BlockFactory, bins: int, dynamic: bool) -> CorrelationUNet:
    redirected, features = widths.encoder[0], widths.encoder[2]
    context = (
        DynamicResBlock(redirected + MAX_DYNAMIC_BINS, features) if dynamic else block(redirected + bins, features, 1)
    )
    entry = {"conv_redir": block(features, redirected, 1), "conv3_1": context}
    return CorrelationUNet(entry, widths, block, bins, beyond_width="unshifted")


class _SharedExtractorNetwork(DisparityNetwork):
    """A shared feature extractor, the correlation U-Net, and refinement stages that subclasses or options add."""

    def __init__(
        self, encoder_ratio: int, decoder_ratio: int, residual_blocks: bool, max_disparity: int, align_corners: bool
    ) -> None:
        warp = WarpRule(align_corners, "border" if align_corners else "zeros", _WARP_EPSILON)
        super().__init__(warp, max_disparity, finest_channels=2 * encoder_ratio)
        bins = correlation_bins(max_disparity)
        if max_disparity < 1:
            raise ConfigError(f"max_disparity must be positive, got {max_disparity}: use 192, the trained range")
        if residual_blocks and bins > MAX_DYNAMIC_BINS:
            raise ConfigError(
                f"max_disparity {max_disparity} is beyond the largest range of these networks: use 400 or less"
            )
        self.widths = _widths(encoder_ratio, decoder_ratio)
        self.block: BlockFactory = ResBlock if residual_blocks else convolution
        self.extract_network = FeatureExtractor(self.widths, self.block)
        self.cunet = _stage_one(self.widths, self.block, bins, residual_blocks)

    def _correlate(self, left: torch.Tensor, right: torch.Tensor) -> list[torch.Tensor]:
        left_features, right_features = self.extract_network(left), self.extract_network(right)
        return self.cunet(left, left_features, right_features[2])

    def _official_names(self, state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return convert_fadnetpp_names(state_dict)


class FADNetPP(_SharedExtractorNetwork):
    """FADNet++ of a given width.

    Args:
        encoder_ratio, decoder_ratio: half the channels of the finest encoder and decoder layers.
        residual_blocks: residual blocks, or plain convolutions.
        max_disparity: search range in pixels; ``max_disparity // 8 + 16`` bins of 8 px are correlated. With residual
            blocks one set of weights serves any range up to 400.
        align_corners: warp rule; False is what the public weights were trained with (with zeros beyond the border),
            True samples exactly at ``x - d`` with replicated borders.
    """

    def __init__(
        self,
        encoder_ratio: int = 16,
        decoder_ratio: int = 16,
        *,
        residual_blocks: bool = True,
        max_disparity: int = 192,
        align_corners: bool = False,
    ) -> None:
        super().__init__(encoder_ratio, decoder_ratio, residual_blocks, max_disparity, align_corners)
        self.dispnetres = RefinementUNet(self.widths, self.block)
        initialize_kaiming(self)

    def predict_stages(self, left: torch.Tensor, right: torch.Tensor) -> list[list[torch.Tensor]]:
        coarse = self._correlate(left, right)
        return [coarse, self.dispnetres(self.refinement_input(left, right, coarse[0]), coarse)]


class DispNet(_SharedExtractorNetwork):
    """DispNetC, optionally followed by U-Nets that predict the disparity anew from the warped pair.

    Args:
        refinements: number of further U-Nets (DispNetCSS: 2). Their seven maps are rectified.
        residual_blocks, max_disparity, align_corners: as in :class:`FADNetPP`.
    """

    def __init__(
        self,
        refinements: int = 0,
        *,
        residual_blocks: bool = False,
        max_disparity: int = 192,
        align_corners: bool = False,
    ) -> None:
        super().__init__(16, 16, residual_blocks, max_disparity, align_corners)
        self._refinements = [f"dispnets{index + 1}" for index in range(refinements)]
        for name in self._refinements:
            self.add_module(name, RefinementUNet(self.widths, self.block, predictor="pred_flow"))
        initialize_kaiming(self)

    def predict_stages(self, left: torch.Tensor, right: torch.Tensor) -> list[list[torch.Tensor]]:
        stages = [self._correlate(left, right)]
        for name in self._refinements:
            refine: nn.Module = getattr(self, name)
            stages.append(refine(self.refinement_input(left, right, stages[-1][0])))
        return stages


@register_model(task="stereo", family="fadnetpp")
def fadnetpp(*, max_disparity: int = 192, align_corners: bool = False) -> FADNetPP:
    """FADNet++, 124.4 M parameters. Options: :class:`FADNetPP`."""
    return FADNetPP(16, 16, max_disparity=max_disparity, align_corners=align_corners)


@register_model(task="stereo", family="fadnetpp")
def fadnetpp_x(*, max_disparity: int = 192, align_corners: bool = False) -> FADNetPP:
    """FADNet++ X, 497.1 M parameters ("xfadnet"). Options: :class:`FADNetPP`."""
    return FADNetPP(32, 32, max_disparity=max_disparity, align_corners=align_corners)


@register_model(task="stereo", family="fadnetpp")
def fadnetpp_mobile(*, max_disparity: int = 192, align_corners: bool = False) -> FADNetPP:
    """FADNet++ mobile, 31.2 M parameters ("mobilefadnet"). Options: :class:`FADNetPP`."""
    return FADNetPP(8, 8, max_disparity=max_disparity, align_corners=align_corners)


@register_model(task="stereo", family="fadnetpp")
def fadnetpp_slight(*, max_disparity: int = 192, align_corners: bool = False) -> FADNetPP:
    """FADNet++ slight, 7.8 M parameters ("slightfadnet"). Options: :class:`FADNetPP`."""
    return FADNetPP(4, 4, max_disparity=max_disparity, align_corners=align_corners)


@register_model(task="stereo", family="fadnetpp")
def fadnetpp_tiny(*, max_disparity: int = 192, align_corners: bool = False) -> FADNetPP:
    """FADNet++ tiny, 1.6 M parameters ("tinyfadnet"; its decoder ratio is 1). Options: :class:`FADNetPP`."""
    return FADNetPP(2, 1, max_disparity=max_disparity, align_corners=align_corners)


@register_model(task="stereo", family="fadnetpp")
def fadnetpp_micro(*, max_disparity: int = 192, align_corners: bool = False) -> FADNetPP:
    """FADNet++ micro, 0.5 M parameters ("microfadnet"). Options: :class:`FADNetPP`."""
    return FADNetPP(1, 1, max_disparity=max_disparity, align_corners=align_corners)


@register_model(task="stereo", family="fadnetpp")
def crl(*, max_disparity: int = 192, align_corners: bool = False) -> FADNetPP:
    """FADNet++ with plain convolutions, 72.7 M parameters; its weights fit one ``max_disparity`` only."""
    return FADNetPP(16, 16, residual_blocks=False, max_disparity=max_disparity, align_corners=align_corners)


@register_model(task="stereo", family="fadnetpp")
def dispnetc(*, max_disparity: int = 192, residual_blocks: bool = False) -> DispNet:
    """DispNetC, the first stage alone: 36.3 M parameters, 62.2 M with residual blocks."""
    return DispNet(0, max_disparity=max_disparity, residual_blocks=residual_blocks)


@register_model(task="stereo", family="fadnetpp")
def dispnetcss(*, max_disparity: int = 192, residual_blocks: bool = False, align_corners: bool = False) -> DispNet:
    """DispNetC and two refining U-Nets: 109.0 M parameters, 186.6 M with residual blocks."""
    return DispNet(2, max_disparity=max_disparity, residual_blocks=residual_blocks, align_corners=align_corners)
