"""The scheduler of rounds mode alone, with times passed as numbers."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from ringleader.errors import ConfigError
from ringleader.paramserver.server.outer_optimizer import KINDS, outer_optimizer
from ringleader.paramserver.server.plan import MAX_SHARE, Plan
from ringleader.paramserver.server.round_scheduler import RoundScheduler, without
from ringleader.paramserver.server.storage import scheduler_state
from ringleader.paramserver.server.update_headers import UpdateKey
from ringleader.paramserver.server.update_verdict import Verdict
from ringleader.paramserver.server.worker_record import ShardLease
from ringleader.rounds.round_length import MAX_AGE


def machine(workers: int = 2, **settings: object) -> RoundScheduler:
    given: Any = {"rounds": 1000, "workers": workers, "steps": 10, **settings}
    scheduler = RoundScheduler(Plan(mode="rounds", **given))
    for i in range(workers):
        worker = scheduler.workers.join(f"worker {i}", "cpu", 0.0)
        scheduler.workers[worker].has_asked = True
    return scheduler


def lease_of(scheduler: RoundScheduler, worker: str, now_s: float) -> ShardLease:
    scheduler.mark_seen(worker, now_s)
    lease = scheduler.assign(worker, now_s)
    assert lease is not None
    return lease


def submit(
    scheduler: RoundScheduler, worker: str, lease: ShardLease, now_s: float
) -> Verdict:
    """Submit an update as the server does."""
    scheduler.mark_seen(worker, now_s)
    verdict = scheduler.verdict(worker, lease.key)
    if verdict is Verdict.ACCEPT:
        scheduler.record_duration(worker, 32 * lease.steps, now_s)
        scheduler.accept(worker, lease.key, samples=32 * lease.steps, loss=1.0)
        close_if_due(scheduler, now_s)
    return verdict


def close_if_due(scheduler: RoundScheduler, now_s: float) -> None:
    if scheduler.can_close(now_s):
        scheduler.close_version(scheduler.next_shards(now_s))


def restarted(scheduler: RoundScheduler) -> RoundScheduler:
    again = RoundScheduler(scheduler.plan)
    scheduler_state.restore(again, scheduler_state.dump(scheduler), 0.0)
    return again


def test_a_round_closes_when_all_have_come_and_each_counts_once() -> None:
    scheduler = machine()
    one, two = lease_of(scheduler, "w1", 0.0), lease_of(scheduler, "w2", 0.0)
    assert (one.first_batch, one.steps) == (0, 10)
    assert (two.first_batch, two.steps) == (10, 10)
    assert submit(scheduler, "w1", one, 1.0) is Verdict.ACCEPT
    assert scheduler.assign("w1", 1.0) is None  # once per round
    assert submit(scheduler, "w1", one, 1.0) is Verdict.DUPLICATE
    assert submit(scheduler, "w2", two, 1.0) is Verdict.ACCEPT
    assert scheduler.version == 1
    assert submit(scheduler, "w1", one, 1.0) is Verdict.DUPLICATE


def test_shares_follow_the_speeds_and_rounds_take_the_same_time() -> None:
    scheduler, now_s = machine(4, steps=16), 0.0
    speeds = {"w1": 4.0, "w2": 2.0, "w3": 1.0, "w4": 1.0}
    leases: dict[str, ShardLease] = {}
    took: dict[str, float] = {}
    for _ in range(12):
        leases = {w: lease_of(scheduler, w, now_s) for w in speeds}
        took = {w: leases[w].steps / speeds[w] for w in speeds}
        for worker in sorted(took, key=lambda w: took[w]):
            submit(scheduler, worker, leases[worker], now_s + took[worker])
        now_s += max(took.values())
    assert [leases[w].steps for w in speeds] == [32, 16, 8, 8]
    assert max(took.values()) / min(took.values()) < 1.01


def test_steps_are_chosen_so_that_rounds_take_the_same_time_with_little_waiting() -> (
    None
):
    """Speeds 4:1, and a connection that is ten times as slow: H by what is measured."""
    scheduler, now_s = machine(2, steps=50, is_auto=True), 0.0
    step_s, exchange_s = {"w1": 0.01, "w2": 0.04}, {"w1": 0.02, "w2": 0.2}
    leases: dict[str, ShardLease] = {}
    took: dict[str, float] = {}
    for _ in range(30):
        leases = {w: lease_of(scheduler, w, now_s) for w in step_s}
        compute = {w: leases[w].steps * step_s[w] for w in step_s}
        took = {w: compute[w] + exchange_s[w] for w in step_s}
        for worker in sorted(took, key=lambda w: took[w]):
            samples, at_s = 32 * leases[worker].steps, now_s + took[worker]
            scheduler.mark_seen(worker, at_s)
            scheduler.record_duration(worker, samples, at_s, compute[worker])
            scheduler.accept(worker, leases[worker].key, samples=samples, loss=1.0)
        now_s += max(took.values())
        close_if_due(scheduler, now_s)
    assert max(took.values()) / min(took.values()) < 1.03
    assert max(exchange_s[w] / took[w] for w in took) == pytest.approx(0.05, rel=0.05)
    assert [leases[w].steps for w in leases] == pytest.approx([398, 95], rel=0.05)


def test_steps_are_chosen_in_rounds_mode_only() -> None:
    with pytest.raises(ConfigError, match="--steps auto needs --mode rounds"):
        Plan(rounds=1, workers=1, is_auto=True)


def test_one_fast_worker_gets_no_more_than_it_agreed_to() -> None:
    scheduler = machine(40)
    for worker in scheduler.workers.values():
        worker.samples_per_s = 1.0
    scheduler.workers["w1"].samples_per_s = 1e9
    assert lease_of(scheduler, "w1", 0.0).steps == MAX_SHARE * 10
    assert lease_of(scheduler, "w2", 0.0).steps == 1


def test_a_quorum_and_its_grace_close_a_round() -> None:
    scheduler = machine(4, quorum=2, grace_s=5.0)
    leases = {w: lease_of(scheduler, w, 0.0) for w in ("w1", "w2", "w3", "w4")}
    submit(scheduler, "w1", leases["w1"], 1.0)
    close_if_due(scheduler, 50.0)
    assert scheduler.version == 0  # one is no quorum
    submit(scheduler, "w2", leases["w2"], 50.0)
    close_if_due(scheduler, 54.9)
    assert scheduler.version == 0
    close_if_due(scheduler, 55.0)
    assert scheduler.version == 1


def test_after_the_timeout_one_update_is_enough() -> None:
    scheduler = machine(4, quorum=4, round_timeout_s=20.0)
    leases = {w: lease_of(scheduler, w, 0.0) for w in ("w1", "w2", "w3", "w4")}
    close_if_due(scheduler, 30.0)
    assert scheduler.version == 0
    submit(scheduler, "w1", leases["w1"], 30.0)
    assert scheduler.version == 1


def test_workers_that_are_gone_are_not_waited_for() -> None:
    scheduler = machine(3, quorum=3)
    one = lease_of(scheduler, "w1", 0.0)
    two = lease_of(scheduler, "w2", 0.0)
    submit(scheduler, "w1", one, 61.0)
    assert scheduler.version == 0  # w2 may still compute
    scheduler.leave("w2")
    close_if_due(scheduler, 61.0)
    assert scheduler.version == 1
    assert lease_of(scheduler, "w1", 62.0).first_batch == two.first_batch  # given again


@pytest.mark.parametrize("age", [1, 4, MAX_AGE, MAX_AGE + 1])
def test_late_updates_count_by_their_age(age: int) -> None:
    scheduler = machine(2, quorum=1, grace_s=0.0)
    slow = lease_of(scheduler, "w2", 0.0)
    for turn in range(age):
        submit(scheduler, "w1", lease_of(scheduler, "w1", turn), turn)
    assert scheduler.version == age
    assert scheduler.update_weight(slow.key) == pytest.approx(
        math.exp(-0.3 * age) if age <= 8 else 0.0
    )
    assert submit(scheduler, "w2", slow, age) is (
        Verdict.ACCEPT if age <= MAX_AGE else Verdict.STALE
    )
    if age <= MAX_AGE:  # it is in the mean, but no part of a quorum
        assert (scheduler.version, scheduler.has_updates) == (age, True)
        assert not scheduler.counted
        assert lease_of(scheduler, "w2", age).version == age
        assert submit(scheduler, "w2", slow, age) is Verdict.DUPLICATE


def test_batches_of_an_expired_lease_are_given_out_again() -> None:
    scheduler = machine(2, quorum=1, grace_s=0.0)
    lost = lease_of(scheduler, "w2", 0.0)
    for turn in range(MAX_AGE + 1):
        submit(scheduler, "w1", lease_of(scheduler, "w1", turn), turn)
    assert "w2" not in scheduler.leases
    assert scheduler.returned == [(lost.first_batch, lost.steps)]
    assert lease_of(scheduler, "w1", 10).first_batch == lost.first_batch
    assert submit(scheduler, "w2", lost, 10) is not Verdict.ACCEPT


def test_a_server_that_waits_for_nobody_uses_adam() -> None:
    plan = Plan(rounds=1, workers=2, mode="rounds")
    nobody = Plan(rounds=1, workers=2, mode="rounds", quorum=1, grace_s=0.0)
    assert outer_optimizer("", plan, "int8") is KINDS["nesterov"]
    assert outer_optimizer("", plan, "sparseloco") is KINDS["average"]
    chosen = outer_optimizer("nesterov:1:0.5", plan, "int8")
    assert (chosen.rate, chosen.momentum, chosen.nesterov) == (1.0, 0.5, True)
    assert outer_optimizer("adam:0.01", plan, "int8").rate == 0.01
    for wrong in ("nesterov:x", "nesterov:1:0.5:2", "average:1:0.5", "nesterov:1:1"):
        with pytest.raises(ConfigError, match="outer"):
            outer_optimizer(wrong, plan, "int8")
    assert outer_optimizer("", nobody, "int8") is KINDS["adam"]
    assert outer_optimizer("", Plan(rounds=1, workers=1), "") is KINDS["average"]
    assert outer_optimizer("sgd", nobody, "int8") is KINDS["sgd"]
    with pytest.raises(ConfigError, match="--outer: 'lion' is none of"):
        outer_optimizer("lion", plan, "")
    with pytest.raises(ConfigError, match="grace_s"):
        Plan(rounds=1, workers=1, grace_s=math.nan)


def test_runs_of_batches_without_some_of_them() -> None:
    assert without([(0, 10), (20, 5)], 3, 6) == [(0, 3), (6, 4), (20, 5)]
    assert without([(0, 10), (20, 5)], 0, 22) == [(22, 3)]
    assert without([(4, 2)], 6, 9) == [(4, 2)]
    assert without([(4, 2)], 0, 9) == []


class RandomRun:
    """Workers are slow, leave, fail checks and come back; the server restarts."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.scheduler = machine(3, quorum=2, grace_s=3.0, steps=4)
        self.now_s = 0.0
        self.held: dict[str, ShardLease] = {}
        self.counted: list[int] = []

    def turn(self) -> None:
        """Let time pass, and one worker do something."""
        self.now_s += self.chance.expovariate(1.0)
        close_if_due(self.scheduler, self.now_s)
        workers = self.scheduler.workers
        present = [w for w in workers if not workers[w].is_excluded]
        worker, event = self.chance.choice(present), self.chance.random()
        self.scheduler.mark_seen(worker, self.now_s)
        if event < 0.1:
            self.disturb(worker, event, present)
        elif worker in self.held and event < 0.6:
            self.submit(worker)
        elif (found := self.scheduler.assign(worker, self.now_s)) is not None:
            self.held[worker] = found

    def disturb(self, worker: str, event: float, present: list[str]) -> None:
        if event < 0.02 and len(present) > 2:
            self.scheduler.leave(worker)
        elif event < 0.05 and len(present) < 6:
            new = self.scheduler.workers.join("new", "cpu", self.now_s)
            self.scheduler.workers[new].has_asked = True
        elif event < 0.07 and worker in self.held:
            self.scheduler.reject(worker, is_strike=False)
        elif not self.scheduler.has_updates:
            self.scheduler = restarted(self.scheduler)
            for other in present:
                self.scheduler.workers[other].has_asked = True
                self.scheduler.mark_seen(other, self.now_s)

    def submit(self, worker: str) -> None:
        lease = self.held.pop(worker)
        if submit(self.scheduler, worker, lease, self.now_s) is Verdict.ACCEPT:
            self.counted += batches(lease.first_batch, lease.steps)


