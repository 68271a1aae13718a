# SPDX-License-Identifier: Apache-2.0
"""Predict the depth of a panorama: a file or an array in, a result out (check, resize, run, undo).

Example:
    >>> from vision3d import predict_panorama  # doctest: +SKIP
    >>> result = predict_panorama("room.jpg")  # doctest: +SKIP
    >>> result.save("out")  # doctest: +SKIP
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from vision3d import inference
from vision3d.checks import describe_input
from vision3d.datasets.depth_units import unit_warning
from vision3d.errors import InputError, check_options
from vision3d.geometry.panorama_mesh import faces_to_panorama, level_of, panorama_to_faces
from vision3d.geometry.panorama_surface import resize_panorama_depth
from vision3d.panorama_checks import CheckedPanorama, check_panorama_image
from vision3d.panorama_results import PanoramaResult
from vision3d.pipelines import is_exported, load_exported_model, load_stereo_model
from vision3d.types import DepthOutput

if TYPE_CHECKING:
    from PIL import Image

    ImageLike = str | os.PathLike[str] | Image.Image | np.ndarray

__all__ = ["DEFAULT_PANORAMA_MODEL", "PanoramaResult", "load_panorama_model", "predict_panorama"]

DEFAULT_PANORAMA_MODEL = "panoramadepth_tiny"  # of upright panoramas the most accurate
_MESH_MODEL = "spheredepth_tiny"  # where its level or texture is asked for
_PLANAR_HEIGHT = 256  # rows of the images of networks without a mesh
_PAINTED_HEIGHT = 1024  # rows at most that faces are painted on; larger maps are enlarged from it


def load_panorama_model(
    model: str | nn.Module | None = None,
    weights: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    *,
    level: int | None = None,
    texture: int | None = None,
) -> tuple[nn.Module, str, torch.device]:
    """The network, its name and the device it lies on; arguments as of :func:`predict_panorama`.

    Raises:
        InputError: a network of another task, an unknown device, or settings beside a module.
        UnknownNameError, ConfigError, WeightsError: see ``create_model``; weights of another ``texture`` do not fit.
    """
    from vision3d.registry import find_model
    from vision3d.zoo import create_model

    settings = {name: value for name, value in (("level", level), ("texture", texture)) if value is not None}
    default = _MESH_MODEL if settings else DEFAULT_PANORAMA_MODEL
    chosen = default if model is None else model
    if is_exported(chosen):
        if settings:
            raise InputError("an exported network keeps the level and texture it was exported with: leave them out")
        return load_exported_model(str(chosen), weights, device, ("panorama",))
    if isinstance(chosen, nn.Module):
        if settings:
            raise InputError("level and texture go with the name of a network: set them when it is created")
        return load_stereo_model(chosen, weights, device)
    if isinstance(chosen, str) and find_model(chosen.partition(".")[0]).task != "panorama":
        raise InputError(f"{chosen} is no network for panoramas: choose one of 'vision3d models --task panorama'")
    if not settings:
        return load_stereo_model(chosen, weights, device)
    check_options(chosen, find_model(chosen.partition(".")[0]).build, settings)
    home = inference.choose_device(device)
    source: Any = True if weights is None and "." not in chosen else weights if weights is not None else False
    return create_model(chosen, pretrained=source, **settings).to(home), chosen, home


def predict_panorama(
    image: ImageLike,
    model: str | nn.Module | None = None,
    *,
    weights: str | os.PathLike[str] | None = None,
    level: int | None = None,
    texture: int | None = None,
    height: int | None = None,
    device: str | torch.device | None = None,
    precision: str = "float32",
    check_image: bool = True,
) -> PanoramaResult:
    """Predict the distance of everything that an equirectangular panorama shows.

    Args:
        image: a path, a PIL image, or an array [H, 2H, 3] (uint8, or float in [0, 1]); any size. What is done about
            other shapes and black caps: :func:`vision3d.panorama_checks.check_panorama_image`.
        model: a registered name, a module called as ``model(image)``, or None: panoramadepth_tiny, or spheredepth_tiny
            where a level or texture is given.
        weights: a checkpoint or a weight tag instead of the default weights; needs a name.
        level, texture: of networks on a mesh: other settings than the usual ones. Weights of one level serve others,
            less accurately.
        height: rows of the image that the network sees; None: as dense as its mesh, 256 for networks without.
        device: ``"cpu"``, ``"cuda"``, ...; None takes CUDA where there is one.
        precision: ``"float32"``, ``"bfloat16"`` or ``"float16"`` (autocast).
        check_image: refuse pictures that cannot be panoramas.

    Returns:
        PanoramaResult with maps at the size of the (whole) panorama.

    Raises:
        ImageError: a file that cannot be used. InputError: no panorama, a wrong option, or images too large for the
        memory. UnknownNameError, ConfigError, WeightsError: see ``create_model``.
    """
    from vision3d.io.images import as_image, count_channels

    checked = check_panorama_image(as_image(image), describe_input(image, "panorama"), strict=check_image)
    channels = count_channels(image)
    if channels < 3:
        checked.warnings.append("the picture is grey: the network was trained on colours")
    if channels in (2, 4):
        checked.warnings.append("the alpha channel was left out")
    network, name, home = load_panorama_model(model, weights, device, level=level, texture=texture)
    result = run_panorama(network, checked, home, height=height, precision=precision)
    result.model = name
    if isinstance(image, (str, os.PathLike)):
        result.files = {"image": os.fspath(image)}
    return result


def network_height(network: nn.Module, height: int | None = None) -> int:
    """Rows of the image that a network shall see, a multiple of what it takes.

    Raises:
        InputError: a height below 1, or not the only one that an exported network sees.
    """
    fixed = getattr(network, "fixed_height", None)
    if fixed is not None:
        if height not in (None, fixed):
            raise InputError(f"height is {height}, the exported network sees {fixed} rows alone: leave --height out")
        return int(fixed)
    if height is not None and height < 1:
        raise InputError(f"height is {height}: pass a positive number of rows")
    if height is None:
        height = (_mesh_height(network) or _PLANAR_HEIGHT) * 2 ** int(getattr(network, "texture", 0))
    multiple = inference.size_multiple(network)
    return -(-height // multiple) * multiple


def _mesh_height(network: nn.Module) -> int:
    """Rows of the panorama that is as dense as the mesh that the convolutions of a network run on; 0: it has none."""
    level = getattr(network, "level", None)
    return 0 if level is None else 2 ** (int(level) + 2)


def run_panorama(
    network: nn.Module,
    checked: CheckedPanorama,
    device: torch.device,
    *,
    height: int | None = None,
    precision: str = "float32",
) -> PanoramaResult:
    """The result of a checked panorama; see :func:`predict_panorama`."""
    rows, seen = checked.image.shape[0], network_height(network, height)
    free = inference.available_memory(device)
    mesh = _mesh_height(network)
    needed = inference.estimate_memory(network, 2 * max(seen, mesh), max(seen, mesh))
    if free is not None and needed > free + inference.weight_bytes(network):
        raise InputError(
            f"a pass needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} are free: pass a lower "
            f"{'height' if seen > mesh else 'level'}"
        )
    start = time.perf_counter()
    depth, faces = _pass(network, inference.resize_image(checked.image, 2 * seen, seen), device, precision)
    seconds = time.perf_counter() - start
    if faces is not None:
        depth = faces_to_panorama(faces, min(rows, _PAINTED_HEIGHT))
        faces = np.where(panorama_to_faces(checked.known, level_of(len(faces)), nearest=True), faces, np.nan)
    depth = np.where(checked.known, resize_panorama_depth(depth, rows), np.float32(np.nan))
    warnings = [*checked.warnings, *_answer_warnings(network, depth)]
    return PanoramaResult(depth, checked.image, faces, warnings, seconds, height=seen)


def _pass(
    network: nn.Module, image: np.ndarray, device: torch.device, precision: str
) -> tuple[np.ndarray, np.ndarray | None]:
    """Depth [h, 2h] and faces [F] of one pass; NaN where the network gives no finite positive number."""
    with inference.evaluating(network), torch.inference_mode(), inference.autocast(device, precision):
        answer = network(inference.to_tensor(image, device))
    depth = answer.depth if isinstance(answer, DepthOutput) else answer
    if not isinstance(depth, torch.Tensor) or tuple(depth.shape) != (1, 1, *image.shape[:2]):
        shape = tuple(depth.shape) if isinstance(depth, torch.Tensor) else type(depth).__name__
        raise InputError(f"the model returned {shape} instead of a depth map {(1, 1, *image.shape[:2])}")
    faces = answer.faces if isinstance(answer, DepthOutput) else None
    found = [None if item is None else item[0].float().cpu().numpy() for item in (depth[:, 0], faces)]
    known = [None if item is None else np.where(np.isfinite(item) & (item > 0), item, np.nan) for item in found]
    return known[0], known[1]  # type: ignore[return-value]


def _answer_warnings(network: nn.Module, depth: np.ndarray) -> list[str]:
    finite = depth[np.isfinite(depth)]
    if finite.size == 0:
        return ["the network gave no finite depth: its weights do not fit or the picture is not usable"]
    warning = unit_warning([depth])
    found = [] if warning is None else [warning]
    limit = getattr(network, "max_depth", None)
    if limit is not None and np.mean(finite > 0.97 * limit) > 0.05:
        found.append(f"depths reach the network's limit of {limit:g} m: what is farther away is shown too near")
    return found
