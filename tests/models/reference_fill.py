# SPDX-License-Identifier: Apache-2.0
"""Generated weights and inputs that reference outputs of the public code were computed with."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
import torch


def fill_entry(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The reference value of one state-dict entry; it depends on the name and the shape alone."""
    random = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    if name.endswith("num_batches_tracked"):
        return torch.zeros(shape, dtype=torch.int64)
    if len(shape) >= 2:
        values = random.standard_normal(shape) * np.sqrt(2.0 / np.prod(shape[1:]))
    elif name.endswith(".weight"):
        values = 1.0 + 0.1 * random.standard_normal(shape)
    elif name.endswith("running_var"):
        values = 1.0 + 0.1 * np.abs(random.standard_normal(shape))
    else:
        values = 0.1 * random.standard_normal(shape)
    return torch.from_numpy(np.asarray(values, dtype=np.float32))


def fill_like(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Reference values for every entry of a state dict."""
    return {name: fill_entry(name, tuple(value.shape)) for name, value in state_dict.items()}


def reference_pair(height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Left and right noise images, [1, 3, H, W], used without normalisation."""
    left, right = (np.random.RandomState(seed).rand(1, 3, height, width).astype(np.float32) for seed in (0, 1))
    return torch.from_numpy(left), torch.from_numpy(right)
