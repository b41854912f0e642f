"""What prepared collectives of every kind need of the arena and of their call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ringleader.engine.arrays import Array, bytes_of, storage_dtype
from ringleader.engine.arrays_by_address import BytesByAddress
from ringleader.engine.call import Call
from ringleader.engine.shared_memory.arena import Arena, Slot


class Views:
    """Makes the views of the slots that calls like ``call`` use."""

    def __init__(self, arena: Arena, call: Call) -> None:
        self.arena, self.call = arena, call
        self.rank, self.size, self.peers = arena.rank, arena.size, arena.peers
        self.dtype: np.dtype[Any] = storage_dtype(call.dtype)

    def of(self, slots: Sequence[Slot], start: int, length: int) -> list[Array]:
        """The elements from ``start`` on in each of ``slots``, which are one rank's."""
        a = start * self.dtype.itemsize
        b = a + length * self.dtype.itemsize
        return [slot.content[a:b].view(self.dtype) for slot in slots]

    def bytes_of(
        self, slots: Sequence[Slot], start: int, length: int
    ) -> list[memoryview]:
        """Their bytes."""
        return [bytes_of(array) for array in self.of(slots, start, length)]

    def chunks(self, lengths: list[int]) -> BytesByAddress:
        """The chunks of the tensors of a call, by its addresses."""
        return BytesByAddress(self.call.tensors, lengths, self.dtype)
