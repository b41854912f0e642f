"""What waiting threads do without while other programs use the cores.

A thread that yields its core gets it back within microseconds if the other ranks are
all that runs there. If another program computes there, it comes back after 2 to 4 ms,
and a wait yields many times; a thread that sleeps instead is woken when its peer has
signalled. So yields are timed, and after a late one there are none for a while: loops
that would yield go on to sleep. See docs/decisions/0024-crowded-cores.md.
"""

from __future__ import annotations

import time

from ringleader.transport.link import yield_core

LATE_S = 0.001
"""What takes so long has waited for a core: the turn of another rank takes less."""
SHORTEST_REST_S, LONGEST_REST_S = 0.02, 10.0
FEW_ATTEMPTS = 20
"""One late attempt in more than these is not worth a longer rest."""

now_s = time.perf_counter


class Rest:
    """A time to do without something that others make slow.

    If it is slow again within a few attempts, the next rest is twice as long. So where
    others use the cores all the time, it is tried once in ten seconds.
    """

    def __init__(self) -> None:
        self.length_s = 0.0
        """How long the last rest was."""
        self._until_s = 0.0
        self._num_attempts = 0
        """Since the last rest."""

    def begin(self) -> None:
        """Rest from now on."""
        was_soon = self._num_attempts <= FEW_ATTEMPTS and self.length_s
        longer_s = min(LONGEST_REST_S, 2 * self.length_s)
        self.length_s = longer_s if was_soon else SHORTEST_REST_S
        self._until_s = now_s() + self.length_s
        self._num_attempts = 0

    @property
    def is_on(self) -> bool:
        """Whether it is not over yet."""
        return now_s() < self._until_s

    def may_try(self) -> bool:
        """Whether to try again; that counts as an attempt."""
        if self.is_on:
            return False
        self._num_attempts += 1
        return True


def is_late(begun_s: float) -> bool:
    """Whether what began then, and has ended now, has waited for a core."""
    return now_s() - begun_s > LATE_S


_yields = Rest()


def are_crowded() -> bool:
    """Whether other programs have kept a core for long, a moment ago."""
    return _yields.is_on


def relax() -> None:
    """Yield the core to another thread, unless other programs keep it for long."""
    if not _yields.may_try():
        return
    begun_s = now_s()
    yield_core()
    if is_late(begun_s):
        _yields.begin()
