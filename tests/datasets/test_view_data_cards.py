# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from vision3d.datasets.cards import load_dataset_card
from vision3d.datasets.registry import find_dataset, list_datasets, open_dataset
from vision3d.datasets.toy_multiview import write_multiview_tree
from vision3d.datasets.toy_panorama import write_panorama_tree
from vision3d.errors import ConfigError
from vision3d.resources import resource_folder
from vision3d.types import MultiViewSample, PanoramaSample

NAMES = sorted({*list_datasets("mvs"), *list_datasets("panorama"), "image_folder"})


@pytest.mark.parametrize("name", NAMES)
def test_cards_and_readers_agree(name: str) -> None:
    card = load_dataset_card(name)
    reader = find_dataset(name).load()
    for field in ("title", "license", "pairs", "tree", "encoding", "protocol", "options"):
        assert getattr(card, field), field
    assert reader.name == name
    assert set(card.splits) in (set(), set(reader.splits))
    assert f"`{name}`" in (resource_folder("datasets") / "README.md").read_text()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "dtu" and find_dataset(name).needs_root])
def test_registered_readers_open_toy_trees(name: str, tmp_path: Path) -> None:
    panorama = find_dataset(name).task == "panorama"
    if name in ("panorama3d60", "pano3d"):
        pytest.importorskip("OpenEXR")
    (write_panorama_tree if panorama else write_multiview_tree)(name, tmp_path)
    split = "test" if name == "tanks_and_temples" else "train"
    data = open_dataset(name, tmp_path, split=split)
    assert isinstance(data[0], PanoramaSample if panorama else MultiViewSample)
    assert len(data.scenes) == len(data)  # type: ignore[attr-defined, arg-type]
    with pytest.raises(ConfigError, match="colour"):
        open_dataset(name, tmp_path, split=split, colour="red")
