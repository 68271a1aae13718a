# SPDX-License-Identifier: Apache-2.0
"""What the networks of the DTN-Net family share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vision3d.errors import InputError, WeightsError
from vision3d.io.checkpoints import load_into, unwrap_state_dict
from vision3d.models.stereo.fadnet_checkpoints import detect_architecture

if TYPE_CHECKING:
    _Module = nn.Module
else:
    _Module = object

IRS_FOCAL_LENGTH = 480.0  # pixels, of the data set the published weights were trained on


class NormalNetwork(_Module):
    """Mixin of an ``nn.Module``: focal lengths for calls without intrinsics, and loading of the authors' weights.

    Attributes:
        size_multiple: sides of the input are multiples of it.
        stage_one_name: the submodule that makes the disparity; "" where there is none.
        fx, fy: focal lengths in pixels; plain numbers, not part of the state dict.
    """

    size_multiple = 64
    stage_one_name = "dispnetc"
    fx: float = IRS_FOCAL_LENGTH
    fy: float = IRS_FOCAL_LENGTH

    def set_focal_length(self, fx: float, fy: float) -> None:
        """Set the focal lengths, in pixels of the input, for calls without intrinsics.

        Raises:
            InputError: they are not positive.
        """
        if not (fx > 0 and fy > 0):
            raise InputError(f"focal lengths must be positive numbers of pixels, got {fx} and {fy}")
        self.fx, self.fy = float(fx), float(fy)

    def camera_matrix(self, disparity: Tensor, intrinsics: Tensor | None) -> Tensor:
        """``intrinsics``, or where None [1, 3, 3] of the set focal lengths and the middle of the image."""
        if intrinsics is not None:
            return intrinsics.to(disparity)
        height, width = disparity.shape[-2:]
        rows = [[self.fx, 0.0, (width - 1) / 2], [0.0, self.fy, (height - 1) / 2], [0.0, 0.0, 1.0]]
        return torch.tensor([rows], dtype=disparity.dtype, device=disparity.device)

    def load_official_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Load the authors' weights: with or without an outer dictionary, ``module.`` and ``num_batches_tracked``.

        Raises:
            WeightsError: the weights are of another network; it is named if known, with the first names that differ.
        """
        load_into(self, unwrap_state_dict(state_dict), detect_architecture)

    def load_stage_one(self, state_dict: Mapping[str, object]) -> None:
        """Load weights of the first stage alone: its own, or those of a network that has it under the same name.

        For ``dtnnet`` and its relatives those of ``fadnet`` fit, for ``dtnnet_tiny`` those of ``covonet``.

        Raises:
            WeightsError: there is no first stage, or the weights are of another one.
        """
        if not self.stage_one_name:
            raise WeightsError(f"{type(self).__name__} has no disparity stage: load weights of the whole network")
        entries, prefix = unwrap_state_dict(state_dict), f"{self.stage_one_name}."
        inner = {name.removeprefix(prefix): value for name, value in entries.items() if name.startswith(prefix)}
        load_into(getattr(self, self.stage_one_name), inner or entries, detect_architecture)


def check_intrinsics(intrinsics: Tensor | None, batch: int) -> None:
    """Raise InputError unless they are None or [B, 3, 3]."""
    if intrinsics is not None and tuple(intrinsics.shape) != (batch, 3, 3):
        raise InputError(f"intrinsics must be [{batch}, 3, 3], got {list(intrinsics.shape)}")


def add_doffs(disparity: Tensor, doffs: Tensor | None) -> Tensor:
    """``disparity`` [B, 1, H, W] plus ``doffs`` [B] (None: 0): depth is fx * baseline over that sum."""
    if doffs is None:
        return disparity
    if tuple(doffs.shape) != (disparity.shape[0],):
        raise InputError(f"doffs must be [{disparity.shape[0]}], got {list(doffs.shape)}")
    return disparity + doffs.to(disparity)[:, None, None, None]
