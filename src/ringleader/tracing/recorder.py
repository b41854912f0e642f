"""``Recorder``: keeps the last events of this rank, in bounded memory.

Events are recorded as tuples, in the threads that train, and become objects when they
are taken out by another thread.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from ringleader.tracing.analysis.events import (
    Blocked,
    Encode,
    Event,
    Operation,
    Span,
    Step,
    Wait,
)

KINDS: tuple[type[Event], ...] = (Operation, Wait, Blocked, Encode, Step, Span)
"""The number of a kind is its place here, also on the way to rank 0."""
OPERATION, WAIT, BLOCKED, ENCODE, STEP, SPAN = range(len(KINDS))


class Recorder:
    """A ring of events: a new one replaces the oldest when it is full."""

    def __init__(self, limit: int) -> None:
        self._events: deque[tuple[Any, ...]] = deque(maxlen=limit)
        self._lock = threading.Lock()
        self.num_dropped = 0
        """Events that were replaced before they were taken out."""

    def record(self, kind: int, since_s: float, until_s: float, *rest: object) -> None:
        """Keep an event; ``rest`` are its fields after the times."""
        with self._lock:
            if len(self._events) == self._events.maxlen:
                self.num_dropped += 1
            self._events.append((kind, since_s, until_s, rest))

    def take(self, most: int) -> list[Event]:
        """Remove and return the oldest events."""
        with self._lock:
            count = min(most, len(self._events))
            taken = [self._events.popleft() for _ in range(count)]
        return [_event(*each) for each in taken]


def _event(kind: int, since_s: float, until_s: float, rest: tuple[Any, ...]) -> Event:
    return KINDS[kind](to_ns(since_s), to_ns(until_s), *rest)


def to_ns(at_s: float) -> int:
    """Return a time of ``now_s`` in whole nanoseconds."""
    return int(at_s * 1e9)
