# SPDX-License-Identifier: Apache-2.0
"""FADNet and its mobile variant, with the names and widths of the authors' first release.

Wang et al., "FADNet: A Fast and Accurate Network for Disparity Estimation", ICRA 2020, arXiv 2003.10758.
"""

from __future__ import annotations

import torch
from torch import nn

from vision3d.models.stereo.blocks import ResBlock, initialize_kaiming
from vision3d.models.stereo.unet import (
    CorrelationUNet,
    DisparityNetwork,
    RefinementUNet,
    UNetWidths,
    WarpRule,
    extract_features,
    extractor_layers,
)
from vision3d.registry import register_model

CORRELATION_BINS = 40
_REDIRECTED = 32

FULL_WIDTHS = UNetWidths((64, 128, 256, 512, 512, 1024), 256, (512, 256, 128, 64, 32, 16))
_MOBILE_1 = UNetWidths((64, 128, 256, 256, 512, 512), 128, (256, 128, 64, 32, 16, 16), refined=())
_MOBILE_2 = UNetWidths((16, 32, 64, 128, 256, 512), 64, (256, 128, 64, 32, 16, 16), refined=())


def correlation_stage(widths: UNetWidths) -> CorrelationUNet:
    """Stage 1: DispNetC with residual blocks (shared with DTN-Net)."""
    features = widths.encoder[2]
    entry: dict[str, nn.Module] = {
        **extractor_layers(3, widths, ResBlock),
        "conv_redir": ResBlock(features, _REDIRECTED),
        "conv3_1": ResBlock(_REDIRECTED + CORRELATION_BINS, widths.context),
    }
    return CorrelationUNet(entry, widths, ResBlock, CORRELATION_BINS, beyond_width="zeros")


class FADNet(DisparityNetwork):
    """DispNetC with residual blocks, then a residual refinement of every scale.

    Args:
        stage_one, stage_two: channel counts of the two U-Nets.
        warp: how the right image is warped between them.
    """

    def __init__(self, stage_one: UNetWidths, stage_two: UNetWidths, warp: WarpRule) -> None:
        mean_finest = (stage_one.encoder[0] + stage_two.encoder[0]) // 2
        super().__init__(warp, max_disparity=192, finest_channels=mean_finest)
        self.dispnetc = correlation_stage(stage_one)
        self.dispnetres = RefinementUNet(stage_two, ResBlock)
        initialize_kaiming(self)

    def predict_stages(self, left: torch.Tensor, right: torch.Tensor) -> list[list[torch.Tensor]]:
        left_features = extract_features(self.dispnetc, left)
        right_features = extract_features(self.dispnetc, right)
        coarse = self.dispnetc(left, left_features, right_features[2])
        return [coarse, self.dispnetres(self.refinement_input(left, right, coarse[0]), coarse)]


@register_model(task="stereo", family="fadnet")
def fadnet(*, align_corners: bool = True, padding_mode: str = "border", epsilon: float = 0.0) -> FADNet:
    """FADNet, 144.3 M parameters; 40 correlation bins (312 px).

    Args:
        align_corners, padding_mode: warp rule, see ``vision3d.ops.warp_by_disparity``; the default is that of the
            authors' weights. Weights of the IRS project need ``align_corners=False, padding_mode="zeros",
            epsilon=1e-8``.
        epsilon: added below the root of the error norm.
    """
    return FADNet(FULL_WIDTHS, FULL_WIDTHS, WarpRule(align_corners, padding_mode, epsilon))


@register_model(task="stereo", family="fadnet")
def mobilefadnet_v1(*, align_corners: bool = True, padding_mode: str = "border", epsilon: float = 0.0) -> FADNet:
    """The mobile network of FADNet's first release, 25.6 M parameters; options as :func:`fadnet`."""
    return FADNet(_MOBILE_1, _MOBILE_2, WarpRule(align_corners, padding_mode, epsilon))
