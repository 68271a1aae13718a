# SPDX-License-Identifier: Apache-2.0
"""``vision3d train CONFIG [--set.key=value ...] [--resume auto]``."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DESCRIPTION = "Train a network as a recipe says; see docs/training.md. Any option of the recipe can be set here."


def add_parser(subparsers: Any) -> None:
    """Add the sub-command. Its arguments are parsed in ``run``: argparse knows no open-ended names of options."""
    # No argument holds a NUL, so that none is taken for an option here, not even --help.
    parser = subparsers.add_parser("train", help="train a network from a recipe", prefix_chars="\0", add_help=False)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


def _option_parser() -> argparse.ArgumentParser:
    from vision3d.cli.main import Parser

    parser = Parser(prog="vision3d train", description=_DESCRIPTION)
    parser.add_argument("config", metavar="CONFIG", help="recipe (YAML), or a shipped one: fadnetpp/synthetic_cpu")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="key=value",
        help="override an option, also written --set.key=value: --set.trainer.max_steps=10",
    )  # fmt: skip
    parser.add_argument(
        "--resume", metavar="CHECKPOINT", help="go on from a checkpoint; auto: the run folder's last one"
    )
    return parser


def split_overrides(arguments: Sequence[str]) -> list[str]:
    """Turn each ``--set.key=value`` into ``--set key=value``."""
    result: list[str] = []
    for argument in arguments:
        result += ["--set", argument[len("--set.") :]] if argument.startswith("--set.") else [argument]
    return result


def find_recipe(name: str) -> Path:
    """The file ``name``, or the shipped recipe of that name (``covonet/synthetic_cpu``)."""
    from vision3d.resources import resource_folder

    shipped = (resource_folder("configs") / name.removeprefix("configs/")).with_suffix(".yaml")
    return shipped if not Path(name).exists() and shipped.is_file() else Path(name)


def run(arguments: argparse.Namespace) -> int:
    """Train; progress goes to stderr, and nothing to stdout."""
    options = _option_parser().parse_args(split_overrides(arguments.arguments))
    from vision3d.training.config import load_config
    from vision3d.training.runner import train

    with contextlib.suppress(ImportError):  # reported by train(); its import sets the level that is lowered here
        import lightning.pytorch  # noqa: F401
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    package = logging.getLogger("vision3d")
    if not package.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
        package.addHandler(handler)
    package.setLevel(logging.INFO)
    train(load_config(find_recipe(options.config), options.overrides), options.resume)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """``vision3d train`` with these arguments (the process's own by default); returns the exit code."""
    from vision3d.cli.main import main as command

    return command(["train", *(sys.argv[1:] if argv is None else argv)])
