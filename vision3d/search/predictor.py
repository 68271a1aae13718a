# SPDX-License-Identifier: Apache-2.0
"""The error of a sub-network predicted from its setting, by a small network that learns from measured pairs.

Once-for-All (arXiv 1908.09791) searches with such a predictor; the encoding is its one for EASNet's space.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from vision3d.errors import InputError
from vision3d.models.stereo.easnet import FULL_SPACE, Setting

_BLOCK_INPUTS = len(FULL_SPACE.kernels) + len(FULL_SPACE.expand_ratios)
INPUTS = 16 * _BLOCK_INPUTS + len(FULL_SPACE.scales)  # 115
HIDDEN = 400
LEAST_PAIRS = 5
_HELD_OUT = 0.2


def encode(setting: Setting) -> np.ndarray:
    """[115] float32: for each of 16 blocks one-hot kernel (3) and expand ratio (4), zeros where the block does not
    act; then the one-hot number of scales (3)."""
    code = np.zeros(INPUTS, np.float32)
    for block in setting.active_blocks:
        start = block * _BLOCK_INPUTS
        code[start + FULL_SPACE.kernels.index(setting.kernels[block])] = 1
        ratio = FULL_SPACE.expand_ratios.index(setting.expand_ratios[block])
        code[start + len(FULL_SPACE.kernels) + ratio] = 1
    code[16 * _BLOCK_INPUTS + FULL_SPACE.scales.index(setting.scales)] = 1
    return code


class _Perceptron(nn.Sequential):
    def __init__(self) -> None:
        widths = [INPUTS, HIDDEN, HIDDEN, HIDDEN]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
        super().__init__(*layers, nn.Linear(HIDDEN, 1, bias=False))


@dataclass
class AccuracyPredictor:
    """Predicts what it was fitted to, by default the EPE in pixels; see :func:`fit_predictor`.

    Attributes:
        network: three hidden layers of 400 and an output without bias.
        offset, scale, mean: target = offset + scale * (mean + output).
        held_out_error: mean absolute error on the pairs that were held out, in the unit of the target.
    """

    network: nn.Module
    offset: float
    scale: float
    mean: float
    held_out_error: float = float("nan")

    @torch.no_grad()
    def predict(self, settings: Sequence[Setting]) -> list[float]:
        """The prediction for each setting."""
        if not settings:
            return []
        codes = torch.from_numpy(np.stack([encode(setting) for setting in settings]))
        outputs = self.network(codes)[:, 0].double() + self.mean
        return (self.offset + self.scale * outputs).tolist()


def fit_predictor(
    settings: Sequence[Setting], targets: Iterable[float], seed: int = 0, epochs: int = 300
) -> AccuracyPredictor:
    """Fit the predictor; a fifth of the pairs is held out and chooses the epoch, so that few pairs do not over-fit.

    Args:
        settings, targets: the measured pairs; at least 5.
        seed: of the first weights, the order and the choice of the held-out pairs.
        epochs: passes over the pairs (Adam, 1e-3, weight decay 1e-4, batches of 64).

    Raises:
        InputError: fewer than 5 pairs, or targets that are not finite.
    """
    values = np.asarray(list(targets), np.float64)
    if len(settings) < LEAST_PAIRS or len(values) != len(settings) or not np.isfinite(values).all():
        finite = int(np.isfinite(values).sum())
        raise InputError(
            f"the predictor needs at least {LEAST_PAIRS} measured networks of finite error, got {len(settings)} with "
            f"{finite} finite errors: measure more"
        )
    offset, scale = float(values.min()), float(np.ptp(values)) or 1.0
    scaled = (values - offset) / scale
    order = np.random.default_rng(seed).permutation(len(values))
    held, kept = np.split(order, [max(1, round(_HELD_OUT * len(values)))])
    mean = float(scaled[kept].mean())
    codes = torch.from_numpy(np.stack([encode(setting) for setting in settings]))
    wanted = torch.from_numpy((scaled - mean).astype(np.float32))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network, error = _train(codes, wanted, kept, held, epochs)
    return AccuracyPredictor(network, offset, scale, mean, error * scale)


def _train(
    codes: torch.Tensor, wanted: torch.Tensor, kept: np.ndarray, held: np.ndarray, epochs: int
) -> tuple[nn.Module, float]:
    network = _Perceptron()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-4)
    best, least = None, float("inf")
    for _ in range(epochs):
        for rows in torch.from_numpy(kept)[torch.randperm(len(kept))].split(64):
            loss = (network(codes[rows])[:, 0] - wanted[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            error = float((network(codes[held])[:, 0] - wanted[held]).abs().mean())
        if error < least:
            best, least = {name: value.clone() for name, value in network.state_dict().items()}, error
    if best is not None:
        network.load_state_dict(best)
    return network.requires_grad_(False), least
