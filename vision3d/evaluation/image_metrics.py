# SPDX-License-Identifier: Apache-2.0
"""Likeness of rendered and true images: PSNR and SSIM."""

from __future__ import annotations

import numpy as np

from vision3d.errors import InputError


def psnr(image: np.ndarray, truth: np.ndarray) -> float:
    """``-10 log10(mean squared error)`` in dB of two images in [0, 1] (clamped); infinity if they are equal.

    Raises:
        InputError: different shapes.
    """
    first, second = _images(image, truth)
    error = float(np.mean((first - second) ** 2))
    return -10 * float(np.log10(error)) if error > 0 else float("inf")


def ssim(image: np.ndarray, truth: np.ndarray) -> float:
    """Structural similarity (Wang et al., 2004): 11 x 11 Gaussian of sigma 1.5, data range 1, mean over channels.

    Args:
        image, truth: [H, W, 3] in [0, 1] (clamped), at least 11 pixels a side.

    Raises:
        InputError: different shapes, or too small.
    """
    from skimage.metrics import structural_similarity

    first, second = _images(image, truth)
    if min(first.shape[:2]) < 11:
        raise InputError(f"SSIM needs images of at least 11 x 11 pixels, got {first.shape[1]}x{first.shape[0]}")
    return float(
        structural_similarity(
            first,
            second,
            data_range=1.0,
            channel_axis=-1,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
    )


def _images(image: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.asarray(image, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 3:
        raise InputError(f"images must be [H, W, 3] of one size, got {first.shape} and {second.shape}")
    return first.clip(0, 1), second.clip(0, 1)
