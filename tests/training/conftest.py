# SPDX-License-Identifier: Apache-2.0
"""The tiny network is known to the training tests alone, so that no other test finds it in the registry."""

from __future__ import annotations

import pytest
from tiny import register_tiny

from vision3d import registry


@pytest.fixture(autouse=True)
def _tiny_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry.registered_models()))
    register_tiny()
