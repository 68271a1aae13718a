# SPDX-License-Identifier: Apache-2.0
"""Measuring the ops from Python."""

from __future__ import annotations

import pytest
import torch

from vision3d.benchmark.ops import measure_ops
from vision3d.errors import InputError


def test_rows_agree_with_the_loop() -> None:
    seen: list[str] = []
    rows, machine = measure_ops("convex", seconds=0.001, progress=seen.append)
    assert seen == ["convex_upsample B1 136x240 x4"]
    assert [row.op for row in rows] == ["convex_upsample"]
    assert rows[0].difference < 1e-4
    assert rows[0].forward_ms > 0
    assert f"torch {torch.__version__}, 1 thread" in machine


@pytest.mark.parametrize("options", [{"only": "nothing"}, {"threads": 0}, {"seconds": float("nan")}])
def test_wrong_arguments(options: dict[str, object]) -> None:
    before = torch.get_num_threads()
    with pytest.raises(InputError):
        measure_ops(**options)  # type: ignore[arg-type]
    assert torch.get_num_threads() == before
