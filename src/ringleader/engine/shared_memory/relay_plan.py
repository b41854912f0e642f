"""The turns of a relay as views that are cut in advance; relay.py defines the turns.

Training reduces the same memory step after step, so the views of a call are kept.
Cutting them anew cost a tenth of an all_reduce of 4 MiB (2026-11-15).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ringleader.engine.arrays import Array

Copy = tuple[Any, Any]
"""(to, from), both bytes: memoryviews, or what a DeviceCopier accepts. Not
arrays: numpy releases the GIL for every copy, and if another thread is busy in Python,
getting it back takes longer than the copy."""
Key = tuple[object, ...]

MAX_VIEWS = 16384
"""Views kept in all plans together: about 4 MiB, enough for 300 MiB of tensors."""


@dataclass(slots=True, eq=False)
class Piece:
    """This rank's views of one piece, by step: of part r, r-1, r-2 and so on."""

    source: Any
    """Bytes to copy in, in step 0. Parts of a device's tensor are ranges, here and
    below."""
    values: list[Array]
    """Values to add, from step 1 on."""
    end: int
    """Elements of the result that are final when the piece is done."""
    targets: list[Any] = field(default_factory=list)
    """Bytes to copy the sums to, from step 0 on; empty in reduce_scatter."""
    total: Array | None = None
    """Memory for this rank's sum; None computes it in the slot."""
    fetches: list[Copy] = field(default_factory=list)
    """Copies that bring ``values`` into host memory, in step 0."""


class Turn:
    """The copies and additions of one turn, every view cut to its length."""

    __slots__ = ("adds", "copies_in", "copies_out", "end", "is_last", "sums", "takes")

    def __init__(self) -> None:
        self.copies_in: list[Copy] = []
        """This rank's values into their slot, and the fetches of the piece."""
        self.adds: list[tuple[Array, Array]] = []
        """(this rank's values, slot)."""
        self.sums: list[tuple[Array, Array, Array]] = []
        """(this rank's values, slot, result): additions that complete a sum."""
        self.takes: list[Copy] = []
        """The completed sums, out of their slots."""
        self.copies_out: list[Copy] = []
        """The sums that other ranks completed, out of their slots."""
        self.end = 0
        """Elements of the result that are final after the turn."""
        self.is_last = False


def lay_out(
    pieces: Iterator[Piece],
    slots: list[list[Any]],
    arrays: list[list[Array]],
    first: int,
    more: int,
) -> Iterator[Turn]:
    """Yield the turns. Every piece begins in its own turn and takes ``more`` after it.

    ``slots`` and ``arrays`` are indexed by [slot][step] and show the same memory, as
    bytes to copy and as arrays to add to; the first piece uses slot ``first``.
    """
    ahead = deque(Turn() for _ in range(more + 1))
    for number, piece in enumerate(pieces, first):
        k = number % len(slots)
        here = slots[k]
        ahead[0].copies_in.append((here[0][: len(piece.source)], piece.source))
        ahead[0].copies_in += piece.fetches
        _lay_out_adds(ahead, here, arrays[k], piece)
        for slot, target in zip(here[:-1], piece.targets, strict=False):
            ahead[more].copies_out.append((target, slot[: len(target)]))
        ahead[more].end = piece.end
        yield ahead.popleft()
        ahead.append(Turn())
    ahead.pop()
    ahead[-1].is_last = True
    yield from ahead


def _lay_out_adds(
    ahead: deque[Turn], here: list[Any], arrays: list[Array], piece: Piece
) -> None:
    for step, values in enumerate(piece.values, 1):
        slot = arrays[step][: values.nbytes].view(values.dtype)
        if step < len(piece.values):
            ahead[step].adds.append((values, slot))
            continue
        total = slot if piece.total is None else piece.total
        ahead[step].sums.append((values, slot, total))
        for target in piece.targets[step:]:
            ahead[step].takes.append((target, here[step][: len(target)]))


class RelayPlans:
    """The turns of earlier calls, by the addresses and types of their tensors.

    Views do not keep memory alive: they are used only while a tensor is there.
    """

    def __init__(self) -> None:
        self.kept: dict[Key, list[Turn]] = {}
        self._num_views = 0

    def find(
        self, key: Key, num_views: int, make: Callable[[], Iterator[Turn]]
    ) -> Iterable[Turn]:
        """Return the plan of ``key``, or a new one; a long one is made turn by turn."""
        plan = self.kept.get(key)
        if plan is not None:
            return plan
        if num_views > MAX_VIEWS:
            return make()
        if self._num_views + num_views > MAX_VIEWS:
            self.kept.clear()
            self._num_views = 0
        self._num_views += num_views
        plan = self.kept[key] = list(make())
        return plan
