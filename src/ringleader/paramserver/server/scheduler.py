"""Who computes what, what counts, and when a version ends: pure, time is an argument.

Theory of operation. Bulk mode: version v is a round of ``shards`` shards. Each is given
to a worker that asks; the first update for it counts, later ones are told so. A shard
whose worker is gone, or takes far longer than others did, is given to an idle worker as
well. The round is ripe when every shard is counted, or a quorum after the time-out;
closing it makes version v + 1, and whatever still comes for v is stale.

Bounded and async mode: every counted update makes a version. In bounded mode work is
held back while handing it out could make an update under way older than allowed. A
worker's batches only grow, so whatever a proxy delivers late is known by its number.

Invariants: a shard of a version counts at most once; a worker's repetition of its last
counted update is recognised whenever it comes; versions only grow, by one.
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
"""Who asked within this time is there: long polls come every 25 s."""
RECENT_S = 10.0
"""Who asked within this time is about to ask again, so a shard is kept for it."""
MIN_PATIENCE_S = 2.0
"""A shard is given to a second worker no sooner: below, the jitter of lines decides."""
PATIENCE = 3.0
"""... and not before this many times as long as shards usually take."""
MAX_STRIKES = 3
"""Refused updates in a row that put a worker in quarantine."""
_HISTORY = 2000


@dataclass(slots=True)
class Scheduler:
    """The whole state. One thread at a time; nothing here waits or touches anything."""

    plan: Plan
    version: int = 0
    shards: int = 0
    position: int = 0
    """Shards given out in all versions before this one (bulk), or so far (others)."""
    workers: dict[str, WorkerRecord] = field(default_factory=dict)
    losses: list[tuple[int, float]] = field(default_factory=list)
    leases: dict[str, ShardLease] = field(default_factory=dict)
    """What each worker is computing, as far as we know."""
    counted: dict[int, str] = field(default_factory=dict)
    """Shards of this version that have come, and from whom."""
    num_joined: int = 0
    _began_s: float | None = None
    _sum: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _times_s: deque[float] = field(default_factory=lambda: deque(maxlen=32))

    def __post_init__(self) -> None:
        self.shards = self.shards or self.plan.workers

    @property
    def is_finished(self) -> bool:
        """Whether the last version is reached."""
        return self.version >= self.plan.rounds

    def join(self, name: str, device: str, now_s: float) -> str:
        """A new worker; the caller has checked that there is room."""
        self.num_joined += 1
        identity = f"w{self.num_joined}"
        self.add_worker(identity, name, device, now_s)
        return identity

    def add_worker(self, identity: str, name: str, device: str, now_s: float) -> None:
        """A worker by its id: also how a restarted server remembers one."""
        taken = {w.slot for w in self.workers.values() if not w.has_left}
        slot = next(i for i in range(len(taken) + 1) if i not in taken)
        self.num_joined = max(self.num_joined, int(identity[1:]))
        self.workers[identity] = WorkerRecord(name, device, slot, now_s)

    def has_room(self, now_s: float) -> bool:
        """Whether another worker may join."""
        return len(self.present(now_s)) < MAX_WORKERS

    def leave(self, identity: str) -> None:
        """Its shards go to others."""
        self.workers[identity].has_left = True
        self.leases.pop(identity, None)

    def mark_seen(self, identity: str, now_s: float) -> None:
        """It asked for something."""
        self.workers[identity].seen_s = now_s

    def present(self, now_s: float, within_s: float = PRESENT_S) -> list[str]:
        """Workers that were heard of lately and may take part."""
        return [
            identity
            for identity, w in self.workers.items()
            if not w.is_excluded and now_s - w.seen_s <= within_s
        ]

    def assign(self, identity: str, now_s: float) -> ShardLease | None:
        """Something to do for this worker, or nothing yet."""
        if self.workers[identity].is_excluded:  # it left while it waited for work
            return None
        if self.is_finished or not self._has_begun(now_s):
            return None
        found = (
            self._assign_in_round if self.plan.is_bulk else self._assign_outside_rounds
        )(identity, now_s)
        if found is not None:
            self.leases[identity] = found
            self._began_s = now_s if self._began_s is None else self._began_s
        return found

    def use_newest_weights(self, identity: str) -> None:
        """It is about to compute on the newest weights, whatever it was assigned."""
        if identity in self.leases and not self.plan.is_bulk:
            self.leases[identity] = replace(self.leases[identity], version=self.version)

    def verdict(self, identity: str, key: UpdateKey) -> Verdict:
        """What would become of this update now."""
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
        """This update counts; ``judge`` said TAKE."""
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
        """How long its assignment took, once the update is in."""
        lease = self.leases.pop(identity, None)
        if lease is not None:
            took_s = max(now_s - lease.issued_s, 1e-6)
            self._times_s.append(took_s)
            worker = self.workers[identity]
            speed = samples / took_s
            old = worker.samples_per_s or speed
            worker.samples_per_s = 0.7 * old + 0.3 * speed

    def reject(self, identity: str) -> bool:
        """It sent rubbish; whether that was once too often."""
        worker = self.workers[identity]
        worker.strikes += 1
        self.leases.pop(identity, None)
        worker.is_quarantined |= worker.strikes >= MAX_STRIKES
        return worker.is_quarantined

    def can_close(self, now_s: float) -> bool:
        """Whether this version can end."""
        if self.is_finished or not self.counted:
            return False
        if not self.plan.is_bulk or len(self.counted) >= self.shards:
            return True
        is_late = self.deadline_s() <= now_s
        return is_late and len(self.counted) >= self.plan.quorum_of(self.shards)

    def deadline_s(self) -> float:
        """When the round is late; long ago if nobody began it in this life."""
        if self._began_s is None:
            return float("inf")
        return self._began_s + self.plan.round_timeout_s

    def next_shards(self, now_s: float) -> int:
        """How many shards the version after this one has."""
        if not (self.plan.elastic and self.plan.is_bulk):
            return self.plan.workers
        return max(1, len(self.present(now_s)))

    def step_factor(self) -> float:
        """What the step that ends this version is multiplied with."""
        if self.plan.is_bulk:
            return self.plan.rate_factor(self.version, self.shards)
        counted = [self.workers[identity].last for identity in self.counted.values()]
        return min(age_weight(self.version - key.version) for key in counted if key)

    def close_version(self, shards: int) -> None:
        """End this version; the next one has ``shards`` shards."""
        total, samples = self._sum
        self.losses.append((self.version, total / samples))
        if len(self.losses) > _HISTORY:  # half as many points tell as much
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
        """How long a shard is one worker's alone."""
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
        """A shard nobody has; not the last ones while others wait for their first."""
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
        """The shard that was given to its last worker longest ago, if too long."""
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
        """Whether an update outside rounds is young enough, and none of before.

        What was given out in an earlier life of the server may be beyond ``position``,
        but not by more than there can be workers.
        """
        age = self.version - key.version
        if self.plan.mode == "bounded" and age > self.plan.staleness:
            return False
        is_old = last is not None and key.first_batch <= last.first_batch
        beyond = key.first_batch // self.plan.steps - self.position
        return not is_old and beyond < MAX_WORKERS

    def _would_exceed_staleness(self, now_s: float) -> bool:
        """Whether one more update could come before one under way is too old.

        Whoever has computed for longer than a round may take is not waited for.
        """
        limit_s = self.plan.round_timeout_s
        under_way = [a for a in self.leases.values() if now_s - a.issued_s < limit_s]
        oldest = min((a.version for a in under_way), default=self.version)
        return self.version + len(under_way) - oldest > self.plan.staleness
