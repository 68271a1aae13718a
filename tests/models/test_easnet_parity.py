# SPDX-License-Identifier: Apache-2.0
"""EASNet against the outputs of the public code (generated weights, no normalisation)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference_fill import fill_like, reference_pair

from vision3d.models.batch_norm import recalibrate_batch_norm
from vision3d.models.stereo.easnet import EASNet, EASNetSupernet, count_parameters
from vision3d.training.losses import create_loss
from vision3d.types import StereoBatch

NAMES = ("full", "mid", "smallest")
SIZES = {"A": (48, 384), "B": (50, 100)}
GAIN = np.float32(0.65)

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def fixtures(shared: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for name in NAMES:
        with np.load(shared / "parity" / "easnet" / f"{name}.npz") as file:
            found[name] = {key: file[key] for key in file.files}
        for key in [key for key in found[name] if key.endswith("_json")]:
            found[name][key] = json.loads(str(found[name][key]))
    return found


@pytest.fixture(scope="module")
def supernet() -> EASNetSupernet:
    network = EASNetSupernet().eval()
    filled = fill_like(network.state_dict())
    network.load_official_state_dict({n: v * GAIN if v.dim() >= 2 else v for n, v in filled.items()})
    network.normalization = torch.nn.Identity()
    return network


@pytest.fixture(scope="module")
def extracted(supernet: EASNetSupernet, fixtures: dict[str, dict[str, Any]]) -> dict[str, EASNet]:
    networks = {name: supernet.extract(fixtures[name]["setting_json"]) for name in NAMES}
    for network in networks.values():
        network.normalization = torch.nn.Identity()
    return networks


def _names(network: torch.nn.Module) -> list[list[Any]]:
    return [
        [name, list(value.shape), str(value.dtype).removeprefix("torch.")]
        for name, value in network.state_dict().items()
    ]


def test_names_and_shapes_of_the_supernet(supernet, fixtures):
    assert _names(supernet) == fixtures["full"]["supernet_names_json"]
    assert len(_names(supernet)) == 1564
    assert count_parameters(supernet) == 5_078_506


@pytest.mark.parametrize("name", NAMES)
def test_names_shapes_and_sums_of_extracted_networks(name, extracted, fixtures):
    network, fixture = extracted[name], fixtures[name]
    assert _names(network) == fixture["subnet_names_json"]
    assert count_parameters(network) == fixture["meta_json"]["params_subnet"]
    entries = [value.double() for value in network.state_dict().values()]
    sums = np.array([[float(value.sum()), float(value.abs().sum())] for value in entries])
    scale = np.maximum(fixture["subnet_sums"][:, 1:], 1e-12)
    assert float((np.abs(sums - fixture["subnet_sums"]) / scale).max()) < 1e-5


def _differences(maps: list[torch.Tensor], fixture: dict[str, Any], prefix: str) -> list[float]:
    """Largest difference of each map, coarsest first."""
    return [
        float(np.abs(map_[0, 0].numpy() - fixture[f"{prefix}_disp{index}"]).max())
        for index, map_ in enumerate(reversed(maps))
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_outputs_and_losses(name, size, extracted, supernet, fixtures):
    fixture = fixtures[name]
    left, right = reference_pair(*SIZES[size])
    supernet.set_active(fixture["setting_json"])
    with torch.no_grad():
        output = extracted[name](left, right)
        elastic = supernet(left, right)
    differences = _differences(output.pyramid, fixture, size)
    assert len(differences) == fixture["setting_json"]["s"] + 2
    assert max(differences[:-2]) < 1e-4
    assert max(differences[-2:]) < 1e-3
    assert all(torch.equal(a, b) for a, b in zip(output.pyramid, elastic.pyramid, strict=True))

    height, width = SIZES[size]
    truth = (np.random.RandomState(2).rand(1, height, width) * 200).astype(np.float32)
    output.stages = [[map_ * (width / map_.shape[-1]) for map_ in output.pyramid]]
    batch = StereoBatch(left, right, torch.from_numpy(truth)[None], [""])
    loss, _ = create_loss("easnet")(output, batch)
    assert loss.item() == pytest.approx(fixture["meta_json"][f"{size}_loss"], rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_recalibrated_outputs(name, dtype, extracted, fixtures):
    network = copy.deepcopy(extracted[name]).to(dtype)
    rows = [[np.random.RandomState(seed + view).rand(1, 3, 48, 384) for seed in (0, 2)] for view in (0, 1)]
    left, right = (torch.from_numpy(np.concatenate(row).astype(np.float32)).to(dtype) for row in rows)
    recalibrate_batch_norm(network, [(left, right)])
    with torch.no_grad():
        differences = _differences(network(left[:1], right[:1]).pyramid, fixtures[name], "recal_A")
    coarse, fine = (2e-4, 1.2e-3) if dtype == torch.float64 else (5e-3, 5e-2)
    assert max(differences[:-2]) < coarse
    assert max(differences[-2:]) < fine


def test_feature_and_volume_probes(extracted, fixtures):
    probes = fixtures["full"]["meta_json"]["A_probes"]
    left, right = reference_pair(*SIZES["A"])
    network = extracted["full"]
    with torch.no_grad():
        both = network.feature_extractor(torch.cat([left, right]))
    for features, want_left, want_right in zip(both, probes["feat_left"], probes["feat_right"], strict=True):
        for found, want in zip(features.chunk(2), (want_left, want_right), strict=True):
            assert list(found.shape) == want["shape"]
            assert float(found.double().abs().sum()) == pytest.approx(want["abs_sum"], rel=1e-5)
            assert found.flatten()[:4].tolist() == pytest.approx(want["first4"], abs=1e-5)
            assert found.flatten()[-4:].tolist() == pytest.approx(want["last4"], abs=1e-5)
