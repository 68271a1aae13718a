# SPDX-License-Identifier: Apache-2.0
"""``vision3d data list``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vision3d.cli.output import console, to_json

if TYPE_CHECKING:
    from vision3d.datasets.cards import DatasetCard


def add_list(actions: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d data list``."""
    parser = actions.add_parser(
        "list", help="list the data sets, or show the card of one", description="List the data sets, or show one card."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a data set (kitti2015) or a family (middlebury)")
    parser.add_argument("--task", help="only those of this task: stereo, normals, mvs, panorama, nerf")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_list)


def run_list(arguments: argparse.Namespace) -> int:
    """Print the table or the card."""
    from vision3d.datasets.cards import list_family, load_dataset_card
    from vision3d.datasets.registry import list_datasets

    known = list_datasets(arguments.task)
    family = (
        [] if arguments.name in list_datasets() else [name for name in list_family(arguments.name) if name in known]
    )
    if arguments.name and not family:
        card = load_dataset_card(arguments.name)
        print(to_json(asdict(card))) if arguments.json else _print_card(card)
        return 0
    cards = [load_dataset_card(name) for name in family or known]
    if arguments.json:
        print(to_json({"datasets": [asdict(card) for card in cards]}))
    else:
        _print_table(cards)
    return 0


def _print_table(cards: list[DatasetCard]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(caption="'vision3d data list NAME' shows the card: folders, splits, encoding, protocol.")
    for column in ("name", "task", "title", "pairs", "splits", "licence"):
        table.add_column(column, no_wrap=column == "name")
    for card in cards:
        cells = (card.name, card.task, card.title, card.pairs, ", ".join(card.splits) or "-", card.license)
        table.add_row(*(escape(cell) for cell in cells))
    console().print(table)


def _print_card(card: DatasetCard) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console()
    out.print(f"[bold]{escape(card.name)}[/bold]  {escape(card.title)} ({card.task})")
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = [
        ("from", card.url or "-"),
        ("licence", card.license),
        ("cite", card.citation or "-"),
        ("pairs", card.pairs),
        ("folders", card.tree.strip()),
        ("splits", "\n".join(f"{key}: {value}" for key, value in card.splits.items()) or "none"),
        ("encoding", card.encoding),
        ("protocol", card.protocol),
        ("options", "\n".join(f"{key}: {value}" for key, value in card.options.items()) or "none"),
        ("known bad files", "\n".join(card.known_bad) or "none known"),
        ("assumptions", "\n".join(card.assumptions) or "none"),
    ]
    for label, text in rows:
        table.add_row(f"[bold]{label}[/bold]", escape(text))
    out.print(table)
