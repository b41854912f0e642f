"""Memory that this machine can give to a model."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ringleader.errors import ConfigError
from ringleader.settings.parallel import memory_limit

USABLE = 0.9
"""The rest is for torch itself, temporary tensors and the network."""


def usable_memory(device: torch.device, held_bytes: int, ranks: int) -> int:
    """Return what one of ``ranks`` ranks that share the machine may use for a model.

    ``held_bytes`` are those of the model that is already in memory: they count, because
    a rank keeps only its own layers. RINGLEADER_MEMORY replaces the measured value.
    """
    limit = memory_limit()
    if limit is not None:
        return limit
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        free = free_memory()
    return int(free * USABLE) // ranks + held_bytes


def free_memory(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int:
    """Return the free bytes of the machine, or of the container that it is."""
    try:
        text = (proc / "meminfo").read_text()
    except OSError:
        return _physical_memory()
    kibibytes = next(
        int(line.split()[1])
        for line in text.splitlines()
        if line.startswith("MemAvailable:")
    )
    return min([kibibytes << 10, *_cgroup_rooms(proc, cgroups)])


def _physical_memory() -> int:
    """Return all memory, where the system does not tell what is free."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError) as exc:
        text = "cannot find out the memory of this machine; set RINGLEADER_MEMORY"
        raise ConfigError(f"{text}, to 8GiB for example") from exc


def _cgroup_rooms(proc: Path, cgroups: Path) -> list[int]:
    """Return what the control groups of this process, and those above, leave free."""
    rooms = []
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = cgroups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = cgroups / "memory"
            names = (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        else:
            continue
        folder = top / path.lstrip("/")
        while folder.is_relative_to(top):
            rooms += _room(folder, *names)
            folder = folder.parent
    return rooms


def _room(folder: Path, limit: str, usage: str, cache: str) -> list[int]:
    """Return the free bytes of one group; nothing if it has no limit."""
    try:
        most = (folder / limit).read_text().strip()
        used = int((folder / usage).read_text())
        stat = (folder / "memory.stat").read_text().split()
    except OSError:
        return []
    if most == "max":
        return []
    reclaimable = int(stat[stat.index(cache) + 1]) if cache in stat else 0
    return [max(0, int(most) - used + reclaimable)]
