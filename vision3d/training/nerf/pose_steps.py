# SPDX-License-Identifier: Apache-2.0
"""Adam for camera poses whose step size is an image displacement in pixels (camera preconditioning, CamP).

A small turn and a small sideways step move the image in nearly the same way, so that poses converge slowly along
"turn one way, step the other". Each pose therefore takes its steps in a basis in which every direction moves the image
by one pixel (root mean square): CamP, Park et al., SIGGRAPH Asia 2023, arXiv 2308.10902, section 4. There the points
that stand for the scene fill the frustum; here they lie at the depths that the field renders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vision3d.models.nerf.cfnerf import CFNeRF

_POINTS = 64  # of each frame
_DAMPING = 0.02
_NEAREST = 1e-2  # z-depth in the camera below which a point is held off, unit of the scene


def image_displacements(model: CFNeRF, views: Sequence[int], depths: Tensor, pixels: Tensor) -> Tensor:
    """Derivatives of the image positions of points by the pose parameters of their frame.

    Args:
        model: its cameras have the size of the images.
        views: V frames.
        depths: [V, P] z-depths at which the points are held.
        pixels: [V, P, 2] where the frames see them now.

    Returns:
        [V, 2 * P, K] pixels; the K parameters are those of ``phi`` and then of ``t``.
    """
    cameras, index = model.cameras, torch.tensor(list(views), device=depths.device)
    count, points = depths.shape
    with torch.no_grad():
        origins, directions = cameras.rays(index.repeat_interleave(points), pixels.reshape(-1, 2))
        world = (origins + directions * depths.reshape(-1, 1)).view(count, points, 3)
        focal = cameras.focal_length()
    with torch.enable_grad():
        phi, t = (value.detach()[index].requires_grad_() for value in (cameras.phi, cameras.t))
        local = (world - t[:, None]) @ cameras.to_rotations(phi)
        seen = focal * local[..., :2] / local[..., 2:].clamp_min(_NEAREST)
        rows = []
        for column in seen.flatten(1).unbind(1):  # frames do not depend on each other: one pass for all of them
            rows.append(torch.cat(torch.autograd.grad(column.sum(), (phi, t), retain_graph=True), 1))
    return torch.stack(rows, 1)


def pixel_basis(model: CFNeRF, views: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """Matrices [V, K, K] from steps in pixels to steps of the pose parameters (phi, t) of each frame."""
    cameras, device = model.cameras, model.cameras.t.device
    size = torch.tensor([cameras.width, cameras.height], device=device)
    pixels = torch.rand(len(views), _POINTS, 2, generator=generator, device=device) * size
    index = torch.tensor(list(views), device=device).repeat_interleave(_POINTS)
    mode = model.training
    with torch.no_grad():
        depths = model.eval()(index, pixels.view(-1, 2)).depth.view(len(views), _POINTS)
    model.train(mode)
    near = max(model.rendering.near, _NEAREST)
    derivatives = image_displacements(model, views, depths.clamp_min(near), pixels).double()
    spread = derivatives.mT @ derivatives / _POINTS
    diagonal = spread.diagonal(dim1=1, dim2=2)
    spread = spread + torch.diag_embed(_DAMPING * diagonal + 1e-6 * diagonal.mean(1, keepdim=True))
    values, vectors = torch.linalg.eigh(spread)
    return ((vectors * values.rsqrt()[:, None]) @ vectors.mT).to(cameras.t.dtype)


class PoseAdam:
    """Adam over the poses of some frames, with the interface of ``torch.optim.Optimizer`` that a stage needs.

    Args:
        model: its ``cameras.phi`` and ``cameras.t`` are changed in place.
        views: the frames; gradients of others are ignored.
        generator: places the points that stand for the scene.
    """

    def __init__(self, model: CFNeRF, views: Sequence[int], generator: torch.Generator) -> None:
        self.cameras = model.cameras
        self.views = torch.tensor(list(views), device=model.cameras.t.device)
        self.basis = pixel_basis(model, views, generator)
        self.position = torch.nn.Parameter(torch.zeros_like(self.basis[:, 0]))
        self.adam = torch.optim.Adam([self.position])
        self.param_groups = self.adam.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the poses."""
        self.cameras.phi.grad = self.cameras.t.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step; the learning rate is in pixels."""
        phi, t = self.cameras.phi, self.cameras.t
        gradient = torch.cat([_gradient(phi)[self.views], _gradient(t)[self.views]], 1)
        self.position.grad = (self.basis.mT @ gradient[..., None])[..., 0]
        self.position.zero_()
        self.adam.step()
        change = (self.basis @ self.position[..., None])[..., 0]
        turns = phi.shape[1]
        phi[self.views] += change[:, :turns]
        t[self.views] += change[:, turns:]

    def state_dict(self) -> dict[str, Any]:
        """Moments and bases."""
        return {"adam": self.adam.state_dict(), "basis": self.basis}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved moments and bases."""
        self.adam.load_state_dict(state["adam"])
        self.basis = state["basis"].to(self.basis)


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
