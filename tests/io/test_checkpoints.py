# SPDX-License-Identifier: Apache-2.0
"""Reading checkpoints: every kind of file, and every kind of damage."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from vision3d.errors import WeightsError
from vision3d.io.checkpoints import load_into, read_checkpoint, unwrap_state_dict


class Malicious:
    def __reduce__(self):
        return (Path.touch, (Path("must_not_appear"),))


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def assert_same(one, other):
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("legacy", [False, True])
def test_pytorch_file_with_numpy_numbers(tmp_path, legacy):
    state_dict = small_network().state_dict()
    content = {
        "round": 1,
        "arch": "dispnet",
        "state_dict": {f"module.{name}": value for name, value in state_dict.items()},
        "best_EPE": np.float64(0.76),
        "loss": np.float32(0.5),
        "optimizer": {"state": {}, "param_groups": [{"lr": 1e-4}]},
    }
    path = tmp_path / "model_best.pth"
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    assert_same(read_checkpoint(path), state_dict)


def test_safetensors_file(tmp_path):
    state_dict = dict(small_network().state_dict())
    save_file(state_dict, tmp_path / "model.safetensors")
    read = read_checkpoint(tmp_path / "model.safetensors")
    assert_same(dict(sorted(read.items())), dict(sorted(state_dict.items())))


def test_pickled_code_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {"a": torch.zeros(1)}, "extra": Malicious()}, "bad.pth")
    with pytest.raises(WeightsError, match=r"bad\.pth: holds pickled code.*safetensors"):
        read_checkpoint("bad.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Malicious(), protocol=2))
    with pytest.raises(WeightsError, match=r"plain\.pth"):
        read_checkpoint("plain.pth")
    torch.save(small_network(), "network.pth")
    with pytest.raises(WeightsError, match="pickled code"):
        read_checkpoint("network.pth")
    assert not (tmp_path / "must_not_appear").exists()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_damaged_files(tmp_path, suffix):
    path = tmp_path / f"weights{suffix}"
    state_dict = {"a": torch.rand(64, 64)}
    if suffix == ".pth":
        torch.save(state_dict, path)
    else:
        save_file(state_dict, path)
    whole = path.read_bytes()
    for content in (b"", b"<html>not found</html>", whole[:10], whole[: len(whole) // 2], whole[:-1], whole[::-1]):
        path.write_bytes(content)
        with pytest.raises(WeightsError, match=rf"weights\{suffix}.*fetch it again") as caught:
            read_checkpoint(path)
        assert "\n" not in str(caught.value)


def test_missing_file_and_folder(tmp_path):
    for path in (tmp_path / "none.pth", tmp_path):
        with pytest.raises(WeightsError, match="no such weights file"):
            read_checkpoint(path)


def test_file_without_tensors(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "empty.pth")
    with pytest.raises(WeightsError, match=r"empty\.pth.*no tensors"):
        read_checkpoint(tmp_path / "empty.pth")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda d: d,
        lambda d: {"state_dict": d},
        lambda d: {"model": {"state_dict": d}, "epoch": 1},
        lambda d: {"model_state": d},
        lambda d: {f"module.{k}": v for k, v in d.items()},
        lambda d: {"state_dict": {f"model.{k}": v for k, v in d.items()}},
        lambda d: {"state_dict": {f"model._orig_mod.{k}": v for k, v in d.items()}},
        lambda d: {**d, "epoch": 3},
    ],
)
def test_unwrapping(wrap):
    state_dict = dict(small_network().state_dict())
    assert_same(unwrap_state_dict(wrap(state_dict)), state_dict)


@pytest.mark.parametrize("content", [None, [], 3, {}, {"state_dict": {}}])
def test_nothing_to_unwrap(content):
    with pytest.raises(WeightsError, match="no tensors"):
        unwrap_state_dict(content)


def test_strict_loading_lists_what_differs():
    network = small_network()
    good = network.state_dict()
    load_into(network, {k: v for k, v in good.items() if not k.endswith("num_batches_tracked")})
    bad = {**good, "0.weight": torch.zeros(4, 3, 5, 5), "2.weight": torch.zeros(1)}
    del bad["0.bias"]
    before = good["1.weight"].clone()
    bad["1.weight"] = before + 1
    with pytest.raises(WeightsError) as caught:
        load_into(network, bad)
    for words in (
        "1 missing (0.bias)",
        "1 unexpected (2.weight)",
        "1 of another shape (0.weight [4, 3, 5, 5] instead of [4, 3, 3, 3])",
    ):
        assert words in str(caught.value)
    assert torch.equal(network.state_dict()["1.weight"], before)
    assert str(caught.value).endswith(": choose the network they were trained with")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(value):
    network = small_network()
    before = network.state_dict()["0.weight"].clone()
    bad = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    bad["0.weight"] += 1
    bad["1.weight"][0] = value
    with pytest.raises(WeightsError, match=r"'1\.weight' holds values that are not finite: "):
        load_into(network, bad)
    assert torch.equal(network.state_dict()["0.weight"], before)


def test_a_pickle_is_refused_without_warnings(tmp_path, recwarn):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "plain.pth").write_bytes(pickle.dumps({"a": Path("b")}, protocol=protocol))
        with pytest.raises(WeightsError, match=r"plain\.pth"):
            read_checkpoint(tmp_path / "plain.pth")
    assert not recwarn.list


def test_the_mend_names_the_network_that_was_recognised():
    bad = {"strange": torch.zeros(1)}
    for answer, mend in (("create_model('other')", "they fit create_model('other')"), (None, "choose the network")):
        with pytest.raises(WeightsError, match=re.escape(mend)):
            load_into(small_network(), bad, identify=lambda given, answer=answer: answer if given == bad else "wrong")
