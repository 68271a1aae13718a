# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the FADNet and DTN-Net families: names of their releases, and which network a state dict is of."""

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
    """Tell from names and shapes which network an unwrapped state dict belongs to, else None.

    It knows the FADNet family and the networks that share its parts (DTN-Net).
    """
    names = dict(state_dict)
    normals = _detect_normals(names)
    if normals is not None:
        return DetectedArchitecture(normals)
    if _is_original_fadnet(names):
        whole = "dispnetc.conv4_1.conv1.weight" in names
        return DetectedArchitecture("fadnet" if whole else "mobilefadnet_v1")
    return _detect_fadnetpp(convert_fadnetpp_names(names))


def _detect_normals(names: StateDict) -> str | None:
    first = {prefix: names.get(f"{prefix}conv1.0.weight") for prefix in ("normnets.", "normnetdf.", "")}
    if "stage_one.match_scale" in names and first["normnets."] is not None:
        return "dtnnet_tiny"
    known = {
        ("normnets.", 10): "dtnnet",
        ("normnets.", 7): "dispnormnet",
        ("normnetdf.", 7): "dnfusionnet",
        ("normnetdf.", 10): "dtonfusionnet",
    }
    for (prefix, channels), name in known.items():
        weight = first[prefix]
        if weight is not None and weight.dim() == 4 and weight.shape[1] == channels:
            return name
    alone = first[""]
    bare = alone is not None and tuple(alone.shape) == (64, 6, 7, 7) and "pred_flow0.weight" in names
    return "normnets" if bare else None


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
