"""The turns of a relay as views, all cut beforehand; relay.py says what they are for.

Training reduces the same memory step after step, so the views that a walk over it needs
are kept. Cutting them anew cost a tenth of 4 MiB (2026-11-15).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
Copy = tuple[Any, Any]
"""(to, from), both bytes: memoryviews, or what a carrier understands. Not arrays: numpy
lets go of the GIL for every copy, and to get it back takes longer than the copy if
another thread is busy in Python."""
Key = tuple[object, ...]

MAX_VIEWS = 16384
"""Of all walks that are kept: some 4 MiB of them, enough for 300 MiB of tensors."""


@dataclass(slots=True, eq=False)
class Piece:
    """What is mine of one piece, by step: of part r, r-1, r-2 and so on."""

    source: Any
    """What I copy in, in step 0: bytes, like all that is copied."""
    values: list[Array]
    """What I add, from step 1 on."""
    end: int
    """Elements of the result that are final when it is done."""
    targets: list[Any] = field(default_factory=list)
    """Where the sums go, from step 0 on; none if only my own is wanted."""
    total: Array | None = None
    """Where that is made; None: in its place."""
    fetches: list[Copy] = field(default_factory=list)
    """What brings my values to where I add them, in step 0."""


class Turn:
    """What happens in one turn, every view cut to its length."""

    __slots__ = ("adds", "copies_in", "copies_out", "end", "is_last", "sums", "takes")

    def __init__(self) -> None:
        self.copies_in: list[Copy] = []
        """My values into their place, and what else is fetched then."""
        self.adds: list[tuple[Array, Array]] = []
        """(my values, place)."""
        self.sums: list[tuple[Array, Array, Array]] = []
        """(my values, place, where the sum is made): I am the last to add."""
        self.takes: list[Copy] = []
        """The same sums out of their place."""
        self.copies_out: list[Copy] = []
        """The sums of others out of theirs."""
        self.end = 0
        """Elements of the result that are final after it."""
        self.is_last = False


def lay(
    pieces: Iterator[Piece],
    places: list[list[Any]],
    arrays: list[list[Array]],
    first: int,
    more: int,
) -> Iterator[Turn]:
    """Every piece begins in a turn of its own and takes ``more`` turns after it.

    ``places`` and ``arrays``: [place][step], the same memory as one copies it and as
    one adds to it, in bytes; the place of the first piece is ``first``.
    """
    ahead = deque(Turn() for _ in range(more + 1))
    for number, piece in enumerate(pieces, first):
        k = number % len(places)
        here = places[k]
        ahead[0].copies_in.append((here[0][: len(piece.source)], piece.source))
        ahead[0].copies_in += piece.fetches
        _lay_adds(ahead, here, arrays[k], piece)
        for place, target in zip(here[:-1], piece.targets, strict=False):
            ahead[more].copies_out.append((target, place[: len(target)]))
        ahead[more].end = piece.end
        yield ahead.popleft()
        ahead.append(Turn())
    ahead.pop()
    ahead[-1].is_last = True
    yield from ahead


def _lay_adds(
    ahead: deque[Turn], here: list[Any], arrays: list[Array], piece: Piece
) -> None:
    for step, values in enumerate(piece.values, 1):
        place = arrays[step][: values.nbytes].view(values.dtype)
        if step < len(piece.values):
            ahead[step].adds.append((values, place))
            continue
        total = place if piece.total is None else piece.total
        ahead[step].sums.append((values, place, total))
        for target in piece.targets[step:]:
            ahead[step].takes.append((target, here[step][: len(target)]))


class RelayPlans:
    """Those of earlier calls, by where the tensors lie and what they are.

    Views do not keep the memory alive: they are only used while a tensor is there.
    """

    def __init__(self) -> None:
        self.kept: dict[Key, list[Turn]] = {}
        self._num_views = 0

    def find(
        self, key: Key, num_views: int, make: Callable[[], Iterator[Turn]]
    ) -> Iterable[Turn]:
        """The one of ``key``, or a new one; a long one is laid as it is walked."""
        walk = self.kept.get(key)
        if walk is not None:
            return walk
        if num_views > MAX_VIEWS:
            return make()
        if self._num_views + num_views > MAX_VIEWS:
            self.kept.clear()
            self._num_views = 0
        self._num_views += num_views
        walk = self.kept[key] = list(make())
        return walk
