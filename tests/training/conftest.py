# SPDX-License-Identifier: Apache-2.0
"""The tiny network is known to the training tests alone, so that no other test finds it in the registry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tiny import register_tiny

from vision3d import registry


@pytest.fixture(scope="module", autouse=True)
def _tiny_is_registered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_ENTRIES", dict(registry.registered_models()))
        register_tiny()
        yield
