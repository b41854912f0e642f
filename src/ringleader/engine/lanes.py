"""Lanes: what goes to one peer, and what comes from it, in one operation.

Each begins with the header of the operation. One thread moves all lanes at once, and
sleeps when none can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ringleader.engine.waiter import Waiter
from ringleader.transport.link import Link, relax
from ringleader.wire.header import HEADER_BYTES

SPINS = 20
"""Rounds of looking and yielding before sleeping: about 50 us. Where that was in vain,
half as many the next time: on a slow wire, cores have better things to do."""

OnMismatch = Callable[[int, bytes], None]
"""Called with the peer and its header when that is not the one we expect; raises."""


class OutgoingHeader:
    """The header on its way to a peer."""

    __slots__ = ("_left", "_link")

    def __init__(self, link: Link, header: bytes) -> None:
        self._link = link
        self._left = memoryview(header)

    def __bool__(self) -> bool:
        return bool(self._left)

    def push(self) -> bool:
        """Send what can be sent; True when something moved."""
        sent = self._link.try_send(self._left)
        self._left = self._left[sent:]
        return sent > 0


class IncomingHeader:
    """The header on its way from a peer, to be compared with the expected one."""

    __slots__ = ("_expected", "_filled", "_header", "_link", "_on_mismatch")

    def __init__(self, link: Link, expected: bytes, on_mismatch: OnMismatch) -> None:
        self._link = link
        self._expected = expected
        self._header = bytearray(HEADER_BYTES)
        self._filled = 0
        self._on_mismatch = on_mismatch

    def __bool__(self) -> bool:
        return self._filled < HEADER_BYTES

    def pull(self) -> bool:
        """Receive what is there; True when something moved."""
        received = self._link.try_recv_into(memoryview(self._header)[self._filled :])
        self._filled += received
        if self._filled == HEADER_BYTES and self._header != self._expected:
            self._on_mismatch(self._link.peer, bytes(self._header))
        return received > 0


class Out(Protocol):
    """Everything this rank sends to one peer in one operation, in order."""

    link: Link

    def is_finished(self) -> bool:
        """Whether all has been sent."""
        ...

    def has_work(self) -> bool:
        """Whether there is something to send now."""
        ...

    def push(self) -> bool:
        """Send what can be sent; True when something moved."""
        ...


class In(Protocol):
    """Everything this rank receives from one peer in one operation, in order."""

    link: Link

    def is_finished(self) -> bool:
        """Whether all has arrived."""
        ...

    def has_room(self) -> bool:
        """Whether what the peer sends next could be taken now."""
        ...

    def pull(self) -> bool:
        """Receive what is there and fits; True when something moved."""
        ...


def move_all(
    outs: Sequence[Out], ins: Sequence[In], links: Mapping[int, Link], waiter: Waiter
) -> None:
    """Until every lane is finished."""
    spins, patience, has_slept = 0, SPINS, False
    while outs or ins:
        waiter.check()
        moved = False
        for out in outs:
            moved |= out.push()
        for lane in ins:
            moved |= lane.pull()
        if moved:
            if has_slept:
                waiter.moved()
            elif spins:
                patience = SPINS
            spins, has_slept = 0, False
            outs = [o for o in outs if not o.is_finished()]
            ins = [i for i in ins if not i.is_finished()]
        elif spins < patience:
            spins += 1
            relax()
        else:
            _sleep(outs, ins, links, waiter)
            patience, has_slept = patience // 2, True


def _sleep(
    outs: Sequence[Out], ins: Sequence[In], links: Mapping[int, Link], waiter: Waiter
) -> None:
    """Until a link that blocks us has news."""
    sending = {o.link.peer for o in outs if o.has_work()}
    receiving = {i.link.peer for i in ins if i.has_room()}
    armed = [links[p] for p in sending | receiving]
    wanted: list[tuple[int, int]] = []
    try:
        for link in armed:
            pairs = link.arm(
                sending=link.peer in sending, receiving=link.peer in receiving
            )
            if pairs is None:
                return
            wanted += pairs
        waiter.idle(wanted, lambda: sorted(receiving) + sorted(sending))
    finally:
        for link in armed:
            link.disarm()
