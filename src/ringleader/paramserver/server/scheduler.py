"""Decides which worker computes what, which updates count, and when a version ends.

It is a pure state machine: time is an argument, and nothing here waits or does I/O.

Bulk mode: version v is a round of ``shards`` shards. Each shard is leased to a worker
that asks for work. The first update for it counts; later ones are answered that it
was counted. A shard whose worker is gone, or takes far longer than others did, is also
leased to an idle worker. The round can close when every shard is counted, or, after the
time-out, a quorum. Closing it makes version v + 1; later updates for v are stale.

Bounded and async mode: every counted update makes a version. In bounded mode no work is
given out while it could make an update under way older than allowed. The batch numbers
of a worker only grow, so a late delivery of a proxy is recognised by its number.

Invariants: a shard of a version counts at most once; a repetition of a worker's last
counted update is always recognised; versions grow by one.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field, replace

from ringleader.paramserver.server.plan import MAX_WORKERS, Plan, age_weight
from ringleader.paramserver.server.update_headers import UpdateKey
from ringleader.paramserver.server.update_verdict import Verdict
from ringleader.paramserver.server.worker_record import ShardLease, WorkerRecord

PRESENT_S = 60.0
"""A worker is present for this long after a request: long polls come every 25 s."""
RECENT_S = 10.0
"""A free shard is kept for a worker that sent a request within this time."""
MIN_PATIENCE_S = 2.0
"""A shard is not leased to a second worker earlier: network jitter takes as long."""
PATIENCE = 3.0
"""Nor before this many times the median duration of shards."""
MAX_STRIKES = 3
"""Invalid updates in a row that put a worker in quarantine."""
_MAX_LOSSES = 2000


@dataclass(slots=True)
class Scheduler:
    """The state of the run. One thread at a time."""

    plan: Plan
    version: int = 0
    shards: int = 0
    position: int = 0
    """Shards of all earlier versions (bulk), or given out so far (other modes)."""
    workers: dict[str, WorkerRecord] = field(default_factory=dict)
    losses: list[tuple[int, float]] = field(default_factory=list)
    leases: dict[str, ShardLease] = field(default_factory=dict)
    """The shard that each worker computes, as far as the server knows."""
    counted: dict[int, str] = field(default_factory=dict)
    """Shards of this version that were counted, and the workers they came from."""
    num_joined: int = 0
    _began_s: float | None = None
    _sum: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _times_s: deque[float] = field(default_factory=lambda: deque(maxlen=32))

    def __post_init__(self) -> None:
        self.shards = self.shards or self.plan.workers

    @property
    def is_finished(self) -> bool:
        """True if the last version is reached."""
        return self.version >= self.plan.rounds

    def join(self, name: str, device: str, now_s: float) -> str:
        """Add a new worker and return its id; the caller has checked ``has_room``."""
        self.num_joined += 1
        identity = f"w{self.num_joined}"
        self.add_worker(identity, name, device, now_s)
        return identity

    def add_worker(self, identity: str, name: str, device: str, now_s: float) -> None:
        """Add a worker with an id, which a restarted server knows from its files."""
        taken = {w.slot for w in self.workers.values() if not w.has_left}
        slot = next(i for i in range(len(taken) + 1) if i not in taken)
        self.num_joined = max(self.num_joined, int(identity[1:]))
        self.workers[identity] = WorkerRecord(name, device, slot, now_s)

    def has_room(self, now_s: float) -> bool:
        """Return whether another worker may join."""
        return len(self.present(now_s)) < MAX_WORKERS

    def leave(self, identity: str) -> None:
        """Remove a worker; its shard is leased to others."""
        self.workers[identity].has_left = True
        self.leases.pop(identity, None)

    def mark_seen(self, identity: str, now_s: float) -> None:
        """Note that a worker sent a request."""
        self.workers[identity].seen_s = now_s

    def present(self, now_s: float, within_s: float = PRESENT_S) -> list[str]:
        """Return the workers with a recent request that may take part."""
        return [
            identity
            for identity, w in self.workers.items()
            if not w.is_excluded and now_s - w.seen_s <= within_s
        ]

    def assign(self, identity: str, now_s: float) -> ShardLease | None:
        """Lease a shard to a worker; None if there is nothing to do yet."""
        if self.workers[identity].is_excluded:  # it left while it waited for work
            return None
        if self.is_finished or not self._has_begun(now_s):
            return None
        if self.plan.is_bulk:
            found = self._assign_in_round(identity, now_s)
        else:
            found = self._assign_outside_rounds(identity, now_s)
        if found is not None:
            self.leases[identity] = found
            self._began_s = now_s if self._began_s is None else self._began_s
        return found

    def use_newest_weights(self, identity: str) -> None:
        """Note that a worker fetched the newest weights, and will compute on them."""
        if identity in self.leases and not self.plan.is_bulk:
            self.leases[identity] = replace(self.leases[identity], version=self.version)

    def verdict(self, identity: str, key: UpdateKey) -> Verdict:
        """Return whether an update with this key would count now, or why not."""
        worker = self.workers[identity]
        if worker.last == key:
            return Verdict.DUPLICATE
        if worker.is_excluded:
            return Verdict.EXCLUDED
        if self.is_finished:
            return Verdict.FINISHED
        if key.version > self.version or key.shard < 0 or key.first_batch < 0:
            return Verdict.UNKNOWN_SHARD
        if not self.plan.is_bulk:
            return Verdict.ACCEPT if self._is_fresh(worker.last, key) else Verdict.STALE
        if key.version < self.version:
            return Verdict.STALE
        if key.shard >= self.shards or key.first_batch != self._first_batch(key.shard):
            return Verdict.UNKNOWN_SHARD
        return Verdict.ALREADY_COUNTED if key.shard in self.counted else Verdict.ACCEPT

    def accept(
        self, identity: str, key: UpdateKey, *, samples: int, loss: float
    ) -> None:
        """Count an update whose verdict is ACCEPT."""
        worker = self.workers[identity]
        worker.last, worker.strikes = key, 0
        worker.updates += 1
        worker.samples += samples
        self.counted[key.shard] = identity
        if not self.plan.is_bulk:
            self.position = max(self.position, key.first_batch // self.plan.steps + 1)
        self._sum[0] += loss * samples
        self._sum[1] += samples

    def record_duration(self, identity: str, samples: int, now_s: float) -> None:
        """End the lease of a worker whose update arrived, and note how long it took."""
        lease = self.leases.pop(identity, None)
        if lease is not None:
            took_s = max(now_s - lease.issued_s, 1e-6)
            self._times_s.append(took_s)
            worker = self.workers[identity]
            speed = samples / took_s
            old = worker.samples_per_s or speed
            worker.samples_per_s = 0.7 * old + 0.3 * speed

    def reject(self, identity: str) -> bool:
        """Note an invalid update; return whether the worker is in quarantine now."""
        worker = self.workers[identity]
        worker.strikes += 1
        self.leases.pop(identity, None)
        worker.is_quarantined |= worker.strikes >= MAX_STRIKES
        return worker.is_quarantined

    def can_close(self, now_s: float) -> bool:
        """Return whether this version can be closed."""
        if self.is_finished or not self.counted:
            return False
        if not self.plan.is_bulk or len(self.counted) >= self.shards:
            return True
        is_late = self.deadline_s() <= now_s
        return is_late and len(self.counted) >= self.plan.quorum_of(self.shards)

    def deadline_s(self) -> float:
        """Return when the round times out; never if no shard of it was leased yet."""
        if self._began_s is None:
            return float("inf")
        return self._began_s + self.plan.round_timeout_s

    def next_shards(self, now_s: float) -> int:
        """Return how many shards the next version has."""
        if not (self.plan.elastic and self.plan.is_bulk):
            return self.plan.workers
        return max(1, len(self.present(now_s)))

    def step_factor(self) -> float:
        """Return the factor for learning rates in the step that ends this version."""
        if self.plan.is_bulk:
            return self.plan.rate_factor(self.version, self.shards)
        counted = [self.workers[identity].last for identity in self.counted.values()]
        return min(age_weight(self.version - key.version) for key in counted if key)

    def close_version(self, shards: int) -> None:
        """Close this version; the next one has ``shards`` shards."""
        total, samples = self._sum
        self.losses.append((self.version, total / samples))
        if len(self.losses) > _MAX_LOSSES:  # keep every second one
            self.losses = self.losses[:-1:2] + self.losses[-1:]
        if self.plan.is_bulk:
            self.position += self.shards
            self.leases.clear()
        self.version += 1
        self.shards = shards
        self.counted.clear()
        self._sum = [0.0, 0.0]
        self._began_s = None

    def patience_s(self) -> float:
        """Return how long a shard is leased to one worker alone."""
        usual = statistics.median(self._times_s) if self._times_s else 0.0
        return max(MIN_PATIENCE_S, PATIENCE * usual)

    def _has_begun(self, now_s: float) -> bool:
        if self.version or self.counted or self.leases:
            return True
        return len(self.present(now_s)) >= self.plan.workers

    def _first_batch(self, shard: int) -> int:
        return (self.position + shard) * self.plan.steps

    def _assign_in_round(self, identity: str, now_s: float) -> ShardLease | None:
        mine = self.leases.get(identity)
        if mine is not None and mine.shard not in self.counted:
            return mine
        shard = self._free_shard(identity, now_s)
        if shard is None:
            shard = self._late_shard(now_s)
        if shard is None:
            return None
        batch = self._first_batch(shard)
        return ShardLease(self.version, shard, self.shards, batch, now_s)

    def _free_shard(self, identity: str, now_s: float) -> int | None:
        """Find a shard without a lease; keep the last ones for workers without any."""
        taken = {a.shard for a in self.leases.values()} | self.counted.keys()
        free = [shard for shard in range(self.shards) if shard not in taken]
        busy = self.leases.keys() | set(self.counted.values())
        if free and identity in busy:
            waiting = [w for w in self.present(now_s, RECENT_S) if w not in busy]
            began_s = now_s if self._began_s is None else self._began_s
            if len(free) <= len(waiting) and now_s - began_s < self.patience_s():
                return None
        return free[0] if free else None

    def _late_shard(self, now_s: float) -> int | None:
        """Find the shard with the oldest latest lease, if that is too old."""
        newest: dict[int, float] = {}
        for a in self.leases.values():
            if a.shard not in self.counted:
                newest[a.shard] = max(newest.get(a.shard, a.issued_s), a.issued_s)
        late = {n: s for n, s in newest.items() if now_s - s >= self.patience_s()}
        return min(late, key=lambda n: late[n]) if late else None

    def _assign_outside_rounds(self, identity: str, now_s: float) -> ShardLease | None:
        mine = self.leases.get(identity)
        if mine is not None:
            return replace(mine, version=self.version, issued_s=now_s)
        if self.plan.mode == "bounded" and self._would_exceed_staleness(now_s):
            return None
        batch = self.position * self.plan.steps
        self.position += 1
        slot = self.workers[identity].slot
        shards = max(self.plan.workers, slot + 1)
        return ShardLease(self.version, slot, shards, batch, now_s)

    def _is_fresh(self, last: UpdateKey | None, key: UpdateKey) -> bool:
        """Return whether an update outside rounds is young enough and new.

        Leases that were given out before a restart may lie beyond ``position``, but not
        by more than there can be workers.
        """
        age = self.version - key.version
        if self.plan.mode == "bounded" and age > self.plan.staleness:
            return False
        is_old = last is not None and key.first_batch <= last.first_batch
        beyond = key.first_batch // self.plan.steps - self.position
        return not is_old and beyond < MAX_WORKERS

    def _would_exceed_staleness(self, now_s: float) -> bool:
        """Return whether one more update could make one under way too old.

        A worker that has computed for longer than the round time-out is ignored.
        """
        limit_s = self.plan.round_timeout_s
        under_way = [a for a in self.leases.values() if now_s - a.issued_s < limit_s]
        oldest = min((a.version for a in under_way), default=self.version)
        return self.version + len(under_way) - oldest > self.plan.staleness
