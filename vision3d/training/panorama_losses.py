# SPDX-License-Identifier: Apache-2.0
"""Losses of panorama depth, on the faces of a mesh or the pixels of a panorama, optionally weighted by solid angle.

BerHu as in Laina et al. (3DV 2016, arXiv 1606.00373), the usual choice for panoramas (BiFuse, UniFuse). Truth that is
not positive and finite is left out everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vision3d.errors import InputError

PanoramaLoss = Callable[[Tensor, Tensor, Tensor | None], Tensor]

SCALE_WEIGHTS = (1.0, 0.5, 0.25, 0.125)


def valid_truth(truth: Tensor) -> Tensor:
    """Bool of the truth's shape: positive and finite."""
    return torch.isfinite(truth) & (truth > 0)


def _prepared(prediction: Tensor, truth: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Float32 prediction, truth without holes (the prediction stands there), weights that are 0 in the holes."""
    if prediction.shape != truth.shape:
        raise InputError(f"a prediction of {list(prediction.shape)} does not fit a truth of {list(truth.shape)}")
    prediction, truth = prediction.float(), truth.float()
    valid = valid_truth(truth)
    share = valid.float() if weight is None else valid * weight.to(truth)
    return prediction, torch.where(valid, truth, prediction.detach()), share


def _weighted_mean(values: Tensor, share: Tensor) -> Tensor:
    total = share.sum()
    return (values * share).sum() / torch.where(total > 0, total, torch.ones_like(total))


def berhu(prediction: Tensor, truth: Tensor, weight: Tensor | None = None, *, threshold: float | None = None) -> Tensor:
    """Reversed Huber loss: e up to c, (e^2 + c^2) / 2c beyond, with e = |prediction - truth|; mean over known truth.

    Args:
        prediction, truth: one shape, metres; unknown truth = NaN, infinite or not positive.
        weight: weights that broadcast to that shape (solid angles), or None.
        threshold: c in metres; None: a fifth of the largest known error of the batch, without a gradient.

    Returns:
        A scalar, 0 where no truth is known.

    Raises:
        InputError: shapes that differ, or a threshold that is not positive.
    """
    if threshold is not None and not threshold > 0:
        raise InputError(f"the threshold of BerHu must be positive, got {threshold}")
    prediction, truth, share = _prepared(prediction, truth, weight)
    error = (prediction - truth).abs()  # 0 in the holes
    limit = 0.2 * error.detach().amax() if threshold is None else torch.full_like(error[..., :1].amax(), threshold)
    limit = limit.clamp(min=1e-6)
    return _weighted_mean(torch.where(error <= limit, error, (error.square() + limit.square()) / (2 * limit)), share)


def l1(prediction: Tensor, truth: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean absolute error over the known truth; arguments as of :func:`berhu`."""
    prediction, truth, share = _prepared(prediction, truth, weight)
    return _weighted_mean((prediction - truth).abs(), share)


def rmse_log(prediction: Tensor, truth: Tensor, weight: Tensor | None = None) -> Tensor:
    """Root of the mean squared difference of natural logarithms; predictions count as 1 mm at least."""
    prediction, truth, share = _prepared(prediction, truth, weight)
    logs = prediction.clamp(min=1e-3).log() - truth.clamp(min=1e-3).log()
    return _weighted_mean(logs.square(), share).clamp(min=1e-12).sqrt()


def coarser_truth(truth: Tensor) -> Tensor:
    """Mean over the known ones of four: children of a face, or 2 x 2 pixels; NaN where none is known.

    Args:
        truth: [B, 4n] on faces, or [B, 1, 2h, 2w].

    Returns:
        [B, n], or [B, 1, h, w].

    Raises:
        InputError: another shape.
    """
    if truth.dim() == 2 and truth.shape[1] % 4 == 0:
        groups = truth.unflatten(1, (4, -1)).movedim(1, -1)
    elif truth.dim() == 4 and truth.shape[2] % 2 == 0 and truth.shape[3] % 2 == 0:
        groups = F.pixel_unshuffle(truth, 2).movedim(1, -1).unsqueeze(1)
    else:
        raise InputError(f"truth must be [B, 4n] or [B, 1, 2h, 2w] to be halved, got shape {list(truth.shape)}")
    valid = valid_truth(groups)
    total = torch.where(valid, groups, torch.zeros_like(groups)).sum(dim=-1)
    return torch.where(valid.any(dim=-1), total / valid.sum(dim=-1).clamp(min=1), torch.full_like(total, torch.nan))


def _coarser_weight(weight: Tensor) -> Tensor:
    """Sum over four; a weight of one column, [1, 1, H, 1], keeps it."""
    if weight.dim() == 2:
        return weight.unflatten(1, (4, -1)).sum(dim=1)
    return F.avg_pool2d(weight, (2, min(2, weight.shape[3])))


def multi_scale_loss(
    outputs: Mapping[str, Tensor] | Sequence[Tensor],
    truth: Tensor,
    *,
    loss: PanoramaLoss = berhu,
    weight: Tensor | None = None,
    scale_weights: Sequence[float] = SCALE_WEIGHTS,
) -> Tensor:
    """Weighted sum of a loss over the scales of a network; coarse targets are means over the known truth.

    Args:
        outputs: predictions, finest first, or the network's ``auxiliary`` with "scale0", "scale1" ...; [B, F] each on a
            mesh one level coarser, or [B, 1, h, w] each half as high.
        truth: of the shape of the finest one.
        loss: :func:`berhu`, :func:`l1`, :func:`rmse_log` or any function with their three arguments.
        weight: weights at the finest scale, [1 or B, F] or [1 or B, 1, H, 1 or W] (solid angles), or None.
        scale_weights: of the scales, finest first.

    Returns:
        A scalar.

    Raises:
        InputError: fewer outputs than weights, or shapes that do not fit.
    """
    if isinstance(outputs, Mapping):
        named = outputs
        outputs = [named[f"scale{number}"] for number in range(len(scale_weights)) if f"scale{number}" in named]
    if len(outputs) < len(scale_weights):
        raise InputError(
            f"the network returned {len(outputs)} scales, the loss has {len(scale_weights)} weights: call it in "
            "training mode, or give fewer weights"
        )
    total = truth.new_zeros(())
    for number, share in enumerate(scale_weights):
        if number:
            truth = coarser_truth(truth)
            weight = None if weight is None else _coarser_weight(weight)
        total = total + share * loss(outputs[number], truth, weight)
    return total
