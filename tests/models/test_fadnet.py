# SPDX-License-Identifier: Apache-2.0
"""The FADNet family against outputs of the authors' code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_fill import fill_entry, fill_like, reference_pair
from torch import nn

from vision3d.errors import ConfigError, InputError, WeightsError
from vision3d.models.stereo.blocks import ResBlock, error_norm
from vision3d.models.stereo.fadnet import fadnet, mobilefadnet_v1
from vision3d.models.stereo.fadnetpp import (
    correlation_bins,
    crl,
    dispnetc,
    dispnetcss,
    fadnetpp,
    fadnetpp_micro,
    fadnetpp_mobile,
    fadnetpp_slight,
    fadnetpp_tiny,
    fadnetpp_x,
)

# (builder, options, parameters, state-dict entries)
SIZES = [
    (fadnet, {}, 144_303_840, 416),
    (mobilefadnet_v1, {}, 25_558_752, 318),
    (fadnetpp_x, {}, 497_077_376, 414),
    (fadnetpp, {}, 124_381_856, 414),
    (fadnetpp_mobile, {}, 31_151_792, 414),
    (fadnetpp_slight, {}, 7_816_184, 414),
    (fadnetpp_tiny, {}, 1_645_984, 414),
    (fadnetpp_micro, {}, 499_226, 414),
    (crl, {}, 72_669_216, 104),
    (dispnetc, {}, 36_314_528, 53),
    (dispnetc, {"residual_blocks": True}, 62_198_944, 220),
    (dispnetcss, {}, 109_023_904, 155),
    (dispnetcss, {"residual_blocks": True}, 186_564_768, 608),
]

slow = pytest.mark.slow
PARITY = [
    pytest.param(fadnetpp_micro, ["fadnetpp_micro"]),
    pytest.param(fadnetpp_tiny, ["fadnetpp_tiny", "fadnetpp_tiny_w384"]),
    pytest.param(fadnetpp_slight, ["fadnetpp_slight"]),
    pytest.param(fadnetpp_mobile, ["fadnetpp_mobile"]),
    pytest.param(mobilefadnet_v1, ["mobilefadnet_v1"]),
    pytest.param(crl, ["crl"], marks=slow),
    pytest.param(fadnetpp, ["fadnetpp", "fadnetpp_w384"], marks=slow),
    pytest.param(fadnet, ["fadnet", "fadnet_w384"], marks=slow),
]

# Official outputs at 64x128: map, row, column, value
SAMPLES = {
    fadnetpp_micro: [
        (1, 0, 21, 64, 0.0),
        (1, 0, 32, 42, 0.0),
        (1, 0, 62, 125, 0.0),
        (1, 2, 5, 16, 4.4684),
        (1, 2, 8, 10, 6.806),
        (1, 2, 14, 29, 3.7818),
        (2, 0, 21, 64, 13.5846),
        (2, 0, 32, 42, 0.0),
        (2, 0, 62, 125, 0.0),
        (2, 2, 5, 16, 3.6751),
        (2, 2, 8, 10, 7.9704),
        (2, 2, 14, 29, 4.1911),
    ],
    fadnetpp_tiny: [
        (1, 0, 21, 64, 0.0),
        (1, 0, 32, 42, 1.6788),
        (1, 0, 62, 125, 0.0),
        (1, 2, 5, 16, 6.5249),
        (1, 2, 8, 10, 6.7725),
        (1, 2, 14, 29, 5.763),
        (2, 0, 21, 64, 24.7589),
        (2, 0, 32, 42, 0.0),
        (2, 0, 62, 125, 1.4512),
        (2, 2, 5, 16, 5.904),
        (2, 2, 8, 10, 10.892),
        (2, 2, 14, 29, 6.1981),
    ],
}


def reference_network(build, options=None) -> nn.Module:
    network = build(**(options or {}))
    network.load_official_state_dict(fill_like(network.state_dict()))
    network.normalization = nn.Identity()
    return network.eval()


@pytest.fixture(scope="module")
def tiny() -> nn.Module:
    return reference_network(fadnetpp_tiny)


def random_pair(batch: int, height: int = 64, width: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    left = torch.rand(batch, 3, height, width, generator=generator)
    return left, torch.roll(left, -3, dims=3)


@pytest.mark.parametrize(("build", "options", "parameters", "entries"), SIZES)
def test_parameter_counts(build, options, parameters, entries):
    with torch.device("meta"):
        network = build(**options)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert len(network.state_dict()) == entries


@pytest.mark.real
@pytest.mark.parametrize(("build", "files"), PARITY)
def test_official_outputs(shared: Path, build, files):
    network = reference_network(build)
    for file in files:
        reference = np.load(shared / "parity" / "fadnet" / f"{file}.npz")
        own = [[name, list(value.shape)] for name, value in network.state_dict().items()]
        assert own == json.loads(str(reference["state_dict"]))
        left, right = reference_pair(*reference["input_hw"])
        with torch.no_grad():
            stages = network.train(False).predict_stages(left, right)
            output = network(left, right)
        assert torch.equal(output.disparity, stages[1][0])
        assert all(torch.equal(a, b) for a, b in zip(output.pyramid, stages[1], strict=True))
        for stage, maps in enumerate(stages, start=1):
            for scale, values in enumerate(maps):
                key = f"stage{stage}_{scale}"
                if key not in reference.files:
                    continue
                expected = reference[key].reshape(values.shape)
                limit = max(1e-3, 5e-5 * float(np.abs(expected).max()))
                np.testing.assert_allclose(values.numpy(), expected, rtol=0, atol=limit, err_msg=f"{file} {key}")


@pytest.mark.parametrize("build", SAMPLES)
def test_sampled_official_values(build):
    network = reference_network(build)
    with torch.no_grad():
        stages = network.predict_stages(*reference_pair(64, 128))
    for stage, scale, row, column, value in SAMPLES[build]:
        assert float(stages[stage - 1][scale][0, 0, row, column]) == pytest.approx(value, abs=1e-3)


def test_pyramid_in_full_resolution_pixels_and_no_stages_in_eval_mode(tiny):
    left, right = random_pair(3)
    with torch.no_grad():
        output = tiny(left, right)
    assert [tuple(m.shape) for m in output.pyramid] == [(3, 1, 64 >> k, 128 >> k) for k in range(7)]
    assert output.disparity is output.pyramid[0]
    assert output.stages == []
    assert all((m >= 0).all() for m in output.pyramid)


def test_samples_of_a_batch_do_not_mix(tiny):
    left, right = random_pair(3)
    with torch.no_grad():
        together = tiny(left, right).disparity
        alone = tiny(left[1:2], right[1:2]).disparity
    torch.testing.assert_close(together[1:2], alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize("build", [mobilefadnet_v1, fadnetpp_tiny])
@pytest.mark.parametrize("identical", [False, True])
def test_training_mode_and_finite_gradients(build, identical):
    torch.manual_seed(0)
    network = build().train()
    left, right = random_pair(2)
    output = network(left, left.clone() if identical else right)
    assert [len(stage) for stage in output.stages] == [7, 7]
    assert output.stages[-1][0] is output.disparity
    assert (output.stages[0][0] >= 0).all()
    sum((m - 3.0).abs().mean() for stage in output.stages for m in stage).backward()
    gradients = {name: p.grad for name, p in network.named_parameters()}
    assert all(g is not None and torch.isfinite(g).all() for g in gradients.values())


@pytest.mark.parametrize("build", [fadnetpp_micro, dispnetc])
def test_bfloat16_autocast(build):
    network = build().eval()
    left, right = random_pair(1)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        half = network(left, right)
    with torch.no_grad():
        full = network(left, right)
    assert half.disparity.dtype == torch.float32
    assert all(torch.isfinite(m).all() for m in half.pyramid)
    assert (half.disparity - full.disparity).abs().mean() < 0.1 * full.disparity.abs().mean() + 0.1


def test_float64():
    network = reference_network(fadnetpp_micro)
    left, right = reference_pair(64, 128)
    with torch.no_grad():
        single = network(left, right).disparity
        double = network.double()(left.double(), right.double()).disparity
    assert double.dtype == torch.float64
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("refinements", "build"), [(0, dispnetc), (2, dispnetcss)])
def test_dispnets(refinements, build):
    network = build().train()
    left, right = random_pair(1)
    output = network(left, right)
    assert len(output.stages) == 1 + refinements
    assert output.disparity.shape == (1, 1, 64, 128)
    output.disparity.sum().backward()
    assert torch.isfinite(network.extract_network.conv1[0].weight.grad).all()


def test_normalization_is_imagenet_on_both_views():
    network = fadnetpp_micro().eval()
    left, right = random_pair(1)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        inside = network(left, right).disparity
        network.normalization = nn.Identity()
        view = (1, 3, 1, 1)
        outside = network((left - mean.view(view)) / std.view(view), (right - mean.view(view)) / std.view(view))
    torch.testing.assert_close(inside, outside.disparity)


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        ((1, 3, 100, 128), (1, 3, 100, 128), "multiples of 64"),
        ((1, 3, 64, 0), (1, 3, 64, 0), "multiples of 64"),
        ((1, 3, 64, 128), (1, 3, 64, 64), "one size"),
        ((3, 64, 128), (3, 64, 128), r"\[B, 3, H, W\]"),
        ((1, 1, 64, 128), (1, 1, 64, 128), "RGB"),
    ],
)
def test_unusable_pairs(tiny, left, right, words):
    with pytest.raises(InputError, match=words):
        tiny(torch.zeros(left), torch.zeros(right))


def test_search_range():
    assert [correlation_bins(d) for d in (192, 360, 400)] == [40, 61, 66]
    with pytest.raises(ConfigError, match="400"):
        fadnetpp_micro(max_disparity=416)
    with pytest.raises(ConfigError, match="use 192"):
        fadnetpp_micro(max_disparity=-1)
    wide = fadnetpp_micro(max_disparity=360)
    wide.load_official_state_dict(fadnetpp_micro().state_dict())
    assert wide.eval()(*random_pair(1)).disparity.shape == (1, 1, 64, 128)


def test_warp_rule_changes_the_outcome(tiny):
    other = reference_network(fadnetpp_tiny, {"align_corners": True})
    with torch.no_grad():
        difference = other(*reference_pair(64, 128)).disparity - tiny(*reference_pair(64, 128)).disparity
    assert difference.abs().max() > 0.5


def test_initialization():
    torch.manual_seed(0)
    network = fadnetpp_slight()
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            assert module.bias is None or not module.bias.any()
            if module.weight.numel() > 20_000:
                fan_in = module.weight[0].numel()
                assert float(module.weight.detach().std()) == pytest.approx((2 / fan_in) ** 0.5, rel=0.05)


def test_error_norm_gradient_at_zero():
    difference = torch.zeros(1, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    error_norm(difference).sum().backward()
    assert not difference.grad.any()
    point = torch.randn(1, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(error_norm, (point,))
    assert torch.autograd.gradcheck(lambda d: error_norm(d, 1e-8), (point,))


def test_residual_block_without_shortcut_entries():
    assert not any(name.startswith("shortcut") for name in ResBlock(8, 8).state_dict())
    assert any(name.startswith("shortcut") for name in ResBlock(8, 8, 2).state_dict())


def test_official_dictionaries_load(tiny):
    bare = fill_like(tiny.state_dict())
    untracked = {name: value for name, value in bare.items() if not name.endswith("num_batches_tracked")}
    parallel = {f"module.{name}": value for name, value in bare.items()}
    old = {
        name.replace("extract_network.", "dispnetc.").replace("cunet.", "dispnetc."): value
        for name, value in bare.items()
    }
    openstereo = {
        name.replace("extract_network.", "backbone.")
        .replace("cunet.", "cost_processor.")
        .replace("dispnetres.", "disp_predictor."): value
        for name, value in bare.items()
    }
    training = {"round": 3, "epoch": 29, "arch": "dispnet", "state_dict": parallel, "best_EPE": 0.76}
    left, right = reference_pair(64, 128)
    with torch.no_grad():
        expected = tiny(left, right).disparity
        for content in (bare, untracked, parallel, old, openstereo, training, {"model": training}):
            network = fadnetpp_tiny()
            network.load_official_state_dict(content)
            network.normalization = nn.Identity()
            assert torch.equal(network.eval()(left, right).disparity, expected)


def test_weights_of_another_network(tiny):
    with torch.device("meta"):
        other = fadnetpp().state_dict()
    before = fill_entry("cunet.conv4.conv1.weight", (32, 16, 3, 3))
    with pytest.raises(WeightsError, match=r"of another shape \(extract_network.*create_model\('fadnetpp'\)"):
        tiny.load_official_state_dict(other)
    assert torch.equal(tiny.cunet.conv4.conv1.weight, before)
    with torch.device("meta"):
        original = fadnet().state_dict()
    with pytest.raises(WeightsError, match=r"create_model\('fadnet'\)"):
        tiny.load_official_state_dict(original)
    with pytest.raises(WeightsError, match=r"364 missing \(extract_network.*1 unexpected \(what\)"):
        tiny.load_official_state_dict({"what": torch.zeros(1)})
    with pytest.raises(WeightsError, match="no tensors"):
        tiny.load_official_state_dict({"epoch": 3})
