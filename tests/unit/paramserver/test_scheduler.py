"""The scheduler alone, with times passed as numbers."""

from __future__ import annotations

import copy
import random

import pytest

from ringleader.errors import ConfigError
from ringleader.paramserver.server.aggregation import Aggregation, Rule
from ringleader.paramserver.server.plan import Plan, age_weight
from ringleader.paramserver.server.scheduler import RECENT_S, Scheduler
from ringleader.paramserver.server.shard_durations import MIN_PATIENCE_S
from ringleader.paramserver.server.storage import scheduler_state
from ringleader.paramserver.server.update_headers import UpdateKey
from ringleader.paramserver.server.update_verdict import Verdict
from ringleader.paramserver.server.worker_record import MAX_STRIKES, ShardLease
from ringleader.paramserver.server.worker_table import PRESENT_S


def machine(workers: int = 2, **settings: object) -> Scheduler:
    plan = Plan(rounds=50, workers=workers, **settings)  # type: ignore[arg-type]
    scheduler = Scheduler(plan)
    for i in range(workers):
        worker = scheduler.workers.join(f"worker {i}", "cpu", 0.0)
        scheduler.workers[worker].has_asked = True
    return scheduler


def key_of(lease: ShardLease | None) -> UpdateKey:
    assert lease is not None
    return UpdateKey(lease.version, lease.shard, lease.first_batch)


def submit(scheduler: Scheduler, worker: str, key: UpdateKey, now_s: float) -> Verdict:
    """Submit an update as the server does."""
    verdict = scheduler.verdict(worker, key)
    if verdict is Verdict.ACCEPT:
        scheduler.record_duration(worker, 8, now_s)
        scheduler.accept(worker, key, samples=8, loss=1.0)
        if scheduler.can_close(now_s):
            scheduler.close_version(scheduler.next_shards(now_s))
    return verdict


def test_a_round_gives_each_worker_a_shard_and_ends_when_all_have_come() -> None:
    scheduler = machine()
    first, second = scheduler.assign("w1", 0.0), scheduler.assign("w2", 0.0)
    assert first is not None
    assert second is not None
    assert (first.shard, second.shard, first.shards) == (0, 1, 2)
    assert (first.first_batch, second.first_batch) == (0, 1)
    assert submit(scheduler, "w2", key_of(second), 1.0) is Verdict.ACCEPT
    assert scheduler.version == 0
    assert submit(scheduler, "w1", key_of(first), 2.0) is Verdict.ACCEPT
    assert (scheduler.version, scheduler.position) == (1, 2)
    assert key_of(scheduler.assign("w1", 3.0)) == UpdateKey(1, 0, 2)


def test_training_waits_for_its_workers_and_then_never_again() -> None:
    scheduler = Scheduler(Plan(rounds=3, workers=2))
    scheduler.workers.join("a", "cpu", 0.0)
    assert scheduler.assign("w1", 0.0) is None
    scheduler.workers.join("b", "cpu", 0.0)
    assert scheduler.assign("w1", 0.0) is None
    assert scheduler.missing(0.0) == 1
    assert scheduler.assign("w2", 0.0) is not None
    lease = scheduler.assign("w1", 0.0)
    assert lease is not None
    assert scheduler.awaited() == ["w2", "w1"]
    scheduler.leave("w2")
    submit(scheduler, "w1", key_of(lease), 1.0)
    assert key_of(scheduler.assign("w1", 1.0)).shard == 0  # the other one's


def test_asking_again_gives_the_same_assignment() -> None:
    scheduler = machine()
    assert scheduler.assign("w1", 0.0) == scheduler.assign("w1", 5.0)


def test_a_repeated_update_counts_once() -> None:
    scheduler = machine()
    one, two = (
        key_of(scheduler.assign("w1", 0.0)),
        key_of(scheduler.assign("w2", 0.0)),
    )
    assert submit(scheduler, "w1", one, 1.0) is Verdict.ACCEPT
    assert submit(scheduler, "w1", one, 1.0) is Verdict.DUPLICATE
    submit(scheduler, "w2", two, 1.0)
    assert scheduler.version == 1
    assert submit(scheduler, "w1", one, 2.0) is Verdict.DUPLICATE
    assert scheduler.workers["w1"].updates == 1
    assert not scheduler.counted


