"""Two-shot all_reduce in shared memory, for tensors that exceed the cache of a core.

The tensor is walked in pieces; rank p owns part p of every piece. For piece c a rank

    reduces   piece c-1: waits for everybody's POST, adds the parts meant for it, writes
              the sum over the last one it read, says DONE, and takes a copy
    copies in piece c: its parts for the others, into its slot; POST
    copies out piece c-2: waits for each owner's DONE and copies its sum

Writing the sum over the last contribution, in the slot of the rank before the owner,
costs a quarter less than a place of its own: those lines are in the owner's cache.

Slots are numbered through across operations. Why slot k may be filled again NUM pieces
later: (1) its contributions were read, because their owners' DONE came before I copied
their sums out; (2) its sum, which third ranks read, was copied out by all: I have their
POST of the piece before this one, sent two copy-outs later. With two ranks there is no
third, and three slots are enough; else there are four.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringleader.collectives.schedule import split
from ringleader.engine.kernel import Combine
from ringleader.transport.segment import PAGE, Geometry, Segment, Signal
from ringleader.wire.header import HEADER_BYTES

Array = NDArray[Any]
Finish = Callable[[Array], object]
Part = tuple[int, int]


class Host(Protocol):
    """What the arena gives us."""

    rank: int
    size: int
    peers: list[int]
    geometry: Geometry
    complete: int
    post: list[list[Callable[[], None]]]
    take: list[dict[int, Callable[[bool], bool]]]
    mismatch: Callable[[int, bytes], None]

    def wait(self, take: Callable[[bool], bool], peer: int) -> None:
        """Return when ``peer`` has given the signal behind ``take``."""
        ...


class TwoShot:
    """The two-shot slots of all ranks, and the walk over them."""

    def __init__(self, arena: Host, segments: list[Segment]) -> None:
        self._arena = arena
        self._num = arena.geometry.num_shots
        self._headers = [_headers(s, arena.geometry) for s in segments]
        self._parts = [_parts(s, arena.geometry) for s in segments]
        self._typed: dict[np.dtype[Any], list[list[list[Array]]]] = {}
        self._turn = 0
        size, rank = arena.size, arena.rank
        # The sum of owner o lies in the slot of the rank before it, added last.
        self._keeper = [(owner - 1) % size for owner in range(size)]
        self._order = [p for p in arena.peers if p != self._keeper[rank]]
        self._order.append(self._keeper[rank])

    def _views(self, dtype: np.dtype[Any]) -> list[list[list[Array]]]:
        """[rank][slot][part] as arrays of ``dtype``, made once."""
        views = self._typed.get(dtype)
        if views is None:
            views = self._typed[dtype] = [
                [[part.view(dtype) for part in slot] for slot in slots]
                for slots in self._parts
            ]
        return views

    def all_reduce(
        self,
        header: bytes,
        source: Array,
        out: Array,
        combine: Combine,
        finish: Finish | None,
    ) -> None:
        """Reduce ``source`` over all ranks into ``out``, maybe the same memory."""
        arena = self._arena
        step = arena.geometry.part_bytes // source.itemsize * arena.size
        pieces = _pieces(len(source), step, arena.size)
        views = self._views(source.dtype)
        first, num = self._turn, len(pieces)
        self._turn += num
        for c in range(num + 2):
            if 0 <= c - 1 < num:
                k = (first + c - 1) % self._num
                self._await_posts(header, k)
                self._reduce(views, k, source, out, pieces[c - 1], combine, finish)
            if c < num:
                self._copy_in(header, views, (first + c) % self._num, source, pieces[c])
            if c >= 2:
                self._copy_out(views, (first + c - 2) % self._num, out, pieces[c - 2])
                arena.complete = pieces[c - 2][-1][1]

    def _copy_in(
        self,
        header: bytes,
        views: list[list[list[Array]]],
        k: int,
        source: Array,
        piece: list[Part],
    ) -> None:
        arena = self._arena
        mine = views[arena.rank][k]
        for p in arena.peers:
            lo, hi = piece[p]
            np.copyto(mine[p][: hi - lo], source[lo:hi])
        self._headers[arena.rank][k][:] = header
        for post in arena.post[Signal.POST]:
            post()

    def _await_posts(self, header: bytes, k: int) -> None:
        """Everybody's contribution is there; so all have read what was there before."""
        arena = self._arena
        take = arena.take[Signal.POST]
        for p in arena.peers:
            arena.wait(take[p], p)
            if self._headers[p][k] != header:
                arena.mismatch(p, bytes(self._headers[p][k]))

    def _reduce(  # noqa: PLR0913 - one look at one step is worth the arguments
        self,
        views: list[list[list[Array]]],
        k: int,
        source: Array,
        out: Array,
        piece: list[Part],
        combine: Combine,
        finish: Finish | None,
    ) -> None:
        me = self._arena.rank
        lo, hi = piece[me]
        held, mine = source[lo:hi], out[lo:hi]
        for p in self._order[:-1]:
            combine(held, views[p][k][me][: hi - lo], mine)
            held = mine
        total = views[self._order[-1]][k][me][: hi - lo]
        combine(held, total, total)
        if finish is not None:
            finish(total)
        for post in self._arena.post[Signal.DONE]:
            post()
        np.copyto(mine, total)

    def _copy_out(
        self, views: list[list[list[Array]]], k: int, out: Array, piece: list[Part]
    ) -> None:
        arena = self._arena
        take = arena.take[Signal.DONE]
        for p in arena.peers:
            lo, hi = piece[p]
            arena.wait(take[p], p)
            np.copyto(out[lo:hi], views[self._keeper[p]][k][p][: hi - lo])


def _pieces(count: int, step: int, parts: int) -> list[list[Part]]:
    """Runs of at most ``step`` elements, each cut into ``parts`` (start, stop)."""
    pieces = []
    for start in range(0, count, step):
        cut = split(min(step, count - start), parts)
        pieces.append([(start + a, start + b) for a, b in cut])
    return pieces


def _slot_starts(geometry: Geometry) -> list[int]:
    stride = geometry.shot_stride
    return [geometry.shots_at + k * stride for k in range(geometry.num_shots)]


def _headers(segment: Segment, geometry: Geometry) -> list[memoryview]:
    return [segment.view[at : at + HEADER_BYTES] for at in _slot_starts(geometry)]


def _parts(segment: Segment, geometry: Geometry) -> list[list[NDArray[np.uint8]]]:
    """One part per rank in each slot, at a fixed place whatever the piece's length."""
    size = geometry.part_bytes
    return [
        [segment.bytes[at + PAGE + p * size :][:size] for p in range(geometry.size)]
        for at in _slot_starts(geometry)
    ]
