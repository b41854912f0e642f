"""The hands of the link contract: send, receive, fill and wait, always with a limit.

Nothing here belongs to one kind of link; a broken promise is an AssertionError with a
sentence.
"""

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable

from ringleader.deadline import Deadline
from ringleader.errors import PeerLost
from ringleader.transport.link import POLLIN, POLLOUT, Link, wait_ready

NAP_S = 0.05
"""The longest sleep on armed descriptors: a link may miss a wake-up, as the engine's
waiter knows, but it then costs no more than this."""
MAX_BUFFERED_BYTES = 64 << 20
"""A link that takes more than this from nobody is not bounded."""
FULL_AFTER = 300
"""Refusals in a row, a millisecond apart: TCP makes room 40 ms and 0.25 s later."""
SIZES = (1, 2, 7, 63, 4095, 4096, 4097, 65536, 131072, 131073, 262143, 262145, 1048579)


class Stream:
    """One direction: ``data`` leaves in pieces of SIZES and arrives in other pieces."""

    def __init__(self, source: Link, to: Link, data: bytes, seed: int) -> None:
        self.source, self.to = source, to
        self.data, self.received = data, bytearray()
        self._sent = 0
        self._cuts = random.Random(seed)

    def is_done(self) -> bool:
        """Whether everything has arrived."""
        return len(self.received) >= len(self.data)

    def move(self) -> bool:
        """Send a piece, receive a piece; whether anything moved."""
        size = self._cuts.choice(SIZES)
        piece = memoryview(self.data)[self._sent : self._sent + size]
        sent = self.source.try_send(piece) if piece else 0
        assert 0 <= sent <= len(piece), f"sent {sent} of {len(piece)} bytes"
        self._sent += sent
        buffer = bytearray(self._cuts.choice(SIZES))
        received = self.to.try_recv_into(memoryview(buffer))
        assert 0 <= received <= len(buffer), f"received {received} of {len(buffer)}"
        assert not any(buffer[received:]), "wrote beyond what it said it received"
        self.received += buffer[:received]
        return bool(sent or received)


def rest(streams: list[Stream]) -> None:
    """Nothing moved: sleep until a receiver may go on."""
    wanted: list[tuple[int, int]] = []
    for stream in streams:
        armed = stream.to.arm(sending=False, receiving=True)
        wanted += armed or []
        if armed is None:
            wanted.clear()
            break
    if wanted:
        wait_ready(wanted, NAP_S)
    for stream in streams:
        stream.to.disarm()


def noise(size: int, seed: int) -> bytes:
    """Bytes without a pattern, the same every time."""
    return random.Random(seed).randbytes(size)


def is_ready(wanted: list[tuple[int, int]], timeout_s: float) -> bool:
    """Whether one of the descriptors becomes ready in time."""
    for _, events in wanted:
        assert events & (POLLIN | POLLOUT), f"nobody can wait for events {events}"
    readers = [fd for fd, events in wanted if events & POLLIN]
    writers = [fd for fd, events in wanted if events & POLLOUT]
    return any(select.select(readers, writers, [], timeout_s))


def has_work(link: Link, *, sending: bool, receiving: bool) -> bool:
    """Whether arming says that there is something to do right now."""
    wanted = link.arm(sending=sending, receiving=receiving)
    is_there = wanted is None or is_ready(wanted, 0.0)
    link.disarm()
    return is_there


def wait_for_bytes(link: Link) -> None:
    """Until reading would give something, without reading it."""
    deadline = Deadline.after(5.0)
    while not has_work(link, sending=False, receiving=True):
        assert not deadline.is_over(), "bytes were sent, but nothing came"
        time.sleep(0.001)


def sleep(link: Link, *, sending: bool) -> None:
    """As the engine does it: arm, wait for a moment at most, disarm."""
    wanted = link.arm(sending=sending, receiving=not sending)
    if wanted:
        wait_ready(wanted, NAP_S)
    link.disarm()


def try_until(
    attempt: Callable[[memoryview], int], view: memoryview, within_s: float
) -> int:
    """The first result that is not 0; 0 when none comes in time."""
    deadline = Deadline.after(within_s)
    while not (moved := attempt(view)) and not deadline.is_over():
        time.sleep(0.001)
    return moved


def send(link: Link, data: bytes) -> None:
    """All of ``data``, sleeping while the link is full."""
    view, deadline = memoryview(data), Deadline.after(5.0)
    while view:
        assert not deadline.is_over(), f"{len(view)} bytes could not be sent in 5 s"
        sent = link.try_send(view)
        view = view[sent:]
        if not sent:
            sleep(link, sending=True)


def receive(link: Link, size: int) -> bytes:
    """Exactly ``size`` bytes, sleeping while the link is empty."""
    data, deadline = bytearray(size), Deadline.after(10.0)
    view = memoryview(data)
    while view:
        assert not deadline.is_over(), f"{len(view)} of {size} bytes did not come"
        received = link.try_recv_into(view)
        view = view[received:]
        if not received:
            sleep(link, sending=False)
    return bytes(data)


def expect_nothing(link: Link) -> None:
    """One try to read, as everybody does before sleeping, which finds nothing."""
    received = link.try_recv_into(memoryview(bytearray(1)))
    assert received == 0, "more bytes came than were sent"


def fill(link: Link, data: memoryview) -> int:
    """Send ``data`` round and round until nothing goes any more; how much went."""
    total = num_refusals = 0
    while num_refusals < FULL_AFTER:
        sent = link.try_send(data[total % len(data) :])
        total += sent
        assert total <= MAX_BUFFERED_BYTES, "the link took more than it can hold"
        num_refusals = 0 if sent else num_refusals + 1
        if not sent:
            time.sleep(0.001)
    return total


def expect_lost(attempt: Callable[[memoryview], int], peer: int) -> None:
    """PeerLost naming ``peer``, after no more bytes than a link can buffer."""
    deadline, total = Deadline.after(5.0), 0
    view = memoryview(bytearray(65536))
    blamed: int | str | None = None
    while blamed is None:
        assert not deadline.is_over(), "the peer is gone, and nothing says so"
        assert total <= MAX_BUFFERED_BYTES, "bytes still go to a peer that is gone"
        try:
            total += attempt(view)
        except PeerLost as exc:
            blamed = exc.peer
    assert blamed == peer, f"rank {blamed} is blamed instead of rank {peer}"
