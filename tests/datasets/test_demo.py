# SPDX-License-Identifier: Apache-2.0
"""The demo pair: its truth explains its images, and its calibration gives the depths of the scene."""

from __future__ import annotations

import numpy as np
import pytest

from vision3d.datasets.demo import load_motorcycle
from vision3d.geometry.disparity import disparity_to_depth

pytest.importorskip("skimage")


def test_motorcycle() -> None:
    left, right, truth, rig = load_motorcycle()
    assert left.shape == right.shape == (500, 741, 3)
    assert truth.shape == left.shape[:2]
    known = np.isfinite(truth)
    assert 0.8 < known.mean() < 1
    assert not np.isinf(truth).any()
    # The right image at x - d looks like the left one at x, and unlike it a few pixels beside.
    rows, columns = np.nonzero(known)
    grey_left, grey_right = left.mean(2), right.mean(2)

    def difference(shift: int) -> float:
        matched = np.clip(np.rint(columns - truth[known]).astype(int) + shift, 0, 740)
        return float(np.median(np.abs(grey_left[rows, columns] - grey_right[rows, matched])))

    assert difference(0) < 0.5 * min(difference(-8), difference(8))
    depth = np.asarray(disparity_to_depth(truth, rig))
    assert 1.5 < np.nanmin(depth) < np.nanmax(depth) < 12  # metres
