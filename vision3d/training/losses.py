# SPDX-License-Identifier: Apache-2.0
"""Losses: callables ``loss(output, batch) -> (total, parts)`` found by name in ``LOSSES``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from vision3d.errors import ConfigError, InputError, UnknownNameError, check_options
from vision3d.training.multiview_losses import DispMVSLoss
from vision3d.training.normal_losses import DisparityAndNormals
from vision3d.training.panorama_losses import PanoramaDepthLoss
from vision3d.types import StereoBatch, StereoOutput


class StereoLoss(Protocol):
    """What the training task asks of a loss.

    Called with a network's training-mode output and its batch, it returns the scalar to minimise and named detached
    parts for the metrics file. A loss with an attribute ``weights`` (tuple of floats) can be given a new tuple at each
    round of a recipe.
    """

    def __call__(self, output: StereoOutput, batch: StereoBatch) -> tuple[Tensor, dict[str, Tensor]]: ...


def pool_truth(disparity: Tensor, factor: int, sparse: bool) -> Tensor:
    """Average-pool a ground truth by ``factor`` without rescaling its values.

    Args:
        disparity: [B, 1, H, W], NaN where unknown.
        factor: kernel and stride.
        sparse: average over the known positive pixels of a cell only; else a cell with an unknown pixel is unknown.

    Returns:
        [B, 1, H // factor, W // factor], NaN where unknown.
    """
    if not sparse:
        return disparity if factor == 1 else F.avg_pool2d(disparity, factor)
    known = torch.isfinite(disparity) & (disparity > 0)
    filled = torch.where(known, disparity, torch.zeros_like(disparity))
    weight = known.to(disparity.dtype)
    if factor > 1:
        filled, weight = F.avg_pool2d(filled, factor), F.avg_pool2d(weight, factor)
    return filled / weight  # 0 / 0 = NaN: an empty cell


class MultiScaleSmoothL1:
    """Weighted smooth L1 over the maps of each stage (FADNet, arXiv 2003.10758, and FADNet++, arXiv 2110.02582).

    ``sum_k weights[k] * mean(smooth_l1(stage[k], pool_k(truth)))`` over the valid pixels, summed over the stages with
    equal weight. Every map holds full-resolution pixels, so the pooled truth is not rescaled.

    Args:
        weights: one a map, finest first.
        max_disparity: truth at or above it is left out.
        positive: leave out truth at or below zero (FADNet++); the original FADNet keeps it.
        sparse: pool over known pixels only (KITTI, Middlebury, ETH3D).
    """

    def __init__(
        self,
        weights: Sequence[float] = (0.32, 0.16, 0.08, 0.04, 0.02, 0.01, 0.005),
        max_disparity: float = 192.0,
        positive: bool = True,
        sparse: bool = False,
    ) -> None:
        self.weights = tuple(float(weight) for weight in weights)
        self.max_disparity = float(max_disparity)
        self.positive = positive
        self.sparse = sparse

    def __call__(self, output: StereoOutput, batch: StereoBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the total and the loss of each stage.

        Raises:
            InputError: the network returned no stages, or fewer maps than there are weights.
        """
        if not output.stages:
            raise InputError(
                "the network returned no training stages: call it in training mode, or choose another loss"
            )
        truth = batch.disparity.float()
        total = truth.new_zeros(())
        parts: dict[str, Tensor] = {}
        for number, stage in enumerate(output.stages, start=1):
            if len(stage) < len(self.weights):
                raise InputError(f"stage {number} has {len(stage)} maps but the loss has {len(self.weights)} weights")
            stage_loss = self._stage(stage, truth)
            parts[f"loss_stage{number}"] = stage_loss.detach()
            total = total + stage_loss
        return total, parts

    def _stage(self, maps: Sequence[Tensor], truth: Tensor) -> Tensor:
        loss = truth.new_zeros(())
        for prediction, weight in zip(maps, self.weights, strict=False):
            if weight:
                target = pool_truth(truth, max(1, truth.shape[-1] // prediction.shape[-1]), self.sparse)
                loss = loss + weight * self._smooth_l1(prediction.float(), target)
        return loss

    def _smooth_l1(self, prediction: Tensor, target: Tensor) -> Tensor:
        if prediction.shape != target.shape:
            raise InputError(
                f"a predicted map of {tuple(prediction.shape)} does not fit its pooled truth {tuple(target.shape)}: "
                "choose a crop that is a multiple of the coarsest scale"
            )
        valid = target < self.max_disparity  # False for NaN
        if self.positive:
            valid &= target > 0
        # where() before the loss: NaN truth must reach neither the value nor the gradient.
        target = torch.where(valid, target, torch.zeros_like(target))
        errors = F.smooth_l1_loss(prediction, target, reduction="none")
        errors = torch.where(valid, errors, torch.zeros_like(errors))
        return errors.sum() / valid.sum().clamp(min=1)


def _shared_cross_entropy(scores: Tensor, position: Tensor, valid: Tensor) -> Tensor:
    """Mean cross-entropy of bin scores with targets shared between the two bins beside a position.

    Args:
        scores: [B, D, H, W].
        position: [B, 1, H, W], finite, in bins.
        valid: [B, 1, H, W], the cells that count.
    """
    position = position.clamp(max=scores.shape[1] - 1.001)
    low = position.floor().long()
    share = position - low
    score = F.log_softmax(scores, dim=1)
    entropy = -(1 - share) * score.gather(1, low) - share * score.gather(1, low + 1)
    return (entropy * valid).sum() / valid.sum().clamp(min=1)


_FAR_SLOPE = 0.05


def _flatten_beyond(errors: Tensor, reach: float) -> Tensor:
    """Errors whose slope falls to a twentieth beyond ``reach``."""
    return errors - (1 - _FAR_SLOPE) * (errors - reach).clamp(min=0)


class UpsampledSmoothL1:
    """Weighted smooth L1 of every map enlarged to the size of the truth (EASNet, arXiv 2207.09796; AANet).

    ``sum_i weight_i * mean(smooth_l1(resize_i(map_i), truth))`` over the pixels with ``0 < truth < max_disparity``,
    for each stage; the finest map of a stage spans the width in whose pixels the values are.

    Args:
        weights: one a map, finest first; None takes the published ones, which depend on the number of maps: 1 for all
            but the two coarsest, which have 1/3 (coarsest) and 2/3, where there are four maps or more.
        max_disparity: truth at or above it is left out.
        classification: weight of the cross-entropy of the bin scores of each scale with the truth at its cells'
            centres, shared between the two bins beside it; 0 as published. Short trainings need it.
        reach: error in pixels beyond which the smooth L1 loss is almost flat; None as published.
    """

    def __init__(
        self,
        weights: Sequence[float] | None = None,
        max_disparity: float = 192.0,
        classification: float = 0.0,
        reach: float | None = None,
    ) -> None:
        self.weights = None if weights is None else tuple(float(weight) for weight in weights)
        self.max_disparity, self.classification = float(max_disparity), float(classification)
        self.reach = None if reach is None else float(reach)

    def __call__(self, output: StereoOutput, batch: StereoBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the total and the unweighted loss of the finest map. A batch without valid truth gives 0.

        Raises:
            InputError: the network returned no stages (or scores, where they count), or not as many maps as there are
                weights.
        """
        if not output.stages:
            raise InputError(
                "the network returned no training stages: call it in training mode, or choose another loss"
            )
        truth = batch.disparity.float()
        valid = (truth > 0) & (truth < self.max_disparity)  # False for NaN
        truth = torch.where(valid, truth, torch.zeros_like(truth))
        total = truth.new_zeros(())
        finest = total
        for stage in output.stages:
            losses = [self._smooth_l1(map_, truth, valid, stage[0].shape[-1]) for map_ in stage]
            finest = losses[0]
            total = total + sum(w * loss for w, loss in zip(self._weights_of(len(losses)), losses, strict=True))
        if self.classification:
            scores = [value for name, value in output.auxiliary.items() if name.startswith("scores")]
            if not scores:
                raise InputError("the network returned no bin scores: set loss.options.classification to 0")
            entropy = torch.stack([self._cross_entropy(score.float(), truth) for score in scores]).sum()
            total = total + self.classification * entropy
        return total, {"loss_finest": finest.detach()}

    def _cross_entropy(self, scores: Tensor, truth: Tensor) -> Tensor:
        """Of the scores of one scale; ``truth`` is 0 where it does not count."""
        cells = F.interpolate(truth, (scores.shape[-2], scores.shape[-1]), mode="nearest-exact")
        return _shared_cross_entropy(scores, cells * (scores.shape[-1] / truth.shape[-1]), cells > 0)

    def _weights_of(self, number: int) -> tuple[float, ...]:
        if self.weights is None:
            coarsest = (2 / 3, 1 / 3) if number >= 4 else ()
            return (1.0,) * (number - len(coarsest)) + coarsest
        if len(self.weights) != number:
            raise InputError(f"the network returned {number} maps but the loss has {len(self.weights)} weights")
        return self.weights

    def _smooth_l1(self, map_: Tensor, truth: Tensor, valid: Tensor, width: int) -> Tensor:
        size = (truth.shape[-2], truth.shape[-1])
        resized = F.interpolate(map_.float(), size, mode="bilinear", align_corners=False) * (size[1] / width)
        errors = F.smooth_l1_loss(resized, truth, reduction="none")
        if self.reach is not None:
            errors = _flatten_beyond(errors, self.reach)
        return torch.where(valid, errors, torch.zeros_like(truth)).sum() / valid.sum().clamp(min=1)


class CostVolumeLoss:
    """Loss of networks that score disparity bins and refine the best one (CoVoNet).

    ``classification * cross_entropy(logits, truth) + first * smooth_l1(earlier stages) + smooth_l1(last stage)`` over
    the valid pixels; each stage's first map has full size. The target of the cross-entropy is the truth at the centre
    of each coarse cell, shared linearly between the two bins beside it, so that the scores stay one-peaked at depth
    edges. An answer taken around a wrong bin cannot be mended by regression, so errors beyond ``reach`` weigh little
    there and are left to the cross-entropy. Where the network rates its answer, ``confidence`` times the binary
    cross-entropy of "the error is below one pixel" is added.

    Args:
        classification: weight of the cross-entropy.
        first: weight of each map before the last.
        max_disparity: truth at or above it is left out.
        reach: error in pixels beyond which the smooth L1 loss is almost flat.
        confidence: weight of the confidence.
    """

    def __init__(
        self,
        classification: float = 3.0,
        first: float = 0.5,
        max_disparity: float = 192.0,
        reach: float = 8.0,
        confidence: float = 0.5,
    ) -> None:
        self.classification, self.first, self.confidence = classification, first, confidence
        self.max_disparity, self.reach = float(max_disparity), float(reach)

    def __call__(self, output: StereoOutput, batch: StereoBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the total and its parts.

        Raises:
            InputError: the network returned no scores or fewer than two stages.
        """
        if len(output.stages) < 2 or "logits" not in output.auxiliary:
            raise InputError("the network returned no bin scores and two stages: choose another loss for it")
        truth = batch.disparity.float()
        *earlier, final = (self._smooth_l1(stage[0].float(), truth) for stage in output.stages)
        first = torch.stack(earlier).sum()
        entropy = self._cross_entropy(output.auxiliary["logits"].float(), truth)
        parts = {"loss_bins": entropy.detach(), "loss_first": first.detach(), "loss_final": final.detach()}
        total = self.classification * entropy + self.first * first + final
        if "confidence_logits" in output.auxiliary:
            rating = self._rating(output.auxiliary["confidence_logits"], output.disparity.detach(), truth)
            parts["loss_confidence"] = rating.detach()
            total = total + self.confidence * rating
        return total, parts

    def _rating(self, logits: Tensor, disparity: Tensor, truth: Tensor) -> Tensor:
        valid = self._valid(truth)
        good = ((disparity - truth).abs() < 1.0).to(logits.dtype)  # False for NaN
        losses = F.binary_cross_entropy_with_logits(logits, good, reduction="none")
        return (losses * valid).sum() / valid.sum().clamp(min=1)

    def _valid(self, truth: Tensor) -> Tensor:
        return (truth > 0) & (truth < self.max_disparity)  # False for NaN

    def _smooth_l1(self, prediction: Tensor, truth: Tensor) -> Tensor:
        valid = self._valid(truth)
        errors = F.smooth_l1_loss(prediction, torch.where(valid, truth, prediction.detach()), reduction="none")
        return _flatten_beyond(errors, self.reach).sum() / valid.sum().clamp(min=1)

    def _cross_entropy(self, logits: Tensor, truth: Tensor) -> Tensor:
        cell = truth.shape[-1] // logits.shape[-1]
        target = truth[..., cell // 2 :: cell, cell // 2 :: cell]
        valid = self._valid(target)
        return _shared_cross_entropy(logits, torch.where(valid, target / cell, torch.zeros_like(target)), valid)


LOSSES: dict[str, Callable[..., Any]] = {
    "multiscale_smooth_l1": MultiScaleSmoothL1,
    "cost_volume": CostVolumeLoss,
    "easnet": UpsampledSmoothL1,
    "disparity_and_normals": DisparityAndNormals,
    "panorama": PanoramaDepthLoss,
    "dispmvs": DispMVSLoss,
}


def create_loss(name: str, **options: Any) -> StereoLoss:
    """Build a loss by name.

    Raises:
        UnknownNameError: unknown name; the message lists near ones.
        ConfigError: an option that the loss does not have.
    """
    if name not in LOSSES:
        raise UnknownNameError("loss", name, LOSSES)
    check_options(f"loss {name}", LOSSES[name], options)
    try:
        return LOSSES[name](**options)
    except TypeError as error:
        raise ConfigError(f"loss {name}: {str(error).replace('__init__() ', '')}") from error
