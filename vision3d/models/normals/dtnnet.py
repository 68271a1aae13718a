# SPDX-License-Identifier: Apache-2.0
"""DTN-Net and the networks it was compared with: disparity and surface normals of a rectified pair.

Wang et al., "IRS: A Large Naturalistic Indoor Robotics Stereo Dataset to Train Deep Models for Disparity and Surface
Normal Estimation", ICME 2021, arXiv 1912.09678. Names inside follow the authors' state dicts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vision3d.errors import InputError
from vision3d.geometry.normals import d2n_official, normals_from_disparity
from vision3d.models.normalization import Normalization
from vision3d.models.normals.common import NormalNetwork, add_doffs, check_intrinsics
from vision3d.models.normals.normnet import NormalUNet, NormNetDF, NormNetS, soft_unit
from vision3d.models.stereo.blocks import initialize_kaiming
from vision3d.models.stereo.fadnet import FULL_WIDTHS, correlation_stage
from vision3d.models.stereo.unet import check_pair, extract_features
from vision3d.registry import register_model
from vision3d.types import StereoOutput

D2N_RULES = ("official", "exact")
_BYTES_PER_PIXEL = 1400.0  # peak memory of a float32 pass without the weights; 1136 measured on a CPU for dtnnet


class DTNNet(NormalNetwork, nn.Module):
    """Disparity by FADNet's first stage, normals by a second U-Net that is fed with it.

    Args:
        initial: the second stage also reads the normals worked out from the disparity (10 channels instead of 7).
        fused: the second stage also reads the decoder features of the first.
        d2n: how the initial normals are made: "official" is the layer that the authors' weights need
            (``vision3d.geometry.normals.d2n_official``), "exact" the true relation, for own training.
    """

    max_disparity = 192
    bytes_per_pixel = _BYTES_PER_PIXEL

    def __init__(self, initial: bool, fused: bool, d2n: str = "official") -> None:
        super().__init__()
        if d2n not in D2N_RULES:
            raise InputError(f"d2n must be one of {', '.join(D2N_RULES)}, got '{d2n}'")
        self.initial, self.fused, self.d2n = initial, fused, d2n
        self.normalization: nn.Module = Normalization()
        self.dispnetc = correlation_stage(FULL_WIDTHS)
        channels = 10 if initial else 7
        if fused:
            self.normnetdf = NormNetDF(channels, FULL_WIDTHS)
        else:
            self.normnets = NormNetS(channels, FULL_WIDTHS)
        initialize_kaiming(self)

    def initial_normals(
        self, disparity: Tensor, intrinsics: Tensor | None = None, doffs: Tensor | None = None
    ) -> Tensor:
        """The normals that the second stage starts from, [B, 3, H, W].

        Args:
            disparity: [B, 1, H, W], pixels.
            intrinsics: [B, 3, 3]; None: the set focal lengths, and W / 2, H / 2 ("official") or the middle of the
                image ("exact") as principal point.
            doffs: [B], ``cx_right - cx_left`` in pixels; None: 0.
        """
        raised = add_doffs(disparity + 0.01, doffs)
        if self.d2n == "exact":
            return normals_from_disparity(raised, self.camera_matrix(disparity, intrinsics))
        if intrinsics is None:
            return d2n_official(raised, self.fx, self.fy)
        k = intrinsics.to(disparity)
        return d2n_official(raised, k[:, 0, 0], k[:, 1, 1], k[:, 0, 2], k[:, 1, 2])

    def forward(
        self, left: Tensor, right: Tensor, intrinsics: Tensor | None = None, doffs: Tensor | None = None
    ) -> StereoOutput:
        """Disparity and normals of the left view.

        Args:
            left, right: [B, 3, H, W], RGB in [0, 1], rectified; H and W are multiples of 64.
            intrinsics: [B, 3, 3] of the left camera; None: as the public code, see :meth:`initial_normals`.
            doffs: [B], ``cx_right - cx_left`` in pixels; None: 0.

        Returns:
            ``disparity`` [B, 1, H, W], ``pyramid`` of seven maps in full-resolution pixels, ``normals`` [B, 3, H, W]
            (left camera axes; of unit length unless the network says 0). In training mode ``stages`` holds the pyramid,
            and ``auxiliary["initial_normals"]`` what the second stage started from, if it did.

        Raises:
            InputError: shapes that do not fit.
        """
        check_pair(left, right, self.size_multiple)
        check_intrinsics(intrinsics, left.shape[0])
        left, right = self.normalization(left), self.normalization(right)
        features: list[Tensor] | None = [] if self.fused else None
        own = extract_features(self.dispnetc, left)
        maps = self.dispnetc(left, own, extract_features(self.dispnetc, right)[2], features)
        auxiliary = {"initial_normals": self.initial_normals(maps[0], intrinsics, doffs)} if self.initial else {}
        inputs = torch.cat([left, right, *auxiliary.values(), maps[0]], dim=1)
        normals = self.normnets(inputs) if features is None else self.normnetdf(inputs, features)
        output = StereoOutput(disparity=maps[0], pyramid=maps, normals=normals)
        if self.training:
            output.stages, output.auxiliary = [maps], auxiliary
        return output


class NormNets(NormalNetwork, NormalUNet):
    """NormNetS on the two images alone; no disparity."""

    max_disparity = None
    stage_one_name = ""
    bytes_per_pixel = _BYTES_PER_PIXEL

    def __init__(self) -> None:
        super().__init__(6, FULL_WIDTHS)
        self.normalization: nn.Module = Normalization()
        initialize_kaiming(self)

    def forward(
        self, left: Tensor, right: Tensor, intrinsics: Tensor | None = None, doffs: Tensor | None = None
    ) -> StereoOutput:
        """Normals of the left view; ``disparity`` is NaN everywhere, ``pyramid`` and ``stages`` are empty.

        Args:
            left, right: [B, 3, H, W], RGB in [0, 1], rectified; H and W are multiples of 64.
            intrinsics, doffs: not used by this network.

        Raises:
            InputError: shapes that do not fit.
        """
        check_pair(left, right, self.size_multiple)
        check_intrinsics(intrinsics, left.shape[0])
        normals = soft_unit(self.predict(torch.cat([self.normalization(left), self.normalization(right)], dim=1)))
        return StereoOutput(disparity=torch.full_like(normals[:, :1], torch.nan), pyramid=[], normals=normals)


@register_model(task="normals", family="dtnnet")
def dtnnet(*, d2n: str = "official") -> DTNNet:
    """DTN-Net (``dtonnet`` in the public code), 144.3 M parameters.

    Args:
        d2n: "official" for the authors' weights, "exact" for own training with true intrinsics.
    """
    return DTNNet(initial=True, fused=False, d2n=d2n)


@register_model(task="normals", family="dtnnet")
def dnfusionnet() -> DTNNet:
    """DNF-Net, 147.4 M parameters: no initial normals, fused decoder features."""
    return DTNNet(initial=False, fused=True)


@register_model(task="normals", family="dtnnet")
def dispnormnet() -> DTNNet:
    """DispNormNet as coded by the authors, 144.3 M parameters: the images and the disparity alone."""
    return DTNNet(initial=False, fused=False)


@register_model(task="normals", family="dtnnet")
def dtonfusionnet(*, d2n: str = "official") -> DTNNet:
    """Initial normals and fused decoder features together, 147.4 M parameters; option as :func:`dtnnet`."""
    return DTNNet(initial=True, fused=True, d2n=d2n)


@register_model(task="normals", family="dtnnet")
def normnets() -> NormNets:
    """NormNetS on the two images, 72.3 M parameters."""
    return NormNets()
