# SPDX-License-Identifier: Apache-2.0
"""``vision3d export``: a network as an ONNX file or a torch.export programme."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from vision3d.cli.options import image_size, positive
from vision3d.cli.output import tell, to_json


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d export``."""
    parser = subparsers.add_parser(
        "export",
        help="a network as an ONNX file or a torch.export programme",
        description="Write a network as a file of standard operators that runs without this project.",
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", title="kinds", required=True)
    onnx = kinds.add_parser("onnx", help="ONNX file (.onnx)", description="Write a network as one ONNX file.")
    _add_options(onnx, "FILE.onnx")
    onnx.add_argument("--opset", type=positive, default=18, metavar="N", help="version of the operators (default 18)")
    torch = kinds.add_parser(
        "torch", help="torch.export programme (.pt2)", description="Write a network as a programme."
    )
    _add_options(torch, "FILE.pt2")


def _add_options(parser: argparse.ArgumentParser, file: str) -> None:
    parser.add_argument("model", metavar="MODEL", help="a network or NAME.TAG (vision3d models)")
    parser.add_argument("--out", type=Path, required=True, metavar=file, help="the file that is written")
    parser.add_argument("--weights", metavar="PATH", help="a checkpoint; otherwise the shipped weights")
    parser.add_argument("--untrained", action="store_true", help="no weights: a file to time, its answers mean nothing")
    parser.add_argument(
        "--size", type=image_size, metavar="HxW", help="size of the trace, rounded up to what the network takes"
    )
    parser.add_argument("--fixed-size", action="store_true", help="height and width of --size alone instead of any")
    parser.add_argument("--batch", type=_batch, metavar="N", help="free (default), or the only number of pairs")
    parser.add_argument("--check", action="store_true", help="run the file at three sizes and compare it with torch")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def _batch(text: str) -> int | None:
    return None if text == "free" else positive(text)


def run(arguments: argparse.Namespace) -> int:
    """Write the file, check it, and say what was found; 1 if it differs from torch."""
    from vision3d.export import check_export, export_onnx, export_torch, load_network

    source = load_network(arguments.model, arguments.weights, arguments.untrained)
    shape = {"size": arguments.size, "fixed_size": arguments.fixed_size, "batch": arguments.batch}
    start = time.perf_counter()
    if arguments.kind == "onnx":
        card = export_onnx(source, arguments.out, opset=arguments.opset, **shape)
    else:
        card = export_torch(source, arguments.out, **shape)
    seconds = time.perf_counter() - start
    size = arguments.out.stat().st_size
    batch = "any batch" if card.batch is None else f"batch {card.batch}"
    what = f"{card.model} ({card.weights}), {card.rule()}, {batch}"
    tell(f"{what}: {size / 1e6:.1f} MB, {seconds:.0f} s -> {arguments.out}")
    rows = check_export(source, arguments.out) if arguments.check else []
    if arguments.json:
        differences = [vars(row) for row in rows] if arguments.check else None
        print(to_json({"file": arguments.out, "bytes": size, "card": vars(card), "differences": differences}))
    elif rows:
        print(_table(arguments.kind, card, rows))
    failed = [row for row in rows if not row.passed]
    for row in failed:
        tell(f"vision3d: warning: {row.output} at {_shape(row)} is {row.maximum:.3g} off")
    return 1 if failed else 0


def _table(kind: str, card: Any, rows: list[Any]) -> str:
    """The differences as a Markdown table, as in docs/export.md."""
    lines = [
        "| network (weights) | kind | batch x size | output | largest difference | mean | largest value | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        figures = f"{row.maximum:.2g} | {row.mean:.2g} | {row.magnitude:.4g} | {'ok' if row.passed else 'differs'}"
        name = f"{card.model} ({card.weights})" if card.model not in card.weights else card.weights
        lines.append(f"| {name} | {kind} | {_shape(row)} | {row.output} | {figures} |")
    return "\n".join(lines)


def _shape(row: Any) -> str:
    return "{} x {}x{}".format(*row.shape)
