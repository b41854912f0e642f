"""The turns of a relay as views, all cut beforehand; relay.py says what they are for.

Training reduces the same memory step after step, so the views that a walk over it needs
are kept. Cutting them anew cost a tenth of 4 MiB (2026-11-15).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Copy = tuple[memoryview, memoryview]
"""(to, from). Bytes, not arrays: numpy lets go of the GIL for every copy, and to get it
back takes longer than the copy if another thread is busy in Python."""
Key = tuple[object, ...]

MAX_VIEWS = 16384
"""Of all walks that are kept: some 4 MiB of them, enough for 300 MiB of tensors."""


@dataclass(slots=True, eq=False)
class Piece:
    """What is mine of one piece, by step: of part r, r-1, r-2 and so on."""

    source: memoryview
    """What I copy in, in step 0."""
    values: list[Array]
    """What I add, from step 1 on."""
    end: int
    """Elements of the result that are final when it is done."""
    targets: list[memoryview] = field(default_factory=list)
    """Where the sums go, from step 0 on; none if only my own is wanted."""
    total: Array | None = None
    """Where that is made; None: in its place."""


class Turn:
    """What happens in one turn, every view cut to its length."""

    __slots__ = ("adds", "copies_in", "copies_out", "end", "sums", "takes")

    def __init__(self) -> None:
        self.copies_in: list[Copy] = []
        """My values into their place."""
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


def lay(
    pieces: Iterator[Piece], places: list[list[memoryview]], first: int, more: int
) -> Iterator[Turn]:
    """Every piece begins in a turn of its own and takes ``more`` turns after it.

    ``places``: [place][step]; that of the first piece is ``first``.
    """
    ahead = deque(Turn() for _ in range(more + 1))
    for number, piece in enumerate(pieces, first):
        here = places[number % len(places)]
        ahead[0].copies_in.append((here[0][: len(piece.source)], piece.source))
        _lay_adds(ahead, here, piece)
        for place, target in zip(here[:-1], piece.targets, strict=False):
            ahead[more].copies_out.append((target, place[: len(target)]))
        ahead[more].end = piece.end
        yield ahead.popleft()
        ahead.append(Turn())
    ahead.pop()
    yield from ahead


def _lay_adds(ahead: deque[Turn], here: list[memoryview], piece: Piece) -> None:
    for step, values in enumerate(piece.values, 1):
        place = np.frombuffer(here[step], values.dtype, len(values))
        if step < len(piece.values):
            ahead[step].adds.append((values, place))
            continue
        total = place if piece.total is None else piece.total
        ahead[step].sums.append((values, place, total))
        for target in piece.targets[step:]:
            ahead[step].takes.append((target, here[step][: len(target)]))


class Walks:
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
