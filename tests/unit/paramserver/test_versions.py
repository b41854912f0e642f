"""The state machine alone, with a clock that is a number."""

from __future__ import annotations

import random

import pytest

from ringleader.errors import ConfigError
from ringleader.paramserver.server import scheduler_state
from ringleader.paramserver.server.assignment import Assignment, Key, Verdict
from ringleader.paramserver.server.plan import Plan, age_weight
from ringleader.paramserver.server.scheduler import (
    LEAST_PATIENCE_S,
    MAX_STRIKES,
    PRESENT_S,
    RECENT_S,
    Versions,
)


def machine(workers: int = 2, **settings: object) -> Versions:
    plan = Plan(rounds=50, workers=workers, **settings)  # type: ignore[arg-type]
    versions = Versions(plan)
    for i in range(workers):
        versions.join(f"worker {i}", "cpu", 0.0)
    return versions


def key_of(given: Assignment | None) -> Key:
    assert given is not None
    return Key(given.version, given.shard, given.first_batch)


def submit(versions: Versions, worker: str, key: Key, now_s: float) -> Verdict:
    """As the server does it."""
    verdict = versions.judge(worker, key)
    if verdict is Verdict.TAKE:
        versions.count(worker, key, samples=8, loss=1.0)
        versions.time(worker, 8, now_s)
        if versions.is_ripe(now_s):
            versions.close(versions.shards_next(now_s))
    return verdict


def test_a_round_gives_each_worker_a_shard_and_ends_when_all_have_come() -> None:
    versions = machine()
    first, second = versions.ask("w1", 0.0), versions.ask("w2", 0.0)
    assert first is not None
    assert second is not None
    assert (first.shard, second.shard, first.shards) == (0, 1, 2)
    assert (first.first_batch, second.first_batch) == (0, 1)
    assert submit(versions, "w2", key_of(second), 1.0) is Verdict.TAKE
    assert versions.version == 0
    assert submit(versions, "w1", key_of(first), 2.0) is Verdict.TAKE
    assert (versions.version, versions.position) == (1, 2)
    assert key_of(versions.ask("w1", 3.0)) == Key(1, 0, 2)


def test_training_waits_for_its_workers_and_then_never_again() -> None:
    versions = Versions(Plan(rounds=3, workers=2))
    versions.join("a", "cpu", 0.0)
    assert versions.ask("w1", 0.0) is None
    versions.join("b", "cpu", 0.0)
    given = versions.ask("w1", 0.0)
    assert given is not None
    versions.leave("w2")
    submit(versions, "w1", key_of(given), 1.0)
    assert key_of(versions.ask("w1", 1.0)).shard == 1  # the other one's


def test_asking_again_gives_the_same_assignment() -> None:
    versions = machine()
    assert versions.ask("w1", 0.0) == versions.ask("w1", 5.0)


def test_a_repetition_counts_once_whenever_it_comes() -> None:
    versions = machine()
    one, two = key_of(versions.ask("w1", 0.0)), key_of(versions.ask("w2", 0.0))
    assert submit(versions, "w1", one, 1.0) is Verdict.TAKE
    assert submit(versions, "w1", one, 1.0) is Verdict.AGAIN
    submit(versions, "w2", two, 1.0)
    assert versions.version == 1
    assert submit(versions, "w1", one, 2.0) is Verdict.AGAIN
    assert versions.workers["w1"].updates == 1
    assert not versions.counted


def test_what_comes_for_an_old_version_is_stale_and_for_a_future_one_wrong() -> None:
    versions = machine(1)
    old = key_of(versions.ask("w1", 0.0))
    submit(versions, "w1", old, 0.0)
    versions.join("late", "cpu", 0.0)
    assert versions.judge("w2", old) is Verdict.STALE
    assert versions.judge("w2", Key(2, 0, 2)) is Verdict.WRONG
    assert versions.judge("w2", Key(1, 1, 2)) is Verdict.WRONG
    assert versions.judge("w2", Key(1, 0, 5)) is Verdict.WRONG


