# SPDX-License-Identifier: Apache-2.0
"""Losses of panorama depth, on the faces of a mesh or the pixels of a panorama, optionally weighted by solid angle.

BerHu as in Laina et al. (3DV 2016, arXiv 1606.00373), the usual choice for panoramas (BiFuse, UniFuse). Truth that is
not positive and finite is left out everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vision3d.errors import ConfigError, InputError
from vision3d.geometry.icosphere import icosphere
from vision3d.geometry.panorama_mesh import level_of, panorama_to_faces, pixel_solid_angles
from vision3d.types import DepthOutput, PanoramaBatch

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


class PanoramaDepthLoss:
    """The multi-scale loss of a recipe, on the faces of a mesh or the pixels of a panorama, whichever the network has.

    Truth comes to faces by the nearest pixel. A pixel or face counts by its solid angle, so that the poles of a
    panorama do not weigh more than they are large.

    Args:
        kind: berhu, l1 or rmse_log.
        threshold: of berhu, metres; None: a fifth of the largest error of the batch.
        area: weigh by solid angle.
        weights: of the scales, finest first.
        max_depth: truth beyond it is left out, metres; None keeps all.

    Raises:
        ConfigError: an illegal value.
    """

    def __init__(
        self,
        kind: str = "berhu",
        threshold: float | None = None,
        area: bool = True,
        weights: Sequence[float] = SCALE_WEIGHTS,
        max_depth: float | None = None,
    ) -> None:
        losses: dict[str, PanoramaLoss] = {
            "berhu": functools.partial(berhu, threshold=threshold),
            "l1": l1,
            "rmse_log": rmse_log,
        }
        if kind not in losses:
            raise ConfigError(f"loss panorama: kind must be one of {', '.join(losses)}, got '{kind}'")
        if not 1 <= len(weights) <= len(SCALE_WEIGHTS) or (max_depth is not None and not max_depth > 0):
            raise ConfigError("loss panorama: weights has 1 to 4 numbers, max_depth is positive")
        if threshold is not None and not threshold > 0:
            raise ConfigError(f"loss panorama: threshold must be positive, got {threshold}")
        self.function, self.area, self.max_depth = losses[kind], area, max_depth
        self.weights = tuple(weights)
        self._tables: dict[tuple[int, int, torch.device], tuple[Tensor, Tensor]] = {}

    def __call__(self, output: DepthOutput, batch: PanoramaBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The total, and that of the finest scale as ``loss_fine``.

        Raises:
            InputError: the network returned no scales: it is not in training mode, or of another task.
        """
        truth = batch.depth
        if self.max_depth is not None:
            truth = torch.where(truth <= self.max_depth, truth, torch.nan)
        scales = output.auxiliary
        if "scale0" not in scales:
            raise InputError("the network returned no scales: a panorama network in training mode does")
        truth, weight = self._prepared(truth, scales["scale0"])
        outputs = [scales[f"scale{number}"] for number in range(len(self.weights))]
        total = multi_scale_loss(
            outputs, truth, loss=self.function, weight=weight if self.area else None, scale_weights=self.weights
        )
        fine = self.function(outputs[0].detach(), truth, weight if self.area else None)
        return total, {"loss_fine": fine}

    def _prepared(self, truth: Tensor, finest: Tensor) -> tuple[Tensor, Tensor]:
        """Truth and weights of the shape of the finest scale; weights have the mean 1."""
        height = truth.shape[2]
        if finest.dim() == 4:
            area = torch.as_tensor(pixel_solid_angles(height), dtype=torch.float32, device=truth.device)
            return truth, (area / area.mean())[None, None, :, None]
        key = (height, level_of(finest.shape[1]), truth.device)
        if key not in self._tables:
            nearest = panorama_to_faces(np.arange(2 * height * height).reshape(height, -1), key[1], nearest=True)
            area = torch.as_tensor(icosphere(key[1]).solid_angles.copy(), dtype=torch.float32, device=truth.device)
            self._tables[key] = torch.as_tensor(nearest, device=truth.device), (area / area.mean())[None]
        index, weight = self._tables[key]
        return truth.flatten(1)[:, index], weight
