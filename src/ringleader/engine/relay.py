"""Large tensors in shared memory: sums handed on from rank to rank.

The tensor is walked in pieces of n parts. The sum of part q is made in one place, in
the segment of rank q: rank q copies its values there, rank q+1 adds its own, and so on;
rank q-1 comes last and has the sum. That is all of reduce_scatter, if the last is who
wants it; in all_reduce everybody else copies it out. Per rank that is one copy or
addition of each part, S bytes in all, and S again to get the results, whatever n is.
In turn t a rank

    copies in  its own part of piece t
    awaits     everybody's turn t-1
    hands on   part r-s of piece t-s, for every s > 0: adds its values, and takes the
               sum if it is the last (s = n-1)
    copies out piece t-n, but for the part whose sum it has taken
    says TURN  to everybody

so nobody waits for what is being done in the same turn. Ranks add in the same order
wherever they are, so all get the same bits.

Places are numbered through across calls, and n+1 are enough. The place of piece c is
filled again in turn c+n+1, by who has heard of everybody's turn c+n-1, in which the sum
was taken. Where others than its filler copy the sum out, in turn c+n, it is filled
after waiting instead of before. The last turn of a call is not told. Who begins the
next call knows that everybody is in that turn, at the last piece, and comes to its
place after everybody's next turn.
Fewer places are faster, because they stay in the cache: with a fourth, 64 MiB between
two ranks took 30 % longer (2026-11-15, 2 MiB of L2).

Training reduces the same memory step after step, so the views that a walk over it needs
are kept. Cutting them anew cost a tenth of 4 MiB (2026-11-15).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringleader.collectives.schedule import split
from ringleader.engine.kernel import Combine, address, at, bytes_of
from ringleader.transport.segment import PAGE, Geometry, Segment, Signal
from ringleader.wire.header import HEADER_BYTES

Array = NDArray[Any]
Finish = Callable[[Array], object]
Copy = tuple[memoryview, memoryview]
"""(to, from). Not arrays: numpy lets go of the GIL for every copy, and to get it back
takes longer than the copy if another thread is busy in Python."""
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
        size, count = self._arena.size, len(source)
        step = self._part_items(source.dtype) * size
        num = -(-count // step)

        def cut(first: int) -> list[_Turn]:
            values, result = (at(address(a), count, a.dtype) for a in (source, out))
            walk = [_Turn() for _ in range(num + size)]
            for c in range(num):
                start = c * step
                cuts = split(min(step, count - start), size)
                parts = [slice(start + a, start + b) for a, b in cuts]
                mine, targets = ([a[p] for p in parts] for a in (values, result))
                self._lay(walk, c, first + c, mine, targets)
                walk[c + size].end = parts[-1].stop
            return walk

        key = ("all_reduce", address(source), address(out), count, source.dtype)
        walk, is_early = self._walk(key, num, cut), size == 2
        self._run(walk, header, combine, finish, is_early=is_early)

    def reduce_scatter(
        self,
        header: bytes,
        sources: Sequence[Array],
        out: Array,
        combine: Combine,
        finish: Finish | None,
    ) -> None:
        """``sources[i]`` is for rank i; ``out`` is mine."""
        size, dtype = self._arena.size, out.dtype
        step = self._part_items(dtype)
        places = [(address(s), len(s)) for s in sources]
        num = -(-max(length for _, length in places) // step)

        def cut(first: int) -> list[_Turn]:
            values = [at(place, length, dtype) for place, length in places]
            result = at(address(out), len(out), dtype)
            walk = [_Turn() for _ in range(num + size - 1)]
            for c in range(num):
                run = slice(c * step, (c + 1) * step)
                # Rank q-1 takes the sum of part q, so part q is what it wants.
                mine = [values[q - 1][run] for q in range(size)]
                self._lay(walk, c, first + c, mine, result[run])
                walk[c + size - 1].end = min(run.stop, len(out))
            return walk

        key = ("reduce_scatter", *places, address(out), dtype)
        self._run(self._walk(key, num, cut), header, combine, finish, is_early=True)

    def _part_items(self, dtype: np.dtype[Any]) -> int:
        return self._arena.geometry.part_bytes // dtype.itemsize

    def _walk(
        self, key: Key, num_pieces: int, cut: Callable[[int], list[_Turn]]
    ) -> list[_Turn]:
        """The turns of a call: kept ones, or cut for the place of its first piece."""
        first = self._pieces % self._num
        self._pieces += num_pieces
        key = (*key, first)
        walk = self._walks.get(key)
        if walk is None:
            walk = cut(first)
            if self._kept + len(walk) > MAX_TURNS:
                self._walks.clear()
                self._kept = 0
            if len(walk) <= MAX_TURNS:
                self._walks[key] = walk
                self._kept += len(walk)
        return walk

    def _lay(
        self,
        walk: list[_Turn],
        turn: int,
        number: int,
        values: list[Array],
        targets: list[Array] | Array,
    ) -> None:
        """One piece, from ``turn`` on: a list of ``targets``, if everybody gets all."""
        me, size = self._arena.rank, self._arena.size
        for step in range(size):
            q = (me - step) % size
            mine = values[q]
            place = self._places[number % self._num][q].view(mine.dtype)[: len(mine)]
            if step == 0:
                walk[turn].copies_in.append(_copy(place, mine))
            elif step < size - 1:
                walk[turn + step].adds.append((mine, place))
            elif isinstance(targets, list):
                walk[turn + step].sums.append((mine, place, place))
                walk[turn + step].takes.append(_copy(targets[q], place))
            else:
                walk[turn + step].sums.append((mine, place, targets))
            if step < size - 1 and isinstance(targets, list):
                walk[turn + size].copies_out.append(_copy(targets[q], place))

    def _run(
        self,
        walk: list[_Turn],
        header: bytes,
        combine: Combine,
        finish: Finish | None,
        *,
        is_early: bool,
    ) -> None:
        arena, last = self._arena, len(walk) - 1
        for t, turn in enumerate(walk):
            arena.check()
            if is_early:
                _do(turn.copies_in)
            if t > 0:
                self._await_all(header)
            if not is_early:
                _do(turn.copies_in)
            _hand_on(turn, combine, finish)
            _do(turn.copies_out)
            arena.complete = turn.end
            if t < last:
                self._tell_all(header)

    def _tell_all(self, header: bytes) -> None:
        self._my_headers[self._turns % self._num][:] = header
        for post in self._arena.post[Signal.TURN]:
            post()
        self._turns += 1

    def _await_all(self, header: bytes) -> None:
        """Return when everybody has done what we have; all must make the same call."""
        for peer, take, theirs in self._theirs[(self._turns - 1) % self._num]:
            if not take(False):
                self._arena.wait(take, peer)
            if theirs != header:
                self._arena.mismatch(peer, bytes(theirs))


def _copy(target: Array, source: Array) -> Copy:
    return bytes_of(target), bytes_of(source)


def _hand_on(turn: _Turn, combine: Combine, finish: Finish | None) -> None:
    for values, place in turn.adds:
        combine(values, place, place)
    for values, place, total in turn.sums:
        combine(values, place, total)
        if finish is not None:
            finish(total)
    _do(turn.takes)


def _do(copies: list[Copy]) -> None:
    for target, source in copies:
        target[:] = source
