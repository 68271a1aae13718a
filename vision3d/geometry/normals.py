# SPDX-License-Identifier: Apache-2.0
"""Surface normals from depth maps and disparity maps."""

from __future__ import annotations

from typing import TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from vision3d.errors import InputError
from vision3d.geometry.blocks import row_blocks
from vision3d.types import Camera

Map = TypeVar("Map", np.ndarray, Tensor)
Intrinsics = Camera | np.ndarray | Tensor

UNIT_TOLERANCE = 0.05  # largest deviation of the length of a stored normal from 1
_BEND_RATIO = 3.0  # a bend this much sharper than the next one is taken for an edge
_SHIFTED_COST = 2.0  # residual of a shifted window against that of the centred one
_LEAST_FACING = 1e-3  # -n . ray / |ray| of a normal that was turned to the camera


def unproject(depth: np.ndarray, camera: Camera) -> np.ndarray:
    """The 3-D point of every pixel, camera axes.

    Args:
        depth: [H, W] z-depth, metres, NaN where unknown.
        camera: intrinsics for images of this size.

    Returns:
        [H, W, 3] float64, NaN where the depth is unknown, infinite or not positive.

    Raises:
        InputError: not a map, or of another size than the camera's images.
    """
    z = check_depth(depth, camera)
    return unproject_rows(z, np.linalg.inv(camera.intrinsics), 0)


def check_depth(depth: np.ndarray, camera: Camera) -> np.ndarray:
    """The depth as an array; InputError unless it is a map of the size of the camera's images."""
    z = np.asarray(depth)
    if z.ndim != 2:
        raise InputError(f"depth must be a map HxW, got shape {z.shape}")
    height, width = z.shape
    if camera.width is not None and camera.height is not None and (camera.width, camera.height) != (width, height):
        raise InputError(
            f"the depth map is {width}x{height}, the camera is of {camera.width}x{camera.height}; use Camera.resized"
        )
    return z


def unproject_rows(depth: np.ndarray, inverse: np.ndarray, first: int) -> np.ndarray:
    """The 3-D points [h, W, 3] float64 of the rows ``first`` ... of a depth map, given the inverse intrinsics."""
    z = depth.astype(np.float64)
    with np.errstate(invalid="ignore"):
        z[~(np.isfinite(z) & (z > 0))] = np.nan
    x, y = np.arange(z.shape[1]), np.arange(first, first + z.shape[0])[:, None]
    rays = inverse[:, 0] * x[None, :, None] + inverse[:, 1] * y[..., None] + inverse[:, 2]
    return rays / rays[..., 2:] * z[..., None]


@overload
def normals_from_depth(depth: np.ndarray, camera: Camera) -> np.ndarray: ...
@overload
def normals_from_depth(depth: Tensor, camera: Intrinsics) -> Tensor: ...
def normals_from_depth(depth: np.ndarray | Tensor, camera: Intrinsics) -> np.ndarray | Tensor:
    """Unit normals, camera axes, pointing to the camera; exact on planes.

    Of an array, each normal is the cross product of the differences of the 3-D points along columns and rows: central
    differences where both neighbours are known, else one-sided ones. Of a tensor it is that of the inverse depth, see
    :func:`normals_from_disparity`, and differentiable.

    Args:
        depth: [H, W] array or [B, 1, H, W] tensor of z-depth, metres, NaN where unknown.
        camera: intrinsics for images of this size; for a tensor also [3, 3] or [B, 3, 3].

    Returns:
        [H, W, 3] float32 or [B, 3, H, W], NaN where the pixel is unknown or has no known neighbour in a column or row.
    """
    if isinstance(depth, Tensor):
        known = torch.isfinite(depth) & (depth > 0)
        return normals_from_disparity(torch.where(known, 1.0 / torch.where(known, depth, 1.0), torch.nan), camera)
    if not isinstance(camera, Camera):
        raise InputError(f"a depth array needs a Camera, got {type(camera).__name__}: pass Camera(intrinsics)")
    z = check_depth(depth, camera)
    inverse = np.linalg.inv(camera.intrinsics)
    normals = np.empty((*z.shape, 3), np.float32)
    for block in row_blocks(z.shape[0], z.shape[1], halo=1):
        points = unproject_rows(z[block.source], inverse, block.source.start)
        normals[block.rows] = _normals(points)[block.inner]
    return normals


def _normals(points: np.ndarray) -> np.ndarray:
    normal = np.cross(_difference(points, 1), _difference(points, 0))
    with np.errstate(invalid="ignore", divide="ignore"):
        normal /= np.linalg.norm(normal, axis=2, keepdims=True)
        normal *= np.where((normal * points).sum(axis=2, keepdims=True) > 0, -1.0, 1.0)
    return normal