def test_an_update_for_an_old_version_is_stale_and_a_future_one_not_leased() -> None:
    scheduler = machine(1)
    old = key_of(scheduler.assign("w1", 0.0))
    submit(scheduler, "w1", old, 0.0)
    scheduler.workers.join("late", "cpu", 0.0)
    assert scheduler.verdict("w2", old) is Verdict.STALE
    assert scheduler.assign("w2", 0.0) is not None
    for wrong in (UpdateKey(2, 0, 2), UpdateKey(1, 1, 2), UpdateKey(1, 0, 5)):
        assert scheduler.verdict("w2", wrong) is Verdict.NOT_LEASED


@pytest.mark.parametrize("mode", ["bulk", "bounded", "async"])
def test_an_update_counts_only_from_a_worker_that_was_given_it(mode: str) -> None:
    scheduler = machine(2, mode=mode)
    assert scheduler.verdict("w2", UpdateKey(0, 0, 0)) is Verdict.NOT_LEASED
    given = key_of(scheduler.assign("w1", 0.0))
    assert scheduler.verdict("w2", given) is Verdict.NOT_LEASED
    mine = key_of(scheduler.assign("w2", 0.0))
    assert scheduler.verdict("w2", given) is Verdict.NOT_LEASED
    assert scheduler.verdict("w2", mine) is Verdict.ACCEPT
    scheduler.reject("w2")  # takes the shard back
    assert scheduler.verdict("w2", mine) is Verdict.NOT_LEASED
    assert submit(scheduler, "w1", given, 1.0) is Verdict.ACCEPT


def test_a_shard_counts_from_the_first_worker() -> None:
    scheduler = machine()
    shard = key_of(scheduler.assign("w1", 0.0))
    submit(scheduler, "w2", key_of(scheduler.assign("w2", 0.0)), 0.0)
    assert key_of(scheduler.assign("w2", MIN_PATIENCE_S)) == shard
    scheduler.accept("w2", shard, samples=8, loss=1.0)
    assert submit(scheduler, "w1", shard, 3.0) is Verdict.ALREADY_COUNTED
    assert scheduler.counted[shard.shard] == "w2"


def test_one_fast_worker_does_not_decide_how_long_a_shard_may_take() -> None:
    scheduler = machine(3)
    for version in range(6):
        now_s = version * 10.0
        leases = {w: key_of(scheduler.assign(w, now_s)) for w in ("w1", "w2", "w3")}
        for took_s, worker in ((0.01, "w1"), (10.0, "w2"), (9.0, "w3")):
            submit(scheduler, worker, leases[worker], now_s + took_s)
    assert scheduler.patience_s(60.0) > 20.0


def test_workers_that_vanished_do_not_decide_how_long_a_shard_may_take() -> None:
    scheduler = machine(3)
    leases = {w: key_of(scheduler.assign(w, 0.0)) for w in ("w1", "w2", "w3")}
    for took_s, worker in ((5.0, "w1"), (40.0, "w2"), (50.0, "w3")):
        submit(scheduler, worker, leases[worker], took_s)
    assert scheduler.patience_s(50.0) == 120.0
    scheduler.mark_seen("w1", 100.0)
    assert scheduler.patience_s(100.0) == 15.0, "only w1 is there"
    assert scheduler.assign("w1", 100.0) is not None
    scheduler.mark_seen("w2", 100.0)
    assert scheduler.assign("w2", 100.0) is not None
    scheduler.mark_seen("w1", 190.0)
    assert scheduler.patience_s(190.0) == 67.5, "w2 computes, and is silent meanwhile"


def test_the_shard_of_a_dead_worker_is_given_to_an_idle_one_in_time() -> None:
    scheduler = machine()
    mine, lost = (
        key_of(scheduler.assign("w1", 0.0)),
        key_of(scheduler.assign("w2", 0.0)),
    )
    submit(scheduler, "w1", mine, 0.1)
    assert scheduler.assign("w1", MIN_PATIENCE_S - 0.1) is None
    assert key_of(scheduler.assign("w1", MIN_PATIENCE_S)) == lost
    submit(scheduler, "w1", lost, MIN_PATIENCE_S + 0.1)
    assert scheduler.version == 1


def test_a_worker_as_fast_as_others_keeps_its_shard() -> None:
    scheduler = machine()
    for version in range(4):  # shards usually take 10 s here
        for worker in ("w1", "w2"):
            scheduler.mark_seen(worker, version * 10.0)
            lease = scheduler.assign(worker, version * 10.0)
            submit(scheduler, worker, key_of(lease), version * 10.0 + 10.0)
    first, _ = scheduler.assign("w1", 40.0), scheduler.assign("w2", 40.0)
    submit(scheduler, "w1", key_of(first), 50.0)
    assert scheduler.assign("w1", 69.0) is None
    assert scheduler.assign("w1", 71.0) is not None


def test_a_fast_worker_leaves_a_shard_to_one_that_is_about_to_ask() -> None:
    scheduler = machine()
    submit(scheduler, "w1", key_of(scheduler.assign("w1", 0.0)), 0.1)
    assert scheduler.assign("w1", 0.2) is None
    assert key_of(scheduler.assign("w2", 0.3)).shard == 1


def test_a_lone_worker_does_not_wait_for_gone_ones() -> None:
    scheduler = machine()
    now_s = RECENT_S + 1
    scheduler.mark_seen("w1", now_s)
    submit(scheduler, "w1", key_of(scheduler.assign("w1", now_s)), now_s)
    assert key_of(scheduler.assign("w1", now_s)).shard == 1


def test_a_late_round_ends_with_a_quorum_and_not_with_less() -> None:
    scheduler = machine(3, round_timeout_s=30.0)
    lease = {w: key_of(scheduler.assign(w, 0.0)) for w in ("w1", "w2", "w3")}
    scheduler.accept("w1", lease["w1"], samples=8, loss=1.0)
    assert not scheduler.can_close(31.0)
    scheduler.accept("w2", lease["w2"], samples=8, loss=1.0)
    assert not scheduler.can_close(29.0)
    assert scheduler.can_close(31.0)


def test_shards_follow_the_workers_only_when_elastic() -> None:
    for elastic, shards in ((False, 2), (True, 3)):
        scheduler = machine(2, elastic=elastic)
        third = scheduler.workers.join("third", "cpu", 0.0)
        scheduler.workers[third].has_asked = True
        assert scheduler.next_shards(1.0) == shards
        assert scheduler.next_shards(PRESENT_S + 2.0) == (1 if elastic else 2)


def test_quarantine_needs_refusals_in_a_row_and_frees_the_shard() -> None:
    scheduler = machine(1)
    scheduler.assign("w1", 0.0)
    for _ in range(MAX_STRIKES - 1):
        assert not scheduler.reject("w1")
    submit(scheduler, "w1", key_of(scheduler.assign("w1", 0.0)), 0.0)
    assert scheduler.workers["w1"].strikes == 0
    for _ in range(MAX_STRIKES):
        scheduler.reject("w1")
    assert scheduler.workers["w1"].is_quarantined
    assert scheduler.workers.present(0.0) == []
    assert "w1" not in scheduler.leases


def test_async_versions_end_with_each_update() -> None:
    scheduler = machine(2, mode="async")
    one, two = scheduler.assign("w1", 0.0), scheduler.assign("w2", 0.0)
    assert key_of(one).first_batch != key_of(two).first_batch
    submit(scheduler, "w1", key_of(one), 1.0)
    submit(scheduler, "w2", key_of(two), 2.0)
    assert scheduler.version == 2
    assert scheduler.verdict("w1", key_of(one)) is Verdict.DUPLICATE


def test_bounded_mode_waits_for_the_slow_and_uses_what_they_send() -> None:
    scheduler = machine(2, mode="bounded", staleness=3)
    slow = key_of(scheduler.assign("w2", 0.0))
    made = 0
    while (lease := scheduler.assign("w1", float(made))) is not None:
        submit(scheduler, "w1", key_of(lease), float(made))
        made += 1
    assert made == 3
    assert submit(scheduler, "w2", slow, 50.0) is Verdict.ACCEPT
    assert scheduler.assign("w1", 51.0) is not None


