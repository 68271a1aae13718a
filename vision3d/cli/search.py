# SPDX-License-Identifier: Apache-2.0
"""``vision3d search easnet``: the sub-network that keeps a latency, and the study of rankers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vision3d.cli.benchmark_easnet import add_conditions, conditions
from vision3d.cli.options import image_size, positive
from vision3d.cli.output import console, tell, to_json
from vision3d.search import RANKERS

_LIMITS = ("latency_ms", "gmac", "table", "eval_device")
_MEASURING = ("rank", "pairs", "calibration_pairs", "calibration_batch", "crop", "samples", "finalists", "i1_steps")
_SAME_NAMES = ("weights", "warp_mode", "data", "calibration_data", "out", "seed", *_LIMITS, *_MEASURING)


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d search``."""
    parser = subparsers.add_parser("search", help="search a sub-network of a supernet for a device")
    kinds = parser.add_subparsers(dest="kind", metavar="FAMILY", required=True)
    easnet = kinds.add_parser(
        "easnet",
        help="the EASNet that keeps a limit of latency",
        description="Search the sub-network of least error within a latency, and write its setting and weights.",
    )
    easnet.add_argument("--weights", required=True, metavar="FILE", help="the trained supernet, or its weight tag")
    easnet.add_argument("--warp-mode", choices=["official", "exact"], default="official", help="as it was trained")
    easnet.add_argument("--data", required=True, help="pairs to validate with: a pool or folder, NAME, or NAME=FOLDER")
    easnet.add_argument("--calibration-data", metavar="DATA", help="pairs for the statistics (default: the last ones)")
    easnet.add_argument("--out", type=Path, default=Path("easnet_search"), metavar="DIR", help="default: easnet_search")
    _add_limits(easnet)
    _add_measuring(easnet)
    easnet.add_argument("--json", action="store_true", help="print one JSON object")
    easnet.set_defaults(run=run)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--latency-ms", type=float, metavar="X", help="largest latency of a pair")
    parser.add_argument("--gmac", type=float, metavar="X", help="instead: most multiply-accumulates, in 10^9")
    parser.add_argument("--study", type=positive, metavar="N", help="instead: judge the rankers on N networks")
    parser.add_argument("--table", type=Path, metavar="FILE", help="latency table (default: measured here)")
    add_conditions(parser)
    parser.add_argument("--eval-device", metavar="DEVICE", help="where errors are measured (default: --device)")


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rank", choices=RANKERS, default=RANKERS[0], help="what the evolution goes by")
    parser.add_argument("--pairs", type=positive, default=32, help="pairs to validate with (default 32)")
    parser.add_argument("--calibration-pairs", type=positive, default=16, help="default 16")
    parser.add_argument("--calibration-batch", type=positive, default=4, help="default 4")
    parser.add_argument("--crop", type=image_size, metavar="HxW", help="cut all pairs to this size")
    parser.add_argument(
        "--samples", type=positive, default=100, help="networks that the predictor learns from (default 100)"
    )
    parser.add_argument("--finalists", type=positive, default=10, help="measured at the end (default 10)")
    parser.add_argument("--population", type=positive, default=100, help="of a generation (default 100)")
    parser.add_argument("--generations", type=positive, default=500, help="of the evolution (default 500)")
    parser.add_argument(
        "--i1-steps", type=int, default=200, metavar="N", help="training steps of I1 (default 200); 0: no I1 in a study"
    )
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> int:
    """Search or study, and print the result."""
    from vision3d.errors import InputError
    from vision3d.search.evolution import EvolutionOptions
    from vision3d.search.session import SearchOptions

    limits = [arguments.latency_ms, arguments.gmac, arguments.study]
    if sum(limit is not None for limit in limits) != 1:
        raise InputError("give one of --latency-ms X, --gmac X and --study N")
    options = SearchOptions(
        **{name: getattr(arguments, name) for name in _SAME_NAMES},
        conditions=conditions(arguments),
        evolution=EvolutionOptions(arguments.population, arguments.generations),
    )
    return _study(arguments, options) if arguments.study else _search(arguments, options)


def _search(arguments: argparse.Namespace, options: Any) -> int:
    from vision3d.search.easnet import search_easnet

    result = search_easnet(options, tell)
    if arguments.json:
        print(to_json(result))
        return 0
    measured = "" if result["measured"] is None else f", measured {result['measured']:.1f}"
    lines = console()
    lines.print(f"setting {result['setting']}", markup=False, soft_wrap=True)
    lines.print(f"predicted {result['predicted']:.2f}{measured} {result['unit']} (limit {result['limit']:g})")
    lines.print(f"EPE {result['figures']['epe']:.3f} px, bad-3 {result['figures']['bad3']:.2f} %")
    for name, figures in result["references"].items():
        lines.print(f"{name}: {figures['cost']:.2f} {result['unit']}, EPE {figures['epe']:.3f} px")
    lines.print(f"written to {arguments.out}: use it with --model easnet --weights {arguments.out / result['weights']}")
    return 0


def _study(arguments: argparse.Namespace, options: Any) -> int:
    from dataclasses import asdict

    from vision3d.search.study import study_indicators

    rows = study_indicators(options, arguments.study, arguments.i1_steps > 0, tell)
    if arguments.json:
        print(to_json([asdict(row) for row in rows]))
    else:
        print((arguments.out / "study.md").read_text(encoding="utf-8"), end="")
    return 0
