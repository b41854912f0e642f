"""Virtual time: everything that happens is an entry of one heap, ordered by time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clock:
    """A clock that jumps from one thing that happens to the next."""

    def __init__(self, trace: Callable[[str], None] | None = None) -> None:
        self.now_s = 0.0
        self.trace = trace
        """Takes the story, line by line, if there is to be one."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time_s: float, do: Callable[..., None], *args: object) -> None:
        """Have something done at ``time_s``."""
        self._count += 1  # what happens at one moment happens in the order of planning
        heappush(self._heap, (time_s, self._count, do, args))

    def after(self, wait_s: float, do: Callable[..., None], *args: object) -> None:
        """Have something done ``wait_s`` from now."""
        self.at(self.now_s + wait_s, do, *args)

    def run(self, until_s: float) -> None:
        """Live until ``until_s``."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, do, args = heappop(heap)
            do(*args)
        self.now_s = until_s

    def say(self, text: str) -> None:
        """Add a line to the story."""
        if self.trace is not None:
            self.trace(f"{self.now_s:8.3f}  {text}")
