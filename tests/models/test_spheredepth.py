# SPDX-License-Identifier: Apache-2.0
"""SphereDepth and its planar baseline: sizes of the specification, symmetry, seams, learning, export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vision3d.errors import InputError
from vision3d.geometry.icosphere import face_count
from vision3d.geometry.panorama_mesh import faces_to_panorama, panorama_to_faces
from vision3d.models.panorama.panoramadepth import PanoramaDepth, pad_panorama
from vision3d.models.panorama.spheredepth import SphereDepth
from vision3d.training.panorama_losses import multi_scale_loss
from vision3d.zoo import create_model, list_models

NAMES = list_models(task="panorama")
TINY = ["spheredepth_tiny", "panoramadepth_tiny"]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def panorama(batch: int = 1, height: int = 64) -> torch.Tensor:
    return torch.rand((batch, 3, height, 2 * height), generator=torch.Generator().manual_seed(0))


def awake(model: nn.Module) -> nn.Module:
    """Statistics of its own for each norm, so that signals reach the output in evaluation mode."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) and module.running_mean is not None:
            module.running_mean.copy_(0.1 * torch.randn(module.running_mean.shape, generator=generator))
    return model


@pytest.mark.parametrize(
    ("level", "texture", "parameters"),
    [(4, 0, 6_465_412), (5, 1, 6_473_488), (5, 2, 6_505_792), (6, 0, 6_465_412), (6, 1, 6_473_488)],
)
def test_parameters_of_the_specification(level: int, texture: int, parameters: int) -> None:
    with torch.device("meta"):
        model = create_model("spheredepth", level=level, texture=texture)
    assert sum(value.numel() for value in model.parameters()) == parameters


@pytest.mark.parametrize("name", TINY)
def test_outputs(name: str) -> None:
    model = create_model(name)
    with torch.no_grad():
        output = model(panorama(2))
    assert output.depth.shape == (2, 1, 64, 128)
    assert output.depth.min() > 0
    assert output.depth.max() < 10
    assert output.auxiliary == {}
    if name == "spheredepth_tiny":
        assert output.faces.shape == (2, face_count(6))
        painted = faces_to_panorama(output.faces[1].numpy(), 64)
        np.testing.assert_array_equal(output.depth[1, 0].numpy(), painted)
    trained = model.train()(panorama(2))
    assert [trained.auxiliary[f"scale{k}"].numel() for k in range(4)] == [
        trained.auxiliary["scale0"].numel() // 4**k for k in range(4)
    ]


@pytest.mark.parametrize("texture", [0, 1])
@pytest.mark.parametrize("height", [1, 5, 16, 33])
def test_any_height(height: int, texture: int) -> None:
    model = create_model("spheredepth", level=4, texture=texture, width=4)
    with torch.no_grad():
        assert model(panorama(1, height)).depth.shape == (1, 1, height, 2 * height)


def test_texture_equals_the_numpy_sampling() -> None:
    image = panorama(1, 48)
    samples = panorama_to_faces(image[0].permute(1, 2, 0).double().numpy(), 5)
    expected = samples.reshape(4, face_count(4), 3).transpose(1, 0, 2).reshape(-1, 12)
    texture = SphereDepth(level=4, texture=1, width=4).texture_of(image)
    np.testing.assert_allclose(texture[0].numpy(), expected, atol=1e-5)
    reduced = panorama_to_faces(panorama(1, 128)[0].permute(1, 2, 0).double().numpy(), 4, reduce=True)
    texture = SphereDepth(level=4, width=4).texture_of(panorama(1, 128))
    np.testing.assert_allclose(texture[0].numpy(), reduced, atol=1e-5)


@pytest.mark.parametrize("options", [{"level": 3}, {"level": 6, "texture": 3}, {"width": 0}, {"max_depth": 0.0}])
def test_unusable_options(options: dict[str, float]) -> None:
    with pytest.raises(InputError):
        create_model("spheredepth", **options)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("shape", [(3, 64, 128), (1, 4, 64, 128), (1, 3, 64, 64), (1, 3, 0, 0)])
def test_unusable_images(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="a panorama must be"):
        create_model(name)(torch.zeros(shape))


def test_baseline_names_its_multiple() -> None:
    with pytest.raises(InputError, match="multiple of 32"):
        create_model("panoramadepth_tiny")(panorama(1, 48))


@pytest.mark.parametrize(
    ("kind", "options"),
    [(SphereDepth, (4, 0, 8)), (SphereDepth, (5, 0, 8)), (PanoramaDepth, (8,)), (PanoramaDepth, (8, 2))],
    ids=["level 4", "level 5", "planar", "planar, patch"],
)
def test_half_a_turn_of_the_camera_turns_the_answer(kind: type[nn.Module], options: tuple[int, ...]) -> None:
    """Exact for texture 0; texture channels are numbered from the first corner of a face, which a turn may move."""
    model = awake(kind(*options)).eval().double()
    image = panorama(1, 64).double()
    with torch.no_grad():
        plain, turned = model(image).depth, model(image.roll(64, 3)).depth
    assert plain.std() > 1e-5
    torch.testing.assert_close(turned, plain.roll(64, 3), rtol=0, atol=1e-6)


def test_padding_continues_over_the_poles() -> None:
    x = torch.arange(2 * 4 * 8.0).view(1, 2, 4, 8)
    padded = pad_panorama(x)
    torch.testing.assert_close(padded[:, :, 1:-1, 1:-1], x)
    torch.testing.assert_close(padded[:, :, 1:-1, 0], x[..., 7])
    torch.testing.assert_close(padded[:, :, 0, 1:-1], x[:, :, 0].roll(4, 2))
    torch.testing.assert_close(padded[:, :, -1, -1], x[:, :, 3, 4])


@pytest.mark.parametrize("name", TINY)
def test_training_lowers_the_loss(name: str) -> None:
    torch.manual_seed(0)
    model = create_model(name).train()
    image = panorama(2)
    truth = torch.full_like(model(image).auxiliary["scale0"], 3.0)
    truth[:, ..., ::5] = torch.nan
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        loss = multi_scale_loss(model(image).auxiliary, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(value.grad is not None and torch.isfinite(value.grad).all() for value in model.parameters())


@pytest.mark.parametrize("name", TINY)
def test_bfloat16(name: str) -> None:
    model = awake(create_model(name))
    with torch.no_grad():
        exact = model(panorama()).depth
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = model(panorama()).depth
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, exact, rtol=0, atol=0.05)


def test_folded_norm_equals_batch_norm() -> None:
    model = awake(SphereDepth(4, 0, 4)).eval()
    norm = model.encoder.stem.norm
    x = torch.randn(2, 20, 4)
    expected = nn.functional.batch_norm(
        x.flatten(0, 1), norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
    )
    torch.testing.assert_close(norm(x).flatten(0, 1), expected)


@pytest.mark.parametrize("name", TINY)
def test_normalization_can_be_replaced_and_weights_reload(name: str, tmp_path: Path) -> None:
    model = awake(create_model(name))
    torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, tmp_path / "weights.pth")
    again = create_model(name, pretrained=tmp_path / "weights.pth")
    image = panorama()
    normalised = model.normalization(image)
    again.normalization = nn.Identity()
    with torch.no_grad():
        assert torch.equal(again(normalised).depth, model(image).depth)


def test_tables_stay_out_of_the_weights() -> None:
    assert not any("adjacency" in name or "twins" in name for name in SphereDepth(4, 0, 4).state_dict())
