# SPDX-License-Identifier: Apache-2.0
"""A room corner whose disparities and normals are known in closed form, and a "network" that answers from them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from vision3d.geometry.normals import normals_from_disparity
from vision3d.types import Camera, StereoOutput, StereoRig, StereoSample

# Unit normals towards the camera at the origin, and distances in metres: floor, back wall, a slanted right wall.
PLANES = (((0.0, -1.0, 0.0), 1.2), ((0.0, 0.0, -1.0), 4.0), ((-0.8, 0.0, -0.6), 2.5))


def corner_rig(width: int = 128, height: int = 64, doffs: float = 0.0) -> StereoRig:
    """An oblique principal point and fx != fy, so that no mistake with them cancels."""

    def camera(shift: float) -> Camera:
        return Camera(np.array([[90.0, 0, 70.0 + shift], [0, 80.0, 25.0], [0, 0, 1]]), width, height)

    return StereoRig(camera(0.0), camera(doffs), 0.2)


def corner_maps(rig: StereoRig) -> tuple[np.ndarray, np.ndarray]:
    """Exact disparity [H, W] and normals [H, W, 3] float64."""
    width, height = rig.size or (0, 0)
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    rays = np.stack([(x - rig.left.cx) / rig.left.fx, (y - rig.left.cy) / rig.left.fy, np.ones(x.shape)], axis=2)
    inverse_depths = np.stack([-(rays @ np.array(normal)) / distance for normal, distance in PLANES])
    nearest = inverse_depths.argmax(axis=0)
    normals = np.array([normal for normal, _ in PLANES])[nearest]
    return rig.left.fx * rig.baseline * inverse_depths.max(axis=0) - rig.doffs, normals


def corner_sample(rig: StereoRig | None = None, scene: str = "corner") -> StereoSample:
    """The corner with noise as images."""
    rig = rig or corner_rig()
    disparity, normals = corner_maps(rig)
    left, right = np.random.default_rng(5).integers(0, 256, (2, *disparity.shape, 3), dtype=np.uint8)
    maps = {"disparity": disparity.astype(np.float32), "normals": normals.astype(np.float32)}
    return StereoSample(left, right, rig=rig, scene=scene, **maps)


class CornerNetwork(nn.Module):
    """Answers the corner of ``rig`` at the size and with the camera that it is called with; notes the cameras.

    ``tilt`` (degrees) turns every answered normal about the y axis of the camera.
    """

    name = "corner"
    size_multiple = 32
    max_disparity = 192
    fx = fy = 480.0
    stage_one_name = "stage"

    def __init__(self, rig: StereoRig, tilt: float = 0.0) -> None:
        super().__init__()
        self.baseline, self.tilt = rig.baseline, np.radians(tilt)
        self.calls: list[tuple[tuple[int, int], np.ndarray, float]] = []

    def set_focal_length(self, fx: float, fy: float) -> None:
        self.fx, self.fy = fx, fy

    def forward(
        self, left: torch.Tensor, right: torch.Tensor, intrinsics: torch.Tensor, doffs: torch.Tensor
    ) -> StereoOutput:
        height, width = left.shape[-2:]
        matrix, shift = intrinsics[0].double().numpy(), float(doffs[0])
        self.calls.append(((width, height), matrix, shift))
        other = matrix.copy()
        other[0, 2] += shift
        rig = StereoRig(Camera(matrix, width, height), Camera(other, width, height), self.baseline)
        disparity, normals = corner_maps(rig)
        cosine, sine = np.cos(self.tilt), np.sin(self.tilt)
        normals = normals @ np.array([[cosine, 0, -sine], [0, 1, 0], [sine, 0, cosine]])
        answer = torch.from_numpy(disparity).float()[None, None]
        output = StereoOutput(disparity=answer, pyramid=[answer])
        output.normals = torch.from_numpy(normals).float().permute(2, 0, 1)[None]
        return output


def angles(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Degrees between unit vectors [..., 3]."""
    return np.degrees(np.arctan2(np.linalg.norm(np.cross(first, second), axis=-1), (first * second).sum(axis=-1)))


def flat(sample: StereoSample) -> np.ndarray:
    """[H, W] bool: pixels whose neighbours all lie on their plane."""
    assert sample.normals is not None
    assert sample.disparity is not None
    assert sample.rig is not None
    own = normals_from_disparity(np.asarray(sample.disparity, np.float64), sample.rig.left, doffs=sample.rig.doffs)
    return angles(np.asarray(own), np.asarray(sample.normals, np.float64)) < 0.5
