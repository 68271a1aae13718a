# SPDX-License-Identifier: Apache-2.0
"""A planar network for panoramas, the baseline of SphereDepth: the same stages as ordinary 3 x 3 convolutions.

Feature maps are padded across the border of the panorama: columns wrap around, a row beyond a pole is the mirrored row
at the opposite longitude. The width is chosen so that it has as many parameters as SphereDepth. This project's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vision3d.errors import InputError
from vision3d.io.checkpoints import load_into, unwrap_state_dict
from vision3d.models.normalization import Normalization
from vision3d.models.panorama.spheredepth import SCALES, check_panorama
from vision3d.registry import register_model
from vision3d.types import DepthOutput


def pad_panorama(x: Tensor, margin: int = 1) -> Tensor:
    """Pad [B, C, H, W] (W even) by what lies beyond its border on the sphere: [B, C, H + 2 margin, W + 2 margin].

    ``margin`` is at most H and W.
    """
    half = x.shape[3] // 2
    turned = torch.cat([x[..., half:], x[..., :half]], dim=3)  # roll would fix the width of an exported graph
    rows = torch.cat([turned[:, :, :margin].flip(2), x, turned[:, :, x.shape[2] - margin :].flip(2)], dim=2)
    return torch.cat([rows[..., -margin:], rows, rows[..., :margin]], dim=3)


class PanoramaConvolution(nn.Conv2d):
    """A 3 x 3 convolution with the border rule of panoramas."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(inputs, outputs, 3, bias=bias)
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(pad_panorama(x))


def _unit(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(PanoramaConvolution(inputs, outputs), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class BasicBlock(nn.Module):
    """Two convolutions with a shortcut, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = _unit(inputs, outputs)
        self.second = nn.Sequential(PanoramaConvolution(outputs, outputs), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Sequential()
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.second(self.first(x)), inplace=True)


def _enlarged(x: Tensor) -> Tensor:
    """Twice as large, bilinear, without a seam."""
    padded = F.interpolate(pad_panorama(x), scale_factor=2.0, mode="bilinear", align_corners=False)
    return padded[..., 2:-2, 2:-2]


class PanoramaDepth(nn.Module):
    """Depth of a panorama by planar convolutions.

    Args:
        width: channels of the first stage; the last one has 8 times as many.
        patch: pixels of a side of the square that one position of the finest feature map stands for.
        max_depth: largest depth that can be answered, metres.
    """

    bytes_per_pixel = 1500.0  # peak memory of a float32 pass, measured on a CPU

    def __init__(self, width: int = 43, patch: int = 1, max_depth: float = 10.0) -> None:
        super().__init__()
        if width < 1 or patch < 1 or not max_depth > 0:
            raise InputError(f"width, patch and max_depth must be positive, got {width}, {patch} and {max_depth}")
        self.patch, self.max_depth = patch, float(max_depth)
        self.size_multiple = patch * 2**SCALES
        self.normalization = Normalization()
        self.stem = _unit(3 * patch * patch, width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), BasicBlock(before, after), BasicBlock(after, after))
            for before, after in pairwise(widths)
        )
        outputs = [4 * width, 2 * width, width, max(width // 2, 1)]
        inputs = [8 * width, *outputs[:-1]]
        self.reduce = nn.ModuleList(_unit(*sizes) for sizes in zip(inputs, outputs, strict=True))
        skips = [4 * width, 2 * width, width, width]
        self.merge = nn.ModuleList(_unit(out + skip, out) for out, skip in zip(outputs, skips, strict=True))
        self.heads = nn.ModuleList(PanoramaConvolution(out, patch * patch, bias=True) for out in outputs)

        for head in self.heads:
            nn.init.normal_(head.weight, std=0.01)  # type: ignore[arg-type]

    def load_official_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Load this project's weights, with or without an outer dictionary.

        Raises:
            WeightsError: the weights are of another network; the first names that differ are listed.
        """
        load_into(self, unwrap_state_dict(state_dict))

    def forward(self, image: Tensor) -> DepthOutput:
        """Estimate the distance along each ray.

        Args:
            image: [B, 3, H, 2H] RGB in [0, 1], equirectangular, H a multiple of 16 times ``patch``.

        Returns:
            ``depth`` [B, 1, H, 2H], metres. In training mode ``auxiliary`` holds "scale0" (the depth) to "scale3",
            [B, 1, h, 2h], each half as high as the one before.

        Raises:
            InputError: an image of another shape.
        """
        check_panorama(image, self.size_multiple)
        features = [self.stem(F.pixel_unshuffle(self.normalization(image), self.patch))]
        for stage in self.stages:
            features.append(stage(features[-1]))
        scales: list[Tensor] = []
        x = features[SCALES]
        for step in range(SCALES):
            x = _enlarged(self.reduce[step](x))
            x = self.merge[step](torch.cat([x, features[SCALES - 1 - step]], dim=1))
            if self.training or step == SCALES - 1:
                logits = F.pixel_shuffle(self.heads[step](x).float(), self.patch)
                scales.insert(0, self.max_depth * torch.sigmoid(logits))
        output = DepthOutput(depth=scales[0])
        if self.training:
            output.auxiliary = {f"scale{number}": scale for number, scale in enumerate(scales)}
        return output


@register_model(task="panorama", family="spheredepth")
def panoramadepth(**options: object) -> PanoramaDepth:
    """The planar baseline, as many parameters as ``spheredepth``."""
    return PanoramaDepth(**options)  # type: ignore[arg-type]


@register_model(task="panorama", family="spheredepth")
def panoramadepth_tiny(width: int = 16, patch: int = 2, max_depth: float = 10.0) -> PanoramaDepth:
    """The planar baseline, as many parameters as ``spheredepth_tiny``."""
    return PanoramaDepth(width, patch, max_depth)
