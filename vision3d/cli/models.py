# SPDX-License-Identifier: Apache-2.0
"""``vision3d models``: the table of the networks, or the card of one."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vision3d.cli.output import console, to_json

if TYPE_CHECKING:
    from vision3d.zoo import ModelCard, WeightsCard


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d models``."""
    parser = subparsers.add_parser(
        "models", help="list the networks, or show the card of one", description="List the networks, or show one card."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a network, e.g. fadnetpp_slight")
    parser.add_argument("--task", help="only the networks of this task: stereo, normals, mvs, panorama, nerf")
    parser.add_argument("--pretrained", action="store_true", help="only the networks with shipped weights")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table or the card."""
    from vision3d.zoo import list_models, load_card

    if arguments.name:
        card = load_card(arguments.name)
        print(to_json(asdict(card))) if arguments.json else _print_card(card)
        return 0
    names = list_models(task=arguments.task, pretrained=True if arguments.pretrained else None)
    cards = [load_card(name) for name in names]
    if arguments.json:
        print(to_json({"models": [asdict(card) for card in cards]}))
    else:
        _print_table(cards)
    return 0


def _print_table(cards: list[ModelCard]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(caption="GMAC: one pair of 576 x 960 pixels. 'vision3d models NAME' shows the card.")
    for column in ("name", "task", "parameters", "GMAC", "weights", "licence", "summary"):
        right = column in ("parameters", "GMAC")
        keep = column in ("name", "parameters")
        table.add_column(column, justify="right" if right else "left", no_wrap=keep)
    for card in cards:
        cells = (
            card.name,
            card.task,
            f"{card.parameters / 1e6:.2f} M",
            _number(card.gmac_576x960),
            ", ".join(weights.tag for weights in card.weights) or "-",
            card.license,
            card.summary,
        )
        table.add_row(*(escape(cell) for cell in cells))
    console().print(table)


def _print_card(card: ModelCard) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console()
    out.print(f"[bold]{escape(card.name)}[/bold]  {escape(card.title)} ({card.task})")
    out.print(escape(card.summary))
    table = Table(show_header=False, box=None, pad_edge=False)
    for label, text in _fields(card):
        table.add_row(f"[bold]{label}[/bold]", escape(text))
    out.print(table)
    for result in card.published:
        out.print(f"published: {escape(_pairs(result))}")
    if not card.weights:
        out.print("weights: none shipped (pretrained=PATH takes a checkpoint of ours or of the authors)")
    for weights in card.weights:
        for line in _weights_lines(weights):
            out.print(escape(line))


def _fields(card: ModelCard) -> list[tuple[str, str]]:
    return [
        ("paper", _pairs(card.paper) or "-"),
        ("licence of the code", card.license),
        ("parameters", f"{card.parameters:,}"),
        ("GMAC at 576 x 960", _number(card.gmac_576x960)),
        ("normalisation of RGB in [0, 1]", _pairs(card.normalization)),
        ("image size, multiple of", f"{card.size_multiple} (other sizes are padded)"),
        ("disparity range", "no limit" if card.max_disparity is None else f"0 to {card.max_disparity} pixels"),
        ("official checkpoint", card.official_checkpoint or "-"),
    ]


def _weights_lines(weights: WeightsCard) -> list[str]:
    default = " (default)" if weights.default else ""
    use = "commercial use allowed" if weights.commercial_use else "no commercial use"
    lines = [
        f"weights {weights.name}{default}: licence {weights.license}, {use}",
        f"  file {weights.file.name}, SHA-256 {weights.sha256}, recipe {weights.recipe}",
    ]
    if weights.training:
        lines.append(f"  trained: {weights.training}")
    return lines + [f"  measured: {_pairs(result)}" for result in weights.results]


def _pairs(mapping: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in mapping.items())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
