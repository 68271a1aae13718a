# SPDX-License-Identifier: Apache-2.0
"""CoVoNet-SGM: CoVoNet and semi-global matching, fused by a network: the accurate model of this project.

Semi-global matching (Hirschmueller 2008) answers sharply where there is texture and knows where it has no answer;
CoVoNet answers everywhere. A small U-shaped network at 1/2 sees both answers, how well each explains the right image,
and the left image, and chooses for each full-resolution pixel; it also says how far its answer can be trusted.
The matcher runs on the CPU (``vision3d.ops.semi_global_matching``), so this network is not exported.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vision3d.io.checkpoints import load_into, unwrap_state_dict
from vision3d.models.stereo.covonet import ConvUnit, CoVoNet, Estimate, Merge, Residual, enlarged
from vision3d.models.stereo.fadnet_checkpoints import detect_architecture
from vision3d.ops import semi_global_matching, warp_by_disparity
from vision3d.registry import register_model
from vision3d.types import StereoOutput

_NEAR, _FAR = 2.0, 16.0  # pixels: the two ranges in which the difference of the two answers is shown


class Fusion(nn.Module):
    """Choose between two disparity maps for each pixel, correct the choice, and rate it.

    Args:
        features: channels of CoVoNet's refinement features at 1/2.
        context: channels of its context at 1/4.
        widths: channels at 1/2 and 1/4.
        reach: columns of local correlation on each side.
    """

    def __init__(self, features: int, context: int, widths: tuple[int, int], reach: int) -> None:
        super().__init__()
        half, quarter = widths
        known = 12 + 1 + 6 * 4 + 2 * (2 * reach + 1) + features
        shared = -known % 16 or 16  # fills the input up to a multiple of 16 channels
        self.context = nn.Sequential(nn.Conv2d(context, 4 * shared, 1), nn.PixelShuffle(2))
        self.enter = ConvUnit(known + shared, half)
        self.down = nn.Sequential(
            ConvUnit(half, quarter, 2), Residual(quarter), Residual(quarter, dilation=2), Residual(quarter, dilation=4)
        )
        self.merge = Merge(quarter, half, half)
        self.leave = Residual(half)
        self.heads = nn.Conv2d(half, 12, 3, 1, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.normal_(self.heads.weight, std=0.01)
        nn.init.zeros_(self.heads.bias)  # type: ignore[arg-type]

    def forward(self, evidence: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weight of the second map (logit), residual in pixels, confidence (logit): [B, 1, H, W] each."""
        x = self.enter(torch.cat([evidence, self.context(context)], 1))
        x = self.leave(self.merge(self.down(x), x))
        weight, residual, confidence = F.pixel_shuffle(self.heads(x).float(), 2).chunk(3, 1)
        return weight, residual, confidence


class CoVoNetSGM(CoVoNet):
    """CoVoNet fused with semi-global matching.

    Args:
        fusion_widths: channels of the fusion at 1/2 and 1/4.
        options: those of :class:`CoVoNet`.
    """

    bytes_per_pixel = 1250.0  # peak memory of a float32 pass at 544x960, measured on a CPU

    def __init__(self, fusion_widths: tuple[int, int] = (64, 96), **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        width = self.refinement.residual.in_channels
        self.fusion = Fusion(width, self.logits.in_channels, fusion_widths, self.refinement.reach)

    def load_official_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Load weights of this network, or those of a :class:`CoVoNet`, which leave the fusion as it is.

        Raises:
            WeightsError: the weights are of another network; the first names that differ are listed.
        """
        weights = unwrap_state_dict(state_dict)
        if "match_scale" in weights and not any(name.startswith("fusion.") for name in weights):
            weights |= {f"fusion.{name}": value for name, value in self.fusion.state_dict().items()}
        load_into(self, weights, detect_architecture)

    def forward(self, left: Tensor, right: Tensor) -> StereoOutput:
        """Estimate the disparity of the left view; arguments and errors as :meth:`CoVoNet.forward`.

        Returns:
            ``pyramid``: the fused map and CoVoNet's own at 1/1, and its first estimate at 1/4; ``confidence``: the
            probability that the error is below one pixel. In training mode ``stages`` holds CoVoNet's two maps and the
            fused one, and ``auxiliary`` the ``logits`` of the bins and ``confidence_logits``.
        """
        self._check_sizes(left, right)
        estimate = self.estimate(left, right)
        matched = semi_global_matching(left, right, self.max_disparity)
        known = matched.isfinite()
        matched = torch.where(known, matched, estimate.disparity.detach())
        with torch.no_grad():
            evidence = self._evidence(left, right, estimate, matched, known)
        evidence = torch.cat([evidence, estimate.refined], 1)
        weight, residual, confidence = self.fusion(evidence, estimate.context)
        share = torch.sigmoid(weight) * known
        disparity = F.relu(estimate.disparity + share * (matched - estimate.disparity) + residual)
        output = StereoOutput(
            disparity=disparity,
            pyramid=[disparity, estimate.disparity, estimate.quarter * 4.0],
            confidence=torch.sigmoid(confidence),
        )
        if self.training:
            output.stages = [[enlarged(estimate.half)], [estimate.disparity], [disparity]]
            output.auxiliary = {"logits": estimate.logits, "confidence_logits": confidence}
        return output

    def _evidence(self, left: Tensor, right: Tensor, estimate: Estimate, matched: Tensor, known: Tensor) -> Tensor:
        """What speaks for either answer, at 1/2; full-resolution maps are folded into channels."""
        own = estimate.disparity
        left, right = self.normalization(left), self.normalization(right)
        coarse = F.avg_pool2d(own, 2)
        difference = matched - own
        full = [
            left,
            own - F.interpolate(coarse, scale_factor=2.0),
            (difference / _NEAR).clamp(-1, 1),
            (difference / _FAR).clamp(-1, 1),
            known.float(),
            *((left - warp_by_disparity(right, answer)).abs().mean(1, keepdim=True) for answer in (own, matched)),
        ]
        local = [
            self.refinement.local_correlation(*estimate.features, F.avg_pool2d(answer, 2) / 2)
            for answer in (own, matched)
        ]
        folded = F.pixel_unshuffle(torch.cat(full, 1).float(), 2)
        kind = estimate.refined.dtype
        return torch.cat([folded.to(kind), (coarse / 64.0).to(kind), *(m.to(kind) for m in local)], 1)


@register_model(task="stereo", family="covonet")
def covonet_sgm(**options: object) -> CoVoNetSGM:
    """CoVoNet fused with semi-global matching: slower, more accurate."""
    return CoVoNetSGM(**options)  # type: ignore[arg-type]
