"""The shortest all_reduce over links: one message to and from every peer.

For a few kilobytes the cost of a collective is its system calls, so header and payload
travel as one message and all buffers are allocated once. Every rank adds what it
received in rank order, so the results are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ringleader.engine import gil_interval
from ringleader.engine.arrays import Bytes, bytes_of, storage_dtype
from ringleader.engine.arrays_by_address import Addresses, ChunksByAddress
from ringleader.engine.call import Call
from ringleader.engine.engine import Forms, HeaderMismatch, NextHeader, Runs
from ringleader.engine.observer import now_s
from ringleader.engine.reductions import add_in_order
from ringleader.engine.waiter import Waiter
from ringleader.transport.link import Link, relax
from ringleader.wire.header import HEADER_BYTES

PIECE_BYTES = 64 << 10
"""Payload of one message. Every socket buffer takes this much at once. It is also the
limit of prepared calls: beyond it the general path costs little more."""
MAX_VIEWS = 256
"""Message lengths whose views are kept."""
SPINS = 60
"""Attempts to receive, yielding the core in between, before sleeping."""


class MessageViews:
    """Views of the fixed buffers for one message length."""

    __slots__ = ("headers", "messages", "out", "payloads", "total")

    def __init__(self, buffers: list[Bytes], rank: int, num_bytes: int) -> None:
        self.total = HEADER_BYTES + num_bytes
        self.out = bytes_of(buffers[rank])[: self.total]
        self.messages = [bytes_of(b)[: self.total] for b in buffers]
        self.headers = [bytes_of(b)[:HEADER_BYTES] for b in buffers]
        self.payloads = [b[HEADER_BYTES : self.total] for b in buffers]


class ExchangeEngine:
    """Exchanges over the links of one group. One thread at a time."""

    def __init__(self, rank: int, links: Mapping[int, Link], waiter: Waiter) -> None:
        self._rank = rank
        self._size = len(links) + 1
        self._links = [links[p] for p in sorted(links)]
        self._waiter = waiter
        length = HEADER_BYTES + PIECE_BYTES
        self._buffers = [np.empty(length, np.uint8) for _ in range(self._size)]
        self._views: dict[int, MessageViews] = {}

    def run(self, call: Call, header: bytes) -> None:
        """An all_reduce of any length, in pieces, or a barrier: one byte to all.

        Every piece carries the header; only the first one's can differ.
        """
        if call.operation == "barrier":
            self._swap(self._views_of(1), header)
            return
        source, out, combine = call.input, call.output, call.combine()
        step = PIECE_BYTES // source.itemsize
        for start in range(0, len(source), step) or (0,):
            self._waiter.check()
            piece = source[start : start + step]
            views = self._views_of(piece.nbytes)
            views.payloads[self._rank][:] = piece.view(np.uint8)
            self._swap(views, header)
            blocks = [p.view(source.dtype) for p in views.payloads]
            add_in_order(blocks, out[start : start + step], combine)
        divide = call.divide(self._size)
        if divide is not None:
            divide(out)

    def prepare(self, call: Call, next_header: NextHeader) -> Forms | None:
        """A barrier, or an all_reduce of one message, with all views made."""
        if call.operation == "barrier":
            return self._prepare_barrier(next_header)
        if call.operation != "all_reduce" or call.num_bytes > PIECE_BYTES:
            return None
        dtype = storage_dtype(call.dtype)
        combine, divide = call.combine(), call.divide(self._size)
        chunks = ChunksByAddress(call.tensors, [call.count], dtype)
        # Not from the cache, which may forget them: these live as long as the closure.
        views = MessageViews(self._buffers, self._rank, call.num_bytes)
        blocks = [p.view(dtype) for p in views.payloads]
        mine = blocks[self._rank]
        swap = self._swap

        def run(addresses: Addresses) -> None:
            header = next_header()
            (tensor,) = chunks[addresses]
            mine[...] = tensor
            swap(views, header)
            add_in_order(blocks, tensor, combine)
            if divide is not None:
                divide(tensor)

        return Forms(gil_interval.shortened(run))

    def _prepare_barrier(self, next_header: NextHeader) -> Forms:
        views, swap = MessageViews(self._buffers, self._rank, 1), self._swap

        def run(_: Addresses) -> None:
            swap(views, next_header())

        return Forms(gil_interval.shortened(run))

    def progress(self, _call: Call) -> Runs:
        """Calls are too short to have a part that is final before the end."""
        return ()

    def _views_of(self, num_bytes: int) -> MessageViews:
        views = self._views.get(num_bytes)
        if views is None:
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            views = MessageViews(self._buffers, self._rank, num_bytes)
            self._views[num_bytes] = views
        return views

    def _swap(self, views: MessageViews, header: bytes) -> None:
        """Send our message to every peer and receive theirs."""
        out = views.out
        out[:HEADER_BYTES] = header
        unsent: dict[Link, int] = {}
        total = views.total
        for link in self._links:
            sent = link.try_send(out)
            if sent != total:
                unsent[link] = sent
        for link in self._links:
            peer = link.peer
            received = link.try_recv_into(views.messages[peer])
            if received != total:
                self._receive_rest(link, views, received, unsent)
            if views.headers[peer] != header:
                raise HeaderMismatch(peer, bytes(views.headers[peer]), header)
        while unsent:
            self._push(unsent, views)
            if unsent:
                self._sleep(None, unsent)

    def _receive_rest(
        self, link: Link, views: MessageViews, filled: int, unsent: dict[Link, int]
    ) -> None:
        """Receive what the first attempt did not: try again, yield, then sleep."""
        observer = self._waiter.observer
        since_s = 0.0 if observer is None else now_s()
        message, total, spins = views.messages[link.peer], views.total, 0
        while filled < total:
            received = link.try_recv_into(message[filled:])
            filled += received
            if received:
                self._waiter.moved()
                self._check_header(link.peer, views, filled)
            elif spins < SPINS:
                spins += 1
                relax()
            else:
                self._sleep(link, unsent)
            if unsent:
                self._push(unsent, views)
        if observer is not None:
            observer.waited(link.peer, since_s, now_s())

    def _check_header(self, peer: int, views: MessageViews, filled: int) -> None:
        """Compare the header before the payload is complete: lengths may differ."""
        theirs, ours = views.headers[peer], views.out[:HEADER_BYTES]
        if filled >= HEADER_BYTES and theirs != ours:
            raise HeaderMismatch(peer, bytes(theirs), bytes(ours))

    def _push(self, unsent: dict[Link, int], views: MessageViews) -> None:
        for link, sent in list(unsent.items()):
            unsent[link] = sent + link.try_send(views.out[sent:])
            if unsent[link] == views.total:
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
