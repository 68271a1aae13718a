# SPDX-License-Identifier: Apache-2.0
"""Energy used by this machine, where it can tell: GPUs by NVML, processor packages by RAPL."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

RAPL = Path("/sys/class/powercap")


class EnergyMeter:
    """Energy between its making and ``joules()``.

    Args:
        device: a CUDA device is read by NVML (package nvidia-ml-py; the counter moves every 20 to 100 ms); anything
            else by RAPL (all packages of the machine, so all processes on it; memory and fans not included).
        rapl: where Linux lists the counters.

    Attributes:
        source: what is measured.
        missing: why nothing can be measured, or None.
    """

    def __init__(self, device: torch.device, rapl: Path = RAPL) -> None:
        self.missing: str | None = None
        self._handle: Any = None
        self._counters: list[tuple[Path, int, int]] = []
        if device.type == "cuda":
            self.source = "GPU board (NVML)"
            self._start_nvml(device)
        else:
            self.source = "processor packages (RAPL)"
            self._start_rapl(rapl)

    def _start_nvml(self, device: torch.device) -> None:
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            identity = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(identity)
            self._first = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except ImportError:
            self.missing = "NVML needs the package nvidia-ml-py"
        except (RuntimeError, AttributeError, OSError) as error:
            self.missing = f"NVML: {error}"
        except Exception as error:
            if type(error).__module__ != "pynvml":
                raise
            self.missing = f"NVML: {error}"

    def _start_rapl(self, folder: Path) -> None:
        zones = sorted(folder.glob("intel-rapl:[0-9]*"))
        packages = [zone for zone in zones if zone.name.count(":") == 1]
        try:
            for zone in packages:
                limit = int((zone / "max_energy_range_uj").read_text())
                self._counters.append((zone / "energy_uj", int((zone / "energy_uj").read_text()), limit))
        except (OSError, ValueError) as error:
            self.missing = f"RAPL cannot be read ({error})"
        if not packages:
            self.missing = f"no RAPL counters in {folder} (virtual machines have none)"

    def joules(self) -> float | None:
        """Energy since the meter was made, in joules; None if it cannot be measured."""
        if self.missing is not None:
            return None
        if self._handle is not None:
            return (self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) - self._first) / 1e3
        total = 0
        for path, first, limit in self._counters:
            total += (int(path.read_text()) - first) % (limit + 1)  # the counter wraps
        return total / 1e6
