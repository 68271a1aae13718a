# SPDX-License-Identifier: Apache-2.0
"""``vision3d evaluate``: error figures of a network on pairs with ground truth."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vision3d.cli.options import positive, scale
from vision3d.cli.output import console, to_json, write_json

COLUMNS = ("epe", "bad1", "bad2", "bad3", "d1", "seconds")
TITLES = {"epe": "EPE px", "bad1": "bad-1 %", "bad2": "bad-2 %", "bad3": "bad-3 %", "d1": "D1 %", "seconds": "s"}


REGION_TITLES = {
    "noc": "non-occluded",
    "occ": "occluded",
    "bg": "background",
    "fg": "objects",
    "noc_bg": "non-occluded background",
    "noc_fg": "non-occluded objects",
}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d evaluate``."""
    parser = subparsers.add_parser(
        "evaluate",
        help="error figures of a network on pairs with ground truth",
        description="EPE, bad-k and D1 per scene and as the mean over scenes, and the seconds per pair; with "
        "--task normals the angles of surface normals.",
    )
    parser.add_argument(
        "--task",
        choices=["stereo", "normals", "panorama"],
        help="normals: angles on sets with true normals (irs, pool, synthetic_rooms), beside two baselines; panorama: "
        "distances (default for sets of panoramas)",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="a network, e.g. fadnetpp_slight or NAME.TAG (default: covonet; of panoramas: panoramadepth_tiny)",
    )
    parser.add_argument("--weights", metavar="PATH", help="a checkpoint; otherwise the shipped weights")
    parser.add_argument(
        "--dataset",
        default="folder",
        metavar="NAME",
        help="a stereo set of 'vision3d data list', or folder (default): ROOT/set/scene/",
    )
    parser.add_argument("--root", type=Path, metavar="DIR", help="its folder (default: as configured)")
    parser.add_argument("--split", help="of the data set (default: test where papers measure there, else all)")
    parser.add_argument("--protocol", metavar="NAME", help="how to count (default: as the benchmark of the set does)")
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="of the reader, e.g. size=H or truth=noc"
    )
    parser.add_argument("--exclude", nargs="+", action="extend", default=[], metavar="SET", help="leave out these sets")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N scenes")
    parser.add_argument(
        "--baseline",
        choices=["bm", "sgbm", "sgbm_hh", "sgbm_wls"],
        help="also measure a matcher of OpenCV; sgbm_hh and sgbm_wls pad the left border by the search range; "
        "sgbm_wls needs opencv-contrib",
    )
    parser.add_argument("--search", type=positive, metavar="PX", help="search range of the baseline (default 192)")
    parser.add_argument("--confidence", action="store_true", help="also judge the confidence (twice the time)")
    parser.add_argument("--height", type=positive, metavar="ROWS", help="of the network's images, of panoramas only")
    parser.add_argument(
        "--alignment",
        choices=["none", "median"],
        default="none",
        help="of panoramas: median scales each answer so that its median is that of the truth",
    )
    parser.add_argument("--scale", type=scale, default=1.0, help="resize the images by this factor first, or auto")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: CUDA where there is one)")
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="also write a page with pictures and curves")
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="print one JSON object on stdout, or write it to FILE (the table is printed as well then)",
    )
    parser.set_defaults(run=run)


def reader_options(pairs: list[str]) -> dict[str, Any]:
    """``KEY=VALUE`` texts as a mapping; values are read as YAML (numbers, lists, true).

    Raises:
        InputError: a text of another form.
    """
    import yaml

    from vision3d.errors import InputError

    options = {}
    for pair in pairs:
        key, mark, value = pair.partition("=")
        if not mark or not key:
            raise InputError(f"--option '{pair}': KEY=VALUE is expected, e.g. size=H")
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InputError(f"--option '{pair}': the value cannot be read; put text into quotes") from error
    return options


def run(arguments: argparse.Namespace) -> int:
    """Measure, then print the table or the JSON object."""
    from vision3d.errors import InputError

    if _is_panorama(arguments):
        from vision3d.cli.evaluate_panorama import run_panorama

        return run_panorama(arguments, reader_options(arguments.option))
    if arguments.height or arguments.alignment != "none":
        raise InputError("--height and --alignment belong to panoramas: leave them out")
    if arguments.task == "normals":
        from vision3d.cli.evaluate_normals import run_normals

        return run_normals(arguments, reader_options(arguments.option))
    messages = console(stderr=True)
    gallery = _gallery(arguments)
    with messages.status("loading") as status:
        common = {
            "exclude": arguments.exclude,
            "baseline": arguments.baseline,
            "weights": arguments.weights,
            "scale": arguments.scale,
            "device": arguments.device,
            "limit": arguments.limit,
            "confidence": arguments.confidence,
            "observers": [gallery] if arguments.report else [],
            "progress": lambda number, total, scene: status.update(f"{number + 1}/{total} {scene}"),
        }
        report = _evaluate(arguments, common)
    for entry in report["skipped"]:
        messages.print(f"skipped {entry['scene']}: {entry['reason']}", markup=False)
    if arguments.report:
        from vision3d.evaluation.report import write_report

        write_report(arguments.report, report, gallery)
        messages.print(f"report: {arguments.report}", markup=False)
    if arguments.json == "-":
        print(to_json(report))
        return 0
    if arguments.json:
        write_json(arguments.json, report)
    _print_table(report)
    if "headline" in report:
        _print_headline(report)
    return 0


