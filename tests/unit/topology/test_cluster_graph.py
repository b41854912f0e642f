"""The cluster graph: nodes, links and the ring order."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import permutations

import pytest

from ringleader.errors import ConfigError
from ringleader.ids import NodeId
from ringleader.topology.cluster_graph import ClusterGraph, Node
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.node_profile import NodeProfile

GIB = 1 << 30
ETHERNET = LinkProfile(500e-6, 125e6, 125e6)
WIFI = LinkProfile(5e-3, 12.5e6, 12.5e6)
A, B, C, D = (NodeId(f"{letter * 52}") for letter in "abcd")


def profile(host: str = "attic", ram: int = 16 * GIB) -> NodeProfile:
    return NodeProfile(
        host=host,
        system="Linux",
        system_version="6",
        architecture="x86_64",
        chip="N100",
        physical_cores=4,
        logical_cores=4,
        total_ram_bytes=ram,
        available_ram_bytes=ram,
    )


def node(name: NodeId, last: int = 0, *, port: int = 7000) -> Node:
    """A node at 10.0.0.(place in the alphabet), or at ``last``."""
    place = last or ord(name[0]) - ord("a") + 1
    return Node(
        id=name,
        profile=profile(f"host-{name[0]}"),
        addresses=((f"10.0.0.{place}", port),),
    )


def topology(*names: NodeId) -> ClusterGraph:
    return graph_of(*(node(name) for name in names))


def graph_of(*nodes: Node) -> ClusterGraph:
    made = ClusterGraph()
    for each in nodes:
        made.add_node(each)
    return made


def test_links_can_be_measured_again_and_are_seen_from_both_ends() -> None:
    known = topology(A, B)
    known.set_link(B, A, LinkProfile(1e-3, 10.0, 20.0))
    assert known.link(A, B) == LinkProfile(1e-3, 20.0, 10.0)
    known.set_link(A, B, LinkProfile(2e-3, 1.0, 2.0))
    assert known.link(B, A) == LinkProfile(2e-3, 2.0, 1.0)
    with pytest.raises(ConfigError, match="unknown"):
        known.set_link(A, D, WIFI)
    with pytest.raises(ConfigError, match="itself"):
        known.set_link(A, A, WIFI)
    known.add_node(node(B))
    assert known.link(B, A) == LinkProfile(2e-3, 2.0, 1.0), "its links stay"


def wire_all(known: ClusterGraph, link: LinkProfile) -> None:
    for a, b in permutations([each.id for each in known.nodes()], 2):
        known.set_link(a, b, link)


def test_the_ring_avoids_the_slow_link_and_changes_with_it() -> None:
    known = topology(A, B, C, D)
    assert known.ring_order() == (A, B, C, D)
    wire_all(known, ETHERNET)
    known.set_link(A, B, WIFI)
    assert known.ring_order() == (A, C, B, D)
    known.set_link(C, B, LinkProfile(5e-4, 100.0, 100.0))
    assert known.ring_order() == (A, B, D, C), "Wi-Fi is the lesser evil"


def test_noise_does_not_turn_the_ring() -> None:
    known = topology(A, B, C, D)
    rng = random.Random(1)
    for _ in range(20):
        for a, b in permutations((A, B, C, D), 2):
            out, into = rng.uniform(110e6, 124e6), rng.uniform(110e6, 124e6)
            known.set_link(a, b, LinkProfile(rng.uniform(1e-5, 4e-4), out, into))
        assert known.ring_order() == (A, B, C, D)


def test_nodes_of_one_machine_differ_by_their_port() -> None:
    """Two nodes that claim one address and port are named in the error."""
    known = graph_of(node(A, 1, port=7000))
    known.add_node(node(B, 1, port=7001))
    assert known.can_form_ring()
    known.add_node(node(C, 1, port=7001))
    assert not known.can_form_ring()
    assert "bbbb-bbbb and cccc-cccc both use 10.0.0.1:7001" in known.ring_trouble()
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1:7001"):
        known.mlx_hostfile()


def test_the_mlx_hostfile_lists_the_ring_in_order() -> None:
    known = topology(B, A, C)
    assert json.loads(known.mlx_hostfile())[1] == {"ssh": "host-b", "ips": ["10.0.0.2"]}


def test_a_ring_needs_two_nodes_with_addresses() -> None:
    known = graph_of(node(A))
    assert "no other node" in known.ring_trouble()
    assert not known.can_form_ring()
    known.add_node(replace(node(B), addresses=()))
    assert "bbbb-bbbb has no address" in known.ring_trouble()
    known.add_node(node(B))
    assert known.can_form_ring()


def test_nodes_of_a_host_are_next_to_each_other() -> None:
    known = graph_of(replace(node(A), host_token="one"))
    known.add_node(node(B))
    known.add_node(replace(node(C), host_token="one"))
    known.add_node(node(D))
    for a, b in ((A, B), (A, D), (C, B), (C, D), (B, D)):
        known.set_link(a, b, ETHERNET)
    order = known.ring_order()
    assert set(order[:2]) == {A, C}
    assert known.hosts() == [[A, C], [B], [D]]