def test_a_shard_counts_from_whoever_is_first() -> None:
    versions = machine()
    shard = key_of(versions.ask("w1", 0.0))
    versions.ask("w2", 0.0)
    assert submit(versions, "w2", shard, 1.0) is Verdict.TAKE
    assert submit(versions, "w1", shard, 1.0) is Verdict.ELSEWHERE
    assert versions.counted == {0: "w2"}


def test_the_shard_of_a_dead_worker_is_given_to_an_idle_one_in_time() -> None:
    versions = machine()
    mine, lost = key_of(versions.ask("w1", 0.0)), key_of(versions.ask("w2", 0.0))
    submit(versions, "w1", mine, 0.1)
    assert versions.ask("w1", LEAST_PATIENCE_S - 0.1) is None
    assert key_of(versions.ask("w1", LEAST_PATIENCE_S)) == lost
    submit(versions, "w1", lost, LEAST_PATIENCE_S + 0.1)
    assert versions.version == 1


def test_a_worker_as_fast_as_others_keeps_its_shard() -> None:
    versions = machine()
    for version in range(4):  # shards usually take 10 s here
        for worker in ("w1", "w2"):
            versions.see(worker, version * 10.0)
            given = versions.ask(worker, version * 10.0)
            submit(versions, worker, key_of(given), version * 10.0 + 10.0)
    first, _ = versions.ask("w1", 40.0), versions.ask("w2", 40.0)
    submit(versions, "w1", key_of(first), 50.0)
    assert versions.ask("w1", 69.0) is None
    assert versions.ask("w1", 71.0) is not None


def test_a_fast_worker_leaves_a_shard_to_one_that_is_about_to_ask() -> None:
    versions = machine()
    submit(versions, "w1", key_of(versions.ask("w1", 0.0)), 0.1)
    assert versions.ask("w1", 0.2) is None
    assert key_of(versions.ask("w2", 0.3)).shard == 1


def test_a_lone_worker_does_not_wait_for_those_who_went() -> None:
    versions = machine()
    now_s = RECENT_S + 1
    versions.see("w1", now_s)
    submit(versions, "w1", key_of(versions.ask("w1", now_s)), now_s)
    assert key_of(versions.ask("w1", now_s)).shard == 1


def test_a_late_round_ends_with_a_quorum_and_not_with_less() -> None:
    versions = machine(3, round_timeout_s=30.0)
    given = {w: key_of(versions.ask(w, 0.0)) for w in ("w1", "w2", "w3")}
    versions.count("w1", given["w1"], samples=8, loss=1.0)
    assert not versions.is_ripe(31.0)
    versions.count("w2", given["w2"], samples=8, loss=1.0)
    assert not versions.is_ripe(29.0)
    assert versions.is_ripe(31.0)


def test_shards_follow_the_workers_only_when_elastic() -> None:
    for elastic, shards in ((False, 2), (True, 3)):
        versions = machine(2, elastic=elastic)
        versions.join("third", "cpu", 0.0)
        assert versions.shards_next(1.0) == shards
        assert versions.shards_next(PRESENT_S + 2.0) == (1 if elastic else 2)


def test_quarantine_needs_refusals_in_a_row_and_frees_the_shard() -> None:
    versions = machine()
    versions.ask("w1", 0.0)
    for _ in range(MAX_STRIKES - 1):
        assert not versions.reject("w1")
    submit(versions, "w1", key_of(versions.ask("w1", 0.0)), 0.0)
    assert versions.workers["w1"].strikes == 0
    for _ in range(MAX_STRIKES):
        versions.reject("w1")
    assert versions.workers["w1"].is_quarantined
    assert versions.present(0.0) == ["w2"]
    assert "w1" not in versions.given


