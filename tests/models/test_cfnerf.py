# SPDX-License-Identifier: Apache-2.0
"""Fields, cameras and rendering of CF-NeRF against plain formulas and numerical gradients."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vision3d.errors import ConfigError, InputError, WeightsError
from vision3d.geometry.poses import axis_angle_to_matrix, make_pose
from vision3d.models.nerf.cameras import CameraParameters
from vision3d.models.nerf.cfnerf import FIELDS, CFNeRF, make_field
from vision3d.models.nerf.encodings import band_weights, positional_encoding
from vision3d.models.nerf.hash_grid import HashGrid, contract, weighted_rows
from vision3d.models.nerf.networks import SirenField
from vision3d.models.nerf.rendering import Rendering, render_rays
from vision3d.models.nerf.sampling import even_depths, jitter_depths, sample_by_weight
from vision3d.zoo import create_model

SMALL = {
    "siren": {"depth": 2, "width": 16},
    "relu": {"depth": 3, "width": 16, "skips": (1,)},
    "gaussian": {"depth": 3, "width": 16, "skips": (1,)},
    "hash_grid": {"levels": 3, "log2_rows": 8, "coarsest": 4, "finest": 16, "width": 16},
}


def small_model(field: str, views: int = 3, **options: object) -> CFNeRF:
    torch.manual_seed(0)
    rendering = {"samples": 16, **options}
    return CFNeRF(field, views, 9, 12, field_options=SMALL[field], rendering=rendering)  # type: ignore[arg-type]


def test_band_weights():
    assert band_weights(0, 3) == [0, 0, 0]
    assert band_weights(1, 3) == [1, 1, 1]
    np.testing.assert_allclose(band_weights(0.5, 3), [1, (1 - math.cos(math.pi / 2)) / 2, 0], atol=1e-12)
    points = torch.rand(5, 3)
    closed = positional_encoding(points, 4, 0.25)
    assert torch.equal(closed[:, :9], positional_encoding(points, 1))
    assert (closed[:, 9:] == 0).all()


def test_siren_start():
    """The bounds of the published initialisation."""
    field = SirenField(depth=3, width=64)
    layers = [*field.base_layers, field.rgb_layer, field.rgb_layers[0]]
    for layer in layers:
        bound = 1 / 3 if layer is field.base_layers[0] else math.sqrt(6 / layer.layer.in_features)
        for values in (layer.layer.weight, layer.layer.bias):
            assert 0.85 * bound < values.abs().max() <= bound


def test_weighted_rows_gradient():
    table = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(4, 8, dtype=torch.float64, requires_grad=True)
    rows = torch.randint(0, 6, (4, 8))
    torch.testing.assert_close(weighted_rows(table, rows, weights), (table[rows] * weights[..., None]).sum(1))
    assert torch.autograd.gradcheck(lambda t, w: weighted_rows(t, rows, w), (table, weights))


def test_hash_grid_values():
    """Every level against a loop over the eight corners, dense and hashed."""
    grid = HashGrid(levels=3, features=2, log2_rows=7, coarsest=4, finest=16).double()
    for table in grid.tables:
        torch.nn.init.normal_(table)
    assert [len(table) for table in grid.tables] == [125, 128, 128]
    points = torch.rand(20, 3, dtype=torch.float64)
    points[0], points[1] = 0, 1
    found = grid(points).detach().numpy()
    for number, (table, resolution) in enumerate(zip(grid.tables, grid.resolutions, strict=True)):
        for point, row in zip(points.numpy(), found, strict=True):
            cell = np.minimum(np.floor(point * resolution), resolution - 1).astype(int)
            share = point * resolution - cell
            value = np.zeros(2)
            for corner in itertools.product((0, 1), repeat=3):
                x, y, z = (int(c) + k for c, k in zip(cell, corner, strict=True))
                dense = (x * (resolution + 1) + y) * (resolution + 1) + z
                place = dense if number == 0 else (x ^ (y * 2654435761) ^ (z * 805459861)) % 128
                weight = np.prod([s if k else 1 - s for s, k in zip(share, corner, strict=True)])
                value += weight * table[place].detach().numpy()
            np.testing.assert_allclose(row[2 * number : 2 * number + 2], value, atol=1e-12)


def test_hash_grid_gradient_and_window():
    grid = HashGrid(levels=3, features=2, log2_rows=6, coarsest=2, finest=7).double()
    for table in grid.tables:
        torch.nn.init.normal_(table)
    points = (0.05 + 0.9 * torch.rand(5, 3, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(grid, points, eps=1e-7, atol=1e-5)
    tables = list(grid.tables)
    assert torch.autograd.gradcheck(lambda *_: grid(points.detach()), tables, eps=1e-6)
    full = grid(points)
    assert torch.equal(grid(points, 0.0)[:, :2], full[:, :2])
    assert (grid(points, 0.0)[:, 2:] == 0).all()
    torch.testing.assert_close(grid(points, 0.75), full * full.new_tensor([1, 1, 1, 1, 0.5, 0.5]))


def test_contraction():
    points = torch.tensor([[0.3, -0.9, 0.1], [1e6, 2.0, -3.0], [0.0, -4.0, 2.0]], dtype=torch.float64)
    mapped = contract(points)
    assert torch.equal(mapped[0], points[0])
    assert mapped.abs().max() < 2
    torch.testing.assert_close(mapped[2], torch.tensor([0.0, -1.75, 0.875], dtype=torch.float64))
    assert torch.autograd.gradcheck(contract, points[[0, 2]].requires_grad_())


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name):
    torch.manual_seed(0)
    field = make_field(name, SMALL[name])
    points = torch.randn(4, 5, 3)
    directions = torch.nn.functional.normalize(torch.randn(4, 5, 3), dim=-1)
    colors, densities = field(points, directions)
    assert colors.shape == (4, 5, 3)
    assert densities.shape == (4, 5)
    torch.testing.assert_close(field.density(points), densities)
    assert field(points[:0], directions[:0])[0].shape == (0, 5, 3)
    changed = field(points, directions.roll(1, 0))
    assert not torch.equal(changed[0], colors)
    torch.testing.assert_close(changed[1], densities)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(torch.isfinite(values.float()).all() for values in field(points, directions))
    with pytest.raises(InputError, match="from 0 to 1"):
        field.set_progress(1.5)


@pytest.mark.parametrize("name", ["relu", "hash_grid"])
def test_window_is_kept_in_the_state(name):
    field, other = (make_field(name, SMALL[name]) for _ in range(2))
    field.set_progress(0.25)
    other.load_state_dict(field.state_dict())
    points = torch.randn(6, 3)
    assert torch.equal(field(points, points)[0], other(points, points)[0])
    field.set_progress(1.0)
    if name == "relu":
        assert not torch.equal(field(points, points)[0], other(points, points)[0])


@pytest.mark.parametrize("name", FIELDS)
def test_gradients_reach_the_cameras_at_the_identity(name):
    model = small_model(name).train()
    generator = torch.Generator().manual_seed(0)
    views = torch.tensor([0, 1, 1, 2])
    pixels = torch.rand(4, 2, generator=generator) * 9
    model(views, pixels, density_noise=1.0, generator=generator).rgb.square().sum().backward()
    for parameter in (model.cameras.phi, model.cameras.t, model.cameras.f):
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.abs().sum() > 0
    assert all(torch.isfinite(p.grad).all() for p in model.field.parameters())


def test_random_depths_stay_in_their_intervals():
    depths = even_depths(1, 5, 9).expand(200, -1)
    moved = jitter_depths(depths, torch.Generator().manual_seed(0))
    middles = (depths[:, 1:] + depths[:, :-1]) / 2
    assert (moved[:, 1:] >= middles).all()
    assert (moved[:, :-1] <= middles).all()
    assert (moved[:, 1:-1].mean(0) - depths[0, 1:-1]).abs().max() < 0.1


def test_importance_samples_follow_the_weights():
    edges = torch.linspace(0, 4, 5).expand(1, -1)
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0]])
    drawn = sample_by_weight(edges, weights, 4000, random=True, generator=torch.Generator().manual_seed(0))
    share = torch.histc(drawn, 4, 0, 4) / 4000
    np.testing.assert_allclose(share, [0, 0.25, 0.75, 0], atol=0.03)
    model = small_model("hash_grid", importance_samples=8)
    rays = model(torch.zeros(5, dtype=torch.int64), torch.rand(5, 2))
    assert rays.depths.shape == (5, 24)
    assert (rays.depths.diff(dim=1) >= 0).all()


class Slab(torch.nn.Module):
    """Constant density behind z = 2, one colour."""

    def forward(self, points: torch.Tensor, directions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        density = torch.where(points[..., 2] > 2, 3.0, -1.0)
        return torch.tensor([0.2, 0.4, 0.6]).expand_as(points), density


def test_render_of_a_slab():
    """Against the closed form: opacity 1, depth 2 + 1 / density along the ray."""
    directions = torch.tensor([[0.0, 0.0, 1.0], [0.6, 0.0, 1.0]])
    rays = render_rays(Slab(), torch.zeros(2, 3), directions, Rendering(samples=2000))  # type: ignore[arg-type]
    torch.testing.assert_close(rays.rgb, torch.tensor([0.2, 0.4, 0.6]).expand(2, 3), atol=1e-4, rtol=0)
    expected = 2 + 1 / (3 * directions.norm(dim=1))
    torch.testing.assert_close(rays.depth, expected, atol=5e-3, rtol=0)
    with pytest.raises(InputError, match=r"\[R, 3\]"):
        render_rays(Slab(), torch.zeros(2, 3), directions[:1], Rendering())  # type: ignore[arg-type]


@pytest.mark.parametrize("rotation", ["axis_angle", "quaternion", "rotation_6d"])
@pytest.mark.parametrize("focal", ["square", "ratio", "exp"])
def test_cameras(rotation, focal):
    cameras = CameraParameters(3, 30, 40, rotation=rotation, focal=focal)
    assert cameras.focal_length().item() == pytest.approx(35, rel=1e-5)
    torch.testing.assert_close(cameras.camera_to_world(), torch.eye(4).expand(3, 4, 4))
    poses = make_pose(axis_angle_to_matrix(torch.randn(2, 3)), torch.randn(2, 3))
    cameras.set_poses(poses, first=1)
    torch.testing.assert_close(cameras.camera_to_world()[1:], poses, atol=1e-5, rtol=0)
    cameras.copy_pose(1, 2)
    torch.testing.assert_close(cameras.camera_to_world()[2], poses[0], atol=1e-5, rtol=0)
    cameras.set_focal_length(50)
    cameras.resize(60, 80)
    assert cameras.focal_length().item() == pytest.approx(100, rel=1e-5)
    with pytest.raises(InputError, match="for frames from 2 of 3"):
        cameras.set_poses(poses, first=2)


def test_camera_in_the_convention_of_the_project():
    """A point on the ray through the centre of a pixel projects to the pixel's integer coordinates."""
    cameras = CameraParameters(2, 30, 40)
    cameras.set_poses(make_pose(axis_angle_to_matrix(torch.randn(2, 3)), torch.randn(2, 3)))
    origins, directions = cameras.rays(torch.tensor([1]), torch.tensor([[7.5, 20.5]]))
    point = (origins + 2.5 * directions).detach()[0].double().numpy()
    camera = cameras.camera(1)
    seen = camera.intrinsics @ (camera.world_to_camera @ [*point, 1])[:3]
    assert seen[2] == pytest.approx(2.5, abs=1e-5)
    np.testing.assert_allclose(seen[:2] / seen[2], [7, 20], atol=1e-4)


