# SPDX-License-Identifier: Apache-2.0
"""Networks by name, with their cards and weights.

A name may carry a weight tag: ``fadnetpp_slight.synthetic``. Cards and weights lie in ``models/<family>/``
(see docs/adding_a_model.md); nothing is downloaded unless a URL is given by the caller.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import urllib.parse
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision3d.errors import ConfigError, UnknownNameError, WeightsError, check_options
from vision3d.registry import TASKS, find_model, registered_models
from vision3d.resources import resource_folder

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class WeightsCard:
    """One set of shipped weights.

    Attributes:
        variant, tag: the registered name and the tag: ``create_model(f"{variant}.{tag}")``.
        file: safetensors file.
        sha256: its checksum, hexadecimal.
        license: of the weights; commercial use is allowed if ``commercial_use``.
        recipe: the training recipe, relative to the repository root.
        default: True for the one that ``pretrained=True`` takes.
        training: how they were trained, in words.
        results: measured figures, each with its protocol.
        parts: weights that the file leaves out because another network ships them: submodule -> ``name.tag``.
    """

    variant: str
    tag: str
    file: Path
    sha256: str
    license: str
    recipe: str
    default: bool = False
    commercial_use: bool = True
    training: str = ""
    results: tuple[dict[str, Any], ...] = ()
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.variant}.{self.tag}"


@dataclass(frozen=True)
class ModelCard:
    """What is published about one registered network."""

    name: str
    family: str
    task: str
    title: str
    summary: str
    paper: dict[str, Any]
    license: str
    normalization: dict[str, list[float]]
    size_multiple: int
    max_disparity: int | None
    parameters: int
    gmac_576x960: float | None
    official_checkpoint: str
    published: tuple[dict[str, Any], ...] = ()
    weights: tuple[WeightsCard, ...] = field(default=())

    @property
    def default_weights(self) -> WeightsCard | None:
        """The weights that ``pretrained=True`` takes, or None where none are shipped."""
        for card in self.weights:
            if card.default:
                return card
        return self.weights[0] if self.weights else None

    def find_weights(self, tag: str) -> WeightsCard:
        """The weights of a tag.

        Raises:
            WeightsError: the network has no shipped weights.
            UnknownNameError: there are some, but not with this tag.
        """
        if not self.weights:
            raise WeightsError(
                f"no weights are shipped for '{self.name}': pass a file (--weights PATH, pretrained=PATH), or "
                f"choose one of {', '.join(list_models(pretrained=True))}"
            )
        for card in self.weights:
            if card.tag == tag:
                return card
        raise UnknownNameError(f"weight tag of '{self.name}'", tag, [card.tag for card in self.weights])


@cache
def _read_family(family: str) -> dict[str, Any]:
    import yaml

    path = resource_folder("models") / family / "card.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: the card cannot be read ({error.strerror}): reinstall the package") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: the card is not YAML: {str(error).splitlines()[0]}") from error
    return content


def load_card(name: str) -> ModelCard:
    """Return the card of a registered network (a weight tag in the name is ignored).

    Raises:
        UnknownNameError: the name is not registered.
    """
    entry = find_model(name.partition(".")[0])
    content = _read_family(entry.family)
    try:
        variant = content["variants"][entry.name]
        merged = {**content, **variant}
        return ModelCard(
            name=entry.name,
            family=entry.family,
            task=entry.task,
            title=merged["title"],
            summary=merged["summary"],
            paper=merged.get("paper") or {},
            license=merged["license"],
            normalization=merged["normalization"],
            size_multiple=int(merged["size_multiple"]),
            max_disparity=merged.get("max_disparity"),
            parameters=int(merged["parameters"]),
            gmac_576x960=merged.get("gmac_576x960"),
            official_checkpoint=merged.get("official_checkpoint", ""),
            published=tuple(merged.get("published") or ()),
            weights=_weights_of(entry.family, entry.name, content.get("weights") or []),
        )
    except KeyError as error:
        raise ConfigError(f"models/{entry.family}/card.yaml: no field {error} for '{entry.name}'") from error


def _weights_of(family: str, variant: str, rows: list[dict[str, Any]]) -> tuple[WeightsCard, ...]:
    folder = resource_folder("models") / family
    return tuple(
        WeightsCard(**{**row, "file": folder / row["file"], "results": tuple(row.get("results") or ())})
        for row in rows
        if row["variant"] == variant
    )


def list_models(task: str | None = None, pretrained: bool | None = None) -> list[str]:
    """Names of the registered networks, optionally of one task and with (or without) shipped weights.

    Raises:
        UnknownNameError: an unknown task.
    """
    if task is not None and task not in TASKS:
        raise UnknownNameError("task", task, TASKS)
    names = [name for name, entry in registered_models().items() if task in (None, entry.task)]
    if pretrained is not None:
        names = [name for name in names if bool(load_card(name).weights) == pretrained]
    return names


def create_model(name: str, pretrained: bool | str | Path = False, **options: Any) -> nn.Module:
    """Build a registered network in eval mode; its attribute ``name`` is the registered name.

    Args:
        name: a registered name, optionally with a weight tag (``covonet.synthetic``).
        pretrained: True for the default weights, a weight tag, ``name.tag`` of a network that this one builds on, a
            path to a checkpoint (ours or the authors'), or an ``https://`` URL of one; ``#sha256=HEX`` at its end has
            the file checked.
        options: keyword arguments of the network.

    Raises:
        UnknownNameError: unknown name or tag; the message lists near ones.
        ConfigError: an option the network does not have, or two kinds of weights (a tag in the name and another one).
        WeightsError: weights that are missing, corrupt, unsafe or of another model.
    """
    base, _, tag = name.partition(".")
    entry = find_model(base)
    if tag:
        if not isinstance(pretrained, bool) and str(pretrained) != tag:
            raise ConfigError(f"'{name}' names the weights '{tag}', and {pretrained} was given as well: leave one out")
        pretrained = tag
    weights, parts = _resolve_weights(base, pretrained)
    check_options(base, entry.build, options)
    try:
        model = entry.build(**options)
    except TypeError as error:
        raise ConfigError(f"{base}: {str(error).replace(f'{base}() ', '')}") from error
    if weights is not None:
        _load_weights(model, weights, parts)
    setattr(model, "name", base)  # noqa: B010  (the module's own type takes no text)
    return model.eval()


def _resolve_weights(name: str, pretrained: bool | str | Path) -> tuple[Path | None, dict[str, str]]:
    """The file of the weights, and the parts that other networks ship (``WeightsCard.parts``)."""
    if pretrained is False:
        return None, {}
    card = load_card(name)
    if pretrained is True:
        default = card.default_weights
        return _checked(default if default is not None else card.find_weights(""))
    text = str(pretrained)
    scheme = urllib.parse.urlparse(text).scheme
    if scheme == "http":
        raise WeightsError(f"{text}: anyone on the way could change the file: use https://, or pass a local file")
    if scheme == "https":
        return _download(*_split_checksum(text)), {}
    other, _, tag = text.partition(".")
    if tag and not Path(text).exists() and other in registered_models() and load_card(other).weights:
        return _checked(load_card(other).find_weights(tag))
    if Path(text).suffix or Path(text).exists() or "/" in text:
        return Path(text), {}
    return _checked(card.find_weights(text))


def _checked(card: WeightsCard) -> tuple[Path, dict[str, str]]:
    try:
        digest = _digest(card.file)
    except OSError as error:
        raise WeightsError(f"{card.file}: cannot be read ({error.strerror}): reinstall the package") from error
    if digest != card.sha256:
        raise WeightsError(f"{card.file}: the file is damaged (SHA-256 differs from its card): reinstall the package")
    return card.file, card.parts


def _split_checksum(url: str) -> tuple[str, str]:
    """The address and the SHA-256 (hexadecimal, or "") of ``https://...#sha256=HEX``."""
    address, mark, fragment = url.partition("#")
    key, _, digest = fragment.partition("=")
    if mark and (key != "sha256" or re.fullmatch(r"[0-9a-fA-F]{64}", digest) is None):
        raise WeightsError(f"{url}: '#{fragment}' is no checksum: write #sha256= and 64 hexadecimal digits, or nothing")
    return address, digest.lower()


def _download(url: str, sha256: str) -> Path:
    import torch

    from vision3d.io.files import atomic_write, ensure_folder

    folder = ensure_folder(Path(torch.hub.get_dir()) / "vision3d")
    name = hashlib.sha256(url.encode()).hexdigest()[:12] + "_" + Path(urllib.parse.urlparse(url).path).name
    target = folder / name
    if not target.exists() or (sha256 and _digest(target) != sha256):
        with atomic_write(target) as temporary:
            try:
                torch.hub.download_url_to_file(url, str(temporary), progress=True)
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise WeightsError(f"{url}: no download ({error}): check the address, or pass a local file") from error
            if sha256 and _digest(temporary) != sha256:
                raise WeightsError(
                    f"{url}: the SHA-256 of the file is not {sha256}: check the address and the checksum"
                )
    return target


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _load_weights(model: nn.Module, path: Path, parts: dict[str, str]) -> None:
    from vision3d.io.checkpoints import load_into, read_checkpoint

    state_dict = read_checkpoint(path)
    for prefix, name in parts.items():
        state_dict |= {f"{prefix}.{key}": value for key, value in create_model(name).state_dict().items()}
    loader = getattr(model, "load_official_state_dict", None)
    try:
        if loader is not None:
            loader(state_dict)
        else:
            load_into(model, state_dict)
    except WeightsError as error:
        raise WeightsError(f"{path}: {error}") from error
