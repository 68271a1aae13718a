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
from vision3d.geometry.normals import fit_normals, turn_to_camera
from vision3d.geometry.rig import fit_rig_to_image
from vision3d.models.normals.common import IRS_FOCAL_LENGTH
from vision3d.results import StereoResult
from vision3d.types import Camera, StereoRig

if TYPE_CHECKING:
    from PIL import Image

    ImageLike = str | os.PathLike[str] | Image.Image | np.ndarray

__all__ = ["DEFAULT_STEREO_MODEL", "StereoResult", "load_stereo_model", "predict_stereo"]

DEFAULT_STEREO_MODEL = "covonet"
_FARTHEST = 0.05  # pixels of disparity below which a point is too far away for its depth to mean anything
FIT_RADIUS = 16  # pixels, of the planes that give normals to networks without
_CONSISTENT_PIXELS = 1.0  # tolerance of the left-right check, pixels of the network's input


def load_stereo_model(
    model: str | nn.Module | None = None,
    weights: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
) -> tuple[nn.Module, str, torch.device]:
    """The network, its name and the device it lies on.

    Args:
        model: a registered name (its default weights are loaded), a module, a file of ``vision3d export`` (it runs on
            the CPU), or None for the default network.
        weights: a checkpoint or a weight tag instead of the default weights; needs a name.
        device: None leaves a module where it is, and takes CUDA for a name where there is one.

    Raises:
        UnknownNameError, WeightsError: see ``create_model``. InputError: a model of another kind or an unknown device.
        FileFormatError, MissingExtraError: see ``vision3d.export.load_exported``.
    """
    if is_exported(model):
        return load_exported_model(str(model), weights, device, ("stereo", "normals"))
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


def is_exported(model: object) -> bool:
    """Whether ``model`` is the name of a file of ``vision3d export``."""
    return isinstance(model, (str, os.PathLike)) and str(model).endswith((".onnx", ".pt2"))


def load_exported_model(
    path: str, weights: object, device: str | torch.device | None, tasks: tuple[str, ...]
) -> tuple[nn.Module, str, torch.device]:
    """What ``load_stereo_model`` gives, of an exported file.

    Raises:
        InputError: weights, a device other than the CPU, or a task that is none of ``tasks``.
        FileFormatError, MissingExtraError: see ``vision3d.export.load_exported``.
    """
    from vision3d.export import load_exported

    if weights is not None:
        raise InputError(f"{path} holds its weights: leave --weights out, or export the network again with them")
    if device is not None and inference.choose_device(device).type != "cpu":
        raise InputError(f"{path}: exported files run on the CPU: leave --device out, or run the network by its name")
    network = load_exported(path, tasks)
    return network, f"{network.name} ({os.path.basename(path)})", torch.device("cpu")


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
    normals: bool = False,
) -> StereoResult:
    """Predict the disparity of a rectified stereo pair, with a calibration its depth, and its surface normals.

    Args:
        left, right: a path, a PIL image, or an array [H, W, 3] (uint8, or float in [0, 1]); of one size.
        model: a registered name, a module called as ``model(left, right)``, a file of ``vision3d export``, or None for
            the default network.
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
        normals: also for networks without normals: planes fitted to the disparity. Needs the calibration. Networks of
            the task "normals" (``dtnnet_tiny``) always answer normals.

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
    if normals and rig is None and not inference.takes_intrinsics(network):
        raise InputError("normals from the disparity need the calibration: pass calibration=... (--calib FILE)")
    result = _predict(network, views, rig, wanted, confidence, home, precision, check_memory)
    if normals and result.normals is None and rig is not None:
        fitted = fit_normals(result.disparity, rig.left, FIT_RADIUS, doffs=rig.doffs)
        result.normals, result.normals_source = np.asarray(fitted, dtype=np.float32), "disparity"
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
    eyes = rig if rig is not None or not inference.takes_intrinsics(network) else _nominal_rig(network, width, height)
    disparity, own, mirrored, normals = _run(network, views, scale, confidence, home, precision, eyes)
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
        warnings=_result_warnings(network, disparity, scale) + _normals_warnings(normals, rig, eyes),
        seconds=time.perf_counter() - start,
        scale=scale,
        normals=normals,
        normals_source="" if normals is None else "network",
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
    rig: StereoRig | None,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """Disparity of the left view, the network's own confidence, the right view's disparity, and the normals of the
    left view, all at full size."""
    height, width = views[0].shape[:2]
    size = inference.scaled_size(width, height, scale)
    small = [inference.resize_image(view, *size) for view in views]
    scaled = None if rig is None else rig.with_size(width, height).resized(*size)
    answer = inference.run_pass(network, small[0], small[1], device, precision, scaled)
    disparity, own, normals = answer.disparity, answer.confidence, answer.normals
    if normals is not None:
        camera = (rig or _nominal_rig(network, width, height)).left
        normals = turn_to_camera(inference.resize_normals(normals, width, height), camera)
    right = inference.run_mirrored(network, small[0], small[1], device, precision) if mirrored else None
    if disparity.shape == (height, width):
        return disparity, own, right, normals
    return (
        inference.resize_map(disparity, width, height, width / disparity.shape[1]),
        None if own is None else inference.resize_map(own, width, height),
        None if right is None else inference.resize_map(right, width, height, width / right.shape[1]),
        normals,
    )


def _nominal_rig(network: nn.Module, width: int, height: int) -> StereoRig:
    """Of pairs without calibration: 90 degrees wide, as IRS, unless the user has set the network's focal lengths."""
    fx, fy = (float(getattr(network, name, IRS_FOCAL_LENGTH)) for name in ("fx", "fy"))
    if fx == fy == IRS_FOCAL_LENGTH:
        fx = fy = width / 2
    camera = Camera(np.array([[fx, 0, (width - 1) / 2], [0, fy, (height - 1) / 2], [0, 0, 1.0]]), width, height)
    return StereoRig(camera, camera, 1.0)


def _normals_warnings(normals: np.ndarray | None, rig: StereoRig | None, eyes: StereoRig | None) -> list[str]:
    if normals is None or rig is not None or eyes is None:
        return []
    return [f"no calibration: the normals assume a focal length of {eyes.left.fx:g} px; pass it for true ones"]


def _depth(disparity: np.ndarray, rig: StereoRig | None) -> np.ndarray | None:
    if rig is None:
        return None
    depth = np.asarray(disparity_to_depth(disparity, rig), dtype=np.float32)
    depth[disparity + rig.doffs < _FARTHEST] = np.nan
    return depth


def _result_warnings(network: nn.Module, disparity: np.ndarray, scale: float) -> list[str]:
    finite = disparity[np.isfinite(disparity)]
    if finite.size == 0 and getattr(network, "stage_one_name", None) == "":
        return []  # normals alone
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
