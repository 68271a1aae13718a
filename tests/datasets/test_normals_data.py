# SPDX-License-Identifier: Apache-2.0
"""Normals and rigs through transforms, pools and batches, and the check of the axes; oracle: an exact corner."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corner import angles, corner_maps, corner_rig, corner_sample

from vision3d.datasets import transforms
from vision3d.datasets.cache import PoolStereo, write_pool
from vision3d.datasets.codecs import read_exr_normals
from vision3d.datasets.normal_axes import check_normal_axes, find_axes, spread_indices
from vision3d.errors import DisparityError, FileFormatError
from vision3d.io.exr import write_exr
from vision3d.types import StereoBatch, StereoSample


@pytest.mark.parametrize(
    "change",
    [
        lambda sample: transforms.crop(sample, 7, 21, 40, 80),
        lambda sample: transforms.shift_disparity(sample, 5),
        lambda sample: transforms.resize(sample, 96, 192),
        lambda sample: transforms.resize(sample, 64, 96),
        lambda sample: transforms.crop(transforms.resize(sample, 96, 160), 10, 3, 50, 90),
    ],
    ids=["crop", "shift", "enlarge", "stretch", "resize and crop"],
)
def test_a_transformed_rig_predicts_the_transformed_truth(change: Any) -> None:
    changed = change(corner_sample())
    disparity, normals = corner_maps(changed.rig.with_size(changed.left.shape[1], changed.left.shape[0]))
    close = np.abs(disparity - changed.disparity) < 0.02
    assert close.mean() > 0.9
    assert (angles(normals, changed.normals) < 0.01).mean() > 0.97  # resizing picks the nearest pixel at the edges


def test_the_vertical_flip_is_the_mirrored_scene() -> None:
    sample = corner_sample()
    flipped = transforms.vertical_flip(sample)
    assert np.allclose(flipped.normals[::-1] * [1, -1, 1], sample.normals)
    assert flipped.rig.left.cy == 63 - sample.rig.left.cy
    assert flipped.rig.left.cx == sample.rig.left.cx
    finding = check_normal_axes([flipped])
    assert finding is not None
    assert finding.angle < 1.0


def test_a_flip_with_view_swap_has_no_normals_but_a_mirrored_rig() -> None:
    sample = replace(corner_sample(corner_rig(doffs=3.0)), right_disparity=np.full((64, 128), 4.0, np.float32))
    swapped = transforms.horizontal_flip_swap(sample)
    assert swapped.normals is None
    assert swapped.rig.left.cx == 127 - sample.rig.right.cx
    assert swapped.rig.doffs == pytest.approx(3.0)


def test_batches_carry_normals_and_cameras() -> None:
    first, bare = corner_sample(corner_rig(doffs=2.0)), replace(corner_sample(), normals=None)
    batch = StereoBatch.collate([first, bare])
    assert torch.equal(batch.normals[0], torch.from_numpy(first.normals).permute(2, 0, 1))
    assert batch.normals[1].isnan().all()
    assert np.allclose(batch.intrinsics[0], first.rig.left.intrinsics)
    assert batch.doffs.tolist() == [2.0, 0.0]
    mixed = StereoBatch.collate([first, replace(bare, rig=None)])
    assert mixed.intrinsics is None
    assert mixed.doffs is None
    assert StereoBatch.collate([bare]).normals is None


def test_pools_keep_rigs(tmp_path: Path) -> None:
    samples = [corner_sample(corner_rig(doffs=4.0)), replace(corner_sample(), rig=None)]
    write_pool(tmp_path, samples)
    pool = PoolStereo(tmp_path)
    rig = pool[0].rig
    assert rig is not None
    assert np.allclose(rig.left.intrinsics, samples[0].rig.left.intrinsics)
    assert (rig.doffs, rig.baseline, rig.size) == (4.0, 0.2, (128, 64))
    assert pool[1].rig is None
    assert PoolStereo(tmp_path, focal=64, baseline=0.1)[0].rig.left.fx == 90.0  # the stored one counts
    assert PoolStereo(tmp_path, focal=64, baseline=0.1)[1].rig.left.cx == 63.5


def test_pools_without_rigs_still_open(tmp_path: Path) -> None:
    write_pool(tmp_path, [corner_sample()])
    facts = tmp_path / "shard00000.json"
    content = json.loads(facts.read_text())
    del content["rigs"]
    facts.write_text(json.dumps(content))
    assert PoolStereo(tmp_path)[0].rig is None
    rig = PoolStereo(tmp_path, focal=64)[0].rig
    assert (rig.left.fx, rig.left.fy, rig.left.cx, rig.left.cy, rig.baseline) == (64, 64, 63.5, 31.5, 0.1)


@pytest.mark.parametrize("rigs", [[[1, 2]], [[0, 1, 1, 1, 1, 1]], [None, None], ["x"]])
def test_damaged_rigs_are_refused(tmp_path: Path, rigs: list[Any]) -> None:
    write_pool(tmp_path, [corner_sample()])
    facts = tmp_path / "shard00000.json"
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "rigs": rigs}))
    with pytest.raises(FileFormatError, match="shard00000"):
        PoolStereo(tmp_path)


CONVENTIONS = {
    ("x", "y", "z"): lambda n: n,
    ("x", "-y", "-z"): lambda n: n * [1, -1, -1],
    ("x", "-y", "z"): lambda n: n * [1, -1, 1],
    ("-x", "-y", "-z"): lambda n: -n,
    ("x", "z", "y"): lambda n: n[..., [0, 2, 1]],
    ("y", "-z", "x"): lambda n: np.stack([n[..., 2], n[..., 0], -n[..., 1]], axis=-1),
}


@pytest.mark.parametrize("convention", CONVENTIONS, ids=" ".join)
def test_the_axes_of_stored_normals_are_found(convention: tuple[str, str, str]) -> None:
    sample = corner_sample()
    stored = CONVENTIONS[convention](np.asarray(sample.normals)).astype(np.float32)
    finding = check_normal_axes([replace(sample, normals=stored)])
    assert finding is not None
    assert finding.best == convention
    assert finding.best_angle < 1.0
    assert finding.wrong == (convention != ("x", "y", "z"))
    assert (f"as ({', '.join(convention)})" in finding.message) == finding.wrong


def test_the_message_names_the_axes() -> None:
    sample = corner_sample()
    exchanged = replace(sample, normals=sample.normals[..., [0, 2, 1]])
    turned = replace(sample, normals=sample.normals * np.float32([1, -1, -1]))
    assert "y and z exchanged" in check_normal_axes([exchanged]).message
    assert "y and z turned around" in check_normal_axes([turned]).message


def test_each_pair_is_judged_for_itself() -> None:
    samples = [corner_sample(scene=name) for name in "abcd"]
    assert [finding.wrong for finding in find_axes(samples)] == [False]
    one = [samples[0], replace(samples[1], normals=-samples[1].normals), samples[2]]
    finding = check_normal_axes(one)
    assert finding.wrong
    assert finding.message.endswith("1 of 3 checked pairs: b")
    two = [*one, replace(samples[3], normals=samples[3].normals * np.float32([1, -1, 1]))]
    assert {(item.scenes, item.best) for item in find_axes(two)} == {
        (("b",), ("-x", "-y", "-z")),
        (("d",), ("x", "-y", "z")),
    }


@pytest.mark.parametrize("missing", ["normals", "disparity", "rig"])
def test_without_truth_there_is_no_finding(missing: str) -> None:
    bare: StereoSample = replace(corner_sample(), **{missing: None})
    assert check_normal_axes([bare]) is None


def test_invalid_normals_do_not_spoil_the_check() -> None:
    sample = corner_sample()
    normals = np.array(sample.normals)
    normals[:20] = 0
    normals[20:30] = np.nan
    assert not check_normal_axes([replace(sample, normals=normals)]).wrong


def test_plain_vectors_in_a_file_of_irs_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("OpenEXR")
    normals = corner_sample().normals
    for name, stored in (("plain", normals), ("encoded", (normals + 1) / 2)):
        write_exr(tmp_path / f"{name}.exr", {"RGB"[axis]: stored[..., axis] for axis in range(3)})
    assert np.allclose(read_exr_normals(tmp_path / "encoded.exr"), normals, atol=1e-6)
    with pytest.raises(DisparityError, match=r"plain\.exr: holds plain unit vectors n, but IRS stores \(n \+ 1\) / 2"):
        read_exr_normals(tmp_path / "plain.exr")


def test_spread_indices() -> None:
    assert spread_indices(100, 4) == [0, 25, 50, 75]
    assert spread_indices(2, 4) == [0, 1]
    assert spread_indices(8, 4) == list(range(8))
    assert spread_indices(9, 4) == [0, 2, 4, 6]
    assert spread_indices(None, 3) == [0, 1, 2]
    assert spread_indices(0) == []
