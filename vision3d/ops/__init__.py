# SPDX-License-Identifier: Apache-2.0
"""Tensor operations shared by the networks: costs, warping, epipolar lines, regression, upsampling, padding."""

from __future__ import annotations

from vision3d.ops.correlation import correlation_1d, correlation_2d
from vision3d.ops.cost_volume import concatenation_volume, difference_volume, groupwise_correlation
from vision3d.ops.deformable import deform_conv2d
from vision3d.ops.epipolar import EpipolarLines, epipolar_lines
from vision3d.ops.epipolar_cost import epipolar_cost, feature_pyramid
from vision3d.ops.padding import Padding, pad_to_multiple, resize_disparity
from vision3d.ops.regression import disparity_regression
from vision3d.ops.semi_global import semi_global_matching
from vision3d.ops.spherical import face_convolution, face_pool, face_unpool, paint_faces, sample_panorama
from vision3d.ops.upsampling import convex_upsample
from vision3d.ops.warping import warp_by_disparity

__all__ = [
    "EpipolarLines",
    "Padding",
    "concatenation_volume",
    "convex_upsample",
    "correlation_1d",
    "correlation_2d",
    "deform_conv2d",
    "difference_volume",
    "disparity_regression",
    "epipolar_cost",
    "epipolar_lines",
    "face_convolution",
    "face_pool",
    "face_unpool",
    "feature_pyramid",
    "groupwise_correlation",
    "pad_to_multiple",
    "paint_faces",
    "resize_disparity",
    "sample_panorama",
    "semi_global_matching",
    "warp_by_disparity",
]
