"""An accelerator that takes part in a relay: it copies to the places and back itself.

Per rank that leaves only additions to the CPU, (n-1)/n of the tensor, where staging has
it copy everything twice as well. Decision 7 has the figures.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ringleader.backend.device import Device
from ringleader.engine import arrays
from ringleader.engine.relay import Relay
from ringleader.engine.relay_plan import Copy, Piece


class RelayBuffers:
    """The places of a relay, and host memory for what is to be added to them."""

    def __init__(self, device: Device, relay: Relay) -> None:
        undo = [device.admit(_tensor(memory)) for memory in relay.memory]
        # Also if nobody calls it: copies to memory that is mapped in the place of what
        # a device still believes to be pinned would go to the old memory.
        self.close = weakref.finalize(self, _call_all, undo)
        """Give the memory of the relay free; nothing may be copied any more."""
        self.close.atexit = False
        self.places = [[_tensor(place) for place in row] for row in relay.places]
        self.num_rows = num_ranks = len(relay.memory)
        """Pieces under way at once."""
        self.room = device.host_memory(num_ranks * (num_ranks - 1) * relay.part_bytes)
        self.part_bytes = relay.part_bytes
        self.array: np.ndarray[Any, np.dtype[np.uint8]] = self.room.numpy()

    def slot(self, number: int, step: int, num_bytes: int) -> slice:
        """Where in ``room`` the values for a step of piece ``number`` are."""
        row = number % self.num_rows * (self.num_rows - 1)
        start = (row + step - 1) * self.part_bytes
        return slice(start, start + num_bytes)


class DeviceRelay:
    """Carries one tensor: engine/relay.py says what for."""

    def __init__(self, device: Device, buffers: RelayBuffers, flat: Tensor) -> None:
        self._device = device
        self._relay_buffers = buffers
        self._bytes = flat.view(torch.uint8)
        self._dtype = arrays.storage_dtype(flat.dtype)
        self.places = buffers.places

    def piece(self, number: int, runs: list[slice], end: int) -> Piece:
        """What is mine of it, on the device but for the values to be added."""
        buffers, parts = self._relay_buffers, [self._bytes[run] for run in runs]
        values, fetches = [], []
        for step, part in enumerate(parts[1:], 1):
            slot = buffers.slot(number, step, len(part))
            fetches.append((buffers.room[slot], part))
            values.append(buffers.array[slot].view(self._dtype))
        return Piece(parts[0], values, end, parts, fetches=fetches)

    def copy(self, copies: list[Copy]) -> None:
        """In the order of the current queue."""
        for target, source in copies:
            target.copy_(source, non_blocking=True)

    def settle(self) -> None:
        """Return when the queue has come here."""
        self._device.mark().synchronize()


def _call_all(functions: list[Callable[[], None]]) -> None:
    for function in functions:
        function()


def _tensor(memory: memoryview) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8)
