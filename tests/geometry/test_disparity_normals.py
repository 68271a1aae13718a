# SPDX-License-Identifier: Apache-2.0
"""Normals of disparity maps against closed-form scenes, least squares and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from vision3d.errors import InputError
from vision3d.evaluation.depth_metrics import angle_between
from vision3d.geometry.normals import d2n_official, fit_normals, normals_from_depth, normals_from_disparity
from vision3d.types import Camera

HEIGHT, WIDTH = 17, 23
MATRIX = np.array([[480.0, 0, 10.3], [0, 455, 7.9], [0, 0, 1]])
PLANES = [(0.0, 0.0, -1.0), (0.4, 0.0, -1.0), (-0.3, 0.6, -0.7), (0.05, 1.0, 0.01)]
Method = Callable[..., np.ndarray]


def exact(disparity: np.ndarray, matrix: np.ndarray, **options: float) -> np.ndarray:
    return normals_from_disparity(disparity, matrix, **options)


def edge_aware(disparity: np.ndarray, matrix: np.ndarray, **options: float) -> np.ndarray:
    return normals_from_disparity(disparity, matrix, edge_aware=True, **options)


def fitted(disparity: np.ndarray, matrix: np.ndarray, **options: float) -> np.ndarray:
    return fit_normals(disparity, matrix, 2, **options)


def fitted_centred(disparity: np.ndarray, matrix: np.ndarray, **options: float) -> np.ndarray:
    return fit_normals(disparity, matrix, 2, edge_aware=False, **options)


METHODS = [exact, edge_aware, fitted, fitted_centred]


def plane(normal: tuple[float, float, float], matrix: np.ndarray = MATRIX) -> tuple[np.ndarray, np.ndarray]:
    """Disparity [H, W] of a plane in front of the camera, from its rays, and its unit normal towards the camera."""
    unit = np.array(normal) / np.linalg.norm(normal)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    rays = np.stack([x, y, np.ones_like(x)], -1) @ np.linalg.inv(matrix).T
    distance = 3.0 if abs(normal[2]) > 0.1 else 0.15
    inverse_depth = rays @ unit / -distance
    if inverse_depth.min() <= 0:  # seen at a grazing angle: keep what is in front
        inverse_depth[inverse_depth <= 0] = np.nan
    return matrix[0, 0] * 0.1 * inverse_depth, unit


def errors(result: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return angle_between(result.astype(np.float64), np.broadcast_to(truth, result.shape).astype(np.float64))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("normal", PLANES)
def test_planes_are_exact_up_to_the_border(method: Method, normal: tuple[float, float, float]) -> None:
    disparity, unit = plane(normal)
    known = np.isfinite(disparity)
    result = method(disparity, MATRIX)
    assert result.dtype == np.float64
    angle = errors(result, unit)
    assert np.isnan(angle[~known]).all()
    assert (angle[known] < 1e-8).mean() > 0.95  # a last row of a cut plane may have no neighbour
    assert np.nanmax(angle) < 1e-8
    if known.all():
        assert np.isfinite(angle).all()
    assert np.nanmedian(errors(method(disparity.astype(np.float32), MATRIX), unit)[known]) < 0.05


@pytest.mark.parametrize("method", METHODS)
def test_skew_and_offset_of_the_principal_points(method: Method) -> None:
    skewed = MATRIX + np.array([[0, 25.0, 0], [0, 0, 0], [0, 0, 0]])
    disparity, unit = plane((-0.3, 0.6, -0.7), skewed)
    assert errors(method(disparity, skewed), unit).max() < 1e-8
    assert errors(method(disparity - 5.5, skewed, doffs=5.5), unit).max() < 1e-8


@pytest.mark.parametrize("method", METHODS)
def test_unknown_pixels(method: Method) -> None:
    disparity, unit = plane((0.4, 0.1, -1.0))
    holes = disparity.copy()
    holes[4:7, 5:9] = np.nan
    holes[0, 0], holes[12, 12] = np.inf, -1.0
    known = np.isfinite(holes) & (holes > 0)
    result = method(holes, MATRIX)
    np.testing.assert_array_equal(np.isfinite(result).all(-1), known)
    assert errors(result, unit)[known].max() < 1e-8
    assert np.isnan(method(np.full((5, 6), np.nan), MATRIX)).all()
    lonely = np.full((5, 6), np.nan)
    lonely[2, 3] = 4.0
    assert np.isnan(method(lonely, MATRIX)).all()


@pytest.mark.parametrize("method", [edge_aware, fitted])
def test_no_difference_reaches_across_an_edge(method: Method) -> None:
    near, near_normal = plane((0.4, 0.2, -1.0))
    far, far_normal = plane((-0.2, 0.1, -1.0))
    front = np.zeros_like(near, dtype=bool)
    front[:, :11] = True
    disparity = np.where(front, near + 9, far)
    near_normal = exact(near + 9, MATRIX)
    truth = np.where(front[..., None], near_normal, far_normal)
    assert errors(method(disparity, MATRIX), truth).max() < 1e-7
    assert errors(exact(disparity, MATRIX), truth).max() > 30


def test_closed_form_scenes(shared: Path) -> None:
    scene = np.load(shared / "parity" / "dtnnet" / "analytic_normals.npz")
    matrix = np.array([[scene["fx"], 0, scene["cx"]], [0, scene["fy"], scene["cy"]], [0, 0, 1]])
    assert errors(exact(scene["plane_disp"], matrix), scene["plane_normal"]).max() < 1e-10
    single = exact(scene["plane_disp"].astype(np.float32), matrix)
    assert errors(single, scene["plane_normal"]).mean() < 1e-3
    mask, plane_pixels = scene["scene_mask"], scene["scene_object"] == 0
    result = exact(scene["scene_disp"], matrix)
    assert errors(result, scene["scene_plane_n"])[mask & plane_pixels].max() < 1e-10
    angle = errors(result, scene["scene_normal"])
    assert angle[mask].mean() == pytest.approx(0.011, abs=1e-3)
    assert angle[mask].max() == pytest.approx(1.83, abs=0.01)
    assert np.median(angle[mask & ~plane_pixels]) == pytest.approx(0.006, abs=1e-3)
    sharp = errors(edge_aware(scene["scene_disp"], matrix), scene["scene_normal"])
    assert sharp.mean() < angle.mean() / 10
    for method in METHODS:
        ceiling = method(np.where(scene["ceil_valid"], scene["ceil_disp"], np.nan), matrix)
        assert errors(ceiling, scene["ceil_n"])[scene["ceil_mask"]].max() < 1e-9
        assert ceiling[scene["ceil_mask"]][:, 2].min() > 0.1


def test_published_layer(shared: Path) -> None:
    scene = np.load(shared / "parity" / "dtnnet" / "analytic_normals.npz")
    for name in ("plane", "scene", "ceil"):
        disparity = torch.from_numpy(scene[f"{name}_disp"].astype(np.float32))[None, None]
        result = d2n_official(disparity, 480.0, 480.0)[0].permute(1, 2, 0).numpy()
        np.testing.assert_allclose(result, scene[f"{name}_d2n_official"], atol=1e-5)


def test_published_layer_arguments() -> None:
    disparity = torch.rand(2, 1, 8, 9) + 5
    focal = torch.tensor([480.0, 500.0])
    centre = torch.tensor([4.5, 4.5])
    both = d2n_official(disparity, focal, focal, centre, centre - 0.5)
    assert torch.equal(both[:1], d2n_official(disparity[:1], 480.0, 480.0))
    assert torch.equal(both[1:], d2n_official(disparity[1:], 500.0, 500.0))
    with pytest.raises(InputError, match="3 x 3"):
        d2n_official(disparity[..., :2], 480.0, 480.0)


def test_noise_is_averaged_by_the_fit() -> None:
    disparity, unit = plane((0.2, 0.3, -1.0))
    noisy = disparity + np.random.default_rng(0).normal(0, 0.02, disparity.shape)
    raw = errors(exact(noisy, MATRIX), unit).mean()
    assert errors(fit_normals(noisy, MATRIX, 3, edge_aware=False), unit).mean() < raw / 5
    assert errors(fit_normals(noisy, MATRIX, 3), unit).mean() < raw / 4


def test_the_fit_is_that_of_least_squares() -> None:
    rng = np.random.default_rng(1)
    disparity = rng.uniform(20, 22, (9, 11))
    disparity[rng.random(disparity.shape) < 0.2] = np.nan
    result = fit_normals(disparity, MATRIX, 2, edge_aware=False)
    for row, column in ((4, 5), (0, 0), (8, 3), (2, 10)):
        if np.isnan(disparity[row, column]):
            continue
        rows, columns = slice(max(0, row - 2), row + 3), slice(max(0, column - 2), column + 3)
        y, x = np.mgrid[:9, :11]
        known = np.isfinite(disparity[rows, columns])
        design = np.stack([x[rows, columns][known], y[rows, columns][known], np.ones(known.sum())], 1)
        coefficients = np.linalg.lstsq(design, disparity[rows, columns][known], rcond=None)[0]
        normal = -MATRIX.T @ coefficients  # of the plane with these disparities: n ~ K^T (a, b, c)
        assert errors(result[row, column], normal / np.linalg.norm(normal)) < 1e-9


@pytest.mark.parametrize("edges", [False, True])
def test_gradients(edges: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    disparity = torch.rand(2, 1, 6, 7, generator=generator, dtype=torch.float64) + 8
    disparity[0, 0, 2, 3] = torch.nan
    known = torch.isfinite(disparity)
    values = disparity[known].clone().requires_grad_()
    matrix = torch.from_numpy(np.stack([MATRIX, MATRIX * [[1.1], [1.0], [1.0]]]))

    def through(method: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda v: torch.nan_to_num(method(disparity.masked_scatter(known, v)))

    assert torch.autograd.gradcheck(through(lambda d: normals_from_disparity(d, matrix, edge_aware=edges)), values)
    assert torch.autograd.gradcheck(through(lambda d: fit_normals(d, matrix, 1, edge_aware=edges)), values)
    assert torch.autograd.gradcheck(through(lambda d: normals_from_depth(d, matrix)), values)
    if not edges:
        smooth = torch.rand(1, 1, 5, 5, generator=generator, dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(lambda d: d2n_official(d + 300, 480.0, 480.0), smooth)


def test_arrays_and_tensors_agree() -> None:
    rng = np.random.default_rng(3)
    maps = rng.uniform(8, 9, (2, 1, HEIGHT, WIDTH)).astype(np.float32)
    matrices = np.stack([MATRIX, MATRIX @ np.diag([1.2, 1.0, 1.0])])
    for method in (normals_from_disparity, fit_normals):
        batch = method(torch.from_numpy(maps), torch.from_numpy(matrices))
        assert batch.shape == (2, 3, HEIGHT, WIDTH)
        assert batch.dtype == torch.float32
        for index in range(2):
            single = method(maps[index, 0], Camera(matrices[index], WIDTH, HEIGHT))
            assert single.dtype == np.float32
            np.testing.assert_allclose(batch[index].permute(1, 2, 0).numpy(), single, atol=1e-5)
    torch.testing.assert_close(torch.linalg.vector_norm(batch, dim=1), torch.ones(2, HEIGHT, WIDTH))


def test_depth_tensors_on_planes() -> None:
    disparity, unit = plane((-0.3, 0.6, -0.7))
    depth = torch.from_numpy(48.0 / disparity)[None, None]
    depth[..., 3, 3] = 0
    result = normals_from_depth(depth, Camera(MATRIX))[0].permute(1, 2, 0).numpy()
    assert np.isnan(result[3, 3]).all()
    assert np.nanmax(errors(result, unit)) < 1e-8
    array = normals_from_depth(depth[0, 0].numpy(), Camera(MATRIX))
    np.testing.assert_allclose(array, result, atol=1e-4)
    with pytest.raises(InputError, match="Camera"):
        normals_from_depth(depth[0, 0].numpy(), MATRIX)  # type: ignore[call-overload]


@pytest.mark.parametrize("method", [normals_from_disparity, fit_normals])
def test_unusable_arguments(method: Callable[..., object]) -> None:
    with pytest.raises(InputError, match="HxW"):
        method(np.zeros((2, 3, 4)), MATRIX)
    with pytest.raises(InputError, match=r"\[B, 1, H, W\]"):
        method(torch.zeros(1, 3, 8, 8), MATRIX)
    with pytest.raises(InputError, match="intrinsics"):
        method(torch.ones(2, 1, 8, 8), torch.zeros(3, 3, 3))
    with pytest.raises(InputError, match="resized"):
        method(np.ones((8, 8)), Camera(MATRIX, 9, 8))
    with pytest.raises(InputError, match="radius"):
        fit_normals(np.ones((8, 8)), MATRIX, 0)
