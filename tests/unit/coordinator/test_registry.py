"""Rules of the coordinator: ranks, leases, watchers, checkpoints."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ringleader.coordinator.registry import job_state, state_machine
from ringleader.coordinator.registry.events import (
    Beat,
    BeatReply,
    EndCheckpoint,
    Event,
    Register,
    StartCheckpoint,
    Tick,
    Unregister,
)
from ringleader.coordinator.registry.records import (
    Checkpoint,
    Namespace,
    PeerChanges,
    Refusal,
    RefusalKind,
)
from ringleader.coordinator.registry.state_machine import Registry, Reply

TIMEOUT_S = 8.0
RED, BLUE = Namespace(b"r" * 32, ""), Namespace(b"b" * 32, "")


class Driver:
    """A registry with a clock that the test moves."""

    def __init__(self) -> None:
        self.registry = Registry(TIMEOUT_S)
        self.now_s = 100.0

    def step(self, event: Event) -> Reply:
        return self.registry.step(event, self.now_s)[0]

    def enter(self, worker: str, life: str = "1", where: Namespace = RED) -> Reply:
        return self.step(Register(where, worker, life, ("host:1",)))

    def beat(self, worker: str, life: str = "1") -> Reply:
        return self.step(Beat(RED, worker, life))

    def leave(self, worker: str, life: str = "1") -> Reply:
        return self.step(Unregister(RED, worker, life))

    def pass_time(self, seconds: float) -> None:
        """Let time pass as a runner does, with its ticks."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(self.now_s + self.registry.tick_s, end_s)
            self.step(Tick())

    def ranks(self, where: Namespace = RED) -> dict[int, str]:
        job = self.registry.jobs[where]
        assert job.by_rank == {v.worker.rank: k for k, v in job.leases.items()}
        return dict(job.by_rank)

    def restart(self) -> None:
        saved = list(self.registry.everything())
        self.registry = Registry.restored(TIMEOUT_S, saved, self.now_s)


@pytest.fixture
def coordinator() -> Driver:
    return Driver()


def test_ranks_are_dense_and_used_again(coordinator: Driver) -> None:
    assert [coordinator.enter(name) for name in "abc"] == [0, 1, 2]
    coordinator.leave("b")
    assert coordinator.enter("d") == 1
    assert coordinator.enter("e") == 3


def test_a_repeated_call_changes_nothing(coordinator: Driver) -> None:
    """ZF-16: a worker whose answer got lost does not leave a ghost behind."""
    coordinator.enter("a")
    version = coordinator.registry.jobs[RED].version
    assert coordinator.enter("a") == 0
    assert coordinator.registry.jobs[RED].version == version


def test_a_restarted_worker_returns_to_its_rank(coordinator: Driver) -> None:
    """ZF-7: also after an eviction, and while nobody else has taken the rank."""
    for name in "abc":
        coordinator.enter(name)
    assert coordinator.enter("b", "2") == 1  # a crash that nobody has noticed yet
    assert coordinator.beat("b", "1") is BeatReply.REPLACED
    assert coordinator.beat("b", "2") is BeatReply.OK
    coordinator.leave("b", "1")  # the former process still says goodbye
    assert coordinator.ranks() == {0: "a", 1: "b", 2: "c"}
    coordinator.leave("b", "2")
    coordinator.leave("a")
    assert coordinator.enter("b", "3") == 1  # not 0, which is free, too
    coordinator.pass_time(2 * TIMEOUT_S)
    assert coordinator.ranks() == {}
    assert coordinator.enter("c", "2") == 2