def test_async_versions_end_with_each_update() -> None:
    versions = machine(2, mode="async")
    one, two = versions.ask("w1", 0.0), versions.ask("w2", 0.0)
    assert key_of(one).first_batch != key_of(two).first_batch
    submit(versions, "w1", key_of(one), 1.0)
    submit(versions, "w2", key_of(two), 2.0)
    assert versions.version == 2
    assert versions.judge("w1", key_of(one)) is Verdict.AGAIN


def test_bounded_mode_waits_for_the_slow_and_uses_what_they_send() -> None:
    versions = machine(2, mode="bounded", staleness=3)
    slow = key_of(versions.ask("w2", 0.0))
    made = 0
    while (given := versions.ask("w1", float(made))) is not None:
        submit(versions, "w1", key_of(given), float(made))
        made += 1
    assert made == 3
    assert submit(versions, "w2", slow, 50.0) is Verdict.TAKE
    assert versions.ask("w1", 51.0) is not None


def test_bounded_mode_does_not_wait_for_the_dead() -> None:
    versions = machine(2, mode="bounded", staleness=2, round_timeout_s=30.0)
    dead = key_of(versions.ask("w2", 0.0))
    for now_s in (0.0, 1.0):
        submit(versions, "w1", key_of(versions.ask("w1", now_s)), now_s)
    assert versions.ask("w1", 2.0) is None
    for now_s in (31.0, 32.0):
        submit(versions, "w1", key_of(versions.ask("w1", now_s)), now_s)
    assert versions.judge("w2", dead) is Verdict.STALE


def test_newer_weights_make_an_assignment_younger_except_in_rounds() -> None:
    for mode, version in (("async", 1), ("bulk", 0)):
        versions = machine(2, mode=mode)
        mine = versions.ask("w1", 0.0)
        submit(versions, "w2", key_of(versions.ask("w2", 0.0)), 0.0)
        versions.move_up("w1")
        assert mine is not None
        assert versions.given["w1"].version == version


@pytest.mark.parametrize("mode", ["async", "bounded"])
def test_an_update_that_a_proxy_held_back_does_not_count_again(mode: str) -> None:
    versions = machine(1, mode=mode)
    first = key_of(versions.ask("w1", 0.0))
    submit(versions, "w1", first, 0.0)
    submit(versions, "w1", key_of(versions.ask("w1", 1.0)), 1.0)
    assert submit(versions, "w1", first, 2.0) is Verdict.STALE
    assert versions.workers["w1"].updates == versions.version == 2


def test_outside_rounds_nobody_skips_far_ahead() -> None:
    versions = machine(2, mode="async", steps=5)
    given = key_of(versions.ask("w1", 0.0))
    far = Key(0, 0, 10**14)
    assert versions.judge("w1", far) is Verdict.STALE
    other_life = Key(0, 0, given.first_batch + 5 * 20)
    assert versions.judge("w1", other_life) is Verdict.TAKE


@pytest.mark.parametrize("mode", ["bulk", "async"])
def test_who_left_or_is_in_quarantine_gets_no_work_and_does_not_count(
    mode: str,
) -> None:
    for bar in ("leave", "reject"):
        versions = machine(1, mode=mode)
        key = key_of(versions.ask("w1", 0.0))
        for _ in range(MAX_STRIKES):
            getattr(versions, bar)("w1")
        assert versions.judge("w1", key) is Verdict.BARRED
        assert versions.ask("w1", 1.0) is None
        assert not versions.given


def test_training_ends_and_says_so() -> None:
    versions = Versions(Plan(rounds=1, workers=1))
    versions.join("a", "cpu", 0.0)
    versions.join("b", "cpu", 0.0)
    key = key_of(versions.ask("w1", 0.0))
    submit(versions, "w1", key, 0.0)
    assert versions.is_finished
    assert versions.ask("w1", 0.0) is None
    assert versions.judge("w1", key) is Verdict.AGAIN
    assert versions.judge("w2", key) is Verdict.FINISHED


