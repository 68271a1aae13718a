# SPDX-License-Identifier: Apache-2.0
"""Recipes before they are data classes: overrides, unknown keys, and values of a wrong type in words."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from typing import Any, Literal

from vision3d.errors import ConfigError


def apply_override(content: dict[str, Any], override: str) -> None:
    """Set one value of a nested dictionary in place.

    Args:
        content: the recipe as YAML gives it.
        override: ``key.sub=value``; the value is YAML, items of lists go by number.

    Raises:
        ConfigError: it is not of that form, or its path leads through a value.
    """
    import yaml

    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"override '{override}': write it as key.sub=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override '{override}': the value is not YAML") from error
    *parents, last = key.split(".")
    node: Any = content
    for name in parents:
        node = _child(node, name, override)
    if isinstance(node, list):
        _child(node, last, override)
        node[int(last)] = value
    else:
        node[last] = value


def _child(node: Any, name: str, override: str) -> Any:
    if isinstance(node, list):
        if not name.isdigit() or int(name) >= len(node):
            raise ConfigError(f"override '{override}': '{name}' must be an index below {len(node)}")
        return node[int(name)]
    child = node.setdefault(name, {})
    if child is None:
        child = node[name] = {}
    if not isinstance(child, (dict, list)):
        raise ConfigError(f"override '{override}': '{name}' holds a value, not a group of options")
    return child


def field_types(kind: type) -> dict[str, Any]:
    """The types of the fields of a data class, by name."""
    hints = typing.get_type_hints(kind)
    return {item.name: hints[item.name] for item in dataclasses.fields(kind)}


def check_keys(content: Any, kind: Any, where: str, prefix: str = "") -> None:
    """Raise ConfigError, with the nearest name, for a key that the data class ``kind`` and those in it lack.

    Args:
        content: the value to check, nested.
        kind: its type.
        where: the file, for the message.
        prefix: the path to the value, with a dot at its end.
    """
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(content, dict):
        known = field_types(kind)
        for key, value in content.items():
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.4)
                hint = f"did you mean '{prefix}{near[0]}'?" if near else f"known: {', '.join(known)}"
                raise ConfigError(f"{where}: unknown option '{prefix}{key}': {hint}")
            check_keys(value, known[key], where, f"{prefix}{key}.")
    elif typing.get_origin(kind) is list and isinstance(content, list):
        for number, item in enumerate(content):
            check_keys(item, typing.get_args(kind)[0], where, f"{prefix}{number}.")


def wrong_type(value: Any, kind: Any, key: str = "") -> str | None:
    """The first value below ``key`` that is not of its type, in words, or None."""
    arguments = typing.get_args(kind)
    inner: list[tuple[Any, Any, str]] = []
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        known = field_types(kind)
        inner = [(item, known[name], f"{key}.{name}".lstrip(".")) for name, item in value.items() if name in known]
    elif typing.get_origin(kind) is list and isinstance(value, list):
        inner = [(item, arguments[0], f"{key}.{number}") for number, item in enumerate(value)]
    elif not _fits(value, kind):
        return f"{key or 'the recipe'} must be {_in_words(kind)}, got {value!r}"
    return next((wrong for part in inner if (wrong := wrong_type(*part))), None)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type; text that reads as a number is one (YAML takes ``1e-3`` for text)."""
    arguments, origin = typing.get_args(kind), typing.get_origin(kind)
    if kind is Any:
        return True
    if origin is Literal:
        return value in arguments
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in arguments)
    if origin is tuple:
        return isinstance(value, (list, tuple)) and len(value) == len(arguments) and all(map(_fits, value, arguments))
    if origin is list:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict or dataclasses.is_dataclass(kind):
        return isinstance(value, dict)
    if kind in (int, float):
        return _is_number(value, kind)
    return isinstance(value, kind)


def _is_number(value: Any, kind: type) -> bool:
    if isinstance(value, str):
        try:
            return kind(value) is not None
        except ValueError:
            return False
    return isinstance(value, (int, kind)) and not isinstance(value, bool)


def _in_words(kind: Any) -> str:
    """A type as a user of recipes would say it."""
    arguments, origin = typing.get_args(kind), typing.get_origin(kind)
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    if kind in words:
        return words[kind]
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_in_words(option) for option in arguments)
    if origin is tuple:
        return f"a list of {len(arguments)}, each {_in_words(arguments[0])}"
    return f"a list, each {_in_words(arguments[0])}" if origin is list else "a group of options"
