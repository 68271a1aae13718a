# SPDX-License-Identifier: Apache-2.0
"""Encoder of DispMVS: features at 1/16 and 1/4 (arXiv 2211.16905). Module names are those of the public checkpoints."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vision3d.ops import deform_conv2d


def _norm(kind: str, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.InstanceNorm2d(channels)


def _copy_norm3(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: object) -> None:
    """Give ``norm3.*`` memory of its own in a saved state dict: safetensors refuses two names for one tensor."""
    for name, value in state_dict.items():
        if name.startswith(f"{prefix}norm3.") and not value.requires_grad:
            state_dict[name] = value.clone()


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; ``norm3`` is the module ``downsample.1`` under a second name."""

    def __init__(self, inputs: int, outputs: int, norm: str, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.norm1 = _norm(norm, outputs)
        self.norm2 = _norm(norm, outputs)
        if stride != 1:
            self.norm3 = _norm(norm, outputs)
            self.register_state_dict_post_hook(_copy_norm3)
        self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), self.norm3) if stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        return F.relu((x if self.downsample is None else self.downsample(x)) + y, inplace=True)


class ConvNorm(nn.Module):
    """3x3 convolution, batch normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, 1, 1)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)), inplace=True)


class DeformableHead(nn.Module):
    """3x3 deformable convolution without bias; its offsets are a 3x3 convolution of the same input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        self.conv_offset = nn.Conv2d(inputs, 18, 3, 1, 1)
        nn.init.kaiming_uniform_(self.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return deform_conv2d(x, self.conv_offset(x), self.weight, padding=1)


class Encoder(nn.Module):
    """Features at 1/16 and 1/4 of the image.

    Args:
        norm: "instance" (matching features) or "batch" (context) in the trunk.
        widths: channels at 1/2, 1/4, 1/8, 1/16.
        outputs: channels of the two results.
        head: "unit" (convolution, normalisation, ReLU), "deformable" or "plain" (convolution).
        zero_offsets: start the deformable convolution as an ordinary one; False: the published random offsets.
    """

    def __init__(
        self,
        norm: str,
        widths: tuple[int, int, int, int],
        outputs: tuple[int, int],
        head: str,
        zero_offsets: bool = True,
    ) -> None:
        super().__init__()
        half, quarter, eighth, sixteenth = widths
        heads = {"unit": ConvNorm, "deformable": DeformableHead, "plain": lambda i, o: nn.Conv2d(i, o, 3, 1, 1)}
        self.norm1 = _norm(norm, half)
        self.conv1 = nn.Conv2d(3, half, 7, 2, 3)
        self.layer1 = self._layer(half, half, norm, 1)
        self.layer2 = self._layer(half, quarter, norm, 2)
        self.layer3 = self._layer(quarter, eighth, norm, 2)
        self.layer4 = self._layer(eighth, sixteenth, norm, 2)
        self.d_layer4 = ConvNorm(sixteenth, sixteenth)
        self.o_layer4 = heads[head](sixteenth, outputs[0])
        self.d_layer3 = ConvNorm(eighth + sixteenth, eighth)
        self.d_layer2 = ConvNorm(quarter + eighth, quarter)
        self.o_layer2 = heads[head](quarter, outputs[1])
        self._initialise(zero_offsets)

    @staticmethod
    def _layer(inputs: int, outputs: int, norm: str, stride: int) -> nn.Sequential:
        return nn.Sequential(ResidualBlock(inputs, outputs, norm, stride), ResidualBlock(outputs, outputs, norm))

    def _initialise(self, zero_offsets: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        for module in self.modules():
            if isinstance(module, DeformableHead):
                nn.init.zeros_(module.conv_offset.bias)  # type: ignore[arg-type]
                if zero_offsets:
                    nn.init.zeros_(module.conv_offset.weight)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 3, H, W] (multiples of 16) to the features at 1/16 and at 1/4."""
        half = self.layer1(F.relu(self.norm1(self.conv1(image)), inplace=True))
        quarter = self.layer2(half)
        eighth = self.layer3(quarter)
        coarse = self.d_layer4(self.layer4(eighth))
        middle = self.d_layer3(torch.cat([eighth, _double(coarse)], 1))
        fine = self.d_layer2(torch.cat([quarter, _double(middle)], 1))
        return self.o_layer4(coarse), self.o_layer2(fine)


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=True)
