"""The time for which the background thread leaves the queue of a group alone.

Some operations of a backward pass are better run at its end, by the thread of the pass.
They are queued and postponed. Nothing may wait for the end of a pass for ever: the
background thread runs what has been postponed for POSTPONED_S, or for half of the time
that the caller of any queued operation allows. A thread that waits for an operation
runs the queue at once, whether it is postponed or not.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from ringleader.engine.observer import now_s
from ringleader.groups.job import Job

POSTPONED_S = 0.5
"""Longer than most models compute between two buckets. It delays only a program in
which an operation of a backward pass on one rank waits for the end of another's."""


class Postponement:
    """Until when the queue of one group is postponed."""

    def __init__(self) -> None:
        self._until_s = 0.0

    def begin(self) -> None:
        """Postpone the queue from now on, or for longer if it is postponed already."""
        self._until_s = now_s() + POSTPONED_S

    def end(self) -> bool:
        """Postpone the queue no longer; return whether it was postponed."""
        was_postponed, self._until_s = self._until_s > 0, 0.0
        return was_postponed

    def left_s(self, queue: deque[Job]) -> float:
        """Time for which the background thread leaves the queue alone."""
        if not self._until_s:
            return 0.0
        left_s = self._until_s - now_s()
        with suppress(RuntimeError):  # another thread changes it, and wakes this one
            for job in tuple(queue):  # those behind the first one wait for it
                limit = job.deadline
                left_s = min(left_s, limit.left_s() - limit.after_s / 2)
        return max(0.0, left_s)
