# SPDX-License-Identifier: Apache-2.0
"""``vision3d benchmark rotation``: do the answers of panorama networks rotate along with the camera?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vision3d.cli.options import positive
from vision3d.cli.output import console, to_json


def add_rotation(kinds: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d benchmark rotation``."""
    parser = kinds.add_parser(
        "rotation",
        help="panorama networks under rotations of the camera",
        description="Rotates panoramas, predicts them, rotates the answers back and compares; also at the poles and "
        "across the seam.",
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME[=WEIGHTS]",
        help="a network, with a checkpoint or its shipped weights; repeatable (default: spheredepth_tiny and "
        "panoramadepth_tiny)",
    )
    parser.add_argument("--dataset", default="synthetic_panoramas", metavar="NAME", help="default synthetic_panoramas")
    parser.add_argument("--root", type=Path, metavar="DIR", help="its folder (default: as configured)")
    parser.add_argument("--split", default="all", help="of the data set (default: all)")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the reader")
    parser.add_argument("--limit", type=positive, default=8, metavar="N", help="panoramas (default 8)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: CUDA where there is one)")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the table to a Markdown file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_rotation)


def run_rotation(arguments: argparse.Namespace) -> int:
    """Measure and print the table or one JSON object."""
    from vision3d.cli.evaluate import reader_options
    from vision3d.evaluation import panorama_rotations as rotations
    from vision3d.evaluation.panoramas import open_panoramas, predict_sample
    from vision3d.panorama import load_panorama_model

    options = reader_options(arguments.option)
    if arguments.dataset == "synthetic_panoramas":
        options = {"scenes": arguments.limit, "seed": 79_900_000, **options}
    data, indices = open_panoramas(arguments.dataset, arguments.root, arguments.split, options, (), arguments.limit)
    rows: list[rotations.RotationRow] = []
    steps: dict[str, float] = {}
    samples = [data[index] for index in indices]
    models = [text.partition("=") for text in arguments.model or ["spheredepth_tiny", "panoramadepth_tiny"]]
    names = [name for name, _, _ in models]
    with console(stderr=True).status("loading") as status:
        for name, mark, weights in models:
            label = name if names.count(name) == 1 else name + mark + weights
            network, _, home = load_panorama_model(name, weights or None, arguments.device)
            found, steps[label] = rotations.measure_rotations(
                lambda sample, network=network, home=home: predict_sample(network, sample, home),  # type: ignore[misc]
                samples,
                label,
                progress=status.update,
            )
            rows += found
    if arguments.out is not None:
        rotations.write_rotation_table(arguments.out, rows, steps)
    if arguments.json:
        print(to_json(rotations.rotation_report(rows, steps)))
    else:
        print(rotations.rotation_table(rows, steps), end="")
    return 0
