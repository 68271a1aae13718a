# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vision3d.errors import DisparityError, InputError
from vision3d.io.pfm import read_pfm, write_pfm

MAP = np.arange(12, dtype=np.float32).reshape(3, 4) + 0.25

shapes = st.tuples(st.integers(1, 9), st.integers(1, 9)) | st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(array=hnp.arrays(np.float32, shapes), little=st.booleans())
def test_round_trip(tmp_path: Path, array: np.ndarray, little: bool) -> None:
    write_pfm(tmp_path / "a.pfm", array, little_endian=little)
    back = read_pfm(tmp_path / "a.pfm")
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, array)


def test_opencv_reads_what_we_write(tmp_path: Path) -> None:
    write_pfm(tmp_path / "a.pfm", MAP)
    np.testing.assert_array_equal(cv2.imread(str(tmp_path / "a.pfm"), cv2.IMREAD_UNCHANGED), MAP)
    color = np.dstack([MAP, MAP + 100, MAP + 200])
    write_pfm(tmp_path / "c.pfm", color)
    np.testing.assert_array_equal(cv2.imread(str(tmp_path / "c.pfm"), cv2.IMREAD_UNCHANGED)[..., ::-1], color)


@pytest.mark.parametrize(
    "header",
    [
        b"Pf\n4 3\n-1.0\n",
        b"Pf 4 3 -1\n",
        b"Pf\r\n4 3\r\n-1.0\r\n",
        b"Pf\n# made by hand\n4\t 3\n# scale\n-0.5 ",
        b"Pf\n4\n3\n-1e0\n",
        b"Pf \n4 3 \n-1.0 \n",
    ],
)
def test_legal_headers(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "a.pfm").write_bytes(header + MAP[::-1].astype("<f4").tobytes())
    np.testing.assert_array_equal(read_pfm(tmp_path / "a.pfm"), MAP)


def test_header_end_cr_before_a_sample_of_byte_10(tmp_path: Path) -> None:
    data = b"\n\0\0\0" * 12
    (tmp_path / "a.pfm").write_bytes(b"Pf\r4 3\r-1.0\r" + data)
    np.testing.assert_array_equal(read_pfm(tmp_path / "a.pfm").view("<u4"), np.full((3, 4), 10))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "empty"),
        (b"P6\n4 3\n255\n" + bytes(36), "not a PFM"),
        (b"Pf\n4 3\n", "incomplete"),
        (b"Pf\n4 x\n-1\n" + bytes(48), "illegal"),
        (b"Pf\n4 3\nabc\n" + bytes(48), "illegal"),
        (b"Pf\n4 3\n0\n" + bytes(48), "scale"),
        (b"Pf\n4 3\nnan\n" + bytes(48), "scale"),
        (b"Pf\n0 3\n-1\n", "absurd"),
        (b"Pf\n-4 -3\n-1\n" + bytes(48), "absurd"),
        (b"Pf\n999999999 999999999\n-1\n" + bytes(48), "absurd"),
        (b"Pf\n4 3\n-1\n" + bytes(47), "truncated"),
        (b"Pf\n4 3\n-1\n" + bytes(49), "damaged"),
        (b"PF\n4 3\n-1\n" + bytes(48), "truncated"),
    ],
)
def test_illegal_files(tmp_path: Path, content: bytes, word: str) -> None:
    (tmp_path / "a.pfm").write_bytes(content)
    with pytest.raises(DisparityError, match=word) as caught:
        read_pfm(tmp_path / "a.pfm")
    assert "\n" not in str(caught.value)


def test_missing_file_and_wrong_arrays(tmp_path: Path) -> None:
    with pytest.raises(DisparityError, match="no such file"):
        read_pfm(tmp_path / "a.pfm")
    for array in (np.zeros(4), np.zeros((0, 4)), np.zeros((4, 4, 2)), np.zeros((1, 2, 3, 4))):
        with pytest.raises(InputError):
            write_pfm(tmp_path / "a.pfm", array)
    assert not list(tmp_path.iterdir())


@pytest.mark.real
def test_real_file_agrees_with_opencv(shared: Path) -> None:
    file = shared / "data/stereo/flying_noisy/00/disp_left.pfm"
    np.testing.assert_array_equal(read_pfm(file), cv2.imread(str(file), cv2.IMREAD_UNCHANGED))
