# SPDX-License-Identifier: Apache-2.0
"""Cards, names and weights of the zoo. (That a card's parameter count is true is checked in tests/models.)"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import vision3d
from vision3d import registry, zoo
from vision3d.errors import ConfigError, UnknownNameError, Vision3DError, WeightsError
from vision3d.resources import resource_folder
from vision3d.zoo import ModelCard, WeightsCard, create_model, list_models, load_card

NAMES = list_models()
SMALL = "fadnetpp_micro"


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return create_model(SMALL).state_dict()


@pytest.fixture
def weights(tmp_path: Path, state: dict[str, torch.Tensor]) -> Path:
    path = tmp_path / "weights.safetensors"
    save_file(state, path)
    return path


@pytest.fixture
def card(weights: Path, monkeypatch: pytest.MonkeyPatch) -> ModelCard:
    """The small network's card, with shipped weights of the tag ``made``; load_card returns it."""
    import hashlib

    entry = WeightsCard(
        variant=SMALL,
        tag="made",
        file=weights,
        sha256=hashlib.sha256(weights.read_bytes()).hexdigest(),
        license="Apache-2.0",
        recipe="configs/none.yaml",
    )
    changed = dataclasses.replace(load_card(SMALL), weights=(entry,))
    original = zoo.load_card
    monkeypatch.setattr(zoo, "load_card", lambda name: changed if name == SMALL else original(name))
    return changed


@pytest.mark.parametrize("name", NAMES)
def test_each_card_is_complete(name: str) -> None:
    card = load_card(name)
    assert card.name == name
    assert card.title
    assert card.summary.endswith(".")
    assert card.license
    assert not card.paper or {"title", "authors", "year"} <= card.paper.keys()
    assert {"mean", "std"} == set(card.normalization)
    assert all(len(values) == 3 for values in card.normalization.values())
    assert card.size_multiple >= 1
    assert card.parameters > 0
    assert (resource_folder("models") / card.family / "README.md").is_file()
    for row in card.published:
        assert row["source"], "a published figure says where it stands"
    for weights in card.weights:
        assert weights.file.is_file()
        assert len(weights.sha256) == 64
        assert weights.license
        assert (resource_folder("configs").parent / weights.recipe).is_file()
        assert all("protocol" in result for result in weights.results)
    assert sum(weights.default for weights in card.weights) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_shipped_weights_load(name: str) -> None:
    for weights in load_card(name).weights:
        model = create_model(weights.name)
        assert not model.training
        assert all(torch.isfinite(value).all() for value in model.state_dict().values())


def test_lists() -> None:
    assert list_models(task="stereo")
    assert sorted([*list_models(pretrained=True), *list_models(pretrained=False)]) == NAMES
    assert set(list_models(task="stereo")) <= set(NAMES)
    with pytest.raises(UnknownNameError, match="did you mean stereo"):
        list_models(task="stere")


@pytest.mark.parametrize("function", [create_model, load_card])
def test_unknown_names_list_near_ones(function: object) -> None:
    with pytest.raises(KeyError, match=r"unknown model 'fadnetp': did you mean .*fadnet") as caught:
        function("fadnetp")  # type: ignore[operator]
    assert isinstance(caught.value, Vision3DError)
    with pytest.raises(UnknownNameError, match=r"known: .*fadnetpp_micro"):
        function("zzzzzz")  # type: ignore[operator]


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"{SMALL}: .*no_such"):
        create_model(SMALL, no_such=1)


def test_no_weights_are_shipped() -> None:
    name = next(name for name in NAMES if not load_card(name).weights)
    with pytest.raises(WeightsError, match=f"no weights are shipped for '{name}': .*--weights PATH"):
        create_model(name, pretrained=True)
    with pytest.raises(WeightsError, match="no weights are shipped"):
        create_model(f"{name}.synthetic")


@pytest.mark.parametrize("way", ["tag in the name", "tag", "true", "path"])
def test_ways_to_ask_for_weights(way: str, card: ModelCard, state: dict[str, torch.Tensor]) -> None:
    model = {
        "tag in the name": lambda: create_model(f"{SMALL}.made"),
        "tag": lambda: create_model(SMALL, pretrained="made"),
        "true": lambda: create_model(SMALL, pretrained=True),
        "path": lambda: create_model(SMALL, pretrained=card.weights[0].file),
    }[way]()
    assert not model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


