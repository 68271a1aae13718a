# SPDX-License-Identifier: Apache-2.0
"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parent.parent


def shared_folder() -> Path:
    """Where the real images and the reference outputs lie (they are not part of the repository)."""
    return Path(os.environ.get("VISION3D_SHARED") or REPOSITORY.parent / "shared")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    folder = shared_folder()
    if not folder.is_dir():
        message = f"no folder {folder}: set VISION3D_SHARED to the real images and reference outputs"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder
