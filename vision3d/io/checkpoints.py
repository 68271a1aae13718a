# SPDX-License-Identifier: Apache-2.0
"""Reading checkpoints safely, whoever wrote them, and loading them with messages that name what does not fit."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vision3d.errors import WeightsError

StateDict = dict[str, torch.Tensor]
Identify = Callable[[Mapping[str, torch.Tensor]], object | None]

_WRAPPERS = ("model", "state_dict", "model_state", "model_state_dict")
_PREFIXES = ("module.", "model.", "_orig_mod.")
_SHOWN = 4


def read_checkpoint(path: str | Path) -> StateDict:
    """Read the state dict of a ``.safetensors`` file or of a PyTorch checkpoint, on the CPU, without running its code.

    Wrapping dictionaries and a leading ``module.`` are removed (see :func:`unwrap_state_dict`).

    Raises:
        WeightsError: the file is missing, damaged, holds pickled code, or holds no tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"{path}: no such weights file: check the path")
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    try:
        return unwrap_state_dict(content)
    except WeightsError as error:
        raise WeightsError(f"{path}: {error}") from error


def _read_safetensors(path: Path) -> StateDict:
    import safetensors
    import safetensors.torch

    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{path}: not a whole safetensors file ({error}): fetch it again") from error


def _numpy_scalars() -> list[Any]:
    """What a pickled NumPy number (``best_EPE`` of many checkpoints) consists of; none of it runs code."""
    scalar = np.float64(0).__reduce__()[0]
    kinds = [type(np.dtype(kind)) for kind in ("f4", "f8", "i4", "i8", "?")]
    return [(scalar, "numpy.core.multiarray.scalar"), (scalar, "numpy._core.multiarray.scalar"), np.dtype, *kinds]


def _read_torch(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals(_numpy_scalars()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below says it in one line
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "Unsupported global" in str(error) or "unsupported GLOBAL" in str(error):
            raise WeightsError(
                f"{path}: holds pickled code, which opening it would run: ask for a safetensors file, or save its "
                "state_dict alone where you trust the file"
            ) from error
        raise WeightsError(f"{path}: not a PyTorch checkpoint: fetch it again") from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise WeightsError(f"{path}: not a whole PyTorch checkpoint ({reason}): fetch it again") from error


def unwrap_state_dict(content: object) -> StateDict:
    """Return the bare state dict inside a checkpoint.

    Outer dictionaries (``model``, ``state_dict`` ...) are opened, entries that are not tensors are dropped, and the
    prefixes that wrappers add (``module.`` on any entry; ``model.`` or ``_orig_mod.`` if on every entry) are removed.

    Raises:
        WeightsError: there are no tensors.
    """
    while isinstance(content, Mapping):
        inner = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    tensors = content.items() if isinstance(content, Mapping) else ()
    state_dict = {str(name): value for name, value in tensors if isinstance(value, torch.Tensor)}
    if not state_dict:
        raise WeightsError("the checkpoint holds no tensors: pass a state dict, or a file that holds one")
    state_dict = {name.removeprefix("module."): value for name, value in state_dict.items()}
    while prefix := next((p for p in _PREFIXES if all(name.startswith(p) for name in state_dict)), None):
        state_dict = {name.removeprefix(prefix): value for name, value in state_dict.items()}
    return state_dict


def load_into(model: nn.Module, state_dict: Mapping[str, torch.Tensor], identify: Identify | None = None) -> None:
    """Load a bare state dict strictly; only ``num_batches_tracked`` may be missing.

    Args:
        identify: tells which network a state dict belongs to (what to print as the mend), or None if it cannot.

    Raises:
        WeightsError: names are missing or unexpected, or shapes differ (the first few are listed), or values are not
            finite. Nothing is loaded.
    """
    own = model.state_dict()
    missing = [name for name in own if name not in state_dict and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in state_dict if name not in own]
    reshaped = [
        f"{name} {list(state_dict[name].shape)} instead of {list(own[name].shape)}"
        for name in own
        if name in state_dict and state_dict[name].shape != own[name].shape
    ]
    if missing or unexpected or reshaped:
        found = None if identify is None else identify(state_dict)
        mend = f"they fit {found}" if found else "choose the network they were trained with"
        kinds = (("missing", missing), ("unexpected", unexpected), ("of another shape", reshaped))
        reasons = "; ".join(_listed(kind, names) for kind, names in kinds if names)
        raise WeightsError(f"the weights are not those of {type(model).__name__}: {reasons}: {mend}")
    for name, value in state_dict.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise WeightsError(f"'{name}' holds values that are not finite: take weights of a training that went well")
    model.load_state_dict(state_dict, strict=False)


def _listed(kind: str, names: Iterable[str]) -> str:
    names = list(names)
    more = ", ..." if len(names) > _SHOWN else ""
    return f"{len(names)} {kind} ({', '.join(names[:_SHOWN])}{more})"