def test_views_and_modes():
    model = small_model("siren").eval()
    image = model.render_view(1)
    assert image.rgb.shape == (3, 9, 12)
    assert image.depth.shape == image.opacity.shape == (1, 9, 12)
    views, pixels = torch.tensor([1, 1]), torch.tensor([[0.5, 0.5], [11.5, 8.5]])
    with torch.no_grad():
        rays = model(views, pixels)
    torch.testing.assert_close(rays.rgb.clamp(0, 1), image.rgb[:, [0, 8], [0, 11]].T)
    assert torch.equal(model.train().render_view(1).rgb, image.rgb)
    assert model.training
    with pytest.raises(InputError, match=r"\[R, 2\]"):
        model(views, pixels[:1])
    with pytest.raises(InputError, match="0 to 2"):
        model(views + 2, pixels)


def test_options():
    with pytest.raises(ConfigError, match="unknown field 'mlp'"):
        create_model("cfnerf", field="mlp")
    with pytest.raises(ConfigError, match="did you mean 'width'"):
        create_model("cfnerf", field_options={"widht": 3})
    with pytest.raises(ConfigError, match="did you mean 'samples'"):
        create_model("cfnerf", rendering={"sample": 3})
    for wrong in ({"views": 0}, {"field_of_view": 180.0}, {"focal": "log"}, {"height": 0}):
        with pytest.raises(ConfigError):
            create_model("cfnerf", **wrong)
    for wrong in ({"near": 3.0, "far": 2.0}, {"samples": 1}):
        with pytest.raises(InputError, match="near must lie"):
            Rendering(**wrong)
    with pytest.raises(ConfigError, match="do not make a grid"):
        make_field("hash_grid", {"levels": 0})
    with pytest.raises(ConfigError, match="skips"):
        make_field("relu", {"depth": 3, "skips": (4,)})


@pytest.mark.parametrize("name", FIELDS)
def test_save_and_load(name, tmp_path):
    model = small_model(name, views=4)
    with torch.no_grad():
        model.cameras.t.normal_()
    save_file(model.state_dict(), tmp_path / "scene.safetensors")
    torch.save({"state_dict": model.state_dict(), "step": 7}, tmp_path / "scene.pth")
    for file in ("scene.safetensors", "scene.pth"):
        loaded = create_model(
            "cfnerf", pretrained=tmp_path / file, field=name, field_options=SMALL[name], rendering={"samples": 16}
        )
        assert len(loaded.cameras) == 4
        assert torch.equal(loaded.render_view(2).rgb, model.render_view(2).rgb)
    other = small_model("siren" if name != "siren" else "relu")
    with pytest.raises(WeightsError):
        other.load_official_state_dict(model.state_dict())
    assert len(other.cameras) == 3
    with pytest.raises(WeightsError, match="strange"):
        other.load_official_state_dict({"strange": torch.zeros(1)})
