# SPDX-License-Identifier: Apache-2.0
"""Cost volumes with a channel axis: group-wise correlation, concatenation, difference."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vision3d.errors import InputError
from vision3d.ops._checks import check_pair, check_positive, shape_text, without_autocast
from vision3d.ops.correlation import _tile_width, banded_product


def groupwise_correlation(
    left: torch.Tensor,
    right: torch.Tensor,
    max_disparity: int,
    groups: int,
    *,
    normalize: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Group-wise correlation volume (GwcNet, arXiv 1903.04025).

    ``out[b, g, d, y, x]`` is the mean over the C / G channels of group g of ``left[y, x] * right[y, x - d]``, 0
    where x < d. With ``normalize`` each group is first scaled to unit length, so that the value is the cosine (a sum,
    not a mean).

    Args:
        left, right: [B, C, H, W] features of one shape.
        max_disparity: number of bins D (d = 0 .. D - 1, in pixels of the feature map).
        groups: number of groups G, a divisor of C.
        normalize: cosine of each group in place of the mean product.
        dtype: type in which products are summed and returned; None keeps the inputs' common type, also under autocast.

    Returns:
        [B, G, D, H, W].

    Raises:
        InputError: shapes that differ or are not 4-D, D < 1, G that does not divide C.
    """
    check_pair("groupwise_correlation", left, right)
    check_positive("groupwise_correlation", "max_disparity", max_disparity)
    check_positive("groupwise_correlation", "groups", groups)
    batch, channels, height, width = left.shape
    if channels == 0 or channels % groups:
        raise InputError(
            f"groupwise_correlation: {groups} groups do not divide the {channels} channels of left {shape_text(left)} "
            f"and right {shape_text(right)}"
        )
    dtype = dtype or torch.promote_types(left.dtype, right.dtype)
    size = channels // groups
    with without_autocast(left):
        first = left.to(dtype).reshape(batch * groups, size, height, width)
        second = right.to(dtype).reshape(batch * groups, size, height, width)
        if normalize:
            first, second = F.normalize(first, dim=1), F.normalize(second, dim=1)
        scale = 1.0 if normalize else 1.0 / size
        volume = banded_product(first, second, max_disparity, scale, _tile_width(width, short=64))
    return volume.reshape(batch, groups, max_disparity, height, width)


def _shifted(right: torch.Tensor, bins: int) -> torch.Tensor:
    """``out[b, c, d, y, x] = right[b, c, y, x - d]``, 0 where x < d: [B, C, D, H, W]; one copy of D views."""
    width = right.shape[3]
    padded = F.pad(right, (bins - 1, 0))
    return torch.stack([padded[..., bins - 1 - d : bins - 1 - d + width] for d in range(bins)], dim=2)


def _unreachable(right: torch.Tensor, bins: int) -> torch.Tensor:
    """[D, 1, W] bool: True where x < d."""
    x = torch.arange(right.shape[3], device=right.device)
    d = torch.arange(bins, device=right.device)
    return (x[None, :] < d[:, None])[:, None, :]


def concatenation_volume(
    left: torch.Tensor, right: torch.Tensor, max_disparity: int, *, mask_left: bool = True
) -> torch.Tensor:
    """Concatenation volume (GC-Net, arXiv 1703.04309; PSMNet, arXiv 1803.08669).

    Channels 0 .. C-1 hold ``left[y, x]``, channels C .. 2C-1 hold ``right[y, x - d]``; the right half is 0 where x < d,
    the left half too with ``mask_left`` (PSMNet), otherwise it stays (some later networks).

    Args:
        left, right: [B, C, H, W] features of one shape.
        max_disparity: number of bins D.
        mask_left: zero the left half where x < d.

    Returns:
        [B, 2C, D, H, W].

    Raises:
        InputError: shapes that differ or are not 4-D, D < 1.
    """
    check_pair("concatenation_volume", left, right)
    check_positive("concatenation_volume", "max_disparity", max_disparity)
    first = left[:, :, None].expand(-1, -1, max_disparity, -1, -1)
    volume = torch.cat([first, _shifted(right, max_disparity)], dim=1)
    return volume.masked_fill_(_unreachable(left, max_disparity), 0.0) if mask_left else volume


def difference_volume(left: torch.Tensor, right: torch.Tensor, max_disparity: int) -> torch.Tensor:
    """Difference volume ``left[y, x] - right[y, x - d]``, 0 where x < d (AANet's "difference", arXiv 2004.09548).

    Args:
        left, right: [B, C, H, W] features of one shape.
        max_disparity: number of bins D.

    Returns:
        [B, C, D, H, W].

    Raises:
        InputError: shapes that differ or are not 4-D, D < 1.
    """
    check_pair("difference_volume", left, right)
    check_positive("difference_volume", "max_disparity", max_disparity)
    volume = _shifted(right, max_disparity).neg_().add_(left[:, :, None])  # in place: fresh memory is the cost here
    return volume.masked_fill_(_unreachable(left, max_disparity), 0.0)
