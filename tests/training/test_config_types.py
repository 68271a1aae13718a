# SPDX-License-Identifier: Apache-2.0
"""Values of a wrong type in recipes: one line with the key, the expected type and the value."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from vision3d.errors import ConfigError
from vision3d.training.config import config_from_dict
from vision3d.training.config_parsing import apply_override

RECIPE: dict[str, Any] = {"model": {"name": "tiny"}, "data": {"train": [{"kind": "pool", "root": "a"}]}}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.max_steps=abc", "trainer.max_steps must be a whole number or null, got 'abc'"),
        ("trainer.seed=1.5", "trainer.seed must be a whole number, got 1.5"),
        ("trainer.ema_decay=true", "trainer.ema_decay must be a number, got True"),
        ("trainer=3", "trainer must be a group of options, got 3"),
        ("optimizer.lr=a", "optimizer.lr must be a number, got 'a'"),
        ("optimizer.name=adm", "optimizer.name must be one of 'adam', 'adamw', 'lamb', 'sgd', got 'adm'"),
        ("optimizer.amsgrad=perhaps", "optimizer.amsgrad must be true or false, got 'perhaps'"),
        ("model=3", "model must be a group of options, got 3"),
        ("model.pretrained=[1]", "model.pretrained must be true or false or text, got [1]"),
        ("data.crop=[1, b]", "data.crop must be a list of 2, each a whole number, got [1, 'b']"),
        ("data.crop=[1, 2, 3]", "data.crop must be a list of 2, each a whole number, got [1, 2, 3]"),
        ("data.train=5", "data.train must be a list, each a group of options, got 5"),
        ("data.train.0.repeat=x", "data.train.0.repeat must be a whole number, got 'x'"),
        ("data.augment=[3]", "data.augment.0 must be a group of options, got 3"),
        ("loss.rounds=[{epochs: a}]", "loss.rounds.0.epochs must be a whole number or null, got 'a'"),
        ("schedule.factors=[0.5, c]", "schedule.factors.1 must be a number, got 'c'"),
    ],
)
def test_key_type_and_value_are_named(override: str, message: str) -> None:
    content = copy.deepcopy(RECIPE)
    apply_override(content, override)
    with pytest.raises(ConfigError) as caught:
        config_from_dict(content, "recipe.yaml")
    assert str(caught.value) == f"recipe.yaml: {message}"


@pytest.mark.parametrize("text", ["optimizer: {lr: 1e-3, eps: 1.0e-6}", "trainer: {precision: '32', clip_norm: 1}"])
def test_numbers_in_every_spelling_are_taken(text: str) -> None:
    config_from_dict({**copy.deepcopy(RECIPE), **yaml.safe_load(text)})
