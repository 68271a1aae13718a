# SPDX-License-Identifier: Apache-2.0
"""SphereDepth: depth of a panorama on the triangle mesh of a sphere (Yan et al., 3DV 2022, arXiv 2208.13714).

The panorama is the texture of an icosphere whose faces carry the features, so that there is no seam and no pole. The
authors published no code; what follows them and what is this project's choice is told in models/spheredepth/README.md.
The frame is that of their SphereFusion (3DV 2025, arXiv 2502.05859): an encoder shaped like ResNet-18, a decoder with
skip connections and a depth at four scales; the operators are those of SubdivNet (TOG 2022, arXiv 2106.02285).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vision3d.errors import InputError
from vision3d.geometry.icosphere import MAX_LEVEL, face_count, icosphere
from vision3d.geometry.panorama_mesh import face_table, panorama_faces, partner_level
from vision3d.io.checkpoints import load_into, unwrap_state_dict
from vision3d.models.normalization import Normalization
from vision3d.ops.spherical import face_convolution, face_pool, face_unpool, paint_faces, sample_panorama
from vision3d.registry import register_model
from vision3d.types import DepthOutput

SCALES = 4  # stages of the encoder, and depth maps of the decoder


class Mesh(NamedTuple):
    """Tables of one level: adjacency [F, 3] and twins [3F], int64."""

    adjacency: Tensor
    twins: Tensor


class FaceConvolution(nn.Module):
    """A face convolution with its weight [O, C, 4].

    He-initialised for features that differ little between neighbours: the sum of three is then three times as large.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 4) * math.sqrt(2 / (16 * inputs)))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor, mesh: Mesh) -> Tensor:
        return face_convolution(x, mesh.adjacency, self.weight, self.bias, twins=mesh.twins)


class FaceNorm(nn.BatchNorm1d):
    """Batch normalisation of [B, F, C] over images and faces."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None and self.running_var is not None:
            scale = self.weight * torch.rsqrt(self.running_var + self.eps)
            return x * scale.to(x.dtype) + (self.bias - self.running_mean * scale).to(x.dtype)
        return super().forward(x.flatten(0, 1)).view_as(x)


class FaceUnit(nn.Module):
    """Face convolution, normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv, self.norm = FaceConvolution(inputs, outputs), FaceNorm(outputs)

    def forward(self, x: Tensor, mesh: Mesh) -> Tensor:
        return F.relu(self.norm(self.conv(x, mesh)), inplace=True)


class BasicBlock(nn.Module):
    """Two face convolutions with a shortcut, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = FaceConvolution(inputs, outputs), FaceNorm(outputs)
        self.conv2, self.norm2 = FaceConvolution(outputs, outputs), FaceNorm(outputs)
        self.shortcut = nn.Sequential()
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Linear(inputs, outputs, bias=False), FaceNorm(outputs))

    def forward(self, x: Tensor, mesh: Mesh) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x, mesh)), inplace=True)
        return F.relu(self.shortcut(x) + self.norm2(self.conv2(y, mesh)), inplace=True)


class Encoder(nn.Module):
    """Features [B, F, C] at level L and at four coarser ones, finest first."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.stem = FaceUnit(inputs, width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.ModuleList(
            nn.ModuleList([BasicBlock(before, after), BasicBlock(after, after)]) for before, after in pairwise(widths)
        )

    def forward(self, x: Tensor, meshes: list[Mesh]) -> list[Tensor]:
        features = [self.stem(x, meshes[0])]
        for stage, mesh in zip(self.stages, meshes[1:], strict=True):
            x = face_pool(features[-1])
            for block in stage:  # type: ignore[attr-defined]
                x = block(x, mesh)
            features.append(x)
        return features


class DecoderStage(nn.Module):
    """Reduce, enlarge to the finer level, join the encoder's features, and convolve; with a head for the depth."""

    def __init__(self, inputs: int, skip: int, outputs: int, values: int) -> None:
        super().__init__()
        self.reduce = FaceUnit(inputs, outputs)
        self.merge = FaceUnit(outputs + skip, outputs)
        self.head = FaceConvolution(outputs, values, bias=True)
        nn.init.normal_(self.head.weight, std=0.01)  # training starts from half the largest depth

    def forward(self, x: Tensor, skip: Tensor, coarse: Mesh, fine: Mesh) -> Tensor:
        x = face_unpool(self.reduce(x, coarse), coarse.adjacency)
        merged: Tensor = self.merge(torch.cat([x, skip], dim=2), fine)
        return merged


