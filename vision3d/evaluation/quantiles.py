# SPDX-License-Identifier: Apache-2.0
"""Quantiles and cumulative curves of errors, from counts that merge over images and processes exactly.

The bins are fixed: the single-precision floating-point numbers that share their sign, exponent and first 10 bits of the
mantissa. So a quantile is known to one part in 1024 (and to 1/1024 of the unit below that size), whatever the
errors, and merging is the addition of integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vision3d.errors import InputError

_SHIFT = 13  # bits of the mantissa that are dropped
_FIRST = int(np.float32(2.0**-10).view(np.uint32)) >> _SHIFT
_LAST = int(np.float32(2.0**20).view(np.uint32)) >> _SHIFT
BINS = _LAST - _FIRST + 1


def _edges() -> np.ndarray:
    """Lower end of each bin, and the upper end of the last: [BINS + 1]."""
    codes = (np.arange(_FIRST, _LAST + 1, dtype=np.uint32) << np.uint32(_SHIFT)).view(np.float32).astype(np.float64)
    return np.concatenate([[0.0], codes[1:], [np.inf]])


EDGES = _edges()


@dataclass
class ErrorHistogram:
    """Counts of non-negative errors in fixed bins.

    Attributes:
        counts: [BINS] int64; bin 0 holds errors below about 1/1024, the last one those above 2^20.
    """

    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))

    def update(self, errors: np.ndarray) -> None:
        """Add errors (any shape, pixels or degrees; NaN is left out).

        Raises:
            InputError: a negative error.
        """
        values = np.ravel(errors).astype(np.float32)
        values = values[~np.isnan(values)]
        if values.size and values.min() < 0:
            raise InputError(f"errors must not be negative, got {values.min()}: pass absolute values")
        codes = (np.abs(values).view(np.uint32) >> np.uint32(_SHIFT)).astype(np.int64)
        self.counts += np.bincount(np.clip(codes, _FIRST, _LAST) - _FIRST, minlength=BINS)

    def merge(self, other: ErrorHistogram) -> ErrorHistogram:
        """The counts of both."""
        return ErrorHistogram(self.counts + other.counts)

    @property
    def total(self) -> int:
        """Number of errors."""
        return int(self.counts.sum())

    def quantile(self, percent: float) -> float:
        """The error that ``percent`` of all do not exceed, to one part in 1024; NaN if there is none.

        As NumPy's default, linear between the two nearest errors; within its bin the errors are taken as evenly spread.

        Raises:
            InputError: ``percent`` is not in 0 to 100.
        """
        if not 0 <= percent <= 100:
            raise InputError(f"a quantile lies in 0 to 100 percent, got {percent}")
        if not self.total:
            return float("nan")
        rank = percent / 100 * (self.total - 1)
        low = int(rank)
        share = rank - low
        lower = self._ordered(low)
        return lower if share == 0 else lower + share * (self._ordered(low + 1) - lower)

    def _ordered(self, place: int) -> float:
        """The error at a place (from 0) of the sorted errors."""
        below = np.cumsum(self.counts)
        index = int(np.searchsorted(below, place, side="right"))
        count = int(self.counts[index])
        low, high = EDGES[index], min(EDGES[index + 1], 2.0**21)
        share = (place - (int(below[index]) - count) + 0.5) / count
        return float(low + share * (high - low))

    def percent_below(self, limits: np.ndarray) -> np.ndarray:
        """Percentage of errors below each limit (linear within a bin); NaN if there is none."""
        if not self.total:
            return np.full(np.shape(limits), np.nan)
        ends = np.minimum(EDGES, 2.0**21)
        return np.asarray(np.interp(limits, ends, np.concatenate([[0], np.cumsum(self.counts)])) * 100 / self.total)
