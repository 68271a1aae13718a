# SPDX-License-Identifier: Apache-2.0
"""Running a stereo network on one pair of any size: scale, pad, undo, mirrored pass, memory estimate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import nn

from vision3d.errors import InputError
from vision3d.types import StereoOutput, StereoRig

DEFAULT_SIZE_MULTIPLE = 64  # for modules that are not of the zoo
DEFAULT_MAX_DISPARITY = 192
DEFAULT_BYTES_PER_PIXEL = 1500.0  # peak memory of a pass a padded pixel, without the weights
# Peak host memory of what follows the passes, a full-size pixel: maps, pictures, a cloud of every pixel with normals,
# its files and the page. Measured at 2000x1500 with a cloud of all pixels: 102 (PLY), 75 (GLB), 45 (page alone).
RESULT_BYTES_PER_PIXEL = 120.0
_QUICK_SIDE = 320  # longer side of the quick pass of scale="auto", pixels
_MIN_SCALE = 1e-3
_COMFORTABLE = 0.8  # share of the free memory that a proposed scale may take


@lru_cache(maxsize=2)
def cached_model(name: str, device: torch.device) -> nn.Module:
    """The shipped network ``name`` with its default weights on ``device``, kept for the next call."""
    from vision3d.zoo import create_model

    return create_model(name, pretrained=True).to(device)


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device asked for; for None, the first CUDA device where there is one, else the CPU.

    Raises:
        InputError: an unknown device, or CUDA where there is none.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"unknown device '{device}': use cpu, cuda or cuda:N") from error
    if chosen.type not in ("cpu", "cuda", "mps"):
        raise InputError(f"device '{device}' is not supported: use cpu, cuda or cuda:N")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device '{device}' was asked for, but this machine has no usable CUDA device: use cpu")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device '{device}' does not exist: this machine has {torch.cuda.device_count()} CUDA devices")
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise InputError(f"device '{device}' was asked for, but this machine has none: use cpu")
    return chosen


def model_name(model: nn.Module) -> str:
    """The name that a network of the zoo carries, else its class name."""
    return str(getattr(model, "name", None) or type(model).__name__)


def size_multiple(model: nn.Module) -> int:
    """The multiple that image sizes are padded to for this network."""
    return int(_trait(model, "size_multiple", DEFAULT_SIZE_MULTIPLE))


def resize_normals(normals: np.ndarray, width: int, height: int) -> np.ndarray:
    """Resample unit normals [H, W, 3] bilinearly and bring them to unit length again; NaN where unknown or opposed."""
    if normals.shape[:2] == (height, width):
        return normals
    parts = [resize_map(np.ascontiguousarray(normals[..., axis]), width, height) for axis in range(3)]
    resized = np.stack(parts, axis=-1)
    length = np.linalg.norm(resized, axis=-1, keepdims=True)
    length[~(length > 1e-3)] = np.nan
    return np.asarray(resized / length, dtype=np.float32)


def max_disparity(model: nn.Module) -> int:
    """The largest disparity that the network can answer, pixels of its input."""
    return int(_trait(model, "max_disparity", DEFAULT_MAX_DISPARITY))


def bytes_per_pixel(model: nn.Module) -> float:
    """Peak memory of one pass divided by the number of padded pixels (measured for the networks that say it)."""
    return float(_trait(model, "bytes_per_pixel", DEFAULT_BYTES_PER_PIXEL))


def _trait(model: nn.Module, name: str, default: float) -> float:
    value = getattr(model, name, None)
    return default if value is None else value


def scaled_size(width: int, height: int, scale: float) -> tuple[int, int]:
    """(width, height) of the image that the network sees."""
    return max(1, round(width * scale)), max(1, round(height * scale))


def resize_image(image: np.ndarray, width: int, height: int) -> np.ndarray:
    """Resample [H, W, 3] uint8 with anti-aliasing: area averages when shrinking, cubic when enlarging."""
    if image.shape[:2] == (height, width):
        return image
    shrinking = width <= image.shape[1] and height <= image.shape[0]
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if shrinking else cv2.INTER_CUBIC)


def resize_map(values: np.ndarray, width: int, height: int, factor: float = 1.0) -> np.ndarray:
    """Resample a map [H, W] bilinearly to ``height`` x ``width``; its values are multiplied by ``factor``.

    Pixels that are not finite take no part: a new pixel is the weighted mean of its known neighbours, and unknown (NaN)
    where these have less than half of the weight.
    """
    known = np.isfinite(values)
    if known.all():
        resized = cv2.resize(values, (width, height), interpolation=cv2.INTER_LINEAR)
        return np.asarray(resized * np.float32(factor), dtype=np.float32)
    weight = cv2.resize(known.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    resized = cv2.resize(np.where(known, values, np.float32(0)), (width, height), interpolation=cv2.INTER_LINEAR)
    weight[weight < 0.5 - 1e-6] = np.nan
    return np.asarray(resized / weight * np.float32(factor), dtype=np.float32)


def available_memory(device: torch.device, meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Free bytes on the device, or None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, _control_group_memory())
    except (OSError, ValueError, IndexError):
        return None
    return None


def _control_group_memory(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """Free bytes below the limit of the container, or a huge number where there is none."""
    try:
        limit = int((folder / "memory.max").read_text(encoding="ascii"))
        return max(0, limit - int((folder / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return 2**62


def weight_bytes(model: nn.Module) -> int:
    """Bytes of the network's parameters and buffers."""
    return sum(item.numel() * item.element_size() for item in (*model.parameters(), *model.buffers()))


