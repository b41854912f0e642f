"""The shared memory of the ranks of one host: slots, signals and waiting.

Theory of operation. Every rank owns a segment (transport/shm_segment.py) with three
areas and notifies others by signals, which also order memory accesses. There are three
patterns of use:

exchange    Every rank fills its slot and posts; when all have posted, every rank reads
            all slots. Filling may run one round ahead of reading. Four slots are used
            in turn, for ever: a rank that fills round s+4 has read round s+2, for which
            every peer had posted, and a peer fills s+2 only after it has read all of s.
relay       All_reduce and reduce_scatter of large tensors; see relay.py.
one-way     A rank fills a slot for some readers. Each reader returns a CREDIT when it
            has read the slot, which is filled again only when all credits are back.
            Credits are collected lazily, across operations.

Every filled slot carries the 64-byte header of the operation, and every reader compares
it with its own, so a mismatch between calls is detected before any value is used.
Results are computed in one place, or in rank order, so they are bit-identical.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from ringleader.engine import gil_interval
from ringleader.engine.arrays import Array, Bytes
from ringleader.engine.engine import HeaderMismatch
from ringleader.engine.observer import now_s
from ringleader.engine.shared_memory.polling import (
    IDLE_S,
    Take,
    comes_at_once,
    comes_soon,
    comes_within,
)
from ringleader.engine.waiter import Waiter
from ringleader.errors import ProtocolError
from ringleader.transport.crowded_cores import are_crowded
from ringleader.transport.link import POLLIN, yield_core
from ringleader.transport.shm_link import ShmPeer
from ringleader.transport.shm_segment import PAGE, Segment, Signal
from ringleader.wire.header import HEADER_BYTES

NUM_NAPS, NAP_S = 3, 0.001
"""After polling, short sleeps on the signal itself: a post ends them sooner than the
doorbell would. Only then the doorbell, which also reports a dead peer. With four ranks
on two cores this halves an all_reduce of 64 KiB compared to 400 polls without naps, and
takes 8 to 19 % off one of 64 MiB (2026-11-15)."""


class Slot:
    """One slot of one rank: the header of an operation and the content."""

    __slots__ = ("content", "header")

    def __init__(self, segment: Segment, at: int, num_bytes: int) -> None:
        self.header = segment.view[at : at + HEADER_BYTES]
        self.content: Bytes = segment.bytes[at + PAGE : at + PAGE + num_bytes]


class Arena:
    """The segments of all ranks of a group on one host. One thread at a time."""

    def __init__(
        self,
        rank: int,
        shm_peers: dict[int, ShmPeer],
        segment: Segment,
        waiter: Waiter,
    ) -> None:
        geometry = next(iter(shm_peers.values())).geometry
        self.rank = rank
        self.size = geometry.size
        self.peers = [p for p in range(self.size) if p != rank]
        self._shm_peers = shm_peers
        self._waiter = waiter
        self.check = waiter.check
        self.segments = [
            segment if r == rank else shm_peers[r].theirs for r in range(self.size)
        ]
        self.geometry = geometry
        self.exchanges = [
            self._slots(s, geometry.exchanges_at, geometry.num_exchanges)
            for s in self.segments
        ]
        self.oneways = [
            self._slots(s, geometry.oneways_at, geometry.num_oneways)
            for s in self.segments
        ]
        self.copied_bytes = geometry.slot_bytes
        """Bytes of a piece that is only copied, equal on all ranks. Pieces that are
        added have ``geometry.slot_bytes``."""
        self._num_exchanges = geometry.num_exchanges
        self.post = [[n.post[s] for n in self._in_order()] for s in Signal]
        self.take = [{p: shm_peers[p].take[s] for p in self.peers} for s in Signal]
        self._turn = 0
        self._published = 0
        self._unread: list[set[int]] = [set() for _ in range(geometry.num_oneways)]
        self._uncredited: dict[int, deque[int]] = {p: deque() for p in self.peers}
        self.copy: Callable[[Array, Array], object] = np.copyto
        """(to, from): copies an array to or from a slot."""
        self.complete = 0
        """Elements of the result that are final; read after a failure."""
        self.has_idle_core = False
        """Whether a thread of this rank may wait without sleeping at once; each rank
        has its own answer."""

    def _slots(self, segment: Segment, start: int, count: int) -> list[Slot]:
        stride = self.geometry.slot_stride
        starts = range(start, start + count * stride, stride)
        return [Slot(segment, at, stride - PAGE) for at in starts]

    def _in_order(self) -> list[ShmPeer]:
        return [self._shm_peers[p] for p in self.peers]

    # -- waiting -------------------------------------------------------------------

    def wait(self, take: Take, peer: int) -> None:
        """Return when ``peer`` has given the signal that ``take`` consumes.

        The observer is told of waits that outlast the spinning: to time every one costs
        an all_reduce of 1 MiB 1 % (2026-11-17).
        """
        if comes_at_once(take):
            return
        gil_interval.begin()
        try:
            if comes_soon(take):
                return
            observer = self._waiter.observer
            if observer is None:
                self._wait_long(take, peer)
            else:
                since_s = now_s()
                self._wait_long(take, peer)
                observer.waited(peer, since_s, now_s())
        finally:
            gil_interval.end()

    def takes_soon(self, take: Take) -> bool:
        """Take a signal that comes within the first polls; return whether it did."""
        if comes_at_once(take):
            return True
        gil_interval.begin()
        try:
            return comes_soon(take)
        finally:
            gil_interval.end()

    def _wait_long(self, take: Take, peer: int) -> None:
        if self.has_idle_core and not are_crowded() and comes_within(take, IDLE_S):
            return
        if self._shm_peers[peer].has_semaphores:
            for _ in range(NUM_NAPS):
                if take(True, NAP_S):
                    return
                self.check()
        self._sleep(take, peer)

    def _sleep(self, take: Take, peer: int) -> None:
        shm_peer = self._shm_peers[peer]
        doorbell = [(shm_peer.doorbell.fileno(), POLLIN)]
        while True:
            shm_peer.arm()
            yield_core()  # makes the flag visible before the last poll
            try:
                if take(False):
                    return
                self._waiter.idle(doorbell, lambda: [peer])
            finally:
                shm_peer.disarm()
            if shm_peer.hear_unless(lambda: take(False)):
                self._waiter.moved()
                return

    def expect(self, peer: int, slot: Slot, header: bytes) -> None:
        """Raise HeaderMismatch unless ``peer`` filled ``slot`` in the same call."""
        if slot.header != header:
            raise HeaderMismatch(peer, bytes(slot.header), header)

    # -- exchange ------------------------------------------------------------------

    def rounds(
        self,
        header: bytes,
        count: int,
        fill: Callable[[int, Bytes], None],
        use: Callable[[int, list[Bytes]], None],
    ) -> None:
        """Run ``count`` exchanges: ``fill`` our slot, then ``use`` all ranks' slots.

        Filling runs one round ahead of using, so that ranks need not keep step.
        """
        first, num = self._turn, self.geometry.num_exchanges
        self._turn += count
        for c in range(count + 1):
            self.check()
            if c < count:
                mine = self.exchanges[self.rank][(first + c) % num]
                fill(c, mine.content)
                mine.header[:] = header
                for post in self.post[Signal.POST]:
                    post()
            if c > 0:
                k = (first + c - 1) % num
                for peer in self.peers:
                    self.wait(self.take[Signal.POST][peer], peer)
                    self.expect(peer, self.exchanges[peer][k], header)
                use(c - 1, [slots[k].content for slots in self.exchanges])

    def next_turn(self) -> int:
        """Return the index of the next exchange slot; slots are used in turn."""
        turn = self._turn
        self._turn = turn + 1
        return turn % self._num_exchanges

    # -- one-way -------------------------------------------------------------------

    def publish(
        self, header: bytes, readers: Sequence[int], fill: Callable[[Bytes], None]
    ) -> None:
        """Fill the next one-way slot, once all its former readers have read it."""
        self.check()
        k = self.claim_oneway()
        slot = self.oneways[self.rank][k]
        fill(slot.content)
        slot.header[:] = header
        self.announce(k, readers)

    def claim_oneway(self) -> int:
        """Return the next one-way slot, once all its former readers have read it."""
        k = self._published % self.geometry.num_oneways
        self._published += 1
        unread = self._unread[k]
        while unread:
            peer = next(iter(unread))
            self.wait(self.take[Signal.CREDIT][peer], peer)
            self._unread[self._uncredited[peer].popleft()].discard(peer)
        return k

    def can_claim(self) -> bool:
        """Return whether ``claim_oneway`` would not wait."""
        unread = self._unread[self._published % self.geometry.num_oneways]
        while unread:
            peer = next(iter(unread))
            if not self.take[Signal.CREDIT][peer](False):
                return False
            self._unread[self._uncredited[peer].popleft()].discard(peer)
        return True

    def announce(self, k: int, readers: Sequence[int]) -> None:
        """Tell ``readers`` that one-way slot ``k`` is filled for them."""
        self._unread[k].update(readers)
        for reader in readers:
            self._uncredited[reader].append(k)
            self._shm_peers[reader].announce(k)
            self._shm_peers[reader].post[Signal.ONEWAY]()

    def consume(self, header: bytes, peer: int, use: Callable[[Bytes], None]) -> None:
        """Use the slot that ``peer`` published for this rank, and return a credit."""
        self.check()
        self.wait(self.take[Signal.ONEWAY][peer], peer)
        slot = self.oneways[peer][self.announced(peer)]
        self.expect(peer, slot, header)
        use(slot.content)
        self._shm_peers[peer].post[Signal.CREDIT]()

    def announced(self, peer: int) -> int:
        """Return the slot that the ONEWAY signal just taken from ``peer`` is about."""
        k = self._shm_peers[peer].announced()
        if k >= self.geometry.num_oneways:
            raise ProtocolError(peer, f"announced slot {k} in shared memory")
        return k

    def credit(self, peer: int) -> Callable[[], None]:
        """The function that tells ``peer`` that this rank has read a slot of it."""
        return self._shm_peers[peer].post[Signal.CREDIT]
