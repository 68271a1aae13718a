# SPDX-License-Identifier: Apache-2.0
"""EASNet: the networks' behaviour that needs no reference outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vision3d.errors import ConfigError, InputError, WeightsError
from vision3d.models.stereo.easnet import (
    NAMED_SETTINGS,
    EASNet,
    EASNetSupernet,
    SearchSpace,
    Setting,
    detect_setting,
    largest_setting,
    parse_setting,
)
from vision3d.ops import warp_by_disparity
from vision3d.training.losses import create_loss
from vision3d.types import StereoBatch
from vision3d.zoo import create_model

SMALL = {"ks": 3, "e": 2, "d": 2, "s": 2}
MIXED = {
    "ks": [5, 3, 7, 3, 7, 5, 3, 3, 3, 5, 7, 5, 3, 3, 3, 3],
    "e": [4, 6, 2, 8, 6, 4, 8, 2, 2, 8, 4, 6, 2, 2, 2, 2],
    "d": [3, 2, 4, 2],
    "s": 3,
}


def pair(batch: int, height: int, width: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, 3, height, width, generator=generator), torch.rand(
        batch, 3, height, width, generator=generator
    )


def scramble(network: nn.Module) -> None:
    """Give every weight and statistic an ordinary value, so that no branch is silent."""
    generator = torch.Generator().manual_seed(5)
    for name, value in network.state_dict().items():
        if not value.is_floating_point():
            continue
        noise = torch.randn(value.shape, generator=generator)
        if value.dim() >= 2:
            value.copy_(noise * (0.8 / value[0].numel() ** 0.5))
        elif name.endswith(("running_var", "weight")):
            value.copy_(1 + 0.1 * noise.abs())
        else:
            value.copy_(0.1 * noise)


@pytest.fixture(scope="module")
def supernet() -> EASNetSupernet:
    network = EASNetSupernet().eval()
    scramble(network)
    return network


@pytest.mark.parametrize("setting", [MIXED, SMALL, largest_setting()], ids=["mixed", "small", "largest"])
def test_an_extracted_network_equals_the_supernet_bit_by_bit(supernet: EASNetSupernet, setting: Setting | dict) -> None:
    supernet.set_active(setting)
    extracted = supernet.extract()
    views = pair(1, 49, 70)
    with torch.no_grad():
        ours, theirs = extracted(*views), supernet(*views)
    assert len(ours.pyramid) == extracted.setting.scales + 2
    assert all(torch.equal(a, b) for a, b in zip(ours.pyramid, theirs.pyramid, strict=True))
    assert not extracted.training
    assert (ours.pyramid[0].diff(dim=-1) != 0).any()


def test_extraction_in_training_mode_gives_the_same_batch_statistics(supernet: EASNetSupernet) -> None:
    network = copy.deepcopy(supernet).train()
    network.set_active(MIXED)
    extracted = network.extract()
    views = pair(2, 48, 72)
    ours, theirs = extracted(*views), network(*views)
    assert all(torch.equal(a, b) for a, b in zip(ours.stages[0], theirs.stages[0], strict=True))
    wide = network.feature_extractor[1].conv.depth_conv.bn.bn
    narrow = extracted.feature_extractor[1].conv.depth_conv.bn
    assert torch.equal(wide.running_mean[: narrow.num_features], narrow.running_mean)
    before = supernet.feature_extractor[1].conv.depth_conv.bn.bn.running_mean
    assert torch.equal(wide.running_mean[narrow.num_features :], before[narrow.num_features :])
    assert wide.num_batches_tracked == 2


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_sorting_channels_keeps_the_largest_network(supernet: EASNetSupernet, stage: int) -> None:
    network = copy.deepcopy(supernet)
    network.set_active(largest_setting())
    views = pair(1, 48, 96)
    with torch.no_grad():
        before = network(*views).pyramid
        network.sort_channels(stage)
        after = network(*views).pyramid
    assert max(float((a - b).abs().max()) for a, b in zip(before, after, strict=True)) < 1e-3
    weight = network.feature_extractor[13].conv.point_linear.conv.conv.weight
    importance = weight.abs().sum((0, 2, 3))
    ends = {0: [1024], 1: [768, 1024], 2: [512, 768, 1024], 3: [256, 512, 768, 1024]}[stage]
    for start, end in zip([0, *ends], ends, strict=False):
        assert (importance[start:end].diff() <= 0).all()
    hidden = network.feature_extractor[13].conv.depth_conv.se.fc.expand.weight.abs().sum((0, 2, 3))
    assert (hidden.diff() <= 1e-4).all()
    assert not torch.equal(weight, supernet.feature_extractor[13].conv.point_linear.conv.conv.weight)


def test_an_illegal_sorting_stage_is_refused(supernet: EASNetSupernet) -> None:
    with pytest.raises(ConfigError, match="from 0 to 3"):
        supernet.sort_channels(4)


@pytest.mark.parametrize("size", [(13, 37), (12, 12), (11, 7), (2, 2), (24, 24), (50, 101)])
@pytest.mark.parametrize("scales", [2, 4])
def test_every_size_is_legal(size: tuple[int, int], scales: int) -> None:
    network = EASNet({**SMALL, "s": scales}).eval()
    scramble(network)
    with torch.no_grad():
        output = network(*pair(1, *size))
    height, width = size
    expected = [size, (height // 2, width // 2)]
    for stride in (3, 2, 2, 2)[:scales]:
        height, width = -(-height // stride), -(-width // stride)
        expected.append((height, width))
    assert [tuple(map_.shape[-2:]) for map_ in output.pyramid] == expected
    assert all(torch.isfinite(map_).all() for map_ in output.pyramid)


def test_shapes_that_do_not_fit_are_refused() -> None:
    network = EASNet(SMALL).eval()
    with pytest.raises(InputError, match="one size"):
        network(torch.zeros(1, 3, 24, 24), torch.zeros(1, 3, 24, 48))
    with pytest.raises(InputError, match="at least 2"):
        network(torch.zeros(1, 3, 1, 24), torch.zeros(1, 3, 1, 24))
    with pytest.raises(InputError, match=r"\[B, 3, H, W\]"):
        network(torch.zeros(1, 1, 24, 24), torch.zeros(1, 1, 24, 24))


@pytest.mark.parametrize(("scales", "stride"), [(2, 6), (4, 24)])
def test_a_single_pixel_at_the_coarsest_scale_cannot_be_trained_on(scales: int, stride: int) -> None:
    network = EASNet({**SMALL, "s": scales}).train()
    with pytest.raises(InputError, match=f"single pixel .* larger than {stride}, or more pairs"):
        network(*pair(1, stride, stride))
    for batch, width in ((1, stride + 1), (2, stride)):
        assert torch.isfinite(network(*pair(batch, stride, width)).disparity).all()


@pytest.mark.parametrize("build", [lambda: EASNet(MIXED), EASNetSupernet], ids=["extracted", "supernet"])
def test_every_weight_in_use_learns(build: Callable[[], nn.Module]) -> None:
    network = build()
    scramble(network)
    network.train()
    left, right = pair(2, 48, 72)
    truth = torch.rand(2, 1, 48, 72) * 60
    truth[:, :, :10] = float("nan")
    loss, parts = create_loss("easnet")(network(left, right), StereoBatch(left, right, truth, ["a", "b"]))
    loss.backward()
    assert torch.isfinite(loss)
    assert set(parts) == {"loss_finest"}
    silent = [n for n, p in network.named_parameters() if p.requires_grad and p.grad is None]
    assert all(name.endswith("_matrix") for name in silent)  # kernel 7 needs none
    dead = [n for n, p in network.named_parameters() if not p.requires_grad]
    assert all(name.startswith("aggregation.final_conv.3") for name in dead)
    used = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
    assert all(torch.isfinite(grad).all() for grad in used.values())
    assert not [name for name, grad in used.items() if not grad.any()]


def test_kernel_matrices_learn_where_small_kernels_act() -> None:
    network = EASNetSupernet().train()
    network.set_active(SMALL)
    sum(map_.mean() for map_ in network(*pair(2, 48, 72)).stages[0]).backward()
    depthwise = network.feature_extractor[0].conv.depth_conv.conv
    for name in ("7to5_matrix", "5to3_matrix"):
        assert getattr(depthwise, name).grad.abs().sum() > 0
    assert network.feature_extractor[15].conv.depth_conv.conv.conv.weight.grad is None


def test_bfloat16_stays_near_float32_and_returns_float32(supernet: EASNetSupernet) -> None:
    network = supernet.extract(SMALL)
    views = pair(1, 48, 96)
    with torch.no_grad():
        exact = network(*views)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough = network(*views)
    assert all(map_.dtype == torch.float32 for map_ in rough.pyramid)
    assert float((rough.disparity - exact.disparity).abs().mean()) < 1.0


def test_two_steps_of_the_published_loss_lower_it() -> None:
    torch.manual_seed(0)
    network = EASNet(SMALL).train()
    texture = F.interpolate(torch.rand(2, 3, 12, 27), (36, 81))
    left, right = texture[..., :72], texture[..., 6:78]
    batch = StereoBatch(left, right, torch.full((2, 1, 36, 72), 6.0), ["a", "b"])
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        loss, _ = create_loss("easnet")(network(left, right), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > losses[1] > losses[2]


def test_stages_are_the_maps_in_pixels_of_the_input() -> None:
    output = EASNet(SMALL).train()(*pair(2, 48, 72))
    assert len(output.stages) == 1
    for stage, map_ in zip(output.stages[0], output.pyramid, strict=True):
        assert torch.allclose(stage, map_ * (72 / map_.shape[-1]))


def test_scores_of_a_new_network_are_the_plain_correlation() -> None:
    network = EASNet(MIXED).eval()
    generator = torch.Generator().manual_seed(1)
    volumes = [torch.randn(1, 64 >> s, 16 >> s, 24 >> s, generator=generator) for s in range(3)]
    disparity = torch.rand(1, 1, 16, 24, generator=generator) * 9
    with torch.no_grad():
        for score, volume in zip(network.aggregation([v.clone() for v in volumes]), volumes, strict=True):
            torch.testing.assert_close(score, 10 * volume.relu())
        for refine in network.refinement:
            torch.testing.assert_close(refine(disparity, *pair(1, 16, 24)), disparity)


def test_published_initialization_has_the_published_variances() -> None:
    torch.manual_seed(0)
    network = EASNetSupernet(initialization="published")
    block = network.feature_extractor[13].conv
    assert block.inverted_bottleneck.conv.conv.weight.std().item() == pytest.approx((2 / 1024) ** 0.5, rel=0.02)
    assert block.depth_conv.conv.conv.weight.std().item() == pytest.approx((2 / (49 * 1024)) ** 0.5, rel=0.02)
    deformable = network.aggregation.fusions[3].branches[0][0].conv2
    assert deformable.offset_conv.weight.std().item() == pytest.approx((2 / (9 * 54)) ** 0.5, rel=0.05)
    bound = (1 / (9 * 64)) ** 0.5
    assert float(deformable.deform_conv.weight.detach().abs().max()) == pytest.approx(bound, rel=0.01)
    assert torch.equal(getattr(block.depth_conv.conv, "7to5_matrix"), torch.eye(25))


def test_new_networks_start_with_offsets_of_zero() -> None:
    network = EASNet(SMALL)
    assert not network.aggregation.fusions[5].branches[0][0].conv2.offset_conv.weight.any()


@pytest.mark.parametrize("option", ["warp_mode", "initialization"])
@pytest.mark.parametrize("build", [EASNet, EASNetSupernet])
def test_illegal_options_name_the_legal_ones(build: type, option: str) -> None:
    legal = {"warp_mode": "official, exact", "initialization": "correlation, published"}[option]
    with pytest.raises(ConfigError, match=f"{option} must be one of {legal}, got 'other'"):
        build(**{option: "other"})


def test_warp_modes_differ_as_the_op_does() -> None:
    image, disparity = torch.rand(1, 3, 20, 30), torch.full((1, 1, 20, 30), 2.0)
    seen = []
    for mode in ("official", "exact"):
        network = EASNet(SMALL, warp_mode=mode).eval()
        refine = network.refinement[1]
        refine.conv1.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
        with torch.no_grad():
            refine(disparity, image, image)
    for inputs, aligned in zip(seen, (False, True), strict=True):
        expected = warp_by_disparity(image, disparity, align_corners=aligned) - image
        assert torch.equal(inputs[:, :3], expected)


# --- weights


def _older(name: str) -> str:
    return name.replace(".conv.", ".mobile_inverted_conv.", 1) if name.startswith("feature_extractor.") else name


def test_both_name_generations_of_the_supernet_load(supernet: EASNetSupernet) -> None:
    old = {f"module.{_older(name)}": value for name, value in supernet.state_dict().items()}
    network = EASNetSupernet()
    network.load_official_state_dict({"state_dict": old, "epoch": 3, "best_epe": 0.8})
    assert all(torch.equal(a, b) for a, b in zip(network.state_dict().values(), old.values(), strict=True))


def test_missing_kernel_matrices_stay_the_identity(supernet: EASNetSupernet) -> None:
    weights = {name: value for name, value in supernet.state_dict().items() if not name.endswith("_matrix")}
    network = EASNetSupernet()
    network.load_official_state_dict(weights)
    assert torch.equal(getattr(network.feature_extractor[7].conv.depth_conv.conv, "5to3_matrix"), torch.eye(9))
    del weights["refinement.0.final_conv.bias"]
    with pytest.raises(WeightsError, match=r"1 missing \(refinement\.0\.final_conv\.bias\)"):
        network.load_official_state_dict(weights)


def test_an_extracted_network_takes_its_weights_out_of_a_supernet(supernet: EASNetSupernet) -> None:
    network = EASNet(MIXED)
    network.load_official_state_dict(supernet.state_dict())
    expected = supernet.extract(MIXED).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in network.state_dict().items())


def test_the_largest_extracted_network_loads_into_a_supernet(supernet: EASNetSupernet) -> None:
    extracted = supernet.extract(largest_setting())
    network = EASNetSupernet().eval()
    network.load_official_state_dict(extracted.state_dict())
    views = pair(1, 48, 72)
    with torch.no_grad():
        assert torch.equal(network(*views).disparity, extracted(*views).disparity)


@pytest.mark.parametrize("with_dead", [True, False])
def test_dead_final_convolutions_may_be_there_or_not(supernet: EASNetSupernet, with_dead: bool) -> None:
    weights = supernet.extract(SMALL).state_dict()
    if not with_dead:
        dead = ("aggregation.final_conv.2.", "aggregation.final_conv.3.")
        weights = {name: value for name, value in weights.items() if not name.startswith(dead)}
        assert len(weights) == 556
    network = EASNet(SMALL)
    network.load_official_state_dict(weights)
    assert torch.equal(network.refinement[1].final_conv.weight, supernet.refinement[1].final_conv.weight)


def test_weights_of_another_setting_are_named(supernet: EASNetSupernet) -> None:
    weights = supernet.extract(SMALL).state_dict()
    fitting = r"they fit create_model\('easnet', setting=\{'ks': 3, 'e': 2, 'd': 2, 's': 2\}\)"
    with pytest.raises(WeightsError, match=fitting):
        EASNet(MIXED).load_official_state_dict(weights)
    with pytest.raises(WeightsError, match="are not those of EASNetSupernet"):
        EASNetSupernet().load_official_state_dict(weights)


def test_a_network_without_a_setting_takes_that_of_the_weights(supernet: EASNetSupernet) -> None:
    source = supernet.extract(MIXED)
    source.warp_mode = "exact"
    network = EASNet().eval()
    network.load_official_state_dict(source.exported_state_dict())
    assert (network.setting, network.warp_mode) == (source.setting, "exact")
    assert [refine.warp_mode for refine in network.refinement] == ["exact", "exact"]
    found, expected = network.state_dict(), source.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert not network.training
    assert not network.aggregation.final_conv[3].weight.requires_grad


@pytest.mark.parametrize("entry", [torch.tensor(7), torch.tensor(-1), torch.tensor([0, 1]), torch.tensor(0.5)])
def test_a_damaged_warp_mode_is_refused(supernet: EASNetSupernet, entry: torch.Tensor) -> None:
    weights = {**supernet.extract(SMALL).exported_state_dict(), "warp_mode": entry}
    with pytest.raises(WeightsError, match=r"entry 'warp_mode' is .*, 0 or 1 is expected"):
        EASNet(SMALL).load_official_state_dict(weights)


def test_a_registered_size_takes_no_setting() -> None:
    with pytest.raises(ConfigError, match=r"easnet_s: its setting is \{'ks': 3.*take 'easnet'"):
        create_model("easnet_s", setting={"ks": 7, "e": 8, "d": 4, "s": 4})


def test_a_supernet_needs_all_final_convolutions_whatever_is_active(supernet: EASNetSupernet) -> None:
    network = EASNetSupernet()
    network.set_active(SMALL)
    weights = {n: v for n, v in supernet.state_dict().items() if not n.startswith("aggregation.final_conv.3.")}
    with pytest.raises(WeightsError, match="2 missing"):
        network.load_official_state_dict(weights)


@pytest.mark.parametrize("name", sorted(NAMED_SETTINGS))
def test_settings_are_read_off_the_weights(name: str) -> None:
    with torch.device("meta"):
        weights = EASNet(NAMED_SETTINGS[name]).state_dict()
    found = detect_setting(weights)
    assert found is not None
    assert found.as_dict()["ks"] == NAMED_SETTINGS[name].as_dict()["ks"]
    assert found.depths == NAMED_SETTINGS[name].depths
    assert found.expand_ratios[1:] == NAMED_SETTINGS[name].expand_ratios[1:]
    assert detect_setting({"strange": torch.zeros(1)}) is None


# --- the active setting


def test_settings_outside_the_space_of_a_supernet_are_refused() -> None:
    network = EASNetSupernet(SearchSpace(kernels=(7,), scales=(4,)))
    assert not [name for name in network.state_dict() if name.endswith("_matrix")]
    with pytest.raises(ConfigError, match="ks must be one of 7, got 3"):
        network.set_active({"ks": 3, "e": 8, "d": 4, "s": 4})
    with pytest.raises(ConfigError, match="s must be one of 4, got 2"):
        network.extract({"ks": 7, "e": 8, "d": 4, "s": 2})
    assert network.setting == largest_setting()
    with pytest.raises(ConfigError, match="search_space must be a SearchSpace, got dict"):
        EASNetSupernet({"kernels": [7]})  # type: ignore[arg-type]


def test_samples_are_the_same_in_every_process_and_become_active() -> None:
    with torch.device("meta"):
        first, second = EASNetSupernet(), EASNetSupernet()
    assert first.sample(12, 3) == second.sample(12, 3) == first.setting
    assert first.sample(12, 4) != first.sample(12, 3)
    phase = SearchSpace(expand_ratios=(8,), depths=(4,), scales=(4,))
    assert first.sample(5, 0, phase) == parse_setting(first.setting, phase)


def test_without_refinement_the_answer_is_the_enlarged_third() -> None:
    torch.manual_seed(0)
    whole = create_model("easnet_s")
    coarse = create_model("easnet_s", refine=False)
    coarse.load_official_state_dict(whole.state_dict())
    left, right = torch.rand(2, 1, 3, 48, 96)
    with torch.no_grad():
        expected, output = whole(left, right), coarse(left, right)
    assert [tuple(map_.shape[-2:]) for map_ in output.pyramid] == [(48, 96), (16, 32), (8, 16)]
    for map_, other in zip(output.pyramid[1:], expected.pyramid[2:], strict=True):
        assert torch.equal(map_, other)
    enlarged = torch.nn.functional.interpolate(expected.pyramid[2], (48, 96), mode="bilinear") * 3
    torch.testing.assert_close(output.disparity, enlarged)
