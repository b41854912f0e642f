"""The shortest all_reduce over links: everybody to everybody, one system call each.

For a few kilobytes the price of a collective is its calls, so header and payload travel
as one message, all memory is made once, and what every rank received is added in rank
order, which makes the results equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ringleader.engine.arrays import Array, bytes_of
from ringleader.engine.reductions import Combine
from ringleader.engine.waiter import Waiter
from ringleader.transport.link import Link, relax
from ringleader.wire.header import HEADER_BYTES

PIECE_BYTES = 64 << 10
"""Payload of one message. Every socket buffer takes this much at once."""
SPINS = 60


class Size:
    """Views of the fixed buffers for one message length, made once."""

    __slots__ = ("inbox", "out", "payload", "seen", "total")

    def __init__(
        self, streams: list[NDArray[np.uint8]], rank: int, num_bytes: int
    ) -> None:
        self.total = HEADER_BYTES + num_bytes
        self.out = bytes_of(streams[rank])[: self.total]
        self.inbox = [bytes_of(b)[: self.total] for b in streams]
        self.seen = [bytes_of(b)[:HEADER_BYTES] for b in streams]
        self.payload = [b[HEADER_BYTES : self.total] for b in streams]


class ExchangeEngine:
    """Exchanges over the links of one group. One thread at a time."""

    def __init__(
        self,
        rank: int,
        links: Mapping[int, Link],
        waiter: Waiter,
        on_mismatch: Callable[[int, bytes], None],
    ) -> None:
        self.rank = rank
        self.size = len(links) + 1
        self._links = [links[p] for p in sorted(links)]
        self._waiter = waiter
        self._on_mismatch = on_mismatch
        length = HEADER_BYTES + PIECE_BYTES
        self._streams = [np.empty(length, np.uint8) for _ in range(self.size)]
        self._sizes: dict[int, Size] = {}

    def all_reduce(
        self, header: bytes, source: Array, out: Array, combine: Combine
    ) -> None:
        """Any length, in pieces; only the first carries a header that can differ."""
        step = PIECE_BYTES // source.itemsize
        for start in range(0, len(source), step) or (0,):
            self._waiter.check()
            piece = source[start : start + step]
            num_bytes = piece.nbytes
            size = self._sizes.get(num_bytes) or self.prepare(num_bytes)
            size.payload[self.rank][:] = piece.view(np.uint8)
            self.swap(size, header)
            blocks = [p.view(source.dtype) for p in size.payload]
            result = out[start : start + step]
            combine(blocks[0], blocks[1], result)
            for block in blocks[2:]:
                combine(result, block, result)

    def prepare(self, num_bytes: int) -> Size:
        """The views of the buffers for messages of ``num_bytes``."""
        if len(self._sizes) > 256:
            self._sizes.clear()
        size = self._sizes[num_bytes] = Size(self._streams, self.rank, num_bytes)
        return size

    def swap(self, size: Size, header: bytes) -> None:
        """Send my stream to everybody, fill theirs with what they sent."""
        out = size.out
        out[:HEADER_BYTES] = header
        unsent: dict[Link, int] = {}
        total = size.total
        for link in self._links:
            sent = link.try_send(out)
            if sent != total:
                unsent[link] = sent
        for link in self._links:
            peer = link.peer
            got = link.try_recv_into(size.inbox[peer])
            if got != total:
                self._rest(link, size, got, unsent)
            if size.seen[peer] != header:
                self._on_mismatch(peer, bytes(size.seen[peer]))
        while unsent:
            self._push(unsent, size)
            if unsent:
                self._sleep(None, unsent)

    def _rest(self, link: Link, size: Size, got: int, unsent: dict[Link, int]) -> None:
        """What one try did not bring: look again, yield, at last sleep."""
        inbox, total, spins = size.inbox[link.peer], size.total, 0
        while got < total:
            received = link.try_recv_into(inbox[got:])
            got += received
            if received:
                self._waiter.moved()
                if (
                    got >= HEADER_BYTES
                    and size.seen[link.peer] != size.out[:HEADER_BYTES]
                ):
                    self._on_mismatch(link.peer, bytes(size.seen[link.peer]))
            elif spins < SPINS:
                spins += 1
                relax()
            else:
                self._sleep(link, unsent)
            if unsent:
                self._push(unsent, size)

    def _push(self, unsent: dict[Link, int], size: Size) -> None:
        for link, sent in list(unsent.items()):
            unsent[link] = sent + link.try_send(size.out[sent:])
            if unsent[link] == size.total:
                del unsent[link]

    def _sleep(self, link: Link | None, unsent: dict[Link, int]) -> None:
        armed = list(unsent) + ([link] if link and link not in unsent else [])
        wanted: list[tuple[int, int]] = []
        try:
            for each in armed:
                pairs = each.arm(sending=each in unsent, receiving=each is link)
                if pairs is None:
                    return
                wanted += pairs
            blocked = [link.peer] if link else [each.peer for each in unsent]
            self._waiter.idle(wanted, lambda: blocked)
        finally:
            for each in armed:
                each.disarm()