def _difference(points: np.ndarray, axis: int) -> np.ndarray:
    """Difference of neighbouring points along an axis: central, else one-sided, else NaN."""
    step = np.diff(points, axis=axis)
    gap = np.full_like(np.take(points, [0], axis=axis), np.nan)
    forward = np.concatenate([step, gap], axis=axis)
    backward = np.concatenate([gap, step], axis=axis)
    central = forward + backward
    one_sided = np.where(np.isfinite(forward), forward, backward)
    return np.where(np.isfinite(central), central, one_sided)


def normals_from_disparity(
    disparity: Map, intrinsics: Intrinsics, *, doffs: float = 0.0, edge_aware: bool = False
) -> Map:
    """Unit normals of the left camera's axes, pointing to the camera; exact on planes, at the border too.

    Disparity is an affine function of column and row on a plane, so with its derivatives d_x, d_y the normal is
    ``-N / |N|``, ``N = (fx d_x, fy d_y, d - (x - cx) d_x - (y - cy) d_y)``, whatever the baseline. Derivatives are
    central differences where both neighbours are known, else one-sided ones. Differentiable.

    Args:
        disparity: [H, W] array or [B, 1, H, W] tensor, pixels, NaN where unknown.
        intrinsics: of the left camera, for images of this size: a camera, [3, 3], or for a tensor [B, 3, 3].
        doffs: ``cx_right - cx_left``, pixels; added to the disparity.
        edge_aware: take the difference to one side where the disparity bends much more sharply at the pixel than at
            one of its two neighbours, so that no difference reaches across a depth edge. Noisy maps get noisier.

    Returns:
        [H, W, 3] (float64 for a float64 map, else float32) or [B, 3, H, W]; NaN where the pixel is unknown,
        ``disparity + doffs <= 0``, or there is no known neighbour in its column or row.

    Raises:
        InputError: shapes that do not fit.

    Example:
        >>> import numpy as np
        >>> wall = np.full((4, 5), 8.0)
        >>> normals_from_disparity(wall, np.array([[480.0, 0, 2], [0, 480, 1.5], [0, 0, 1]]))[0, 0].round(6) + 0.0
        array([ 0.,  0., -1.])
    """
    if isinstance(disparity, np.ndarray):
        return _as_array(normals_from_disparity(_as_tensor(disparity), intrinsics, doffs=doffs, edge_aware=edge_aware))
    value, known, matrix = _check_disparity(disparity, intrinsics, doffs)
    slope_x, has_x = _slope(value, known, edge_aware)
    slope_y, has_y = (part.mT for part in _slope(value.mT, known.mT, edge_aware))
    return _plane_normals(value, slope_x, slope_y, known & has_x & has_y, matrix)


def fit_normals(
    disparity: Map, intrinsics: Intrinsics, radius: int = 3, *, doffs: float = 0.0, edge_aware: bool = True
) -> Map:
    """Unit normals of planes fitted to the disparity of a window by least squares; for noisy maps. Exact on planes.

    The disparity is fitted as an affine function of column and row in every window of ``2 radius + 1`` pixels from
    running sums along rows and columns. With ``edge_aware``, each pixel then takes the plane of that one of nine
    windows around it (centred, or shifted by ``radius``) which fits best; all of them contain the pixel, and next to a
    depth edge one of them lies on the pixel's own side. Differentiable, in float64.

    Args:
        disparity: [H, W] array or [B, 1, H, W] tensor, pixels, NaN where unknown.
        intrinsics: of the left camera, for images of this size: a camera, [3, 3], or for a tensor [B, 3, 3].
        radius: half the side of the window, at least 1.
        doffs: ``cx_right - cx_left``, pixels; added to the disparity.
        edge_aware: choose among the nine windows; else the centred one.

    Returns:
        [H, W, 3] (float64 for a float64 map, else float32) or [B, 3, H, W]; NaN where the pixel is unknown, the
        plane lies at or behind infinity there, or the known pixels around it do not fix a plane.

    Raises:
        InputError: shapes that do not fit, or a radius below 1.
    """
    if isinstance(disparity, np.ndarray):
        options = {"doffs": doffs, "edge_aware": edge_aware}
        return _as_array(fit_normals(_as_tensor(disparity), intrinsics, radius, **options))  # type: ignore[arg-type]
    if radius < 1:
        raise InputError(f"the window radius must be at least 1 pixel, got {radius}")
    value, known, matrix = _check_disparity(disparity, intrinsics, doffs)
    planes = _fit_windows(value.double(), known.double(), radius)
    if edge_aware:
        planes = _best_planes(planes, radius)
    fitted, slope_x, slope_y, cost = planes.split(1, dim=1)
    usable = known & torch.isfinite(cost) & (fitted > 0)
    fitted = torch.where(usable, fitted, 1.0)
    return _plane_normals(fitted, slope_x, slope_y, usable, matrix.double()).to(value.dtype)


