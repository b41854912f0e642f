"""JobState is what the registry knows of one namespace: ranks, leases, changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from ringleader.coordinator.registry.limits import MAX_FORMER, MAX_LOG
from ringleader.coordinator.registry.records import (
    Checkpoint,
    Departure,
    DepartureReason,
    PeerChanges,
    Worker,
)


@dataclass(slots=True)
class Lease:
    """A registered worker, and when it is evicted without a further heartbeat."""

    worker: Worker
    expires_at_s: float


class JobState:
    """The workers of one namespace, keyed by id and by rank."""

    def __init__(self, version: int) -> None:
        self.leases: dict[str, Lease] = {}
        self.by_rank: dict[int, str] = {}
        self.former: dict[str, Worker] = {}
        """Workers that left, the longest gone first."""
        self.checkpoints: dict[int, Checkpoint] = {}
        self.version = version
        self.empty_since_s = 0.0
        self._log: deque[tuple[int, Worker | Departure]] = deque()
        self._log_begin = version
        """Watchers who know this version or a later one can be sent changes."""

    def free_rank(self, worker_id: str) -> int:
        """Return the rank that a worker had before, if it is free, or the smallest."""
        before = self.former.get(worker_id)
        if before is not None and before.rank not in self.by_rank:
            return before.rank
        return next(rank for rank in count() if rank not in self.by_rank)

    def enter(self, worker: Worker, version: int, expires_at_s: float) -> None:
        """Enter a worker, or replace its entry."""
        self.former.pop(worker.worker_id, None)
        self.leases[worker.worker_id] = Lease(worker, expires_at_s)
        self.by_rank[worker.rank] = worker.worker_id
        self._record(version, worker)

    def remove(
        self, worker_id: str, reason: DepartureReason, version: int
    ) -> tuple[Worker, str | None]:
        """Remove a worker; return it and a former one that is forgotten for it."""
        worker = self.leases.pop(worker_id).worker
        del self.by_rank[worker.rank]
        self.former[worker_id] = worker
        forgotten = None
        if len(self.former) > MAX_FORMER:
            forgotten = next(iter(self.former))
            del self.former[forgotten]
        self._record(version, Departure(worker.rank, worker_id, reason))
        return worker, forgotten

    def _record(self, version: int, change: Worker | Departure) -> None:
        self.version = version
        self._log.append((version, change))
        if len(self._log) > MAX_LOG:
            self._log_begin = self._log.popleft()[0]

    def changes_since(self, version: int) -> PeerChanges | None:
        """Return what a watcher who knows ``version`` lacks; None if nothing."""
        if version == self.version:
            return None
        if not self._log_begin <= version < self.version:
            return self.snapshot()
        recent: list[Worker | Departure] = []
        for number, change in reversed(self._log):
            if number <= version:
                break
            recent.append(change)
        return _combine(self.version, reversed(recent))

    def snapshot(self) -> PeerChanges:
        """Return all workers, by rank."""
        workers = (self.leases[self.by_rank[rank]] for rank in sorted(self.by_rank))
        return PeerChanges(self.version, True, tuple(lease.worker for lease in workers))


def _combine(version: int, changes: Iterable[Worker | Departure]) -> PeerChanges:
    """Keep the last state of each rank, and each departure that preceded it."""
    joined: dict[int, Worker] = {}
    departed: dict[int, Departure] = {}
    for change in changes:
        if isinstance(change, Worker):
            joined[change.rank] = change
        else:
            joined.pop(change.rank, None)
            departed[change.rank] = change
    return PeerChanges(version, False, tuple(joined.values()), tuple(departed.values()))
