# SPDX-License-Identifier: Apache-2.0
"""DTN-Net at a size for CPUs: the project's cost-volume network as first stage and a narrow NormNetS as second.

What differs from the published network (Wang et al., arXiv 1912.09678), and why:

- CoVoNet replaces DispNetC: its weights are there to start from, so that only the second stage has to be learnt.
- The initial normals are those of planes fitted to a window. Slopes of neighbouring pixels amplify the noise of a
  predicted disparity so much that the exact relation alone is tens of degrees off.
- The second stage predicts a correction of the initial normals and starts with none.
- True intrinsics are used, disparities enter scaled, and answers that face away from the camera are turned sideways.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vision3d.errors import InputError
from vision3d.geometry.normals import face_camera, fit_normals, normals_from_disparity, ray_directions
from vision3d.models.normalization import Normalization
from vision3d.models.normals.common import NormalNetwork, add_doffs, check_intrinsics
from vision3d.models.normals.normnet import NormNetS, soft_unit
from vision3d.models.stereo.blocks import initialize_kaiming
from vision3d.models.stereo.covonet import CoVoNet
from vision3d.models.stereo.fadnet import FULL_WIDTHS
from vision3d.models.stereo.unet import UNetWidths, check_pair
from vision3d.registry import register_model
from vision3d.types import StereoOutput

_CHANNEL_STEP = 16  # what bfloat16 convolutions on CPUs want
_DISPARITY_UNIT = 32.0  # pixels


def reduced_widths(ratio: float) -> UNetWidths:
    """The widths of the published U-Nets times ``ratio``, rounded to multiples of 16, at least 16.

    Raises:
        InputError: the ratio is not in (0, 1].
    """
    if not 0 < ratio <= 1:
        raise InputError(f"width_ratio must be above 0 and at most 1, got {ratio}")

    def scaled(width: int) -> int:
        return max(_CHANNEL_STEP, round(width * ratio / _CHANNEL_STEP) * _CHANNEL_STEP)

    encoder, decoder = (tuple(map(scaled, widths)) for widths in (FULL_WIDTHS.encoder, FULL_WIDTHS.decoder))
    return UNetWidths(encoder, scaled(FULL_WIDTHS.context), decoder)  # type: ignore[arg-type]


class CompactDTNNet(NormalNetwork, nn.Module):
    """Disparity by CoVoNet, normals by a narrow NormNetS that corrects the normals of that disparity.

    Args:
        width_ratio: width of the second stage against the published one.
        fit_radius: radius in pixels of the planes that give the initial normals (``vision3d.geometry.fit_normals``);
            0: the exact relation between neighbouring pixels.
    """

    stage_one_name = "stage_one"
    bytes_per_pixel = 850.0  # peak memory of a float32 pass, measured on a CPU

    def __init__(self, width_ratio: float = 0.125, fit_radius: int = 24) -> None:
        super().__init__()
        if fit_radius < 0:
            raise InputError(f"fit_radius must be 0 or more pixels, got {fit_radius}")
        self.fit_radius = fit_radius
        self.normalization: nn.Module = Normalization()
        self.stage_one = CoVoNet()
        self.max_disparity = self.stage_one.max_disparity
        self.normnets = NormNetS(10, reduced_widths(width_ratio))
        initialize_kaiming(self.normnets)
        nn.init.zeros_(self.normnets.get_parameter("pred_flow0.weight"))  # no correction at first

    def initial_normals(
        self, disparity: Tensor, intrinsics: Tensor | None = None, doffs: Tensor | None = None
    ) -> Tensor:
        """The normals that the second stage corrects, unit, [B, 3, H, W].

        Args:
            disparity: [B, 1, H, W], pixels.
            intrinsics: [B, 3, 3]; None: the set focal lengths and the middle of the image.
            doffs: [B], ``cx_right - cx_left`` in pixels; None: 0.
        """
        raised = add_doffs(disparity.float() + 0.01, doffs)
        matrix = self.camera_matrix(raised, intrinsics)
        if self.fit_radius:
            normals = fit_normals(raised, matrix, self.fit_radius)
        else:
            normals = normals_from_disparity(raised, matrix)
        known = torch.isfinite(normals).all(dim=1, keepdim=True)
        return torch.where(known, normals, -ray_directions(raised, matrix))

    def forward(
        self, left: Tensor, right: Tensor, intrinsics: Tensor | None = None, doffs: Tensor | None = None
    ) -> StereoOutput:
        """Disparity and normals of the left view.

        Args:
            left, right: [B, 3, H, W], RGB in [0, 1], rectified; H and W are multiples of 64.
            intrinsics: [B, 3, 3] of the left camera; None: the set focal lengths (480 px) and the middle of the image.
            doffs: [B], ``cx_right - cx_left`` in pixels; None: 0.

        Returns:
            ``disparity`` [B, 1, H, W], ``pyramid`` as CoVoNet's, ``normals`` [B, 3, H, W], unit, left camera axes,
            facing the camera (in training mode not forced to). In training mode ``stages`` and ``auxiliary`` as
            CoVoNet's (empty while the first stage is in eval mode), and ``auxiliary["initial_normals"]``.

        Raises:
            InputError: shapes that do not fit.
        """
        check_pair(left, right, self.size_multiple)
        check_intrinsics(intrinsics, left.shape[0])
        output = self.stage_one(left, right)
        initial = self.initial_normals(output.disparity, intrinsics, doffs)
        views = (self.normalization(left), self.normalization(right))
        correction = self.normnets.predict(torch.cat([*views, initial, output.disparity / _DISPARITY_UNIT], dim=1))
        normals = soft_unit(initial + correction)
        if self.training:
            output.auxiliary["initial_normals"] = initial
        else:
            normals = face_camera(normals, ray_directions(normals, self.camera_matrix(normals, intrinsics)))
        output.normals = normals
        return output


@register_model(task="normals", family="dtnnet")
def dtnnet_tiny(*, width_ratio: float = 0.125, fit_radius: int = 24) -> CompactDTNNet:
    """DTN-Net for CPUs, 5.0 M parameters: CoVoNet, fitted planes, a NormNetS of an eighth of the width.

    Args:
        width_ratio: width of the second stage against the published one; it decides which weights fit.
        fit_radius: radius in pixels of the fitted planes.
    """
    return CompactDTNNet(width_ratio, fit_radius)
