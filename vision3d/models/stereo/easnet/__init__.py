# SPDX-License-Identifier: Apache-2.0
"""EASNet: an elastic stereo network that holds 2.6e17 sub-networks, and the networks taken out of it.

Wang et al., "EASNet: Searching Elastic and Accurate Network Architecture for Stereo Matching", ECCV 2022,
arXiv 2207.09796. Aggregation and refinement are those of AANet (Xu & Zhang 2020, arXiv 2004.09548).
"""

from __future__ import annotations

from vision3d.models.stereo.easnet.checkpoints import detect_setting
from vision3d.models.stereo.easnet.counters import (
    MacCount,
    aggregation_macs,
    block_macs,
    count_macs,
    count_parameters,
    published_mac_count,
    refinement_macs,
    scale_sizes,
    setting_parameters,
)
from vision3d.models.stereo.easnet.network import EASNet, EASNetSupernet
from vision3d.models.stereo.easnet.settings import (
    FULL_SPACE,
    NAMED_SETTINGS,
    PHASES,
    SearchSpace,
    Setting,
    largest_setting,
    parse_setting,
    published_seed,
    sample_setting,
    smallest_setting,
)

__all__ = [
    "FULL_SPACE",
    "NAMED_SETTINGS",
    "PHASES",
    "EASNet",
    "EASNetSupernet",
    "MacCount",
    "SearchSpace",
    "Setting",
    "aggregation_macs",
    "block_macs",
    "count_macs",
    "count_parameters",
    "detect_setting",
    "largest_setting",
    "parse_setting",
    "published_mac_count",
    "published_seed",
    "refinement_macs",
    "sample_setting",
    "scale_sizes",
    "setting_parameters",
    "smallest_setting",
]
