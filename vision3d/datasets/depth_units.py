# SPDX-License-Identifier: Apache-2.0
"""Whether depths can be metres."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_LEAST, _LARGEST = 0.05, 100.0  # metres: medians of a panorama beyond these are not believed


def unit_warning(depths: Iterable[np.ndarray | None]) -> str | None:
    """A sentence if the usual depth of panoramas is no plausible number of metres, else None.

    Args:
        depths: maps, NaN (or 0) where unknown.

    Example:
        >>> unit_warning([np.full((4, 8), 2400.0)])
        'the median depth is 2400: no metres; millimetres? (set depth_scale to 0.001, or correct the files)'
    """
    medians = []
    for depth in depths:
        if depth is None:
            continue
        known = depth[np.isfinite(depth) & (depth > 0)]
        medians += [float(np.median(known))] if known.size else []
    if not medians:
        return None
    usual = float(np.median(medians))
    if usual > _LARGEST:
        guess = "millimetres? (set depth_scale to 0.001, or correct the files)"
    elif usual < _LEAST:
        guess = "scaled to [0, 1]? (the largest depth must be known: set depth_scale)"
    else:
        return None
    return f"the median depth is {usual:.4g}: no metres; {guess}"
