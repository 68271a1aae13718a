# SPDX-License-Identifier: Apache-2.0
"""Poses of frames from their pixels and one depth map, by Gauss-Newton: the start of the fast schedule.

Frames close to each other hardly say whether the camera turned or stepped aside, and a radiance field, which can show
any three images, does not say it either. What decides is whether *one* surface explains all of them. Here the surface
is a coarse grid of inverse depths of one frame, its colours are those of that frame, and a second-order method follows
the narrow valley between turn and step that gradient descent does not: direct image alignment as in Engel et al.,
"Direct sparse odometry", PAMI 2018, with a dense grid. No features are detected or matched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vision3d.geometry.poses import axis_angle_to_matrix, invert_pose, make_pose
from vision3d.training.nerf.images import ImagePyramid

_HUBER = 0.03  # of colours in [0, 1]
_NOISE = 0.02  # of colours
_RELIEF = 0.25  # usual difference of the logarithm of depth between neighbours of the grid
_GRID = 8  # cells of the shorter side
_COARSEST = 20  # pixels of the shorter side
_STEPS = 25
_START = 0.05  # of the depth: how far the trial motions go


class _Alignment:
    """Gauss-Newton over the logarithm of inverse depth on a grid and the motions of the other frames.

    A point of the reference frame at ``x = (u, v, 1)`` is seen by frame j at ``R_j x + t_j / depth``.

    Args:
        count: number of the other frames.
        grid: rows and columns of the inverse depths; None: the depth is known (see :meth:`at`).
        depth: that the grid starts with.
    """

    def __init__(self, count: int, grid: tuple[int, int] | None = None, depth: float = 1.0) -> None:
        self.grid_shape, self.start = grid, -math.log(depth)
        cells = 0 if grid is None else grid[0] * grid[1]
        self.g = torch.full((cells,), self.start, dtype=torch.float64)
        if grid is not None:
            self.differences = _neighbour_differences(grid)
        self.fixed = torch.zeros(count, dtype=torch.bool)
        self.rotations = torch.eye(3, dtype=torch.float64).repeat(count, 1, 1)
        self.t = torch.zeros(count, 3, dtype=torch.float64)

    def at(self, images: Tensor, focal: float, depth: Tensor | None = None) -> None:
        """Work on images [K + 1, C, h, w], the reference first, with this focal length and depth [h, w] from now on."""
        self.images, self.focal = images.double(), focal
        height, width = images.shape[2:]
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        pixels = torch.stack([columns, rows], -1).reshape(-1, 2).double() + 0.5
        self.centre = torch.tensor([width / 2, height / 2], dtype=torch.float64)
        self.points = torch.cat([(pixels - self.centre) / focal, torch.ones(len(pixels), 1, dtype=torch.float64)], 1)
        if depth is not None:
            self.known = 1 / depth.double().flatten().cpu()
        if self.grid_shape is not None:
            unit = torch.eye(len(self.g), dtype=torch.float64).view(-1, 1, *self.grid_shape)
            blown = F.interpolate(unit, size=(height, width), mode="bilinear", align_corners=True)
            self.basis = blown.flatten(1).T  # [h w, G]
        self.slopes = torch.stack(torch.gradient(self.images, dim=(3, 2)), 1)  # [K + 1, 2, C, h, w] by column, row

    def _sample(self, images: Tensor, places: Tensor) -> Tensor:
        """[C, P] of images [C, h, w] at pixels [P, 2]."""
        size = 2 * self.centre
        grid = (2 * places / size - 1).view(1, 1, -1, 2)
        return F.grid_sample(images[None], grid, align_corners=False, padding_mode="border")[0, :, 0]

    def _inverse_depth(self) -> Tensor:
        return self.known if self.grid_shape is None else (self.basis @ self.g).exp()

    def _seen(self, frame: int) -> tuple[Tensor, Tensor, Tensor]:
        """Points in the camera [P, 3], their places [P, 2] and which of them are inside."""
        inverse = self._inverse_depth()
        local = self.points @ self.rotations[frame].T + inverse[:, None] * self.t[frame]
        depth = local[:, 2:].clamp_min(0.05)
        places = self.focal * local[:, :2] / depth + self.centre
        inside = ((places > 0.5) & (places < 2 * self.centre - 0.5)).all(1) & (local[:, 2] > 0.05)
        return local, places, inside

    def cost(self) -> float:
        """Robust mean over the pixels that are seen, and the prior of the relief."""
        total = 0.0
        for frame in range(len(self.t)):
            _, places, inside = self._seen(frame)
            if int(inside.sum()) < 0.2 * len(inside):
                return math.inf
            residual = self._residual(frame, places, inside)
            total += float(F.huber_loss(residual, torch.zeros_like(residual), delta=_HUBER))
        if self.grid_shape is None:
            return total
        relief = float((self.differences @ self.g).square().sum()) + float((self.g.mean() - self.start) ** 2)
        return total + 0.5 * self._prior_share() * relief

    def _prior_share(self) -> float:
        """Weight of the prior of the relief, for colour differences that are averaged over the pixels."""
        return (_NOISE / _RELIEF) ** 2 / self.images[0].numel()

    def _residual(self, frame: int, places: Tensor, inside: Tensor) -> Tensor:
        """Colour differences [C, P] inside, after gain and offset of each channel are matched (exposure)."""
        seen, own = self._sample(self.images[frame + 1], places)[:, inside], self.images[0].flatten(1)[:, inside]
        gain = (own.std(1, keepdim=True) / seen.std(1, keepdim=True).clamp_min(1e-3)).clamp(0.8, 1.25)
        return gain * (seen - seen.mean(1, keepdim=True)) - (own - own.mean(1, keepdim=True))

    def _normal_equations(self) -> tuple[Tensor, Tensor]:
        count, cells = len(self.t), len(self.g)
        size = 6 * count + cells
        matrix, vector = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
        inverse, moves = self._inverse_depth(), 6 * count
        channels = self.images.shape[1]
        for frame in range(count):
            local, places, inside = self._seen(frame)
            residual = self._residual(frame, places, inside)
            slopes = self._sample(self.slopes[frame + 1].flatten(0, 1), places).view(2, channels, -1)
            depth = local[:, 2].clamp_min(0.05)
            sideways = self.focal / depth * slopes  # [2, C, P]
            forward = -(sideways * (local[:, :2] / depth[:, None]).T[:, None]).sum(0)
            by_point = torch.stack([sideways[0], sideways[1], forward], -1)  # [C, P, 3] colour by camera coordinates
            turned = self.points @ self.rotations[frame].T
            motion = torch.cat(
                [torch.linalg.cross(turned.expand_as(by_point), by_point), by_point * inverse[:, None]], -1
            )
            if self.grid_shape is not None:
                by_depth = (by_point @ self.t[frame]) * inverse  # [C, P]
                motion = torch.cat([motion, by_depth[..., None] * self.basis], -1)
            rows = motion[:, inside].flatten(0, 1)
            residual = residual.flatten()
            weight = (_HUBER / residual.abs().clamp_min(_HUBER)) / len(residual)
            own = torch.cat([torch.arange(6 * frame, 6 * frame + 6), torch.arange(moves, size)])
            weighted = rows * weight[:, None]
            matrix[own[:, None], own] += weighted.T @ rows
            vector[own] -= weighted.T @ residual
        if self.grid_shape is not None:
            share = self._prior_share()
            matrix[moves:, moves:] += share * (self.differences.T @ self.differences + 1 / cells**2)
            off = (self.g.mean() - self.start) / cells
            vector[moves:] -= share * (self.differences.T @ (self.differences @ self.g) + off)
        held = torch.zeros(size, dtype=torch.bool)
        held[:moves] = self.fixed.repeat_interleave(6)
        matrix[held], vector[held] = 0.0, 0.0
        matrix[:, held] = 0.0
        matrix[held, held] = 1.0
        return matrix, vector

    def solve(self, steps: int = _STEPS) -> float:
        """Levenberg-Marquardt steps until nothing improves; the cost."""
        damping, cost = 1e-3, self.cost()
        for _ in range(steps):
            matrix, vector = self._normal_equations()
            improved = False
            while damping < 1e4 and not improved:
                before = self.g, self.rotations, self.t
                step = torch.linalg.solve(matrix + damping * torch.diag(matrix.diagonal() + 1e-12), vector)
                motion, self.g = step[: 6 * len(self.t)].view(-1, 6), self.g + step[6 * len(self.t) :]
                self.rotations = axis_angle_to_matrix(motion[:, :3]) @ self.rotations
                self.t = self.t + motion[:, 3:]
                now = self.cost()
                improved = now < cost
                if not improved:
                    self.g, self.rotations, self.t = before
                    damping *= 4
            if not improved or cost - now < 1e-5 * cost:
                return min(cost, now)
            cost, damping = now, max(damping / 4, 1e-7)
        return cost

    def depth(self, size: tuple[int, int]) -> Tensor:
        """Depth map of the reference, of (height, width)."""
        assert self.grid_shape is not None
        inverse = self.g.exp().view(1, 1, *self.grid_shape)
        return 1 / F.interpolate(inverse, size=size, mode="bilinear", align_corners=True)[0, 0]

    def poses(self) -> Tensor:
        """Camera-to-reference [count, 4, 4], float32."""
        return invert_pose(make_pose(self.rotations, self.t)).float()

    def start_at(self, camera_to_reference: Tensor) -> None:
        """Begin with these poses [count, 4, 4]."""
        moves = invert_pose(camera_to_reference.detach().double().cpu())
        self.rotations, self.t = moves[:, :3, :3].clone(), moves[:, :3, 3].clone()


def _neighbour_differences(grid: tuple[int, int]) -> Tensor:
    """Matrix [D, rows * columns] of the differences of neighbours in a grid of (rows, columns)."""
    numbers = torch.arange(grid[0] * grid[1]).view(grid)
    pairs = torch.cat(
        [
            torch.stack([numbers[:, 1:].flatten(), numbers[:, :-1].flatten()], 1),
            torch.stack([numbers[1:].flatten(), numbers[:-1].flatten()], 1),
        ]
    )
    matrix = torch.zeros(len(pairs), numbers.numel(), dtype=torch.float64)
    rows = torch.arange(len(pairs))
    matrix[rows, pairs[:, 0]], matrix[rows, pairs[:, 1]] = 1.0, -1.0
    return matrix


def _levels(images: ImagePyramid, finest: int) -> list[int]:
    """Pyramid levels from coarse to fine."""
    found = [finest]
    while len(found) < 3 and min(images.size(found[0] + 1)) >= _COARSEST:
        found.insert(0, found[0] + 1)
    return found


def _grid(images: ImagePyramid, level: int) -> tuple[int, int]:
    height, width = images.size(level)
    unit = min(height, width) / _GRID
    return round(height / unit), round(width / unit)


def _focal(images: ImagePyramid, level: int, share: float) -> float:
    return share * sum(images.size(level)) / 2


def align_first_frames(
    images: ImagePyramid, frames: Sequence[int], share: float, depth: float, finest: int
) -> tuple[Tensor, float]:
    """Poses of a few frames and, on the way, a smooth depth map of the first of them.

    The sign of the motion is found by trial: from standing still and from a step along each axis, on coarse images.

    Args:
        images: of the sequence.
        frames: the first of them is the reference.
        share: focal length over (W + H) / 2.
        depth: geometric mean of the depths, which sets the scale.
        finest: pyramid level to end with.

    Returns:
        Camera-to-world [K, 4, 4] with the reference at the identity, and the robust colour difference to it.
    """
    levels = _levels(images, finest)
    grid = _grid(images, finest)
    trials = [torch.zeros(3), *(sign * _START * depth * axis for axis in torch.eye(3) for sign in (1, -1))]
    best, found = math.inf, _Alignment(len(frames) - 1, grid, depth)
    coarse = levels[:-1] or levels
    for trial in trials:
        alignment = _Alignment(len(frames) - 1, grid, depth)
        alignment.t = torch.arange(1.0, len(frames), dtype=torch.float64)[:, None] * trial.double()
        for level in coarse:
            alignment.at(images.level(level)[list(frames)].cpu(), _focal(images, level, share))
            cost = alignment.solve()
        if cost < best:
            best, found = cost, alignment
    found.at(images.level(levels[-1])[list(frames)].cpu(), _focal(images, levels[-1], share))
    cost = found.solve()
    return torch.cat([torch.eye(4)[None], found.poses()]), cost / (len(frames) - 1)


def align_frame(
    images: ImagePyramid,
    known: Sequence[int],
    poses: Tensor,
    frame: int,
    share: float,
    depth: float,
    finest: int,
    starts: Sequence[Tensor],
) -> tuple[Tensor, float]:
    """Pose of a frame from frames whose poses are known.

    The known frames give a depth map of the last of them, which the new frame is aligned to from several starts; then
    that pose and the depth map are adjusted together.

    Args:
        images: of the sequence.
        known: two or more frames, the last one nearest to the new one.
        poses: their camera-to-world matrices [M, 4, 4].
        frame: the new one.
        share: focal length over (W + H) / 2.
        depth: usual depth.
        finest: pyramid level to end with.
        starts: camera-to-world matrices [4, 4] to begin with.

    Returns:
        Camera-to-world [4, 4], and the robust colour difference to the last known frame.
    """
    poses = poses.detach().double().cpu()
    levels, reference = _levels(images, finest), poses[-1]
    moved = invert_pose(reference) @ poses[:-1]
    surface = _Alignment(len(known) - 1, _grid(images, finest), depth)
    surface.fixed[:] = True
    surface.start_at(moved)
    for level in levels:
        surface.at(images.level(level)[[known[-1], *known[:-1]]].cpu(), _focal(images, level, share))
        surface.solve()
    best, found = math.inf, reference
    for start in starts:
        alone = _Alignment(1)
        alone.start_at((invert_pose(reference) @ start.double().cpu())[None])
        for level in levels:
            pair = images.level(level)[[known[-1], frame]].cpu()
            alone.at(pair, _focal(images, level, share), surface.depth(images.size(level)))
            cost = alone.solve()
        if cost < best:
            best, found = cost, alone.poses()[0]
    if not math.isfinite(best):
        return starts[0], best
    joint = _Alignment(len(known), surface.grid_shape, depth)
    joint.fixed[:-1] = True
    joint.g = surface.g.clone()
    joint.start_at(torch.cat([moved, found[None].double()]))
    joint.at(images.level(finest)[[known[-1], *known[:-1], frame]].cpu(), _focal(images, finest, share))
    joint.solve()
    return (reference @ joint.poses()[-1].double()).float(), best
