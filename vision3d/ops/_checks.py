# SPDX-License-Identifier: Apache-2.0
"""Argument checks shared by the ops: one-line errors that name the shapes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from vision3d.errors import InputError


def shape_text(tensor: torch.Tensor) -> str:
    """``[2, 32, 48, 96]``: the shape as it is written in messages."""
    return str(list(tensor.shape))


def check_map(op: str, name: str, tensor: torch.Tensor) -> None:
    """Raise InputError unless the tensor is a floating [B, C, H, W]."""
    if tensor.dim() != 4:
        raise InputError(f"{op}: {name} must be [B, C, H, W], got shape {shape_text(tensor)}")
    if not tensor.is_floating_point():
        raise InputError(
            f"{op}: {name} must be a floating-point tensor, got {tensor.dtype} of shape {shape_text(tensor)}"
        )


def check_pair(op: str, left: torch.Tensor, right: torch.Tensor) -> None:
    """Raise InputError unless both are [B, C, H, W] feature maps of one shape and on one device."""
    for name, tensor in (("left", left), ("right", right)):
        check_map(op, name, tensor)
    if left.shape != right.shape:
        raise InputError(
            f"{op}: left {shape_text(left)} and right {shape_text(right)} differ: both views need the same shape"
        )
    if left.device != right.device:
        raise InputError(f"{op}: left is on {left.device} and right on {right.device}: move them to one device")


def check_positive(op: str, name: str, value: int, minimum: int = 1) -> None:
    """Raise InputError unless the integer is at least ``minimum``."""
    if value < minimum:
        raise InputError(f"{op}: {name} must be at least {minimum}, got {value}")


def check_choice(op: str, name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise InputError unless the value is one of the choices."""
    if value not in choices:
        raise InputError(f"{op}: {name} must be one of {', '.join(choices)}, got '{value}'")


def without_autocast(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """A context in which autocast does not change types; nothing at all where autocast is off (keeps exports plain)."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, else float32: the type in which coordinates and disparities are computed."""
    return torch.promote_types(dtype, torch.float32)