def test_bounded_mode_does_not_wait_for_the_dead() -> None:
    scheduler = machine(2, mode="bounded", staleness=2, round_timeout_s=30.0)
    dead = key_of(scheduler.assign("w2", 0.0))
    for now_s in (0.0, 1.0):
        submit(scheduler, "w1", key_of(scheduler.assign("w1", now_s)), now_s)
    assert scheduler.assign("w1", 2.0) is None
    for now_s in (31.0, 32.0):
        submit(scheduler, "w1", key_of(scheduler.assign("w1", now_s)), now_s)
    assert scheduler.verdict("w2", dead) is Verdict.STALE


def test_newer_weights_make_an_assignment_younger_except_in_rounds() -> None:
    for mode, version in (("async", 1), ("bulk", 0)):
        scheduler = machine(2, mode=mode)
        mine = scheduler.assign("w1", 0.0)
        submit(scheduler, "w2", key_of(scheduler.assign("w2", 0.0)), 0.0)
        scheduler.use_newest_weights("w1")
        assert mine is not None
        assert scheduler.leases["w1"].version == version


@pytest.mark.parametrize("mode", ["async", "bounded"])
def test_an_update_that_a_proxy_held_back_does_not_count_again(mode: str) -> None:
    scheduler = machine(1, mode=mode)
    first = key_of(scheduler.assign("w1", 0.0))
    submit(scheduler, "w1", first, 0.0)
    submit(scheduler, "w1", key_of(scheduler.assign("w1", 1.0)), 1.0)
    assert submit(scheduler, "w1", first, 2.0) is Verdict.STALE
    assert scheduler.workers["w1"].updates == scheduler.version == 2


def test_outside_rounds_a_lease_survives_a_restart() -> None:
    scheduler = machine(2, mode="async", steps=5)
    one, two = (key_of(scheduler.assign(w, 0.0)) for w in ("w1", "w2"))
    again = Scheduler(scheduler.plan)
    scheduler_state.restore(again, scheduler_state.dump(scheduler), 100.0)
    assert again.verdict("w1", UpdateKey(0, 0, 10**14)) is Verdict.NOT_LEASED
    assert submit(again, "w1", one, 100.0) is Verdict.ACCEPT
    assert key_of(again.assign("w1", 100.0)).first_batch > two.first_batch


@pytest.mark.parametrize("mode", ["bulk", "bounded", "async"])
def test_a_lease_that_was_recorded_too_late_is_not_restored(mode: str) -> None:
    scheduler = machine(1, mode=mode)
    key = key_of(scheduler.assign("w1", 0.0))
    submit(scheduler, "w1", key, 0.0)
    scheduler.restore_lease("w1", key, 1, 1.0)  # in the journal it follows the update
    new = key_of(scheduler.assign("w1", 1.0))
    assert submit(scheduler, "w1", new, 1.0) is Verdict.ACCEPT
    scheduler.leave("w1")
    scheduler.restore_lease("w1", UpdateKey(2, 0, 2), 1, 2.0)
    assert not scheduler.leases


@pytest.mark.parametrize("mode", ["bulk", "async"])
def test_excluded_workers_get_no_work_and_do_not_count(
    mode: str,
) -> None:
    for bar in ("leave", "reject"):
        scheduler = machine(1, mode=mode)
        key = key_of(scheduler.assign("w1", 0.0))
        for _ in range(MAX_STRIKES):
            getattr(scheduler, bar)("w1")
        assert scheduler.verdict("w1", key) is Verdict.EXCLUDED
        assert scheduler.assign("w1", 1.0) is None
        assert not scheduler.leases


