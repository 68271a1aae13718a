# SPDX-License-Identifier: Apache-2.0
"""What every registered network must do. Large networks are only built without memory (meta device)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from vision3d.errors import ConfigError, InputError, WeightsError
from vision3d.ops import pad_to_multiple
from vision3d.registry import find_model, registered_models
from vision3d.zoo import create_model, load_card

_SMALL = 10_000_000  # parameters

NAMES = sorted(registered_models())
STEREO = [name for name in NAMES if find_model(name).task == "stereo"]
# Families whose authors published weights; the others are the project's own.
OFFICIAL = [name for name in STEREO if find_model(name).family not in ("covonet",)]


def parameters(name: str) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in find_model(name).build().parameters())


SMALL_STEREO = [name for name in STEREO if parameters(name) < _SMALL]


def pair(batch: int = 1, height: int = 64, width: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    texture = F.interpolate(torch.rand(batch, 3, height // 4, width // 4, generator=generator), (height, width))
    return texture, torch.roll(texture, -4, dims=3)


@pytest.mark.parametrize("name", NAMES)
def test_card_tells_the_truth(name):
    card = load_card(name)
    with torch.device("meta"):
        network = find_model(name).build()
    assert card.parameters == sum(p.numel() for p in network.parameters())
    assert card.size_multiple == network.size_multiple
    assert card.license
    assert card.summary
    assert card.paper or name not in OFFICIAL


@pytest.mark.parametrize("name", NAMES)
def test_unknown_option(name):
    with pytest.raises(ConfigError, match="no_such_option"):
        create_model(name, no_such_option=1)


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_loader_refuses_other_weights(name):
    with torch.device("meta"):
        network = find_model(name).build()
    with pytest.raises(WeightsError, match="strange"):
        network.load_official_state_dict({"strange": torch.zeros(1)})


@pytest.mark.parametrize("name", SMALL_STEREO)
def test_padded_odd_size(name):
    network = create_model(name)
    assert not network.training
    left, right = (view[..., :50, :101] for view in pair(3))
    left, padding = pad_to_multiple(left, network.size_multiple)
    right, _ = pad_to_multiple(right, network.size_multiple)
    with torch.no_grad():
        output = network(left, right)
    assert padding.undo(output.disparity).shape == (3, 1, 50, 101)
    assert output.disparity.dtype == torch.float32
    assert torch.isfinite(output.disparity).all()
    assert output.stages == []
    assert all(tuple(m.shape[:2]) == (3, 1) for m in output.pyramid)
    if output.confidence is not None:
        assert output.confidence.min() >= 0
        assert output.confidence.max() <= 1


@pytest.mark.parametrize("name", SMALL_STEREO)
def test_unusable_size(name):
    network = create_model(name)
    views = torch.zeros(2, 1, 3, 63 if network.size_multiple > 1 else 0, 127)  # without a multiple, any but none
    with pytest.raises(InputError):
        network(*views)


@pytest.mark.parametrize("name", SMALL_STEREO)
def test_bfloat16_autocast(name):
    network = create_model(name)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(network(*pair()).disparity).all()


@pytest.mark.parametrize("name", SMALL_STEREO)
def test_training_lowers_the_loss(name):
    torch.manual_seed(0)
    network = create_model(name).train()
    left, right = pair(2)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-4)
    losses = []
    for _ in range(6):
        maps = [m for stage in network(left, right).stages for m in stage]
        loss = torch.stack([F.smooth_l1_loss(m, torch.full_like(m, 4.0)) for m in maps]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", SMALL_STEREO)
def test_save_and_load(name, tmp_path):
    torch.manual_seed(0)
    network = create_model(name)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    torch.save({"state_dict": nn.DataParallel(network).state_dict(), "epoch": 1}, tmp_path / "weights.pth")
    with torch.no_grad():
        expected = network(*pair()).disparity
        for file in ("weights.safetensors", "weights.pth"):
            loaded = create_model(name, pretrained=tmp_path / file)
            assert torch.equal(loaded(*pair()).disparity, expected)
