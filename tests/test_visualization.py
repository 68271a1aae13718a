# SPDX-License-Identifier: Apache-2.0
"""Colour maps and pictures."""

from __future__ import annotations

import numpy as np
import pytest

from vision3d import visualization as vis


def test_turbo_runs_from_dark_blue_to_dark_red() -> None:
    table = vis.color_table("turbo")
    assert table.shape == (256, 3)
    assert table[0].tolist() == pytest.approx([48, 18, 59], abs=3)  # the published table (Mikhailov 2019)
    assert table[255].tolist() == pytest.approx([122, 4, 3], abs=3)


def test_colors_saturate_and_unknown_is_its_own_color() -> None:
    values = np.array([[np.nan, -5.0, 0.0, 10.0, 99.0, np.inf]])
    picture = vis.colorize(values, 0, 10, invalid=(1, 2, 3))
    table = vis.color_table()
    assert picture[0, 0].tolist() == picture[0, 5].tolist() == [1, 2, 3]
    assert (picture[0, 1:3] == table[0]).all()
    assert (picture[0, 3:5] == table[255]).all()


@pytest.mark.parametrize(("value", "ceiling"), [(57, 60), (64.1, 80), (1.0, 1.0), (0.021, 0.03), (9.5, 10), (191, 200)])
def test_ranges_move_in_steps(value: float, ceiling: float) -> None:
    assert vis.nice_ceiling(value) == pytest.approx(ceiling)


def test_range_of_nothing() -> None:
    assert vis.display_range(np.full((3, 3), np.nan)) == (0.0, 1.0)
    assert vis.nice_ceiling(0) == 1.0


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (120, 40), (700, 900)])
def test_bar_stands_beside_the_picture(size: tuple[int, int]) -> None:
    disparity = np.linspace(0, 50, size[0] * size[1], dtype=np.float32).reshape(size)
    picture = vis.disparity_picture(disparity, high=60)
    assert picture.shape[0] == size[0]
    assert picture.shape[1] > size[1]
    assert (picture[:, : size[1]] == vis.colorize(disparity, 0, 60)).all()


def test_unit_picture() -> None:
    assert vis.unit_picture(np.array([[0.0, 0.5, 1.0, np.nan, 2.0]])).tolist() == [[0, 128, 255, 0, 255]]
