# SPDX-License-Identifier: Apache-2.0
"""Writing a network as an ONNX file or a torch.export programme, and reading the card of such a file."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import vision3d
from vision3d.errors import FileFormatError, InputError, MissingExtraError, OutputError
from vision3d.export.card import CARD_KEY, ExportCard, parse_card
from vision3d.export.networks import (
    Source,
    example_inputs,
    free_dimensions,
    plain_outputs,
    smallest_size,
    source_of,
    trace_size,
)
from vision3d.inference import bytes_per_pixel, max_disparity
from vision3d.io.files import atomic_write
from vision3d.zoo import load_card

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
OPSETS = range(18, 24)  # what torch's exporter and its version converter know
DEFAULT_OPSET = 18
_EXTRA_FILE = f"{CARD_KEY}.json"


def export_onnx(
    model: str | nn.Module | Source,
    path: str | os.PathLike[str],
    *,
    size: tuple[int, int] | None = None,
    fixed_size: bool = False,
    batch: int | None = None,
    opset: int = DEFAULT_OPSET,
    optimize: bool = True,
) -> ExportCard:
    """Write a network as one ONNX file of standard operators.

    Args:
        model: a name (shipped weights), a network of ``create_model``, or what ``load_network`` returns.
        path: ends in ``.onnx``.
        size: (height, width) to trace with, rounded up to the network's multiple; None: a small one.
        fixed_size: keep that size instead of free height and width. Always so for networks on a spherical mesh.
        batch: the only batch size; None: free.
        opset: version of the operators, 18 to 23.
        optimize: fold constants and simplify the graph (a few times slower).

    Returns:
        The card that the file carries.

    Raises:
        MissingExtraError: onnx or onnxscript is missing. OutputError: ``path`` cannot be written.
        InputError: a network that cannot be exported, a wrong size, or an operator that ``opset`` lacks.
        UnknownNameError, WeightsError: see ``create_model``.
    """
    require_packages("onnx", "onnxscript")
    if opset not in OPSETS:
        raise InputError(f"opset {opset} is not offered: choose {OPSETS[0]} to {OPSETS[-1]}")
    with _output(path, "onnx") as temporary:
        programme, card = _trace(model, size, fixed_size, batch)
        with _quiet():
            exported = torch.onnx.export(
                programme,
                (),
                dynamo=True,
                input_names=list(card.inputs),
                output_names=list(card.outputs),
                opset_version=opset,
                optimize=optimize,
                verbose=False,
            )
        written = exported.model.opset_imports.get("", 0)  # type: ignore[union-attr]
        if written != opset:
            raise InputError(f"{card.model} cannot be converted to opset {opset}: leave --opset at {written}")
        exported.model.metadata_props[CARD_KEY] = card.to_json()  # type: ignore[union-attr]
        exported.model.producer_name = "vision3d"  # type: ignore[union-attr]
        exported.model.producer_version = vision3d.__version__  # type: ignore[union-attr]
        exported.save(temporary, external_data=False)  # type: ignore[union-attr]
    return card


def export_torch(
    model: str | nn.Module | Source,
    path: str | os.PathLike[str],
    *,
    size: tuple[int, int] | None = None,
    fixed_size: bool = False,
    batch: int | None = None,
) -> ExportCard:
    """Write a network as a torch.export programme, which ``torch.export.load`` opens; arguments as ``export_onnx``.

    Raises:
        See ``export_onnx``; ``path`` ends in ``.pt2``.
    """
    with _output(path, "torch") as temporary:
        programme, card = _trace(model, size, fixed_size, batch)
        with _quiet():
            torch.export.save(programme, temporary, extra_files={_EXTRA_FILE: card.to_json()})
    return card


def read_card(path: str | os.PathLike[str]) -> ExportCard:
    """The card of an exported file; nothing of the file is run.

    Raises:
        FileFormatError: no such file, a damaged one, or one of another format. MissingExtraError: onnx is missing.
    """
    file = existing_file(path)
    if file.suffix == SUFFIXES["onnx"]:
        (onnx,) = require_packages("onnx")
        try:
            proto = onnx.load(str(file), load_external_data=False)
        except Exception as error:  # protobuf's own error class is not public
            raise FileFormatError(f"{path}: not a whole ONNX file: export it again") from error
        return parse_card({item.key: item.value for item in proto.metadata_props}.get(CARD_KEY), path)
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if name.endswith(f"extra/{_EXTRA_FILE}")]
            return parse_card(archive.read(names[0]).decode() if names else None, path)
    except (zipfile.BadZipFile, UnicodeDecodeError, OSError) as error:
        raise FileFormatError(f"{path}: not a whole torch.export programme: export it again") from error


def existing_file(path: str | os.PathLike[str]) -> Path:
    """``path``; FileFormatError unless it is a file that ends in .onnx or .pt2."""
    file = Path(path)
    if file.suffix not in SUFFIXES.values():
        raise FileFormatError(f"{path}: an exported file ends in .onnx or .pt2: make one with 'vision3d export'")
    if not file.is_file():
        raise FileFormatError(f"{path}: no such file: check the path, or make it with 'vision3d export'")
    return file


def require_packages(*names: str) -> list[Any]:
    """Import packages of the extra ``export``.

    Raises:
        MissingExtraError: one is not installed.
    """
    modules = []
    for name in names:
        try:
            modules.append(importlib.import_module(name))
        except ImportError as error:
            raise MissingExtraError(name, "export", "ONNX") from error
    return modules


@contextlib.contextmanager
def _output(path: str | os.PathLike[str], kind: str) -> Iterator[Path]:
    """A temporary file that becomes ``path``; a place that cannot be written shows before the work."""
    if Path(path).suffix != SUFFIXES[kind]:
        raise InputError(f"{path}: the name of the file must end in {SUFFIXES[kind]}")
    with atomic_write(path) as temporary:
        if not os.access(temporary.parent, os.W_OK | os.X_OK):
            raise OutputError(f"{path}: the folder {temporary.parent} is not writable: choose another place")
        temporary.touch()
        yield temporary


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' remarks about packages that are not needed and about their own deprecations."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _trace(
    model: str | nn.Module | Source, size: tuple[int, int] | None, fixed_size: bool, batch: int | None
) -> tuple[Any, ExportCard]:
    """The programme and its card."""
    if batch is not None and batch < 1:
        raise InputError(f"batch is {batch}: pass a positive number, or leave it free")
    source = model if isinstance(model, Source) else source_of(model)
    shape = trace_size(source, size)
    fixed = fixed_size or source.on_mesh
    network = plain_outputs(source).eval()
    inputs = example_inputs(source.task, 2 if batch is None else batch, *shape)
    outputs = network.output_names(inputs)
    shapes = free_dimensions(source, batch is None, not fixed)
    try:
        with torch.no_grad(), _quiet():
            programme = torch.export.export(network, inputs, dynamic_shapes=shapes, strict=False)
    except torch._dynamo.exc.UserError as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{source.name} cannot be traced with these free sizes ({reason}): try --fixed-size and --batch 1"
        ) from error
    return programme, _card(source, network.inputs, outputs, shape, fixed, batch)


def _card(
    source: Source,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    shape: tuple[int, int],
    fixed: bool,
    batch: int | None,
) -> ExportCard:
    reach = getattr(source.network, "max_disparity", None)
    return ExportCard(
        model=source.name,
        task=source.task,
        weights=source.weights,
        license=source.license,
        inputs=inputs,
        outputs=outputs,
        normalization=load_card(source.name).normalization,
        size_multiple=source.multiple,
        minimum_size=shape if fixed else smallest_size(source),
        fixed_size=shape if fixed else None,
        batch=batch,
        max_disparity=None if reach is None else max_disparity(source.network),
        bytes_per_pixel=bytes_per_pixel(source.network),
        version=vision3d.__version__,
    )
