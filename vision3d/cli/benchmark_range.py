# SPDX-License-Identifier: Apache-2.0
"""``vision3d benchmark depth-range``: depth errors of multi-view stereo as the given depth range is widened."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vision3d.cli.options import image_size, positive
from vision3d.cli.output import tell, to_json


def add_range(kinds: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d benchmark depth-range``."""
    parser = kinds.add_parser(
        "depth-range",
        help="depth errors of multi-view stereo as the given depth range is widened, beside a plane sweep",
        description="Depth errors of a multi-view network as the given depth range is widened, beside plane sweeps "
        "over the same features; prints a Markdown table.",
    )
    parser.add_argument("--model", default="dispmvs_tiny", metavar="NAME", help="default: dispmvs_tiny")
    parser.add_argument("--weights", metavar="PATH", help="a checkpoint; otherwise the shipped weights")
    parser.add_argument("--pool", type=Path, action="append", default=[], metavar="DIR", help="multi-view pool")
    parser.add_argument("--folder", type=Path, action="append", default=[], metavar="DIR", help="scene with depth maps")
    parser.add_argument("--samples", type=positive, default=8, metavar="N", help="of each pool or scene (default 8)")
    parser.add_argument("--views", type=positive, default=5, metavar="N", help="default 5")
    parser.add_argument("--size", type=image_size, metavar="HxW", help="of the images (default: as they are)")
    parser.add_argument("--factors", type=float, nargs="+", default=[1, 2, 5, 20], metavar="F", help="default 1 2 5 20")
    parser.add_argument("--planes", type=positive, nargs="+", default=[64], metavar="N", help="of the sweeps")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_range)


def run_range(arguments: argparse.Namespace) -> int:
    """Measure and print the table or one JSON object."""
    from dataclasses import asdict

    from vision3d.benchmark.depth_range import PROTOCOL, folder_samples, markdown_table, measure_ranges
    from vision3d.datasets.multiview_pool import MultiViewPool
    from vision3d.errors import InputError
    from vision3d.models.mvs.dispmvs import DispMVS
    from vision3d.multiview.pipeline import load_mvs_model

    if not arguments.pool and not arguments.folder:
        raise InputError("name the data: --pool DIR (multi-view pool) or --folder DIR (scene with depth maps)")
    network, name, _ = load_mvs_model(arguments.model, arguments.weights, "cpu")
    if not isinstance(network, DispMVS):
        raise InputError(f"{name}: the plane sweep needs the features of a DispMVS network")
    size = None if arguments.size is None else (arguments.size[1], arguments.size[0])
    sets: list[tuple[str, Any]] = []
    for folder in arguments.pool:
        data = MultiViewPool(folder, views=arguments.views, size=size)
        sets.append((folder.name, [data[index] for index in range(min(arguments.samples, len(data)))]))
    for folder in arguments.folder:
        samples = folder_samples(folder, arguments.size, arguments.views, network.half_pixel_intrinsics)
        sets.append((folder.name, samples[: arguments.samples]))
    rows = []
    for title, samples in sets:
        rows += measure_ranges(
            title,
            samples,
            network.eval(),
            factors=arguments.factors,
            planes=arguments.planes,
            progress=tell,
        )
    if arguments.json:
        print(to_json({"model": name, "protocol": PROTOCOL, "rows": [asdict(row) for row in rows]}))
    else:
        print(markdown_table(rows))
    return 0