def test_training_ends_and_says_so() -> None:
    scheduler = Scheduler(Plan(rounds=1, workers=1))
    scheduler.workers.join("a", "cpu", 0.0)
    scheduler.workers.join("b", "cpu", 0.0)
    key = key_of(scheduler.assign("w1", 0.0))
    submit(scheduler, "w1", key, 0.0)
    assert scheduler.is_finished
    assert scheduler.assign("w1", 0.0) is None
    assert scheduler.verdict("w1", key) is Verdict.DUPLICATE
    assert scheduler.verdict("w2", key) is Verdict.FINISHED


def test_local_steps_take_as_many_batches() -> None:
    scheduler = machine(2, steps=5)
    assert [key_of(scheduler.assign(w, 0.0)).first_batch for w in ("w1", "w2")] == [
        0,
        5,
    ]


def test_rates_grow_to_the_number_of_shards() -> None:
    plan = Plan(rounds=9, workers=4, warmup=3)
    assert [plan.rate_factor(v, 4) for v in range(4)] == [2.0, 3.0, 4.0, 4.0]
    assert Plan(rounds=9, workers=4, warmup=0).rate_factor(0, 4) == 4.0
    for other in ({"mode": "async"}, {"steps": 2}, {"scale_rate": False}):
        same = Plan(rounds=9, workers=4, **other)
        assert same.rate_factor(5, 4) == 1.0
    assert [age_weight(age) for age in (0, 1, 3)] == [1.0, 0.5, 0.25]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"workers": 65},
        {"quorum": 3},
        {"mode": "x"},
        {"round_timeout_s": float("nan")},
        {"steps": 0},
    ],
)
def test_invalid_plans_are_refused(wrong: dict[str, object]) -> None:
    settings: dict[str, object] = {"rounds": 5, "workers": 2, **wrong}
    with pytest.raises(ConfigError):
        Plan(**settings)  # type: ignore[arg-type]


def test_a_restored_scheduler_continues() -> None:
    scheduler = machine()
    one, two = (
        key_of(scheduler.assign("w1", 0.0)),
        key_of(scheduler.assign("w2", 0.0)),
    )
    submit(scheduler, "w1", one, 0.0)
    submit(scheduler, "w2", two, 0.0)
    scheduler.leave("w2")
    again = Scheduler(scheduler.plan)
    scheduler_state.restore(again, scheduler_state.dump(scheduler), 100.0)
    assert scheduler_state.dump(again) == scheduler_state.dump(scheduler)
    assert again.verdict("w1", one) is Verdict.DUPLICATE
    assert again.workers.join("new", "cpu", 100.0) == "w3"
    other = Scheduler(Plan(rounds=50, workers=2, steps=3))
    with pytest.raises(ConfigError, match="steps 1, not 3"):
        scheduler_state.restore(other, scheduler_state.dump(scheduler), 0.0)


