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
MAX_PLACES = 256
"""Places that a slot keeps, a fraction of a kilobyte each."""
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


class Slot:
    """Memory of one rank, in which tensors are placed. Calls like earlier ones find
    their places made.
    """

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory
        self._places: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def place(self, like: Tensor, at: int = 0) -> Tensor:
        """Return the memory from byte ``at`` on as a tensor like ``like``."""
        kind = (at, like.nbytes, like.dtype)
        place = self._places.get(kind)
        if place is None:
            if len(self._places) >= MAX_PLACES:
                self._places.clear()
            with torch.inference_mode(False):  # else it could be used only there
                place = self._memory[at : at + like.nbytes].view(like.dtype)
            self._places[kind] = place
        return place


class Collective(ABC):
    """One call on one rank, on flat tensors; ``publish`` and ``collect`` only enqueue.

    Every rank has the same number of pieces.
    """

    num_pieces: int

    @abstractmethod
    def publish(self, piece: int, slot: Slot) -> None:
        """Write this rank's values of a piece to its slot."""

    @abstractmethod
    def collect(self, piece: int, slots: Sequence[Slot]) -> None:
        """Read a piece from the slots of all ranks."""


class AllReduce(Collective):
    """Combine all ranks' ``tensors``, in place; a piece may hold several."""

    def __init__(self, tensors: Sequence[Tensor], op: str, slot_bytes: int) -> None:
        self._pieces = _packed(tensors, slot_bytes // ALIGN * ALIGN)
        self.num_pieces = len(self._pieces)
        self._op = op

    def publish(self, piece: int, slot: Slot) -> None:
        for at, part in self._pieces[piece]:
            slot.place(part, at).copy_(part)

    def collect(self, piece: int, slots: Sequence[Slot]) -> None:
        for at, part in self._pieces[piece]:
            _combine([slot.place(part, at) for slot in slots], part, self._op)


def _packed(
    tensors: Sequence[Tensor], room_bytes: int
) -> list[list[tuple[int, Tensor]]]:
    """Return pieces of at most ``room_bytes``: (place in a slot, part of a tensor).

    Tensors follow each other, and are cut where a slot is full.
    """
    pieces: list[list[tuple[int, Tensor]]] = [[]]
    at = 0
    for tensor in tensors:
        start, item_bytes = 0, tensor.element_size()
        while start < len(tensor):
            if room_bytes - at < item_bytes:
                pieces.append([])
                at = 0
            fit = (room_bytes - at) // item_bytes
            is_whole = start == 0 and len(tensor) <= fit
            part = tensor if is_whole else tensor[start : start + fit]
            pieces[-1].append((at, part))
            start += len(part)
            at += -(-part.nbytes // ALIGN) * ALIGN
    return pieces


class CutAlike(Collective):
    """A collective whose tensors are cut into parts of the same length."""

    def __init__(
        self, rank: int, longest: int, room_bytes: int, item_bytes: int
    ) -> None:
        self.rank = rank
        self._step = room_bytes // ALIGN * ALIGN // item_bytes
        self.num_pieces = -(-longest // self._step)

    def part(self, tensor: Tensor, piece: int) -> Tensor:
        """Return the elements of ``tensor`` in a piece; there may be none."""
        if self.num_pieces == 1:
            return tensor
        return tensor[piece * self._step : (piece + 1) * self._step]


class ReduceScatter(CutAlike):
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

    def publish(self, piece: int, slot: Slot) -> None:
        for peer, each in enumerate(self._parts):
            if peer != self.rank:
                part = self.part(each, piece)
                slot.place(part, peer * self._room).copy_(part)

    def collect(self, piece: int, slots: Sequence[Slot]) -> None:
        out, at = self.part(self._out, piece), self.rank * self._room
        values = [slot.place(out, at) for slot in slots]
        values[self.rank] = self.part(self._parts[self.rank], piece)
        _combine(values, out, self._op)


class AllGather(CutAlike):
    """Copy all ranks' ``tensor`` into ``outs``, whose lengths may differ."""

    def __init__(
        self, rank: int, outs: list[Tensor], tensor: Tensor, slot_bytes: int
    ) -> None:
        longest = max(len(out) for out in outs)
        super().__init__(rank, longest, slot_bytes, tensor.element_size())
        self._outs = outs
        self._tensor = tensor

    def publish(self, piece: int, slot: Slot) -> None:
        part = self.part(self._tensor, piece)
        slot.place(part).copy_(part)

    def collect(self, piece: int, slots: Sequence[Slot]) -> None:
        own = self.part(self._tensor, piece)
        for peer, out in enumerate(self._outs):
            part = self.part(out, piece)
            if peer != self.rank:
                part.copy_(slots[peer].place(part))
            elif part.data_ptr() != own.data_ptr():
                part.copy_(own)


class Broadcast(CutAlike):
    """Copy ``tensor`` of the root to all ranks."""

    def __init__(self, rank: int, tensor: Tensor, root: int, slot_bytes: int) -> None:
        super().__init__(rank, len(tensor), slot_bytes, tensor.element_size())
        self._tensor = tensor
        self._root = root

    def publish(self, piece: int, slot: Slot) -> None:
        if self.rank == self._root:
            part = self.part(self._tensor, piece)
            slot.place(part).copy_(part)

    def collect(self, piece: int, slots: Sequence[Slot]) -> None:
        if self.rank != self._root:
            part = self.part(self._tensor, piece)
            part.copy_(slots[self._root].place(part))


def _combine(values: list[Tensor], out: Tensor, op: str) -> None:
    """Combine in rank order; ``out`` may be the memory of one of ``values``."""
    combine, held, middle = _COMBINE[op], values[0], values[1:-1]
    is_free = middle and all(value.data_ptr() != out.data_ptr() for value in values)
    for value in middle:
        target = held if held is not values[0] else out if is_free else None
        held = combine(held, value, out=target)
    combine(held, values[-1], out=out)
    if op == "mean":
        is_integer = not (out.is_floating_point() or out.is_complex())
        mode = "trunc" if is_integer else None  # toward zero, as everywhere
        torch.div(out, len(values), rounding_mode=mode, out=out)
