# SPDX-License-Identifier: Apache-2.0
"""Every recipe and every card of a network says its licence in the first line."""

from __future__ import annotations

from pathlib import Path

import pytest

from vision3d.resources import resource_folder

FILES = [
    *sorted(path for path in resource_folder("configs").rglob("*") if path.is_file()),
    *sorted(resource_folder("models").glob("*/card.yaml")),
]


def test_there_are_recipes_and_cards() -> None:
    assert {path.name for path in FILES} >= {"synthetic_cpu.yaml", "sceneflow.yaml", "card.yaml"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_first_line(path: Path) -> None:
    assert path.read_text(encoding="utf-8").splitlines()[0] == "# SPDX-License-Identifier: Apache-2.0"
