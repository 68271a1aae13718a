# SPDX-License-Identifier: Apache-2.0
"""Which network of the FADNet family a checkpoint belongs to."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vision3d.errors import WeightsError
from vision3d.models.stereo import fadnet as original
from vision3d.models.stereo import fadnetpp as plusplus
from vision3d.models.stereo.covonet import covonet
from vision3d.models.stereo.fadnet_checkpoints import DetectedArchitecture, detect_architecture


@pytest.mark.parametrize(
    ("module", "name", "options"),
    [
        *((original, name, {}) for name in ("fadnet", "mobilefadnet_v1")),
        *((plusplus, f"fadnetpp{size}", {}) for size in ("", "_x", "_mobile", "_slight", "_tiny", "_micro")),
        *((plusplus, name, {}) for name in ("crl", "dispnetc", "dispnetcss")),
        (plusplus, "dispnetc", {"residual_blocks": True}),
        (plusplus, "dispnetcss", {"residual_blocks": True}),
    ],
)
def test_detection(module, name, options):
    with torch.device("meta"):
        state_dict = getattr(module, name)(**options).state_dict()
    found = DetectedArchitecture(name, options)
    assert detect_architecture(state_dict) == found
    old = {k.replace("extract_network.", "dispnetc.").replace("cunet.", "dispnetc."): v for k, v in state_dict.items()}
    assert detect_architecture(old) == found


def test_detection_of_something_else():
    assert detect_architecture(nn.Conv2d(3, 4, 3).state_dict()) is None


@pytest.mark.parametrize("build", [plusplus.fadnetpp_micro, original.fadnet, covonet])
def test_weights_of_another_network_name_it(build):
    with torch.device("meta"):
        network, other = build(), plusplus.fadnetpp_tiny()
    with pytest.raises(WeightsError, match=r"they fit create_model\('fadnetpp_tiny'\)"):
        network.load_official_state_dict(other.state_dict())
