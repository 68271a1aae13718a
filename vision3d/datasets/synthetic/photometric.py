# SPDX-License-Identifier: Apache-2.0
"""Independent photometric changes of the two views: exposure, colour, blur, noise, compression."""

from __future__ import annotations

import cv2
import numpy as np


def tone_table(rng: np.random.Generator, strength: float) -> np.ndarray:
    """Gain, gamma, colour balance and black level as a [256, 3] float32 look-up table, values in 0..255."""
    ramp = np.linspace(0, 1, 256, dtype=np.float32)[:, None]
    gamma = float(np.exp(rng.normal(0, 0.22 * strength)))
    gain = float(np.exp(rng.normal(0, 0.18 * strength))) * np.exp(rng.normal(0, 0.05 * strength, 3))
    offset = rng.normal(0, 0.02 * strength, 3)
    return np.asarray(np.clip(ramp**gamma * gain + offset, 0, 1) * 255.0, np.float32)


def apply_tone(image: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Apply a tone table to an [H, W, 3] float32 image in 0..255 without rounding it."""
    position = np.clip(image, 0, 254.99)
    index = position.astype(np.uint8)
    low = cv2.LUT(index, table[:, None, :])
    high = cv2.LUT(index + 1, table[:, None, :])
    return low + (position - index) * (high - low)


_BLUR_REACH = 8  # pixels, beyond the kernel of the widest blur


def degrade(image: np.ndarray, rng: np.random.Generator, strength: float, *, panorama: bool = False) -> np.ndarray:
    """Blur, vignetting, sensor noise, JPEG: [H, W, 3] float32 in 0..255 to uint8.

    A ``panorama`` draws the same numbers, but its blur goes around the seam and it has no vignetting.
    """
    height, width = image.shape[:2]
    if rng.random() < 0.5 * strength:
        margin = min(_BLUR_REACH, width) if panorama else 0
        wide = np.concatenate([image[:, width - margin :], image, image[:, :margin]], 1)
        image = cv2.GaussianBlur(wide, (0, 0), float(rng.uniform(0.3, 1.2)))[:, margin : margin + width]
    if rng.random() < 0.2 * strength:
        x = np.linspace(-1, 1, width, dtype=np.float32)[None] - float(rng.uniform(-0.3, 0.3))
        y = np.linspace(-1, 1, height, dtype=np.float32)[:, None] - float(rng.uniform(-0.3, 0.3))
        loss = float(rng.uniform(0, 0.25)) * (not panorama)
        image = image * (1 - loss * (x**2 + y**2))[..., None]
    if rng.random() < 0.7 * strength:
        read = float(rng.exponential(2.5)) * strength
        noise = rng.standard_normal((height, width, 3), dtype=np.float32)
        image = image + noise * np.sqrt(read**2 + float(rng.uniform(0, 0.06)) * strength * np.maximum(image, 0))
    result = np.clip(np.rint(image), 0, 255).astype(np.uint8)
    if rng.random() < 0.15 * strength:
        quality = int(rng.integers(50, 96))
        result = cv2.imdecode(cv2.imencode(".jpg", result, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], cv2.IMREAD_COLOR)
    return result


def photometric_change(
    left: np.ndarray, right: np.ndarray, rng: np.random.Generator, strength: float
) -> tuple[np.ndarray, np.ndarray]:
    """Change both views: a common tone, then a smaller independent one and independent degradations for each."""
    if strength <= 0:
        return tuple(np.clip(np.rint(view), 0, 255).astype(np.uint8) for view in (left, right))  # type: ignore[return-value]
    common = tone_table(rng, strength)
    views = []
    asymmetric = strength * float(rng.choice([0.15, 1.0], p=[0.5, 0.5]))
    grey = rng.random() < 0.12 * strength
    for view in (left, right):
        view = apply_tone(apply_tone(view, common), tone_table(rng, asymmetric))
        if grey:
            view = np.repeat(view.mean(axis=2, keepdims=True), 3, axis=2)
        views.append(degrade(view, rng, strength))
    return views[0], views[1]
