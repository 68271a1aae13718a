# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of EASNet: the name generations of the public code, and which network a state dict belongs to."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from vision3d.io.checkpoints import load_into, unwrap_state_dict
from vision3d.models.stereo.easnet.settings import (
    BLOCK_SHAPES,
    FULL_SPACE,
    STAGE_BLOCKS,
    STAGE_CHANNELS,
    STAGES,
    Setting,
    parse_setting,
)

_FEATURES = "feature_extractor."
_DOUBLED = ((".mobile_inverted_conv.", ".conv."), (".bn.bn.", ".bn."), (".conv.conv.weight", ".conv.weight"))


def _plain_name(name: str) -> str:
    """The name of an entry in an extracted network of the final public code."""
    if name.startswith(_FEATURES):
        for old, new in _DOUBLED:
            name = name.replace(old, new)
    return name


def is_supernet(state_dict: Mapping[str, torch.Tensor]) -> bool:
    """Whether the names are those of a supernet (``bn.bn``), not of an extracted network."""
    return any(name.startswith(_FEATURES) and ".bn.bn." in name for name in state_dict)


def load_network(model: nn.Module, state_dict: Mapping[str, object], optional: tuple[str, ...] = ()) -> None:
    """Load weights of either name generation.

    Args:
        model: a network of this family.
        state_dict: as a checkpoint holds it. Kernel matrices that it lacks stay as they are.
        optional: beginnings of names that ``model`` and ``state_dict`` may each have or lack.

    Raises:
        WeightsError: the weights are of another network or setting.
    """
    weights = unwrap_state_dict(state_dict)
    own = model.state_dict()
    known = {_plain_name(name): name for name in own}
    weights = {known.get(_plain_name(name), name): value for name, value in weights.items()}
    weights = {name: value for name, value in weights.items() if name in own or not name.startswith(optional)}
    for name, value in own.items():
        if name.endswith("_matrix") or name.startswith(optional):
            weights.setdefault(name, value)
    load_into(model, weights, _describe)


def dead_heads(scales: int) -> tuple[str, ...]:
    """Beginnings of the names of the final convolutions that a network of so many scales does not use."""
    return tuple(f"aggregation.final_conv.{scale}." for scale in range(scales, STAGES))


def detect_setting(state_dict: Mapping[str, torch.Tensor]) -> Setting | None:
    """The setting of an extracted network, from the shapes of its entries; None if they are of another network.

    Ratios 6 and 8 make block 0 equally wide: the smaller one is taken.
    """
    weights = {_plain_name(name): value for name, value in state_dict.items()}
    kernels, ratios, depths = [3] * len(BLOCK_SHAPES), [2] * len(BLOCK_SHAPES), [0] * STAGES
    number = 0
    while (last := weights.get(f"{_FEATURES}{number}.conv.point_linear.conv.weight")) is not None:
        depthwise = weights.get(f"{_FEATURES}{number}.conv.depth_conv.conv.weight")
        if last.dim() != 4 or last.shape[0] not in STAGE_CHANNELS or depthwise is None or depthwise.dim() != 4:
            return None
        stage = STAGE_CHANNELS.index(last.shape[0])
        if depths[stage] >= STAGE_BLOCKS:
            return None
        index = stage * STAGE_BLOCKS + depths[stage]
        middles = [BLOCK_SHAPES[index].middle(ratio) for ratio in FULL_SPACE.expand_ratios]
        if last.shape[1] not in middles or depthwise.shape[-1] not in FULL_SPACE.kernels:
            return None
        kernels[index], ratios[index] = depthwise.shape[-1], FULL_SPACE.expand_ratios[middles.index(last.shape[1])]
        depths[stage] += 1
        number += 1
    scales = sum(depth > 0 for depth in depths)
    if scales not in FULL_SPACE.scales or any(depth not in FULL_SPACE.depths for depth in depths[:scales]):
        return None
    return parse_setting({"ks": kernels, "e": ratios, "d": depths, "s": scales})


def _describe(state_dict: Mapping[str, torch.Tensor]) -> str | None:
    if is_supernet(state_dict):
        return "create_model('easnet_supernet')"
    setting = detect_setting(state_dict)
    return None if setting is None else f"create_model('easnet', setting={setting})"
