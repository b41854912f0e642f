"""Rank 0 is a machine that has trained, or the one that the user named."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from ringleader.ids import NodeId, short
from ringleader.node.agent import job_seniority
from ringleader.node.agent.jobs import Jobs
from ringleader.node.agent.local_node import LocalNode
from ringleader.node.agent.rank_assignment import (
    MEASURE_S,
    Refused,
    Round,
    Waiting,
    assign_ranks,
    is_stale,
    patience_s,
)
from ringleader.node.agent.round_entry import WorkerConfig
from ringleader.node.agent.view_state import ViewState
from ringleader.node.peering.peer_connection import PeerConnection
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.local_requests import EnterJob, RoundEntered
from ringleader.node.protocol.node_state import (
    JobFingerprint,
    JobRequest,
    NodeState,
    PastRound,
)
from ringleader.topology.node_profile import measure

PROFILE = measure()
NAMES = "abcdefgh"
ID = {name: NodeId(name * 52) for name in (*NAMES, "x")}


def rounds(epoch: int, place: int) -> list[PastRound]:
    return [PastRound(epoch, place, is_complete=True)]


def ask(**fields: object) -> JobRequest:
    request = JobRequest(
        job="job", request_id="1", min_nodes=1, max_nodes=64, wait_s=3.0
    )
    return msgspec.structs.replace(request, **fields)


def view(  # noqa: PLR0913 - each is a part of a view
    requests: dict[str, JobRequest],
    *,
    oldest: str = "",
    offsets: dict[str, float] | None = None,
    names: dict[str, str] | None = None,
    hosts: dict[str, str] | None = None,
    ready: bool = True,
    epoch: int = 9,
) -> ViewState:
    """Make a view in the given ring order; ``oldest`` lists the nodes by age."""
    by_age = oldest or "".join(sorted(requests))
    states = {}
    for name, request in requests.items():
        is_leader = name == by_age[0]
        states[ID[name]] = NodeState(
            name=(names or {}).get(name, name),
            host=(hosts or {}).get(name, name),
            addresses=["10.0.0.1"],
            port=4000,
            profile=PROFILE,
            job_requests=[request],
            ready_jobs=["job"] if is_leader and ready else [],
            clock_offsets={ID[n]: s for n, s in (offsets or {}).items()}
            if is_leader
            else {},
        )
    return ViewState(f"{epoch}@x", tuple(ID[n] for n in by_age), states)


def ranks(of: ViewState) -> str:
    """Return the names in rank order; all nodes must come to the same result."""
    found = [assign_ranks("job", of, node) for node in of.states]
    assert isinstance(found[0], Round), found[0]
    assert all(each == found[0] for each in found)
    return "".join(node[0] for node in found[0].nodes)


def test_a_newcomer_with_a_smaller_id_and_an_older_clock_is_not_rank_0() -> None:
    trained = [ask(past_rounds=rounds(7, place)) for place in (0, 1)]
    asked = {"a": ask(), "c": trained[0], "b": trained[1]}
    assert ranks(view(asked)) == "cba", "the ring goes on from the rank 0 it had"


def test_the_oldest_survivor_of_the_newest_round_is_rank_0() -> None:
    behind = ask(past_rounds=rounds(5, 0))  # was suspended while the others went on
    asked = {
        "a": behind,
        "b": ask(past_rounds=rounds(8, 2)),
        "c": ask(past_rounds=rounds(8, 1)),
    }
    assert ranks(view(asked)) == "cab"


def test_a_newcomer_cannot_take_the_place_of_a_survivor() -> None:
    asked = {
        "a": ask(max_nodes=2),
        "b": ask(max_nodes=2, past_rounds=rounds(7, 1)),
        "c": ask(max_nodes=2, past_rounds=rounds(7, 0)),
    }
    assert ranks(view(asked)) == "cb"


def test_a_newcomer_with_another_program_is_refused_not_the_survivors() -> None:
    old, new = JobFingerprint(script="old"), JobFingerprint(script="new")
    of = view(
        {"a": ask(fingerprint=new), "b": ask(fingerprint=old, past_rounds=rounds(7, 0))}
    )
    assert isinstance(assign_ranks("job", of, ID["a"]), Refused)
    assert isinstance(assign_ranks("job", of, ID["b"]), Round)


def test_after_a_split_the_newest_round_goes_on() -> None:
    of = view(
        {
            "a": ask(round="5/job", past_rounds=rounds(5, 0)),
            "b": ask(round="8/job", past_rounds=rounds(8, 0)),
        }
    )
    assert is_stale("job", Round("5/job", (ID["a"],)), of)
    assert not is_stale("job", Round("8/job", (ID["b"],)), of)


def test_the_job_that_was_started_first_is_rank_0_by_the_leaders_clock() -> None:
    """The clock of b is 1000 s ahead: b was started at 20 and c at 25 for a."""
    asked = {
        "a": ask(started_s=30.0),
        "b": ask(started_s=1020.0),
        "c": ask(started_s=25.0),
    }
    assert ranks(view(asked, offsets={"b": 1000.0, "c": 0.0})) == "bca"
    assert ranks(view(asked, offsets={"b": 1000.0, "c": 10.0})) == "cab"
    assert ranks(view(asked, offsets={"c": 10.0}))[0] == "c", "b cannot be compared"


def test_nodes_of_one_machine_stay_together_when_the_ring_is_rotated() -> None:
    asked = {
        n: ask(started_s=float(s)) for n, s in zip("abcd", (4, 1, 2, 3), strict=True)
    }
    offsets = dict.fromkeys("abcd", 0.0)
    hosts = {"a": "one", "b": "one", "c": "two", "d": "three"}
    assert ranks(view(asked, offsets=offsets, hosts=hosts)) == "bacd"
    assert ranks(view(asked, offsets=offsets)) == "bcda"


# -- --rank0 -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["desk", short(ID["c"]), ID["c"]])
def test_the_named_machine_is_rank_0(name: str) -> None:
    asked = {n: ask(rank0=name) for n in "abc"}
    assert ranks(view(asked, names={"c": "desk"})) == "cab"
    one_says_it = {**{n: ask() for n in "ab"}, "c": ask(rank0=name)}
    assert ranks(view(one_says_it, names={"c": "desk"})) == "cab"
    few = {n: ask(rank0=name, max_nodes=2) for n in "abc"}
    assert ranks(view(few, names={"c": "desk"})) == "ca", "it is never left out"


def test_two_different_names_are_an_error_with_both() -> None:
    asked = {"a": ask(), "b": ask(rank0="x"), "c": ask(rank0="y"), "x": ask()}
    of = view(asked)
    result = assign_ranks("job", of, ID["c"])
    assert isinstance(result, Refused)
    for word in ("y here", "x on b (", "name one"):
        assert word in result.reason
    others = assign_ranks("job", of, ID["a"])
    assert isinstance(others, Round)
    assert [n[0] for n in others.nodes] == ["x", "a", "b"]


def test_a_name_that_never_comes_is_an_error_after_the_wait() -> None:
    asked = {n: ask(rank0="desk", min_nodes=2, max_nodes=2) for n in "ab"}
    early = view(asked, ready=False)
    waiting = assign_ranks("job", early, ID["a"])
    assert isinstance(waiting, Waiting)
    assert "desk, which --rank0 names" in waiting.describe(early)
    assert patience_s("job", early) == 3.0, "not only the time for measurements"
    result = assign_ranks("job", view(asked), ID["b"])
    assert isinstance(result, Refused)
    for word in ("no machine desk", f"a ({short(ID['a'])})", f"b ({short(ID['b'])})"):
        assert word in result.reason


def test_equal_names_are_told_apart_by_id_unless_they_are_one_machine() -> None:
    asked = {n: ask(rank0="desk") for n in "abc"}
    names = {"b": "desk", "c": "desk"}
    result = assign_ranks("job", view(asked, names=names), ID["a"])
    assert isinstance(result, Refused)
    for word in (f"desk ({short(ID['c'])})", f"--rank0 {short(ID['b'])}"):
        assert word in result.reason
    one = {"b": "host", "c": "host"}
    assert ranks(view(asked, names=names, hosts=one)) == "bca"


def test_a_job_that_has_trained_neither_waits_for_the_name_nor_for_a_namesake() -> None:
    gone = {n: ask(rank0="desk", past_rounds=rounds(7, int(n == "a"))) for n in "ab"}
    assert ranks(view(gone)) == "ba"
    back = {**gone, "c": ask(rank0="desk")}
    assert ranks(view(back, names={"c": "desk"})) == "cab", "the user said so"
    two = {**back, "d": ask(rank0="desk")}
    assert ranks(view(two, names={"c": "desk", "d": "desk"}))[0] == "b"


def test_a_newcomer_has_no_say_in_a_job_that_has_trained() -> None:
    asked = {"a": ask(rank0="a"), "b": ask(past_rounds=rounds(7, 0))}
    result = assign_ranks("job", view(asked), ID["a"])
    assert isinstance(result, Refused)
    assert "leave out --rank0 a" in result.reason
    assert ranks_of(view(asked), "b") == "b"


def ranks_of(of: ViewState, name: str) -> str:
    found = assign_ranks("job", of, ID[name])
    assert isinstance(found, Round)
    return "".join(node[0] for node in found.nodes)


def test_the_measured_ring_still_gets_its_time() -> None:
    asked = {n: ask(min_nodes=2, max_nodes=2, rank0="a") for n in "ab"}
    assert patience_s("job", view(asked, ready=False)) == MEASURE_S


# -- whole histories -----------------------------------------------------------------


@dataclass(slots=True)
class Machine:
    """One life of a process, what its agent remembers, and what it has learned."""

    started_s: float
    clock_s: float
    past_rounds: list[PastRound] = field(default_factory=list)
    steps: int = 0


@dataclass(slots=True)
class World:
    """Machines that come, go, hang and return, and the rounds that they form."""

    rng: random.Random
    fails_when_complete: bool
    """Whether rounds fail when some have seen that they are complete. Machines do not
    hang then: after both, the place in the round says too little."""
    machines: dict[str, Machine] = field(default_factory=dict)
    hung: set[str] = field(default_factory=set)
    epoch: int = 1
    now_s: float = 0.0

    def change(self) -> None:
        """Let a machine come, go, hang or return."""
        self.now_s += self.rng.uniform(0.1, 50.0)
        here = sorted(self.machines)
        match self.rng.choice(["come", "come", "go", "hang", "return"]):
            case "come" if len(here) < len(NAMES):
                name = self.rng.choice([n for n in NAMES if n not in here])
                clock_s = self.rng.uniform(-1e6, 1e6)
                self.machines[name] = Machine(self.now_s, clock_s)
            case "go" if len(here) > 1:
                name = self.rng.choice(here)
                del self.machines[name]
                self.hung.discard(name)
            case "hang" if len(here) - len(self.hung) > 1 and not (
                self.fails_when_complete
            ):
                self.hung.add(self.rng.choice(here))
            case "return" if self.hung:
                self.hung.discard(self.rng.choice(sorted(self.hung)))

    def view(self) -> ViewState | None:
        """Return the view of the machines that are awake, in any ring order."""
        here = [name for name in sorted(self.machines) if name not in self.hung]
        if not here:
            return None
        most = max(self.machines[name].steps for name in here)
        for name in sorted(self.hung):
            if self.machines[name].steps > most:  # the newer history goes on without it
                del self.machines[name]
                self.hung.discard(name)
        oldest = "".join(self.rng.sample(here, len(here)))  # by clocks that are wrong
        leader = self.machines[oldest[0]]
        asked = {
            name: ask(
                started_s=self.machines[name].started_s + self.machines[name].clock_s,
                past_rounds=self.machines[name].past_rounds,
            )
            for name in self.rng.sample(here, len(here))
        }
        offsets = {n: self.machines[n].clock_s - leader.clock_s for n in here}
        self.epoch += self.rng.randint(1, 9)
        return view(asked, oldest=oldest, offsets=offsets, epoch=self.epoch)

    def train(self, of: ViewState) -> str:
        """Form a round; sometimes not all machines hear of it, and it fails."""
        chosen = ranks(of)
        hears = self.some_of(chosen)
        gathers = hears if hears == set(chosen) else set()
        if gathers and self.fails_when_complete:
            gathers = self.some_of(chosen)
        requests = of.requests_for("job")
        for name in sorted(hears):
            machine = self.machines[name]
            machine.past_rounds = job_seniority.enter_round(of, requests, ID[name])
            if name in gathers:
                past = job_seniority.complete_round(machine.past_rounds)
                machine.past_rounds = past
        if gathers == set(chosen):
            steps = self.machines[chosen[0]].steps + 10
            for name in chosen:
                self.machines[name].steps = steps
        return chosen

    def some_of(self, names: str) -> set[str]:
        """Return all names, or a part of them."""
        if self.rng.random() < 0.7:
            return set(names)
        return set(self.rng.sample(names, self.rng.randint(0, len(names))))


def test_no_training_is_ever_lost_to_a_newcomer() -> None:
    for seed in range(60):
        world = World(random.Random(seed), fails_when_complete=seed % 2 == 0)
        world.machines["d"] = Machine(0.0, 0.0)
        for _ in range(30):
            world.change()
            of = world.view()
            if of is None:
                continue
            ring = [node[0] for node in of.states]
            before = {name: world.machines[name].steps for name in ring}
            newcomers = [n for n in ring if not world.machines[n].past_rounds]
            chosen = world.train(of)
            steps, most = before[chosen[0]], max(before.values())
            assert bool(steps) is bool(most), f"seed {seed}"
            assert steps == most or world.fails_when_complete, f"seed {seed}"
            assert is_rotation(chosen, ring), f"seed {seed}"
            if len(newcomers) == len(ring):
                first = min(ring, key=lambda n: world.machines[n].started_s)
                assert chosen[0] == first, f"seed {seed}: the job was started there"


def is_rotation(ranks: Sequence[str], ring: Sequence[str]) -> bool:
    return "".join(ranks) in "".join([*ring, *ring])


def test_a_view_without_a_node_of_the_round_may_come_before_the_round_is_told() -> None:
    """The agent then names the machines of the view in which the round began."""
    told = asyncio.run(enter_and_lose_a_node())
    assert (told.rank, told.names) == (0, ["a", "b"])


async def enter_and_lose_a_node() -> RoundEntered:
    local = LocalNode.measure(ID["a"], AgentConfig(home=""), port=4000)

    async def dial(_node: NodeId, _round: str) -> PeerConnection:
        raise AssertionError("rank 0 dials no store")

    jobs = Jobs(
        ID["a"],
        publish=lambda: None,
        set_payload=lambda: None,
        dial_store=dial,
        worker=WorkerConfig("", local, 3.5, ""),
        troubles=list,
    )
    request = EnterJob(
        job="job",
        min_nodes=2,
        max_nodes=2,
        wait_s=3.0,
        timeout_s=30.0,
        fingerprint=JobFingerprint(),
    )
    entering = asyncio.create_task(jobs.enter(request, lambda _text: None))
    await asyncio.sleep(0)
    (mine,) = jobs.job_requests()
    theirs = msgspec.structs.replace(mine, request_id="2", started_s=mine.started_s + 1)
    jobs.on_view_state(view({"a": mine, "b": theirs}))
    jobs.on_view_state(view({"a": mine}, epoch=10))
    return await asyncio.wait_for(entering, 120)