class Weather:
    """Simulates workers of all speeds, lost responses, repetitions and deaths."""

    def __init__(self, mode: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.scheduler = machine(3, mode=mode, round_timeout_s=20.0, staleness=4)
        self.holding: dict[str, UpdateKey] = {}
        self.sent: list[tuple[str, UpdateKey]] = []
        self.counted: list[UpdateKey] = []
        self.oldest = 0
        self.now_s = 0.0

    def happen(self) -> None:
        """Make one random event happen to one worker."""
        self.now_s += self.chance.random()
        scheduler = self.scheduler
        alive = [w for w, s in scheduler.workers.items() if not s.has_left]
        worker = self.chance.choice(alive)
        scheduler.mark_seen(worker, self.now_s)
        roll = self.chance.random()
        if roll < 0.02 and len(alive) > 1:
            scheduler.leave(worker)
        elif roll < 0.04 and len(alive) < 6:
            scheduler.workers.join("new", "cpu", self.now_s)
        elif roll < 0.08 and self.sent:  # a proxy delivers an old one
            old, key = self.chance.choice(self.sent)
            self.deliver(old, key)
        elif roll < 0.5 and (lease := scheduler.assign(worker, self.now_s)) is not None:
            self.holding[worker] = key_of(lease)
        elif worker in self.holding:
            self.send(worker)
        if scheduler.can_close(self.now_s):
            scheduler.close_version(scheduler.next_shards(self.now_s))

    def send(self, worker: str) -> None:
        """Submit an update; if the response is lost, it is submitted again."""
        key = self.holding[worker]
        self.sent.append((worker, key))
        self.deliver(worker, key)
        if self.chance.random() < 0.7:
            del self.holding[worker]

    def deliver(self, worker: str, key: UpdateKey) -> None:
        version = self.scheduler.version
        if submit(self.scheduler, worker, key, self.now_s) is Verdict.ACCEPT:
            self.counted.append(key)
            self.oldest = max(self.oldest, version - key.version)


@pytest.mark.parametrize(
    ("mode", "oldest"), [("bulk", 0), ("bounded", 4), ("async", 99)]
)
def test_each_batch_counts_once_whatever_is_lost(mode: str, oldest: int) -> None:
    for seed in range(40):
        weather = Weather(mode, seed)
        while not weather.scheduler.is_finished and weather.now_s < 5000.0:
            weather.happen()
        assert weather.scheduler.is_finished, f"seed {seed}: training stands still"
        batches = {key.first_batch for key in weather.counted}
        assert len(batches) == len(weather.counted), f"seed {seed}"
        updates = sum(w.updates for w in weather.scheduler.workers.values())
        assert updates == len(weather.counted), f"seed {seed}"
        assert weather.oldest <= oldest, f"seed {seed}"


def robust(workers: int, **settings: object) -> Scheduler:
    return machine(workers, aggregation=Aggregation("median"), **settings)


def test_a_robust_round_has_updates_of_a_majority_of_workers() -> None:
    scheduler = robust(5, round_timeout_s=30.0)
    leases = {f"w{i}": key_of(scheduler.assign(f"w{i}", 0.0)) for i in range(1, 6)}
    submit(scheduler, "w1", leases["w1"], 0.1)
    for now_s in (10.0, 20.0):  # it may take two shards of the slow ones, not more
        submit(scheduler, "w1", key_of(scheduler.assign("w1", now_s)), now_s)
    assert scheduler.assign("w1", 25.0) is None
    assert not scheduler.can_close(60.0), "three shards, but of one worker"
    left = [w for w in leases if leases[w].shard not in scheduler.counted]
    for worker in left:
        assert submit(scheduler, worker, leases[worker], 61.0) is Verdict.ACCEPT
    assert scheduler.version == 1


def test_a_robust_round_that_is_late_needs_a_majority_of_workers() -> None:
    scheduler = robust(5, round_timeout_s=30.0)
    for worker in ("w1", "w2", "w3"):
        assert not scheduler.can_close(60.0)
        scheduler.accept(
            worker, key_of(scheduler.assign(worker, 0.0)), samples=8, loss=1.0
        )
    assert scheduler.can_close(60.0)


def test_a_robust_run_waits_for_workers_and_says_how_many() -> None:
    scheduler = robust(3)
    for worker in ("w1", "w2", "w3"):
        submit(scheduler, worker, key_of(scheduler.assign(worker, 0.0)), 0.0)
    scheduler.leave("w3")
    assert (scheduler.missing(1.0), scheduler.assign("w1", 1.0)) == (1, None)
    new = scheduler.workers.join("new", "cpu", 2.0)
    assert scheduler.assign(new, 2.0) is not None
    assert scheduler.assign("w1", 2.0) is not None


def test_after_a_failed_check_the_round_is_left_to_others() -> None:
    scheduler = machine(2)
    for worker in ("w1", "w2"):
        submit(scheduler, worker, key_of(scheduler.assign(worker, 0.0)), 0.0)
    bad = key_of(scheduler.assign("w1", 1.0))
    assert not scheduler.reject("w1", is_strike=False)
    assert scheduler.workers["w1"].strikes == 0
    assert scheduler.assign("w1", 1.0) is None
    new = scheduler.workers.join("the same under a new name", "cpu", 1.0)
    assert scheduler.assign(new, 1.0) is None
    mine = key_of(scheduler.assign("w2", 1.0))
    submit(scheduler, "w2", mine, 2.0)
    other = key_of(scheduler.assign("w2", 2.0))
    assert {mine.shard, other.shard} == {0, 1}
    assert bad in (mine, other)
    submit(scheduler, "w2", other, 3.0)
    assert scheduler.version == 2
    assert scheduler.assign("w1", 3.0) is not None


def test_a_lone_worker_may_try_again_after_a_failed_check() -> None:
    scheduler = machine(1)
    mine = key_of(scheduler.assign("w1", 0.0))
    scheduler.reject("w1")
    assert key_of(scheduler.assign("w1", 0.0)) == mine


def closes(scheduler: Scheduler, now_s: float, *, within_s: float) -> bool:
    """Return whether the round ends if from now on all present workers are honest."""
    version, end_s = scheduler.version, now_s + within_s
    present = scheduler.workers.present(now_s)
    while scheduler.version == version and now_s < end_s:
        now_s += 1.0
        for worker in present:
            scheduler.mark_seen(worker, now_s)
            if (lease := scheduler.assign(worker, now_s)) is not None:
                submit(scheduler, worker, lease.key, now_s)
    return scheduler.version > version


@pytest.mark.parametrize(("workers", "bad"), [(3, 1), (4, 2), (5, 3)])
def test_a_robust_round_goes_on_with_workers_whose_check_failed(
    workers: int, bad: int
) -> None:
    scheduler = robust(workers)
    names = list(scheduler.workers)
    for worker in names:
        submit(scheduler, worker, key_of(scheduler.assign(worker, 0.0)), 0.0)
    leases = {worker: key_of(scheduler.assign(worker, 1.0)) for worker in names}
    for worker in names[:bad]:
        scheduler.reject(worker)
    for worker in names[bad:]:
        submit(scheduler, worker, leases[worker], 1.0)
    assert closes(scheduler, 1.0, within_s=5.0), "long before the time-out"


def test_a_newcomer_takes_the_shard_that_no_other_worker_may_take() -> None:
    scheduler = robust(3)
    leases = {
        worker: key_of(scheduler.assign(worker, 0.0)) for worker in scheduler.workers
    }
    scheduler.reject("w1")
    for worker in ("w2", "w3"):
        submit(scheduler, worker, leases[worker], 0.0)
    scheduler.leave("w1")
    new = scheduler.workers.join("new", "cpu", 1.0)
    submit(scheduler, new, key_of(scheduler.assign(new, 1.0)), 1.0)
    assert scheduler.version == 1


def test_nobody_gives_way_after_the_time_out() -> None:
    scheduler = machine(2, round_timeout_s=30.0)
    leases = [key_of(scheduler.assign(worker, 0.0)) for worker in ("w1", "w2")]
    scheduler.reject("w1")
    assert scheduler.assign("w1", 29.0) is None, "w2 is there"
    assert scheduler.assign("w1", 31.0) is not None, "but it does not take the shard"
    assert leases[0] == scheduler.leases["w1"].key


@pytest.mark.parametrize(
    ("rule", "workers"), [("mean", 3), ("median", 3), ("median", 5)]
)
def test_a_round_can_always_end_whatever_was_refused(rule: Rule, workers: int) -> None:
    for seed in range(30):
        chance, now_s = random.Random(seed), 0.0
        scheduler = machine(
            workers, aggregation=Aggregation(rule), round_timeout_s=20.0
        )
        for _ in range(30):
            now_s += chance.random()
            alive = [w for w, s in scheduler.workers.items() if not s.is_excluded]
            worker, roll = chance.choice(alive), chance.random()
            scheduler.mark_seen(worker, now_s)
            lease = scheduler.assign(worker, now_s)
            if roll < 0.05 and len(alive) > workers:
                scheduler.leave(worker)
            elif roll < 0.15 or len(alive) < workers:
                scheduler.workers.join("new", "cpu", now_s)
            elif roll < 0.6 and lease is not None:
                scheduler.reject(worker, is_strike=chance.random() < 0.5)
            elif lease is not None:
                submit(scheduler, worker, lease.key, now_s)
            if not scheduler.missing(now_s):
                later = copy.deepcopy(scheduler)
                assert closes(later, now_s, within_s=60.0), f"seed {seed}"
