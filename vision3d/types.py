# SPDX-License-Identifier: Apache-2.0
"""The few data classes that cross module borders.

Conventions (docs/conventions.md): disparity is positive, in pixels of the image it belongs to, left view,
``x_right = x_left - disparity``; invalid is NaN; pixel centres lie at integer coordinates; lengths are metres.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from vision3d.errors import CalibrationError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@dataclass(frozen=True)
class Camera:
    """A pinhole camera with OpenCV axes (x right, y down, z forward).

    Attributes:
        intrinsics: ``K``, [3, 3] float64, pixels, pixel centres at integer coordinates.
        width, height: image size in pixels, or None where the calibration does not say it.
        distortion: OpenCV coefficients (k1, k2, p1, p2, k3, ...), or None for a rectified view.
        world_to_camera: [4, 4] float64, metres.
    """

    intrinsics: np.ndarray
    width: int | None = None
    height: int | None = None
    distortion: np.ndarray | None = None
    world_to_camera: np.ndarray = field(default_factory=lambda: np.eye(4))

    def __post_init__(self) -> None:
        intrinsics = np.asarray(self.intrinsics, dtype=np.float64)
        if intrinsics.shape != (3, 3):
            raise CalibrationError(f"intrinsics must be a 3x3 matrix, got shape {intrinsics.shape}")
        if not np.isfinite(intrinsics).all():
            raise CalibrationError(f"intrinsics must be finite numbers, got {intrinsics.ravel().tolist()}")
        if intrinsics[0, 0] <= 0 or intrinsics[1, 1] <= 0:
            raise CalibrationError(f"focal lengths must be positive, got {intrinsics[0, 0]} and {intrinsics[1, 1]}")
        object.__setattr__(self, "intrinsics", intrinsics)

    @property
    def fx(self) -> float:
        return float(self.intrinsics[0, 0])

    @property
    def fy(self) -> float:
        return float(self.intrinsics[1, 1])

    @property
    def cx(self) -> float:
        return float(self.intrinsics[0, 2])

    @property
    def cy(self) -> float:
        return float(self.intrinsics[1, 2])

    def resized(self, width: int, height: int, half_pixel: bool = True) -> Camera:
        """The camera of the same view resampled to ``width`` x ``height`` (pixel centres at integers).

        ``half_pixel=False`` leaves out the term that keeps the centres exact, as public multi-view code does.
        """
        if self.width is None or self.height is None:
            raise CalibrationError("the camera does not know its image size, so it cannot follow a resize")
        sx, sy = width / self.width, height / self.height
        shift_x, shift_y = (0.5 * sx - 0.5, 0.5 * sy - 0.5) if half_pixel else (0.0, 0.0)
        scale = np.array([[sx, 0.0, shift_x], [0.0, sy, shift_y], [0.0, 0.0, 1.0]])
        return replace(self, intrinsics=scale @ self.intrinsics, width=width, height=height)

    def cropped(self, left: int, top: int, width: int, height: int) -> Camera:
        """The camera of the window of ``width`` x ``height`` whose first pixel is (``left``, ``top``)."""
        intrinsics = self.intrinsics.copy()
        intrinsics[:2, 2] -= left, top
        return replace(self, intrinsics=intrinsics, width=width, height=height)


@dataclass(frozen=True)
class StereoRig:
    """A rectified stereo pair of cameras: depth = fx * baseline / (disparity + doffs).

    Attributes:
        left, right: the two rectified cameras (same size, same fx).
        baseline: distance of the centres, metres, positive.
    """

    left: Camera
    right: Camera
    baseline: float

    def __post_init__(self) -> None:
        if not np.isfinite(self.baseline) or self.baseline <= 0:
            raise CalibrationError(f"baseline must be a positive number of metres, got {self.baseline}")

    @property
    def doffs(self) -> float:
        """``cx_right - cx_left`` in pixels."""
        return self.right.cx - self.left.cx

    @property
    def size(self) -> tuple[int, int] | None:
        """(width, height) or None where unknown."""
        if self.left.width is None or self.left.height is None:
            return None
        return self.left.width, self.left.height

    def with_size(self, width: int, height: int) -> StereoRig:
        """The same rig with the image size filled in (no rescaling)."""
        return replace(
            self,
            left=replace(self.left, width=width, height=height),
            right=replace(self.right, width=width, height=height),
        )

    def resized(self, width: int, height: int) -> StereoRig:
        """The rig of the same views resampled to ``width`` x ``height``."""
        return replace(self, left=self.left.resized(width, height), right=self.right.resized(width, height))


@dataclass
class StereoOutput:
    """What every stereo network returns.

    Attributes:
        disparity: [B, 1, H, W], pixels of the input images.
        pyramid: the network's maps, finest first, each at its own resolution, values as the network defines them.
        confidence: [B, 1, H, W] in [0, 1], or None.
        stages: training mode only: one pyramid (finest first) for each supervised stage, the last being the answer.
        auxiliary: training mode only: further tensors that the network's own loss needs, by name.
        normals: [B, 3, H, W] unit surface normals towards the camera, left camera axes, or None.
    """

    disparity: torch.Tensor
    pyramid: list[torch.Tensor]
    confidence: torch.Tensor | None = None
    stages: list[list[torch.Tensor]] = field(default_factory=list)
    auxiliary: dict[str, torch.Tensor] = field(default_factory=dict)
    normals: torch.Tensor | None = None


@dataclass
class DepthOutput:
    """What multi-view and panorama networks return.

    Attributes:
        depth: [B, 1, H, W]; z-depth of the reference view in the unit of its cameras, or distance along the ray of a
            panorama in metres.
        confidence: [B, 1, H, W] in [0, 1], or None.
        iterations: the depth maps of each step of an iterative network, first step first, each at its own resolution.
        faces: panoramas: [B, F] distance at each face of the spherical mesh, or None.
        auxiliary: training mode only: further tensors that the network's own loss needs, by name.
    """

    depth: torch.Tensor
    confidence: torch.Tensor | None = None
    iterations: list[torch.Tensor] = field(default_factory=list)
    faces: torch.Tensor | None = None
    auxiliary: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass
class StereoSample:
    """One stereo pair of a data set, as arrays.

    Attributes:
        left, right: [H, W, 3] uint8 RGB.
        disparity: [H, W] float32 of the left view, NaN where unknown, or None.
        occlusion: [H, W] bool, True where the left pixel is hidden in the right view, or None.
        right_disparity: [H, W] float32 of the right view (``x_left = x_right + disparity``), or None.
        normals: [H, W, 3] float32, unit, left camera axes, or None.
        rig: calibration, or None.
        scene: name of the pair inside its data set.
        foreground: [H, W] bool, True on the objects that the data set's protocol scores apart (KITTI), or None.
    """

    left: np.ndarray
    right: np.ndarray
    disparity: np.ndarray | None = None
    occlusion: np.ndarray | None = None
    right_disparity: np.ndarray | None = None
    normals: np.ndarray | None = None
    rig: StereoRig | None = None
    scene: str = ""
    foreground: np.ndarray | None = None

    @property
    def valid(self) -> np.ndarray:
        """[H, W] bool: pixels with known disparity."""
        if self.disparity is None:
            return np.zeros(self.left.shape[:2], dtype=bool)
        return np.isfinite(self.disparity)


@dataclass
class StereoBatch:
    """A batch of stereo samples as tensors.

    Attributes:
        left, right: [B, 3, H, W] float32 RGB in [0, 1].
        disparity: [B, 1, H, W] float32, NaN where unknown.
        scenes: the scene name of each sample.
        normals: [B, 3, H, W] float32, unit, left camera axes, NaN where unknown; None where no sample has normals.
        intrinsics: [B, 3, 3] float32 of the left cameras, pixels; None unless every sample has a calibration.
        doffs: [B] float32, ``cx_right - cx_left`` in pixels; None where ``intrinsics`` is.
    """

    left: torch.Tensor
    right: torch.Tensor
    disparity: torch.Tensor
    scenes: list[str]
    normals: torch.Tensor | None = None
    intrinsics: torch.Tensor | None = None
    doffs: torch.Tensor | None = None

    @staticmethod
    def collate(samples: Sequence[StereoSample]) -> StereoBatch:
        """Stack samples of one size; every sample must have a disparity map. Samples without normals get NaN."""
        import torch

        for sample in samples:
            if sample.disparity is None:
                raise InputError(f"{sample.scene}: the sample has no disparity map, so it cannot be trained on")

        def images(arrays: list[np.ndarray]) -> torch.Tensor:
            stacked = torch.from_numpy(np.stack(arrays))
            return stacked.permute(0, 3, 1, 2).contiguous().float().div_(255.0)

        disparities = [sample.disparity for sample in samples if sample.disparity is not None]
        normals = None
        if any(sample.normals is not None for sample in samples):
            unknown = np.full(samples[0].left.shape, np.nan, np.float32)
            maps = [unknown if sample.normals is None else sample.normals for sample in samples]
            normals = torch.from_numpy(np.stack(maps).astype(np.float32, copy=False)).permute(0, 3, 1, 2).contiguous()
        rigs = [sample.rig for sample in samples if sample.rig is not None]
        calibrated = len(rigs) == len(samples)
        return StereoBatch(
            left=images([sample.left for sample in samples]),
            right=images([sample.right for sample in samples]),
            disparity=torch.from_numpy(np.stack(disparities)).float()[:, None],
            scenes=[sample.scene for sample in samples],
            normals=normals,
            intrinsics=torch.tensor(np.stack([rig.left.intrinsics for rig in rigs])).float() if calibrated else None,
            doffs=torch.tensor([rig.doffs for rig in rigs], dtype=torch.float32) if calibrated else None,
        )


@dataclass
class MultiViewSample:
    """One reference view and its source views, as arrays; view 0 is the reference.

    Attributes:
        images: each view's [H, W, 3] uint8 RGB. Sizes may differ between views.
        cameras: each view's camera without distortion, lengths in ``unit``; empty where the poses are unknown.
        view_ids: each view's number inside its scene.
        unit: unit of the cameras and depths: "mm", "m", or "unknown" where the scale of the scene is arbitrary.
        depth: [H, W] float32 z-depth of the reference view, NaN where unknown, or None.
        mask: [H, W] bool, pixels of the reference view to be evaluated, or None.
        depth_range: (least, largest) depth to search in the reference view, or None.
        depth_interval: step between the depth planes that the data set proposes, or None.
        names: each view's file name.
        scene: name of the scene inside its data set.
    """

    images: list[np.ndarray]
    cameras: list[Camera]
    view_ids: list[int]
    unit: str = "unknown"
    depth: np.ndarray | None = None
    mask: np.ndarray | None = None
    depth_range: tuple[float, float] | None = None
    depth_interval: float | None = None
    names: list[str] = field(default_factory=list)
    scene: str = ""

    @property
    def reference_id(self) -> int:
        """Number of the reference view inside its scene."""
        return self.view_ids[0]

    @property
    def source_ids(self) -> list[int]:
        """Numbers of the source views inside their scene, best first."""
        return self.view_ids[1:]

    @property
    def valid(self) -> np.ndarray:
        """[H, W] bool: pixels of the reference view with known depth, inside the mask where there is one."""
        if self.depth is None:
            return np.zeros(self.images[0].shape[:2], dtype=bool)
        known = np.isfinite(self.depth)
        return known if self.mask is None else known & self.mask


@dataclass
class MultiViewBatch:
    """A batch of multi-view samples of one size and number of views as tensors; view 0 is the reference.

    Attributes:
        images: [B, N, 3, H, W] float32 RGB in [0, 1].
        intrinsics: [B, N, 3, 3] float64, pixels of these images.
        world_to_camera: [B, N, 4, 4] float64.
        depth_range: [B, 2] float32 least and largest depth, in the unit of the cameras.
        depth: [B, 1, H, W] float32 of the reference view, NaN where unknown or masked.
        scenes: the scene name of each sample.
    """

    images: torch.Tensor
    intrinsics: torch.Tensor
    world_to_camera: torch.Tensor
    depth_range: torch.Tensor
    depth: torch.Tensor
    scenes: list[str]

    @staticmethod
    def collate(samples: Sequence[MultiViewSample]) -> MultiViewBatch:
        """Stack samples; every one must have cameras, a depth range and a depth map.

        Raises:
            InputError: one of them is missing, or sizes or numbers of views differ.
        """
        import torch

        shape = (len(samples[0].images), *samples[0].images[0].shape)
        depths = []
        for sample in samples:
            if sample.depth is None or sample.depth_range is None or len(sample.cameras) != len(sample.images):
                raise InputError(f"{sample.scene}: without depth map, depth range or cameras it cannot be trained on")
            found = {(len(sample.images), *image.shape) for image in sample.images}
            if found != {shape}:
                raise InputError(
                    f"{sample.scene}: {sorted(found)} (views, height, width, channels) beside {shape}: set the options "
                    "size and min_sources of the data set"
                )
            depths.append(np.where(sample.valid, sample.depth, np.float32(np.nan)))
        images = torch.from_numpy(np.stack([np.stack(sample.images) for sample in samples]))
        cameras = [sample.cameras for sample in samples]
        return MultiViewBatch(
            images=images.permute(0, 1, 4, 2, 3).contiguous().float().div_(255.0),
            intrinsics=torch.from_numpy(np.array([[c.intrinsics for c in row] for row in cameras])),
            world_to_camera=torch.from_numpy(np.array([[c.world_to_camera for c in row] for row in cameras])),
            depth_range=torch.tensor([sample.depth_range for sample in samples], dtype=torch.float32),
            depth=torch.from_numpy(np.stack(depths)).float()[:, None],
            scenes=[sample.scene for sample in samples],
        )


@dataclass
class PanoramaSample:
    """One equirectangular panorama, as arrays (pixel mapping: vision3d.geometry.panorama).

    Attributes:
        image: [H, 2H, 3] uint8 RGB.
        depth: [H, 2H] float32, distance along the ray in metres, NaN where unknown, or None.
        normals: [H, 2H, 3] float32, unit, towards the camera, NaN where unknown, or None.
        normal_axes: "camera" (x right, y down, z forward) or "world" (the axes of the data set).
        world_to_camera: [4, 4] float64 (metres), or None.
        scene: name of the panorama inside its data set.
    """

    image: np.ndarray
    depth: np.ndarray | None = None
    normals: np.ndarray | None = None
    normal_axes: str = "camera"
    world_to_camera: np.ndarray | None = None
    scene: str = ""

    @property
    def valid(self) -> np.ndarray:
        """[H, 2H] bool: pixels with known depth."""
        if self.depth is None:
            return np.zeros(self.image.shape[:2], dtype=bool)
        return np.isfinite(self.depth)


@dataclass
class PanoramaBatch:
    """A batch of panoramas as tensors.

    Attributes:
        image: [B, 3, H, 2H] float32 RGB in [0, 1].
        depth: [B, 1, H, 2H] float32, distance along the ray in metres, NaN where unknown.
        scenes: the name of each panorama.
    """

    image: torch.Tensor
    depth: torch.Tensor
    scenes: list[str]

    @staticmethod
    def collate(samples: Sequence[PanoramaSample]) -> PanoramaBatch:
        """Stack panoramas of one size; every one must have a depth map.

        Raises:
            InputError: one has none, or their sizes differ.
        """
        import torch

        for sample in samples:
            if sample.depth is None:
                raise InputError(f"{sample.scene}: the panorama has no depth, so it cannot be trained on")
            if sample.image.shape != samples[0].image.shape:
                raise InputError(
                    f"{sample.scene} is {sample.image.shape[1]}x{sample.image.shape[0]}, {samples[0].scene} is "
                    f"{samples[0].image.shape[1]}x{samples[0].image.shape[0]}: set the option height of the data set"
                )
        images = torch.from_numpy(np.stack([sample.image for sample in samples]))
        depths = np.stack([np.asarray(sample.depth, dtype=np.float32) for sample in samples])
        return PanoramaBatch(
            image=images.permute(0, 3, 1, 2).contiguous().float().div_(255.0),
            depth=torch.from_numpy(depths)[:, None],
            scenes=[sample.scene for sample in samples],
        )


@dataclass
class TexturedMesh:
    """Triangles with a picture on them.

    Attributes:
        vertices: [V, 3] float32, metres, camera axes.
        faces: [T, 3] int32 corners, counter-clockwise as seen from the front.
        coordinates: [V, 2] float32 place of each vertex in the picture: (u, v) from its upper left corner, 1 = its
            width or height; u may exceed 1 where the picture repeats.
        image: [H, W, 3] uint8 RGB.
    """

    vertices: np.ndarray
    faces: np.ndarray
    coordinates: np.ndarray
    image: np.ndarray


@dataclass
class PointCloud:
    """Points in camera or world axes.

    Attributes:
        points: [N, 3] float32, metres.
        colors: [N, 3] uint8 RGB, or None.
        normals: [N, 3] float32, unit, or None.
    """

    points: np.ndarray
    colors: np.ndarray | None = None
    normals: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.points)

    def select(self, index: np.ndarray) -> PointCloud:
        """The cloud of the points picked by a boolean mask or an index array."""
        return PointCloud(
            points=self.points[index],
            colors=None if self.colors is None else self.colors[index],
            normals=None if self.normals is None else self.normals[index],
        )