def batches(first: int, count: int) -> range:
    return range(first, first + count)


@pytest.mark.parametrize("seed", range(30))
def test_every_batch_counts_once_whatever_happens(seed: int) -> None:
    run = RandomRun(seed)
    for _ in range(400):
        run.turn()
    scheduler = run.scheduler
    leased = [(a.first_batch, a.steps) for a in scheduler.leases.values()]
    owed = [b for part in (*scheduler.returned, *leased) for b in batches(*part)]
    assert len(run.counted) > 100
    assert sorted(run.counted + owed) == list(range(scheduler.position))


def test_a_journal_that_names_leases_after_their_end_loses_no_batch() -> None:
    """A failed update leaves no record, and a record can follow that of leaving."""
    scheduler = machine(2)
    one = lease_of(scheduler, "w1", 0.0)
    scheduler.restore_lease("w2", UpdateKey(0, 1, one.first_batch), 4, 1.0)
    assert set(scheduler.leases) == {"w2"}
    assert scheduler.returned == [(4, 6)]
    scheduler.leave("w2")
    scheduler.restore_lease("w2", UpdateKey(0, 1, 10), 10, 1.0)
    assert not scheduler.leases
    assert sorted(scheduler.returned) == [(0, 4), (4, 6), (10, 10)]
    assert scheduler.position == 20
