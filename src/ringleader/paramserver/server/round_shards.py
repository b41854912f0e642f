"""Chooses the shard of a round that a worker computes next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ringleader.paramserver.server.worker_record import ShardLease


@dataclass(frozen=True, slots=True)
class RoundShards:
    """The shards of a round: how many, which are leased, which are counted."""

    num_shards: int
    leases: Mapping[str, ShardLease]
    counted: Mapping[int, str]

    def free(self, identity: str, waiting: Collection[str]) -> int | None:
        """Find a shard without a lease.

        A worker that has had a shard leaves the last ones to those ``waiting`` that
        have had none.
        """
        taken = {a.shard for a in self.leases.values()} | self.counted.keys()
        free = [shard for shard in range(self.num_shards) if shard not in taken]
        busy = self.leases.keys() | set(self.counted.values())
        if identity in busy and len(free) <= len(set(waiting) - busy):
            return None
        return free[0] if free else None

    def may_take(self, identity: str, shard: int, least_workers: int) -> bool:
        """Return whether a worker may compute ``shard``.

        One that has counted already may, if enough shards are left for others to
        have updates of ``least_workers`` workers in the end.
        """
        counted = set(self.counted.values())
        if identity not in counted:
            return True
        again = {a.shard for w, a in self.leases.items() if w in counted}
        left = set(range(self.num_shards)) - self.counted.keys() - again - {shard}
        return len(counted) + len(left) >= least_workers

    def late(self, now_s: float, patience_s: float) -> int | None:
        """Find the shard with the oldest latest lease, if that is too old."""
        newest: dict[int, float] = {}
        for a in self.leases.values():
            if a.shard not in self.counted:
                newest[a.shard] = max(newest.get(a.shard, a.issued_s), a.issued_s)
        late = {n: s for n, s in newest.items() if now_s - s >= patience_s}
        return min(late, key=lambda n: late[n]) if late else None
