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

A tensor that lies on an accelerator has a carrier, by which the device copies between
it and the places all by itself; what this rank has to add is fetched to host memory in
the turn in which its own part is copied in. To everybody else it is the same relay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringleader.collectives.schedule import split
from ringleader.engine.arrays import address_of, array_at, bytes_of
from ringleader.engine.reductions import Combine
from ringleader.engine.relay_plan import Copy, Key, Piece, RelayPlans, Turn, lay
from ringleader.transport.shm_segment import PAGE, Geometry, Segment, Signal
from ringleader.wire.header import HEADER_BYTES

Array = NDArray[Any]
Finish = Callable[[Array], object]


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


class Carrier(Protocol):
    """Who copies parts of a tensor to the places and back, if the CPU cannot."""

    places: list[list[Any]]
    """Those of the relay, as it knows them."""

    def piece(self, number: int, runs: list[slice], end: int) -> Piece:
        """What is mine of piece ``number``; ``runs``: of the tensor's bytes, by step.

        As many pieces as there are ranks are under way at once.
        """
        ...

    def copy(self, copies: list[Copy]) -> None:
        """Begin these copies, in this order."""
        ...

    def settle(self) -> None:
        """Return when they have been made."""
        ...


class Relay:
    """The places of all ranks, and the walk over them."""

    def __init__(self, arena: Host, segments: list[Segment]) -> None:
        self._arena = arena
        self._num = num = arena.geometry.num_relay_slots
        self._is_pair = arena.size == 2
        """With more ranks, others than its filler copy a place out in all_reduce."""
        self._order = [(arena.rank - step) % arena.size for step in range(arena.size)]
        """The part of each step."""
        starts = [arena.geometry.relay_slot_at(k) for k in range(num)]
        headers = [[s.view[a : a + HEADER_BYTES] for a in starts] for s in segments]
        self._my_headers = headers[arena.rank]
        take = arena.take[Signal.TURN]
        self._theirs = [
            [(p, take[p], headers[p][k]) for p in arena.peers] for k in range(num)
        ]
        """[turn]: whose signal to await, and the header that comes with it."""
        room = arena.geometry.device_part_bytes
        self.places = [
            [segments[q].view[a + PAGE : a + PAGE + room] for q in self._order]
            for a in starts
        ]
        """[place][step]."""
        self._arrays = [
            [np.frombuffer(p, np.uint8) for p in row] for row in self.places
        ]
        self.memory = [s.view[starts[0] : starts[-1] + PAGE + room] for s in segments]
        """Where all places of a rank are."""
        self.part_bytes = arena.geometry.part_bytes
        """Equal on all ranks."""
        self._pieces = self._turns = 0
        """Of all calls so far."""
        self._walks = RelayPlans()

    def all_reduce(
        self,
        header: bytes,
        source: Array,
        out: Array,
        combine: Combine,
        finish: Finish | None,
    ) -> None:
        """Reduce ``source`` over all ranks into ``out``, maybe the same memory."""
        count, dtype = len(source), source.dtype
        given_at, taken_at = address_of(source), address_of(out)

        def cut() -> Iterator[Piece]:
            values = array_at(given_at, count, dtype)
            given, taken = bytes_of(values), bytes_of(array_at(taken_at, count, dtype))
            item = dtype.itemsize
            for runs, end in self._cuts(count, dtype):
                mine = [values[r.start // item : r.stop // item] for r in runs[1:]]
                targets = [taken[run] for run in runs]
                yield Piece(given[runs[0]], mine, end, targets)

        more, num = self._arena.size, self._num_pieces(count, dtype)
        walk = self._walk((given_at, taken_at, count, dtype), num, more, cut)
        self._run(walk, header, combine, finish, is_early=self._is_pair)

    def all_reduce_carried(
        self,
        header: bytes,
        carrier: Carrier,
        count: int,
        dtype: np.dtype[Any],
        combine: Combine,
        finish: Finish | None,
    ) -> None:
        """Reduce the tensor of ``carrier``, in place; others may have it in memory."""
        pieces = (
            carrier.piece(number, runs, end)
            for number, (runs, end) in enumerate(self._cuts(count, dtype))
        )
        more, num = self._arena.size, self._num_pieces(count, dtype)
        first = self._begin(num)
        walk = lay(pieces, carrier.places, self._arrays, first, more)
        self._run(walk, header, combine, finish, carrier, is_early=self._is_pair)

    def _num_pieces(self, count: int, dtype: np.dtype[Any]) -> int:
        return -(-count // (self._part_items(dtype) * self._arena.size))

    def _cuts(
        self, count: int, dtype: np.dtype[Any]
    ) -> Iterator[tuple[list[slice], int]]:
        """(the bytes of its parts, by step; the element it ends at), of every piece."""
        size, item = self._arena.size, dtype.itemsize
        step = self._part_items(dtype) * size
        for start in range(0, count, step):
            cuts = split(min(step, count - start), size)
            parts = [(start + cuts[q][0], start + cuts[q][1]) for q in self._order]
            yield [slice(lo * item, hi * item) for lo, hi in parts], start + cuts[-1][1]

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
        given, taken_at = [(address_of(s), len(s)) for s in sources], address_of(out)
        longest = max(length for _, length in given)

        def cut() -> Iterator[Piece]:
            # Rank q-1 takes the sum of part q, so part q is what it wants.
            values = [array_at(*given[q - 1], dtype) for q in self._order]
            result = array_at(taken_at, len(out), dtype)
            for start in range(0, longest, step):
                run = slice(start, start + step)
                yield Piece(
                    bytes_of(values[0][run]),
                    [v[run] for v in values[1:]],
                    min(run.stop, len(result)),
                    total=result[run],
                )

        num = -(-longest // step)
        walk = self._walk((*given, taken_at, dtype), num, size - 1, cut)
        self._run(walk, header, combine, finish, is_early=True)

    def _part_items(self, dtype: np.dtype[Any]) -> int:
        return self.part_bytes // dtype.itemsize

    def _walk(
        self, key: Key, num: int, more: int, cut: Callable[[], Iterator[Piece]]
    ) -> Iterable[Turn]:
        """The turns of a call with ``num`` pieces."""
        first = self._begin(num)
        num_views = 4 * (num + more) * self._arena.size
        return self._walks.find(
            (*key, first, self.part_bytes),
            num_views,
            lambda: lay(cut(), self.places, self._arrays, first, more),
        )

    def _begin(self, num: int) -> int:
        """The place where a call with ``num`` pieces begins."""
        first = self._pieces % self._num
        self._pieces += num
        return first

    def _run(
        self,
        walk: Iterable[Turn],
        header: bytes,
        combine: Combine,
        finish: Finish | None,
        carrier: Carrier | None = None,
        *,
        is_early: bool,
    ) -> None:
        """``is_early``: nobody else copies out of the place that a rank fills."""
        arena = self._arena
        copy = _do if carrier is None else carrier.copy
        is_first = True
        for turn in walk:
            arena.check()
            if is_early:
                copy(turn.copies_in)
            if not is_first:
                self._await_all(header)
            is_first = False
            if not is_early:
                copy(turn.copies_in)
            _hand_on(turn, combine, finish)
            copy(turn.takes)
            copy(turn.copies_out)
            if carrier is not None:
                carrier.settle()
            arena.complete = turn.end
            if not turn.is_last:
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


def _hand_on(turn: Turn, combine: Combine, finish: Finish | None) -> None:
    for values, place in turn.adds:
        combine(values, place, place)
    for values, place, total in turn.sums:
        combine(values, place, total)
        if finish is not None:
            finish(total)


def _do(copies: list[Copy]) -> None:
    for target, source in copies:
        target[:] = source