def estimate_memory(model: nn.Module, width: int, height: int) -> int:
    """Estimated peak bytes of one pass over images of ``width`` x ``height``, with the network's weights."""
    multiple = size_multiple(model)
    pixels = math.ceil(width / multiple) * math.ceil(height / multiple) * multiple**2
    return int(pixels * bytes_per_pixel(model)) + weight_bytes(model)


def memory_needs(
    model: nn.Module, width: int, height: int, scale: float, device: torch.device
) -> dict[torch.device, int]:
    """Estimated peak bytes on each device for a pair of ``width`` x ``height`` from its passes to its files.

    The passes see images reduced by ``scale``; maps, cloud and page have the full size and lie in the host's memory.
    """
    passes = estimate_memory(model, *scaled_size(width, height, scale))
    results = int(width * height * RESULT_BYTES_PER_PIXEL)
    if device.type == "cpu":
        return {device: max(passes, results + weight_bytes(model))}
    return {device: passes, torch.device("cpu"): results}


def check_memory(model: nn.Module, width: int, height: int, scale: float, device: torch.device) -> None:
    """Raise InputError, with the estimate and a scale that fits, if a pair would not fit into the free memory."""
    short = _shortage(model, width, height, scale, device)
    if short is None:
        return
    needed, free = (f"{figure / 1e9:.1f} GB" for figure in short)
    mend = largest_scale(model, width, height, device)
    if mend is None:
        reduce = "no scale makes the full-size results fit: reduce the images and their calibration before"
    else:
        reduce = f"reduce them (--scale {mend:g}, or scale={mend:g})"
    raise InputError(
        f"images of {width}x{height} at scale {scale:g} need about {needed} of memory with {model_name(model)}, "
        f"{free} are free: {reduce}, or force the run (--force, or check_memory=False)"
    )


def largest_scale(model: nn.Module, width: int, height: int, device: torch.device) -> float | None:
    """The largest of the usual scales (1, 1/2, 1/4, ...) that fits well into the free memory; None if none does."""
    scale = 1.0
    while scale > _MIN_SCALE:
        if _shortage(model, width, height, scale, device, _COMFORTABLE) is None:
            return scale
        scale /= 2
    return None


def _shortage(
    model: nn.Module, width: int, height: int, scale: float, device: torch.device, share: float = 1.0
) -> tuple[int, int] | None:
    """(needed, usable) bytes of the first device where a pair would take more than ``share`` of the free memory."""
    home = next((item.device for item in model.parameters()), device)
    for place, needed in memory_needs(model, width, height, scale, device).items():
        free = available_memory(place)
        loaded = weight_bytes(model) if home.type == place.type else 0  # needed, but no longer free
        if free is not None and needed - loaded > share * free:
            return needed, free + loaded
    return None


def checked_scale(scale: object) -> float:
    """The scale as a number; InputError unless it lies in (0, 4]."""
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not _MIN_SCALE <= scale <= 4:
        raise InputError(f'scale is {scale!r}: pass a number between {_MIN_SCALE} and 4 (0.5 = half size), or "auto"')
    return float(scale)


def automatic_scale(
    model: nn.Module, left: np.ndarray, right: np.ndarray, device: torch.device, precision: str
) -> float:
    """A scale at which the disparities fit the network's range and the images fit the memory.

    A quick pass over a small copy finds the range: where 1.1 times its 99th percentile exceeds the network's largest
    disparity, the images are reduced by that ratio.
    """
    height, width = left.shape[:2]
    quick = min(1.0, _QUICK_SIDE / max(width, height))
    small = [resize_image(image, *scaled_size(width, height, quick)) for image in (left, right)]
    disparity, _ = run_network(model, small[0], small[1], device, precision)
    found = disparity[np.isfinite(disparity)]
    scale = 1.0
    if found.size:
        reach = 1.1 * float(np.percentile(found, 99)) * width / small[0].shape[1]
        scale = max(quick, min(1.0, max_disparity(model) / max(reach, 1e-6)))
    fitting = scale
    while fitting > _MIN_SCALE:
        if _shortage(model, width, height, fitting, device, _COMFORTABLE) is None:
            return fitting
        fitting *= 0.8
    return scale


