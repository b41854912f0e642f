"""Collectives in shared memory: all ranks on one host read each other's slots.

Theory of operation. Every rank owns a segment (transport/segment.py) with three areas,
and tells others with signals that order memory. Three patterns use them:

exchange    every rank fills its slot and posts; when all have posted, everybody reads
            everybody. Two slots alternate for ever: to reach the slot of round s again
            a rank has finished round s+1, for which every peer had posted, and a peer
            posts s+1 only after it has read all of s.
two-shot    all_reduce of large tensors; see twoshot.py.
one-way     a rank fills a slot for some readers; each returns a CREDIT when it has read
            it, and the slot is filled again only when all have. Credits are collected
            lazily, across operations.

Every filled slot carries the 64-byte header of the operation, and every reader compares
it: a mismatch between calls is seen before a single number is used.
All results are computed by one owner, or in rank order, so ranks agree to the bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringleader.engine.kernel import Combine
from ringleader.engine.twoshot import TwoShot
from ringleader.engine.waiter import Waiter
from ringleader.errors import ProtocolError
from ringleader.transport.link import POLLIN, relax
from ringleader.transport.segment import PAGE, Geometry, Segment, Signal
from ringleader.transport.shm import Neighbour
from ringleader.wire.header import HEADER_BYTES

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Take = Callable[[bool], bool]
Finish = Callable[[Array], object]

SPINS = 400
"""Looks at a signal before sleeping, yielding the core at every eighth: about 100 us
when nobody else wants the core, a few turns of the scheduler when cores are scarce."""
TWO_SHOT_BYTES = 1 << 20
"""bytes * ranks from which two-shot beats exchange; see docs/decisions."""


class Slot:
    """One slot of one rank: a header and its content."""

    __slots__ = ("content", "header")

    def __init__(self, segment: Segment, at: int, num_bytes: int) -> None:
        self.header = segment.view[at : at + HEADER_BYTES]
        self.content: Bytes = segment.bytes[at + PAGE : at + PAGE + num_bytes]


class Arena:
    """The segments of all ranks of a group on one host. One thread at a time."""

    def __init__(
        self,
        rank: int,
        neighbours: dict[int, Neighbour],
        segment: Segment,
        waiter: Waiter,
        on_mismatch: Callable[[int, bytes], None],
    ) -> None:
        geometry = next(iter(neighbours.values())).geometry
        self.rank = rank
        self.size = geometry.size
        self.peers = [p for p in range(self.size) if p != rank]
        self._neighbours = neighbours
        self._waiter = waiter
        self.mismatch = on_mismatch
        segments = [
            segment if r == rank else neighbours[r].theirs for r in range(self.size)
        ]
        self.exchanges = [_exchanges(s, geometry) for s in segments]
        self.oneways = [_oneways(s, geometry) for s in segments]
        self.geometry = geometry
        self.post = [[n.post[s] for n in self._in_order()] for s in Signal]
        self.take = [{p: neighbours[p].take[s] for p in self.peers} for s in Signal]
        self._round = 0
        self._published = 0
        self._unread: list[set[int]] = [set() for _ in range(geometry.num_oneways)]
        self._owed: dict[int, deque[int]] = {p: deque() for p in self.peers}
        self._two_shot = TwoShot(self, segments)
        self.complete = 0
        """Elements of the result that are final, for who asks after a failure."""

    def _in_order(self) -> list[Neighbour]:
        return [self._neighbours[p] for p in self.peers]

    # -- waiting -------------------------------------------------------------------

    def wait(self, take: Take, peer: int) -> None:
        """Return when ``peer`` has given the signal behind ``take``."""
        for i in range(SPINS):
            if take(False):
                return
            if not i & 7:
                relax()
        self._sleep(take, peer)

    def _sleep(self, take: Take, peer: int) -> None:
        neighbour = self._neighbours[peer]
        bell = [(neighbour.bell.fileno(), POLLIN)]
        while True:
            neighbour.arm()
            relax()  # makes the flag visible before we look for the last time
            try:
                if take(False):
                    return
                self._waiter.idle(bell, lambda: [peer])
            finally:
                neighbour.disarm()
            if neighbour.hear_unless(lambda: take(False)):
                self._waiter.moved()
                return

    def _expect(self, peer: int, slot: Slot, header: bytes) -> None:
        if slot.header != header:
            self.mismatch(peer, bytes(slot.header))

    # -- exchange ------------------------------------------------------------------

    def _exchange(self, header: bytes, fill: Callable[[Bytes], None]) -> list[Bytes]:
        """Fill my slot, wait for everybody's; the contents in rank order."""
        k = self.next_turn()
        mine = self.exchanges[self.rank][k]
        fill(mine.content)
        mine.header[:] = header
        for post in self.post[Signal.POST]:
            post()
        for peer in self.peers:
            self.wait(self.take[Signal.POST][peer], peer)
            self._expect(peer, self.exchanges[peer][k], header)
        return [slots[k].content for slots in self.exchanges]

    def next_turn(self) -> int:
        """Which of the two exchange slots is used now; they alternate for ever."""
        self._round ^= 1
        return self._round

    def barrier(self, header: bytes) -> None:
        """Everybody has come."""
        self._exchange(header, lambda _content: None)

    def all_reduce(
        self,
        header: bytes,
        source: Array,
        out: Array,
        combine: Combine,
        finish: Finish | None = None,
    ) -> None:
        """One-shot for what fits a slot comfortably, two-shot beyond.

        ``finish`` is applied to every run of finished sums, by who owns it.
        """
        if source.nbytes * self.size <= TWO_SHOT_BYTES:
            self._one_shot(header, source, out, combine)
            if finish is not None:
                finish(out)
        else:
            self._two_shot.all_reduce(header, source, out, combine, finish)

    def _one_shot(
        self, header: bytes, source: Array, out: Array, combine: Combine
    ) -> None:
        num_bytes = source.nbytes
        raw = source.view(np.uint8)

        def fill(content: Bytes) -> None:
            content[:num_bytes] = raw

        blocks = self._exchange(header, fill)
        views = [b[:num_bytes].view(source.dtype) for b in blocks]
        combine(views[0], views[1], out)
        for view in views[2:]:
            combine(out, view, out)
        self.complete = len(out)

    def reduce_scatter(
        self,
        header: bytes,
        sources: Sequence[Array],
        out: Array,
        combine: Combine,
        finish: Finish | None = None,
    ) -> None:
        """``sources[i]`` is for rank i; ``out`` is mine."""
        me, item = self.rank, out.itemsize
        step = self.geometry.exchange_bytes // self.size // 64 * 64 // item
        longest = max(len(s) for s in sources)
        for start in range(0, longest, step) or (0,):

            def fill(content: Bytes, start: int = start) -> None:
                parts = content.view(out.dtype)
                for p in self.peers:
                    piece = sources[p][start : start + step]
                    parts[p * step : p * step + len(piece)] = piece

            blocks = self._exchange(header, fill)
            mine, result = sources[me][start : start + step], out[start : start + step]
            for p in self.peers:
                at = me * step
                theirs = blocks[p].view(out.dtype)[at : at + len(mine)]
                combine(mine, theirs, result)
                mine = result
            if finish is not None:
                finish(result)
            self.complete = start + len(result)

    def all_gather(self, header: bytes, source: Array, outs: Sequence[Array]) -> None:
        """``outs[i]`` receives rank i's tensor; lengths may differ, all know them."""
        step = self.geometry.exchange_bytes // source.itemsize
        for start in range(0, max(len(o) for o in outs), step) or (0,):

            def fill(content: Bytes, start: int = start) -> None:
                piece = source[start : start + step]
                content.view(source.dtype)[: len(piece)] = piece

            blocks = self._exchange(header, fill)
            for p in self.peers:
                piece = outs[p][start : start + step]
                piece[:] = blocks[p].view(source.dtype)[: len(piece)]
        if outs[self.rank].ctypes.data != source.ctypes.data:
            outs[self.rank][:] = source

    # -- one-way -------------------------------------------------------------------

    def _publish(
        self, header: bytes, readers: Sequence[int], fill: Callable[[Bytes], None]
    ) -> None:
        """Fill the next one-way slot, once all who had to read it have."""
        k = self._published % self.geometry.num_oneways
        self._published += 1
        while self._unread[k]:
            peer = next(iter(self._unread[k]))
            self.wait(self.take[Signal.CREDIT][peer], peer)
            self._unread[self._owed[peer].popleft()].discard(peer)
        slot = self.oneways[self.rank][k]
        fill(slot.content)
        slot.header[:] = header
        for reader in readers:
            self._unread[k].add(reader)
            self._owed[reader].append(k)
            self._neighbours[reader].announce(k)
            self._neighbours[reader].post[Signal.POST]()

    def _consume(self, header: bytes, peer: int, use: Callable[[Bytes], None]) -> None:
        """Use what ``peer`` published for me, and give it credit."""
        self.wait(self.take[Signal.POST][peer], peer)
        k = self._neighbours[peer].announced()
        if k >= self.geometry.num_oneways:
            raise ProtocolError(peer, f"announced slot {k} in shared memory")
        slot = self.oneways[peer][k]
        self._expect(peer, slot, header)
        use(slot.content)
        self._neighbours[peer].post[Signal.CREDIT]()

    def broadcast(self, header: bytes, tensor: Array, root: int) -> None:
        """The root's tensor, piece by piece, to everybody."""
        step = self.geometry.oneway_bytes // tensor.itemsize
        for start in range(0, len(tensor), step) or (0,):
            piece = tensor[start : start + step]
            if self.rank == root:
                self._publish(header, self.peers, _filler(piece))
            else:
                self._consume(header, root, _reader(piece))
            self.complete = start + len(piece)

    def reduce(
        self,
        header: bytes,
        source: Array,
        out: Array | None,
        combine: Combine,
        root: int,
    ) -> None:
        """Everybody's tensor, added by the root in rank order after its own."""
        step = self.geometry.oneway_bytes // source.itemsize
        for start in range(0, len(source), step) or (0,):
            mine = source[start : start + step]
            if out is None:
                self._publish(header, [root], _filler(mine))
                continue
            result = out[start : start + step]
            for p in self.peers:
                self._consume(header, p, _combiner(combine, mine, result))
                mine = result
            self.complete = start + len(result)

    def gather(
        self, header: bytes, source: Array, outs: Sequence[Array] | None, root: int
    ) -> None:
        """``outs[i]``, at the root, receives rank i's tensor."""
        step = self.geometry.oneway_bytes // source.itemsize
        if outs is None:
            for start in range(0, len(source), step) or (0,):
                self._publish(header, [root], _filler(source[start : start + step]))
            return
        longest = max(len(outs[p]) for p in self.peers)
        for start in range(0, longest, step) or (0,):
            for p in self.peers:
                if start < len(outs[p]) or start == 0:
                    self._consume(header, p, _reader(outs[p][start : start + step]))
        np.copyto(outs[root], source)

    def scatter(
        self, header: bytes, sources: Sequence[Array] | None, out: Array, root: int
    ) -> None:
        """``sources[i]``, at the root, goes to rank i."""
        step = self.geometry.oneway_bytes // out.itemsize
        if sources is None:
            for start in range(0, len(out), step) or (0,):
                self._consume(header, root, _reader(out[start : start + step]))
            return
        longest = max(len(sources[p]) for p in self.peers)
        for start in range(0, longest, step) or (0,):
            for p in self.peers:
                if start < len(sources[p]) or start == 0:
                    piece = sources[p][start : start + step]
                    self._publish(header, [p], _filler(piece))
        np.copyto(out, sources[root])

    def all_to_all(
        self,
        headers: dict[int, tuple[bytes, bytes]],
        sources: Sequence[Array],
        outs: Sequence[Array],
    ) -> None:
        """``sources[i]`` goes to rank i, ``outs[i]`` comes from it.

        Lengths differ per pair and only the pair knows them, so each pair has its own
        number of rounds; ``headers``: peer -> (ours, the expected).
        """
        step = self.geometry.oneway_bytes // outs[0].itemsize
        longest = max(len(a) for p in self.peers for a in (sources[p], outs[p]))
        for start in range(0, longest, step) or (0,):
            # In step i everybody publishes for the i-th rank on and reads from the
            # i-th back: no rank can wait for a credit that waits for itself.
            for i in range(1, self.size):
                to, source = (self.rank + i) % self.size, (self.rank - i) % self.size
                if start < len(sources[to]) or start == 0:
                    piece = sources[to][start : start + step]
                    self._publish(headers[to][0], [to], _filler(piece))
                if start < len(outs[source]) or start == 0:
                    piece = outs[source][start : start + step]
                    self._consume(headers[source][1], source, _reader(piece))
        np.copyto(outs[self.rank], sources[self.rank])


def _filler(piece: Array) -> Callable[[Bytes], None]:
    def fill(content: Bytes) -> None:
        np.copyto(content.view(piece.dtype)[: len(piece)], piece)

    return fill


def _reader(piece: Array) -> Callable[[Bytes], None]:
    def read(content: Bytes) -> None:
        np.copyto(piece, content.view(piece.dtype)[: len(piece)])

    return read


def _combiner(combine: Combine, mine: Array, result: Array) -> Callable[[Bytes], None]:
    def read(content: Bytes) -> None:
        combine(mine, content.view(mine.dtype)[: len(mine)], result)

    return read


def _exchanges(segment: Segment, geometry: Geometry) -> list[Slot]:
    stride = PAGE + geometry.exchange_bytes
    starts = (geometry.exchanges_at + k * stride for k in range(geometry.num_exchanges))
    return [Slot(segment, at, geometry.exchange_bytes) for at in starts]


def _oneways(segment: Segment, geometry: Geometry) -> list[Slot]:
    stride = PAGE + geometry.oneway_bytes
    starts = (geometry.oneways_at + k * stride for k in range(geometry.num_oneways))
    return [Slot(segment, at, geometry.oneway_bytes) for at in starts]
