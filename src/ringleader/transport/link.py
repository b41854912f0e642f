"""What the engine knows of a link, and the two system calls that differ by platform."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from ringleader.errors import PeerLost

POLLIN = getattr(select, "POLLIN", 1)
POLLOUT = getattr(select, "POLLOUT", 4)

relax: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
"""Give the core to whoever is ready. ``time.sleep(0)`` costs 50 us on Linux, so it is
used only where ``sched_yield`` does not exist (Windows, where it is a yield)."""


class Link(Protocol):
    """An ordered byte stream to one peer; never blocks. One thread at a time."""

    peer: int
    kind: str

    def try_send(self, view: memoryview) -> int:
        """Bytes taken from ``view``, 0 when the link is full; PeerLost when gone.

        The next ``view`` goes on where the last one was taken to: it may be longer than
        what was not taken, not other bytes. An encrypted link has begun to send them.
        """
        ...

    def try_recv_into(self, view: memoryview) -> int:
        """Bytes put into ``view``, 0 when none are there; PeerLost at the end."""
        ...

    def arm(self, *, sending: bool, receiving: bool) -> list[tuple[int, int]] | None:
        """Get ready to sleep: the (descriptor, events) to poll; None: work is there."""
        ...

    def disarm(self) -> None:
        """Awake again; called after every ``arm``."""
        ...

    def close(self) -> None:
        """End the stream; the peer sees PeerLost. Idempotent."""
        ...


def lost(peer: int, exc: OSError) -> PeerLost:
    """The one translation of operating system errors of a living stream."""
    return PeerLost(peer, f"connection lost ({exc.strerror or exc})")


def wait_ready(wanted: Iterable[tuple[int, int]], timeout_s: float) -> None:
    """Sleep until one of the (file descriptor, poll events) is ready, or time is up."""
    if hasattr(select, "poll"):
        poll = select.poll()
        for fd, events in wanted:
            poll.register(fd, events)
        poll.poll(timeout_s * 1000)
        return
    pairs = list(wanted)
    readers = [fd for fd, events in pairs if events & POLLIN]
    writers = [fd for fd, events in pairs if events & POLLOUT]
    select.select(readers, writers, [fd for fd, _ in pairs], timeout_s)
