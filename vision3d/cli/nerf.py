# SPDX-License-Identifier: Apache-2.0
"""``vision3d nerf``: fit a radiance field and its cameras to images alone, render, export and evaluate it."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision3d.cli.options import positive
from vision3d.cli.output import console, to_json

if TYPE_CHECKING:
    from vision3d.training.nerf.incremental import FitProgress

_OTHERS = ("nerf_render", "nerf_export", "nerf_evaluate")


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d nerf`` with its actions."""
    parser = subparsers.add_parser(
        "nerf",
        help="radiance field and cameras from images alone: fit, render, export, evaluate",
        description="A radiance field together with the poses and the focal length of its images (CF-NeRF).",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_fit(actions)
    for name in _OTHERS:
        importlib.import_module(f"vision3d.cli.{name}").add_parser(actions)


def _add_fit(actions: argparse._SubParsersAction[Any]) -> None:
    parser = actions.add_parser(
        "fit",
        help="fit a field and its cameras to a folder of images or a video",
        description="Fit a radiance field, the pose of every image and their common focal length. The images are those "
        "of one camera in the order of its motion. A killed run goes on where it stopped.",
    )
    parser.add_argument("images", type=Path, metavar="FOLDER|VIDEO", help="the images")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the run")
    parser.add_argument(
        "--schedule",
        choices=["fast", "published", "nerfmm", "barf"],
        default="fast",
        help="fast: minutes (default); published: CF-NeRF as published, for a GPU; nerfmm, barf: all frames at once",
    )
    parser.add_argument("--field", choices=["hash_grid", "siren", "relu", "gaussian"], help="instead of the schedule's")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting of the schedule, e.g. rays=1024, full=600, pyramid_level=2, near=0.5, field.levels=8",
    )
    parser.add_argument("--every", type=positive, default=1, metavar="N", help="use every N-th image (default 1)")
    parser.add_argument("--max-frames", type=positive, metavar="N", help="use at most N images")
    parser.add_argument("--hold-out", type=int, default=0, metavar="N", help="keep every N-th image for evaluation")
    parser.add_argument("--seed", type=int, default=3407, help="of the random numbers (default 3407)")
    parser.add_argument("--processes", type=positive, default=1, metavar="N", help="share the rays among processes")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: CUDA where there is one)")
    parser.add_argument("--overwrite", action="store_true", help="replace another run in --out")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_fit)


def run_fit(arguments: argparse.Namespace) -> int:
    """Fit, and say what came out."""
    from vision3d.datasets.image_sequences import read_sequence
    from vision3d.radiance_field import fit_radiance_field

    options = _settings(arguments.set)
    if arguments.field is not None:
        options = {"model_field": arguments.field, **options}
    sequence = read_sequence(arguments.images, every=arguments.every, max_frames=arguments.max_frames)
    with _Bar() as progress:
        fitted = fit_radiance_field(
            sequence,
            arguments.out,
            arguments.schedule,
            options=options,
            hold_out=arguments.hold_out,
            seed=arguments.seed,
            overwrite=arguments.overwrite,
            device=arguments.device,
            processes=arguments.processes,
            callback=progress,
        )
    report = fitted.report()
    for warning in report["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(
        f"{arguments.images}: {report['registered']} of {report['frames']} images registered, focal length "
        f"{report['focal']:.1f} px, PSNR {report['psnr']:.2f} dB, {report['seconds']:.0f} s -> {arguments.out}",
        file=sys.stderr,
    )
    if arguments.json:
        print(to_json({"output": arguments.out, **report}))
    return 0


def _settings(pairs: list[str]) -> dict[str, str]:
    """``KEY=VALUE`` as a dictionary.

    Raises:
        ConfigError: a text without ``=``.
    """
    from vision3d.errors import ConfigError

    found = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set {pair}: write KEY=VALUE, e.g. --set rays=1024")
        found[key] = value
    return found


class _Bar:
    """A progress bar on stderr: registered frames, stage, PSNR and focal length."""

    def __enter__(self) -> Any:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=console(stderr=True), transient=True)
        self.task: Any = None
        return self._show

    def _show(self, now: FitProgress) -> None:
        if self.task is None:
            self.bar.start()
            self.task = self.bar.add_task("", total=now.units)
        text = f"{now.registered}/{now.frames} poses  {now.stage:<6}  {now.psnr:5.2f} dB  focal {now.focal:.1f} px"
        self.bar.update(self.task, description=text, completed=now.unit + now.step / now.steps)

    def __exit__(self, *exception: object) -> None:
        if self.task is not None:
            self.bar.stop()
