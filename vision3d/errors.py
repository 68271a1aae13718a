# SPDX-License-Identifier: Apache-2.0
"""The exceptions that vision3d raises for anything a user can mend.

Each message is one line that says what was wrong, where, and the mend. The command prints it and exits with code 2.
"""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Callable, Iterable


class Vision3DError(Exception):
    """Base of every error that the user can mend."""


class InputError(Vision3DError, ValueError):
    """An argument or array of the wrong shape, type or range."""


class FileFormatError(Vision3DError, ValueError):
    """A file that is missing, empty, truncated or not of the expected format."""


class ImageError(FileFormatError):
    """An image file that cannot be used."""


class DisparityError(FileFormatError):
    """A disparity or depth file (PFM, 16-bit PNG, NumPy) that cannot be used."""


class CalibrationError(FileFormatError):
    """A calibration file that cannot be used, or that does not fit the images."""


class CameraFileError(FileFormatError):
    """A file of camera poses (MVSNet, COLMAP, transforms.json, pair list) that cannot be used."""


class WeightsError(Vision3DError, RuntimeError):
    """A weights file that is missing, corrupt, unsafe or of another model."""


class ConfigError(Vision3DError, ValueError):
    """A recipe with an unknown or illegal option."""


class OutputError(Vision3DError, OSError):
    """A folder or file that cannot be written."""


class MissingExtraError(Vision3DError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str, purpose: str, hint: str = "") -> None:
        wanted = f"vision3d-zoo[{extra}]" if extra else "vision3d-zoo"  # "": a package that always belongs to it
        super().__init__(
            f'{purpose} needs the package "{package}": pip install "{wanted}"{". " + hint if hint else ""}'
        )


def check_options(owner: str, target: Callable[..., object], options: Iterable[str]) -> None:
    """Raise ConfigError, with the nearest name, for a keyword argument that ``target`` does not take.

    A function that hands ``**options`` on to the class that it returns is checked by that class.
    """
    parameters = inspect.signature(target).parameters
    if any(item.kind is item.VAR_KEYWORD for item in parameters.values()) and not isinstance(target, type):
        made = typing.get_type_hints(target).get("return")
        parameters = inspect.signature(made).parameters if isinstance(made, type) else parameters
    if any(item.kind is item.VAR_KEYWORD for item in parameters.values()):
        return
    check_option_names(owner, parameters, options)


def check_option_names(owner: str, known: Iterable[str], options: Iterable[str]) -> None:
    """Raise ConfigError, with the nearest of the ``known`` names, for an option that is not among them."""
    names = list(known)
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names) or 'none'}"
            raise ConfigError(f"{owner}: unknown option '{name}': {hint}")


class UnknownNameError(Vision3DError, KeyError):
    """A name that is not registered; the message lists the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
        super().__init__(f"unknown {kind} '{name}': {hint}")

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0])
