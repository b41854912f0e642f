"""Link is the interface the engine needs from a connection to one peer.

Also here are the two system calls that differ by platform: yield and poll.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from ringleader.errors import PeerLost

POLLIN = getattr(select, "POLLIN", 1)
POLLOUT = getattr(select, "POLLOUT", 4)

yield_core: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
"""Yield the core to another thread. ``time.sleep(0)`` costs 50 us on Linux, so it is
used only where ``sched_yield`` does not exist (Windows, where it yields)."""


class Link(Protocol):
    """An ordered byte stream to one peer. Calls never block; one thread at a time."""

    peer: int
    kind: str
    sends_behind: bool
    """Whether ``try_send_behind`` returns before it has sent."""

    @property
    def sent_bytes(self) -> int:
        """Bytes that have left so far; encrypted ones where the link encrypts."""
        ...

    @property
    def received_bytes(self) -> int:
        """Bytes that have arrived so far, counted like the sent ones."""
        ...

    def try_send(self, view: memoryview) -> int:
        """Return how many bytes of ``view`` were taken, 0 if the link is full.

        Raises PeerLost if the peer is gone. The next ``view`` must continue where the
        last one was taken to: it may be longer than the rest, but not hold other bytes,
        because an encrypted link has already begun to send them.
        """
        ...

    def try_send_behind(self, view: memoryview) -> int:
        """``try_send`` for long streams: a thread may send while the caller goes on.

        What it sent is counted by the next calls, and until then it reads ``view``. So
        a caller whose operation fails calls ``stop_sending`` before it returns.
        """
        ...

    def stop_sending(self) -> None:
        """Read no view any more. The link is of no use then."""
        ...

    def try_recv_into(self, view: memoryview) -> int:
        """Return how many bytes were put into ``view``, 0 if none are here.

        Raises PeerLost at the end of the stream.
        """
        ...

    def arm(self, *, sending: bool, receiving: bool) -> list[tuple[int, int]] | None:
        """Prepare to sleep: return (descriptor, events) to poll, or None if work is
        here."""
        ...

    def disarm(self) -> None:
        """End the preparation; called after every ``arm``."""
        ...

    def close(self) -> None:
        """End the stream; the peer sees PeerLost. Idempotent."""
        ...


def lost(peer: int, exc: OSError) -> PeerLost:
    """Translate an operating system error on an open stream into PeerLost."""
    return PeerLost(peer, f"connection lost ({exc.strerror or exc})")


def wait_ready(wanted: Iterable[tuple[int, int]], timeout_s: float) -> set[int]:
    """Sleep until one of the (descriptor, poll events) is ready, or time is up.

    Returns the descriptors that are ready.
    """
    if hasattr(select, "poll"):
        poll = select.poll()
        for fd, events in wanted:
            poll.register(fd, events)
        return {fd for fd, _ in poll.poll(timeout_s * 1000)}
    pairs = list(wanted)
    readers = [fd for fd, events in pairs if events & POLLIN]
    writers = [fd for fd, events in pairs if events & POLLOUT]
    ready = select.select(readers, writers, [fd for fd, _ in pairs], timeout_s)
    return {fd for fds in ready for fd in fds}


class Poll:
    """``wait_ready`` for a thread that mostly waits for the same descriptors.

    The descriptors are registered again only when they change.
    """

    def __init__(self) -> None:
        self._wanted: list[tuple[int, int]] = []
        self._poll = select.poll() if hasattr(select, "poll") else None

    def wait(self, wanted: list[tuple[int, int]], timeout_s: float) -> set[int]:
        """See wait_ready."""
        if self._poll is None:
            return wait_ready(wanted, timeout_s)
        if wanted != self._wanted:
            self._poll = select.poll()
            for fd, events in wanted:
                self._poll.register(fd, events)
            self._wanted = wanted
        return {fd for fd, _ in self._poll.poll(timeout_s * 1000)}
