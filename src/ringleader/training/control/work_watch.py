"""WorkWatch: notices that the user's code hangs, while its machine is fine."""

from __future__ import annotations

import faulthandler
import sys
import time

LEAST_S = 30.0
TIMES_EXPECTED = 10.0


def limit_s(expected_s: float) -> float:
    """Return how long a piece of work may take that usually takes ``expected_s``."""
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
