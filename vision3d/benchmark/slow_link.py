# SPDX-License-Identifier: Apache-2.0
"""Slow links on one machine: network namespaces whose interfaces are limited by ``tc tbf`` (Linux, root)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType

from vision3d.errors import InputError

_INTERFACE = "link0"


class SlowLinks:
    """One namespace a process, joined by a bridge; each link has the same rate both ways.

    Args:
        processes: 2 to 200.
        megabits: rate of each link in Mbit/s.

    Use as a context; everything is removed at its end.

    Raises:
        InputError: the tools or the rights are missing; ``available()`` says so beforehand.
    """

    def __init__(self, processes: int, megabits: float) -> None:
        self.processes, self.megabits = processes, megabits
        self.prefix = f"v3d{os.getpid()}"

    @staticmethod
    def missing() -> str | None:
        """Why this machine cannot make such links, or None."""
        if os.name != "posix" or os.geteuid() != 0:
            return "network namespaces need root"
        absent = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
        return f"no command {absent[0]} (package iproute2)" if absent else None

    @property
    def interface(self) -> str:
        """The interface of a process, for ``GLOO_SOCKET_IFNAME``."""
        return _INTERFACE

    def address(self, rank: int) -> str:
        """The address of a process."""
        return f"10.77.0.{rank + 1}"

    def command(self, rank: int, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` in the namespace of a process."""
        return ["ip", "netns", "exec", f"{self.prefix}_{rank}", *command]

    def _run(self, *words: str) -> None:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(
                f"{' '.join(words)}: {done.stderr.strip() or done.returncode}: this machine has no slow links"
            )

    def __enter__(self) -> SlowLinks:
        try:
            self._build()
        except InputError:
            self._remove()
            raise
        return self

    def _build(self) -> None:
        middle = f"{self.prefix}_m"
        self._run("ip", "netns", "add", middle)
        self._run("ip", "-n", middle, "link", "add", "bridge0", "type", "bridge")
        self._run("ip", "-n", middle, "link", "set", "bridge0", "up")
        limit = ["root", "tbf", "rate", f"{self.megabits}mbit", "burst", "128kb", "latency", "400ms"]
        for rank in range(self.processes):
            own, port = f"{self.prefix}_{rank}", f"port{rank}"
            self._run("ip", "netns", "add", own)
            pair = ["type", "veth", "peer", "name", port, "netns", middle]
            self._run("ip", "-n", own, "link", "add", _INTERFACE, *pair)
            self._run("ip", "-n", middle, "link", "set", port, "master", "bridge0", "up")
            self._run("ip", "-n", own, "addr", "add", f"{self.address(rank)}/24", "dev", _INTERFACE)
            self._run("ip", "-n", own, "link", "set", _INTERFACE, "up")
            self._run("ip", "-n", own, "link", "set", "lo", "up")
            self._run("tc", "-n", own, "qdisc", "add", "dev", _INTERFACE, *limit)
            self._run("tc", "-n", middle, "qdisc", "add", "dev", port, *limit)

    def _remove(self) -> None:
        for name in ["m", *map(str, range(self.processes))]:
            subprocess.run(["ip", "netns", "del", f"{self.prefix}_{name}"], capture_output=True, check=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
