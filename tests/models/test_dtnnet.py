# SPDX-License-Identifier: Apache-2.0
"""DTN-Net and the networks it was compared with, against outputs of the authors' code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_fill import fill_like, reference_pair
from torch import nn

from vision3d.errors import InputError, WeightsError
from vision3d.evaluation.depth_metrics import angle_between
from vision3d.evaluation.normal_metrics import NormalSetMetrics
from vision3d.models.normals.compact import dtnnet_tiny
from vision3d.models.normals.dtnnet import DTNNet, dispnormnet, dnfusionnet, dtnnet, dtonfusionnet, normnets
from vision3d.models.stereo.fadnet import fadnet
from vision3d.models.stereo.fadnet_checkpoints import DetectedArchitecture, detect_architecture
from vision3d.training.losses import MultiScaleSmoothL1
from vision3d.training.normal_losses import normal_loss
from vision3d.types import StereoBatch

# (builder, parameters, state-dict entries)
SIZES = [
    (dtnnet, 144_273_680, 404),
    (dnfusionnet, 147_409_232, 404),
    (dispnormnet, 144_264_272, 404),
    (dtonfusionnet, 147_418_640, 404),
    (normnets, 72_278_416, 182),
]
OTHERS = [(normnets, "normnets"), (dnfusionnet, "dnfusionnet"), (dispnormnet, "dispnormnet")]
OTHERS += [(dtonfusionnet, "dtonfusionnet")]
LIMITS = {"stage1": 1e-3, "init": 1e-2, "normal": 2e-3}
ROUNDS = [
    (0.32, 0.16, 0.08, 0.04, 0.02, 0.01, 0.005),
    (0.6, 0.32, 0.08, 0.04, 0.02, 0.01, 0.005),
    (0.8, 0.16, 0.04, 0.02, 0.01, 0.005, 0.0025),
    (1.0, 0, 0, 0, 0, 0, 0),
]

# Official outputs of dtonnet at 64x128: (scale, row, column) -> pixels; (row, column) -> normal
SAMPLED_DISPARITY = {
    (0, 21, 64): 0.3712,
    (0, 32, 42): 7.1047,
    (0, 62, 125): 1.7464,
    (3, 2, 8): 11.0537,
    (3, 6, 13): 4.1405,
}
SAMPLED_NORMALS = {
    (21, 64): [-0.4169, -0.4771, -0.7736],
    (32, 42): [0.9545, -0.0932, 0.2833],
    (62, 125): [-0.3129, 0.9341, -0.1722],
}


def reference_network(build) -> nn.Module:
    network = build()
    network.load_official_state_dict(fill_like(network.state_dict()))
    network.normalization = nn.Identity()
    return network.eval()


@pytest.fixture(scope="module")
def official() -> DTNNet:
    torch.set_num_threads(1)
    return reference_network(dtnnet)


@pytest.fixture(scope="module")
def skeletons() -> dict[str, nn.Module]:
    """Every network of the family without memory for its weights."""
    with torch.device("meta"):
        return {build.__name__: build() for build in (*(row[0] for row in SIZES), dtnnet_tiny)}


def compare(network: nn.Module, shared: Path, file: str) -> None:
    reference = np.load(shared / "parity" / "dtnnet" / f"{file}.npz")
    own = [[name, list(value.shape)] for name, value in network.state_dict().items()]
    assert own == json.loads(str(reference["state_dict"]))
    with torch.no_grad():
        output = network(*reference_pair(*reference["input_hw"]))
        found = {f"stage1_{scale}": values for scale, values in enumerate(output.pyramid)} | {"normal": output.normals}
        if "init_normal" in reference.files:
            found["init_normal"] = network.initial_normals(output.disparity)
    assert set(found) == {name for name in reference.files if name not in ("state_dict", "input_hw")}
    for name, values in found.items():
        limit = LIMITS[name.split("_")[0]]
        np.testing.assert_allclose(values.numpy(), reference[name], rtol=0, atol=limit, err_msg=f"{file} {name}")


@pytest.mark.parametrize(("build", "parameters", "entries"), SIZES)
def test_parameter_counts(skeletons, build, parameters, entries):
    network = skeletons[build.__name__]
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert len(network.state_dict()) == entries


@pytest.mark.real
@pytest.mark.parametrize("file", ["dtonnet", "dtonnet_w384"])
def test_official_outputs(official, shared, file):
    compare(official, shared, file)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(("build", "file"), OTHERS)
def test_official_outputs_of_the_other_networks(shared, build, file):
    compare(reference_network(build), shared, file)


def test_sampled_official_values(official):
    with torch.no_grad():
        output = official(*reference_pair(64, 128))
    assert output.stages == []
    assert output.auxiliary == {}
    for (scale, row, column), value in SAMPLED_DISPARITY.items():
        assert output.pyramid[scale][0, 0, row, column].item() == pytest.approx(value, abs=1e-3)
    for (row, column), normal in SAMPLED_NORMALS.items():
        assert output.normals[0, :, row, column].tolist() == pytest.approx(normal, abs=2e-3)
    torch.testing.assert_close(torch.linalg.vector_norm(output.normals, dim=1), torch.ones(1, 64, 128))


@pytest.mark.real
def test_official_losses_metrics_and_gradients(official, shared):
    folder = shared / "parity" / "dtnnet"
    expected = json.loads((folder / "dtonnet_loss.json").read_text())
    truth = np.load(folder / "loss_inputs.npz")
    disparity, normals = torch.from_numpy(truth["gt_disp"]), torch.from_numpy(truth["gt_norm"])
    left, right = reference_pair(64, 128)
    official.training = True  # all maps, while the norm layers stay in eval mode
    output = official(left, right)
    official.training = False
    assert set(output.auxiliary) == {"initial_normals"}
    batch = StereoBatch(left, right, disparity, ["reference"])
    totals = [MultiScaleSmoothL1(weights)(output, batch)[0] for weights in ROUNDS]
    for number, total in enumerate(totals, start=1):
        assert total.item() == pytest.approx(expected[f"loss_disp_round{number}"], rel=1e-5)
    of_normals = normal_loss(output.normals, normals)
    assert of_normals.item() == pytest.approx(expected["loss_norm"], rel=1e-5)
    counted = disparity < 192
    epe = (output.disparity - disparity)[counted].abs().mean().item()
    assert epe == pytest.approx(expected["epe"], rel=1e-5)

    metrics = NormalSetMetrics(thresholds=(11.25, 22.5, 30.0), unit_tolerance=None)
    arrays = [values.detach()[0].permute(1, 2, 0).numpy() for values in (output.normals, normals)]
    figures = metrics.update(*arrays)
    assert figures["pixels"] == expected["valid_pixels"]
    for name, key in (("mean", "angle_mean"), ("rmse", "angle_rmse")):
        assert figures[name] == pytest.approx(expected[key], rel=1e-4)
    assert figures["median"] == pytest.approx(expected["angle_median"], rel=2e-3)
    for threshold, key in ((11.25, "lt_11_25"), (22.5, "lt_22_5"), (30, "lt_30")):
        assert figures[f"within{threshold:g}"] == pytest.approx(100 * expected[key], abs=0.02)

    (totals[0] + of_normals).backward()
    assert (totals[0] + of_normals).item() == pytest.approx(expected["loss_total_round1"], rel=1e-5)
    norms = {name: p.grad.norm().item() for name, p in official.named_parameters()}
    official.zero_grad(set_to_none=True)
    assert set(norms) == set(expected["grad_norms_round1"])
    for name, norm in expected["grad_norms_round1"].items():
        assert norms[name] == pytest.approx(norm, rel=1e-3, abs=1e-5), name


def test_intrinsics_replace_focal_length_and_centre(official):
    disparity = torch.rand(2, 1, 64, 128, generator=torch.Generator().manual_seed(0)) + 20
    as_published = torch.tensor([[480.0, 0, 64], [0, 480, 32], [0, 0, 1]]).repeat(2, 1, 1)
    published = official.initial_normals(disparity)
    assert torch.equal(official.initial_normals(disparity, as_published), published)
    as_published[1, 0, 0] = 1050
    changed = official.initial_normals(disparity, as_published)
    assert torch.equal(changed[0], published[0])
    assert not torch.equal(changed[1], published[1])
    official.set_focal_length(1050, 480)
    assert torch.equal(official.initial_normals(disparity)[1], changed[1])
    official.set_focal_length(480, 480)
    with pytest.raises(InputError, match="focal"):
        official.set_focal_length(0, 480)
    with pytest.raises(InputError, match="intrinsics"):
        official(*reference_pair(64, 64), torch.eye(3))


def test_the_exact_layer_is_right_on_a_ceiling(official):
    matrix = torch.tensor([[[480.0, 0, 70.0], [0, 480, 200], [0, 0, 1]]])
    normal = torch.tensor([0.0, 1.0, 0.12]) / 1.0144**0.5
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(128.0), indexing="ij")
    rays = torch.stack([(x - 70) / 480, (y - 200) / 480, torch.ones_like(x)])
    disparity = -(rays * normal[:, None, None]).sum(0)[None, None] * 48  # a ceiling 1 m above, baseline 0.1 m
    assert disparity.min() > 0
    published = official.initial_normals(disparity, matrix)
    official.d2n = "exact"
    try:
        exact = official.initial_normals(disparity - 0.01, matrix)
    finally:
        official.d2n = "official"
    angles = [angle_between(maps[0].permute(1, 2, 0).numpy(), normal.numpy()) for maps in (exact, published)]
    assert angles[0].max() < 0.05
    assert angles[1].mean() > 5
    with pytest.raises(InputError, match="official, exact"):
        dtnnet(d2n="exakt")


def test_unusable_pairs(official):
    with pytest.raises(InputError, match="multiples of 64"):
        official(torch.zeros(1, 3, 64, 100), torch.zeros(1, 3, 64, 100))
    with pytest.raises(InputError, match="one size"):
        official(torch.zeros(1, 3, 64, 128), torch.zeros(1, 3, 64, 64))


@pytest.mark.parametrize("name", [row[0].__name__ for row in SIZES] + ["dtnnet_tiny"])
def test_weights_of_another_network_name_it(skeletons, name):
    state_dict = skeletons[name].state_dict()
    assert detect_architecture(state_dict) == DetectedArchitecture(name)
    wrapped = {"arch": "dispnet", "round": 2, "state_dict": {f"module.{key}": v for key, v in state_dict.items()}}
    other = skeletons["dispnormnet" if name != "dispnormnet" else "dtnnet"]
    with pytest.raises(WeightsError, match=rf"they fit create_model\('{name}'\)"):
        other.load_official_state_dict(wrapped)
    with torch.device("meta"):
        stereo = fadnet()
    with pytest.raises(WeightsError, match=rf"they fit create_model\('{name}'\)"):
        stereo.load_official_state_dict(wrapped)
    with pytest.raises(WeightsError, match=r"they fit create_model\('fadnet'\)"):
        skeletons[name].load_official_state_dict(stereo.state_dict())


def test_the_first_stage_of_fadnet_can_be_loaded(official, skeletons):
    kept = {name: value.clone() for name, value in official.dispnetc.state_dict().items()}
    other = {f"module.dispnetc.{name}": torch.zeros_like(value) for name, value in kept.items()}
    official.load_stage_one({"state_dict": {**other, "module.dispnetres.conv1.0.weight": torch.zeros(1)}})
    assert all(not value.any() for value in official.dispnetc.state_dict().values())
    official.load_stage_one(kept)
    assert all(torch.equal(kept[name], value) for name, value in official.dispnetc.state_dict().items())
    with pytest.raises(WeightsError, match="no disparity stage"):
        skeletons["normnets"].load_stage_one(kept)
