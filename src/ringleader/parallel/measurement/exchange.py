"""Tells all ranks what each of them has measured; nothing is pickled."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import astuple

import torch
import torch.distributed as dist
from torch import Tensor

from ringleader import settings
from ringleader.errors import CallMismatch
from ringleader.parallel.measurement.machine_memory import usable_memory
from ringleader.parallel.measurement.measure import Measurement
from ringleader.parallel.plan.profile import LayerProfile, MachineProfile
from ringleader.transport.host_token import host_token

NAME_BYTES = 32


def exchange(
    mine: Measurement, device: torch.device, held_bytes: int
) -> tuple[list[LayerProfile], list[MachineProfile]]:
    """Return the layers, and the machines of all ranks; the same on every rank.

    Kernels differ between devices in what they keep, so a layer's bytes are the largest
    of all ranks. Raises CallMismatch if a rank sent something that is no measurement.
    """
    hosts = gather([*host_token(), *_padded_name()], device)
    ranks = [row[:16] for row in hosts].count(hosts[dist.get_rank()][:16])
    memory = usable_memory(device, held_bytes, ranks)
    sizes = [value for layer in mine.layers for value in astuple(layer)[1:]]
    rows = gather([memory, *mine.seconds, *sizes], device)
    count = len(mine.layers)
    for rank, row in enumerate(rows):
        if not all(math.isfinite(value) and value >= 0 for value in row):
            raise CallMismatch(rank, "sent a measurement with wrong numbers")
    machines = [
        MachineProfile(
            name=_name(host[16:]),
            memory_bytes=int(row[0]),
            layer_seconds=tuple(row[1 : 1 + count]),
        )
        for host, row in zip(hosts, rows, strict=True)
    ]
    largest = [int(max(values)) for values in zip(*rows, strict=True)][1 + count :]
    width = len(sizes) // count
    layers = [
        LayerProfile(layer.name, *largest[position * width : (position + 1) * width])
        for position, layer in enumerate(mine.layers)
    ]
    return layers, machines


def gather(row: Sequence[float], device: torch.device) -> list[list[float]]:
    """Return the rows of all ranks."""
    ours = torch.tensor(row, dtype=torch.float64, device=wire_device(device))
    rows = [torch.empty_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, ours)
    return [each.tolist() for each in rows]


def sum_ranks(row: Sequence[float], device: torch.device) -> list[float]:
    """Return the sum of the rows of all ranks."""
    total: Tensor = torch.tensor(row, dtype=torch.float64, device=wire_device(device))
    dist.all_reduce(total)
    return total.tolist()


def wire_device(device: torch.device) -> torch.device:
    """Return where rows of float64 are made: on the CPU if possible; MPS has none."""
    backends = dist.get_backend_config(dist.group.WORLD)
    has_cpu = any(entry.split(":")[0] == "cpu" for entry in backends.split(","))
    return torch.device("cpu") if has_cpu else device


def _padded_name() -> bytes:
    name = settings.node_name() or platform.node()
    return name.encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0")


def _name(values: Sequence[float]) -> str:
    """Return the name in received numbers; only characters that can be printed."""
    raw = bytes(int(value) for value in values if 0 < value < 256)
    text = raw.decode(errors="replace")
    return "".join(each for each in text if each.isprintable()) or "unnamed"
