"""Device memory that several processes map: how it is shared and opened (CUDA IPC).

A rank allocates memory and writes one ``grant`` per peer: a row of bytes from which the
peer maps the memory. torch counts the grants: memory that was shared is kept until each
peer has dropped its mapping, also if the owner drops it first. A grant is plain values,
which are checked before torch gets them; nothing is unpickled.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import torch
from torch import Tensor

GRANT_BYTES = 512
"""Length of a grant, whatever torch and CUDA put into it."""
_HEAD = struct.Struct("<QQQBHHH")
"""Size, offset, offset of the counter, whether to wait for the event, and the lengths
of what follows: handle of the memory, name of the counter, handle of the event."""
_COUNTER = re.compile(rb"/[A-Za-z0-9_.-]{1,100}")
"""The name of a counter: one in shared memory, never a path."""
ID_BYTES = 16
NO_DEVICE = bytes(ID_BYTES)
HOST = b"host".ljust(ID_BYTES, b"\0")
"""Takes the place of a device for tensors on the CPU."""


_ids: dict[torch.device, bytes] = {}
"""What ``device_id`` has found."""


def device_id(device: torch.device) -> bytes:
    """Return what names a GPU in all processes of this host; NO_DEVICE if nothing does.

    The number of a device does not: CUDA_VISIBLE_DEVICES changes it.
    """
    if device not in _ids:
        _ids[device] = _read_id(device)
    return _ids[device]


def refuse(device: torch.device) -> None:
    """Let ``device_id`` return NO_DEVICE from now on: memory cannot be shared here."""
    _ids[device] = NO_DEVICE


def _read_id(device: torch.device) -> bytes:
    if device.type != "cuda":
        return NO_DEVICE
    properties: Any = torch.cuda.get_device_properties(device)
    text = str(getattr(properties, "uuid", ""))
    digits = re.sub(r"[^0-9a-fA-F]", "", text.removeprefix("GPU-"))
    return bytes.fromhex(digits) if len(digits) == 2 * ID_BYTES else NO_DEVICE


def free_bytes(device: torch.device) -> int:
    """Return the memory of ``device`` that no process has."""
    free, _ = torch.cuda.mem_get_info(device)
    return free


def grant(memory: Tensor) -> bytes:
    """Return a grant of ``memory`` for one peer; RuntimeError if CUDA refuses."""
    storage: Any = memory.untyped_storage()
    shared = storage._share_cuda_()
    _, handle, size, offset, counter, counter_at, event, must_wait = shared
    parts = [bytes(handle), bytes(counter), bytes(event)]
    lengths = [len(part) for part in parts]
    head = _HEAD.pack(size, offset, counter_at, bool(must_wait), *lengths)
    row = head + b"".join(parts)
    if len(row) > GRANT_BYTES:
        raise RuntimeError(f"a handle of {len(row)} bytes is longer than expected")
    return row.ljust(GRANT_BYTES, b"\0")


def open_grant(row: bytes, device: torch.device, num_bytes: int) -> Tensor:
    """Map ``num_bytes`` that a peer has granted; RuntimeError if that is not possible.

    Drop the tensor when this process reads it no more.
    """
    values = read_grant(row, num_bytes)
    storage: Any = torch.UntypedStorage
    opened = storage._new_shared_cuda(device.index, *values)
    mapped = torch.empty(0, dtype=torch.uint8, device=device).set_(opened)
    return mapped[:num_bytes]


def read_grant(row: bytes, num_bytes: int) -> tuple[object, ...]:
    """Return the values of a grant as torch takes them, after the device."""
    size, offset, counter_at, must_wait, *lengths = _HEAD.unpack_from(row)
    at, parts = _HEAD.size, []
    for length in lengths:
        parts.append(row[at : at + length])
        at += length
    handle, counter, event = parts
    if at > len(row) or size != num_bytes or not _COUNTER.fullmatch(counter):
        raise RuntimeError("a peer's grant of device memory makes no sense")
    return handle, size, offset, counter, counter_at, event, bool(must_wait)
