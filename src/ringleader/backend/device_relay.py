"""An all_reduce of device tensors in shared memory: the device copies to it and back.

The CPU of a rank then only adds (n-1)/n of the tensor; with staging it would also copy
everything twice. docs/decisions/0007 has the measurements.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ringleader.backend.device import Device
from ringleader.engine import arrays
from ringleader.engine.shared_memory.relay import Relay
from ringleader.engine.shared_memory.relay_plan import Copy, Piece


class RelayBuffers:
    """The shared memory of a relay as tensors, and host memory for values to be added.

    Create it with ``pin``, which pins the shared memory for the device.
    """

    def __init__(
        self, relay: Relay, host: Tensor, unpin: list[Callable[[], None]]
    ) -> None:
        # A finalizer, so that it also runs if nobody calls close: if other memory is
        # mapped at an address that a device still treats as pinned, its copies would
        # go to the old memory.
        self.close = weakref.finalize(self, _call_all, unpin)
        """Unpin the shared memory. No copy may be under way or follow."""
        self.close.atexit = False
        self.slots = [[_tensor(slot) for slot in row] for row in relay.slots]
        self.num_rows = len(relay.memory)
        """Pieces in progress at the same time: one per rank."""
        self.part_bytes = relay.part_bytes
        self.host = host
        self.array: np.ndarray[Any, np.dtype[np.uint8]] = host.numpy()

    @classmethod
    def pin(cls, device: Device, relay: Relay) -> Self:
        """Pin the memory of ``relay`` for ``device`` and allocate host memory."""
        unpin = [device.pin(_tensor(memory)) for memory in relay.memory]
        num_ranks = len(relay.memory)
        host = device.host_buffer(num_ranks * (num_ranks - 1) * relay.part_bytes)
        return cls(relay, host, unpin)

    def host_slice(self, number: int, step: int, num_bytes: int) -> slice:
        """Return the part of ``host`` for one step of piece ``number``."""
        row = number % self.num_rows * (self.num_rows - 1)
        start = (row + step - 1) * self.part_bytes
        return slice(start, start + num_bytes)


class DeviceRelay:
    """Copies one device tensor to the slots of a relay and back."""

    def __init__(self, device: Device, buffers: RelayBuffers, flat: Tensor) -> None:
        self._device = device
        self._buffers = buffers
        self._bytes = flat.view(torch.uint8)
        self._dtype = arrays.storage_dtype(flat.dtype)
        self.slots = buffers.slots

    def piece(self, number: int, runs: list[slice], end: int) -> Piece:
        """Return this rank's parts of a piece: device memory, and host memory for the
        values to be added.
        """
        buffers, parts = self._buffers, [self._bytes[run] for run in runs]
        values, fetches = [], []
        for step, part in enumerate(parts[1:], 1):
            at = buffers.host_slice(number, step, len(part))
            fetches.append((buffers.host[at], part))
            values.append(buffers.array[at].view(self._dtype))
        return Piece(parts[0], values, end, parts, fetches=fetches)

    def copy(self, copies: list[Copy]) -> None:
        """Issue the copies in the current stream."""
        for target, source in copies:
            target.copy_(source, non_blocking=True)

    def synchronize(self) -> None:
        """Block until the current stream has done all copies."""
        self._device.record_event().synchronize()


def _call_all(functions: list[Callable[[], None]]) -> None:
    for function in functions:
        function()


def _tensor(memory: memoryview) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8)
