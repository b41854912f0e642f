"""All_reduce of large tensors in shared memory: sums handed on from rank to rank.

The tensor is walked in pieces of n parts. The sum of part q is made in one place, in
the segment of rank q: rank q copies its values there, rank q+1 adds its own, and so on;
rank q-1 comes last and has the sum, which everybody else copies out. Per rank that is
one copy or addition of each part, and one copy of each result: 2 S in all for tensors
of S bytes, whatever n is. In turn t a rank

    awaits     everybody's turn t-1
    hands on   part r-s of piece t-s, for every s: copies it in (s = 0), adds its values
               (s > 0), takes the sum (s = n-1)
    copies out piece t-n, but for the part whose sum it has taken
    says TURN  to everybody

so nobody waits for what is being done in the same turn. Ranks add in the same order
wherever they are, so all get the same bits.

Places are numbered through across calls, and n+1 are enough: the place of piece c is
filled again in turn c+n+1, after everybody's turn c+n, in which it was copied out. The
last turn of a call is not told. Who begins the next call knows that everybody is in
that turn, copying the last piece out, and does not come to its place before turn n.
Fewer places are faster, because they stay in the cache: with a fourth, 64 MiB between
two ranks took 30 % longer (2026-11-15, 2 MiB of L2).

Training reduces the same memory step after step, so the views that a walk over it needs
are kept. Cutting them anew cost a tenth of 4 MiB (2026-11-15).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringleader.collectives.schedule import split
from ringleader.engine.kernel import Combine, address, at
from ringleader.transport.segment import PAGE, Geometry, Segment, Signal
from ringleader.wire.header import HEADER_BYTES

Array = NDArray[Any]
Finish = Callable[[Array], object]
Part = tuple[int, int]
"""(start, stop) in the tensor."""
Key = tuple[object, ...]

MAX_TURNS = 4096
"""Of all walks that are kept: a few MiB of views, enough for 2 GiB of tensors."""


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
    check: Callable[[], None]
    """Raises if the group is being aborted."""

    def wait(self, take: Callable[[bool], bool], peer: int) -> None:
        """Return when ``peer`` has given the signal behind ``take``."""
        ...


class _Turn:
    """The views of one turn, cut to their lengths."""

    __slots__ = ("adds", "copies_in", "copies_out", "end", "sums")

    def __init__(self) -> None:
        self.copies_in: list[tuple[Array, Array]] = []
        """(place, my values)."""
        self.adds: list[tuple[Array, Array]] = []
        """(my values, place)."""
        self.sums: list[tuple[Array, Array, Array]] = []
        """(my values, place, where the sum goes): I am the last to add."""
        self.copies_out: list[tuple[Array, Array]] = []
        """(where the sum goes, place)."""
        self.end = 0
        """Elements that are final after this turn."""


class Relay:
    """The places of all ranks, and the walk over them."""

    def __init__(self, arena: Host, segments: list[Segment]) -> None:
        self._arena = arena
        self._num = num = arena.geometry.num_places
        starts = [arena.geometry.place_at(k) for k in range(num)]
        headers = [[s.view[a : a + HEADER_BYTES] for a in starts] for s in segments]
        self._my_headers = headers[arena.rank]
        take = arena.take[Signal.TURN]
        self._theirs = [
            [(p, take[p], headers[p][k]) for p in arena.peers] for k in range(num)
        ]
        """[turn]: whose signal to await, and the header that comes with it."""
        size = arena.geometry.part_bytes
        self._places = [
            [s.bytes[a + PAGE : a + PAGE + size] for s in segments] for a in starts
        ]
        """[place][part]."""
        self._pieces = self._turns = 0
        self._walks: dict[Key, list[_Turn]] = {}
        """By where the tensors lie and what they are. The views do not keep the memory
        alive: they are only used while a tensor is there."""
        self._kept = 0

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
        walk = self._walk(source, out)
        last = len(walk) - 1
        for t, turn in enumerate(walk):
            arena.check()
            if t > 0:
                self._await_all(header)
            _hand_on(turn, combine, finish)
            for target, place in turn.copies_out:
                np.copyto(target, place)
            arena.complete = turn.end
            if t < last:
                self._my_headers[self._turns % self._num][:] = header
                for post in arena.post[Signal.TURN]:
                    post()
                self._turns += 1

    def _await_all(self, header: bytes) -> None:
        """Return when everybody has done what we have; all must make the same call."""
        for peer, take, theirs in self._theirs[(self._turns - 1) % self._num]:
            if not take(False):
                self._arena.wait(take, peer)
            if theirs != header:
                self._arena.mismatch(peer, bytes(theirs))

    def _walk(self, source: Array, out: Array) -> list[_Turn]:
        """The turns of a call on these tensors."""
        from_, to = address(source), address(out)
        first, count, dtype = self._pieces % self._num, len(source), source.dtype
        arena = self._arena
        step = arena.geometry.part_bytes // dtype.itemsize * arena.size
        pieces = _pieces(count, step, arena.size)
        self._pieces += len(pieces)
        key = (from_, to, count, dtype, first)
        walk = self._walks.get(key)
        if walk is None:
            arrays = at(from_, count, dtype), at(to, count, dtype)
            walk = self._cut(pieces, first, *arrays)
            self._keep(key, walk)
        return walk

    def _cut(
        self, pieces: list[list[Part]], first: int, source: Array, out: Array
    ) -> list[_Turn]:
        me, size = self._arena.rank, self._arena.size
        turns = [_Turn() for _ in range(len(pieces) + size)]
        for c, piece in enumerate(pieces):
            parts = self._places[(first + c) % self._num]
            for step in range(size):
                lo, hi = piece[(me - step) % size]
                place = parts[(me - step) % size].view(source.dtype)[: hi - lo]
                turn, values, sums = turns[c + step], source[lo:hi], out[lo:hi]
                if step == 0:
                    turn.copies_in.append((place, values))
                elif step < size - 1:
                    turn.adds.append((values, place))
                else:
                    turn.sums.append((values, place, sums))
                if step < size - 1:
                    turns[c + size].copies_out.append((sums, place))
            turns[c + size].end = piece[-1][1]
        return turns

    def _keep(self, key: Key, walk: list[_Turn]) -> None:
        if self._kept + len(walk) > MAX_TURNS:
            self._walks.clear()
            self._kept = 0
        if len(walk) <= MAX_TURNS:
            self._walks[key] = walk
            self._kept += len(walk)


def _hand_on(turn: _Turn, combine: Combine, finish: Finish | None) -> None:
    for place, values in turn.copies_in:
        np.copyto(place, values)
    for values, place in turn.adds:
        combine(values, place, place)
    for values, place, target in turn.sums:
        combine(values, place, place)
        if finish is not None:
            finish(place)
        np.copyto(target, place)


@lru_cache(maxsize=64)
def _pieces(count: int, step: int, parts: int) -> list[list[Part]]:
    """Runs of at most ``step`` elements, each cut into ``parts``."""
    pieces = []
    for start in range(0, count, step):
        cut = split(min(step, count - start), parts)
        pieces.append([(start + a, start + b) for a, b in cut])
    return pieces
