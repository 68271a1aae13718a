# SPDX-License-Identifier: Apache-2.0
"""``vision3d data list`` and ``vision3d data verify``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vision3d.cli.output import console, to_json

if TYPE_CHECKING:
    from vision3d.datasets.cards import DatasetCard


def add_list(actions: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d data list``."""
    parser = actions.add_parser(
        "list", help="list the data sets, or show the card of one", description="List the data sets, or show one card."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a data set, e.g. kitti2015")
    parser.add_argument("--task", help="only those of this task: stereo, normals, mvs, panorama, nerf")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_list)


def add_verify(actions: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d data verify``."""
    parser = actions.add_parser(
        "verify",
        help="check every pair of a stereo data set",
        description="Read every pair of a data set and say which are wrong. Exit code 1 if there are any.",
    )
    parser.add_argument("name", metavar="NAME", help="a stereo data set, e.g. irs")
    parser.add_argument("--root", type=Path, metavar="DIR", help="its folder (default: as configured)")
    parser.add_argument("--split", default="all", help="default: all pairs with truth")
    parser.add_argument("--size", type=image_size, metavar="HxW", help="the size that every pair must have")
    parser.add_argument("--skip-file", type=Path, metavar="FILE", help="write the wrong pairs as a skip list")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_verify)


def image_size(text: str) -> tuple[int, int]:
    """``HxW`` as (width, height)."""
    height, _, width = text.lower().partition("x")
    if not (height.isdigit() and width.isdigit()):
        raise argparse.ArgumentTypeError(f"must be HEIGHTxWIDTH, e.g. 540x960, got '{text}'")
    return int(width), int(height)


def run_list(arguments: argparse.Namespace) -> int:
    """Print the table or the card."""
    from vision3d.datasets.cards import load_dataset_card
    from vision3d.datasets.registry import list_datasets

    if arguments.name:
        card = load_dataset_card(arguments.name)
        print(to_json(asdict(card))) if arguments.json else _print_card(card)
        return 0
    cards = [load_dataset_card(name) for name in list_datasets(arguments.task)]
    if arguments.json:
        print(to_json({"datasets": [asdict(card) for card in cards]}))
    else:
        _print_table(cards)
    return 0


def run_verify(arguments: argparse.Namespace) -> int:
    """Check the pairs and print what is wrong."""
    import warnings

    from rich.progress import Progress

    from vision3d.datasets.pairs import StereoPairs
    from vision3d.datasets.registry import find_dataset, open_dataset
    from vision3d.datasets.verify import verify_pairs, write_skip_file
    from vision3d.errors import InputError

    reader = find_dataset(arguments.name).load()
    if not (isinstance(reader, type) and issubclass(reader, StereoPairs)):
        raise InputError(f"{arguments.name}: only stereo data sets in folders can be verified")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is skipped is reported below
        data = cast("StereoPairs", open_dataset(arguments.name, arguments.root, arguments.split, on_error="skip"))
        with Progress(console=console(stderr=True), transient=True) as bar:
            task = bar.add_task("pairs", total=len(data))
            problems = verify_pairs(data, arguments.size, lambda number, total, scene: bar.update(task, advance=1))
    if arguments.skip_file is not None:
        write_skip_file(arguments.skip_file, problems)
    if arguments.json:
        rows = [asdict(item) for item in problems]
        print(to_json({"dataset": arguments.name, "pairs": len(data) + len(data.skipped), "problems": rows}))
    else:
        for item in problems:
            print(f"{item.scene}: {item.problem}")
        print(f"{len(data) + len(data.skipped)} pairs, {len(problems)} wrong")
    return 1 if problems else 0


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
