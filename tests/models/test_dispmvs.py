# SPDX-License-Identifier: Apache-2.0
"""DispMVS against the public code (generated weights), and what the network must do with any views."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reference_fill import fill_entry
from safetensors.torch import save_file
from torch import nn

from vision3d.errors import ConfigError, InputError, WeightsError
from vision3d.models.mvs.dispmvs import DispMVS, DispMVSWidths, dispmvs, dispmvs_tiny
from vision3d.models.mvs.dispmvs_loss import dispmvs_loss
from vision3d.models.mvs.dispmvs_stage import SourceViews
from vision3d.models.mvs.dispmvs_update import UpdateBlock, UpdateWidths
from vision3d.types import DepthOutput
from vision3d.zoo import create_model

SMALL = DispMVSWidths((16, 16, 16, 16), 16, 16, UpdateWidths((16, 16), (16, 16), 16, 16))
RECOMMENDED = {
    "epipolar": "closed_form",
    "upsampling_border": "replicate",
    "mask_hidden_views": True,
    "half_pixel_pyramid": True,
    "per_view_statistics": False,
    "deformable_context": False,
}


@dataclasses.dataclass
class Recorded:
    """Outputs of a run with the reference weights, and what passed through its parts."""

    output: DepthOutput
    features: tuple[torch.Tensor, torch.Tensor]
    context: tuple[torch.Tensor, torch.Tensor]
    calls: dict[str, list[tuple[tuple, tuple]]]
    groups: list[SourceViews]
    network: DispMVS


@pytest.fixture(scope="module")
def parity(shared: Path) -> Path:
    return shared / "parity/dispmvs"


@pytest.fixture(scope="module")
def inputs(parity: Path) -> tuple[torch.Tensor, ...]:
    arrays = np.load(parity / "inputs.npz")
    images = torch.from_numpy(arrays["imgs_u8"]).permute(0, 3, 1, 2).float()[None] / 255.0
    poses = torch.eye(4).repeat(1, 3, 1, 1)
    poses[0, :, :3] = torch.from_numpy(np.concatenate([arrays["R"], arrays["T"]], 2))
    depth_range = torch.tensor([[float(arrays["depth_min"]), float(arrays["depth_max"])]])
    return images, torch.from_numpy(arrays["K"])[None], poses, depth_range, torch.from_numpy(arrays["init_depth"])


@pytest.fixture(scope="module")
def recorded(parity: Path, inputs: tuple[torch.Tensor, ...]) -> Recorded:
    """One run with gradients; batch normalisation in eval mode."""
    torch.set_num_threads(1)
    names = json.loads((parity / "state_dict.json").read_text())
    network = dispmvs().eval()
    weights = {f"module.{name}": fill_entry(name, tuple(entry[0])) for name, entry in names.items()}
    network.load_official_state_dict({"model": weights})
    calls: dict[str, list[tuple[tuple, tuple]]] = {name: [] for name, _ in network.named_children()}
    for name, module in network.named_children():
        module.register_forward_hook(lambda _, given, result, name=name: calls[name].append((given, result)))
    groups: list[SourceViews] = []
    original = SourceViews.__init__

    def record(self: SourceViews, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        groups.append(self)

    patch = pytest.MonkeyPatch()
    patch.setattr(SourceViews, "__init__", record)
    output = network(*inputs)
    patch.undo()
    (_, features), (_, context) = calls["fnet"][0], calls["cnet"][0]
    return Recorded(output, features, context, calls, groups, network)


@pytest.fixture(scope="module")
def expected(parity: Path) -> np.lib.npyio.NpzFile:
    return np.load(parity / "outputs.npz")


def near(actual: torch.Tensor, wanted: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(actual.detach().numpy(), wanted, rtol=0, atol=tolerance)


@pytest.mark.real
def test_names_and_shapes_are_the_public_ones(parity: Path) -> None:
    names = json.loads((parity / "state_dict.json").read_text())
    own = dispmvs().state_dict()
    assert list(own) == list(names)
    assert {name: list(value.shape) for name, value in own.items()} == {n: entry[0] for n, entry in names.items()}
    assert len(own) == 317


@pytest.mark.real
def test_features_and_context(recorded: Recorded, expected: np.lib.npyio.NpzFile) -> None:
    coarse, fine = recorded.features
    for view in range(3):
        near(coarse[view : view + 1], expected[f"fnet_f4_v{view}"], 1e-4)
        near(fine[view].mean((1, 2)), expected[f"fnet_f2_v{view}_chmean"], 1e-4)
        near(fine[view].flatten(1).std(1), expected[f"fnet_f2_v{view}_chstd"], 1e-4)
    for view in range(2):
        near(fine[view : view + 1, ::8], expected[f"fnet_f2_v{view}_ch0_95_step8"], 1e-4)
    near(recorded.context[0], expected["cnet_c4"], 5e-3)
    near(recorded.context[1][:, ::16], expected["cnet_c2_ch0_191_step16"], 5e-3)


@pytest.mark.real
@pytest.mark.parametrize("view", [1, 2])
@pytest.mark.parametrize(("stage", "group", "steps"), [("s4", 0, 8), ("s2", 1, 2)])
def test_every_iteration_of_every_view(
    recorded: Recorded, expected: np.lib.npyio.NpzFile, stage: str, group: int, steps: int, view: int
) -> None:
    key, row = f"{stage}_nei{view}", slice(view - 1, view)
    lines = recorded.groups[group].lines
    near(lines.base[row], expected[f"{key}_flow_bas"], 5e-4)
    near(lines.direction[row], expected[f"{key}_flow_dir"], 1e-4)
    along_y = lines.direction[row, 1:].abs() > lines.direction[row, :1].abs()
    np.testing.assert_array_equal(along_y.numpy().astype(np.uint8), expected[f"{key}_flow_axis"])
    calls = recorded.calls[f"update_block_{stage[1]}"]
    assert len(calls) == steps
    near(calls[0][0][2][row], expected[f"{key}_it0_cost"], 5e-4)
    if stage == "s4":
        near(calls[0][1][0][row], expected[f"{key}_it0_hidden"], 5e-4)
        near(calls[0][1][3][row], expected[f"{key}_it0_mask"], 5e-4)
    for step, ((_, _, _, flow), (_, delta, score, _)) in enumerate(calls):
        near(flow[row][0, 0], expected[f"{key}_flow_in"][step], 5e-4)
        near(torch.cat([delta, score], 1)[row][0], expected[f"{key}_delta"][step], 1e-3)


@pytest.mark.real
def test_depth_of_every_iteration(recorded: Recorded, expected: np.lib.npyio.NpzFile) -> None:
    wanted = [*expected["depth_stage4_all_iters"], *expected["depth_stage2_all_iters"]]
    assert len(recorded.output.iterations) == 10
    for estimate, truth in zip(recorded.output.iterations, wanted, strict=True):
        np.testing.assert_allclose(estimate[0, 0].detach().numpy(), truth, rtol=1e-4)
    assert recorded.output.depth is recorded.output.iterations[-1]
    confidence = recorded.output.confidence
    assert confidence is not None
    assert confidence.min() >= 0.5  # of two views, one has at least half of the weight
    assert confidence.max() <= 1.0


@pytest.mark.real
def test_loss_and_gradients(parity: Path, recorded: Recorded, inputs: tuple[torch.Tensor, ...]) -> None:
    arrays, wanted = np.load(parity / "inputs.npz"), json.loads((parity / "loss_grads.json").read_text())
    truth = torch.from_numpy(np.where(arrays["gt_mask"] > 0, arrays["gt_depth"], np.nan))
    loss = dispmvs_loss(recorded.output.iterations, truth, inputs[3])
    recorded.network.zero_grad()
    loss.backward()
    assert loss.item() == pytest.approx(wanted["loss"], abs=1e-5)
    parameters = dict(recorded.network.named_parameters())
    assert parameters.keys() == wanted["grad_l2"].keys()
    for name, norm in wanted["grad_l2"].items():
        if norm > 1e-6:
            gradient = parameters[name].grad
            assert gradient is not None
            assert gradient.norm().item() == pytest.approx(norm, rel=1e-3), name


@pytest.mark.real
def test_one_view_at_a_time_gives_the_same(recorded: Recorded, inputs: tuple[torch.Tensor, ...]) -> None:
    recorded.network.iterations = (1, 2)
    with torch.no_grad():
        recorded.network.views_per_pass = 1
        single = recorded.network(*inputs)
        recorded.network.views_per_pass = 2
        together = recorded.network(*inputs)
    recorded.network.iterations, recorded.network.views_per_pass = (2, 8), None
    torch.testing.assert_close(single.depth, together.depth, rtol=1e-5, atol=0)
    torch.testing.assert_close(single.iterations[0], recorded.output.iterations[0].detach(), rtol=1e-5, atol=0)


def test_the_second_name_of_a_shared_norm_does_not_win() -> None:
    network = DispMVS(widths=SMALL)
    weights = {name: fill_entry(name, tuple(value.shape)) for name, value in network.state_dict().items()}
    for given in (weights, {name: value for name, value in weights.items() if ".norm3." not in name}):
        network.load_official_state_dict(given)
        own = network.state_dict()
        name = "cnet.layer2.0.downsample.1.weight"
        assert torch.equal(own[name], weights[name])
        assert torch.equal(own["cnet.layer2.0.norm3.weight"], weights[name])
    with pytest.raises(WeightsError, match="strange"):
        network.load_official_state_dict({"strange": torch.zeros(1)})


def scene(views: int = 3, height: int = 64, width: int = 80, batch: int = 1) -> tuple[torch.Tensor, ...]:
    """A textured plane at depth 4, seen by cameras side by side and above each other."""
    generator = torch.Generator().manual_seed(0)
    texture = F.interpolate(torch.rand(batch, 3, height // 4 + 1, width // 4 + 1, generator=generator), (height, width))
    intrinsics = torch.tensor([[60.0, 0, width / 2], [0, 60.0, height / 2], [0, 0, 1]]).repeat(batch, views, 1, 1)
    poses, images = torch.eye(4).repeat(batch, views, 1, 1), [texture]
    for view in range(1, views):
        pixels = (3 * view if view % 2 else 0, 0 if view % 2 else 3 * view)
        poses[:, view, :2, 3] = -torch.tensor(pixels) * 4.0 / 60.0
        images.append(torch.roll(texture, (-pixels[1], -pixels[0]), (2, 3)))
    return torch.stack(images, 1), intrinsics, poses, torch.tensor([[2.0, 10.0]]).repeat(batch, 1)


@pytest.mark.parametrize("options", [{}, RECOMMENDED], ids=["published", "recommended"])
@pytest.mark.parametrize(("views", "height", "width"), [(2, 64, 80), (3, 33, 47), (11, 16, 17), (3, 1, 150)])
def test_any_size_and_number_of_views(options: dict, views: int, height: int, width: int) -> None:
    network = DispMVS(widths=SMALL, iterations=(1, 2), **options).eval()
    with torch.no_grad():
        output = network(*scene(views, height, width, 2))
    assert output.depth.shape == (2, 1, height, width)
    assert output.depth.dtype == torch.float32
    quarter = (2, 1, -(-height // 4), -(-width // 4))
    assert [tuple(m.shape) for m in output.iterations] == [quarter, quarter, (2, 1, height, width)]
    assert output.confidence is not None
    assert output.confidence.shape == output.depth.shape
    for values in (output.depth, output.confidence):
        assert torch.isfinite(values).all()
    assert output.depth.min() >= 2.0 - 1e-4
    assert output.depth.max() <= 10.0 + 1e-3
    assert output.confidence.max() <= 1.0
    if views == 2 and not options:
        assert (output.confidence == 1.0).all()


@pytest.mark.parametrize("options", [{}, RECOMMENDED], ids=["published", "recommended"])
def test_awkward_cameras_stay_finite(options: dict) -> None:
    images, intrinsics, poses, depth_range = scene(5, 32, 48)
    poses[0, 1:] = torch.eye(4)  # view 1: identical
    poses[0, 2, :3, :3] = torch.linalg.matrix_exp(torch.tensor([[0.0, 0.2, 0], [-0.2, 0, 0.1], [0, -0.1, 0]]))
    poses[0, 3, 2, 3] = -6.0  # ahead: the epipole inside the image, many points behind
    poses[0, 4] = torch.diag(torch.tensor([-1.0, 1.0, -1.0, 1.0]))  # looking back
    torch.manual_seed(0)
    network = DispMVS(widths=SMALL, iterations=(1, 2), **options).eval()
    network(images, intrinsics, poses, depth_range).depth.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)
    with torch.no_grad():
        output = network(images[:, :3], intrinsics[:, :3], poses[:, :3], depth_range)
        assert torch.isfinite(output.depth).all()
        assert (output.confidence == 0).all()  # neither view shows parallax
        poses[0, 1, 0, 3] = 0.3
        mixed = network(images[:, :3], intrinsics[:, :3], poses[:, :3], depth_range)
        alone = network(images[:, :2], intrinsics[:, :2], poses[:, :2], depth_range)
    # A view that only rotates has no say where the other one sees the point (and what is beside it).
    seen = torch.nn.functional.max_pool2d((alone.confidence == 0).float(), 17, 1, 8) == 0
    assert seen.float().mean() > 0.3
    torch.testing.assert_close(mixed.depth[seen], alone.depth[seen])


def test_hidden_views_get_no_weight() -> None:
    images, intrinsics, poses, depth_range = scene(3, 32, 48)
    poses[0, 2, 0, 3] = 500.0  # sees none of the pixels
    network = DispMVS(widths=SMALL, iterations=(1, 2), **RECOMMENDED).eval()
    with torch.no_grad():
        confidence = network(images, intrinsics, poses, depth_range).confidence
        network.switches = dataclasses.replace(network.switches, mask_hidden_views=False)
        shared = network(images, intrinsics, poses, depth_range).confidence
    assert confidence is not None
    assert shared is not None
    assert ((confidence == 0) | (confidence == 1)).all()  # one view has all the weight, or both are hidden
    assert (confidence == 1).float().mean() > 0.5
    assert (shared < 1).all()


def test_start_is_repeatable_and_can_be_chosen() -> None:
    network = DispMVS(widths=SMALL, iterations=(1, 1)).eval()
    given = scene(2, 32, 48, 2)
    with torch.no_grad():
        first, second = network(*given).depth, network(*given).depth
        assert torch.equal(first, second)
        one = network(*(value[1:] for value in given)).depth
        torch.testing.assert_close(first[1:], one)  # a sample does not depend on its batch
        draws = [network(*given, generator=torch.Generator().manual_seed(5)).iterations[0] for _ in range(2)]
        assert torch.equal(*draws)
        assert not torch.equal(draws[0], network(*given).iterations[0])
        start = torch.full((2, 1, 2, 3), 4.0)
        assert not torch.equal(network(*given, start).iterations[0], draws[0])
        with pytest.raises(InputError, match=r"init_depth must be \[2, 1, 2, 3\]"):
            network(*given, start[..., :2])


def test_unclipped_output_may_leave_the_range() -> None:
    options = {"widths": SMALL, "iterations": (1, 1), "epipolar": "closed_form", "upsampling_border": "replicate"}
    images, intrinsics, poses, _ = scene(2, 32, 48)
    narrow = torch.tensor([[3.9999, 4.0001]])
    torch.manual_seed(0)
    network = DispMVS(clip_output=False, **options).eval()
    with torch.no_grad():
        free = network(images, intrinsics, poses, narrow)
    assert torch.isfinite(free.depth).all()
    assert (free.depth > 0).all()
    assert ((free.depth < 3.99) | (free.depth > 4.01)).any()
    assert free.iterations[0].max() <= 4.0002


@pytest.mark.parametrize("build", [dispmvs_tiny, lambda: DispMVS(widths=SMALL)], ids=["tiny", "published"])
def test_bfloat16_autocast(build) -> None:
    torch.manual_seed(0)
    network = build().eval()
    network.iterations = (1, 2)
    given = scene(3, 64, 64)
    with torch.no_grad():
        exact = network(*given)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = network(*given)
    assert half.depth.dtype == torch.float32
    assert torch.isfinite(half.depth).all()
    assert (half.depth - exact.depth).abs().median() < 0.1 * exact.depth.median()


@pytest.mark.parametrize("options", [{}, RECOMMENDED], ids=["published", "recommended"])
def test_training_lowers_the_loss(options: dict) -> None:
    torch.manual_seed(0)
    network = DispMVS(widths=SMALL, iterations=(2, 3), **options).train()
    given = scene(3, 64, 80, 2)
    truth = torch.full((2, 1, 64, 80), 4.0)
    truth[:, :, :5] = torch.nan
    start = torch.full((2, 1, 4, 5), 6.0)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    losses = []
    for _ in range(6):
        loss = dispmvs_loss(network(*given, start).iterations, truth, given[3], gamma_order="last_heavy")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    assert losses[-1] < 0.9 * losses[0]


def test_statistics_of_training_by_view_or_together() -> None:
    means = []
    for by_view in (True, False):
        torch.manual_seed(0)
        network = DispMVS(widths=SMALL, iterations=(1, 1), per_view_statistics=by_view).train()
        network(*scene(3, 32, 32), torch.full((1, 1, 2, 2), 4.0))
        means.append(network.fnet.d_layer4.norm.num_batches_tracked.item())
    assert means == [3, 1]


def test_loss_rules() -> None:
    truth = torch.full((1, 1, 8, 8), 4.0)
    coarse, fine = [torch.full((1, 1, 2, 2), d) for d in (4.0, 8.0)], [truth.clone()]
    depth_range = torch.tensor([[2.0, 8.0]])
    error = (1 / 4 - 1 / 8) / (1 / 2 - 1 / 8)
    assert dispmvs_loss([*coarse, *fine], truth, depth_range).item() == pytest.approx(0.9 * error, abs=1e-5)
    last = dispmvs_loss([*coarse, *fine], truth, depth_range, gamma_order="last_heavy")
    assert last.item() == pytest.approx(error, abs=1e-5)
    nothing = torch.full_like(truth, torch.nan)
    assert dispmvs_loss([*coarse, *fine], nothing, depth_range).item() == 0.0
    with pytest.raises(InputError, match=r"the map \[1, 1, 3, 3\]"):
        dispmvs_loss([torch.ones(1, 1, 3, 3)], truth, depth_range)


def test_save_and_load(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = create_model("dispmvs_tiny")
    network.iterations = (1, 1)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    torch.save({"state_dict": nn.DataParallel(network).state_dict(), "epoch": 1}, tmp_path / "weights.pth")
    with torch.no_grad():
        expected = network(*scene(2, 32, 32)).depth
        for file in ("weights.safetensors", "weights.pth"):
            loaded = create_model("dispmvs_tiny", pretrained=tmp_path / file, iterations=(1, 1))
            assert torch.equal(loaded(*scene(2, 32, 32)).depth, expected)


def test_the_context_is_convolved_once_with_the_same_sums() -> None:
    torch.manual_seed(0)
    gru = UpdateBlock(10, 16, UpdateWidths((16, 16), (16, 16), 16, 16)).gru
    hidden, motion, context = torch.randn(4, 16, 5, 6), torch.randn(4, 16, 5, 6), torch.randn(2, 16, 5, 6)
    x = torch.cat([context.repeat_interleave(2, 0), motion], 1)
    state = hidden
    for suffix in "12":
        z, r, q = (gru.get_submodule(f"conv{gate}{suffix}") for gate in "zrq")
        update, reset = (torch.sigmoid(gate(torch.cat([state, x], 1))) for gate in (z, r))
        proposal = torch.tanh(q(torch.cat([reset * state, x], 1)))
        state = (1 - update) * state + update * proposal
    torch.testing.assert_close(gru(hidden, motion, gru.context_terms(context)), state, rtol=1e-5, atol=1e-5)


def test_wrong_inputs_are_named() -> None:
    network = DispMVS(widths=SMALL)
    images, intrinsics, poses, depth_range = scene(2, 32, 32)
    for given, words in (
        ((images[:, :1], intrinsics[:, :1], poses[:, :1], depth_range), "at least one source view"),
        ((images, intrinsics[:, :1], poses, depth_range), r"intrinsics must be \[1, 2, 3, 3\]"),
        ((images, intrinsics, poses[..., :3, :], depth_range), r"world_to_camera must be \[1, 2, 4, 4\]"),
        ((images, intrinsics, poses, depth_range.flip(1)), "two positive increasing depths"),
        ((images, intrinsics, poses, depth_range * torch.nan), "two positive increasing depths"),
    ):
        with pytest.raises(InputError, match=words):
            network(*given)
    for options, words in (
        ({"iterations": (0, 8)}, "iterations must be at least 1"),
        ({"epipolar": "exact"}, "epipolar must be one of closed_form, official"),
        ({"upsampling_border": "mirror"}, "upsampling_border must be one of zeros, replicate"),
        ({"views_per_pass": 0}, "views_per_pass must be at least 1"),
    ):
        with pytest.raises(ConfigError, match=words):
            DispMVS(widths=SMALL, **options)


def test_published_offsets_start_random_ours_from_zero() -> None:
    assert (DispMVS(widths=SMALL).cnet.o_layer4.conv_offset.weight == 0).all()
    assert (DispMVS(widths=SMALL, zero_offsets=False).cnet.o_layer4.conv_offset.weight != 0).any()
