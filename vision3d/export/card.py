# SPDX-License-Identifier: Apache-2.0
"""The card inside an exported file: what a program must know to feed the graph and to read its answers."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from vision3d.errors import FileFormatError

FORMAT_VERSION = 1  # of the card, the inputs and the outputs; raised when a reader of the old one would misread files
CARD_KEY = "vision3d"  # of the ONNX metadata, and ``vision3d.json`` among the extra files of a torch.export programme
_MEND = "export it again with 'vision3d export' of this version, or run it with the version that made it"


@dataclass(frozen=True)
class ExportCard:
    """What an exported file says about itself.

    Attributes:
        model: registered name of the network.
        task: ``stereo``, ``normals`` or ``panorama``.
        weights: ``name.tag`` of shipped weights, the name of a weights file, or ``untrained``.
        license: of the weights; empty where it is unknown.
        inputs, outputs: names in the order of the graph. Images are RGB in [0, 1]; a pair is rectified.
        normalization: mean and standard deviation of each channel. The graph applies them: feed plain [0, 1].
        size_multiple: height and width are multiples of it.
        minimum_size: smallest (height, width).
        fixed_size: the only (height, width), or None where both are free.
        batch: the only number of images or pairs, or None where it is free.
        max_disparity: reach of a stereo network in pixels, or None.
        bytes_per_pixel: peak memory of a pass divided by its pixels, measured on the torch network.
        precision: type of inputs, weights and outputs.
        version: of the project that wrote the file.
        format: of this card.
    """

    model: str
    task: str
    weights: str
    license: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    normalization: dict[str, list[float]]
    size_multiple: int
    minimum_size: tuple[int, int]
    fixed_size: tuple[int, int] | None
    batch: int | None
    max_disparity: int | None
    bytes_per_pixel: float
    precision: str = "float32"
    version: str = ""
    format: int = FORMAT_VERSION

    def to_json(self) -> str:
        """The card as JSON text."""
        entries = dataclasses.asdict(self)
        return json.dumps({**entries, "normalization_in_graph": True, "input_range": [0.0, 1.0]}, indent=1)

    def rule(self) -> str:
        """The sizes that the graph takes, in words."""
        if self.fixed_size is not None:
            return f"{_text(self.fixed_size)} alone"
        multiple = "" if self.size_multiple == 1 else f" in multiples of {self.size_multiple}"
        return f"{_text(self.minimum_size)} or more{multiple}"

    def takes(self, height: int, width: int) -> bool:
        """Whether the graph takes images of this size."""
        if self.fixed_size is not None:
            return (height, width) == self.fixed_size
        sides = zip((height, width), self.minimum_size, strict=True)
        return all(side >= least and side % self.size_multiple == 0 for side, least in sides)


def _text(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]} (height x width)"


def parse_card(text: str | None, source: object) -> ExportCard:
    """The card in ``text``.

    Args:
        text: JSON, or None where the file has no card.
        source: the file, for messages.

    Raises:
        FileFormatError: no card, a damaged one, or one of another format.
    """
    if not text:
        raise FileFormatError(f"{source}: carries no card of 'vision3d export': export the network with it")
    try:
        entries: dict[str, Any] = json.loads(text)
        found = int(entries["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"{source}: the card in the file is damaged: {_MEND}") from error
    if found != FORMAT_VERSION:
        writer = entries.get("version") or "unknown"
        raise FileFormatError(
            f"{source}: written by vision3d {writer} in export format {found}, this version reads format "
            f"{FORMAT_VERSION}: {_MEND}"
        )
    names = {item.name for item in dataclasses.fields(ExportCard)}
    try:
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in entries.items()
        }
        return ExportCard(**{name: value for name, value in values.items() if name in names})
    except TypeError as error:
        raise FileFormatError(f"{source}: the card in the file is incomplete ({error}): {_MEND}") from error
