# SPDX-License-Identifier: Apache-2.0
"""Operators on the faces of a triangle mesh of the sphere, after SubdivNet (Hu et al., TOG 2022, arXiv 2106.02285).

Features are [B, F, C]. The neighbour tables come from :mod:`vision3d.geometry.icosphere`, as int64 tensors. The four
children of face f are f, f + n, f + 2n and f + 3n, so features of children viewed as [B, 4, n, C] have the child first.

A face convolution is one gather of the neighbours and one matrix product, taken block by block on a CPU so that what
lies between them stays in the processor's cache. Nothing but its input is kept for the backward pass, which gathers
again; and since neighbourhood is mutual, the gradient of a gather along ``adjacency`` is a gather along ``twins``: no
scattered additions, and the same bits in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from vision3d.errors import InputError
from vision3d.ops._checks import at_least_float32, check_choice, shape_text, without_autocast

_BLOCK = 1 << 16  # features of a block on a CPU (measured, docs/ops.md)


def _check_faces(op: str, features: torch.Tensor, divisor: int = 1) -> None:
    if features.dim() != 3 or not features.is_floating_point():
        raise InputError(
            f"{op}: features must be a floating-point [B, F, C], got {features.dtype} of shape {shape_text(features)}"
        )
    if features.shape[1] % divisor:
        raise InputError(f"{op}: {features.shape[1]} faces cannot be grouped by {divisor}: give whole parents")


def _terms(centre: torch.Tensor, around: torch.Tensor) -> torch.Tensor:
    """The four invariant terms side by side: [B, N, C] and [B, N, K, C] to [B, N, 4C]."""
    turn = (around - around.roll(-1, dims=2)).abs().sum(dim=2)
    spread = (around - centre.unsqueeze(2)).abs().sum(dim=2)
    return torch.cat([centre, around.sum(dim=2), turn, spread], dim=2)


def _gathered(features: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
    """[B, F, C] along [N, K] to [B, N, K, C]."""
    return features.index_select(1, neighbours.reshape(-1)).unflatten(1, tuple(neighbours.shape))


def _blocks(batch: int, faces: int, channels: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Pieces of [batch, faces] whose terms fit into the cache of a CPU; everything at once elsewhere."""
    rows = max(_BLOCK // max(channels, 1), 64) if device.type == "cpu" else max(batch * faces, 1)
    images = max(rows // max(faces, 1), 1)
    for image in range(0, batch, images):
        for face in range(0, faces, rows):
            yield slice(image, image + images), slice(face, min(face + rows, faces))


def _fill_terms(centre: torch.Tensor, around: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """As ``_terms``, for neighbours given one by one, without gradients and with little memory."""
    channels, following = centre.shape[2], (*around[1:], around[0])
    terms = centre.new_empty((*centre.shape[:2], 4 * channels))
    own, total, turn, spread = terms.split(channels, dim=2)
    own.copy_(centre)
    torch.add(around[0], around[1], out=total)
    for value in around[2:]:
        total += value
    for target, others in ((turn, following), (spread, (centre,) * len(around))):
        differences = [torch.sub(value, other).abs_() for value, other in zip(around, others, strict=True)]
        torch.add(differences[0], differences[1], out=target)
        for difference in differences[2:]:
            target += difference
    return terms


class _FaceConvolution(torch.autograd.Function):
    """The terms of the faces from ``first`` on times a matrix [4C, O], block by block."""

    @staticmethod
    def forward(
        ctx: Any,
        features: torch.Tensor,
        matrix: torch.Tensor,
        neighbours: torch.Tensor,
        twins: torch.Tensor | None,
        first: int,
    ) -> torch.Tensor:
        ctx.save_for_backward(features, matrix, neighbours, twins)
        ctx.first = first
        faces = features.shape[1] - first
        result = features.new_empty((features.shape[0], faces, matrix.shape[1]))
        for images, block in _blocks(features.shape[0], faces, features.shape[2], features.device):
            around = _gathered(features[images], neighbours[first:][block]).unbind(2)
            terms = _fill_terms(features[images, first:][:, block], around)
            # a piece is contiguous: whole images, or rows of one
            torch.mm(terms.flatten(0, 1), matrix, out=result[images, block].view(-1, matrix.shape[1]))
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[misc]
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        features, matrix, neighbours, twins = ctx.saved_tensors
        need_features, need_matrix, first = ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.first
        batch, faces, channels = features.shape[0], features.shape[1] - first, features.shape[2]
        grad_matrix = torch.zeros_like(matrix, dtype=at_least_float32(matrix.dtype)) if need_matrix else None
        grad_features = torch.zeros_like(features) if need_features else None
        grad_around = features.new_empty((batch, neighbours.shape[1], faces, channels)) if need_features else None
        for images, block in _blocks(batch, faces, channels, features.device):
            around = _gathered(features[images], neighbours[first:][block]).unbind(2)
            centre, piece = features[images, first:][:, block], grad[images, block]
            if grad_matrix is not None:
                grad_matrix += _fill_terms(centre, around).flatten(0, 1).t() @ piece.flatten(0, 1)
            if grad_features is not None and grad_around is not None:
                target = grad_features[images, first:][:, block], grad_around[images, :, block]
                _block_gradient(piece @ matrix.t(), centre, around, *target)
        if grad_features is not None and grad_around is not None:
            _return_gradient(grad_features, grad_around, neighbours[first:], twins)
        return grad_features, None if grad_matrix is None else grad_matrix.to(matrix.dtype), None, None, None


def _block_gradient(
    grad_terms: torch.Tensor,
    centre: torch.Tensor,
    around: tuple[torch.Tensor, ...],
    grad_centre: torch.Tensor,
    grad_around: torch.Tensor,
) -> None:
    """Add the gradient to the faces of a block to ``grad_centre``, write that to their neighbours [B, K, N, C]."""
    own, total, turn, spread = grad_terms.split(centre.shape[2], dim=2)
    grad_centre += own
    following = (*around[1:], around[0])
    turns = [(value - other).sign_().mul_(turn) for value, other in zip(around, following, strict=True)]
    for j, value in enumerate(around):
        away = (value - centre).sign_().mul_(spread)
        grad_centre -= away
        torch.add(away.add_(total).add_(turns[j]), turns[j - 1], alpha=-1, out=grad_around[:, j])


def _return_gradient(
    grad_features: torch.Tensor, grad_around: torch.Tensor, neighbours: torch.Tensor, twins: torch.Tensor | None
) -> None:
    """Add to each face what the faces around it took from it, [B, K, N, C]."""
    taken = grad_around.flatten(1, 2)
    if twins is None:
        grad_features.index_add_(1, neighbours.t().reshape(-1), taken)
        return
    # what side k of face f took from the face beyond it belongs to that face: read it back from the other side
    faces = grad_features.shape[1]
    table = (twins % 3 * faces + twins // 3).view(faces, 3)
    for images, block in _blocks(len(grad_features), faces, grad_features.shape[2], grad_features.device):
        first, second, third = _gathered(taken[images], table[block]).unbind(2)
        grad_features[images, block] += first.add_(second).add_(third)


def face_convolution(
    features: torch.Tensor,
    neighbours: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int = 1,
    twins: torch.Tensor | None = None,
) -> torch.Tensor:
    """Convolution over the faces of a mesh, whatever neighbour is counted first (SubdivNet eq. 2).

    With the K neighbours e_1 .. e_K of face i in cyclic order::

        t0 = x_i,  t1 = sum_j x_ej,  t2 = sum_j |x_e(j+1) - x_ej|,  t3 = sum_j |x_i - x_ej|
        y_i = W0 t0 + W1 t1 + W2 t2 + W3 t3 + bias

    Args:
        features: [B, F, C].
        neighbours: [F, K] int64: K = 3 of the adjacency (kernel 3) or of ``dilated_neighbours``, K = 9 of
            ``ring_neighbours`` (kernel 5).
        weight: [O, C, 4], the last axis being the four terms.
        bias: [O] or None.
        stride: 2 evaluates the middle children alone and hands the result to their parents: [B, F / 4, O].
        twins: [3F] int64, the other side of each side; only with the adjacency itself and stride 1. Saves time in the
            backward pass; the result is the same.

    Returns:
        [B, F, O] (or [B, F / 4, O]) of the type of the features; under autocast, of autocast's type. Gradients are
        those of first order only.

    Raises:
        InputError: shapes that do not fit each other, another stride, twins where they do not belong.
    """
    _check_convolution(features, neighbours, weight, stride, twins)
    device = features.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        features, weight = features.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    with without_autocast(features):
        matrix = weight.permute(2, 1, 0).flatten(0, 1)  # [4C, O], term outer
        first = 3 * features.shape[1] // 4 if stride == 2 else 0
        if torch.compiler.is_compiling():
            return F.linear(_terms(features[:, first:], _gathered(features, neighbours[first:])), matrix.t(), bias)
        result: torch.Tensor = _FaceConvolution.apply(features, matrix, neighbours, twins, first)  # type: ignore[no-untyped-call]
        return result if bias is None else result + bias


def _check_convolution(
    features: torch.Tensor, neighbours: torch.Tensor, weight: torch.Tensor, stride: int, twins: torch.Tensor | None
) -> None:
    op = "face_convolution"
    if stride not in (1, 2):
        raise InputError(f"{op}: stride must be 1 or 2, got {stride}")
    _check_faces(op, features, 4 if stride == 2 else 1)
    if neighbours.dim() != 2 or neighbours.shape[0] != features.shape[1] or neighbours.dtype != torch.int64:
        raise InputError(
            f"{op}: neighbours must be int64 [F, K] with F = {features.shape[1]} faces, "
            f"got {neighbours.dtype} of shape {shape_text(neighbours)}"
        )
    if weight.dim() != 3 or weight.shape[2] != 4 or weight.shape[1] != features.shape[2]:
        raise InputError(
            f"{op}: weight {shape_text(weight)} does not fit features {shape_text(features)}: it must be [O, C, 4]"
        )
    if twins is not None and (stride != 1 or neighbours.shape[1] != 3 or twins.numel() != neighbours.numel()):
        raise InputError(f"{op}: twins [3F] belong to the adjacency [F, 3] and stride 1: leave them out otherwise")


def face_pool(features: torch.Tensor, mode: str = "max") -> torch.Tensor:
    """Largest ("max") or mean ("mean") value of the four children of each parent: [B, 4n, C] to [B, n, C].

    Raises:
        InputError: another shape, or an unknown mode.
    """
    _check_faces("face_pool", features, 4)
    check_choice("face_pool", "mode", mode, ("max", "mean"))
    children = features.unflatten(1, (4, features.shape[1] // 4))
    return children.amax(dim=1) if mode == "max" else children.mean(dim=1)


def face_unpool(features: torch.Tensor, adjacency: torch.Tensor | None = None, mode: str = "bilinear") -> torch.Tensor:
    """Values for the four children of each face: [B, n, C] to [B, 4n, C].

    Args:
        features: [B, n, C].
        adjacency: [n, 3] int64, needed by "bilinear".
        mode: "nearest" repeats the parent; "bilinear" gives the child at corner k the mean of the parent (twice) and
            of its two neighbours at that corner, and the middle child the parent's value.

    Raises:
        InputError: another shape, an unknown mode, or no adjacency of that size.
    """
    _check_faces("face_unpool", features)
    check_choice("face_unpool", "mode", mode, ("nearest", "bilinear"))
    if mode == "nearest":
        return features.repeat(1, 4, 1)
    if adjacency is None or adjacency.shape != (features.shape[1], 3):
        found = "none" if adjacency is None else shape_text(adjacency)
        raise InputError(f"face_unpool: bilinear needs the adjacency [{features.shape[1]}, 3], got {found}")
    first, second, third = _gathered(features, adjacency).unbind(dim=2)
    corners = [(2 * features + one + two) / 4 for one, two in ((second, third), (third, first), (first, second))]
    return torch.cat([*corners, features], dim=1)


def sample_panorama(image: torch.Tensor, indices: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Weighted samples of a panorama, such as its bilinear samples at the centres of faces.

    Args:
        image: [B, C, H, W].
        indices, shares: [N, K], see :func:`vision3d.geometry.panorama_mesh.face_table`.

    Returns:
        [B, N, C] of the type of the image, summed in float32 at least.

    Raises:
        InputError: an image that is no floating-point [B, C, H, W], or tables of different shapes.
    """
    if image.dim() != 4 or not image.is_floating_point():
        raise InputError(f"sample_panorama: image must be a floating-point [B, C, H, W], got {shape_text(image)}")
    if indices.dim() != 2 or indices.shape != shares.shape:
        raise InputError(
            f"sample_panorama: indices {shape_text(indices)} and shares {shape_text(shares)} must both be [N, K]"
        )
    dtype = at_least_float32(image.dtype)
    pixels = image.flatten(2).transpose(1, 2).to(dtype).contiguous()
    samples = torch.zeros((), dtype=dtype, device=image.device)
    for k in range(indices.shape[1]):
        samples = samples + pixels.index_select(1, indices[:, k]) * shares[:, k, None].to(dtype)
    return samples.to(image.dtype)


def paint_faces(faces: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Values of faces at the pixels of a panorama: [B, F] and [H, W] int64 to [B, 1, H, W].

    Raises:
        InputError: another shape.
    """
    if faces.dim() != 2 or index.dim() != 2:
        raise InputError(
            f"paint_faces: faces {shape_text(faces)} and index {shape_text(index)} must be [B, F] and [H, W]"
        )
    return faces.index_select(1, index.flatten()).unflatten(1, tuple(index.shape)).unsqueeze(1)
