"""The slots of all ranks of a group in the memory of one GPU, which all of them map."""

from __future__ import annotations

import torch
from torch import Tensor

from ringleader.backend import device_memory
from ringleader.backend.device import Device
from ringleader.backend.device_collectives import ALIGN, Slot
from ringleader.backend.device_memory import GRANT_BYTES
from ringleader.groups.group import Group

SLOT_BYTES = 32 << 20
"""More than a bucket of DDP, which then is one piece."""
MAX_SLOT_BYTES = 128 << 20
"""Room for all gradients of a smaller model, which then are one piece. A larger one
computes for so long that a second piece hardly counts."""
NUM_SLOTS = 2
MAX_SHARE = 4
"""Slots that are larger than SLOT_BYTES take at most this part of the free memory."""


class DeviceSlots:
    """Two slots per rank, used in turn. Created by ``open``, on all ranks or none."""

    def __init__(self, memory: list[Tensor]) -> None:
        room = len(memory[0]) // NUM_SLOTS
        self.slot_bytes = room
        """Equal on all ranks."""
        self._slots = [
            [Slot(each[k * room : (k + 1) * room]) for each in memory]
            for k in range(NUM_SLOTS)
        ]
        self._turn = 0

    @classmethod
    def open(
        cls, group: Group, device: Device, where: torch.device, slot_bytes: int
    ) -> tuple[DeviceSlots | None, str]:
        """Allocate and map the memory of all ranks: (slots, "") or (None, reason)."""
        own, grants, reason = _allocate(group, device, where, slot_bytes)
        rows, memory = _all_gather(group, grants), [own]
        if not reason:
            at = group.rank * GRANT_BYTES
            given = [row[at : at + GRANT_BYTES] for row in rows]
            memory, reason = _map(own, group.rank, given)
        told = _all_gather(group, bytes([bool(reason)]))
        if any(map(any, told)):
            first = next(peer for peer, row in enumerate(told) if any(row))
            return None, reason or f"rank {first} cannot share device memory"
        for each in memory:
            device.record_stream(each)
        return cls(memory), ""

    def current(self) -> list[Slot]:
        """Return the slot of each rank for the current piece."""
        return self._slots[self._turn % NUM_SLOTS]

    def advance(self) -> None:
        """Go on to the next piece."""
        self._turn += 1


def choose_slot_bytes(group: Group, where: torch.device, wanted_bytes: int) -> int:
    """Return the size of a slot, the same on all ranks, which wish the same.

    It is SLOT_BYTES, or up to ``wanted_bytes`` if that is more.
    """
    if wanted_bytes <= SLOT_BYTES:
        return SLOT_BYTES
    own = device_memory.free_bytes(where).to_bytes(8, "little")
    free = min(int.from_bytes(row, "little") for row in _all_gather(group, own))
    most = min(MAX_SLOT_BYTES, free // (MAX_SHARE * NUM_SLOTS * group.size))
    return max(SLOT_BYTES, min(wanted_bytes, most) // ALIGN * ALIGN)


def _allocate(
    group: Group, device: Device, where: torch.device, slot_bytes: int
) -> tuple[Tensor, bytes, str]:
    """Return our memory, a grant for each rank, and why there are none, if so."""
    grants, own = [bytes(GRANT_BYTES)] * group.size, torch.empty(0, device=where)
    try:
        own = torch.empty(NUM_SLOTS * slot_bytes, dtype=torch.uint8, device=where)
        device.record_event().synchronize()  # the memory was another tensor's
        for peer in range(group.size):
            if peer != group.rank:
                grants[peer] = device_memory.grant(own)
    except RuntimeError as exc:
        reason = f"rank {group.rank} cannot share device memory: {exc}"
        return own, bytes(GRANT_BYTES * group.size), reason
    return own, b"".join(grants), ""


def _map(own: Tensor, rank: int, given: list[bytes]) -> tuple[list[Tensor], str]:
    """Return the memory of all ranks, and why it is not complete, if so."""
    memory: list[Tensor] = []
    try:
        for peer, row in enumerate(given):
            is_own = peer == rank
            memory.append(
                own if is_own else device_memory.open_grant(row, own.device, len(own))
            )
    except RuntimeError as exc:
        return memory, f"rank {rank} cannot map memory of rank {len(memory)}: {exc}"
    return memory, ""


def _all_gather(group: Group, mine: bytes) -> list[bytes]:
    """Return all ranks' bytes, which have the same length."""
    rows = bytearray(len(mine) * group.size)
    row = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    group.all_gather(torch.frombuffer(rows, dtype=torch.uint8), row)
    return [bytes(rows[at : at + len(mine)]) for at in range(0, len(rows), len(mine))]
