"""Job seniority: which machine of a job is rank 0. Pure.

DDP starts every rank with the weights of rank 0, so rank 0 must be a machine that has
trained. Nodes of the newest round come first, in the order they had in it; newcomers
follow, the one with the lowest rank at the coordinator or, without a coordinator, the
one whose job was started first in front. So a newcomer gets rank 0 only if
nobody else has trained, or if the user named it.

A round counts once one of its nodes has seen that all of them entered it: then it
counts for all of them, also for those that have not seen it. A round that fails before
that does not count, so it cannot put a newcomer before a machine that has trained.

Start times are compared on one clock, the leader's: each node state tells how far the
monotonic clocks of the other nodes are ahead, as measured when the link opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ringleader.ids import NodeId, short
from ringleader.node.agent.coordinator_order import coordinator_ranks
from ringleader.node.agent.view_state import ViewState
from ringleader.node.protocol.node_state import JobRequest, PastRound

MAX_PAST_ROUNDS = 8
"""More rounds in a row do not fail before they are complete; older ones are dropped."""


def order_by_seniority(
    view: ViewState, requests: Mapping[NodeId, JobRequest]
) -> list[NodeId]:
    """Return the nodes of a job, the one that should be rank 0 first."""
    leader = view.by_seniority[0]
    offsets = {**view.states[leader].clock_offsets, leader: 0.0}
    last = last_rounds(requests)
    given = coordinator_ranks([node for node in requests if node not in last], view)

    def rank(node: NodeId) -> tuple[float, ...]:
        request, age = requests[node], view.by_seniority.index(node)
        if node in last:
            return (0, -last[node].epoch, last[node].place, age)
        if node in given:
            return (1, given[node])
        started_s = request.started_s - offsets.get(node, 0.0)
        return (1, node not in offsets, started_s, age)

    return sorted(requests, key=rank)


def last_rounds(requests: Mapping[NodeId, JobRequest]) -> dict[NodeId, PastRound]:
    """Return the last round of each node that has trained."""
    complete = {
        past.epoch
        for request in requests.values()
        for past in request.past_rounds
        if past.is_complete
    }
    found = {}
    for node, request in requests.items():
        counting = [past for past in request.past_rounds if past.epoch in complete]
        if counting:
            found[node] = counting[0]
    return found


def enter_round(
    view: ViewState, requests: Mapping[NodeId, JobRequest], node: NodeId
) -> list[PastRound]:
    """Return the past rounds of ``node`` when it enters a round of ``view``."""
    past = requests[node].past_rounds
    place = order_by_seniority(view, requests).index(node)
    open_rounds = [each for each in past if not each.is_complete]
    kept = [PastRound(view.epoch, place), *open_rounds][: MAX_PAST_ROUNDS - 1]
    return kept + [each for each in past if each.is_complete][:1]


def complete_round(past: Sequence[PastRound]) -> list[PastRound]:
    """Return the past rounds once all nodes have entered the newest; it suffices."""
    return [PastRound(past[0].epoch, past[0].place, is_complete=True)]


def nodes_named(
    name: str, seniority: Sequence[NodeId], view: ViewState
) -> list[NodeId]:
    """Return the nodes that ``name`` may mean, the oldest first.

    It is the name of a machine or the id of a node, as ``ringleader status`` shows
    them. Several nodes on one machine are one machine: the oldest of them is returned.
    """
    for node in seniority:
        if name in (node, short(node)):
            return [node]
    by_host: dict[str, NodeId] = {}
    for node in seniority:
        if view.states[node].name == name:
            by_host.setdefault(view.states[node].host, node)
    return list(by_host.values())


def start_ring_at(
    first: NodeId, ring: Sequence[NodeId], view: ViewState
) -> tuple[NodeId, ...]:
    """Return the ring rotated to start at ``first``.

    Nodes on the machine of ``first`` follow it. They are its neighbours in the ring,
    and hops within a machine are equally fast, so no hop becomes slower.
    """
    at = ring.index(first)
    rotated = [*ring[at + 1 :], *ring[:at]]
    host = view.states[first].host
    beside = [node for node in rotated if view.states[node].host == host]
    return (first, *beside, *(node for node in rotated if node not in beside))


def describe(nodes: Iterable[NodeId], view: ViewState) -> str:
    """Return names and ids for the user."""
    return ", ".join(f"{view.states[node].name} ({short(node)})" for node in nodes)