def _is_panorama(arguments: argparse.Namespace) -> bool:
    """Whether panoramas are to be measured: as asked for, else by the data set."""
    from vision3d.datasets.registry import find_dataset

    if arguments.task is not None or arguments.dataset == "folder":
        return bool(arguments.task == "panorama")
    return find_dataset(arguments.dataset).task == "panorama"


def _gallery(arguments: argparse.Namespace) -> Any:
    from vision3d.evaluation.gallery import Gallery

    if arguments.dataset == "folder":
        return Gallery()
    from vision3d.evaluation.protocols import find_protocol

    rule = find_protocol(arguments.dataset, arguments.protocol)
    return Gallery(figure=rule.figure, region=rule.region, protocol=rule)


def _evaluate(arguments: argparse.Namespace, common: dict[str, Any]) -> dict[str, Any]:
    from vision3d.pipelines import DEFAULT_STEREO_MODEL

    model = arguments.model or DEFAULT_STEREO_MODEL
    options = reader_options(arguments.option)
    if arguments.dataset != "folder":
        from vision3d.evaluation.dataset import evaluate_dataset

        return evaluate_dataset(
            model,
            arguments.dataset,
            arguments.root,
            split=arguments.split,
            protocol=arguments.protocol,
            options=options,
            search=arguments.search,
            **common,
        )
    from vision3d.datasets.roots import find_root
    from vision3d.errors import InputError
    from vision3d.evaluation.folder import evaluate_folder

    for flag in ("split", "protocol", "option", "search"):
        if getattr(arguments, flag):
            raise InputError(f"--{flag} does not go with the data set folder: name another one with --dataset")
    return evaluate_folder(model, find_root("folder", arguments.root), **common)


def _print_headline(report: dict[str, Any]) -> None:
    """The benchmark's own figure, with the baseline's and with what was counted."""
    rule = report["protocol"]
    parts = [(report["model"], report), *([(b["name"], b)] if (b := report.get("baseline")) else [])]
    for name, part in parts:
        item = part["headline"]
        print(f"{rule['title']}, {item['label']} (mean over {item['mean']}): {item['value']:.3f}  {name}")
    print(rule["text"])
    for entry in report["published"]:
        if entry["ours"] is not None:
            print(f"published: {entry['metric']} {entry['published']} ({entry['source']}); ours {entry['ours']:.3f}")


def _print_table(report: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    baseline = report.get("baseline")
    shown = [report, baseline] if baseline else [report]
    title = report["model"] if not baseline else f"{report['model']} / {baseline['name']}"
    counted = "all pixels with ground truth" if "headline" not in report else report["protocol"]["title"]
    table = Table(
        title=escape(title), caption=f"{counted}; means over scenes; {measured(report)}; s = seconds per pair"
    )
    table.add_column("scene", no_wrap=True)
    for column in COLUMNS:
        table.add_column(TITLES[column], justify="right", no_wrap=True)
    for index, row in enumerate(report["scenes"]):
        table.add_row(escape(row["scene"]), *_cells([part["scenes"][index] for part in shown]))
    table.add_section()
    for name in report.get("sets", ()):
        table.add_row(f"mean of {escape(name)}", *_cells([part["sets"][name] for part in shown]))
    table.add_section()
    table.add_row("[bold]mean[/bold]", *_cells([part["mean"] for part in shown]))
    visible = [part["mean"].get("nonoccluded") for part in shown]
    if visible[0]:
        table.add_row(f"non-occluded ({visible[0]['scenes']} scenes)", *_cells(visible))
    for kind, label in (("mean", "mean"), ("pooled", "over pixels")):
        for name in report.get(kind, {}).get("regions", ()):
            table.add_row(
                f"{label}, {REGION_TITLES.get(name, name)}", *_cells([p[kind]["regions"][name] for p in shown])
            )
        if kind == "mean" and "pooled" in report:
            table.add_section()
            table.add_row("[bold]over pixels[/bold]", *_cells([part["pooled"] for part in shown]))
    console().print(table)
    if report.get("confidence"):
        _print_confidence(report["confidence"])


def measured(report: dict[str, Any]) -> str:
    """What was measured: the split, and the number of scenes."""
    number = len(report["scenes"])
    split = f"split {report['split']}, " if report.get("split") else ""
    return f"{split}{number} scene{'' if number == 1 else 's'} measured"


def _print_confidence(figures: dict[str, Any]) -> None:
    print(
        f"confidence: AUSE {figures['ause']:.3f} px ({100 * figures['ause_relative']:.0f} % of the mean error), "
        f"AURG {figures['aurg']:.3f} px"
    )
    check = figures.get("left_right_check")
    if check:
        print(
            f"left-right check: keeps {100 * check['kept']:.1f} % with {check['error']:.3f} px; the confidence at the "
            f"same share {check['confidence_error']:.3f} px"
        )


def _cells(rows: list[dict[str, Any]]) -> list[str]:
    """One cell a column: the network's figure, and the baseline's after a slash."""
    return [" / ".join(f"{row[column]:.2f}" if column in row else "-" for row in rows) for column in COLUMNS]
