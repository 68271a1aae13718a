# SPDX-License-Identifier: Apache-2.0
"""Where the data sets lie on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from vision3d.errors import ConfigError, FileFormatError
from vision3d.io.files import read_bytes


def find_root(name: str, root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a data set.

    Args:
        name: its registered name.
        root: the folder, if the caller knows it. Else the environment variable ``VISION3D_ROOT_<NAME>``, else the entry
            ``name: folder`` of the first of ``$VISION3D_DATASETS``, ``./datasets.yaml`` and
            ``~/.config/vision3d/datasets.yaml`` that has one (relative to that file).

    Raises:
        ConfigError: the folder is nowhere given, or such a file is illegal.
    """
    if root is not None and os.fspath(root):
        return Path(root)
    variable = f"VISION3D_ROOT_{name.upper()}"
    if os.environ.get(variable):
        return Path(os.environ[variable])
    for file in _files():
        folder = read_roots(file).get(name)
        if folder is not None:
            return file.parent / Path(folder).expanduser()
    raise ConfigError(
        f"where is the data set {name}? Pass its folder as root (--root DIR), or set {variable}=DIR, or write the line "
        f"'{name}: DIR' in ./datasets.yaml or ~/.config/vision3d/datasets.yaml"
    )


def read_roots(path: str | os.PathLike[str]) -> dict[str, str]:
    """The entries ``name: folder`` of a ``datasets.yaml``.

    Raises:
        FileFormatError: the file is missing. ConfigError: it is not a mapping of names to folders.
    """
    import yaml

    try:
        content = yaml.safe_load(read_bytes(path, FileFormatError, "a list of data set folders"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not a YAML file ({' '.join(str(error).split())}); correct it") from error
    if not isinstance(content, dict) or not all(isinstance(item, str) for pair in content.items() for item in pair):
        raise ConfigError(f"{path}: lines 'name: folder' are expected, e.g. 'kitti2015: /data/kitti2015'")
    return content


def _files() -> Iterator[Path]:
    chosen = os.environ.get("VISION3D_DATASETS")
    if chosen:
        yield Path(chosen)
    for file in (Path("datasets.yaml"), Path.home() / ".config" / "vision3d" / "datasets.yaml"):
        if file.is_file():
            yield file
