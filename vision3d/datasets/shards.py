# SPDX-License-Identifier: Apache-2.0
"""Writing one shard of a memory-mapped pool; what its arrays mean is each pool's own business."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vision3d.errors import OutputError


def save_shard(
    folder: Path, name: str, stacks: Mapping[str, np.ndarray], facts: Mapping[str, object], suffix: str = ".json"
) -> None:
    """Write ``<name>.<part>.npy`` for each stack, then ``<name><suffix>`` with the facts, which marks a whole shard.

    Every file is written beside its place and renamed.

    Raises:
        OutputError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part, stack in stacks.items():
            temporary = folder / f".{name}.{part}.tmp.npy"
            np.save(temporary, stack)
            os.replace(temporary, folder / f"{name}.{part}.npy")
        temporary = folder / f".{name}.tmp"
        temporary.write_text(json.dumps(facts), encoding="utf-8")
        os.replace(temporary, folder / f"{name}{suffix}")
    except OSError as error:
        raise OutputError(f"{folder}: the pool cannot be written ({error.strerror}): check the path") from error
