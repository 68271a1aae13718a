# SPDX-License-Identifier: Apache-2.0
"""Exported files as modules with the calls of the networks, so that the whole pipeline takes them unchanged."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vision3d.errors import FileFormatError, InputError
from vision3d.export.card import CARD_KEY, ExportCard, parse_card
from vision3d.export.files import SUFFIXES, existing_file, read_card, require_packages
from vision3d.export.networks import nominal_camera
from vision3d.models.normals.common import IRS_FOCAL_LENGTH
from vision3d.registry import TASKS
from vision3d.types import DepthOutput, StereoOutput

Runner = Callable[[dict[str, Tensor]], list[Tensor]]


class ExportedModel(nn.Module):
    """What all exported networks share. They run on the CPU, in float32, with as many threads as torch.

    Args:
        card: of the file.
        run: gives the outputs, in the order of the card, for the inputs by name.
    """

    def __init__(self, card: ExportCard, run: Runner) -> None:
        super().__init__()
        self.card, self._run = card, run
        self.name = card.model
        self.size_multiple, self.max_disparity = card.size_multiple, card.max_disparity
        self.bytes_per_pixel = card.bytes_per_pixel

    def _answers(self, **inputs: Tensor) -> dict[str, Tensor]:
        first = next(iter(inputs.values()))
        if first.dim() != 4 or first.shape[1] != 3:
            raise InputError(f"images must be [B, 3, H, W], got {list(first.shape)}")
        batch, _, height, width = first.shape
        if not self.card.takes(height, width):
            raise InputError(
                f"the exported {self.card.model} takes images of {self.card.rule()}, the padded ones are "
                f"{height}x{width}: change their size (--scale S, or scale=S), or export it again with another --size"
            )
        if self.card.batch not in (None, batch):
            raise InputError(
                f"the exported {self.card.model} takes {self.card.batch} at a time, not {batch}: export it again with "
                "--batch free"
            )
        plain = {name: value.detach().to("cpu", torch.float32) for name, value in inputs.items()}
        found = [value.to(first.device) for value in self._run(plain)]
        return dict(zip(self.card.outputs, found, strict=True))


class ExportedStereo(ExportedModel):
    """Called as ``model(left, right)``."""

    def forward(self, left: Tensor, right: Tensor) -> StereoOutput:
        """Disparity of the left view; arguments as of the network."""
        answers = self._answers(left=left, right=right)
        return StereoOutput(answers["disparity"], [answers["disparity"]], answers.get("confidence"))


class ExportedNormals(ExportedModel):
    """Called as ``model(left, right, intrinsics, doffs)``."""

    fx: float = IRS_FOCAL_LENGTH
    fy: float = IRS_FOCAL_LENGTH

    def __init__(self, card: ExportCard, run: Runner) -> None:
        super().__init__(card, run)
        self.stage_one_name = "" if card.max_disparity is None else "exported"

    def set_focal_length(self, fx: float, fy: float) -> None:
        """Set the focal lengths, in pixels of the input, for calls without intrinsics."""
        self.fx, self.fy = float(fx), float(fy)

    def forward(
        self, left: Tensor, right: Tensor, intrinsics: Tensor | None = None, doffs: Tensor | None = None
    ) -> StereoOutput:
        """Disparity and normals of the left view; arguments as of the network."""
        batch, _, height, width = left.shape
        answers = self._answers(
            left=left,
            right=right,
            intrinsics=nominal_camera(batch, height, width, self.fx, self.fy) if intrinsics is None else intrinsics,
            doffs=torch.zeros(batch) if doffs is None else doffs,
        )
        return StereoOutput(answers["disparity"], [answers["disparity"]], normals=answers["normals"])


class ExportedPanorama(ExportedModel):
    """Called as ``model(image)``."""

    def __init__(self, card: ExportCard, run: Runner) -> None:
        super().__init__(card, run)
        self.fixed_height = None if card.fixed_size is None else card.fixed_size[0]

    def forward(self, image: Tensor) -> DepthOutput:
        """Distance along each ray; arguments as of the network."""
        answers = self._answers(image=image)
        return DepthOutput(answers["depth"], faces=answers.get("faces"))


def load_exported(path: str | os.PathLike[str], tasks: Container[str] = TASKS) -> ExportedModel:
    """An exported file (``.onnx`` or ``.pt2``) as a module for ``predict_stereo`` or ``predict_panorama``.

    Args:
        path: the file.
        tasks: those that the caller can use.

    Raises:
        FileFormatError: no such file, a damaged one, or one of another version. MissingExtraError: onnxruntime is
        missing. InputError: a network of another task.
    """
    file = existing_file(path)
    card, run = _load_onnx(file) if file.suffix == SUFFIXES["onnx"] else _load_torch(file)
    if card.task not in tasks:
        command = "panorama" if card.task == "panorama" else "predict"
        raise InputError(f"{path}: {card.model} is a network of the task '{card.task}': use 'vision3d {command}'")
    kinds = {"stereo": ExportedStereo, "normals": ExportedNormals, "panorama": ExportedPanorama}
    return kinds[card.task](card, run).eval()


def _load_onnx(file: Path) -> tuple[ExportCard, Runner]:
    (runtime,) = require_packages("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors alone
    try:
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's error classes have no common base
        raise FileFormatError(f"{file}: not an ONNX file that runs here: export it again") from error
    card = parse_card(session.get_modelmeta().custom_metadata_map.get(CARD_KEY), file)
    taken = {item.name for item in session.get_inputs()}

    def run(inputs: dict[str, Tensor]) -> list[Tensor]:
        feed = {name: value.contiguous().numpy() for name, value in inputs.items() if name in taken}
        return [torch.from_numpy(value) for value in session.run(list(card.outputs), feed)]

    return card, run


@contextlib.contextmanager
def _no_pickled_code() -> Iterator[None]:
    """torch.export.load hands parts of a file to torch.load and trusts them; this forbids what they could run."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _load_torch(file: Path) -> tuple[ExportCard, Runner]:
    card = read_card(file)
    try:
        with _no_pickled_code():
            module: Any = torch.export.load(file).module()
    except Exception as error:  # whatever a damaged archive raises
        raise FileFormatError(f"{file}: not a torch.export programme that this torch reads: export it again") from error

    def run(inputs: dict[str, Tensor]) -> list[Tensor]:
        with torch.no_grad():
            return list(module(*inputs.values()))

    return card, run
