# SPDX-License-Identifier: Apache-2.0
"""How the command prints: tables for people, one JSON object for programs."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# Width of a table that is written to a file or a pipe, where no terminal limits it.
PIPE_WIDTH = 200


def console(stderr: bool = False) -> Console:
    """A rich console on stdout, or on stderr for progress and messages; tables in a pipe are not squeezed."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else PIPE_WIDTH, highlight=False)


def tell(text: str) -> None:
    """Print a line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def plain(value: Any) -> Any:
    """``value`` as JSON knows it: paths as text, NumPy numbers as numbers, NaN and infinity as null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_json(value: Any) -> str:
    """``value`` as strict JSON text, indented."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as strict JSON: to a temporary file beside ``path``, then renamed."""
    from vision3d.io.files import atomic_write

    with atomic_write(Path(path)) as temporary:
        temporary.write_text(to_json(value) + "\n", encoding="utf-8")


class ProgressBars:
    """A progress bar on stderr for each part of the work; as a context it gives ``advance(part, done, total)``."""

    def __enter__(self) -> Any:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console(stderr=True), transient=True)
        self.tasks: dict[str, Any] = {}
        return self._advance

    def _advance(self, text: str, done: int, total: int) -> None:
        if not self.tasks:
            self.bar.start()  # here, since a bar that shows nothing leaves an empty line behind
        if text not in self.tasks:
            self.tasks[text] = self.bar.add_task(text, total=total)
        self.bar.update(self.tasks[text], completed=done)

    def __exit__(self, *exception: object) -> None:
        if self.tasks:
            self.bar.stop()
