"""WorkWatch: notices that the user's code hangs, while its machine is fine."""

from __future__ import annotations

import asyncio
import faulthandler
import sys
import time
from collections.abc import Callable

from ringleader.errors import Expelled

LEAST_S = 30.0
TIMES_EXPECTED = 10.0
FIRST_S = 900.0
"""For the first piece of work, of which nothing is known: it may compile a model."""
WATCH_EVERY_S = 1.0


def limit_s(expected_s: float) -> float:
    """Return how long work may take that usually takes ``expected_s``; 0: unknown."""
    if expected_s == 0:
        return FIRST_S
    return max(LEAST_S, TIMES_EXPECTED * expected_s)


class WorkWatch:
    """The piece of work that the user's thread does now, watched by another thread.

    ``begin`` and ``end`` are called by the user's thread, a few times per step; they
    cost one assignment.
    """

    def __init__(self) -> None:
        self._current: tuple[float, float] | None = None
        """When it began, and when it counts as hung."""

    def begin(self, expected_s: float) -> None:
        """Note that user code begins to run, for about ``expected_s`` (0: unknown)."""
        now_s = time.monotonic()
        self._current = (now_s, now_s + limit_s(expected_s))

    def end(self) -> None:
        """Note that user code has returned."""
        self._current = None

    def extend(self, gap_s: float) -> None:
        """Ignore ``gap_s`` during which this process was stopped."""
        current = self._current
        if current is not None:
            self._current = (current[0] + gap_s, current[1] + gap_s)

    def hung_for_s(self, now_s: float) -> float:
        """Return for how long the user's code has run if that is too long, else 0."""
        current = self._current
        if current is None or now_s < current[1]:
            return 0.0
        return now_s - current[0]


def dump_stacks(why: str) -> None:
    """Write ``why`` and the stacks of all threads to standard error."""
    sys.stderr.write(f"ringleader: {why}\n")
    sys.stderr.flush()
    faulthandler.dump_traceback(all_threads=True)


async def leave_when_hung(
    watch: WorkWatch, run: str, leave: Callable[[Expelled], None]
) -> None:
    """Call ``leave`` when the user's code hangs: the others must not wait for it."""
    last_s = time.monotonic()
    while True:
        await asyncio.sleep(WATCH_EVERY_S)
        now_s = time.monotonic()
        if now_s - last_s > 2 * WATCH_EVERY_S:  # all of this process was stopped
            watch.extend(now_s - last_s - WATCH_EVERY_S)
        last_s = now_s
        hung_s = watch.hung_for_s(now_s)
        if hung_s:
            why = f"the program has not finished a quantum for {hung_s:.0f} s"
            why = f"{why}, so this process leaves run {run!r}"
            dump_stacks(f"{why}; the stacks of its threads:")
            leave(Expelled(f"{why}; its stacks are in its standard error"))
            return
