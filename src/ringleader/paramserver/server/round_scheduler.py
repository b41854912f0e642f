"""Schedules rounds mode: local steps of unlike workers, a quorum, and late updates.

Each worker has one lease per round: batches of its own, as many as its share of the
round by speed. A round can close when all workers that are there have sent their
updates, when a quorum has and the others had ``plan.grace_s`` more, or, after the
time-out, when one has. A worker that was not ready keeps its lease. Its update counts
in a later round, with a weight that falls with its age; one that is too old is refused.

Batches of a lease that ends without an update are given out again, so every batch
counts once. The pair of worker and round identifies an update.

With ``plan.is_auto`` the number of steps follows from what was measured: all workers
need the same time for a round, and none spends more than 5 % of it on the exchange.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ringleader.paramserver.server.plan import AUTO_STEPS
from ringleader.paramserver.server.scheduler import Scheduler
from ringleader.paramserver.server.update_headers import UpdateKey
from ringleader.paramserver.server.worker_record import ShardLease
from ringleader.rounds.round_length import (
    MAX_AGE,
    late_weight,
    mean_steps,
    split_by_speed,
)


@dataclass
class RoundScheduler(Scheduler):
    """The state of a run in rounds mode. ``position`` is the next new batch."""

    usual_steps: int = 0
    """Steps of a round for each worker, before they are shared out by speed."""
    _quorum_s: float | None = None
    """When the quorum of this round was there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.usual_steps = self.usual_steps or self.plan.steps

    def update_weight(self, key: UpdateKey) -> float:
        """Return the factor for the samples of an update that is accepted now."""
        return late_weight(self.version - key.version)

    def awaited(self) -> list[str]:
        """Return the workers whose updates the round waits for."""
        return [w for w, a in self.leases.items() if a.version == self.version]

    def end_lease(self, identity: str) -> None:
        """Take the batches of a worker back, to give them out again."""
        lease = self.leases.pop(identity, None)
        if lease is not None:
            self.returned.append((lease.first_batch, lease.steps))

    def restore_lease(
        self, identity: str, key: UpdateKey, steps: int, now_s: float
    ) -> None:
        """Lease batches again as before a restart, unless that lease is over."""
        first, end = key.first_batch, key.first_batch + steps
        # A failed update ends a lease without a record; the lease that follows has one.
        for other, lease in list(self.leases.items()):
            is_same = (
                lease.first_batch < end and first < lease.first_batch + lease.steps
            )
            if is_same or other == identity:
                self.end_lease(other)
        self.returned = without(self.returned, first, end)
        self.position = max(self.position, end)
        super().restore_lease(identity, key, steps, now_s)
        last = self.workers[identity].last
        is_counted = last is not None and key.version <= last.version
        if identity not in self.leases and not is_counted:
            self.returned.append((first, steps))

    def accept(
        self, identity: str, key: UpdateKey, *, samples: int, loss: float
    ) -> None:
        """Count an update; one of an earlier round is no part of the quorum."""
        others = dict(self.counted)
        super().accept(identity, key, samples=samples, loss=loss)
        if key.version != self.version:
            self.counted = others

    def can_close(self, now_s: float) -> bool:
        """Return whether this round can be closed; note when its quorum was there."""
        count = len(self.counted)
        if self.is_finished or not count:
            return False
        there = {*self.workers.present(now_s), *self.awaited(), *self.counted.values()}
        if count >= min(self.shards, len(there)) or self.deadline_s() <= now_s:
            return True
        if count < self.plan.quorum_of(self.shards):
            return False
        self._quorum_s = now_s if self._quorum_s is None else self._quorum_s
        return now_s >= self._quorum_s + self.plan.grace_s

    def next_shards(self, now_s: float) -> int:
        """Return how many workers the next round expects."""
        return max(1, len(self.workers.present(now_s)))

    def step_factor(self) -> float:
        """Return 1: the weights of late updates are in the mean already."""
        return 1.0

    def close_version(self, shards: int) -> None:
        """Close this round; the next one expects ``shards`` workers."""
        counted = {*self.counted.values()}
        super().close_version(shards)
        self._quorum_s = None
        if self.plan.is_auto:
            self._choose_steps(counted)
        for identity, lease in list(self.leases.items()):
            if self.version - lease.version > MAX_AGE:
                self.end_lease(identity)

    def _choose_steps(self, counted: set[str]) -> None:
        """Choose the steps of the next round; at most twice or half of the last one."""
        found = [self.workers[identity].times for identity in counted]
        times = [each for each in found if each is not None]
        if times:
            now = self.usual_steps
            least = max(AUTO_STEPS[0], now // 2)
            most = min(AUTO_STEPS[-1], max(2 * now, AUTO_STEPS[0]))
            self.usual_steps = mean_steps(times, least=least, most=most)

    def _assign_outside_rounds(self, identity: str, now_s: float) -> ShardLease | None:
        mine, last = self.leases.get(identity), self.workers[identity].last
        if mine is not None:
            return replace(mine, version=self.version, issued_s=now_s)
        if last is not None and last.version >= self.version:
            return None
        first, steps = self._take(self._share(identity, now_s))
        slot = self.workers[identity].slot
        shards = max(self.shards, slot + 1)
        return ShardLease(self.version, slot, shards, first, now_s, steps)

    def _share(self, identity: str, now_s: float) -> int:
        """Return how many steps a worker makes so that all need the same time."""
        there = [w for w in self.workers.present(now_s) if w != identity]
        speeds = [self.workers[w].samples_per_s for w in (identity, *there)]
        share = split_by_speed(self.usual_steps * len(speeds), speeds)[0]
        return min(self.plan.most_steps, share)

    def _take(self, steps: int) -> tuple[int, int]:
        """Return the next batches: some that came back, or else new ones."""
        if not self.returned:
            self.position += steps
            return self.position - steps, steps
        first, count = self.returned.pop(0)
        if count > steps:
            self.returned.insert(0, (first + steps, count - steps))
        return first, min(steps, count)

    def _skip_batches_of(self, key: UpdateKey) -> None:
        """Do nothing: ``position`` follows from the leases."""


def without(
    parts: list[tuple[int, int]], first: int, end: int
) -> list[tuple[int, int]]:
    """Return runs of batches (first, count) without those from ``first`` to ``end``."""
    left = []
    for begin, count in parts:
        before = min(begin + count, first) - begin
        after = begin + count - max(begin, end)
        left += [(begin, before)] if before > 0 else []
        left += [(begin + count - after, after)] if after > 0 else []
    return left
