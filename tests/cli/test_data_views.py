# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vision3d.cli.main import main
from vision3d.datasets.multiview_pool import MultiViewPool


def test_synthesize_multi_view_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("open3d")
    from vision3d.datasets.synthetic.rooms import make_room_views

    arguments = ["data", "synthesize", str(tmp_path / "pool"), "--kind", "rooms", "--size", "16x32", "--seed", "4"]
    assert main([*arguments, "--layout", "pool", "--views", "3", "--scenes", "1"]) == 0
    sample, want = MultiViewPool(tmp_path / "pool", views=None)[0], make_room_views(4, 3, 16, 32)
    np.testing.assert_array_equal(sample.images, want.images)
    np.testing.assert_array_equal(sample.depth, want.depth)
    assert sample.depth_range == want.depth_range
    assert sample.unit == "m"
    capsys.readouterr()
    for wrong in (["--layout", "pool", "--views", "1"], ["--layout", "sceneflow", "--views", "3"]):
        assert main([*arguments, *wrong]) == 2
        assert "--kind rooms --layout pool" in capsys.readouterr().err
