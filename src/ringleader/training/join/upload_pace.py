"""UploadPace: how fast learners get state, so that the steps of a run keep their link.

Between two reductions a link has nothing else to do, and learners get all of it. While
a reduction runs they get a fifth of what the reduction itself was seen to use, on a
fast link or a slow one.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

SHARE: Final = 0.2
"""Part of the rate of reductions that uploads take. It makes reductions at most 1.25
times as long."""

FIRST_RATE: Final = 24e6
"""Bytes per second before a reduction was measured: a fifth of 1 Gbit/s."""

LEAST_RATE: Final = 1e5
"""So that a learner is served at all, however slow the reductions are."""

CODED: Final = 0.25
"""Size of gradients with a codec, relative to that without: int8 is the smallest."""

_MEASURED = 8
_LONGEST_SLEEP_S = 0.05


class Measured(NamedTuple):
    """A reduction: the bytes that this member sent, and how long it took."""

    num_bytes: float
    seconds: float


def sent_bytes(gradient_bytes: int, num_members: int, *, is_coded: bool) -> float:
    """Return what a member sends in an all-reduce; with a codec, at least."""
    whole = 2 * gradient_bytes * (num_members - 1) / num_members
    return whole * (CODED if is_coded else 1.0)


def rate_beside(reductions: Iterable[Measured]) -> float:
    """Return the bytes per second of learners while a reduction runs.

    The fastest of the last reductions counts: the others waited for a slow member, or
    shared the link with learners.
    """
    rates = [m.num_bytes / m.seconds for m in reductions if m.seconds > 0]
    return max(LEAST_RATE, SHARE * max(rates)) if rates else FIRST_RATE


class UploadPace:
    """Limits the bytes per second of all learners of a member together.

    ``begin`` and ``end`` are called by the user's thread, ``sent`` by the control
    thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._measured: deque[Measured] = deque(maxlen=_MEASURED)
        self._rate = FIRST_RATE
        self._began_s = math.inf
        self._free_s = 0.0

    def begin(self) -> None:
        """A reduction begins: the link is the step's."""
        with self._lock:
            self._began_s = self._free_s = self._clock()

    def end(self, num_bytes: float) -> None:
        """Note that it has ended, and has sent so many bytes; 0 if it failed."""
        with self._lock:
            took_s = self._clock() - self._began_s
            if num_bytes and took_s > 0:
                self._measured.append(Measured(num_bytes, took_s))
                self._rate = rate_beside(self._measured)
            self._began_s = math.inf

    def wait_s(self, num_bytes: int) -> float:
        """Count bytes that were sent; return how long the next have to wait."""
        with self._lock:
            now_s = self._clock()
            if self._began_s == math.inf:
                return 0.0
            self._free_s = max(self._free_s, now_s) + num_bytes / self._rate
            return self._free_s - now_s

    async def sent(self, num_bytes: int) -> None:
        """Wait until the next bytes may follow these; at once between reductions."""
        left_s = self.wait_s(num_bytes)
        while left_s > 0:
            await asyncio.sleep(min(left_s, _LONGEST_SLEEP_S))
            left_s = self.wait_s(0)