@dataclass
class PassAnswer:
    """What one pass gave, at the size of its images.

    Attributes:
        disparity: [H, W] float32, NaN where the network gives no finite number.
        confidence: [H, W] float32 of the network itself, or None.
        normals: [H, W, 3] float32, or None for networks without.
    """

    disparity: np.ndarray
    confidence: np.ndarray | None = None
    normals: np.ndarray | None = None


def takes_intrinsics(model: nn.Module) -> bool:
    """Whether the network is called as ``model(left, right, intrinsics, doffs)`` (the task "normals")."""
    return callable(getattr(model, "set_focal_length", None))


def run_network(
    model: nn.Module, left: np.ndarray, right: np.ndarray, device: torch.device, precision: str = "float32"
) -> tuple[np.ndarray, np.ndarray | None]:
    """One pass: disparity [H, W] float32 (NaN where the network gives no finite number) and its own confidence.

    Args:
        left, right: [H, W, 3] uint8 RGB of one size; they are padded to the network's multiple and cut back.
    """
    answer = run_pass(model, left, right, device, precision)
    return answer.disparity, answer.confidence


def run_pass(
    model: nn.Module,
    left: np.ndarray,
    right: np.ndarray,
    device: torch.device,
    precision: str = "float32",
    rig: StereoRig | None = None,
) -> PassAnswer:
    """One pass with everything that the network answers.

    Args:
        left, right: [H, W, 3] uint8 RGB of one size; they are padded to the network's multiple and cut back.
        rig: of images of this size, for networks that :func:`takes_intrinsics`; padding moves its principal point.
    """
    from vision3d.ops import pad_to_multiple

    with evaluating(model), torch.inference_mode():
        padded_left, padding = pad_to_multiple(to_tensor(left, device), size_multiple(model))
        padded_right, _ = pad_to_multiple(to_tensor(right, device), size_multiple(model))
        camera: tuple[torch.Tensor, ...] = ()
        if rig is not None and takes_intrinsics(model):
            matrix = rig.left.cropped(-padding.left, -padding.top, *padded_left.shape[:1:-1]).intrinsics
            values = (matrix[None], np.array([rig.doffs]))
            camera = tuple(torch.from_numpy(item).to(device, torch.float32) for item in values)
        with autocast(device, precision):
            answer = model(padded_left, padded_right, *camera)
        disparity, confidence = _parse(answer, padded_left)
        normals = answer.normals if isinstance(answer, StereoOutput) else None
        maps = [
            None if item is None else padding.undo(item.float())[0].permute(1, 2, 0).cpu().numpy()
            for item in (disparity, confidence, normals)
        ]
    found = np.ascontiguousarray(maps[0][..., 0], dtype=np.float32)  # type: ignore[index]
    found[~np.isfinite(found)] = np.nan
    own = None if maps[1] is None else np.ascontiguousarray(maps[1][..., 0], dtype=np.float32)
    return PassAnswer(found, own, None if maps[2] is None else np.ascontiguousarray(maps[2], dtype=np.float32))


def run_mirrored(
    model: nn.Module, left: np.ndarray, right: np.ndarray, device: torch.device, precision: str = "float32"
) -> np.ndarray:
    """Disparity of the RIGHT view [H, W] (``x_left = x_right + d``): both views mirrored and exchanged."""
    mirrored = [image[:, ::-1].copy() for image in (right, left)]
    disparity, _ = run_network(model, mirrored[0], mirrored[1], device, precision)
    return disparity[:, ::-1].copy()


def to_tensor(image: np.ndarray, device: torch.device) -> torch.Tensor:
    """[H, W, 3] uint8 as [1, 3, H, W] float32 in [0, 1] on the device."""
    tensor = torch.from_numpy(np.require(image, requirements=("C", "W"))).to(device)
    return tensor.permute(2, 0, 1)[None].float().div_(255.0).contiguous()


def _parse(answer: Any, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Disparity and confidence [1, 1, H, W] of what a network returned."""
    confidence = answer.confidence if isinstance(answer, StereoOutput) else None
    disparity = answer.disparity if isinstance(answer, StereoOutput) else answer
    if isinstance(disparity, (list, tuple)) and disparity:
        disparity = disparity[0]
    if isinstance(disparity, torch.Tensor) and disparity.ndim == 3:
        disparity = disparity[:, None]
    expected = (1, 1, *image.shape[-2:])
    if not isinstance(disparity, torch.Tensor) or tuple(disparity.shape) != expected:
        shape = tuple(disparity.shape) if isinstance(disparity, torch.Tensor) else type(disparity).__name__
        raise InputError(f"the model returned {shape} instead of a disparity map {expected}: return a StereoOutput")
    return disparity, confidence


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and the former mode again afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


def autocast(device: torch.device, precision: str) -> Any:
    """The context of a pass in float32, bfloat16 or float16.

    Raises:
        InputError: another precision.
    """
    kinds = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if precision not in kinds:
        raise InputError(f"unknown precision '{precision}': use {', '.join(kinds)}")
    dtype = kinds[precision]
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
