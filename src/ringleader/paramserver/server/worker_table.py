"""The workers of a run, by id: which of them take part, and which are there."""

from __future__ import annotations

from ringleader.paramserver.server.plan import MAX_WORKERS
from ringleader.paramserver.server.worker_record import WorkerRecord

PRESENT_S = 60.0
"""A worker is connected for this long after a request: long polls come every 25 s."""


class WorkerTable(dict[str, WorkerRecord]):
    """All workers that ever joined."""

    num_joined: int = 0

    def join(self, name: str, device: str, now_s: float) -> str:
        """Add a new worker and return its id; the caller has checked ``has_room``."""
        identity = f"w{self.num_joined + 1}"
        self.add(identity, name, device, now_s)
        return identity

    def add(self, identity: str, name: str, device: str, now_s: float) -> None:
        """Add a worker with an id, which a restarted server knows from its files."""
        taken = {w.slot for w in self.values() if not w.has_left}
        slot = next(i for i in range(len(taken) + 1) if i not in taken)
        self.num_joined = max(self.num_joined, int(identity[1:]))
        self[identity] = WorkerRecord(name, device, slot, now_s)

    def has_room(self, now_s: float) -> bool:
        """Return whether another worker may join."""
        return len(self.connected(now_s)) < MAX_WORKERS

    def connected(self, now_s: float, within_s: float = PRESENT_S) -> list[str]:
        """Return the workers with a recent request that may take part."""
        return [
            identity
            for identity, w in self.items()
            if not w.is_excluded and now_s - w.seen_s <= within_s
        ]

    def present(self, now_s: float, within_s: float = PRESENT_S) -> list[str]:
        """Return the connected workers that have asked for work since they joined."""
        return [w for w in self.connected(now_s, within_s) if self[w].has_asked]
