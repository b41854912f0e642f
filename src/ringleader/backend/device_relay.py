"""An all_reduce of device tensors in shared memory: the device copies to it and back.

The CPU of a rank then only adds (n-1)/n of the tensor; with staging it would also copy
everything twice. docs/decisions/0007 has the measurements.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ringleader.backend.device import Device
from ringleader.engine import arrays
from ringleader.engine.shared_memory.relay import Relay
from ringleader.engine.shared_memory.relay_plan import Copy, Piece, RelayPlans


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
        self.plans = RelayPlans()
        self.host = host
        self.array: np.ndarray[Any, np.dtype[np.uint8]] = host.numpy()

    @classmethod
    def pin(cls, device: Device, relay: Relay) -> Self:
        """Pin the memory of ``relay`` for ``device`` and allocate host memory."""
        unpin = [device.pin(_tensor(memory)) for memory in relay.memory]
        num_ranks = len(relay.memory)
        # Plans keep views, which would not be usable outside of inference mode.
        with torch.inference_mode(False):
            host = device.host_buffer(num_ranks * (num_ranks - 1) * relay.part_bytes)
            return cls(relay, host, unpin)

    def host_slice(self, number: int, step: int, num_bytes: int) -> slice:
        """Return the part of ``host`` for one step of piece ``number``."""
        row = number % self.num_rows * (self.num_rows - 1)
        start = (row + step - 1) * self.part_bytes
        return slice(start, start + num_bytes)


class _Parts(dict[range, Tensor]):
    """The parts of a tensor, as a call needs them."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self._tensor = tensor

    def __missing__(self, run: range) -> Tensor:
        part = self[run] = self._tensor[run.start : run.stop]
        return part


class DeviceRelay:
    """Copies device tensors of one dtype to the slots of a relay and back."""

    def __init__(
        self, device: Device, buffers: RelayBuffers, dtype: torch.dtype
    ) -> None:
        self._buffers = buffers
        self._parts = _NO_PARTS
        self._dtype = arrays.storage_dtype(dtype)
        self.slots = buffers.slots
        self.plans = buffers.plans
        self.synchronize = device.synchronize
        """Blocks until the current stream has done all copies."""

    @contextmanager
    def using(self, flat: Tensor) -> Iterator[None]:
        """Copy this tensor until the context ends."""
        self._parts = _Parts(flat.view(torch.uint8))
        try:
            yield
        except BaseException:
            self.synchronize()  # no copy is in progress when others hear of it
            raise
        finally:
            self._parts = _NO_PARTS

    def piece(self, number: int, runs: list[range], end: int) -> Piece:
        """Return this rank's parts of a piece, and host memory for the values to be
        added.
        """
        buffers = self._buffers
        values, fetches = [], []
        for step, run in enumerate(runs[1:], 1):
            at = buffers.host_slice(number, step, len(run))
            fetches.append((buffers.host[at], run))
            values.append(buffers.array[at].view(self._dtype))
        return Piece(runs[0], values, end, runs, fetches=fetches)

    def copy(self, copies: list[Copy]) -> None:
        """Issue the copies in the current stream."""
        parts = self._parts
        for target, source in copies:
            if type(target) is range:
                parts[target].copy_(source, non_blocking=True)
            else:
                target.copy_(parts[source], non_blocking=True)


_NO_PARTS = _Parts(torch.empty(0, dtype=torch.uint8, device="cpu"))


def _call_all(functions: list[Callable[[], None]]) -> None:
    for function in functions:
        function()


def _tensor(memory: memoryview) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8)
