"""Collectives over device memory that all ranks map, cut into pieces of one slot.

In each piece a rank publishes values in its own slot and, when all ranks have done so,
collects from the slots of all. Bytes that the device moves per rank, n ranks and a
tensor of S bytes: all_reduce copies S and reads n S; all_gather copies S/n and S;
reduce_scatter copies (n-1)/n S and reads S; broadcast copies S, on the root once for
all. On one device that costs less than a second exchange between the processes would.
Values are combined in rank order, so all ranks get the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

ALIGN = 128
"""Parts of a slot begin at multiples of this; it suits every dtype."""
_COMBINE: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "mean": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
_DTYPES = frozenset(
    {
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.complex64,
        torch.complex128,
    }
)
"""The dtypes that torch combines on every device."""


def is_combined(dtype: torch.dtype, op: str) -> bool:
    """Return whether a device combines such values; "none" only moves them."""
    return op == "none" or (dtype in _DTYPES and op in _COMBINE)


class Collective(ABC):
    """One call on one rank, on flat tensors; ``publish`` and ``collect`` only enqueue.

    Every rank has the same number of pieces of ``room_bytes`` in each slot.
    """

    def __init__(
        self, rank: int, longest: int, room_bytes: int, item_bytes: int
    ) -> None:
        self.rank = rank
        self._step = room_bytes // ALIGN * ALIGN // item_bytes
        self.num_pieces = -(-longest // self._step)

    def run_of(self, piece: int) -> slice:
        """Return the elements of a piece; they may lie beyond the end of a tensor."""
        return slice(piece * self._step, (piece + 1) * self._step)

    @abstractmethod
    def publish(self, piece: int, slot: Tensor) -> None:
        """Write this rank's values of a piece to its slot."""

    @abstractmethod
    def collect(self, piece: int, slots: Sequence[Tensor]) -> None:
        """Read a piece from the slots of all ranks."""


class AllReduce(Collective):
    """Combine all ranks' ``tensor``, in place."""

    def __init__(self, rank: int, tensor: Tensor, op: str, slot_bytes: int) -> None:
        super().__init__(rank, len(tensor), slot_bytes, tensor.element_size())
        self._tensor = tensor
        self._op = op

    def publish(self, piece: int, slot: Tensor) -> None:
        part = self._tensor[self.run_of(piece)]
        _place(slot, part).copy_(part)

    def collect(self, piece: int, slots: Sequence[Tensor]) -> None:
        part = self._tensor[self.run_of(piece)]
        _combine([_place(slot, part) for slot in slots], part, self._op)


class ReduceScatter(Collective):
    """Combine ``parts[r]`` of all ranks into ``out`` of rank r."""

    def __init__(
        self, rank: int, out: Tensor, parts: list[Tensor], op: str, slot_bytes: int
    ) -> None:
        self._room = slot_bytes // len(parts) // ALIGN * ALIGN
        longest = max(len(part) for part in parts)
        super().__init__(rank, longest, self._room, out.element_size())
        self._out = out
        self._parts = parts
        self._op = op

    def publish(self, piece: int, slot: Tensor) -> None:
        for peer, part in enumerate(self._parts):
            if peer != self.rank:
                values = part[self.run_of(piece)]
                _place(slot[peer * self._room :], values).copy_(values)

    def collect(self, piece: int, slots: Sequence[Tensor]) -> None:
        run = self.run_of(piece)
        out, at = self._out[run], self.rank * self._room
        values = [_place(slot[at:], out) for slot in slots]
        values[self.rank] = self._parts[self.rank][run]
        _combine(values, out, self._op)


class AllGather(Collective):
    """Copy all ranks' ``tensor`` into ``outs``, whose lengths may differ."""

    def __init__(
        self, rank: int, outs: list[Tensor], tensor: Tensor, slot_bytes: int
    ) -> None:
        longest = max(len(out) for out in outs)
        super().__init__(rank, longest, slot_bytes, tensor.element_size())
        self._outs = outs
        self._tensor = tensor

    def publish(self, piece: int, slot: Tensor) -> None:
        part = self._tensor[self.run_of(piece)]
        _place(slot, part).copy_(part)

    def collect(self, piece: int, slots: Sequence[Tensor]) -> None:
        run = self.run_of(piece)
        for peer, out in enumerate(self._outs):
            part = out[run]
            if peer != self.rank:
                part.copy_(_place(slots[peer], part))
            elif part.data_ptr() != self._tensor[run].data_ptr():
                part.copy_(self._tensor[run])


class Broadcast(Collective):
    """Copy ``tensor`` of the root to all ranks."""

    def __init__(self, rank: int, tensor: Tensor, root: int, slot_bytes: int) -> None:
        super().__init__(rank, len(tensor), slot_bytes, tensor.element_size())
        self._tensor = tensor
        self._root = root

    def publish(self, piece: int, slot: Tensor) -> None:
        if self.rank == self._root:
            part = self._tensor[self.run_of(piece)]
            _place(slot, part).copy_(part)

    def collect(self, piece: int, slots: Sequence[Tensor]) -> None:
        if self.rank != self._root:
            part = self._tensor[self.run_of(piece)]
            part.copy_(_place(slots[self._root], part))


def _place(memory: Tensor, like: Tensor) -> Tensor:
    """Return the beginning of ``memory`` as a tensor like another one."""
    return memory[: like.nbytes].view(like.dtype)


def _combine(values: list[Tensor], out: Tensor, op: str) -> None:
    """Combine in rank order; ``out`` may be the memory of one of ``values``."""
    combine, held = _COMBINE[op], values[0]
    is_free = all(value.data_ptr() != out.data_ptr() for value in values)
    for value in values[1:-1]:
        target = held if held is not values[0] else out if is_free else None
        held = combine(held, value, out=target)
    combine(held, values[-1], out=out)
    if op == "mean":
        is_integer = not (out.is_floating_point() or out.is_complex())
        mode = "trunc" if is_integer else None  # toward zero, as everywhere
        torch.div(out, len(values), rounding_mode=mode, out=out)
