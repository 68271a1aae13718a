# SPDX-License-Identifier: Apache-2.0
"""What the readers of calibration files share: rows ``key: numbers`` with file and line in every error."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vision3d.errors import CalibrationError


@dataclass(frozen=True)
class Draft:
    """What a calibration file says, before units and plausibility are checked.

    Attributes:
        left, right: [3, 3] intrinsics of the rectified views.
        baseline: in ``unit``.
        unit: ``"m"``, ``"mm"`` (usual unit of the format) or ``"exact"`` (metres, stated by the file).
        size: (width, height) or None.
        doffs: as stated by the file, or None.
    """

    left: np.ndarray
    right: np.ndarray
    baseline: float
    unit: str = "m"
    size: tuple[int, int] | None = None
    doffs: float | None = None


def numbers(path: Path, line: int, text: str) -> list[float]:
    """The finite numbers of a row; brackets, commas and semicolons separate like blanks.

    Raises:
        CalibrationError: a word is no finite number; the message says file and line.
    """
    values = []
    for word in re.sub(r"[\[\],;]", " ", text).split():
        try:
            value = float(word)
        except ValueError as error:
            raise CalibrationError(
                f"{path}: '{word}' is not a number ({path}, line {line}); correct the row"
            ) from error
        if not math.isfinite(value):
            raise CalibrationError(f"{path}: {word} is not a finite number ({path}, line {line}); correct the row")
        values.append(value)
    return values


class Lines:
    """The rows ``key<separator>numbers`` of a text file; rows whose key is never asked for may hold anything."""

    def __init__(self, path: Path, text: str, separator: str) -> None:
        self.path = path
        self._rows: dict[str, tuple[int, str]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            key, found, value = line.partition(separator)
            if found and key.strip():
                self._rows[key.strip()] = (number, value)

    def has(self, key: str) -> bool:
        """Whether the file has the row."""
        return key in self._rows

    def where(self, key: str) -> str:
        """``file, line N`` of a row."""
        return f"{self.path}, line {self._rows[key][0]}"

    def values(self, key: str, count: int) -> list[float]:
        """The ``count`` numbers of a row.

        Raises:
            CalibrationError: no such row, another count, or no numbers.
        """
        if key not in self._rows:
            raise CalibrationError(f"{self.path}: the row '{key}' is missing; add it or give the complete file")
        line, text = self._rows[key]
        values = numbers(self.path, line, text)
        if len(values) != count:
            raise CalibrationError(
                f"{self.path}: the {key} row has {len(values)} numbers, {count} expected ({self.path}, line {line})"
            )
        return values

    def matrix(self, key: str, rows: int, columns: int) -> np.ndarray:
        """A row as a [rows, columns] float64 matrix (row-major)."""
        return np.array(self.values(key, rows * columns)).reshape(rows, columns)
