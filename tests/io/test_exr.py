# SPDX-License-Identifier: Apache-2.0
"""OpenEXR files: what is written is read, and damage gives our message alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from vision3d.errors import DisparityError
from vision3d.io.exr import read_exr, write_exr

pytest.importorskip("OpenEXR")


def test_a_truncated_file_prints_nothing_of_the_library(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    values = np.random.default_rng(0).random((40, 60), dtype=np.float32)
    write_exr(tmp_path / "a.exr", {"Y": values})
    np.testing.assert_array_equal(read_exr(tmp_path / "a.exr")["Y"], values)
    content = (tmp_path / "a.exr").read_bytes()
    for share in (0.1, 0.5, 0.9):
        (tmp_path / "b.exr").write_bytes(content[: int(share * len(content))])
        with pytest.raises(DisparityError, match="truncated or damaged"):
            read_exr(tmp_path / "b.exr")
    os.write(2, b"heard again")
    sys.stdout.write("this as well\n")
    assert capfd.readouterr() == ("this as well\n", "heard again")
