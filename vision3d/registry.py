# SPDX-License-Identifier: Apache-2.0
"""The registry of networks: one registered builder a variant, found by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from vision3d.errors import UnknownNameError

if TYPE_CHECKING:
    from torch import nn

TASKS = ("stereo", "normals", "mvs", "panorama", "nerf")

# Modules that register networks, imported when a name is first looked up, so that `import vision3d` stays cheap.
_MODEL_MODULES = (
    "vision3d.models.nerf.cfnerf",
    "vision3d.models.normals.compact",
    "vision3d.models.normals.dtnnet",
    "vision3d.models.mvs.dispmvs",
    "vision3d.models.panorama.panoramadepth",
    "vision3d.models.panorama.spheredepth",
    "vision3d.models.stereo.covonet",
    "vision3d.models.stereo.easnet",
    "vision3d.models.stereo.covonet_sgm",
    "vision3d.models.stereo.fadnet",
    "vision3d.models.stereo.fadnetpp",
)

Builder = TypeVar("Builder", bound=Callable[..., "nn.Module"])


@dataclass(frozen=True)
class ModelEntry:
    """A registered network: its name, task, family (the folder of its card) and builder."""

    name: str
    task: str
    family: str
    build: Callable[..., nn.Module]


_ENTRIES: dict[str, ModelEntry] = {}


def register_model(task: str, family: str) -> Callable[[Builder], Builder]:
    """Register a builder function under its own name.

    Example:
        >>> @register_model(task="stereo", family="fadnetpp")  # doctest: +SKIP
        ... def fadnetpp_tiny(**options): ...
    """
    if task not in TASKS:
        raise UnknownNameError("task", task, TASKS)

    def register(build: Builder) -> Builder:
        name = build.__name__
        if name in _ENTRIES and _ENTRIES[name].build.__module__ != build.__module__:
            raise ValueError(f"model name '{name}' is registered twice")
        _ENTRIES[name] = ModelEntry(name, task, family, build)
        return build

    return register


def registered_models() -> dict[str, ModelEntry]:
    """All registered networks by name."""
    for module in _MODEL_MODULES:
        importlib.import_module(module)
    return dict(sorted(_ENTRIES.items()))


def find_model(name: str) -> ModelEntry:
    """Return the entry of ``name``.

    Raises:
        UnknownNameError: the name is not registered; the message lists the nearest ones.
    """
    entries = registered_models()
    if name not in entries:
        raise UnknownNameError("model", name, entries)
    return entries[name]
