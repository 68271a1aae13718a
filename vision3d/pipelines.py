# SPDX-License-Identifier: Apache-2.0
"""Predict: files or arrays in, results out (check, scale, pad, undo, confidence, depth, cloud).

Example:
    >>> from vision3d import predict_stereo  # doctest: +SKIP
    >>> result = predict_stereo("left.png", "right.png", calibration="calib.txt")  # doctest: +SKIP
    >>> result.save("out")  # doctest: +SKIP
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from vision3d import inference
from vision3d.checks import check_same_channels, check_same_size, describe_input, pair_warnings
from vision3d.errors import InputError
from vision3d.geometry.disparity import consistency, disparity_to_depth
from vision3d.geometry.rig import fit_rig_to_image
from vision3d.results import StereoResult
from vision3d.types import StereoRig

if TYPE_CHECKING:
    from PIL import Image

    ImageLike = str | os.PathLike[str] | Image.Image | np.ndarray

__all__ = ["DEFAULT_STEREO_MODEL", "StereoResult", "load_stereo_model", "predict_stereo"]

DEFAULT_STEREO_MODEL = "covonet"
_FARTHEST = 0.05  # pixels of disparity below which a point is too far away for its depth to mean anything
_CONSISTENT_PIXELS = 1.0  # tolerance of the left-right check, pixels of the network's input


def load_stereo_model(
    model: str | nn.Module | None = None,
    weights: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
) -> tuple[nn.Module, str, torch.device]:
    """The network, its name and the device it lies on.

    Args:
        model: a registered name (its default weights are loaded), a module, or None for the default network.
        weights: a checkpoint or a weight tag instead of the default weights; needs a name.
        device: None leaves a module where it is, and takes CUDA for a name where there is one.

    Raises:
        UnknownNameError, WeightsError: see ``create_model``. InputError: a model of another kind or an unknown device.
    """
    if isinstance(model, nn.Module):
        if weights is not None:
            raise InputError("weights go with the name of a network: load them into the module instead")
        first = next(model.parameters(), None)
        home = first.device if first is not None else torch.device("cpu")
        chosen = home if device is None else inference.choose_device(device)
        return model.to(chosen), inference.model_name(model), chosen
    if model is not None and not isinstance(model, str):
        raise InputError(f"model is {type(model).__name__}: pass a name, a torch module, or None for the default")
    name = model or DEFAULT_STEREO_MODEL
    chosen = inference.choose_device(device)
    if weights is None:
        return inference.cached_model(name, chosen), name, chosen
    from vision3d.zoo import create_model

    return create_model(name, pretrained=str(weights)).to(chosen), name, chosen


def predict_stereo(
    left: ImageLike,
    right: ImageLike,
    model: str | nn.Module | None = None,
    calibration: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | StereoRig | None = None,
    scale: float | str = 1.0,
    confidence: bool = True,
    *,
    device: str | torch.device | None = None,
    precision: str = "float32",
    check_memory: bool = True,
    check_pair: bool = True,
    units: str = "auto",
) -> StereoResult:
    """Predict the disparity of a rectified stereo pair, and with a calibration its depth.

    Args:
        left, right: a path, a PIL image, or an array [H, W, 3] (uint8, or float in [0, 1]); of one size.
        model: a registered name, a module called as ``model(left, right)``, or None for the default network.
        calibration: a calibration file, a pair of YAML files (left, right), or a rig of these images; without it there
            is no depth.
        scale: size of the network's images, relative to the input (0.5 = half); ``"auto"`` chooses it so that the
            disparities fit the network's range and the images fit the memory.
        confidence: run a second, mirrored pass for the confidence and the occlusion mask (doubles the time).
        device: ``"cpu"``, ``"cuda"``, ...; None takes CUDA where there is one.
        precision: ``"float32"``, ``"bfloat16"`` or ``"float16"`` (autocast).
        check_memory: refuse images whose passes, or whose full-size maps, cloud and page, would not fit into the free
            memory.
        check_pair: look for swapped or unrectified views and say so in ``result.warnings``.
        units: unit of the file's baseline, ``"auto"``, ``"m"`` or ``"mm"`` (see ``read_calibration``).

    Returns:
        StereoResult with maps at the size of the input images.

    Raises:
        ImageError, CalibrationError: a file that cannot be used. InputError: sizes that differ, a wrong option, or
        images too large for the memory. UnknownNameError, WeightsError: see ``create_model``.
    """
    views = _read_pair(left, right)
    rig = _read_rig(calibration, views[0].shape[1], views[0].shape[0], units)
    wanted = scale if scale == "auto" else inference.checked_scale(scale)
    network, name, home = load_stereo_model(model, device=device)
    result = _predict(network, views, rig, wanted, confidence, home, precision, check_memory)
    result.model = name
    result.files = _files(left=left, right=right, calibration=calibration)
    if check_pair:
        result.warnings[:0] = pair_warnings(*views, doffs=0.0 if rig is None else rig.doffs)
    return result


def _predict(
    network: nn.Module,
    views: tuple[np.ndarray, np.ndarray],
    rig: StereoRig | None,
    wanted: float | str,
    confidence: bool,
    home: torch.device,
    precision: str,
    check_memory: bool,
) -> StereoResult:
    """The result of checked views: scale, passes, consistency, depth."""
    height, width = views[0].shape[:2]
    start = time.perf_counter()
    scale = inference.automatic_scale(network, *views, home, precision) if wanted == "auto" else float(wanted)
    if check_memory:
        inference.check_memory(network, width, height, scale, home)
    disparity, own, mirrored = _run(network, views, scale, confidence, home, precision)
    certainty, occlusion = own, None
    if mirrored is not None:
        certainty, occlusion = consistency(disparity, mirrored, tolerance=_CONSISTENT_PIXELS / min(scale, 1.0))
        certainty = certainty if own is None else certainty * np.clip(own, 0.0, 1.0)
    return StereoResult(
        disparity=disparity,
        image=views[0],
        right=views[1],
        confidence=certainty,
        occlusion=occlusion,
        depth=_depth(disparity, rig),
        rig=rig,
        warnings=_result_warnings(network, disparity, scale),
        seconds=time.perf_counter() - start,
        scale=scale,
    )


def _read_pair(left: ImageLike, right: ImageLike) -> tuple[np.ndarray, np.ndarray]:
    from vision3d.io.images import as_image, count_channels

    names = [describe_input(left, "left"), describe_input(right, "right")]
    views = as_image(left), as_image(right)
    check_same_size(*views, *names)
    check_same_channels(count_channels(left), count_channels(right), *names)
    return views


def _read_rig(calibration: Any, width: int, height: int, units: str = "auto") -> StereoRig | None:
    if calibration is None:
        return None
    if isinstance(calibration, StereoRig):
        return fit_rig_to_image(calibration, width, height)
    from vision3d.io.calibration import read_calibration

    return read_calibration(calibration, image_size=(width, height), units=units)


def _run(
    network: nn.Module,
    views: tuple[np.ndarray, np.ndarray],
    scale: float,
    mirrored: bool,
    device: torch.device,
    precision: str,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Disparity of the left view, the network's own confidence, and the right view's disparity, all at full size."""
    height, width = views[0].shape[:2]
    small = [inference.resize_image(view, *inference.scaled_size(width, height, scale)) for view in views]
    disparity, own = inference.run_network(network, small[0], small[1], device, precision)
    right = inference.run_mirrored(network, small[0], small[1], device, precision) if mirrored else None
    if disparity.shape == (height, width):
        return disparity, own, right
    return (
        inference.resize_map(disparity, width, height, width / disparity.shape[1]),
        None if own is None else inference.resize_map(own, width, height),
        None if right is None else inference.resize_map(right, width, height, width / right.shape[1]),
    )


def _depth(disparity: np.ndarray, rig: StereoRig | None) -> np.ndarray | None:
    if rig is None:
        return None
    depth = np.asarray(disparity_to_depth(disparity, rig), dtype=np.float32)
    depth[disparity + rig.doffs < _FARTHEST] = np.nan
    return depth


def _result_warnings(network: nn.Module, disparity: np.ndarray, scale: float) -> list[str]:
    finite = disparity[np.isfinite(disparity)]
    if finite.size == 0:
        return ["the network gave no finite disparity: its weights do not fit or the images are not usable"]
    reach = inference.max_disparity(network) / scale
    if np.percentile(finite, 99) > 0.97 * reach:
        return [
            f"disparities reach the network's limit of {reach:.0f} px: near surfaces may be wrong, "
            'reduce the images (--scale auto, or scale="auto")'
        ]
    return []


def _files(**inputs: Any) -> dict[str, str]:
    paths = {name: value if isinstance(value, (list, tuple)) else [value] for name, value in inputs.items()}
    return {
        name: ", ".join(str(item) for item in items)
        for name, items in paths.items()
        if all(isinstance(item, (str, os.PathLike)) for item in items)
    }
