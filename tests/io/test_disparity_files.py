# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vision3d.errors import DisparityError, InputError, OutputError
from vision3d.io.disparity import (
    read_depth_png16,
    read_disparity,
    write_depth_png16,
    write_disparity,
    write_disparity_png16,
)
from vision3d.io.pfm import read_pfm, write_pfm

NAN = np.float32(np.nan)
MAP = np.array([[1.5, NAN, 3.25], [0.5, 20.0, 100.125]], dtype=np.float32)
TMP = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("suffix", [".pfm", ".png", ".npy"])
def test_round_trip_by_suffix(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    write_disparity(file, MAP)
    back = read_disparity(file)
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, MAP)


def test_codes_of_unknown_pixels(tmp_path: Path) -> None:
    write_disparity(tmp_path / "a.pfm", MAP)
    assert np.isposinf(read_pfm(tmp_path / "a.pfm")[0, 1])
    write_disparity(tmp_path / "a.png", MAP)
    codes = cv2.imread(str(tmp_path / "a.png"), cv2.IMREAD_UNCHANGED)
    assert codes.dtype == np.uint16
    np.testing.assert_array_equal(codes, np.nan_to_num(MAP * 256).astype(np.uint16))


@TMP
@given(codes=hnp.arrays(np.uint16, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_png16_round_trip(tmp_path: Path, codes: np.ndarray) -> None:
    disparity = np.where(codes > 0, codes / np.float32(256), np.float32(np.nan))
    write_disparity_png16(tmp_path / "a.png", disparity)
    np.testing.assert_array_equal(cv2.imread(str(tmp_path / "a.png"), cv2.IMREAD_UNCHANGED), codes)
    np.testing.assert_array_equal(read_disparity(tmp_path / "a.png"), disparity)


def test_png16_limits(tmp_path: Path) -> None:
    write_disparity_png16(tmp_path / "a.png", np.array([[0.0, 1e-6, 65535 / 256, -0.5, np.inf]]))
    codes = cv2.imread(str(tmp_path / "a.png"), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(codes, [[1, 1, 65535, 1, 0]])
    with pytest.raises(InputError, match="pfm"):
        write_disparity_png16(tmp_path / "b.png", np.array([[256.0]]))


@TMP
@given(codes=hnp.arrays(np.uint16, (3, 5)))
def test_depth_round_trip(tmp_path: Path, codes: np.ndarray) -> None:
    depth = np.where(codes > 0, codes / np.float32(1000), np.float32(np.nan))
    write_depth_png16(tmp_path / "a.png", depth)
    np.testing.assert_array_equal(cv2.imread(str(tmp_path / "a.png"), cv2.IMREAD_UNCHANGED), codes)
    np.testing.assert_array_equal(read_depth_png16(tmp_path / "a.png"), depth)


def test_depth_beyond_range_is_unknown(tmp_path: Path) -> None:
    write_depth_png16(tmp_path / "a.png", np.array([[65.535, 65.6, 0.0, -1.0, np.inf, np.nan]]))
    np.testing.assert_array_equal(
        np.isfinite(read_depth_png16(tmp_path / "a.png")), [[True, False, False, False, False, False]]
    )


@pytest.mark.parametrize("suffix", [".png", ".pgm", ".tif"])
def test_eight_bit_needs_a_divisor(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    cv2.imwrite(str(file), np.array([[0, 3, 255]], dtype=np.uint8))
    np.testing.assert_array_equal(read_disparity(file, divide_by=3), np.array([[NAN, 1, 85]], dtype=np.float32))
    np.testing.assert_array_equal(read_disparity(file, "uint8", 3, "none"), [[0, 1, 85]])
    np.testing.assert_array_equal(read_disparity(file, "uint8", 3, 255), np.array([[0, 1, NAN]], dtype=np.float32))
    with pytest.raises(DisparityError, match="divide_by"):
        read_disparity(file)
    with pytest.raises(DisparityError, match="uint16"):
        read_disparity(file, "uint16", 256)


def test_sixteen_bit_pgm_and_float_tiff(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.pgm"), np.array([[0, 256, 640]], dtype=np.uint16))
    np.testing.assert_array_equal(read_disparity(tmp_path / "a.pgm"), np.array([[NAN, 1, 2.5]], dtype=np.float32))
    cv2.imwrite(str(tmp_path / "a.tif"), MAP)
    np.testing.assert_array_equal(read_disparity(tmp_path / "a.tif"), MAP)


def test_numpy_archives(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", np.where(np.isnan(MAP), np.inf, MAP))
    np.testing.assert_array_equal(read_disparity(tmp_path / "one.npz"), MAP)
    np.savez_compressed(tmp_path / "two.npz", left=MAP, right=MAP + 1)
    np.testing.assert_array_equal(read_disparity(tmp_path / "two.npz", "npz:right"), MAP + 1)
    with pytest.raises(DisparityError, match="left, right"):
        read_disparity(tmp_path / "two.npz")
    with pytest.raises(DisparityError, match="no array 'up'"):
        read_disparity(tmp_path / "two.npz", "npz:up")
    np.save(tmp_path / "a.npy", MAP[..., None].astype(np.float64))
    np.testing.assert_array_equal(read_disparity(tmp_path / "a.npy"), MAP)


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.png", "a.pfm"])
@pytest.mark.parametrize("keep", [0, 3, 0.5, 0.95])
def test_truncated_files(tmp_path: Path, name: str, keep: float) -> None:
    file = tmp_path / name
    values = np.abs(np.random.default_rng(0).normal(size=(30, 40)))
    np.savez(file, values) if name == "a.npz" else write_disparity(file, values)
    content = file.read_bytes()
    file.write_bytes(content[: int(keep if keep >= 1 else keep * len(content))])
    with pytest.raises(DisparityError) as caught:
        read_disparity(file)
    assert "\n" not in str(caught.value)


def test_wrong_arrays_are_errors(tmp_path: Path) -> None:
    cases = {
        "vector": np.zeros(4),
        "color": np.zeros((4, 4, 3)),
        "object": np.array([[{}]], dtype=object),
        "complex": np.zeros((2, 2), dtype=complex),
        "empty": np.zeros((0, 4)),
        "scalar": np.float32(1),
    }
    for name, array in cases.items():
        np.save(tmp_path / f"{name}.npy", array, allow_pickle=True)
        with pytest.raises(DisparityError):
            read_disparity(tmp_path / f"{name}.npy")


def test_absurd_numpy_header(tmp_path: Path) -> None:
    for shape in ((10**9, 10**9), (10**4, 10**4)):
        with (tmp_path / "a.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        with pytest.raises(DisparityError):
            read_disparity(tmp_path / "a.npy")


def test_damaged_numpy_header(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", MAP)
    content = (tmp_path / "a.npy").read_bytes()
    for old, new in ((b"(2, 3)", b"(2, 3 "), (b"{", b" "), (b"descr", b"de\ncr"), (b"<f4", b"<q9")):
        (tmp_path / "a.npy").write_bytes(content.replace(old, new, 1))
        with pytest.raises(DisparityError) as caught:
            read_disparity(tmp_path / "a.npy")
        assert "\n" not in str(caught.value)


def test_pictures_that_are_no_maps(tmp_path: Path) -> None:
    color = np.zeros((4, 4, 3), dtype=np.uint8)
    for name in ("a.png", "a.jpg"):
        cv2.imwrite(str(tmp_path / name), color)
        with pytest.raises(DisparityError):
            read_disparity(tmp_path / name, divide_by=1)
    write_pfm(tmp_path / "c.pfm", color.astype(np.float32))
    for name in ("c.pfm", "missing.pfm", "a.txt"):
        with pytest.raises(DisparityError):
            read_disparity(tmp_path / name)
    with pytest.raises(DisparityError, match="unknown disparity encoding"):
        read_disparity(tmp_path / "a.png", "velodyne")


def test_negative_values(tmp_path: Path) -> None:
    write_pfm(tmp_path / "flipped.pfm", np.array([[-1.0, -2.0, np.inf]]))
    with pytest.raises(DisparityError, match="sign is flipped"):
        read_disparity(tmp_path / "flipped.pfm")
    write_pfm(tmp_path / "mixed.pfm", np.array([[1.0, -2.0, -np.inf]]))
    with pytest.raises(DisparityError, match="1 disparities are negative"):
        read_disparity(tmp_path / "mixed.pfm")
    write_pfm(tmp_path / "unknown.pfm", np.array([[np.inf, -np.inf, np.nan]]))
    assert np.isnan(read_disparity(tmp_path / "unknown.pfm")).all()
    np.testing.assert_array_equal(
        read_disparity(tmp_path / "mixed.pfm", invalid=-2), np.array([[1, NAN, NAN]], dtype=np.float32)
    )


def test_illegal_arguments(tmp_path: Path) -> None:
    write_disparity(tmp_path / "a.pfm", MAP)
    with pytest.raises(InputError):
        read_disparity(tmp_path / "a.pfm", divide_by=0)
    with pytest.raises(InputError):
        read_disparity(tmp_path / "a.pfm", invalid="zero")
    with pytest.raises(OutputError):
        write_disparity(tmp_path / "a.jpg", MAP)
    for array in (MAP[0], np.zeros((0, 3)), MAP[None, None], MAP.astype(complex)):
        with pytest.raises(InputError):
            write_disparity(tmp_path / "b.pfm", array)


@pytest.mark.real
def test_every_real_map_has_the_range_of_its_index(shared: Path) -> None:
    root = shared / "data/stereo"
    for scene, entry in json.loads((root / "index.json").read_text()).items():
        truth = entry["gt"]
        if truth is None or truth["encoding"] == "velodyne":
            continue
        disparity = read_disparity(
            root / scene / truth["file"], truth["encoding"], truth["divide_by"], truth["invalid"]
        )
        assert disparity.shape == (entry["height"], entry["width"])
        assert np.nanmin(disparity) == pytest.approx(entry["disp_min"], abs=6e-4), scene
        assert np.nanmax(disparity) == pytest.approx(entry["disp_max"], abs=6e-4), scene
        assert np.isfinite(disparity).mean() == pytest.approx(entry["gt_density"], abs=6e-5), scene
