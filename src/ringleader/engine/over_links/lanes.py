"""Lanes: the bytes to one peer, or from one peer, in one operation.

Each lane begins with the header of the operation. One thread moves all lanes at once
and sleeps when none can move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ringleader.engine.engine import HeaderMismatch
from ringleader.engine.observer import now_s
from ringleader.engine.waiter import Waiter
from ringleader.transport.crowded_cores import relax
from ringleader.transport.link import Link
from ringleader.wire.header import HEADER_BYTES

SPINS = 20
"""Rounds of polling and yielding before sleeping: about 50 us. After rounds that were
in vain, half as many the next time: on a slow wire the cores have better things to do.
"""


class OutgoingHeader:
    """The header that is being sent to a peer. True while bytes are left."""

    __slots__ = ("_left", "_link")

    def __init__(self, link: Link, header: bytes) -> None:
        self._link = link
        self._left = memoryview(header)

    def __bool__(self) -> bool:
        return bool(self._left)

    def push(self) -> bool:
        """Send what can be sent; return whether anything moved."""
        sent = self._link.try_send(self._left)
        self._left = self._left[sent:]
        return sent > 0


class IncomingHeader:
    """The header that is being received from a peer. True while bytes are missing."""

    __slots__ = ("_expected", "_filled", "_header", "_link")

    def __init__(self, link: Link, expected: bytes) -> None:
        self._link = link
        self._expected = expected
        self._header = bytearray(HEADER_BYTES)
        self._filled = 0

    def __bool__(self) -> bool:
        return self._filled < HEADER_BYTES

    def pull(self) -> bool:
        """Receive what is there; return whether anything moved.

        Raises HeaderMismatch if the complete header is not the expected one.
        """
        received = self._link.try_recv_into(memoryview(self._header)[self._filled :])
        self._filled += received
        if self._filled == HEADER_BYTES and self._header != self._expected:
            raise HeaderMismatch(self._link.peer, bytes(self._header), self._expected)
        return received > 0


class OutLane(Protocol):
    """Everything this rank sends to one peer in one operation, in order."""

    link: Link

    def is_finished(self) -> bool:
        """Whether everything has been sent."""
        ...

    def has_work(self) -> bool:
        """Whether there is something to send now."""
        ...

    def push(self) -> bool:
        """Send what can be sent; return whether anything moved."""
        ...


class InLane(Protocol):
    """Everything this rank receives from one peer in one operation, in order."""

    link: Link

    def is_finished(self) -> bool:
        """Whether everything has arrived."""
        ...

    def has_room(self) -> bool:
        """Whether the peer's next bytes could be stored now."""
        ...

    def pull(self) -> bool:
        """Receive what is there and fits; return whether anything moved."""
        ...


def move_all(
    outs: Sequence[OutLane],
    ins: Sequence[InLane],
    links: Mapping[int, Link],
    waiter: Waiter,
) -> None:
    """Move bytes until every lane is finished."""
    patience = SPINS
    try:
        while outs or ins:
            waiter.check()
            if _move_once(outs, ins) is None:
                patience = _wait_for_a_move(outs, ins, links, waiter, patience)
            outs = [o for o in outs if not o.is_finished()]
            ins = [i for i in ins if not i.is_finished()]
    except BaseException:
        for out in outs:
            out.link.stop_sending()  # the caller may change its tensors now
        raise


def _move_once(
    outs: Sequence[OutLane], ins: Sequence[InLane]
) -> OutLane | InLane | None:
    """Move what can be moved now; return a lane that moved, if one did."""
    mover: OutLane | InLane | None = None
    for out in outs:
        if out.push():
            mover = out
    for lane in ins:
        if lane.pull():
            mover = lane
    return mover


def _wait_for_a_move(
    outs: Sequence[OutLane],
    ins: Sequence[InLane],
    links: Mapping[int, Link],
    waiter: Waiter,
    patience: int,
) -> int:
    """Yield ``patience`` times, then sleep, until a lane moves.

    Returns the patience to have the next time.
    """
    observer = waiter.observer
    since_s = 0.0 if observer is None else now_s()
    spins, has_slept, mover = 0, False, None
    while mover is None:
        if spins < patience:
            spins += 1
            relax()
        else:
            _sleep(outs, ins, links, waiter)
            patience, has_slept = patience // 2, True
        waiter.check()
        mover = _move_once(outs, ins)
    if has_slept:
        waiter.moved()
    if observer is not None:
        observer.waited(mover.link.peer, since_s, now_s())
    return patience if has_slept else SPINS


def _sleep(
    outs: Sequence[OutLane],
    ins: Sequence[InLane],
    links: Mapping[int, Link],
    waiter: Waiter,
) -> None:
    """Sleep until a link that a lane waits for may be ready."""
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
