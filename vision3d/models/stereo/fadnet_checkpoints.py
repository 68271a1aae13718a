# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the FADNet family: the names that its releases used, and which network a state dict belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vision3d.io.checkpoints import StateDict

_OPENSTEREO_PREFIXES = {
    "backbone.": "extract_network.",
    "cost_processor.": "cunet.",
    "disp_predictor.": "dispnetres.",
}


def convert_fadnetpp_names(state_dict: StateDict) -> StateDict:
    """Bring FADNet++ names of older files (``dispnetc.``) and of OpenStereo to those of the final public code.

    Weights of the original FADNet, which uses ``dispnetc.`` too, are returned as they are.
    """
    if _is_original_fadnet(state_dict) or any(name.startswith("extract_network.") for name in state_dict):
        return state_dict
    return {_fadnetpp_name(name): value for name, value in state_dict.items()}


def _is_original_fadnet(state_dict: Mapping[str, torch.Tensor]) -> bool:
    first = state_dict.get("dispnetc.conv1.0.weight")
    return first is not None and first.shape[0] == 64 and "dispnetc.conv3_1.conv1.conv.weight" not in state_dict


def _fadnetpp_name(name: str) -> str:
    for prefix, official in _OPENSTEREO_PREFIXES.items():
        if name.startswith(prefix):
            return official + name.removeprefix(prefix)
    if name.startswith("dispnetc."):
        inner = name.removeprefix("dispnetc.")
        shared = inner.startswith(("conv1.", "conv2.", "conv3."))
        return ("extract_network." if shared else "cunet.") + inner
    return name


@dataclass(frozen=True)
class DetectedArchitecture:
    """The registered name and the options of the network that a state dict belongs to."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"create_model('{self.name}'{options})"


_FADNETPP_SIZES = {
    (64, 64): "fadnetpp_x",
    (32, 32): "fadnetpp",
    (16, 16): "fadnetpp_mobile",
    (8, 8): "fadnetpp_slight",
    (4, 2): "fadnetpp_tiny",
    (2, 2): "fadnetpp_micro",
}


def detect_architecture(state_dict: Mapping[str, torch.Tensor]) -> DetectedArchitecture | None:
    """Tell from names and shapes which network of the FADNet family an unwrapped state dict belongs to, else None."""
    names = dict(state_dict)
    if _is_original_fadnet(names):
        whole = "dispnetc.conv4_1.conv1.weight" in names
        return DetectedArchitecture("fadnet" if whole else "mobilefadnet_v1")
    return _detect_fadnetpp(convert_fadnetpp_names(names))


def _detect_fadnetpp(names: StateDict) -> DetectedArchitecture | None:
    encoder, decoder = names.get("extract_network.conv1.0.weight"), names.get("cunet.iconv1.weight")
    if encoder is None or decoder is None:
        return None
    size = (encoder.shape[0], decoder.shape[1])
    residual = "cunet.conv3_1.conv1.conv.weight" in names
    if "dispnetres.conv1.0.weight" in names:
        name = _FADNETPP_SIZES.get(size) if residual else {(32, 32): "crl"}.get(size)
        return None if name is None else DetectedArchitecture(name)
    if size != (32, 32):
        return None
    name = "dispnetcss" if "dispnets1.conv1.0.weight" in names else "dispnetc"
    return DetectedArchitecture(name, {"residual_blocks": True} if residual else {})