def ray_directions(like: Tensor, matrix: Tensor) -> Tensor:
    """Unit viewing directions of the pixels of ``like`` [B, C, H, W], given [B or 1, 3, 3]: [B or 1, 3, H, W]."""
    height, width = like.shape[-2:]
    x = torch.arange(width, dtype=like.dtype, device=like.device)
    y = torch.arange(height, dtype=like.dtype, device=like.device)
    entry = matrix.to(like)[:, :, :, None, None]
    v = (y[:, None] - entry[:, 1, 2]) / entry[:, 1, 1]
    u = (x - entry[:, 0, 2] - entry[:, 0, 1] * v) / entry[:, 0, 0]
    rays = torch.stack([u, v.expand_as(u), torch.ones_like(u)], dim=1)
    return rays / torch.linalg.vector_norm(rays, dim=1, keepdim=True)


def face_camera(normals: Tensor, rays: Tensor) -> Tensor:
    """Unit normals made to face the camera: ``n . ray < 0`` in every pixel.

    Where that fails, the part along the ray is replaced by a slight facing one: a visible surface cannot face away, and
    an answer slightly beyond grazing stays near what it was (the opposite vector would be almost 180 degrees off).

    Args:
        normals: [B, 3, H, W], NaN where unknown (and NaN in the result).
        rays: unit viewing directions, [B or 1, 3, H, W].
    """
    along = (normals * rays).sum(dim=1, keepdim=True)
    turned = normals - (along + _LEAST_FACING).clamp(min=0) * rays
    return turned / torch.linalg.vector_norm(turned, dim=1, keepdim=True)


def turn_to_camera(normals: np.ndarray, camera: Camera) -> np.ndarray:
    """:func:`face_camera` of an array [H, W, 3] seen by a camera (for images of this size); float32, in little memory.

    Raises:
        InputError: not [H, W, 3].
    """
    if normals.ndim != 3 or normals.shape[2] != 3:
        raise InputError(f"normals must be [H, W, 3], got shape {normals.shape}")
    turned = np.empty(normals.shape, np.float32)
    for block in row_blocks(normals.shape[0], normals.shape[1]):
        part = torch.from_numpy(normals[block.rows].astype(np.float64)).permute(2, 0, 1)[None]
        matrix = torch.from_numpy(camera.intrinsics - np.outer([0.0, block.rows.start, 0.0], [0.0, 0.0, 1.0]))
        turned[block.rows] = _as_array(face_camera(part, ray_directions(part, matrix[None])))
    return turned


def d2n_official(
    disparity: Tensor,
    fx: float | Tensor,
    fy: float | Tensor,
    cx: float | Tensor | None = None,
    cy: float | Tensor | None = None,
) -> Tensor:
    """The disparity-to-normal layer that the weights of DTN-Net were trained with (arXiv 1912.09678, public code).

    Each slope ignores the other axis and n_z < 0 is forced, so it is exact only where one slope vanishes; use
    :func:`normals_from_disparity` for anything but these weights.

    Args:
        disparity: [B, 1, H, W], pixels, H and W at least 3.
        fx, fy: focal lengths, pixels; numbers or [B].
        cx, cy: principal point, pixels; numbers or [B]. None: W / 2 and H / 2, as the public code.

    Returns:
        [B, 3, H, W]; unit length up to 1e-6.

    Raises:
        InputError: not [B, 1, H, W], or too small.
    """
    if disparity.dim() != 4 or disparity.shape[1] != 1 or min(disparity.shape[2:]) < 3:
        raise InputError(f"disparity must be [B, 1, H, W] of at least 3 x 3 pixels, got {list(disparity.shape)}")
    height, width = disparity.shape[2:]
    slope_x = _official_slope(disparity, fx, width / 2 if cx is None else cx)
    slope_y = _official_slope(disparity.mT, fy, height / 2 if cy is None else cy).mT
    normal = torch.cat([slope_x, slope_y, torch.full_like(slope_x, -1.0)], dim=1)
    normal = normal / torch.linalg.vector_norm(normal, dim=1, keepdim=True)
    return torch.where(normal <= 0, normal + 1e-6, normal)