def test_missed_heartbeats_evict_within_twice_the_timeout(coordinator: Driver) -> None:
    """ZF-7: heartbeats keep a worker, and without them it goes; both are told."""
    coordinator.enter("a")
    coordinator.enter("b")
    known = coordinator.registry.changes_since(RED, -1)
    assert known is not None
    for _ in range(80):  # 20 times the time-out
        coordinator.pass_time(TIMEOUT_S / 4)
        assert coordinator.beat("a") is BeatReply.OK
        if coordinator.now_s < 100.0 + TIMEOUT_S:
            assert coordinator.ranks() == {0: "a", 1: "b"}
        if coordinator.now_s > 100.0 + 2 * TIMEOUT_S:
            assert coordinator.ranks() == {0: "a"}
    assert coordinator.beat("b") is BeatReply.REGISTER_AGAIN
    changes = coordinator.registry.changes_since(RED, known.version)
    assert changes is not None
    assert [(d.rank, d.reason.value) for d in changes.departed] == [(1, "evicted")]


def test_a_restart_loses_nobody_and_waits_before_it_evicts(coordinator: Driver) -> None:
    for name in "abc":
        coordinator.enter(name)
    coordinator.leave("b")
    coordinator.now_s += 1000.0
    coordinator.restart()
    coordinator.pass_time(TIMEOUT_S * 1.5)
    assert coordinator.ranks() == {0: "a", 2: "c"}
    assert coordinator.beat("a") is BeatReply.OK
    assert coordinator.enter("b", "2") == 1
    coordinator.pass_time(TIMEOUT_S * 0.75)
    assert coordinator.ranks() == {0: "a", 1: "b"}  # c never came back


def test_a_coordinator_that_was_suspended_blames_nobody(coordinator: Driver) -> None:
    coordinator.enter("a")
    coordinator.pass_time(1.0)
    coordinator.now_s += 600.0
    coordinator.step(Tick())
    assert coordinator.ranks() == {0: "a"}
    coordinator.pass_time(2 * TIMEOUT_S)
    assert coordinator.ranks() == {}


def test_two_clusters_never_mix(coordinator: Driver) -> None:
    assert coordinator.enter("a") == 0
    assert coordinator.enter("a", "2", BLUE) == 0
    assert coordinator.enter("b", "1", Namespace(RED.key_hash, "job")) == 0
    assert coordinator.beat("a", "1") is BeatReply.OK
    changes = coordinator.registry.changes_since(RED, -1)
    assert changes is not None
    assert [w.worker_id for w in changes.joined] == ["a"]
    coordinator.leave("a")
    assert coordinator.ranks(BLUE) == {0: "a"}


def test_unregistering_twice_or_a_stranger_is_fine(coordinator: Driver) -> None:
    coordinator.enter("a")
    coordinator.leave("a")
    coordinator.leave("a")
    coordinator.step(Unregister(BLUE, "nobody", "1"))
    assert coordinator.ranks() == {}


def test_everything_is_bounded(
    coordinator: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_machine, "MAX_WORKERS", 3)
    monkeypatch.setattr(state_machine, "MAX_ALL_WORKERS", 4)
    monkeypatch.setattr(state_machine, "MAX_NAMESPACES", 2)
    monkeypatch.setattr(job_state, "MAX_FORMER", 2)
    assert [coordinator.enter(name) for name in "abc"] == [0, 1, 2]
    refused = coordinator.enter("d")
    assert isinstance(refused, Refusal)
    assert refused.kind is RefusalKind.FULL
    assert coordinator.enter("a", "1", BLUE) == 0
    assert isinstance(coordinator.enter("b", "1", BLUE), Refusal)
    third = Namespace(b"3" * 32, "")
    assert isinstance(coordinator.enter("a", "1", third), Refusal)
    for name in "abc":
        coordinator.leave(name)
    assert list(coordinator.registry.jobs[RED].former) == ["b", "c"]
    assert coordinator.enter("a", "1", third) == 0  # the empty job made room
    assert RED not in coordinator.registry.jobs


