"""Helpers of the link contract: send, receive, fill and wait, all with a time limit.

They work with every kind of link; a violated contract raises an AssertionError that
describes it.
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
"""Longest sleep on armed descriptors: a link may miss a wake-up, as the engine's waiter
expects, which then costs at most this time."""
WAIT_S = 60.0
"""How long to wait for what takes milliseconds unless the machine is busy."""
MAX_BUFFERED_BYTES = 64 << 20
"""A link that buffers more than this without a reader is considered unbounded."""
FULL_AFTER = 300
"""Refused sends in a row, a millisecond apart, after which a link counts as full: TCP
may still make room 40 ms and 0.25 s later."""
SIZES = (1, 2, 7, 63, 4095, 4096, 4097, 65536, 131072, 131073, 262143, 262145, 1048579)


class Stream:
    """One direction: sends ``data`` in pieces of SIZES, receives it in other pieces."""

    def __init__(self, source: Link, to: Link, data: bytes, seed: int) -> None:
        self.source, self.to = source, to
        self.data, self.received = data, bytearray()
        self._sent = 0
        self._cuts = random.Random(seed)

    def is_done(self) -> bool:
        return len(self.received) >= len(self.data)

    def move(self) -> bool:
        """Send a piece and receive a piece; return whether any byte moved."""
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
    """Sleep until one of the receivers may have bytes."""
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
    """Return pseudo-random bytes that depend only on ``seed``."""
    return random.Random(seed).randbytes(size)


def is_ready(wanted: list[tuple[int, int]], timeout_s: float) -> bool:
    """Return whether one of the descriptors becomes ready in time."""
    for _, events in wanted:
        assert events & (POLLIN | POLLOUT), f"nobody can wait for events {events}"
    readers = [fd for fd, events in wanted if events & POLLIN]
    writers = [fd for fd, events in wanted if events & POLLOUT]
    return any(select.select(readers, writers, [], timeout_s))


def has_work(link: Link, *, sending: bool, receiving: bool) -> bool:
    """Return whether ``arm`` reports that a send or receive would succeed now."""
    wanted = link.arm(sending=sending, receiving=receiving)
    is_there = wanted is None or is_ready(wanted, 0.0)
    link.disarm()
    return is_there


def wait_for_bytes(link: Link) -> None:
    """Wait until a read would return bytes, without reading them."""
    deadline = Deadline.after(WAIT_S)
    while not has_work(link, sending=False, receiving=True):
        assert not deadline.is_over(), "bytes were sent, but nothing came"
        time.sleep(0.001)


def sleep(link: Link, *, sending: bool) -> bool:
    """Sleep as the engine does: arm, wait for at most NAP_S, disarm.

    Returns whether it slept to the end and nothing woke it.
    """
    wanted = link.arm(sending=sending, receiving=not sending)
    is_over = bool(wanted) and not wait_ready(wanted or [], NAP_S)
    link.disarm()
    return is_over


def try_until(
    attempt: Callable[[memoryview], int], view: memoryview, within_s: float
) -> int:
    """Repeat ``attempt`` until it returns more than 0; return 0 after ``within_s``."""
    deadline = Deadline.after(within_s)
    while not (moved := attempt(view)) and not deadline.is_over():
        time.sleep(0.001)
    return moved


def send(link: Link, data: bytes) -> None:
    """Send all of ``data``, sleeping while the link is full."""
    view, deadline = memoryview(data), Deadline.after(WAIT_S)
    while view:
        assert not deadline.is_over(), (
            f"{len(view)} bytes could not be sent in {WAIT_S:g} s"
        )
        sent = link.try_send(view)
        view = view[sent:]
        if not sent:
            sleep(link, sending=True)


def receive(link: Link, size: int) -> bytes:
    """Receive exactly ``size`` bytes, sleeping while the link is empty."""
    return receive_and_count(link, size)[0]


def receive_and_count(link: Link, size: int) -> tuple[bytes, int]:
    """The same, and how often bytes were there though nothing had ended the sleep."""
    data, deadline = bytearray(size), Deadline.after(WAIT_S)
    view = memoryview(data)
    has_overslept, num_missed = False, 0
    while view:
        assert not deadline.is_over(), f"{len(view)} of {size} bytes did not come"
        received = link.try_recv_into(view)
        view = view[received:]
        num_missed += bool(received) and has_overslept
        has_overslept = not received and sleep(link, sending=False)
    return bytes(data), num_missed


def expect_nothing(link: Link) -> None:
    """Check that a read, which callers try before they sleep, returns nothing."""
    received = link.try_recv_into(memoryview(bytearray(1)))
    assert received == 0, "more bytes came than were sent"


def fill(link: Link, data: memoryview) -> tuple[int, list[tuple[int, int]]]:
    """Send ``data`` repeatedly until the link is full and says so.

    Returns the number of bytes and the descriptors of the armed link.
    """
    total, deadline = 0, Deadline.after(WAIT_S)
    while True:
        total = _fill_on(link, data, total)
        wanted = link.arm(sending=True, receiving=False)
        if wanted and not is_ready(wanted, 0.0):
            return total, wanted
        link.disarm()  # a link that carries bytes by threads may be late to make room
        assert not deadline.is_over(), "a full link says that it has room"


def _fill_on(link: Link, data: memoryview, total: int) -> int:
    num_refusals = 0
    while num_refusals < FULL_AFTER:
        sent = link.try_send(data[total % len(data) :])
        total += sent
        assert total <= MAX_BUFFERED_BYTES, "the link took more than it can hold"
        num_refusals = 0 if sent else num_refusals + 1
        if not sent:
            time.sleep(0.001)
    return total


def expect_lost(attempt: Callable[[memoryview], int], peer: int) -> None:
    """Expect PeerLost naming ``peer``, after at most what a link can buffer."""
    deadline, total = Deadline.after(WAIT_S), 0
    view = memoryview(bytearray(65536))
    blamed: int | str | None = None
    while blamed is None:
        assert not deadline.is_over(), (
            f"the peer has closed, but no PeerLost was raised within {WAIT_S:g} s"
        )
        assert total <= MAX_BUFFERED_BYTES, (
            "the link still accepts bytes for a closed peer"
        )
        try:
            total += attempt(view)
        except PeerLost as exc:
            blamed = exc.peer
    assert blamed == peer, f"rank {blamed} is blamed instead of rank {peer}"