def _official_slope(disparity: Tensor, focal: float | Tensor, centre: float | Tensor) -> Tensor:
    """-f g / max(|d - (x - c) g|, 1e-8) along the last axis, the border columns copied from the next ones."""
    x = torch.arange(disparity.shape[-1], dtype=disparity.dtype, device=disparity.device) - _per_sample(centre)
    gradient = (disparity[..., 2:] - disparity[..., :-2]) / 2
    below = (disparity[..., 1:-1] - x[..., 1:-1] * gradient).abs().clamp(min=1e-8)
    slope = -_per_sample(focal) * gradient / below
    return torch.cat([slope[..., :1], slope, slope[..., -1:]], dim=-1)


def _per_sample(value: float | Tensor) -> float | Tensor:
    return value.reshape(-1, 1, 1, 1) if isinstance(value, Tensor) else value


def _as_tensor(disparity: np.ndarray) -> Tensor:
    if disparity.ndim != 2:
        raise InputError(f"disparity must be a map HxW, got shape {disparity.shape}")
    kind = np.float64 if disparity.dtype == np.float64 else np.float32
    return torch.from_numpy(np.ascontiguousarray(disparity, dtype=kind))[None, None]


def _as_array(normals: Tensor) -> np.ndarray:
    return normals[0].permute(1, 2, 0).contiguous().numpy()


def _check_disparity(disparity: Tensor, intrinsics: Intrinsics, doffs: float) -> tuple[Tensor, Tensor, Tensor]:
    """``d + doffs`` with 1 where unknown, [B, 1, H, W]; where it is known; the intrinsics, [B or 1, 3, 3]."""
    if disparity.dim() != 4 or disparity.shape[1] != 1 or not disparity.is_floating_point():
        raise InputError(f"disparity must be floating [B, 1, H, W], got {disparity.dtype} {list(disparity.shape)}")
    batch, _, height, width = disparity.shape
    if isinstance(intrinsics, Camera):
        size = (intrinsics.width, intrinsics.height)
        if None not in size and size != (width, height):
            raise InputError(
                f"the disparity map is {width}x{height}, the camera is of {size[0]}x{size[1]}; use Camera.resized"
            )
        intrinsics = intrinsics.intrinsics
    value = disparity.to(torch.promote_types(disparity.dtype, torch.float32))
    matrix = torch.as_tensor(intrinsics, dtype=value.dtype, device=value.device)
    legal = matrix.dim() == 2 or (matrix.dim() == 3 and matrix.shape[0] in (batch, 1))
    if not legal or matrix.shape[-2:] != (3, 3):
        raise InputError(f"intrinsics must be [3, 3] or [{batch}, 3, 3], got {list(matrix.shape)}")
    value = value + doffs
    known = torch.isfinite(value) & (value > 0)
    return torch.where(known, value, 1.0), known, matrix.reshape(-1, 3, 3)


def _slope(value: Tensor, known: Tensor, edge_aware: bool) -> tuple[Tensor, Tensor]:
    """The derivative along the last axis and where there is one, [B, 1, H, W]."""
    step = value[..., 1:] - value[..., :-1]
    joined = known[..., 1:] & known[..., :-1]
    gap, none = torch.zeros_like(value[..., :1]), torch.zeros_like(known[..., :1])
    forward, backward = torch.cat([step, gap], -1), torch.cat([gap, step], -1)
    ahead, behind = torch.cat([joined, none], -1), torch.cat([none, joined], -1)
    both = ahead & behind
    slope = torch.where(both, 0.5 * (forward + backward), torch.where(ahead, forward, backward))
    if edge_aware:
        bend = torch.where(both, (forward - backward).abs(), torch.inf)
        end = torch.full_like(gap, torch.inf)
        bend_ahead, bend_behind = torch.cat([bend[..., 1:], end], -1), torch.cat([end, bend[..., :-1]], -1)
        edge = both & (bend > _BEND_RATIO * torch.minimum(bend_ahead, bend_behind))
        slope = torch.where(edge, torch.where(bend_ahead < bend_behind, forward, backward), slope)
    return slope, ahead | behind


