"""How long shards usually take, as a statistic that no single worker can move."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

MIN_PATIENCE_S = 2.0
"""A shard is not leased to a second worker earlier: network jitter takes as long."""
PATIENCE = 3.0
"""Nor before this many times the median duration of shards."""
_KEPT = 8
"""Durations kept per worker: enough to ignore one slow upload."""


@dataclass(slots=True)
class ShardDurations:
    """The latest durations of each worker. Each worker counts once in ``usual_s``."""

    _by_worker: dict[str, deque[float]] = field(default_factory=dict)

    def add(self, worker: str, took_s: float) -> None:
        """Note how long a worker took for a shard."""
        self._by_worker.setdefault(worker, deque(maxlen=_KEPT)).append(took_s)

    def forget(self, worker: str) -> None:
        """Forget a worker that no longer takes part."""
        self._by_worker.pop(worker, None)

    def patience_s(self, workers: Collection[str]) -> float:
        """Return how long a shard is leased to one of ``workers`` alone."""
        return max(MIN_PATIENCE_S, PATIENCE * self.usual_s(workers))

    def usual_s(self, workers: Collection[str]) -> float:
        """Return the median over ``workers`` of each one's median; 0 if unknown."""
        by_worker = self._by_worker.items()
        medians = [statistics.median(own) for w, own in by_worker if w in workers]
        return statistics.median(medians) if medians else 0.0
