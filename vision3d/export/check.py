# SPDX-License-Identifier: Apache-2.0
"""An exported file against the network that it came from, at three sizes."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import torch

from vision3d.export.card import ExportCard
from vision3d.export.networks import Source, example_inputs, plain_outputs
from vision3d.export.runtime import load_exported

# A file passes if no value is farther from torch's than this, plus the same share of the largest value.
TOLERANCES = {"disparity": 1e-2, "confidence": 1e-3, "normals": 1e-3, "depth": 1e-3, "faces": 1e-3}
_RELATIVE = 1e-4
# Share of the values that may be farther off: initial normals are those of the best of nine planes (or divide by slopes
# near 0), and where two are equally good the last bit of the disparity decides.
_UNDECIDED = {"normals": 1e-4}
PROTOCOL = (
    "smooth random texture, pairs shifted by 7 px, float32 on a CPU; largest and mean difference to the torch network "
    "over all pixels, and the largest value of the network"
)


@dataclass(frozen=True)
class Difference:
    """How far one output at one size is from that of the torch network.

    Attributes:
        output: its name.
        shape: (batch, height, width) of the images.
        maximum, mean: of the absolute difference.
        magnitude: largest absolute value of the network's output.
        beyond: share of the values that are farther off than the tolerance.
        passed: whether none is (normals: 1 in 10,000), and NaN lie where the network has them.
    """

    output: str
    shape: tuple[int, int, int]
    maximum: float
    mean: float
    magnitude: float
    beyond: float
    passed: bool


def check_export(source: Source, path: str | os.PathLike[str]) -> list[Difference]:
    """Run the file and the network on the same inputs, in three sizes (one where the size is fixed), and compare.

    Args:
        source: the network that was exported, see ``load_network``.
        path: the file.

    Raises:
        FileFormatError, MissingExtraError: see ``load_exported``.
    """
    exported = load_exported(path)
    network = plain_outputs(source)
    rows = []
    for seed, (batch, height, width) in enumerate(check_shapes(exported.card)):
        inputs = example_inputs(source.task, batch, height, width, seed)
        with torch.no_grad():
            expected = network(*inputs)
            found = exported._answers(**dict(zip(network.inputs, inputs, strict=True)))
        rows += [
            _compare(name, (batch, height, width), found[name], value)
            for name, value in zip(exported.card.outputs, expected, strict=True)
        ]
    return rows


def check_shapes(card: ExportCard) -> list[tuple[int, int, int]]:
    """(batch, height, width) that a file is checked with: three sizes with other batches where they are free."""
    batches = (1, 1, 2) if card.batch is None else (card.batch,) * 3
    if card.fixed_size is not None:
        return sorted({(batch, *card.fixed_size) for batch in batches})
    step, least, panorama = card.size_multiple, card.minimum_size[0], card.task == "panorama"
    heights = [least + steps * step for steps in (0, 1, max(2, -(-128 // step)))]
    widths = [
        2 * height if panorama else height + steps * step for height, steps in zip(heights, (0, 5, 2), strict=True)
    ]
    return list(zip(batches, heights, widths, strict=True))


def _compare(name: str, shape: tuple[int, int, int], found: torch.Tensor, expected: torch.Tensor) -> Difference:
    if found.shape != expected.shape:
        return Difference(name, shape, math.nan, math.nan, math.nan, 1.0, False)
    same_gaps = bool((torch.isnan(found) == torch.isnan(expected)).all())
    difference = torch.nan_to_num((found - expected).abs().double(), nan=0.0)
    magnitude = float(torch.nan_to_num(expected.abs(), nan=0.0).max())
    beyond = float((difference > TOLERANCES[name] + _RELATIVE * magnitude).double().mean())
    passed = same_gaps and beyond <= _UNDECIDED.get(name, 0.0)
    return Difference(name, shape, float(difference.max()), float(difference.mean()), magnitude, beyond, passed)
