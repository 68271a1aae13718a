# SPDX-License-Identifier: Apache-2.0
"""CF-NeRF against outputs of the published code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reference_fill import fill_entry

from vision3d.models.nerf.cameras import CameraParameters, pixel_grid
from vision3d.models.nerf.cfnerf import OFFICIAL_PREFIX, CFNeRF, make_field
from vision3d.models.nerf.encodings import positional_encoding
from vision3d.models.nerf.networks import Field
from vision3d.models.nerf.rendering import Rendering, composite, render_rays
from vision3d.models.nerf.sampling import even_depths, sample_by_weight
from vision3d.zoo import create_model

pytestmark = pytest.mark.real

NETWORKS = {
    "nerf": ("relu", {}, 2e-5, 2e-5),
    "siren_w20": ("siren", {}, 1e-4, 5e-4),
    "siren_w30": ("siren", {"first_frequency": 30.0}, 1e-4, 1e-3),
    "gauss": ("gaussian", {}, None, None),
}


class Reference:
    """One file of reference outputs, as tensors."""

    def __init__(self, shared: Path, name: str) -> None:
        self.arrays = dict(np.load(shared / "parity" / "cfnerf" / f"{name}.npz"))

    def __getitem__(self, key: str) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self.arrays[key]))


@pytest.fixture
def reference(shared: Path):
    return lambda name: Reference(shared, name)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance, check_dtype=False)


def fill(field: Field) -> dict[str, torch.Tensor]:
    """Give a field its reference weights; returns them under the authors' names."""
    own = {name: value for name, value in field.state_dict().items() if name != "progress"}
    official = {}
    for name, value in own.items():
        full = OFFICIAL_PREFIX + name
        filled = fill_entry(full, tuple(value.shape))
        official[full] = filled
    field.load_state_dict({name.removeprefix(OFFICIAL_PREFIX): value for name, value in official.items()}, strict=False)
    return official


