"""How a signal in shared memory is polled, before a wait sleeps for it."""

from __future__ import annotations

from collections.abc import Callable

from ringleader.engine.observer import now_s
from ringleader.transport.crowded_cores import relax

Take = Callable[..., bool]
"""(blocking, timeout in seconds) -> whether the signal was there; it is consumed."""

EAGER_SPINS = 8
"""Polls of a signal before anything else, while other threads of this process wait:
about 1 us, after which most signals of a peer that keeps step are there."""
SPINS = 80
"""Further polls; every eighth yields the core. About 20 us when no other process wants
the core."""
IDLE_S = 250e-6
"""Polled for so much longer where this rank has a core for the thread that waits; most
turns of a relay take less. A thread that sleeps is woken 20 to 50 us late on a virtual
machine, which makes the peers that wait for it sleep, too."""


def comes_at_once(take: Take) -> bool:
    """Poll without letting others run; return whether the signal was taken."""
    for _ in range(EAGER_SPINS):  # noqa: SIM110 - any() and a generator take longer
        if take(False):
            return True
    return False


def comes_soon(take: Take) -> bool:
    """Poll, and yield the core at times; return whether the signal was taken."""
    for i in range(SPINS):
        if take(False):
            return True
        if not i & 7:
            relax()
    return False


def comes_within(take: Take, limit_s: float) -> bool:
    """Poll for a time, not a number of times: beside a busy thread yields take long."""
    until_s = now_s() + limit_s
    while now_s() < until_s:
        for _ in range(8):
            if take(False):
                return True
        relax()
    return False
