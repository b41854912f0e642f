"""Ranks of a round where a coordinator has given ranks; decision 14."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from ringleader.ids import NodeId
from ringleader.node.agent.coordinator_order import coordinator_ranks, order_ring
from ringleader.node.agent.rank_assignment import Round, assign_ranks
from ringleader.node.agent.view_state import ViewState
from ringleader.node.protocol.node_state import JobRequest, NodeState, PastRound
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.node_profile import measure

PROFILE = measure()
ID = {name: NodeId(name * 52) for name in "abcd"}
FAST, SLOW = 125e6, 12e6


def view(
    ring: str,
    given: dict[str, int],
    *,
    places: str = "",
    hosts: dict[str, str] | None = None,
    slow: tuple[str, ...] = (),
    started: str = "",
) -> ViewState:
    """Make a view in this ring order; ``places`` names those that trained in order."""

    def request(name: str) -> JobRequest:
        made = JobRequest(
            job="job", request_id="1", min_nodes=1, max_nodes=64, wait_s=3.0
        )
        past = [PastRound(7, max(0, places.find(name)), is_complete=True)]
        return msgspec.structs.replace(
            made,
            past_rounds=past if name in places else [],
            started_s=float(started.find(name)),
        )

    def rate(a: str, b: str) -> float:
        return SLOW if a + b in slow or b + a in slow else FAST

    states = {
        ID[a]: NodeState(
            name=a,
            host=(hosts or {}).get(a, a),
            addresses=["10.0.0.1"],
            port=4000,
            profile=PROFILE,
            links={
                ID[b]: LinkProfile(5e-4, rate(a, b), rate(a, b)) for b in ID if b != a
            },
            job_requests=[request(a)],
            ready_jobs=["job"],
            clock_offsets={ID[b]: 0.0 for b in ID},
            coordinator_rank=given.get(a, -1),
        )
        for a in ring
    }
    return ViewState("9@x", tuple(sorted(states)), states)


def ranks(of: ViewState) -> str:
    found = [assign_ranks("job", of, node) for node in of.states]
    assert isinstance(found[0], Round), found[0]
    assert all(each == found[0] for each in found)
    return "".join(node[0] for node in found[0].nodes)


@pytest.mark.parametrize("ring", ["abcd", "dbca", "cabd"])
def test_a_first_round_has_the_ranks_of_the_coordinator(ring: str) -> None:
    given = {"d": 0, "b": 1, "a": 2, "c": 3}
    assert ranks(view(ring, given, started="abcd")) == "dbac"


@pytest.mark.parametrize("killed", "bcd")
def test_a_restarted_worker_returns_to_its_rank(killed: str) -> None:
    """ZF-7: a restarted worker got a rank beyond the world and could never rejoin."""
    given = {"a": 0, "b": 1, "c": 2, "d": 3}
    survivors = "abcd".replace(killed, "")
    for ring in itertools.permutations("abcd"):
        without = [name for name in ring if name != killed]
        shrunk = view("".join(without), given, places="abcd")
        assert ranks(shrunk) == survivors
        again = view("".join(ring), given, places=survivors)
        assert ranks(again) == "abcd"


def test_a_restarted_rank_0_comes_last_and_the_survivors_keep_their_ranks() -> None:
    """Its weights are fresh: rank 0 stays with a machine that has trained."""
    given = {"a": 0, "b": 1, "c": 2, "d": 3}
    assert ranks(view("bcd", given, places="abcd")) == "bcd"
    assert ranks(view("abcd", given, places="bcd")) == "bcda"


def test_when_all_are_restarted_rank_0_is_the_one_that_was() -> None:
    """It wrote the checkpoints, whoever is started first now."""
    given = {"c": 0, "b": 1, "a": 2}
    assert ranks(view("abc", given, started="abc")) == "cba"


@pytest.mark.parametrize("given", [{}, {"a": 1, "b": 0}, {"a": 1, "b": 0, "c": 0}])
def test_missing_or_equal_ranks_are_ignored(given: dict[str, int]) -> None:
    of = view("acb", given, started="abc")
    assert coordinator_ranks(of.states, of) == {}
    assert ranks(of) == "acb"


def test_nodes_of_one_host_stay_adjacent() -> None:
    given = {"a": 0, "b": 1, "c": 2, "d": 3}
    hosts = {"a": "x", "b": "y", "c": "x", "d": "y"}
    assert ranks(view("acbd", given, hosts=hosts)) == "acbd"


def test_a_much_faster_ring_goes_before_the_ranks() -> None:
    given = {"a": 0, "b": 1, "c": 2, "d": 3}
    assert ranks(view("acbd", given, slow=("ab", "cd"))) == "acbd"
    nearly = view("acbd", given)
    assert order_ring(list(nearly.states), nearly) == [ID[name] for name in "abcd"]
