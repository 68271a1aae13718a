# SPDX-License-Identifier: Apache-2.0
"""Working through large maps in blocks of rows, so that intermediate results stay small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_BLOCK_PIXELS = 1 << 18


class RowBlock(NamedTuple):
    """Rows to be answered, and the rows that are needed for it.

    Attributes:
        rows: the rows of the map that the block answers.
        source: ``rows`` and up to ``halo`` rows above and below, as far as the map reaches.
        inner: ``rows`` counted from the first row of ``source``.
    """

    rows: slice
    source: slice
    inner: slice


def row_blocks(height: int, width: int, halo: int = 0, pixels: int = _BLOCK_PIXELS) -> Iterator[RowBlock]:
    """Split a map of ``height`` x ``width`` into blocks of about ``pixels`` pixels.

    Example:
        >>> [(block.rows.start, block.source.start) for block in row_blocks(5, 10, halo=1, pixels=20)]
        [(0, 0), (2, 1), (4, 3)]
    """
    step = max(1, pixels // max(1, width))
    for start in range(0, height, step):
        stop = min(height, start + step)
        first = max(0, start - halo)
        yield RowBlock(
            rows=slice(start, stop),
            source=slice(first, min(height, stop + halo)),
            inner=slice(start - first, stop - first),
        )
