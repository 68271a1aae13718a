# SPDX-License-Identifier: Apache-2.0
"""Operators on faces against reference values, plain loops, finite differences and symmetries of the icosahedron."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ops_cases import close
from scipy.spatial.transform import Rotation

from vision3d import ops
from vision3d.errors import InputError
from vision3d.geometry.icosphere import dilated_neighbours, find_faces, icosphere, ring_neighbours
from vision3d.geometry.panorama_mesh import face_table, panorama_faces
from vision3d.ops import reference


def table(array: np.ndarray) -> torch.Tensor:
    return torch.tensor(array, dtype=torch.int64)


def neighbours(kind: str, level: int) -> torch.Tensor:
    mesh = icosphere(level)
    tables = {"near": mesh.adjacency, "ring": ring_neighbours(mesh), "dilated": dilated_neighbours(mesh, 2)}
    return table(tables[kind])


def make(batch: int, level: int, channels: int, outputs: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = ((batch, 20 * 4**level, channels), (outputs, channels, 4), (outputs,))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


@pytest.mark.real
def test_reference_values(shared: Path) -> None:
    values = np.load(shared / "parity/spheredepth/sampling_and_ops.npz")
    get = lambda name: torch.from_numpy(values[name])  # noqa: E731
    x = get("conv_x").t()[None]
    y = ops.face_convolution(x, neighbours("near", 3), get("conv_weight"), get("conv_bias"))
    close(y, get("conv_y").t()[None], 1e-12)
    for mode in ("max", "mean"):
        close(ops.face_pool(x, mode), get(f"pool_{mode}").t()[None], 1e-12)
    pooled = ops.face_pool(x, "mean")
    close(ops.face_unpool(pooled, neighbours("near", 2)), get("unpool_bilinear").t()[None], 1e-12)
    close(ops.face_unpool(pooled, mode="nearest"), get("unpool_nearest").t()[None], 1e-12)


@pytest.mark.parametrize("kind", ["near", "ring", "dilated"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("sizes", [(1, 2, 3, 5), (3, 1, 1, 1), (0, 1, 2, 2), (2, 3, 130, 4)], ids=str)
def test_convolution_equals_the_loop(kind: str, stride: int, sizes: tuple[int, int, int, int]) -> None:
    batch, level, channels, outputs = sizes
    x, weight, bias = make(batch, level, channels, outputs)
    around = neighbours(kind, level)
    twins = table(icosphere(level).twins) if kind == "near" and stride == 1 else None
    expected = reference.face_convolution(x, around, weight, bias, stride=stride)
    close(ops.face_convolution(x, around, weight, bias, stride=stride, twins=twins), expected, 1e-12)
    wide = torch.cat([x, x], dim=2)[..., ::2]  # not contiguous
    close(
        ops.face_convolution(wide, around, weight, stride=stride),
        reference.face_convolution(wide, around, weight, stride=stride),
        1e-12,
    )


@pytest.mark.parametrize("kind", ["near", "near with twins", "ring", "dilated", "stride"])
def test_convolution_gradients(kind: str) -> None:
    inputs = [value.requires_grad_() for value in make(2, 0, 2, 2)]
    around = neighbours(kind.split()[0] if kind != "stride" else "near", 0)
    options = {"twins": table(icosphere(0).twins)} if "twins" in kind else {}
    function = lambda x, w, b: ops.face_convolution(x, around, w, b, stride=1 + (kind == "stride"), **options)  # noqa: E731
    assert torch.autograd.gradcheck(function, inputs)


def test_convolution_gradients_of_many_blocks_equal_autograd() -> None:
    inputs = [value.requires_grad_() for value in make(2, 5, 20, 3)]
    around, twins = neighbours("near", 5), table(icosphere(5).twins)
    seed = make(2, 5, 3, 1)[0]
    expected = torch.autograd.grad(reference.face_convolution(inputs[0], around, *inputs[1:]), inputs, seed)
    for options in ({}, {"twins": twins}):
        actual = torch.autograd.grad(ops.face_convolution(inputs[0], around, *inputs[1:], **options), inputs, seed)
        for one, other in zip(actual, expected, strict=True):
            close(one, other, 1e-10)


def test_the_slope_at_equal_faces_is_zero() -> None:
    x = torch.ones((1, 80, 1), dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[[0.0, 0.0, 1.0, 1.0]]], dtype=torch.float64)
    ops.face_convolution(x, neighbours("near", 1), weight).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().max() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_types(dtype: torch.dtype) -> None:
    x, weight, bias = make(2, 2, 16, 8, dtype)
    around, twins = neighbours("near", 2), table(icosphere(2).twins)
    result = ops.face_convolution(x.requires_grad_(), around, weight.requires_grad_(), bias, twins=twins)
    assert result.dtype == dtype
    exact = reference.face_convolution(x.double(), around, weight.double(), bias.double())
    scale = exact.abs().max().item()
    close(result / scale, exact / scale, 2e-6 if dtype == torch.float32 else 3e-2)
    result.float().square().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype
    assert torch.isfinite(x.grad).all()


def test_autocast() -> None:
    x, weight, bias = make(1, 2, 8, 4, torch.float32)
    around, twins = neighbours("near", 2), table(icosphere(2).twins)
    weight.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = ops.face_convolution(x, around, weight, bias, twins=twins)
    assert result.dtype == torch.bfloat16
    result.float().sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


def rotations() -> list[np.ndarray]:
    """Rotations that map the icosahedron to itself: half turns, third turns, fifth turns."""
    corners = icosphere(0).vertices
    turns = [Rotation.from_rotvec(np.pi * np.eye(3)[axis]) for axis in range(3)]
    turns += [Rotation.from_rotvec(2 * np.pi / 3 * np.ones(3) / np.sqrt(3))]
    turns += [Rotation.from_rotvec(2 * np.pi / 5 * corners[k]) for k in (0, 7)]
    return [turn.as_matrix() for turn in turns]


@pytest.mark.parametrize("turn", range(6))
@pytest.mark.parametrize("kind", ["near", "ring"])
def test_rotations_of_the_icosahedron_are_respected(turn: int, kind: str) -> None:
    rotation = rotations()[turn]
    moved = [table(find_faces(icosphere(level).centres @ rotation.T, level)) for level in (2, 3)]
    assert moved[1].unique().numel() == 1280
    x, weight, bias = make(1, 3, 2, 3)
    around = neighbours(kind, 3)
    y = ops.face_convolution(x, around, weight, bias)
    close(ops.face_convolution(x[:, moved[1]], around, weight, bias), y[:, moved[1]], 1e-12)
    strided = ops.face_convolution(x, around, weight, bias, stride=2)
    close(ops.face_convolution(x[:, moved[1]], around, weight, bias, stride=2), strided[:, moved[0]], 1e-12)
    for mode in ("max", "mean"):
        close(ops.face_pool(x[:, moved[1]], mode), ops.face_pool(x, mode)[:, moved[0]], 1e-12)
    coarse, adjacency = x[:, :320], neighbours("near", 2)
    for mode in ("nearest", "bilinear"):
        fine = ops.face_unpool(coarse, adjacency, mode)
        close(ops.face_unpool(coarse[:, moved[0]], adjacency, mode), fine[:, moved[1]], 1e-12)


def test_turning_the_corners_changes_nothing() -> None:
    x, weight, bias = make(1, 2, 3, 4)
    around = neighbours("near", 2)
    turned = torch.stack([row.roll(f % 3) for f, row in enumerate(around)])
    close(ops.face_convolution(x, turned, weight, bias), ops.face_convolution(x, around, weight, bias), 1e-12)


@pytest.mark.parametrize("mode", ["max", "mean"])
def test_pooling(mode: str) -> None:
    x = make(2, 0, 3, 1)[0]
    close(ops.face_pool(x, mode), reference.face_pool(x, mode), 0)
    assert torch.autograd.gradcheck(lambda value: ops.face_pool(value, mode), x.requires_grad_())


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_unpooling(mode: str) -> None:
    x, around = make(2, 0, 3, 1)[0], neighbours("near", 0)
    close(ops.face_unpool(x, around, mode), reference.face_unpool(x, around, mode), 1e-15)
    close(ops.face_pool(ops.face_unpool(x, mode="nearest")), x, 0)
    assert torch.autograd.gradcheck(lambda value: ops.face_unpool(value, around, mode), x.requires_grad_())


def test_panorama_samples_and_painting() -> None:
    image = torch.randn(2, 3, 8, 16, dtype=torch.float64, requires_grad=True)
    indices, shares = (torch.tensor(part) for part in face_table(2, 8))
    faces = ops.sample_panorama(image, indices, shares)
    assert faces.shape == (2, 320, 3)
    flat = image.detach().flatten(2).numpy()
    expected = np.einsum("bcnk,nk->bnc", flat[:, :, indices.numpy()], shares.numpy())
    close(faces, torch.from_numpy(expected), 1e-12)
    assert torch.autograd.gradcheck(lambda value: ops.sample_panorama(value, indices[:40], shares[:40]), image[:1, :1])
    half = ops.sample_panorama(image.detach().to(torch.bfloat16), indices, shares)
    assert half.dtype == torch.bfloat16
    painted = ops.paint_faces(faces[..., 0], table(panorama_faces(8, 2)))
    assert painted.shape == (2, 1, 8, 16)
    assert painted[1, 0, 3, 5] == faces[1, panorama_faces(8, 2)[3, 5], 0]


def test_wrong_arguments_are_named() -> None:
    x, weight, _ = make(1, 1, 3, 4)
    around, twins = neighbours("near", 1), table(icosphere(1).twins)
    for arguments, options, message in (
        ((x[0], around, weight), {}, r"features must be .*\[80, 3\]"),
        ((x, around[:-1], weight), {}, r"F = 80 faces, got torch.int64 of shape \[79, 3\]"),
        ((x, around.int(), weight), {}, "int32"),
        ((x, around, weight[:, :2]), {}, r"\[4, 2, 4\] does not fit"),
        ((x, around, weight), {"stride": 3}, "stride must be 1 or 2"),
        ((x, around, weight), {"stride": 2, "twins": twins}, "leave them out"),
        ((x, neighbours("ring", 1), weight), {"twins": twins}, "leave them out"),
    ):
        with pytest.raises(InputError, match=message):
            ops.face_convolution(*arguments, **options)
    with pytest.raises(InputError, match="must be one of max, mean"):
        ops.face_pool(x, "sum")
    with pytest.raises(InputError, match="cannot be grouped by 4"):
        ops.face_pool(x[:, :6])
    with pytest.raises(InputError, match=r"needs the adjacency \[80, 3\], got none"):
        ops.face_unpool(x)
    with pytest.raises(InputError, match="must both be"):
        ops.sample_panorama(torch.zeros(1, 3, 2, 4), around, weight)
    with pytest.raises(InputError, match=r"\[B, F\] and \[H, W\]"):
        ops.paint_faces(x, around)
