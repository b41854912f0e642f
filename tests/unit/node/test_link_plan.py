"""The links in the node states decide the ring order and what to measure."""

from __future__ import annotations

import json

import msgspec

from ringleader.ids import Incarnation, NodeId
from ringleader.membership.member import Member
from ringleader.node.peering.link_plan import (
    build_graph,
    mlx_hostfile,
    ring_order,
    to_measure,
)
from ringleader.node.protocol import node_state
from ringleader.node.protocol.node_state import NodeState
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.node_profile import measure

PROFILE = measure()
IDS = [NodeId(letter * 52) for letter in "abcd"]
A, B, C, D = IDS
FAST, SLOW = LinkProfile(1e-4, 120e6, 120e6), LinkProfile(1e-4, 12e6, 12e6)


def state(node: NodeId, links: dict[NodeId, LinkProfile], host: str = "") -> NodeState:
    return NodeState(
        name=node[:1],
        host=host or node[:1],
        addresses=[f"10.0.0.{IDS.index(node) + 1}"],
        port=4000,
        profile=PROFILE,
        links=links,
    )


def member(node: NodeId) -> Member:
    return Member(IDS.index(node), node, Incarnation("0" * 16))


def four(slow: tuple[NodeId, NodeId]) -> dict[NodeId, NodeState]:
    """Make four nodes with all links measured; one pair is slow."""
    return {
        a: state(a, {b: SLOW if {a, b} == {*slow} else FAST for b in IDS if b != a})
        for a in IDS
    }


def test_the_ring_avoids_the_slow_pair_on_every_node() -> None:
    for pair in ((A, B), (A, C), (B, D)):
        known = four(pair)
        payloads = {member(n): node_state.encode(s) for n, s in known.items()}
        ring = [m.node for m in ring_order([*payloads], payloads)]
        hops = {frozenset(hop) for hop in zip(ring, [*ring[1:], ring[0]], strict=True)}
        assert frozenset(pair) not in hops
        assert sorted(ring) == IDS


def test_who_leaves_shifts_no_link_and_no_place_of_the_others() -> None:
    """PM-10: an index that a removed node gave back was found for another one."""
    every = four((A, D))
    for gone in IDS:
        graph = build_graph({n: s for n, s in every.items() if n != gone})
        left = [node for node in IDS if node != gone]
        assert [node.id for node in graph.nodes()] == left
        assert sorted(graph.ring_order()) == left
        assert [node.addresses for node in graph.nodes()] == [
            ((f"10.0.0.{IDS.index(node) + 1}", 4000),) for node in left
        ]
        for a in left:
            assert graph.link(a, gone) is None
            for b in left:
                wanted = None if a == b else every[a].links[b]
                assert graph.link(a, b) == wanted


def test_a_member_with_an_invalid_state_comes_last_in_the_ring() -> None:
    payloads = {member(n): node_state.encode(s) for n, s in four((A, B)).items()}
    payloads[member(A)] = b"\xc1"
    assert ring_order([*payloads], payloads)[-1] == member(A)
    garbage = dict.fromkeys(payloads, b"\xc1")
    assert sorted(ring_order([*payloads], garbage)) == sorted(payloads)


def test_of_each_unmeasured_pair_the_smaller_id_asks_once() -> None:
    known = {n: state(n, {}) for n in IDS}
    known[C] = msgspec.structs.replace(known[C], links={D: FAST})
    known[B] = msgspec.structs.replace(known[B], host=known[A].host)
    asked = {(n, other) for n in IDS for other in to_measure(known, n)}
    assert asked == {(A, C), (A, D), (B, C), (B, D)}


def test_the_ring_can_be_given_to_mlx() -> None:
    known = four((A, B))
    text = build_graph(known).mlx_hostfile()
    hosts = json.loads(text)
    assert sorted(host["ips"][0] for host in hosts) == [
        f"10.0.0.{n}" for n in range(1, 5)
    ]
    ring = build_graph(known).ring_order()
    assert mlx_hostfile({node: known[node] for node in ring}) == text
    same = msgspec.structs.replace(known[B], addresses=known[A].addresses)
    assert mlx_hostfile({**known, B: same}) == "", "two nodes with one address"
    assert mlx_hostfile({A: known[A]}) == "", "alone"
