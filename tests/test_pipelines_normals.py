# SPDX-License-Identifier: Apache-2.0
"""Normals of predictions: cameras through scale and padding, files, clouds, pages; oracle: an exact corner."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from corner import CornerNetwork, angles, corner_rig, corner_sample, flat
from matcher import Constant

from vision3d import predict_stereo
from vision3d.errors import InputError
from vision3d.geometry.normals import turn_to_camera
from vision3d.io.pointcloud import read_pointcloud
from vision3d.results import StereoResult
from vision3d.visualization import normals_picture


def predict(network: CornerNetwork, scale: float = 1.0, doffs: float = 0.0) -> StereoResult:
    sample = corner_sample(corner_rig(110, 50, doffs))
    return predict_stereo(
        sample.left,
        sample.right,
        model=network,
        calibration=sample.rig,
        scale=scale,
        confidence=False,
        check_pair=False,
    )


@pytest.mark.parametrize("doffs", [0.0, 6.0])
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.73, 2.0])
def test_cameras_follow_scale_and_padding(scale: float, doffs: float) -> None:
    network = CornerNetwork(corner_rig())
    result = predict(network, scale, doffs)
    (size, matrix, shift), *_ = network.calls
    assert size[0] % 32 == size[1] % 32 == 0
    width = round(110 * scale)
    assert matrix[0, 0] == pytest.approx(90 * width / 110, rel=1e-6)
    assert shift == pytest.approx(doffs * width / 110, abs=1e-4)
    truth = corner_sample(corner_rig(110, 50, doffs))
    same = np.asarray(result.normals, np.float64)
    error = angles(same, np.asarray(truth.normals, np.float64))
    assert np.allclose(np.linalg.norm(same, axis=2), 1, atol=1e-6)
    assert np.median(error) < 0.1
    assert (error < 1).mean() > 0.93
    assert np.nanmedian(np.abs(result.disparity - truth.disparity)) < 0.05


def test_answers_that_face_away_are_turned() -> None:
    camera = corner_rig().left
    rays = np.linalg.inv(camera.intrinsics) @ np.array([10.0, 50.0, 1.0])
    normals = np.zeros((64, 128, 3), np.float32)
    normals[..., 2] = 1.0
    turned = turn_to_camera(normals, camera)
    along = (turned[50, 10] * rays / np.linalg.norm(rays)).sum()
    assert along < 0
    assert np.linalg.norm(turned[50, 10]) == pytest.approx(1, abs=1e-6)
    facing = -normals
    assert np.allclose(turn_to_camera(facing, camera), facing, atol=1e-6)
    with pytest.raises(InputError, match=r"\[H, W, 3\]"):
        turn_to_camera(normals[..., :2], camera)


def test_files_cloud_and_page(tmp_path: Path) -> None:
    result = predict(CornerNetwork(corner_rig()))
    files = result.save(tmp_path)
    stored = np.load(files["normals.npy"])
    assert stored.dtype == np.float32
    assert np.array_equal(stored, result.normals)
    picture = cv2.imread(str(files["normals.png"]))[..., ::-1]
    back = np.array([0, 0, -1])
    wall = angles(np.asarray(result.normals), back) < 0.1
    assert wall.any()
    assert (picture[wall] == [128, 128, 255]).all()
    cloud = read_pointcloud(files["cloud.ply"])
    assert cloud.normals is not None
    assert np.allclose(np.linalg.norm(cloud.normals, axis=1), 1, atol=1e-4)
    assert ((cloud.normals * cloud.points).sum(axis=1) < 0).all()
    page = files["view.html"].read_text(encoding="utf-8")
    assert '"normals":"' in page
    assert json.loads(files["report.json"].read_text())["normals"] == {"source": "network", "valid_percent": 100.0}


def test_cloud_points_carry_the_normals_of_their_planes() -> None:
    result = predict(CornerNetwork(corner_rig()))
    cloud = result.pointcloud()
    floor = cloud.points[:, 1] > 1.19
    assert floor.sum() > 50
    assert (angles(cloud.normals[floor], np.array([0, -1.0, 0])) < 0.5).mean() > 0.9


def test_unknown_normals_do_not_cost_points() -> None:
    result = predict(CornerNetwork(corner_rig()))
    before = len(result.pointcloud())
    result.normals[10:40, 10:60] = np.nan
    cloud = result.pointcloud()
    assert len(cloud) == before
    assert np.isfinite(cloud.normals).all()


def test_networks_without_normals_get_fitted_ones_on_request() -> None:
    sample = corner_sample()
    common = {"calibration": sample.rig, "confidence": False, "check_pair": False}
    network = Constant(10.0)
    assert predict_stereo(sample.left, sample.right, network, **common).normals is None
    result = predict_stereo(sample.left, sample.right, network, normals=True, **common)
    assert result.normals_source == "disparity"
    assert np.allclose(result.normals, [0, 0, -1], atol=1e-4)  # constant disparity: a wall that faces the camera


def test_fitted_normals_without_calibration_are_refused_before_the_pass() -> None:
    sample = corner_sample()
    network = Constant(10.0)
    network.register_forward_pre_hook(lambda *_: pytest.fail("the network ran"))
    with pytest.raises(InputError, match="--calib"):
        predict_stereo(sample.left, sample.right, network, normals=True, confidence=False, check_pair=False)


def test_without_calibration_a_focal_length_is_assumed_and_told() -> None:
    sample, network = corner_sample(), CornerNetwork(corner_rig())
    result = predict_stereo(sample.left, sample.right, network, confidence=False, check_pair=False)
    assert network.calls[0][1][0, 0] == 64.0  # half the width: 90 degrees
    assert any("assume a focal length of 64 px" in text for text in result.warnings)
    network.set_focal_length(77.0, 78.0)
    predict_stereo(sample.left, sample.right, network, confidence=False, check_pair=False)
    assert network.calls[1][1][0, 0] == 77.0
    assert network.calls[1][1][1, 1] == 78.0


def test_the_picture_of_normals() -> None:
    normals = np.array([[[1, 0, 0], [0, -1, 0], [0, 0, -1], [np.nan, 0, 0]]], np.float32)
    assert normals_picture(normals).tolist() == [[[255, 128, 128], [128, 255, 128], [128, 128, 255], [0, 0, 0]]]


def test_the_helper_knows_its_flat_pixels() -> None:
    assert flat(corner_sample()).mean() > 0.9
