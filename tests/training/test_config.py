# SPDX-License-Identifier: Apache-2.0
"""Recipes: every one in configs/ loads strictly; wrong ones say what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vision3d.errors import ConfigError
from vision3d.resources import resource_folder
from vision3d.training.config import config_from_dict, config_to_dict, load_config
from vision3d.training.losses import create_loss

RECIPES = sorted(resource_folder("configs").rglob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recipe_loads(path: Path) -> None:
    config = load_config(path)
    assert config_from_dict(config_to_dict(config)) == config
    from vision3d.registry import find_model

    find_model(config.model.name)
    create_loss(config.loss.name, **config.loss.options)
    multiple = 64 if "fadnet" in config.model.name else 16
    assert all(side % multiple == 0 for side in config.data.crop)


def test_published_recipe_figures() -> None:
    config = load_config(resource_folder("configs") / "fadnet" / "sceneflow.yaml")
    assert [item.epochs for item in config.loss.rounds] == [20, 20, 20, 30]
    assert config.loss.rounds[1].weights == [0.6, 0.32, 0.08, 0.04, 0.02, 0.01, 0.005]
    assert config.trainer.batch_size * config.trainer.accumulate == 16
    assert (config.optimizer.name, config.optimizer.lr, config.optimizer.amsgrad) == ("adam", 1e-4, True)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    content = {"model": {"name": "tiny"}, "data": {"train": [{"kind": "pool", "root": "a"}]}}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_overrides(recipe: Path) -> None:
    overrides = [
        "trainer.max_steps=10",
        "data.train.0.root=b",
        "data.crop=[64, 128]",
        "optimizer.lr=1e-3",
        "model.options.max_disparity=64",
        "data.validation=[{kind: synthetic, options: {scenes: 3}}]",
    ]
    config = load_config(recipe, overrides)
    assert config.trainer.max_steps == 10
    assert config.data.train[0].root == "b"
    assert config.data.crop == (64, 128)
    assert config.optimizer.lr == 1e-3
    assert config.model.options == {"max_disparity": 64}
    assert config.data.validation[0].options == {"scenes": 3}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.max_step=10", "unknown option 'trainer.max_step': did you mean 'trainer.max_steps'"),
        ("trianer.max_steps=10", "did you mean 'trainer'"),
        ("data.train.0.rot=x", "did you mean 'data.train.0.root'"),
        ("data.train.3.root=x", "index below 1"),
        ("data.train.0.kind=kitti2105", "did you mean kitti2015"),
        ("data.train.0.kind=pool + 2", "position 8"),
        ("trainer.max_steps=many", "trainer.max_steps"),
        ("trainer.max_steps=0", "at least 1"),
        ("optimizer.name=adm", "adam"),
        ("data.crop=[1, 2, 3]", "data.crop"),
        ("data.train=[]", "data.train is empty"),
        ("trainer.ema_decay=1.5", "ema_decay"),
        ("schedule.milestones=[3]", "same length"),
        ("schedule.hold_epochs=2", "hold_epochs is an option of cosine and linear, not of constant"),
        ("schedule.hold_epochs=-1", "schedule.hold_epochs must not be negative"),
        ("max_steps", "key.sub=value"),
        ("model.name.x=1", "holds a value"),
    ],
)
def test_wrong_options(recipe: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "- a\n", "a: [", "data: {train: [{kind: pool}]}"])
def test_wrong_files(tmp_path: Path, content: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"recipe\.yaml") as caught:
        load_config(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="check the path"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", ["covonet/synthetic_cpu", "configs/covonet/synthetic_cpu.yaml"])
def test_shipped_recipes_are_found_from_any_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vision3d.cli.train import find_recipe

    monkeypatch.chdir(tmp_path)
    assert load_config(find_recipe(name)).model.name == "covonet"
    assert find_recipe("covonet/other") == Path("covonet/other")
