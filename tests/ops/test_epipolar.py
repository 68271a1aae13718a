# SPDX-License-Identifier: Apache-2.0
"""Epipolar lines against projections by hand and OpenCV; the cost along them against grid_sample."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from ops_cases import close, pair

from vision3d import ops
from vision3d.errors import InputError
from vision3d.ops import reference

SIZE = (6, 9)
METHODS = ["closed_form", "official"]


def cameras(turn: tuple[float, float, float], shift: tuple[float, float, float]) -> tuple[torch.Tensor, ...]:
    """Two intrinsics [1, 3, 3] and the motion [1, 4, 4] to a source camera at ``shift``, turned by ``turn``."""
    first = torch.tensor([[[11.0, 0.1, 4.2], [0.0, 12.0, 2.7], [0.0, 0.0, 1.0]]], dtype=torch.float64)
    second = torch.tensor([[[10.0, 0.0, 3.9], [0.0, 10.5, 3.1], [0.0, 0.0, 1.0]]], dtype=torch.float64)
    motion = torch.eye(4, dtype=torch.float64)
    motion[:3, :3] = torch.from_numpy(cv2.Rodrigues(np.asarray(turn, dtype=np.float64))[0])
    motion[:3, 3] = -motion[:3, :3] @ torch.tensor(shift, dtype=torch.float64)
    return first, second, motion[None]


def depths(least: float = 2.0, largest: float = 6.0, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return least + (largest - least) * torch.rand(1, 1, *SIZE, generator=generator, dtype=torch.float64)


SIDEWAYS = cameras((0.02, -0.1, 0.03), (0.8, -0.1, 0.1))
UPWARDS = cameras((0.1, 0.02, 0.0), (0.1, -0.7, -0.2))


@pytest.mark.parametrize("matrices", [SIDEWAYS, UPWARDS], ids=["sideways", "upwards"])
@pytest.mark.parametrize("method", METHODS)
def test_flow_is_the_way_between_two_projections(method: str, matrices: tuple[torch.Tensor, ...]) -> None:
    base, depth = depths(), depths(seed=5)
    lines = ops.epipolar_lines(base, *matrices, method=method)
    flow = lines.flow_from_depth(depth)
    close(flow, reference.epipolar_flow(depth, base, *matrices), 1e-9 if method == "closed_form" else 1e-5)
    assert ((flow > 0) == (depth > base)).all()
    assert (lines.flow_from_depth(base).abs() < 1e-9).all()
    close(lines.base + flow * lines.direction, lines.project(depth), 1e-9)
    close(lines.direction.norm(dim=1), torch.ones(1, *SIZE), 1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_projection_equals_opencv(method: str) -> None:
    first, second, motion = SIDEWAYS
    depth = depths()
    y, x = np.mgrid[: SIZE[0], : SIZE[1]].astype(np.float64)
    rays = np.stack([x, y, np.ones_like(x)], -1).reshape(-1, 3) @ np.linalg.inv(first[0].numpy()).T
    points = rays * depth.numpy().reshape(-1, 1)
    turn, _ = cv2.Rodrigues(motion[0, :3, :3].numpy())
    pixels, _ = cv2.projectPoints(points, turn, motion[0, :3, 3].numpy(), second[0].numpy(), None)
    lines = ops.epipolar_lines(depth, *SIDEWAYS, method=method)
    np.testing.assert_allclose(lines.base[0].flatten(1).T.numpy(), pixels[:, 0], atol=1e-5)


@pytest.mark.parametrize("matrices", [SIDEWAYS, UPWARDS], ids=["sideways", "upwards"])
@pytest.mark.parametrize("method", METHODS)
def test_depth_to_flow_and_back(method: str, matrices: tuple[torch.Tensor, ...]) -> None:
    depth = depths(1.0, 40.0, seed=5)
    lines = ops.epipolar_lines(depths(), *matrices, method=method)
    back = 1.0 / lines.inverse_depth_from_flow(lines.flow_from_depth(depth))
    close(back, depth, 1e-9 if method == "closed_form" else 1e-3)


def test_lines_and_closed_form_agree_on_ordinary_views() -> None:
    base, flow = depths(), 0.3 * torch.randn(1, 1, *SIZE, generator=torch.Generator().manual_seed(2)).double()
    exact, official = (ops.epipolar_lines(base, *SIDEWAYS, method=method) for method in METHODS)
    close(official.base, exact.base, 1e-5)
    close(official.direction, exact.direction, 1e-4)
    close(official.inverse_depth_from_flow(flow), exact.inverse_depth_from_flow(flow), 1e-4)


def test_beyond_infinity_and_beyond_the_epipole() -> None:
    lines = ops.epipolar_lines(depths(), *SIDEWAYS)
    infinity = lines.speed / (lines.slope[:, 2:] * lines.source_depth(lines.base_depth))
    far = lines.inverse_depth_from_flow(infinity)
    assert far.abs().max() < 1e-9
    assert (lines.inverse_depth_from_flow(infinity + 1.0) < 0).all()  # the sign is kept
    before = lines.inverse_depth_from_flow(torch.linspace(-0.5, 0.0, 20)[:, None, None, None].double())
    assert (before[:-1] > before[1:]).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("turn", "shift"),
    [
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)),  # identical views
        ((0.1, -0.05, 0.2), (0.0, 0.0, 0.0)),  # pure rotation
        ((0.0, 0.0, 0.0), (0.0, 0.0, 1.0)),  # ahead: the epipole inside both images
        ((0.0, 0.0, 0.0), (0.0, 0.0, 10.0)),  # all points behind the source camera
        ((0.0, np.pi, 0.0), (0.0, 0.0, 0.0)),  # looking back
        ((0.0, np.pi, 0.0), (0.0, 0.0, 4.0)),  # face to face
    ],
)
def test_awkward_views_stay_finite(method: str, dtype: torch.dtype, turn: tuple, shift: tuple) -> None:
    matrices = cameras(turn, shift)
    first = torch.tensor([[[11.0, 0.0, 4.0], [0.0, 12.0, 3.0], [0.0, 0.0, 1.0]]], dtype=torch.float64)
    matrices = (first, first, matrices[2])  # the axis goes through pixel (4, 3)
    base = depths().to(dtype).requires_grad_()
    flow = torch.zeros_like(base).detach().requires_grad_()
    lines = ops.epipolar_lines(base, *matrices, method=method)
    inverse = lines.inverse_depth_from_flow(flow + 0.5)
    other = lines.flow_from_depth(depths(seed=9).to(dtype))
    features = torch.ones(1, 2, *SIZE, dtype=dtype, requires_grad=True)
    cost = ops.epipolar_cost(features, [features], lines.base, lines.direction, other, 2)
    (inverse.clamp(0, 1).sum() + other.clamp(-1, 1).sum() + cost.sum()).backward()
    for value in (lines.base, lines.direction, inverse, other, cost, base.grad, flow.grad, features.grad):
        assert torch.isfinite(value).all()
    if shift == (0.0, 0.0, 0.0):
        assert lines.degenerate.all()
        assert (lines.direction == 0).all()
        if method == "closed_form":
            close(1.0 / inverse, base, 1e-5)
    else:
        assert lines.degenerate.sum() == 1
        assert lines.degenerate[0, 0, 3, 4]


def test_base_points_behind_the_source_camera_are_moved_before_it() -> None:
    matrices = cameras((0.0, 0.05, 0.0), (0.3, 0.0, 4.0))  # the source camera is 4 ahead
    start = torch.full((1, 1, *SIZE), 2.0, dtype=torch.float64)
    lines = ops.epipolar_lines(start, *matrices)
    assert (lines.source_depth(lines.base_depth) > 0).all()
    depth = depths(6.0, 9.0)
    close(1.0 / lines.inverse_depth_from_flow(lines.flow_from_depth(depth)), depth, 1e-9)
    assert not lines.visible(start, (100, 100)).any()


@pytest.mark.parametrize("method", METHODS)
def test_gradients_of_flow_and_depth(method: str) -> None:
    base = depths()[..., :2, :3].clone().requires_grad_()
    depth = depths(seed=5)[..., :2, :3].clone().requires_grad_()
    flow = torch.full((1, 1, 2, 3), 0.2, dtype=torch.float64, requires_grad=True)

    def function(base: torch.Tensor, depth: torch.Tensor, flow: torch.Tensor) -> tuple[torch.Tensor, ...]:
        lines = ops.epipolar_lines(base, *SIDEWAYS, method=method)
        return lines.flow_from_depth(depth), lines.inverse_depth_from_flow(flow), lines.base, lines.direction

    assert torch.autograd.gradcheck(function, (base, depth, flow))


def cost_inputs(channels: int, size: tuple[int, int], batch: int = 2, spread: float = 3.0) -> tuple[torch.Tensor, ...]:
    """Reference and source features, base, direction, flow; some samples lie outside."""
    first, second = pair(batch, channels, *size)
    generator = torch.Generator().manual_seed(11)
    noise = spread * torch.randn(batch, 4, *size, generator=generator, dtype=torch.float64)
    y, x = torch.meshgrid(*(torch.arange(side, dtype=torch.float64) for side in size), indexing="ij")
    base = torch.stack([x, y]) + noise[:, :2]
    direction = torch.nn.functional.normalize(noise[:, 1:3], dim=1)
    return first, second, base, direction, noise[:, 3:]


@pytest.mark.parametrize("half_pixel", [False, True])
@pytest.mark.parametrize(
    ("size", "levels", "radius"), [((16, 20), 4, 4), ((9, 13), 2, 2), ((1, 1), 1, 1), ((1, 7), 1, 0)]
)
def test_cost_equals_the_loop(size: tuple[int, int], levels: int, radius: int, half_pixel: bool) -> None:
    first, second, *line = cost_inputs(6, size)
    pyramid = ops.feature_pyramid(second, levels)
    cost = ops.epipolar_cost(first, pyramid, *line, radius, half_pixel=half_pixel)
    assert cost.shape == (2, levels * (2 * radius + 1), *size)
    close(cost, reference.epipolar_cost(first, pyramid, *line, radius, half_pixel=half_pixel), 1e-10)


def test_cost_peaks_at_the_true_step() -> None:
    generator = torch.Generator().manual_seed(0)
    source = torch.nn.functional.normalize(torch.randn(1, 32, 12, 30, generator=generator), dim=1)
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(30.0), indexing="ij")
    base, direction = torch.stack([x, y])[None], torch.tensor([1.0, 0.0])[None, :, None, None].expand(1, 2, 12, 30)
    reference_features = torch.roll(source, -3, dims=3)  # the match of x lies at x + 3
    cost = ops.epipolar_cost(reference_features, [source], base, direction, torch.zeros(1, 1, 12, 30), 4)
    assert (cost[..., :-4].argmax(1) == 3 + 4).all()


def test_missing_levels_cost_nothing() -> None:
    first, second, *line = cost_inputs(3, (3, 2))
    cost = ops.epipolar_cost(first, ops.feature_pyramid(second, 4), *line, 1)
    assert cost.shape == (2, 12, 3, 2)
    assert (cost[:, 6:] == 0).all()


@pytest.mark.parametrize("half_pixel", [False, True])
def test_cost_gradients(half_pixel: bool) -> None:
    inputs = [value.requires_grad_() for value in cost_inputs(2, (3, 4), batch=1, spread=0.7)]

    def function(first: torch.Tensor, second: torch.Tensor, *line: torch.Tensor) -> torch.Tensor:
        return ops.epipolar_cost(first, ops.feature_pyramid(second, 2), *line, 1, half_pixel=half_pixel)

    assert torch.autograd.gradcheck(function, inputs)


def test_cost_types_strides_and_not_a_number() -> None:
    first, second, base, direction, flow = cost_inputs(8, (10, 12))
    exact = ops.epipolar_cost(first, [second], base, direction, flow, 2)
    single = [value.float() for value in (first, second, base, direction, flow)]
    close(ops.epipolar_cost(single[0], [single[1]], *single[2:], 2), exact, 1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = ops.epipolar_cost(first.bfloat16(), [second.bfloat16()], *single[2:], 2)
    assert half.dtype == torch.float32
    close(half, exact, 3e-2)
    strided = [value[:, :, ::2, ::3] for value in (first, second, base, direction, flow)]
    dense = [value.contiguous() for value in strided]
    close(
        ops.epipolar_cost(strided[0], [strided[1]], *strided[2:], 1),
        ops.epipolar_cost(dense[0], [dense[1]], *dense[2:], 1),
        1e-12,
    )
    flow[0, 0, 0, 0] = torch.nan
    broken = ops.epipolar_cost(first, [second], base, direction, flow, 2)
    assert torch.isfinite(broken).all()
    close(broken[..., 1:, :], exact[..., 1:, :], 1e-12)
    empty = [value[:0] for value in (first, second, base, direction, flow)]
    assert ops.epipolar_cost(empty[0], [empty[1]], *empty[2:], 2).shape == (0, 5, 10, 12)


def test_wrong_arguments_are_named() -> None:
    first, second, base, direction, flow = cost_inputs(4, (5, 6))
    with pytest.raises(InputError, match=r"flow \[2, 2, 5, 6\]"):
        ops.epipolar_cost(first, [second], base, direction, base, 2)
    with pytest.raises(InputError, match=r"pyramid\[0\] \[2, 3, 5, 6\]"):
        ops.epipolar_cost(first, [second[:, :3]], base, direction, flow, 2)
    with pytest.raises(InputError, match="radius must be at least 0"):
        ops.epipolar_cost(first, [second], base, direction, flow, -1)
    with pytest.raises(InputError, match="method must be one of closed_form, official"):
        ops.epipolar_lines(depths(), *SIDEWAYS, method="exact")
    with pytest.raises(InputError, match=r"source_from_reference \[2, 4, 4\]"):
        ops.epipolar_lines(depths(), *SIDEWAYS[:2], SIDEWAYS[2].repeat(2, 1, 1))
