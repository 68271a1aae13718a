# SPDX-License-Identifier: Apache-2.0
"""``vision3d view``: show the page of a result folder, or a point cloud, in the browser."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d view``."""
    parser = subparsers.add_parser(
        "view",
        help="show a point cloud or a result folder in the browser",
        description="Open the page of a result folder, or make a page of a cloud file and open that.",
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="result folder, or cloud file (.ply, .pcd, .glb)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="page of a cloud file (default: beside it, .html)")
    parser.add_argument("--no-open", action="store_true", help="print the page's path only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Find or make the page, print its path, open it."""
    page = find_page(arguments.path, arguments.out)
    print(page)
    if not arguments.no_open:
        _open(page)
    return 0


def find_page(path: Path, out: Path | None = None) -> Path:
    """The page of a result folder, or a new one of a cloud file.

    Raises:
        FileFormatError: no page, or no cloud that can be read. OutputError: the page cannot be written.
    """
    from vision3d.errors import FileFormatError

    if not path.exists():
        raise FileFormatError(f"{path}: does not exist: check the path")
    if path.is_dir():
        if (path / "view.html").is_file():
            return path / "view.html"
        inner = sorted(path.glob("*/view.html"))
        if inner:
            names = ", ".join(page.parent.name for page in inner[:5])
            raise FileFormatError(f"{path}: holds {len(inner)} results ({names} ...): name one of these folders")
        raise FileFormatError(f"{path}: holds no view.html: pass a folder that vision3d predict has written")
    if path.suffix.lower() in (".html", ".htm") and path.is_file():
        return path
    from vision3d.io.pointcloud import read_pointcloud
    from vision3d.viewer import write_cloud_view

    page = path.with_suffix(".html") if out is None else out
    write_cloud_view(page, read_pointcloud(path), title=path.name)
    return page


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.absolute().as_uri()):
        print("vision3d: no browser was found here: open the page by hand", file=sys.stderr)