def test_local_steps_take_as_many_batches() -> None:
    versions = machine(2, steps=5)
    assert [key_of(versions.ask(w, 0.0)).first_batch for w in ("w1", "w2")] == [0, 5]


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
def test_plans_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    settings: dict[str, object] = {"rounds": 5, "workers": 2, **wrong}
    with pytest.raises(ConfigError):
        Plan(**settings)  # type: ignore[arg-type]


def test_a_restored_machine_goes_on_where_the_other_was() -> None:
    versions = machine()
    one, two = key_of(versions.ask("w1", 0.0)), key_of(versions.ask("w2", 0.0))
    submit(versions, "w1", one, 0.0)
    submit(versions, "w2", two, 0.0)
    versions.leave("w2")
    again = Versions(versions.plan)
    scheduler_state.restore(again, scheduler_state.dump(versions), 100.0)
    assert scheduler_state.dump(again) == scheduler_state.dump(versions)
    assert again.judge("w1", one) is Verdict.AGAIN
    assert again.join("new", "cpu", 100.0) == "w3"
    other = Versions(Plan(rounds=50, workers=2, steps=3))
    with pytest.raises(ConfigError, match="steps 1, not 3"):
        scheduler_state.restore(other, scheduler_state.dump(versions), 0.0)


class Weather:
    """Workers of all speeds, lost answers, repetitions, deaths and late comers."""

    def __init__(self, mode: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.versions = machine(3, mode=mode, round_timeout_s=20.0, staleness=4)
        self.holding: dict[str, Key] = {}
        self.sent: list[tuple[str, Key]] = []
        self.counted: list[Key] = []
        self.oldest = 0
        self.now_s = 0.0

    def happen(self) -> None:
        """One thing, to one worker."""
        self.now_s += self.chance.random()
        versions = self.versions
        alive = [w for w, s in versions.workers.items() if not s.has_left]
        worker = self.chance.choice(alive)
        versions.see(worker, self.now_s)
        roll = self.chance.random()
        if roll < 0.02 and len(alive) > 1:
            versions.leave(worker)
        elif roll < 0.04 and len(alive) < 6:
            versions.join("new", "cpu", self.now_s)
        elif roll < 0.08 and self.sent:  # a proxy delivers an old one
            old, key = self.chance.choice(self.sent)
            self.deliver(old, key)
        elif roll < 0.5 and (given := versions.ask(worker, self.now_s)) is not None:
            self.holding[worker] = key_of(given)
        elif worker in self.holding:
            self.send(worker)
        if versions.is_ripe(self.now_s):
            versions.close(versions.shards_next(self.now_s))

    def send(self, worker: str) -> None:
        """An update; when its answer gets lost, it will come again."""
        key = self.holding[worker]
        self.sent.append((worker, key))
        self.deliver(worker, key)
        if self.chance.random() < 0.7:
            del self.holding[worker]

    def deliver(self, worker: str, key: Key) -> None:
        version = self.versions.version
        if submit(self.versions, worker, key, self.now_s) is Verdict.TAKE:
            self.counted.append(key)
            self.oldest = max(self.oldest, version - key.version)


@pytest.mark.parametrize(
    ("mode", "oldest"), [("bulk", 0), ("bounded", 4), ("async", 99)]
)
@pytest.mark.parametrize("seed", range(40))
def test_whatever_gets_lost_each_batch_counts_once(
    mode: str, oldest: int, seed: int
) -> None:
    weather = Weather(mode, seed)
    while not weather.versions.is_finished and weather.now_s < 5000.0:
        weather.happen()
    assert weather.versions.is_finished, "training stands still"
    batches = {key.first_batch for key in weather.counted}
    assert len(batches) == len(weather.counted)
    updates = sum(w.updates for w in weather.versions.workers.values())
    assert updates == len(weather.counted)
    assert weather.oldest <= oldest
