# SPDX-License-Identifier: Apache-2.0
"""First weights of EASNet: those of the authors, or ones whose scores are the plain correlation."""

from __future__ import annotations

import math

from torch import nn

from vision3d.models.stereo.easnet.aggregation import AdaptiveAggregation, Bottleneck, DeformableConv, Fusion
from vision3d.models.stereo.easnet.dynamic import SqueezeConvs
from vision3d.models.stereo.easnet.refinement import Refinement

INITIALIZATIONS = ("correlation", "published")
_GAIN = 10.0  # of the correlation: a softmax over 64 bins is flat over the correlations of normalised features


def initialize(network: nn.Module, initialization: str) -> None:
    """Set every weight.

    ``"published"`` is the authors' rule: plain convolutions normal with variance ``2 / (k * k * C_out)``, also those
    that make offsets; deformable weights uniform within ``1 / sqrt(9 * C_in)``; biases 0.

    ``"correlation"`` (ours) makes the scores ``10 * relu(correlation)`` of random features, without aggregation: plain
    convolutions have variance ``2 / fan_in``; offsets, the last normalisation of each bottleneck and of each path
    between scales, the weights of the squeeze-and-excitation's second layer, and the residual of the refinement start
    at 0; each final convolution is ``10 * identity``. Random features do not match real scenes: it is a start for
    training, not a matcher.
    """
    published = initialization == "published"
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            _normal(module, fan_out=published)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, DeformableConv):
            bound = 1.0 / math.sqrt(module.deform_conv.weight[0].numel())
            nn.init.uniform_(module.deform_conv.weight, -bound, bound)
    if not published:
        _damp_aggregation(network)


def _normal(conv: nn.Conv2d, fan_out: bool) -> None:
    area = conv.kernel_size[0] * conv.kernel_size[1]
    number = area * conv.out_channels if fan_out else conv.weight[0].numel()
    nn.init.normal_(conv.weight, std=math.sqrt(2.0 / number))
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)


def _damp_aggregation(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, DeformableConv):
            nn.init.zeros_(module.offset_conv.weight)
        elif isinstance(module, Bottleneck):
            nn.init.zeros_(module.bn3.weight)
        elif isinstance(module, SqueezeConvs):
            nn.init.zeros_(module.expand.weight)  # every channel is weighted by one half
        elif isinstance(module, Refinement):
            nn.init.zeros_(module.final_conv.weight)
        elif isinstance(module, AdaptiveAggregation):
            _make_identity(module)


def _make_identity(aggregation: AdaptiveAggregation) -> None:
    for module in aggregation.modules():
        if isinstance(module, Fusion):
            for path in (path for paths in module.paths() for path in paths):
                norms = [norm for norm in path.modules() if isinstance(norm, nn.BatchNorm2d)]
                for norm in norms[-1:]:
                    nn.init.zeros_(norm.weight)
    for head in aggregation.final_conv.children():
        if isinstance(head, nn.Conv2d):
            nn.init.dirac_(head.weight)
            head.weight.data.mul_(_GAIN)
