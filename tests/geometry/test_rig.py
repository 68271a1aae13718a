# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from vision3d.errors import CalibrationError
from vision3d.geometry.rig import fit_rig_to_image
from vision3d.io.calibration import read_calibration, write_calibration
from vision3d.types import Camera, StereoRig


def rig_of(cx: float = 320, cy: float = 240) -> StereoRig:
    camera = Camera(np.array([[500.0, 0, cx], [0, 500, cy], [0, 0, 1]]))
    return StereoRig(camera, camera, 0.1)


def test_calibration_of_another_size_is_refused() -> None:
    rig = rig_of()
    fitted = fit_rig_to_image(rig, 640, 480)
    assert fitted.size == (640, 480)
    assert fit_rig_to_image(fitted, 640, 480) is fitted
    with pytest.raises(CalibrationError, match="640x480 but the images are 320x240"):
        fit_rig_to_image(fitted, 320, 240)
    with pytest.raises(CalibrationError, match="principal point"):
        fit_rig_to_image(rig, 100, 90)


@pytest.mark.parametrize("size", [(1280, 960), (640, 400), (320, 480), (319, 480)])
def test_files_and_rigs_follow_one_rule(size: tuple[int, int], tmp_path) -> None:
    for rig in (rig_of(), rig_of().with_size(640, 480), rig_of(-5, 240)):
        write_calibration(tmp_path / "rig.json", rig)
        answers = []
        for fit in (
            lambda rig=rig: fit_rig_to_image(rig, *size),
            lambda: read_calibration(tmp_path / "rig.json", image_size=size),
        ):
            try:
                answers.append(str(fit().size))
            except CalibrationError as error:
                answers.append(str(error).removeprefix(f"{tmp_path / 'rig.json'}: "))
        assert answers[0] == answers[1]


def test_intrinsics_that_are_not_finite_are_named() -> None:
    with pytest.raises(CalibrationError, match=r"finite numbers, got .*nan"):
        Camera(np.array([[np.nan, 0, 1], [0, 1, 1], [0, 0, 1]]))
    with pytest.raises(CalibrationError, match=r"3x3 matrix, got shape \(2, 3\)"):
        Camera(np.ones((2, 3)))