class SphereDepth(nn.Module):
    """Depth of a panorama on the faces of an icosphere.

    Args:
        level: level of the mesh that the convolutions run on, 4 to 8.
        texture: further levels whose colours each face carries, and whose depths it emits; level + texture <= 8.
        width: channels of the first stage (64: that of ResNet-18); the last one has 8 times as many.
        max_depth: largest depth that can be answered, metres.
    """

    size_multiple = 1  # any height; the width is twice the height
    bytes_per_pixel = 1200.0  # peak memory of a float32 pass of level 6 over 256 x 512 pixels, measured on a CPU

    def __init__(self, level: int = 6, texture: int = 0, width: int = 64, max_depth: float = 10.0) -> None:
        super().__init__()
        if not (level >= SCALES and texture >= 0 and level + texture <= MAX_LEVEL):
            raise InputError(
                f"level must be {SCALES} to {MAX_LEVEL}, texture 0 or more and their sum {MAX_LEVEL} at most, "
                f"got level {level} and texture {texture}"
            )
        if width < 1 or not max_depth > 0:
            raise InputError(f"width and max_depth must be positive, got {width} and {max_depth}")
        self.level, self.texture, self.max_depth = level, texture, float(max_depth)
        self.normalization = Normalization()
        values = 4**texture
        self.encoder = Encoder(3 * values, width)
        skips = [4 * width, 2 * width, width, width]
        inputs = [8 * width, 4 * width, 2 * width, width]
        outputs = [4 * width, 2 * width, width, max(width // 2, 1)]
        self.decoder = nn.ModuleList(DecoderStage(*sizes, values) for sizes in zip(inputs, skips, outputs, strict=True))
        for number in range(level - SCALES, level + 1):
            mesh = icosphere(number)
            for name, table in (("adjacency", mesh.adjacency), ("twins", mesh.twins)):
                self.register_buffer(f"{name}{number}", torch.from_numpy(table.astype("int64")), persistent=False)
        self._tables: dict[tuple[int, torch.device], tuple[Tensor, Tensor, Tensor]] = {}

    def mesh(self, level: int) -> Mesh:
        """The tables of a level from ``level - 4`` to ``level``."""
        return Mesh(getattr(self, f"adjacency{level}"), getattr(self, f"twins{level}"))

    def load_official_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Load this project's weights (the authors published none), with or without an outer dictionary.

        Raises:
            WeightsError: the weights are of another network; the first names that differ are listed.
        """
        load_into(self, unwrap_state_dict(state_dict))

    def _sampling(self, height: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Indices and shares of the samples of the texture, and the face behind each pixel, kept by size."""
        known = self._tables.get((height, device))
        if known is not None:
            return known
        fine = self.level + self.texture
        indices, shares = face_table(max(fine, partner_level(height)), height)
        pixels = torch.tensor(panorama_faces(height, fine), dtype=torch.int64, device=device)
        tables = torch.tensor(indices, device=device), torch.tensor(shares, dtype=torch.float32, device=device), pixels
        if not torch.compiler.is_compiling():
            if len(self._tables) >= 4:  # sizes that are no longer used
                self._tables.clear()
            self._tables[height, device] = tables
        return tables

    def texture_of(self, image: Tensor) -> Tensor:
        """Colours of the texture faces: [B, 3, H, 2H] to [B, F, 3 * 4^texture], descendant outer, colour inner.

        Where the mesh is coarser than the panorama, the samples of the panorama's own level are averaged.
        """
        height = image.shape[2]
        while partner_level(height) == MAX_LEVEL and height >= 2048 and height % 2 == 0:  # beyond the finest tables
            image, height = F.avg_pool2d(image, 2), height // 2
        indices, shares, _ = self._sampling(height, image.device)
        fine = face_count(self.level + self.texture)
        samples = sample_panorama(image, indices, shares)
        samples = samples.unflatten(1, (-1, fine)).mean(dim=1)
        return samples.unflatten(1, (4**self.texture, -1)).transpose(1, 2).flatten(2)

    def forward(self, image: Tensor) -> DepthOutput:
        """Estimate the distance along each ray.

        Args:
            image: [B, 3, H, 2H] RGB in [0, 1], equirectangular.

        Returns:
            ``depth`` [B, 1, H, 2H] and ``faces`` [B, 20 * 4^(level + texture)], metres. In training mode ``auxiliary``
            holds "scale0" (the faces) to "scale3", each on a mesh one level coarser.

        Raises:
            InputError: an image of another shape.
        """
        check_panorama(image, self.size_multiple)
        meshes = [self.mesh(self.level - step) for step in range(SCALES + 1)]
        features = self.encoder(self.texture_of(self.normalization(image)), meshes)
        scales: list[Tensor] = []
        x = features[SCALES]
        for step, stage in enumerate(self.decoder):
            fine = SCALES - 1 - step
            x = stage(x, features[fine], meshes[fine + 1], meshes[fine])
            if self.training or fine == 0:
                # channel k of face f is the depth of its descendant f + n k
                logits = stage.head(x, meshes[fine]).float()  # type: ignore[operator]
                scales.insert(0, self.max_depth * torch.sigmoid(logits).transpose(1, 2).flatten(1))
        index = self._sampling(image.shape[2], image.device)[2]
        output = DepthOutput(depth=paint_faces(scales[0], index), faces=scales[0])
        if self.training:
            output.auxiliary = {f"scale{number}": scale for number, scale in enumerate(scales)}
        return output


def check_panorama(image: Tensor, multiple: int) -> None:
    """Raise InputError unless the image is [B, 3, H, 2H] with H a multiple of ``multiple``."""
    shape = list(image.shape)
    if len(shape) != 4 or shape[1] != 3 or shape[2] < 1 or shape[3] != 2 * shape[2] or shape[2] % multiple:
        rule = "" if multiple == 1 else f" with H a multiple of {multiple}"
        raise InputError(f"a panorama must be [B, 3, H, 2 H]{rule}, got shape {shape}: resize it")


@register_model(task="panorama", family="spheredepth")
def spheredepth(**options: object) -> SphereDepth:
    """SphereDepth of the size of ResNet-18: level 6, made for 256 x 512 pixels."""
    return SphereDepth(**options)  # type: ignore[arg-type]


@register_model(task="panorama", family="spheredepth")
def spheredepth_tiny(level: int = 5, texture: int = 1, width: int = 24, max_depth: float = 10.0) -> SphereDepth:
    """SphereDepth for a CPU: 24 channels at level 5, depth at level 6."""
    return SphereDepth(level, texture, width, max_depth)
