"""The time for which the background thread leaves the queue of a group alone.

Some operations of a backward pass are better run at its end, by the thread of the pass.
They are queued and postponed, and so is what is queued behind them. Nothing may wait
for the end of a pass for ever: the background thread runs what has been postponed for
POSTPONED_S, or for half of the time that the caller of any queued operation allows. A
thread that waits for an operation runs the queue at once, postponed or not.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from ringleader.engine.observer import now_s
from ringleader.groups.job import Job

POSTPONED_S = 0.5
"""Longer than most models compute between two buckets. It delays only programs in which
an operation of a backward pass waits for the end of another rank's, or something that
runs no queue (a future) for one that is postponed."""


class Postponement:
    """Until when postponed jobs of one group are left alone."""

    def __init__(self) -> None:
        self._until_s = 0.0

    def begin(self) -> None:
        """Leave them alone from now on, or for longer if they are already."""
        self._until_s = now_s() + POSTPONED_S

    def end(self) -> None:
        """Leave them alone no longer."""
        self._until_s = 0.0

    def left_s(self, queue: deque[Job]) -> float:
        """Time for which the background thread leaves the queue alone."""
        if not self._until_s:
            return 0.0
        left_s = 0.0
        with suppress(IndexError, RuntimeError):  # another thread changes the queue
            if queue[0].is_postponed:
                left_s = self._until_s - now_s()
                for job in tuple(queue):  # those behind the first one wait for it
                    limit = job.deadline
                    left_s = min(left_s, limit.left_s() - limit.after_s / 2)
        return max(0.0, left_s)
