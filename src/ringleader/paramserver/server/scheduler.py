"""Decides which worker computes what, which updates count, and when a version ends.

It is a pure state machine: time is an argument, and nothing here waits or does I/O.

Bulk mode: version v is a round of ``shards`` shards. Each shard is leased to a worker
that asks for work; the first lease waits until ``plan.workers`` workers have asked. The
first update of a worker with a lease counts; later ones are answered that it was
counted. A shard whose worker is gone, or takes far longer than others did, is also
leased to an idle worker. The round can close when every shard is counted, or, after the
time-out, a quorum. Closing it makes version v + 1; later updates for v are stale.

Bounded and async mode: every counted update makes a version. In bounded mode no work is
given out while it could make an update under way older than allowed. The batch numbers
of a worker only grow, so a late delivery of a proxy is recognised by its number. Rounds
mode is in round_scheduler.py.

Invariants: an update counts only from a worker that was given its batches; a shard of
a version counts at most once; a repetition of a worker's last counted update is always
recognised; versions grow by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ringleader.paramserver.server.loss_curve import with_loss
from ringleader.paramserver.server.plan import Plan, age_weight
from ringleader.paramserver.server.round_shards import RoundShards
from ringleader.paramserver.server.shard_durations import ShardDurations
from ringleader.paramserver.server.update_headers import UpdateKey
from ringleader.paramserver.server.update_verdict import (
    Verdict,
    is_leased,
    is_stale,
    would_exceed_staleness,
)
from ringleader.paramserver.server.worker_record import MAX_STRIKES, ShardLease
from ringleader.paramserver.server.worker_table import WorkerTable

RECENT_S = 10.0
"""A free shard is kept for a worker that sent a request within this time."""


@dataclass(slots=True)
class Scheduler:
    """The state of the run. One thread at a time."""

    plan: Plan
    version: int = 0
    shards: int = 0
    position: int = 0
    """Shards of all earlier versions (bulk), or given out so far (other modes)."""
    workers: WorkerTable = field(default_factory=WorkerTable)
    losses: list[tuple[int, float]] = field(default_factory=list)
    leases: dict[str, ShardLease] = field(default_factory=dict)
    """The shard that each worker computes, as far as the server knows."""
    counted: dict[int, str] = field(default_factory=dict)
    """Shards of this version that were counted, and the workers they came from."""
    returned: list[tuple[int, int]] = field(default_factory=list)
    """In rounds mode, batches that were taken back: the first one, and how many."""
    _began_s: float | None = None
    _sum: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _rejected: set[str] = field(default_factory=set)
    """Workers with an update of this version that failed a check."""
    _durations: ShardDurations = field(default_factory=ShardDurations)

    def __post_init__(self) -> None:
        self.shards = self.shards or self.plan.workers

    @property
    def is_finished(self) -> bool:
        """True if the last version is reached."""
        return self.version >= self.plan.rounds

    @property
    def has_updates(self) -> bool:
        """True if updates for the next version were accepted."""
        return self._sum[1] > 0

    def leave(self, identity: str) -> None:
        """Remove a worker; its shard is leased to others."""
        self.workers[identity].has_left = True
        self.end_lease(identity)
        self._durations.forget(identity)

    def mark_seen(self, identity: str, now_s: float) -> None:
        """Note that a worker sent a request."""
        self.workers[identity].seen_s = now_s

    def missing(self, now_s: float) -> int:
        """Return how many more workers are needed: ``plan.workers`` at first."""
        has_begun = self.version or self.counted or self.leases
        least = self.plan.least_workers(self.shards) if has_begun else self.plan.workers
        return max(0, least - len({*self.workers.present(now_s), *self.leases}))

    def awaited(self) -> list[str]:
        """Return the workers whose updates the round waits for."""
        return [w for w, a in self.leases.items() if a.shard not in self.counted]

    def assign(self, identity: str, now_s: float) -> ShardLease | None:
        """Lease a shard to a worker; None if there is nothing to do yet."""
        worker = self.workers[identity]
        if worker.is_excluded:  # it left while it waited for work
            return None
        worker.has_asked = True
        if self.is_finished or self.missing(now_s):
            return None
        in_round, outside = self._assign_in_round, self._assign_outside_rounds
        found = (in_round if self.plan.is_bulk else outside)(identity, now_s)
        if found is not None:
            self.leases[identity] = found
            self._began_s = now_s if self._began_s is None else self._began_s
        return found

    def end_lease(self, identity: str) -> None:
        """Take the batches of a worker back."""
        self.leases.pop(identity, None)

    def restore_lease(
        self, identity: str, key: UpdateKey, steps: int, now_s: float
    ) -> None:
        """Lease a shard again as before a restart, unless that lease is over."""
        # The journal can name a lease after the end of its version or worker.
        self._skip_batches_of(key)
        worker, batch = self.workers[identity], key.first_batch
        is_old = is_stale(self.plan, self.version, worker.last, key)
        if not (is_old or worker.is_excluded):
            lease = ShardLease(key.version, key.shard, self.shards, batch, now_s, steps)
            self.leases[identity] = lease

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
        if is_stale(self.plan, self.version, worker.last, key):
            return Verdict.STALE
        lease = self.leases.get(identity)
        if key.version > self.version or not is_leased(self.plan, lease, key):
            return Verdict.NOT_LEASED
        is_counted = self.plan.is_bulk and key.shard in self.counted
        return Verdict.ALREADY_COUNTED if is_counted else Verdict.ACCEPT

    def accept(
        self, identity: str, key: UpdateKey, *, samples: int, loss: float
    ) -> None:
        """Count an update whose verdict is ACCEPT."""
        self.leases.pop(identity, None)
        self.workers[identity].note_counted(key, samples)
        self.counted[key.shard] = identity
        self._skip_batches_of(key)
        self._sum[0] += loss * samples
        self._sum[1] += samples

    def update_weight(self, key: UpdateKey) -> float:
        """Return the factor for the samples of an update that is accepted now."""
        return 1.0

    def record_duration(
        self, identity: str, samples: int, now_s: float, compute_s: float = 0.0
    ) -> None:
        """Note how long a worker took whose update arrived; call before ``accept``."""
        lease = self.leases.get(identity)
        if lease is not None:
            took_s = max(now_s - lease.issued_s, 1e-6)
            self._durations.add(identity, took_s)
            self.workers[identity].note_speed(samples, took_s, lease.steps, compute_s)

    def reject(self, identity: str, *, is_strike: bool = True) -> bool:
        """Take back the batches of an update that failed a check.

        Returns whether the worker is in quarantine now, which follows from strikes.
        """
        worker = self.workers[identity]
        worker.strikes += is_strike
        self.end_lease(identity)
        self._rejected.add(identity)
        if worker.strikes >= MAX_STRIKES:
            worker.is_quarantined = True
            self._durations.forget(identity)
        return worker.is_quarantined

    def can_close(self, now_s: float) -> bool:
        """Return whether this version can be closed."""
        if self.is_finished or not self.counted:
            return False
        if not self.plan.is_bulk or len(self.counted) >= self.shards:
            return True
        is_late = self.deadline_s() <= now_s
        least = self.plan.least_workers(self.shards)
        is_enough = len(self.counted) >= self.plan.quorum_of(self.shards)
        return is_late and is_enough and len(set(self.counted.values())) >= least

    def deadline_s(self) -> float:
        """Return when the round times out; never if no shard of it was leased yet."""
        if self._began_s is None:
            return float("inf")
        return self._began_s + self.plan.round_timeout_s

    def next_shards(self, now_s: float) -> int:
        """Return how many shards the next version has."""
        if not (self.plan.elastic and self.plan.is_bulk):
            return self.plan.workers
        present = len(self.workers.present(now_s))
        return max(1, present, self.plan.least_workers(present))

    def step_factor(self) -> float:
        """Return the factor for learning rates in the step that ends this version."""
        if self.plan.is_bulk:
            return self.plan.rate_factor(self.version, self.shards)
        counted = [self.workers[identity].last for identity in self.counted.values()]
        return min(age_weight(self.version - key.version) for key in counted if key)

    def close_version(self, shards: int) -> None:
        """Close this version; the next one has ``shards`` shards."""
        total, samples = self._sum
        self.losses = with_loss(self.losses, self.version, total / samples)
        if self.plan.is_bulk:
            self.position += self.shards
            self.leases.clear()
        self.version += 1
        self.shards = shards
        self.counted.clear()
        self._rejected.clear()
        self._sum = [0.0, 0.0]
        self._began_s = None

    def patience_s(self, now_s: float) -> float:
        """Return how long a shard is leased to one worker alone."""
        return self._durations.patience_s({*self.workers.present(now_s), *self.leases})

    def _assign_in_round(self, identity: str, now_s: float) -> ShardLease | None:
        mine = self.leases.get(identity)
        if mine is not None and mine.shard not in self.counted:
            return mine
        if self._gives_way(identity, now_s):
            return None
        shards = RoundShards(self.shards, self.leases, self.counted)
        patience_s = self.patience_s(now_s)
        began_s = now_s if self._began_s is None else self._began_s
        waiting = []
        if now_s - began_s < patience_s:
            recent = self.workers.present(now_s, RECENT_S)
            waiting = [w for w in recent if not self._gives_way(w, now_s)]
        shard = shards.free(identity, waiting)
        if shard is None:
            shard = shards.late(now_s, patience_s)
        least = self.plan.least_workers(self.shards)
        if shard is None or not shards.may_take(identity, shard, least):
            return None
        batch = (self.position + shard) * self.plan.steps
        steps = self.plan.steps
        return ShardLease(self.version, shard, self.shards, batch, now_s, steps)

    def _gives_way(self, identity: str, now_s: float) -> bool:
        """Return whether a worker leaves the rest of this round to others.

        After a failed check its sender does, and workers without any counted update:
        else invalid updates under ever new names could hold up a shard for ever. They
        leave it only to workers that may take it, and only until the time-out.
        """
        if not self._rejected or self.deadline_s() <= now_s:
            return False
        others = set(self.workers.present(now_s)) - self._rejected - {identity}
        counted = set(self.counted.values())
        if len(counted) < self.plan.least_workers(self.shards):
            others -= counted
        if identity in self._rejected:
            return bool(others)
        has_counted = any(self.workers[w].updates for w in others)
        return not self.workers[identity].updates and has_counted

    def _assign_outside_rounds(self, identity: str, now_s: float) -> ShardLease | None:
        mine = self.leases.get(identity)
        if mine is not None:
            return replace(mine, version=self.version, issued_s=now_s)
        leases = self.leases.values()
        if would_exceed_staleness(self.plan, self.version, leases, now_s):
            return None
        batch = self.position * self.plan.steps
        self.position += 1
        slot = self.workers[identity].slot
        shards = max(self.plan.workers, slot + 1)
        steps = self.plan.steps
        return ShardLease(self.version, slot, shards, batch, now_s, steps)

    def _skip_batches_of(self, key: UpdateKey) -> None:
        """Outside rounds, never give out these batches again."""
        if not self.plan.is_bulk:
            self.position = max(self.position, key.first_batch // self.plan.steps + 1)
