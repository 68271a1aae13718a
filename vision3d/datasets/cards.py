# SPDX-License-Identifier: Apache-2.0
"""Data cards: where a data set comes from, its licence, folders, splits, encoding, protocol (datasets/*/card.yaml)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from vision3d.datasets.registry import find_dataset
from vision3d.errors import ConfigError
from vision3d.resources import resource_folder


@dataclass(frozen=True)
class DatasetCard:
    """What is published about a data set.

    Attributes:
        name, task: as registered.
        family: folder of the card.
        title, url, license, citation: of the data set, by its authors.
        pairs: how many there are.
        tree: the folders that the reader expects.
        splits: split -> what it holds; empty where the reader has none.
        encoding: how the truth is stored.
        protocol: how results are usually measured.
        options: option of the reader -> meaning.
        known_bad: files known to be wrong.
        assumptions: what we could not verify, and decisions of our own.
    """

    name: str
    task: str
    family: str
    title: str
    url: str
    license: str
    citation: str
    pairs: str
    tree: str
    splits: dict[str, str]
    encoding: str
    protocol: str
    known_bad: list[str]
    assumptions: list[str]
    options: dict[str, str]


def load_dataset_card(name: str) -> DatasetCard:
    """The card of a registered data set.

    Raises:
        UnknownNameError: the name is not registered.
        ConfigError: no card, or one with a missing or unknown field.
    """
    entry = find_dataset(name)
    if name not in _cards():
        raise ConfigError(f"the data set {name} has no card: add it to the readers of a datasets/*/card.yaml")
    family, content = _cards()[name]
    known = {field.name for field in fields(DatasetCard)}
    content = {"options": {}, **content, "name": name, "task": entry.task, "family": family}
    wrong = sorted(known.symmetric_difference(content))
    if wrong:
        raise ConfigError(f"datasets/{family}/card.yaml: '{name}' lacks the field '{wrong[0]}', or it is unknown")
    return DatasetCard(**content)


def list_family(family: str) -> list[str]:
    """The registered data sets whose card lies in the folder ``family`` (``middlebury``), sorted; none: empty."""
    return sorted(name for name, (folder, _) in _cards().items() if folder == family)


@cache
def _cards() -> dict[str, tuple[str, dict[str, Any]]]:
    """name -> (family, fields): those of the card, overridden by those of its entry in ``readers``."""
    import yaml

    found = {}
    for path in sorted(resource_folder("datasets").glob("*/card.yaml")):
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
            readers = content.pop("readers")
            for name, own in readers.items():
                found[name] = path.parent.name, {**content, **own}
        except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: not a data card ({' '.join(str(error).split())}); correct it") from error
    return found
