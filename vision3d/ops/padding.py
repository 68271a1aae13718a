# SPDX-License-Identifier: Apache-2.0
"""Fitting images to a network: padding to a multiple, resizing of disparity maps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vision3d.errors import InputError
from vision3d.ops._checks import check_choice, check_map, check_positive, shape_text


@dataclass(frozen=True)
class Padding:
    """What ``pad_to_multiple`` added, in pixels, and the size before.

    Attributes:
        left, right, top, bottom: columns and rows added on each side.
        height, width: size before padding.
    """

    left: int
    right: int
    top: int
    bottom: int
    height: int
    width: int

    def undo(self, padded: torch.Tensor) -> torch.Tensor:
        """Cut the added border off a map of the padded size, [..., H', W'] -> [..., H, W], a view.

        Raises:
            InputError: a map of another size.
        """
        expected = (self.top + self.height + self.bottom, self.left + self.width + self.right)
        if tuple(padded.shape[-2:]) != expected:
            raise InputError(
                f"Padding.undo: the map {shape_text(padded)} does not have the padded size {list(expected)} "
                f"of an image of size [{self.height}, {self.width}]"
            )
        return padded[..., self.top : self.top + self.height, self.left : self.left + self.width]


def pad_to_multiple(
    image: torch.Tensor, multiple: int, mode: str = "replicate", left: int = 0, top: int = 0
) -> tuple[torch.Tensor, Padding]:
    """Pad an image to a height and width that ``multiple`` divides; rows go below and columns to the right.

    Args:
        image: [B, C, H, W] with H, W of 1 or more.
        multiple: the divisor, pixels.
        mode: "replicate" or "zeros".
        left: columns put on the left side first (a margin for the pixels whose match lies outside the right view).
        top: rows put on top first.

    Returns:
        The padded image and the ``Padding`` that undoes it.

    Raises:
        InputError: an image that is not 4-D or has no pixels, multiple < 1, an unknown mode.
    """
    check_map("pad_to_multiple", "image", image)
    check_positive("pad_to_multiple", "multiple", multiple)
    check_choice("pad_to_multiple", "mode", mode, ("replicate", "zeros"))
    check_positive("pad_to_multiple", "left", left, 0)
    check_positive("pad_to_multiple", "top", top, 0)
    height, width = image.shape[2:]
    if height == 0 or width == 0:
        raise InputError(f"pad_to_multiple: the image {shape_text(image)} has no pixels")
    padding = Padding(left, -(width + left) % multiple, top, -(height + top) % multiple, height, width)
    sides = (padding.left, padding.right, padding.top, padding.bottom)
    if mode == "zeros":
        return F.pad(image, sides), padding
    if not any(sides) or image.shape[0] == 0 or image.shape[1] == 0:
        return F.pad(image, sides), padding
    return F.pad(image, sides, mode="replicate"), padding


def resize_disparity(disparity: torch.Tensor, size: tuple[int, int], mode: str = "bilinear") -> torch.Tensor:
    """Resample a disparity map and scale its values with the width, so that they are pixels of the new map.

    Pixel centres follow ``x' = (x + 0.5) * W' / W - 0.5``. A NaN spreads to every output that its pixel touches.

    Args:
        disparity: [B, C, H, W], pixels of its own width.
        size: (height, width) of the result.
        mode: "bilinear", "bicubic" or "nearest".

    Returns:
        [B, C, height, width].

    Raises:
        InputError: a map that is not 4-D or has no pixels, a size below 1, an unknown mode.
    """
    check_map("resize_disparity", "disparity", disparity)
    check_choice("resize_disparity", "mode", mode, ("bilinear", "bicubic", "nearest"))
    height, width = size
    if height < 1 or width < 1 or disparity.shape[2] == 0 or disparity.shape[3] == 0:
        raise InputError(f"resize_disparity: cannot resize {shape_text(disparity)} to [{height}, {width}]")
    scale = width / disparity.shape[3]
    if (height, width) == tuple(disparity.shape[2:]):
        return disparity
    if disparity.shape[0] == 0:
        return disparity.new_zeros((*disparity.shape[:2], height, width))
    if mode == "nearest":
        return F.interpolate(disparity, size=(height, width), mode="nearest-exact") * scale
    return F.interpolate(disparity, size=(height, width), mode=mode, align_corners=False) * scale
