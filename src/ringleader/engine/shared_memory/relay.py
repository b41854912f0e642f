"""All_reduce and reduce_scatter of large tensors in shared memory: a relay of sums.

The tensor is processed in pieces of n parts. The sum of part q is built in one slot, in
the segment of rank q: rank q copies its values there, rank q+1 adds its own, and so on;
rank q-1 adds last and then has the sum. That is all of reduce_scatter if the last rank
is the one that wants the sum; in all_reduce all other ranks copy it out. Each rank
copies or adds each part once, S bytes in all, and copies S bytes of results, whatever n
is. In turn t a rank

    copies in  its own part of piece t
    awaits     turn t-1 of its left neighbour, rank r-1
    adds       its values to part r-s of piece t-s, for every s > 0, and takes the sum
               if it is the last (s = n-1)
    awaits     turn t-1 of all other ranks
    copies out piece t-n, except for the part whose sum it has taken
    signals    TURN to all other ranks

so no rank waits for something that happens in the same turn, and all but the left
neighbour may be half a turn late. The order of additions is the same on all ranks, so
all get the same bits.

Slots are numbered across calls, and n+2 are enough. The slot of piece c is read last in
turn c+n and filled again in turn c+n+2, by a rank that has heard of every rank's turn
c+n. Of two ranks, only the writer copies out of a slot, and n+1 are enough. The last
turn of a call is not signalled: a rank that begins the next call knows that every rank
is in that turn, at the last piece, and it comes to the slot of that piece only after
every rank's next turn.
Fewer slots are faster, because they stay in the cache: with a fourth slot, 64 MiB
between two ranks took 30 % longer (2026-11-15, 2 MiB of L2).

A tensor on an accelerator has a ``DeviceCopier``, by which the device itself copies
between the tensor and the slots. The values that this rank adds are fetched to host
memory in the turn in which its own part is copied in. Such a turn waits for the device.
So does the last one, but none between them: they only read slots, which are filled
again when this rank has begun another call. For the other ranks nothing differs.

Where helper threads share the work (helpers.py), the views are tensors, and parts
are larger; all ranks of a call have the same number of threads, so they agree on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ringleader.collectives.schedule import split
from ringleader.engine.arrays import Array, address_of, array_at
from ringleader.engine.call import DeviceCopier
from ringleader.engine.engine import HeaderMismatch
from ringleader.engine.shared_memory.arena import Arena
from ringleader.engine.shared_memory.polling import Take
from ringleader.engine.shared_memory.relay_call import RelayCall
from ringleader.engine.shared_memory.relay_plan import (
    Key,
    Piece,
    RelayPlans,
    Turn,
    lay_out,
)
from ringleader.transport.shm_segment import PAGE, Segment, Signal
from ringleader.wire.header import HEADER_BYTES

Theirs = tuple[int, Take, memoryview]
"""A peer, its signal, and the header that it wrote before it."""


class Relay:
    """The relay slots of all ranks, and the turns over them."""

    def __init__(self, arena: Arena, segments: list[Segment]) -> None:
        self._arena = arena
        geometry = arena.geometry
        self._num = num = geometry.num_relay_slots
        self._order = [(arena.rank - step) % arena.size for step in range(arena.size)]
        """The part that this rank works on in each step."""
        starts = [geometry.relay_slot_at(k) for k in range(num)]
        headers = [[s.view[a : a + HEADER_BYTES] for a in starts] for s in segments]
        self._my_headers = headers[arena.rank]
        take = arena.take[Signal.TURN]
        theirs = [
            [(p, take[p], headers[p][k]) for p in self._order[1:]] for k in range(num)
        ]
        self._theirs = [(row[:1], row[1:]) for row in theirs]
        """[turn]: the left neighbour, and all others."""
        room = geometry.device_part_bytes
        self.slots = [
            [segments[q].view[a + PAGE : a + PAGE + room] for q in self._order]
            for a in starts
        ]
        """[slot][step]."""
        self._arrays = [[np.frombuffer(p, np.uint8) for p in row] for row in self.slots]
        self.memory = [s.view[starts[0] : starts[-1] + PAGE + room] for s in segments]
        """The memory of all slots of each rank."""
        self.part_bytes = geometry.part_bytes
        """Equal on all ranks."""
        self._tensors: list[list[Tensor]] = []
        """The same memory as ``slots``, for helper threads; made when first used."""
        self._pieces = self._turns = 0
        """Counted over all calls so far."""
        self._plans = RelayPlans()

    def use_device_parts(self) -> None:
        """Use larger parts, which suit accelerators; all ranks must, at once."""
        self.part_bytes = self._arena.geometry.device_part_bytes

    def all_reduce(
        self, header: bytes, source: Array, out: Array, how: RelayCall
    ) -> None:
        """Reduce ``source`` over all ranks into ``out``, which may be the same."""
        count, dtype = len(source), source.dtype
        source_at, out_at = address_of(source), address_of(out)
        part_bytes = max(self.part_bytes, how.part_bytes)

        def cut() -> Iterator[Piece]:
            array = array_at(source_at, count, dtype)
            values, given = how.values(array), how.bytes(array)
            taken = how.bytes(array_at(out_at, count, dtype))
            item = dtype.itemsize
            for runs, end in self._cuts(count, dtype, part_bytes):
                mine = [values[r.start // item : r.stop // item] for r in runs[1:]]
                targets = [taken[run] for run in runs]
                yield Piece(given[runs[0]], mine, end, targets)

        more, num = self._arena.size, self._num_pieces(count, dtype, part_bytes)
        key = (source_at, out_at, count, dtype, part_bytes)
        plan = self._plan(key, num, more, cut, how)
        self._run(plan, header, how)

    def all_reduce_device(
        self,
        header: bytes,
        copier: DeviceCopier,
        count: int,
        dtype: np.dtype[Any],
        how: RelayCall,
    ) -> None:
        """Reduce the tensor of ``copier``, in place; other ranks may use arrays."""
        part_bytes, more = self.part_bytes, self._arena.size
        num = self._num_pieces(count, dtype, part_bytes)
        first = self._begin(num)

        def cut() -> Iterator[Piece]:
            cuts = self._cuts(count, dtype, part_bytes)
            for number, (runs, end) in enumerate(cuts):
                yield copier.piece(number, [range(r.start, r.stop) for r in runs], end)

        plan = copier.plans.find(
            (count, dtype, part_bytes, first),
            8 * (num + more) * self._arena.size,
            lambda: lay_out(cut(), copier.slots, self._arrays, first, more),
        )
        self._run(plan, header, how)

    def _num_pieces(self, count: int, dtype: np.dtype[Any], part_bytes: int) -> int:
        return -(-count // (part_bytes // dtype.itemsize * self._arena.size))

    def _cuts(
        self, count: int, dtype: np.dtype[Any], part_bytes: int
    ) -> Iterator[tuple[list[slice], int]]:
        """For every piece: (byte ranges of its parts by step, element it ends at)."""
        size, item = self._arena.size, dtype.itemsize
        step = part_bytes // item * size
        for start in range(0, count, step):
            cuts = split(min(step, count - start), size)
            parts = [(start + cuts[q][0], start + cuts[q][1]) for q in self._order]
            yield [slice(lo * item, hi * item) for lo, hi in parts], start + cuts[-1][1]

    def reduce_scatter(
        self, header: bytes, sources: Sequence[Array], out: Array, how: RelayCall
    ) -> None:
        """Reduce ``sources[r]``, r being this rank, over all ranks into ``out``."""
        size, dtype = self._arena.size, out.dtype
        item = dtype.itemsize
        step = max(self.part_bytes, how.part_bytes) // item
        given, out_at = [(address_of(s), len(s)) for s in sources], address_of(out)
        longest = max(length for _, length in given)

        def cut() -> Iterator[Piece]:
            # Rank q-1 takes the sum of part q, so part q holds what rank q-1 wants.
            arrays = [array_at(*given[q - 1], dtype) for q in self._order]
            first, values = how.bytes(arrays[0]), [how.values(a) for a in arrays[1:]]
            result = how.values(array_at(out_at, len(out), dtype))
            for start in range(0, longest, step):
                run = slice(start, start + step)
                yield Piece(
                    first[run.start * item : run.stop * item],
                    [v[run] for v in values],
                    min(run.stop, len(result)),
                    total=result[run],
                )

        num = -(-longest // step)
        key = (*given, out_at, dtype, step)
        plan = self._plan(key, num, size - 1, cut, how)
        self._run(plan, header, how)

    def _plan(
        self,
        key: Key,
        num: int,
        more: int,
        cut: Callable[[], Iterator[Piece]],
        how: RelayCall,
    ) -> Iterable[Turn]:
        """The turns of a call with ``num`` pieces."""
        first = self._begin(num)
        num_views = 4 * (num + more) * self._arena.size
        slots: Any = self.slots
        arrays: Any = self._arrays
        if how.helped_as is not None:
            num_views *= 2  # a tensor takes twice the memory of an array
            slots = arrays = self._tensor_slots(how)
        return self._plans.find(
            (*key, first, how.helped_as),
            num_views,
            lambda: lay_out(cut(), slots, arrays, first, more),
        )

    def _tensor_slots(self, how: RelayCall) -> list[list[Tensor]]:
        if not self._tensors:
            self._tensors = [[how.bytes(a) for a in row] for row in self._arrays]
        return self._tensors

    def _begin(self, num: int) -> int:
        """Return the first slot of a call with ``num`` pieces."""
        first = self._pieces % self._num
        self._pieces += num
        return first

    def _run(self, plan: Iterable[Turn], header: bytes, how: RelayCall) -> None:
        arena, copy, synchronize = self._arena, how.copy, how.synchronize
        left: list[Theirs] = []
        others: list[Theirs] = []
        for turn in plan:
            arena.check()
            copy(turn.copies_in)
            self._await(left, header)
            _add(turn, how)
            waits = turn.copies_in or turn.is_last or synchronize is None
            if waits:
                copy(turn.takes)
            self._await(others, header)
            if waits:
                copy(turn.copies_out)
                if synchronize is not None:
                    synchronize()
            if not turn.is_last:
                left, others = self._theirs[self._turns % self._num]
                self._signal_all(header)
            if not waits:  # for these copies of a device nobody waits in this call
                copy(turn.takes)
                copy(turn.copies_out)
            arena.complete = turn.end

    def _signal_all(self, header: bytes) -> None:
        self._my_headers[self._turns % self._num][:] = header
        for post in self._arena.post[Signal.TURN]:
            post()
        self._turns += 1

    def _await(self, ranks: list[Theirs], header: bytes) -> None:
        """Return when ``ranks`` have done our last turn, in the same call."""
        for peer, take, theirs in ranks:
            if not take(False):
                self._arena.wait(take, peer)
            if theirs != header:
                raise HeaderMismatch(peer, bytes(theirs), header)


def _add(turn: Turn, how: RelayCall) -> None:
    combine, divide = how.combine, how.divide
    for values, slot in turn.adds:
        combine(values, slot, slot)
    for values, slot, total in turn.sums:
        combine(values, slot, total)
        if divide is not None:
            divide(total)
