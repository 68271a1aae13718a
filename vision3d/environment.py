# SPDX-License-Identifier: Apache-2.0
"""What this installation and machine offer: versions, processor, GPUs, extras, package data, and what is broken."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

CORE = {
    "torch": "torch",
    "numpy": "numpy",
    "opencv-python-headless": "cv2",
    "safetensors": "safetensors",
    "jsonargparse": "jsonargparse",
    "rich": "rich",
    "trimesh": "trimesh",
    "scipy": "scipy",
    "scikit-image": "skimage",
    "pooch": "pooch",
}
# The optional packages: import name -> (extra, what it is for).
EXTRAS = {
    "lightning": ("train", "training"),
    "albumentations": ("train", "colour augmentation"),
    "tensorboard": ("train", "training curves"),
    "open3d": ("3d", "fusion, registration and normals of point clouds"),
    "OpenEXR": ("exr", "EXR files"),
    "onnx": ("export", "ONNX export"),
    "onnxscript": ("export", "ONNX export"),
    "onnxruntime": ("export", "ONNX check"),
    "viser": ("view", "live viewer"),
}
OPEN3D_HINT = "needs the system library libusb-1.0 (Debian: apt-get install libusb-1.0-0)"
CPU_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")


def examine() -> dict[str, Any]:
    """The report: versions, machine, extras, package data, and the problems found, each with its mend."""
    import vision3d

    report: dict[str, Any] = {
        "vision3d": vision3d.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "location": str(Path(vision3d.__file__).parent),
    }
    problems: list[str] = []
    report["packages"] = {name: _core(name, module, problems) for name, module in CORE.items()}
    has_torch = report["packages"]["torch"] != "missing"
    report["cpu"] = _cpu(has_torch)
    report["cuda"] = _cuda() if has_torch else {"available": False, "built_for": None}
    report["extras"] = {module: _extra(module, *about) for module, about in EXTRAS.items()}
    report["data"] = _package_data(problems) if has_torch else {"folders": {}, "networks": 0, "weights": {}}
    if _version("opencv-python") and _version("opencv-python-headless"):
        problems.append(
            "opencv-python and opencv-python-headless are both installed and overwrite each other: "
            "pip uninstall opencv-python opencv-python-headless, then pip install opencv-python-headless"
        )
    report["problems"] = problems
    return report


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _failure(module: str) -> str | None:
    """Why ``module`` cannot be imported, in one line, or None. A broken binary may raise more than ImportError."""
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  a report must survive whatever a broken package raises
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _core(name: str, module: str, problems: list[str]) -> str:
    failure = _failure(module)
    if failure is None:
        return _version(name) or str(getattr(sys.modules[module], "__version__", "unknown"))
    problems.append(f'the package "{name}" cannot be imported ({failure}): pip install {name}')
    return "missing"


def _extra(module: str, extra: str, purpose: str) -> dict[str, Any]:
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    version = _version(module)
    entry: dict[str, Any] = {"extra": extra, "purpose": purpose, "version": version}
    if version is None:
        entry["mend"] = f'pip install "vision3d-zoo[{extra}]"'
        return entry
    failure = _failure(module)
    if failure is not None:
        entry["failure"] = failure
        entry["mend"] = OPEN3D_HINT if module == "open3d" else f'pip install --force-reinstall "{module}"'
    return entry


def _cpu(has_torch: bool) -> dict[str, Any]:
    model, flags = _cpuinfo()
    report = {
        "model": model or platform.processor() or platform.machine(),
        "features": [flag for flag in CPU_FLAGS if flag in flags],
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(("OMP_", "MKL_"))},
        "torch_capability": None,
        "threads": None,
    }
    if has_torch:
        import torch

        report["torch_capability"] = torch.backends.cpu.get_cpu_capability()
        report["threads"] = torch.get_num_threads()
    return report


def _cpuinfo() -> tuple[str, set[str]]:
    """The model name and flags of the first core, where the system tells them (Linux)."""
    model, flags = "", set[str]()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return model, flags
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and not model:
            model = value.strip()
        if key.strip().lower() in ("flags", "features") and not flags:
            flags = set(value.split())
    return model, flags


def _cuda() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {"available": False, "built_for": torch.version.cuda}
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "available": True,
        "built_for": torch.version.cuda,
        "devices": [
            {
                "name": device.name,
                "memory_gib": round(device.total_memory / 2**30, 1),
                "capability": f"{device.major}.{device.minor}",
            }
            for device in devices
        ],
    }


def _package_data(problems: list[str]) -> dict[str, Any]:
    """Whether the cards, recipes and weights are there and whole."""
    from vision3d.errors import Vision3DError
    from vision3d.registry import registered_models
    from vision3d.resources import resource_folder
    from vision3d.zoo import load_card

    folders = {}
    for kind in ("models", "datasets", "configs"):
        folder = resource_folder(kind)
        folders[kind] = str(folder) if folder.is_dir() else None
        if folders[kind] is None:
            problems.append(f"the folder {folder} is missing: reinstall vision3d-zoo")
    weights: dict[str, str] = {}
    for name in registered_models():
        try:
            card = load_card(name)
        except Vision3DError as error:
            problems.append(f"{name}: {error}")
            continue
        for entry in card.weights:
            weights[entry.name] = _checksum_state(entry.file, entry.sha256)
            if weights[entry.name] != "ok":
                problems.append(f"{entry.file}: the weights are {weights[entry.name]}: reinstall vision3d-zoo")
    return {"folders": folders, "networks": len(registered_models()), "weights": weights}


def _checksum_state(path: Path, sha256: str) -> str:
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "missing"
    return "ok" if digest == sha256 else "damaged"
