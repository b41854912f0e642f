"""The shortest all_reduce over links: one message to and from every peer.

For a few kilobytes the cost of a collective is its system calls, so header and payload
travel as one message and all buffers are allocated once. Every rank adds what it
received in rank order, so the results are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ringleader.engine.arrays import Bytes, bytes_of, storage_dtype
from ringleader.engine.arrays_by_address import Addresses, Chunks, ChunksByAddress
from ringleader.engine.call import Call
from ringleader.engine.engine import Forms, NextHeader, Runs
from ringleader.engine.over_links.message_swap import (
    PIECE_BYTES,
    Incoming,
    MessageSwap,
    swap_forms,
)
from ringleader.engine.reductions import add_in_order
from ringleader.engine.waiter import Waiter
from ringleader.transport.link import Link
from ringleader.wire.header import HEADER_BYTES

MAX_VIEWS = 256
"""Message lengths whose views are kept."""


class MessageViews:
    """Views of the fixed buffers for one message length."""

    __slots__ = ("ins", "out", "outs", "payloads")

    def __init__(
        self, buffers: list[Bytes], rank: int, links: list[Link], num_bytes: int
    ) -> None:
        total = HEADER_BYTES + num_bytes
        self.out = bytes_of(buffers[rank])[:total]
        self.outs = [(link, self.out) for link in links]
        self.ins = [Incoming(k, bytes_of(buffers[k.peer])[:total]) for k in links]
        self.payloads = [b[HEADER_BYTES:total] for b in buffers]


class ExchangeEngine:
    """Exchanges over the links of one group. One thread at a time."""

    def __init__(self, rank: int, links: Mapping[int, Link], waiter: Waiter) -> None:
        self._rank = rank
        self._size = len(links) + 1
        self._links = [links[p] for p in sorted(links)]
        self._waiter = waiter
        self._messages = MessageSwap(waiter)
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
        chunks_at = ChunksByAddress(call.tensors, [call.count], dtype)
        # Not from the cache, which may forget them: these live as long as the closure.
        views = MessageViews(self._buffers, self._rank, self._links, call.num_bytes)
        blocks = [p.view(dtype) for p in views.payloads]
        mine = blocks[self._rank]

        def fill(addresses: Addresses) -> tuple[Chunks, list[bytes]]:
            header = next_header()
            chunks = chunks_at[addresses]
            mine[...] = chunks[0]
            return chunks, self._stamp(views, header)

        def use(chunks: Chunks) -> None:
            tensor = chunks[0]
            add_in_order(blocks, tensor, combine)
            if divide is not None:
                divide(tensor)

        return swap_forms(self._messages, (views.outs, views.ins), fill, use)

    def _prepare_barrier(self, next_header: NextHeader) -> Forms:
        views = MessageViews(self._buffers, self._rank, self._links, 1)

        def fill(_: Addresses) -> tuple[Chunks, list[bytes]]:
            return [], self._stamp(views, next_header())

        def use(_: Chunks) -> None:
            """A barrier has no values."""

        return swap_forms(self._messages, (views.outs, views.ins), fill, use)

    def _stamp(self, views: MessageViews, header: bytes) -> list[bytes]:
        """Write the header of our message; return those of the peers' messages."""
        views.out[:HEADER_BYTES] = header
        return [header] * len(views.ins)

    def progress(self, _call: Call) -> Runs:
        """Calls are too short to have a part that is final before the end."""
        return ()

    def _views_of(self, num_bytes: int) -> MessageViews:
        views = self._views.get(num_bytes)
        if views is None:
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            views = MessageViews(self._buffers, self._rank, self._links, num_bytes)
            self._views[num_bytes] = views
        return views

    def _swap(self, views: MessageViews, header: bytes) -> None:
        """Send our message to every peer and receive theirs."""
        self._messages.run(views.outs, views.ins, self._stamp(views, header))
