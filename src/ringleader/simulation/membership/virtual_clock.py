"""VirtualClock runs callbacks in virtual time, from one heap ordered by time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class VirtualClock:
    """A clock that jumps from one scheduled callback to the next."""

    def __init__(self, trace: Callable[[str], None] | None = None) -> None:
        self.now_s = 0.0
        self.trace = trace
        """Receives the trace line by line; None: no trace is written."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time_s: float, do: Callable[..., None], *args: object) -> None:
        """Schedule a callback at ``time_s``."""
        self._count += 1  # ties run in the order in which they were scheduled
        heappush(self._heap, (time_s, self._count, do, args))

    def after(self, wait_s: float, do: Callable[..., None], *args: object) -> None:
        """Schedule a callback ``wait_s`` from now."""
        self.at(self.now_s + wait_s, do, *args)

    def run(self, until_s: float) -> None:
        """Run all callbacks up to ``until_s``."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, do, args = heappop(heap)
            do(*args)
        self.now_s = until_s

    def trace_line(self, text: str) -> None:
        """Write one line to the trace."""
        if self.trace is not None:
            self.trace(f"{self.now_s:8.3f}  {text}")