@pytest.mark.parametrize("bands", [10, 4])
def test_positional_encoding(reference, bands):
    file = reference("posenc")
    assert_close(positional_encoding(file["x"], bands), file[f"enc{bands}"], 1e-5)
    assert_close(positional_encoding(file["x"].double(), 10), file["enc10_f64"], 1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(reference, name):
    file = reference(f"mlp_{name}")
    kind, options, color_tolerance, density_tolerance = NETWORKS[name]
    field = make_field(kind, options)
    official = fill(field)
    assert sorted(official) == sorted(file.arrays["keys"].tolist())
    assert sum(value.numel() for value in official.values()) == int(file["num_params"])
    sums = dict(zip(file.arrays["keys"].tolist(), file.arrays["param_sums_f64"].tolist(), strict=True))
    for key, value in official.items():
        assert float(value.double().sum()) == pytest.approx(sums[key], abs=1e-6)
    with torch.no_grad():
        if color_tolerance is not None:
            colors, densities = field(file["pts"], file["viewdirs"])
            assert_close(colors, file["rgb"], color_tolerance)
            assert_close(densities, file["sigma"], density_tolerance)
            assert torch.equal(field.density(file["pts"]), densities)
        colors, densities = field.double()(file["pts"].double(), file["viewdirs"].double())
    assert_close(colors, file["rgb_f64"], 1e-9)
    assert_close(densities, file["sigma_f64"], 1e-9)


def cameras_of(file: Reference) -> CameraParameters:
    cameras = CameraParameters(7, height=int(file["H0"]), width=int(file["W0"]))
    cameras.load_state_dict({"phi": file["phi"], "t": file["t"], "f": file["f"][None], "size": cameras.size})
    return cameras


def test_cameras(reference):
    file = reference("camera")
    cameras = cameras_of(file)
    with torch.no_grad():
        assert_close(cameras.rotations(), file["R"], 1e-5)
        assert_close(cameras.camera_to_world(), file["c2w"], 1e-5)
        assert_close(cameras.intrinsics(), file["K"], 1e-5)
        pixels = pixel_grid(cameras.height, cameras.width)[file["pixel_index"]] - 0.5
        for view in range(7):
            origins, directions = cameras.rays(torch.full((len(pixels),), view), pixels)
            assert_close(origins, file["rays_o"][view], 1e-5)
            assert_close(directions, file["rays_d"][view], 1e-5)
        cameras.resize(108, 192)
        assert_close(cameras.intrinsics(), file["K_at_108x192"], 1e-4)
        for form, value in (("square", 1.1), ("ratio", 1.1), ("exp", 0.1)):
            other = CameraParameters(1, 27, 48, focal=form)
            other.f.fill_(value)
            expected = file[f"fx_{form}_{value}".replace(".", "p")]
            assert float(other.focal_length()) == pytest.approx(float(expected), rel=1e-6)
        assert_close(CameraParameters(1, 27, 48).f, file["f_init_fov53_13"], 1e-6)


def test_gradient_of_rotation(reference):
    file = reference("camera")
    cameras = CameraParameters(1, 27, 48)
    with torch.no_grad():
        cameras.phi.copy_(file["grad_in_phi"])
    (cameras.rotations() * file["grad_weight"]).sum().backward()
    assert_close(cameras.phi.grad, file["grad_phi"], 1e-5)


@pytest.mark.parametrize("density", ["relu", "softplus"])
def test_compositing(reference, density):
    file = reference("volume")
    inputs = (file["raw_rgb"], file["raw_sigma"], file["z_vals"], file["rays_d"])
    rays = composite(*inputs, density=density)
    assert_close(rays.rgb, file[f"{density}_rgb"], 1e-5)
    assert_close(rays.depth, file[f"{density}_depth"], 1e-5)
    assert_close(rays.opacity, file[f"{density}_acc"], 1e-5)
    assert_close(rays.alpha, file[f"{density}_alpha"], 1e-5)
    assert_close(rays.weights, file[f"{density}_weights"], 1e-5)
    torch.testing.assert_close(rays.disparity, file[f"{density}_disp"], rtol=1e-5, atol=1e-5)
    white = composite(*inputs, density=density, white_background=True)
    assert_close(white.rgb, file[f"{density}_white_rgb"], 1e-5)


def test_sampling(reference):
    file = reference("sampling")
    depths = even_depths(0, 6, 128).expand(4, -1)
    assert_close(depths, file["z_lin_0_6_128"], 1e-5)
    points = file["rays_o"][:, None] + file["rays_d"][:, None] * depths[..., None]
    assert_close(points[:, ::16], file["pts_lin"], 1e-5)
    assert_close(even_depths(0.5, 6, 16, in_disparity=True).expand(4, -1), file["z_lindisp_05_6_16"], 1e-5)
    assert_close(sample_by_weight(file["pdf_bins"], file["pdf_weights"], 64), file["pdf_samples_det64"], 1e-5)


def test_whole_chain(reference):
    file, cameras = reference("render"), cameras_of(reference("camera"))
    field = make_field("relu")
    fill(field)
    pixels = pixel_grid(27, 48)[file["pixel_index"]] - 0.5
    with torch.no_grad():
        rays = cameras.rays(torch.full((len(pixels),), int(file["view"])), pixels)
        rendered = render_rays(field, *rays, Rendering())
    assert_close(rendered.rgb, file["rgb"], 5e-4)
    assert_close(rendered.depth, file["depth"], 5e-4)
    assert_close(rendered.opacity, file["acc"], 5e-4)
    loss = F.smooth_l1_loss(rendered.rgb, file["target"])
    assert float(loss) == pytest.approx(float(file["smooth_l1"]), abs=5e-4)


@pytest.mark.parametrize("wrapped", [False, True])
def test_official_checkpoint(reference, wrapped):
    """Network and cameras of the authors, with their number of frames, whatever dictionaries lie around them."""
    file = reference("camera")
    network = fill(make_field("relu"))
    cameras = {"phi": file["phi"], "t": file["t"], "f": file["f"][None], "so3_repr": "axis-angle", "N_imgs": 7}
    content = {"model": {"module." + k: v for k, v in network.items()}, "pose": cameras, "iter": 3}
    model = create_model("cfnerf", field="relu", height=27, width=48)
    assert isinstance(model, CFNeRF)
    model.load_official_state_dict(content if wrapped else {**network, **cameras})
    assert_close(model.cameras.camera_to_world().detach(), file["c2w"], 1e-5)
    for name, value in network.items():
        assert torch.equal(model.field.state_dict()[name.removeprefix(OFFICIAL_PREFIX)], value)
