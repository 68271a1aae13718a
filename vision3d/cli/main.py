# SPDX-License-Identifier: Apache-2.0
"""The ``vision3d`` command: finds the sub-command, loads only its module, and turns user errors into one line.

A module of a sub-command defines ``add_parser(subparsers)``, which adds its parser under its own name and sets the
default ``run``: a function of the parsed arguments that returns the exit code (None means 0). Modules are imported
only when their command is called, so that ``vision3d --help`` needs neither torch nor a network definition.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import vision3d
from vision3d.errors import UnknownNameError, Vision3DError

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
# What torch's allocators, CUDA and OpenCV say when an allocation fails.
_MEMORY_PHRASES = ("not enough memory", "can't allocate memory", "out of memory", "insufficient memory")

# Name of each sub-command, its module and its line in ``vision3d --help``.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("vision3d.cli.demo", "run a network on a real pair with ground truth: pictures, cloud, page, figures"),
    "predict": ("vision3d.cli.predict", "disparity, depth, confidence and point cloud of a stereo pair"),
    "mvs": ("vision3d.cli.mvs", "depth maps, point cloud and mesh of a folder of posed images"),
    "panorama": ("vision3d.cli.panorama", "distances, point cloud and textured mesh of a panorama"),
    "nerf": ("vision3d.cli.nerf", "radiance field and cameras from images alone: fit, render, export, evaluate"),
    "view": ("vision3d.cli.view", "show a point cloud or a result folder in the browser"),
    "cloud": ("vision3d.cli.cloud", "point cloud from a disparity or depth map and a calibration"),
    "train": ("vision3d.cli.train", "train a network from a recipe"),
    "evaluate": ("vision3d.cli.evaluate", "error figures of a network on pairs with ground truth"),
    "submit": ("vision3d.cli.submit", "the archive that a benchmark server takes"),
    "export": ("vision3d.cli.export", "a network as an ONNX file or a torch.export programme"),
    "search": ("vision3d.cli.search", "search a sub-network of a supernet for a device"),
    "benchmark": ("vision3d.cli.benchmark", "time of operators on this machine"),
    "models": ("vision3d.cli.models", "list the networks, or show the card of one"),
    "data": ("vision3d.cli.data", "list, check and make data sets"),
    "doctor": ("vision3d.cli.doctor", "report on this installation and machine"),
}


class Parser(argparse.ArgumentParser):
    """An argument parser that reports a wrong command line in one line, and takes no abbreviated flags."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        super().__init__(*arguments, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_ERROR, f"vision3d: error: {message} (see {self.prog} --help)\n")


def build_parser(command: str | None = None) -> Parser:
    """The parser with the full options of ``command``, or with the list of all commands when it is None.

    Raises:
        UnknownNameError: there is no such sub-command; the message lists near ones.
    """
    parser = Parser(
        prog="vision3d",
        description="3-D vision from ordinary cameras: a PyTorch model zoo.",
        epilog="'vision3d COMMAND --help' shows the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"vision3d {vision3d.__version__}")
    parser.add_argument("--traceback", action="store_true", help="show the full traceback of an error")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    if command is None:
        for name, (_, summary) in COMMANDS.items():
            subparsers.add_parser(name, help=summary)
        return parser
    if command not in COMMANDS:
        raise UnknownNameError("command", command, COMMANDS)
    importlib.import_module(COMMANDS[command][0]).add_parser(subparsers)
    return parser


def _split_traceback(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Take ``--traceback`` out of the command line, wherever it stands before a ``--``."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    head = [argument for argument in arguments[:end] if argument != "--traceback"]
    return [*head, *arguments[end:]], len(head) < end


def _dispatch(arguments: list[str]) -> int:
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    parser = build_parser(command)
    namespace = parser.parse_args(arguments)
    if command is None:
        parser.print_help(sys.stderr)
        return EXIT_ERROR
    code = namespace.run(namespace)
    sys.stdout.flush()
    return int(code or 0)


def _silence_stdout() -> None:
    """Point stdout at nothing after its reader went away, so that the interpreter's last flush does not complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def out_of_memory(error: BaseException) -> bool:
    """Whether Python, NumPy, OpenCV or torch raised the error because no memory was left."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(phrase in text for phrase in _MEMORY_PHRASES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: the arguments without the program's name; those of the process when None.

    Returns:
        The exit code: 0, 2 for an error that the user can mend, 130 when interrupted, 141 when the reader of stdout
        went away.
    """
    arguments, traceback = _split_traceback(sys.argv[1:] if argv is None else list(argv))
    try:
        return _dispatch(arguments)
    except SystemExit as request:  # argparse: --help, --version, or a wrong command line
        return request.code if isinstance(request.code, int) else EXIT_ERROR if request.code else 0
    except Vision3DError as error:
        if traceback:
            raise
        print(f"vision3d: error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        if traceback:
            raise
        print("vision3d: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if traceback or not out_of_memory(error):
            raise
        print(
            "vision3d: error: the memory was used up: reduce the images (--scale 0.5), or free some memory "
            f"({' '.join(str(error).split())[:120] or type(error).__name__})",
            file=sys.stderr,
        )
        return EXIT_ERROR


if __name__ == "__main__":
    sys.exit(main())