def _plane_normals(value: Tensor, slope_x: Tensor, slope_y: Tensor, usable: Tensor, matrix: Tensor) -> Tensor:
    """-N / |N| of disparities and their derivatives; N . ray = disparity, so it never vanishes."""
    height, width = value.shape[-2:]
    entry = matrix[:, :, :, None, None, None]  # [B, 3, 3, 1, 1, 1]
    u = torch.arange(width, dtype=value.dtype, device=value.device) - entry[:, 0, 2]
    v = torch.arange(height, dtype=value.dtype, device=value.device)[:, None] - entry[:, 1, 2]
    slope_x, slope_y = torch.where(usable, slope_x, 0.0), torch.where(usable, slope_y, 0.0)
    normal = torch.cat(
        [
            entry[:, 0, 0] * slope_x,
            entry[:, 0, 1] * slope_x + entry[:, 1, 1] * slope_y,
            value - u * slope_x - v * slope_y,
        ],
        dim=1,
    )
    normal = -normal / torch.linalg.vector_norm(normal, dim=1, keepdim=True)
    return torch.where(usable, normal, torch.nan)


def _running_sums(maps: Tensor, radius: int, axis: int, order: int) -> list[Tensor]:
    """Sums over o = -radius .. radius of ``o^k maps(position + o)`` for k = 0 .. order <= 2; 0 beyond the border.

    Differences of sums from the border on, so the time does not depend on the radius; ``maps`` must be of double
    precision for that.
    """
    size = maps.shape[axis]
    along_rows = axis == maps.dim() - 1
    index = torch.arange(size, device=maps.device)
    first, last = (index - radius).clamp(min=0), (index + radius).clamp(max=size - 1) + 1
    place = index.to(maps.dtype) - size / 2
    place = place if along_rows else place[:, None]
    sums = []
    for _ in range(order + 1):
        total = torch.nn.functional.pad(maps.cumsum(axis), (1, 0) if along_rows else (0, 0, 1, 0))
        sums.append(total.index_select(axis, last) - total.index_select(axis, first))
        maps = maps * place
    if order >= 2:
        sums[2] = sums[2] - place * (2 * sums[1] - place * sums[0])
    if order >= 1:
        sums[1] = sums[1] - place * sums[0]
    return sums


def _fit_windows(value: Tensor, known: Tensor, radius: int) -> Tensor:
    """The plane of every window, [B, 4, H, W]: value at the centre, two slopes, mean squared residual (or infinity)."""
    shift = (value * known).sum((1, 2, 3), keepdim=True) / known.sum((1, 2, 3), keepdim=True).clamp(min=1)
    centred = (value - shift) * known
    count, x, xx = _running_sums(known, radius, 3, 2)
    (n, y, yy), (x, xy), (xx,) = (
        _running_sums(part, radius, 2, order) for part, order in ((count, 2), (x, 1), (xx, 0))
    )
    total, dx = _running_sums(centred, radius, 3, 1)
    (d, dy), (dx,) = _running_sums(total, radius, 2, 1), _running_sums(dx, radius, 2, 0)
    (dd,) = _running_sums(_running_sums(centred * centred, radius, 3, 0)[0], radius, 2, 0)
    n = n.clamp(min=1)
    x, y, xx, xy, yy, d, dx, dy, dd = (part / n for part in (x, y, xx, xy, yy, d, dx, dy, dd))
    xx, xy, yy, dx, dy, dd = xx - x * x, xy - x * y, yy - y * y, dx - d * x, dy - d * y, dd - d * d
    determinant = xx * yy - xy * xy
    fixed = determinant > 1e-3 * (radius * (radius + 1) / 3) ** 2
    determinant = torch.where(fixed, determinant, 1.0)
    slope_x, slope_y = (yy * dx - xy * dy) / determinant, (xx * dy - xy * dx) / determinant
    residual = torch.where(fixed, (dd - slope_x * dx - slope_y * dy).clamp(min=0), torch.inf)
    return torch.cat([d + shift - slope_x * x - slope_y * y, slope_x, slope_y, residual], 1)


def _best_planes(planes: Tensor, radius: int) -> Tensor:
    """For every pixel, the plane of the best of nine windows, seen from that pixel; layout as :func:`_fit_windows`."""
    height, width = planes.shape[-2:]
    padded = torch.nn.functional.pad(planes, (radius,) * 4, value=torch.inf)
    best = planes
    for down in (-radius, 0, radius):
        for right in (-radius, 0, radius):
            if down == right == 0:
                continue
            window = padded[..., radius + down : radius + down + height, radius + right : radius + right + width]
            value, slope_x, slope_y, residual = window.split(1, dim=1)
            moved = torch.cat(
                [value - right * slope_x - down * slope_y, slope_x, slope_y, _SHIFTED_COST * residual], dim=1
            )
            best = torch.where(moved[:, 3:] < best[:, 3:], moved, best)
    return best