def test_two_kinds_of_weights_are_refused(card: ModelCard) -> None:
    with pytest.raises(ConfigError, match="names the weights 'made'"):
        create_model(f"{SMALL}.made", pretrained=card.weights[0].file)
    assert create_model(f"{SMALL}.made", pretrained="made").name == SMALL


def test_addresses_of_weights(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, torch.Tensor]
) -> None:
    fetched: list[str] = []

    def fetch(url: str, target: str, progress: bool) -> None:
        fetched.append(url)
        Path(target).write_bytes(weights.read_bytes())

    monkeypatch.setattr(torch.hub, "download_url_to_file", fetch)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    address = "https://example.org/w.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    with pytest.raises(WeightsError, match="use https"):
        create_model(SMALL, pretrained=address.replace("https", "http"))
    with pytest.raises(WeightsError, match="is no checksum"):
        create_model(SMALL, pretrained=f"{address}#md5=1")
    with pytest.raises(WeightsError, match="SHA-256 of the file is not"):
        create_model(SMALL, pretrained=f"{address}#sha256={'0' * 64}")
    assert not list((tmp_path / "hub" / "vision3d").iterdir())
    for _ in range(2):
        model = create_model(SMALL, pretrained=f"{address}#sha256={digest.upper()}")
    assert fetched == [address] * 2  # the refused one, and one that is kept
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["fadnetpp_micro", "covonet"])
def test_a_network_knows_its_name(name: str) -> None:
    assert create_model(name).name == name


def test_an_unknown_tag_lists_near_ones(card: ModelCard) -> None:
    with pytest.raises(UnknownNameError, match=f"weight tag of '{SMALL}' 'mad': did you mean made"):
        create_model(f"{SMALL}.mad")


def test_a_wrong_checksum_is_refused(card: ModelCard) -> None:
    path = card.weights[0].file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"damaged .SHA-256 differs"):
        create_model(f"{SMALL}.made")
    path.unlink()
    with pytest.raises(WeightsError, match="cannot be read"):
        create_model(f"{SMALL}.made")


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"\x80\x04", b"PK\x03\x04broken"])
def test_a_corrupt_file_is_refused(suffix: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"weights\.") as caught:
        create_model(SMALL, pretrained=path)
    assert "\n" not in str(caught.value)


def test_a_truncated_file_is_refused(weights: Path) -> None:
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(WeightsError, match="not a whole safetensors file"):
        create_model(SMALL, pretrained=weights)


class Harmful:
    """Makes a folder when it is unpickled."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.target,)


@pytest.mark.parametrize("suffix", [".pth", ".ckpt", ".pt", ".tar"])
def test_pickled_code_is_refused_and_does_not_run(suffix: str, tmp_path: Path) -> None:
    target = tmp_path / "made_by_code"
    path = tmp_path / f"weights{suffix}"
    torch.save({"state_dict": Harmful(str(target))}, path)
    with pytest.raises(WeightsError, match="pickled code"):
        create_model(SMALL, pretrained=path)
    path.write_bytes(pickle.dumps(Harmful(str(target))))
    with pytest.raises(WeightsError):
        create_model(SMALL, pretrained=path)
    assert not target.exists()


def test_weights_of_another_model_are_refused(weights: Path) -> None:
    other = next(name for name in ("fadnetpp_tiny", "covonet") if name in NAMES)
    with pytest.raises(WeightsError, match=str(weights)) as caught:
        create_model(other, pretrained=weights)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such weights file"):
        create_model(SMALL, pretrained=tmp_path / "nothing.safetensors")


def test_a_name_registered_twice_by_different_modules_is_an_error() -> None:
    def fadnetpp_micro() -> torch.nn.Module:
        return torch.nn.Identity()

    assert vision3d.list_models()
    with pytest.raises(ValueError, match="registered twice"):
        registry.register_model(task="stereo", family="other")(fadnetpp_micro)
