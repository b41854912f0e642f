"""One message to some peers and one from some, all at once.

For a few kilobytes the cost of a collective is its system calls, so header and payload
of a call travel as one message, in buffers that are allocated once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ringleader.engine import gil_interval
from ringleader.engine.arrays import Bytes
from ringleader.engine.arrays_by_address import Addresses, Chunks
from ringleader.engine.engine import Finish, Forms, HeaderMismatch
from ringleader.engine.observer import now_s
from ringleader.engine.waiter import Waiter
from ringleader.transport.crowded_cores import relax
from ringleader.transport.link import Link
from ringleader.wire.header import HEADER_BYTES

PIECE_BYTES = 64 << 10
"""Payload of one message. Every socket buffer takes this much at once. It is also the
limit of prepared calls: beyond it the general path costs little more."""
SPINS = 60
"""Attempts to receive, yielding the core in between, before sleeping."""
START_SPINS = 20
"""The same in the caller of an asynchronous call: about 40 us, what it took to wake
another thread for it."""

Outgoing = tuple[Link, memoryview]
"""(link, message)."""
Unsent = dict[Link, memoryview]
"""What could not be sent yet."""


class Incoming:
    """The room for one message of one peer."""

    __slots__ = ("link", "message", "seen", "total")

    def __init__(self, link: Link, message: memoryview) -> None:
        self.link = link
        self.message = message
        self.seen = message[:HEADER_BYTES]
        self.total = len(message)

    def check(self, header: bytes) -> None:
        """Raise HeaderMismatch unless the message has this header."""
        if self.seen != header:
            raise HeaderMismatch(self.link.peer, bytes(self.seen), header)


class MessageSwap:
    """Moves the messages of one group. One thread at a time."""

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self._buffers: dict[tuple[int, bool], Bytes] = {}

    def buffer(self, peer: int, *, is_incoming: bool) -> Bytes:
        """The memory of messages to or from ``peer``; one call uses it at a time."""
        key = (peer, is_incoming)
        if key not in self._buffers:
            self._buffers[key] = np.empty(HEADER_BYTES + PIECE_BYTES, np.uint8)
        return self._buffers[key]

    def run(
        self,
        outs: Sequence[Outgoing],
        ins: Sequence[Incoming],
        headers: Sequence[bytes],
    ) -> None:
        """Send ``outs`` and receive ``ins``, which must have these ``headers``."""
        self._receive(ins, headers, 0, _send(outs))

    def start(
        self,
        outs: Sequence[Outgoing],
        ins: Sequence[Incoming],
        headers: Sequence[bytes],
    ) -> Finish | None:
        """Do the same without sleeping; return what is left to do, None if nothing."""
        unsent = _send(outs)
        for number, (one, header) in enumerate(zip(ins, headers, strict=True)):
            filled = spins = 0
            while filled < one.total:
                received = one.link.try_recv_into(one.message[filled:])
                filled += received
                if not received:
                    spins += 1
                    if spins > START_SPINS:
                        rest = ins[number:], headers[number:]
                        return partial(self._receive, *rest, filled, unsent)
                    relax()
            one.check(header)
        return partial(self._receive, (), (), 0, unsent) if unsent else None

    def _receive(
        self,
        ins: Sequence[Incoming],
        headers: Sequence[bytes],
        filled: int,
        unsent: Unsent,
    ) -> None:
        """Receive ``ins``, the first of which is ``filled`` so far, and send."""
        for one, header in zip(ins, headers, strict=True):
            filled = filled or one.link.try_recv_into(one.message)
            if filled != one.total:
                self._receive_rest(one, header, filled, unsent)
            one.check(header)
            filled = 0
        while unsent:
            _push(unsent)
            if unsent:
                self._sleep(None, unsent)

    def _receive_rest(
        self, one: Incoming, header: bytes, filled: int, unsent: Unsent
    ) -> None:
        """Receive what the first attempt did not: try again, yield, then sleep."""
        observer = self._waiter.observer
        since_s = 0.0 if observer is None else now_s()
        link, spins = one.link, 0
        while filled < one.total:
            received = link.try_recv_into(one.message[filled:])
            filled += received
            if received:
                self._waiter.moved()
                if filled >= HEADER_BYTES:  # lengths may differ if headers do
                    one.check(header)
            elif spins < SPINS:
                spins += 1
                relax()
            else:
                self._sleep(link, unsent)
            if unsent:
                _push(unsent)
        if observer is not None:
            observer.waited(link.peer, since_s, now_s())

    def _sleep(self, link: Link | None, unsent: Unsent) -> None:
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


def swap_forms(
    swap: MessageSwap,
    messages: tuple[Sequence[Outgoing], Sequence[Incoming]],
    fill: Callable[[Addresses], tuple[Chunks, Sequence[bytes]]],
    use: Callable[[Chunks], None],
) -> Forms:
    """Functions that do a call of one message to and from some peers.

    ``fill`` writes the messages and returns the headers of those that will come.
    """

    def run(addresses: Addresses) -> None:
        chunks, headers = fill(addresses)
        swap.run(*messages, headers)
        use(chunks)

    def start(addresses: Addresses) -> Finish | None:
        chunks, headers = fill(addresses)
        rest = swap.start(*messages, headers)
        if rest is not None:
            return partial(finish, rest, chunks)
        use(chunks)
        return None

    def finish(rest: Finish, chunks: Chunks) -> None:
        rest()
        use(chunks)

    return Forms(gil_interval.shortened(run), gil_interval.shortened(start))


def _send(outs: Sequence[Outgoing]) -> Unsent:
    """Send what can be sent now; return the rest."""
    unsent: Unsent = {}
    for link, message in outs:
        sent = link.try_send(message)
        if sent != len(message):
            unsent[link] = message[sent:]
    return unsent


def _push(unsent: Unsent) -> None:
    for link, rest in list(unsent.items()):
        unsent[link] = rest = rest[link.try_send(rest) :]
        if not rest:
            del unsent[link]
