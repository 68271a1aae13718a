# SPDX-License-Identifier: Apache-2.0
"""The CPU-sized DTN-Net: what its parts do before and while it is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from vision3d import create_model
from vision3d.errors import InputError, WeightsError
from vision3d.evaluation.depth_metrics import angle_between
from vision3d.geometry.normals import face_camera, fit_normals, normals_from_disparity, ray_directions
from vision3d.io.exr import read_exr
from vision3d.io.images import read_image
from vision3d.models.normals.compact import CompactDTNNet, dtnnet_tiny, reduced_widths
from vision3d.models.normals.dtnnet import NormNets
from vision3d.models.stereo.unet import UNetWidths
from vision3d.ops import pad_to_multiple
from vision3d.training.normal_losses import normal_loss

MATRIX = torch.tensor([[480.0, 0, 63.5], [0, 480, 31.5], [0, 0, 1]])


def pair(batch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    texture = nn.functional.interpolate(torch.rand(batch, 3, 16, 32, generator=generator), (64, 128))
    return texture, torch.roll(texture, -4, dims=3)


@pytest.fixture(scope="module")
def network() -> CompactDTNNet:
    torch.manual_seed(0)
    network = create_model("dtnnet_tiny")
    assert isinstance(network, CompactDTNNet)
    network.load_stage_one(create_model("covonet.synthetic").state_dict())
    return network


def test_output(network: CompactDTNNet) -> None:
    left, right = pair(2)
    with torch.no_grad():
        output = network(left, right, MATRIX.repeat(2, 1, 1))
        without = network(left, right)
    assert output.normals.shape == (2, 3, 64, 128)
    assert output.disparity.shape == (2, 1, 64, 128)
    assert output.stages == []
    assert output.auxiliary == {}
    torch.testing.assert_close(torch.linalg.vector_norm(output.normals, dim=1), torch.ones(2, 64, 128))
    assert ((output.normals * ray_directions(left, MATRIX[None])).sum(1) < 0).all()
    # 480 px and the middle of the image are the defaults
    torch.testing.assert_close(without.normals, output.normals, atol=1e-5, rtol=0)


def test_without_training_the_answer_is_that_of_the_fitted_planes(network: CompactDTNNet) -> None:
    left, right = pair()
    with torch.no_grad():
        output = network(left, right, MATRIX[None])
        fitted = fit_normals(output.disparity + 0.01, MATRIX, network.fit_radius)
        exact = dtnnet_tiny(fit_radius=0).initial_normals(output.disparity, MATRIX[None])
    known = torch.isfinite(fitted).all(1, keepdim=True)
    assert known.float().mean() > 0.9
    torch.testing.assert_close(torch.where(known, output.normals, 0.0), torch.where(known, fitted, 0.0))
    torch.testing.assert_close(exact, normals_from_disparity(output.disparity + 0.01, MATRIX))


def test_training_outputs_and_learning(network: CompactDTNNet) -> None:
    left, right = pair(2)
    torch.manual_seed(0)
    learner = dtnnet_tiny().train()
    output = learner(left, right)
    assert len(output.stages) == 2
    assert set(output.auxiliary) == {"logits", "initial_normals"}
    learner.load_stage_one(network.stage_one.state_dict())
    learner.stage_one.eval().requires_grad_(False)
    truth = torch.tensor([0.6, 0.0, -0.8]).view(1, 3, 1, 1).expand(2, 3, 64, 128)
    trainable = [p for p in learner.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=1e-3)
    losses = []
    for _ in range(8):
        output = learner(left, right)
        assert output.stages == []
        loss = normal_loss(output.normals, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in trainable)
    assert all(p.grad is None for p in learner.stage_one.parameters())


def test_gradients_run_through_the_normals_into_the_first_stage() -> None:
    torch.manual_seed(0)
    learner = dtnnet_tiny(fit_radius=2).train()
    normal_loss(
        learner(*pair()).normals, torch.tensor([0.6, 0, -0.8]).view(1, 3, 1, 1).expand(1, 3, 64, 128)
    ).backward()
    gradient = learner.stage_one.logits.weight.grad
    assert gradient is not None
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0


def test_bfloat16_autocast(network: CompactDTNNet) -> None:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        output = network(*pair())
    assert output.normals.dtype == torch.float32
    torch.testing.assert_close(torch.linalg.vector_norm(output.normals, dim=1), torch.ones(1, 64, 128))


def test_save_and_load(network: CompactDTNNet, tmp_path: Path) -> None:
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    torch.save({"state_dict": nn.DataParallel(network).state_dict(), "epoch": 1}, tmp_path / "weights.pth")
    with torch.no_grad():
        expected = network(*pair()).normals
        for file in ("weights.safetensors", "weights.pth"):
            assert torch.equal(create_model("dtnnet_tiny", pretrained=tmp_path / file)(*pair()).normals, expected)
    with pytest.raises(WeightsError, match=r"of another shape"):
        create_model("dtnnet_tiny", pretrained=tmp_path / "weights.pth", width_ratio=0.25)


def test_widths() -> None:
    assert reduced_widths(0.125) == UNetWidths((16, 16, 32, 64, 64, 128), 32, (64, 32, 16, 16, 16, 16))
    assert reduced_widths(1.0) == UNetWidths((64, 128, 256, 512, 512, 1024), 256, (512, 256, 128, 64, 32, 16))


def test_unusable_arguments(network: CompactDTNNet) -> None:
    with pytest.raises(InputError, match="width_ratio"):
        dtnnet_tiny(width_ratio=0)
    with pytest.raises(InputError, match="fit_radius"):
        dtnnet_tiny(fit_radius=-1)
    with pytest.raises(InputError, match="multiples of 64"):
        network(torch.zeros(1, 3, 48, 96), torch.zeros(1, 3, 48, 96))
    with pytest.raises(InputError, match="intrinsics"):
        network(*pair(), MATRIX.repeat(2, 1, 1))


def test_facing_the_camera() -> None:
    matrix = torch.tensor([[[100.0, 5, 3], [0, 90, 2], [0, 0, 1]]])
    rays = ray_directions(torch.zeros(1, 1, 5, 7), matrix)
    pixels = torch.einsum("ij,bjhw->bihw", matrix[0], rays)
    pixels = pixels / pixels[:, 2:]
    torch.testing.assert_close(pixels[0, :2, 4, 6], torch.tensor([6.0, 4.0]))
    normals = nn.functional.normalize(torch.randn(1, 3, 5, 7, generator=torch.Generator().manual_seed(0)))
    turned = face_camera(normals, rays)
    facing = (normals * rays).sum(1, keepdim=True) < -2e-3
    torch.testing.assert_close(torch.where(facing, turned, 0.0), torch.where(facing, normals, 0.0))
    assert ((turned * rays).sum(1) < 0).all()
    torch.testing.assert_close(torch.linalg.vector_norm(turned, dim=1), torch.ones(1, 5, 7))


def test_normnets_has_no_disparity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vision3d.models.normals.dtnnet.FULL_WIDTHS", reduced_widths(0.125))
    network = NormNets().eval()
    with torch.no_grad():
        output = network(*pair())
    assert torch.isnan(output.disparity).all()
    assert output.disparity.shape == (1, 1, 64, 128)
    assert output.pyramid == []
    torch.testing.assert_close(torch.linalg.vector_norm(output.normals, dim=1), torch.ones(1, 64, 128))


@pytest.mark.real
def test_first_normals_of_a_room(network: CompactDTNNet, shared: Path) -> None:
    """The figures of the card: exact normals of a predicted disparity are useless, fitted planes are not."""
    folder = shared / "data" / "irs_sample" / "Home" / "SyntheticRoom"
    views = [torch.from_numpy(read_image(folder / f"{v}_00001.png")).permute(2, 0, 1)[None].float() / 255 for v in "lr"]
    channels = read_exr(folder / "n_00001.exr")
    truth = 2 * np.stack([channels[c] for c in "RGB"], -1).astype(np.float64) - 1
    matrix = torch.tensor([[480.0, 0, 479.5], [0, 480, 269.5], [0, 0, 1]])
    (left, padding), (right, _) = (pad_to_multiple(view, 64) for view in views)
    with torch.no_grad():
        disparity = padding.undo(network.stage_one(left, right).disparity)

    def mean_angle(normals: torch.Tensor) -> float:
        return float(np.nanmean(angle_between(normals[0].permute(1, 2, 0).double().numpy(), truth)))

    assert mean_angle(normals_from_disparity(disparity, matrix)) == pytest.approx(38, abs=2)
    assert mean_angle(network.initial_normals(disparity, matrix[None])) == pytest.approx(9.9, abs=1)
