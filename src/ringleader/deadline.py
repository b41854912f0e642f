"""Deadline bounds a whole operation, however many waits it contains; Cancellation ends
one early.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

OWN_PROCESS_S = 600.0
"""How long to wait for a process or a thread of ours that lives. It needs a second, but
minutes on a machine that swaps or has a load of 35; if it ends, that is seen at once.
The limit is for one that hangs."""
MIN_WAIT_S, MAX_WAIT_S = 0.005, 0.05
"""Longest single wait of an operation that can be cancelled, young and old."""


class Cancellation:
    """Ends an operation that another thread runs, before its deadline."""

    def __init__(self) -> None:
        self.reason = ""
        """Why it was cancelled; empty if it was not."""
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[str], object]] = []

    def cancel(self, reason: str) -> None:
        """End the operation, from any thread; the first reason counts. Idempotent."""
        with self._lock:
            if self.reason:
                return
            self.reason = reason or "cancelled"
            callbacks, self._callbacks = self._callbacks, []
        for call in callbacks:
            call(self.reason)

    def on_cancel(self, callback: Callable[[str], object]) -> None:
        """Call ``callback`` with the reason when this is cancelled, or now."""
        with self._lock:
            if not self.reason:
                self._callbacks.append(callback)
                return
        callback(self.reason)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock, passed down to every wait of one operation."""

    at_s: float
    after_s: float
    cancellation: Cancellation | None = None
    """What can end the operation before that moment."""

    @classmethod
    def after(cls, seconds: float, cancellation: Cancellation | None = None) -> Self:
        """Return the moment ``seconds`` from now; ``math.inf`` is not accepted
        anywhere."""
        return cls(time.monotonic() + seconds, seconds, cancellation)

    def within(self, seconds: float) -> Deadline:
        """The earlier of this moment and ``seconds`` from now, cancelled with this."""
        return Deadline.after(min(seconds, self.left_s()), self.cancellation)

    def left_s(self) -> float:
        """Return the seconds that remain, never negative."""
        if self.cancellation is not None and self.cancellation.reason:
            return 0.0
        return max(0.0, self.at_s - time.monotonic())

    def wait_s(self) -> float:
        """Return how long to wait before ``is_over`` is asked again.

        Nothing wakes a waiting thread when its operation is cancelled, so it wakes by
        itself: often in the first moments, when most operations end.
        """
        left_s = self.left_s()
        if self.cancellation is None:
            return left_s
        age_s = self.after_s - left_s
        return min(left_s, max(MIN_WAIT_S, min(MAX_WAIT_S, age_s / 20)))

    def is_over(self) -> bool:
        """Return whether the moment has passed, or the operation was cancelled."""
        if self.cancellation is not None and self.cancellation.reason:
            return True
        return time.monotonic() >= self.at_s
