# SPDX-License-Identifier: Apache-2.0
"""Fitting a stereo rig to the images that it is used with."""

from __future__ import annotations

from vision3d.errors import CalibrationError
from vision3d.types import StereoRig


def fit_rig_to_image(rig: StereoRig, width: int, height: int, source: str = "") -> StereoRig:
    """The rig with the image size filled in, or unchanged where it fits.

    Args:
        rig: the calibration.
        width, height: size of the images, pixels.
        source: the calibration file, for the error messages.

    Raises:
        CalibrationError: the rig is for another image size, or its principal point lies outside of the image.
    """
    name = f"{source}: " if source else ""
    if rig.size == (width, height):
        return rig
    if rig.size is None:
        cx, cy = rig.left.cx, rig.left.cy
        if not (0 <= cx < width and 0 <= cy < height):
            raise CalibrationError(
                f"{name}the principal point ({cx:g}, {cy:g}) lies outside of the {width}x{height} images, so the "
                "calibration is of another size: scale it to the images"
            )
        return rig.with_size(width, height)
    text = f"{name}the calibration is for {rig.size[0]}x{rig.size[1]} but the images are {width}x{height}"
    sx, sy = width / rig.size[0], height / rig.size[1]
    if abs(rig.size[0] * sy - width) <= 1 or abs(rig.size[1] * sx - height) <= 1:
        raise CalibrationError(
            f"{text} (scaled by {sx:.4g}): pass images of {rig.size[0]}x{rig.size[1]} (--scale S reduces them for the "
            f"network alone), or scale the calibration with StereoRig.resized({width}, {height})"
        )
    raise CalibrationError(f"{text}: pass the calibration of these images (other shape: cropped or another camera)")