def test_a_checkpoint_can_be_asked_about(coordinator: Driver) -> None:
    """ZF-18: who takes part, who is done, when it is complete."""

    def start(worker: str, path: str = "/out/7") -> Reply:
        return coordinator.step(StartCheckpoint(RED, worker, 7, path, 1000.0))

    def end(worker: str, step: int = 7) -> Reply:
        return coordinator.step(EndCheckpoint(RED, worker, step, 1005.0))

    def kind(reply: Reply) -> RefusalKind:
        assert isinstance(reply, Refusal)
        return reply.kind

    assert kind(start("a")) is RefusalKind.CONFLICT  # not registered
    assert kind(end("a")) is RefusalKind.UNKNOWN
    coordinator.enter("a")
    coordinator.enter("b")
    first = start("a")
    assert isinstance(first, Checkpoint)
    assert start("b") is first
    assert kind(start("b", "/else")) is RefusalKind.CONFLICT
    coordinator.enter("c")
    assert kind(end("c")) is RefusalKind.CONFLICT  # came later
    end("a")
    end("a")  # counts once
    assert not first.is_complete
    coordinator.leave("b")
    coordinator.restart()
    coordinator.enter("b", "2")
    end("b")
    [found] = coordinator.registry.checkpoints(RED)
    assert found.is_complete
    assert found.participants == {"a": 0, "b": 1}
    assert (found.started_at_s, found.completed_at_s) == (1000.0, 1005.0)
    assert coordinator.registry.checkpoints(BLUE) == []


class Watcher:
    """Applies changes as a client does."""

    def __init__(self) -> None:
        self.version = -1
        self.seen: dict[int, str] = {}

    def apply(self, changes: PeerChanges | None) -> None:
        if changes is None:
            return
        assert changes.version != self.version
        if changes.is_snapshot:
            self.seen.clear()
        for gone in changes.departed:
            if self.seen.get(gone.rank) == gone.worker_id:
                del self.seen[gone.rank]
        self.seen |= {each.rank: each.worker_id for each in changes.joined}
        self.version = changes.version


class Mixture:
    """Carries out a random list of acts, with two watchers that look now and then."""

    def __init__(self) -> None:
        self.coordinator = Driver()
        self.watchers = (Watcher(), Watcher())

    def act(self, act: str, number: int) -> None:
        name = f"w{number}"
        match act:
            case "enter":
                self.coordinator.enter(name, str(number % 2))
            case "leave":
                self.coordinator.leave(name, str(number % 2))
            case "time":
                self.coordinator.pass_time(number * TIMEOUT_S / 4)
            case "restart":
                self.coordinator.restart()
                for watcher in self.watchers:  # its stream broke
                    watcher.version = -1
            case "look":
                self.look(self.watchers[number % 2])

    def look(self, watcher: Watcher) -> None:
        registry = self.coordinator.registry
        watcher.apply(registry.changes_since(RED, watcher.version))
        if RED in registry.jobs:
            assert watcher.seen == self.coordinator.ranks()
            assert all(rank < 6 for rank in watcher.seen)


_ACTS = st.sampled_from(["enter", "enter", "leave", "look", "time", "restart"])


_BRIEF_VISIT = [("enter", 0), ("look", 0), ("enter", 1), ("leave", 1), ("look", 0)]
_RANK_REUSED = [("enter", 0), ("look", 0), ("leave", 0), ("enter", 1), ("look", 0)]


@settings(max_examples=60, deadline=None)
@example(_BRIEF_VISIT)
@example(_RANK_REUSED)
@given(st.lists(st.tuples(_ACTS, st.integers(0, 5)), max_size=40))
def test_watchers_always_learn_the_workers(acts: list[tuple[str, int]]) -> None:
    """ZF-8, ZF-11: however changes and looks are mixed, a watcher that looks knows
    every worker by its rank, and ranks stay below the number of workers."""
    mixture = Mixture()
    for act, number in acts:
        mixture.act(act, number)
    for watcher in mixture.watchers:
        mixture.look(watcher)


def test_a_watcher_far_behind_gets_everything(
    coordinator: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_state, "MAX_LOG", 4)
    coordinator.enter("a")
    known = coordinator.registry.changes_since(RED, -1)
    assert known is not None
    for number in range(10):
        coordinator.enter(f"w{number}")
    changes = coordinator.registry.changes_since(RED, known.version)
    assert changes is not None
    assert changes.is_snapshot
    assert len(changes.joined) == 11
