# SPDX-License-Identifier: Apache-2.0
"""Recurrent update of DispMVS: a step of E-flow, a score and upsampling weights from the cost of a source view."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class UpdateWidths:
    """Channels inside an update block: of the cost branch, the flow branch, the motion features and the heads."""

    cost: tuple[int, int] = (256, 192)
    flow: tuple[int, int] = (128, 64)
    motion: int = 128
    head: int = 256


class MotionEncoder(nn.Module):
    """Features of the cost [M, cost, h, w] and the E-flow [M, 1, h, w], whose last channel is the E-flow itself."""

    def __init__(self, cost: int, widths: UpdateWidths) -> None:
        super().__init__()
        self.convc1 = nn.Conv2d(cost, widths.cost[0], 1)
        self.convc2 = nn.Conv2d(widths.cost[0], widths.cost[1], 3, padding=1)
        self.convf1 = nn.Conv2d(1, widths.flow[0], 7, padding=3)
        self.convf2 = nn.Conv2d(widths.flow[0], widths.flow[1], 3, padding=1)
        self.conv = nn.Conv2d(widths.cost[1] + widths.flow[1], widths.motion - 1, 3, padding=1)

    def forward(self, cost: Tensor, flow: Tensor) -> Tensor:
        first = F.relu(self.convc2(F.relu(self.convc1(cost))))
        second = F.relu(self.convf2(F.relu(self.convf1(flow))))
        motion = F.relu(self.conv(torch.cat([first, second], 1)))
        return torch.cat([motion, flow.to(motion.dtype)], 1)


class SeparableGRU(nn.Module):
    """Convolutional GRU with a 1x5 and a 5x1 pass.

    The context is the same in all iterations and for all source views, so its share of the six convolutions is computed
    once (:meth:`context_terms`); the sums are those of one convolution over [hidden, context, motion].
    """

    def __init__(self, hidden: int, context: int, motion: int) -> None:
        super().__init__()
        self.hidden, self.context = hidden, context
        inputs = hidden + context + motion
        for suffix, kernel, padding in (("1", (1, 5), (0, 2)), ("2", (5, 1), (2, 0))):
            for gate in "zrq":
                self.add_module(f"conv{gate}{suffix}", nn.Conv2d(inputs, hidden, kernel, padding=padding))

    def _convolutions(self, suffix: str) -> list[nn.Conv2d]:
        return [self.get_submodule(f"conv{gate}{suffix}") for gate in "zrq"]  # type: ignore[misc]

    def context_terms(self, context: Tensor) -> list[Tensor]:
        """The context's share (with bias) of the z, r, q convolutions of both passes: [B, 3 hidden, h, w] each."""
        terms = []
        for suffix in "12":
            convolutions = self._convolutions(suffix)
            part = slice(self.hidden, self.hidden + self.context)
            weight = torch.cat([convolution.weight[:, part] for convolution in convolutions])
            bias = torch.cat([convolution.bias for convolution in convolutions])  # type: ignore[misc]
            terms.append(F.conv2d(context, weight, bias, padding=convolutions[0].padding))  # type: ignore[arg-type]
        return terms

    def forward(self, hidden: Tensor, motion: Tensor, terms: list[Tensor]) -> Tensor:
        """``hidden``, ``motion``: [B * S, ., h, w] of S source views of each of the B reference views of ``terms``."""
        for suffix, term in zip("12", terms, strict=True):
            hidden = self._pass(hidden, motion, term, suffix)
        return hidden

    def _pass(self, hidden: Tensor, motion: Tensor, term: Tensor, suffix: str) -> Tensor:
        z, r, q = self._convolutions(suffix)
        weights = [self._without_context(convolution.weight) for convolution in (z, r, q)]
        padding = z.padding
        gates = F.conv2d(torch.cat([hidden, motion.to(hidden.dtype)], 1), torch.cat(weights[:2]), padding=padding)  # type: ignore[arg-type]
        update, reset = torch.sigmoid(_add(gates, term[:, : 2 * self.hidden])).chunk(2, 1)
        inputs = torch.cat([reset * hidden, motion.to(hidden.dtype)], 1)
        proposal = F.conv2d(inputs, weights[2], padding=padding)  # type: ignore[arg-type]
        proposal = torch.tanh(_add(proposal, term[:, 2 * self.hidden :]))
        return (1 - update) * hidden + update * proposal

    def _without_context(self, weight: Tensor) -> Tensor:
        return torch.cat([weight[:, : self.hidden], weight[:, self.hidden + self.context :]], 1)


def _add(values: Tensor, term: Tensor) -> Tensor:
    """Add a map of each reference view to the maps of its source views."""
    return (values.unflatten(0, (len(term), -1)) + term[:, None]).flatten(0, 1)


class FlowHead(nn.Module):
    """Step of the E-flow and fusion score: [M, 2, h, w]."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(hidden, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2, 3, padding=1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.conv2(F.relu(self.conv1(hidden)))


class UpdateBlock(nn.Module):
    """One iteration for all source views at once.

    Args:
        cost: channels of the cost.
        hidden: channels of the state and of the context.
        widths: inner channels.
        factor: upsampling factor whose weights are predicted.
    """

    def __init__(self, cost: int, hidden: int, widths: UpdateWidths, factor: int = 4) -> None:
        super().__init__()
        self.encoder = MotionEncoder(cost, widths)
        self.gru = SeparableGRU(hidden, hidden, widths.motion)
        self.flow_head = FlowHead(hidden, widths.head)
        self.mask = nn.Sequential(
            nn.Conv2d(hidden, widths.head, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(widths.head, 9 * factor * factor, 1),
        )

    def forward(
        self, hidden: Tensor, terms: list[Tensor], cost: Tensor, flow: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the new state, the step of E-flow, the fusion score and the logits of the upsampling weights."""
        hidden = self.gru(hidden, self.encoder(cost, flow), terms)
        step, score = self.flow_head(hidden).float().chunk(2, 1)
        return hidden, step, score, 0.25 * self.mask(hidden).float()
