# SPDX-License-Identifier: Apache-2.0
"""The second stages of DTN-Net and of its comparison networks: U-Nets to one normal map (arXiv 1912.09678).

Names and order of the layers follow the authors' state dicts; the encoder is that of FADNet's second stage.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vision3d.models.stereo.blocks import Predictor, ResBlock, deconvolution, fusion
from vision3d.models.stereo.unet import UNet, UNetWidths, extractor_layers

_SCALES = (5, 4, 3, 2, 1, 0)


class NormalUNet(UNet):
    """Encoder and decoder without intermediate predictions.

    Args:
        in_channels: channels of the input; the first three are the left image.
        widths: channel counts.
        predictor: name of the last layer.
        fused: the decoder also reads six feature maps of another decoder with the same widths.
    """

    def __init__(self, in_channels: int, widths: UNetWidths, predictor: str = "pred_flow", fused: bool = False) -> None:
        entry = extractor_layers(in_channels, widths, ResBlock)
        entry["conv3_1"] = ResBlock(widths.encoder[2], widths.context)
        super().__init__(entry, widths, ResBlock, predictor)
        self._add_layers(widths, fused)

    def _add_decoder(self, skips: tuple[int, ...], outputs: dict[int, int]) -> None:
        """Nothing: the decoder of the base class predicts at every scale."""

    def _add_layers(self, widths: UNetWidths, fused: bool) -> None:
        outputs = dict(zip(_SCALES, widths.decoder, strict=True))
        inputs = dict(zip(_SCALES, (widths.encoder[-1], *widths.decoder), strict=False))
        iconvs = {
            f"iconv{scale}": fusion(width * (2 if fused else 1) + widths.scales[scale], width)
            for scale, width in outputs.items()
        }
        upconvs = {f"upconv{scale}": deconvolution(inputs[scale], width) for scale, width in outputs.items()}
        names = [*iconvs, *upconvs] if fused else [n for pair in zip(upconvs, iconvs, strict=True) for n in pair]
        for name in names:
            self.add_module(name, iconvs[name] if name in iconvs else upconvs[name])
        self.add_module(f"{self._predictor}0", Predictor(widths.decoder[-1], 3))

    def predict(self, x: Tensor, fused: Sequence[Tensor] = ()) -> Tensor:
        """[B, C, H, W] -> [B, 3, H, W], of any length; ``fused``: the features of scales 0 to 5, finest first."""
        scales = [x[:, :3], *self.encode(x, first_scale=1)]
        features = scales[6]
        for scale in _SCALES:
            up = getattr(self, f"upconv{scale}")(features)
            parts = [up, scales[scale], *fused[scale : scale + 1]]
            features = getattr(self, f"iconv{scale}")(torch.cat([part.to(up.dtype) for part in parts], dim=1))
        prediction: Tensor = getattr(self, f"{self._predictor}0")(features)
        return prediction


class NormNetS(NormalUNet):
    """The normal network of DTN-Net: [B, C, H, W] -> unit normals [B, 3, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        """``p / (|p| + 1e-8)`` of the prediction p."""
        return soft_unit(self.predict(x))


class NormNetDF(NormalUNet):
    """The normal network of DNF-Net, which reads the decoder features of stage 1 as well."""

    def __init__(self, in_channels: int, widths: UNetWidths) -> None:
        super().__init__(in_channels, widths, predictor="pred_res", fused=True)

    def forward(self, x: Tensor, features: Sequence[Tensor]) -> Tensor:
        """``p / |p|`` of the prediction p; 0 where p is 0 (the public code gives NaN there)."""
        prediction = self.predict(x, features)
        return prediction / torch.linalg.vector_norm(prediction, dim=1, keepdim=True).clamp(min=1e-12)


def soft_unit(vectors: Tensor) -> Tensor:
    """``p / (|p| + 1e-8)`` of [B, 3, H, W]: unit length, and 0 where p is 0."""
    return vectors / (torch.linalg.vector_norm(vectors, dim=1, keepdim=True) + 1e-8)
