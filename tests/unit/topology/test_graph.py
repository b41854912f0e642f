"""The topology of a cluster: who is there, what the links are, what the ring is."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import permutations

import pytest

from ringleader.errors import ConfigError
from ringleader.ids import NodeId
from ringleader.topology.graph import Node, Topology
from ringleader.topology.interface_kind import InterfaceKind
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.node_profile import NodeProfile

GIB = 1 << 30
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


def topology(*names: NodeId) -> Topology:
    made = Topology(node(names[0]))
    for name in names[1:]:
        made.add_node(node(name))
    return made


def test_a_node_that_leaves_takes_no_other_nodes_place() -> None:
    """PM-10: lookups stay right after any number of removals."""
    rng = random.Random(4)
    names = [NodeId(f"{i:052}") for i in range(20)]
    known = Topology(node(names[0], 1))
    alive = {names[0]: 1}
    for turn in range(120):
        name = rng.choice(names[1:])
        if name in alive:
            known.remove_node(name)
            del alive[name]
        else:
            alive[name] = turn + 2
            known.add_node(replace(node(name, 9), last_seen_s=float(turn + 2)))
            known.set_link(names[0], name, LinkProfile(0.1, float(turn + 2), 1.0))
        assert [each.id for each in known.nodes()] == sorted(alive)
        for each, born in alive.items():
            found, link = known.get_node(each), known.link(names[0], each)
            assert found is not None
            assert found.id == each
            if each != names[0]:
                assert found.last_seen_s == born
                assert link is not None
                assert link.out_bytes_per_s == born
        assert sorted(known.ring_order()) == sorted(alive)


def test_counting_and_finding_nodes() -> None:
    known = topology(B, A, C)
    assert (known.node_count(), known.remote_node_count()) == (3, 2)
    assert [each.id for each in known.nodes()] == [A, B, C]
    assert [each.id for each in known.remote_nodes()] == [A, C]
    assert known.remote_addresses() == [("10.0.0.1", 7000), ("10.0.0.3", 7000)]
    assert known.get_node(D) is None
    known.update_profile(A, profile(ram=64 * GIB))
    assert known.total_cluster_ram() == 96 * GIB
    with pytest.raises(ConfigError, match="unknown"):
        known.update_profile(D, profile())


def test_memory_of_a_shared_host_counts_once() -> None:
    known = Topology(replace(node(A), host_token="boot-1"))
    known.add_node(replace(node(B, 1, port=7001), host_token="boot-1"))
    known.add_node(node(C))
    assert known.total_cluster_ram() == 32 * GIB
    assert known.hosts() == [[A, B], [C]]


def test_links_can_be_measured_again_and_are_seen_from_both_ends() -> None:
    known = topology(A, B)
    known.set_link(B, A, LinkProfile(1e-3, 10.0, 20.0))
    assert known.link(A, B) == LinkProfile(1e-3, 20.0, 10.0)
    known.set_link(A, B, LinkProfile(2e-3, 1.0, 2.0))
    assert known.link(B, A) == LinkProfile(2e-3, 2.0, 1.0)
    with pytest.raises(ConfigError, match="unknown"):
        known.set_link(A, D, LinkProfile.wifi())
    with pytest.raises(ConfigError, match="itself"):
        known.set_link(A, A, LinkProfile.wifi())
    known.remove_node(B)
    known.add_node(node(B))
    assert known.link(A, B) is None, "who comes back is measured again"


def wire_all(known: Topology, link: LinkProfile) -> None:
    for a, b in permutations([each.id for each in known.nodes()], 2):
        known.set_link(a, b, link)


def test_the_ring_avoids_the_slow_link_and_changes_with_it() -> None:
    known = topology(A, B, C, D)
    assert known.ring_order() == (A, B, C, D)
    assert known.ring_bandwidth() == 0, "nothing is measured"
    wire_all(known, LinkProfile.ethernet())
    known.set_link(A, B, LinkProfile.wifi())
    assert known.ring_order() == (A, C, B, D)
    assert known.ring_bandwidth() == 125e6
    assert [known.ring_rank(each) for each in (A, B, C, D)] == [0, 2, 1, 3]
    assert known.local_rank() == 0
    assert (known.ring_next(), known.ring_prev()) == (C, D)
    assert (known.ring_next(D), known.ring_prev(B)) == (A, C)
    known.set_link(C, B, LinkProfile(5e-4, 100.0, 100.0))
    assert known.ring_bandwidth() == 12.5e6, "the lesser evil"
    known.remove_node(B)
    assert known.ring_order() == (A, C, D)
    assert known.ring_rank(B) is None


def test_noise_does_not_turn_the_ring() -> None:
    known = topology(A, B, C, D)
    rng = random.Random(1)
    for _ in range(20):
        for a, b in permutations((A, B, C, D), 2):
            out, into = rng.uniform(110e6, 124e6), rng.uniform(110e6, 124e6)
            known.set_link(a, b, LinkProfile(rng.uniform(1e-5, 4e-4), out, into))
        assert known.ring_order() == (A, B, C, D)
    assert 110e6 <= known.ring_bandwidth() <= 124e6, "but told as measured"


def test_a_ring_once_taken_does_not_change() -> None:
    """PM-18: rank and size come from one moment, whoever leaves afterwards."""
    known = topology(A, B, C)
    ring = known.ring()
    known.remove_node(B)
    assert ring.order == (A, B, C)
    assert ring.rank(C) == 2
    assert known.ring().order == (A, C)


def test_nodes_of_one_machine_differ_by_their_port() -> None:
    """PM-18: equal addresses are told apart, or named."""
    known = Topology(node(A, 1, port=7000))
    known.add_node(node(B, 1, port=7001))
    assert known.can_form_ring()
    known.add_node(node(C, 1, port=7001))
    assert not known.can_form_ring()
    assert "bbbb-bbbb and cccc-cccc both say 10.0.0.1:7001" in known.ring_trouble()
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1:7001"):
        known.mlx_hostfile()


def test_a_ring_needs_two_nodes_with_addresses() -> None:
    known = Topology(node(A))
    assert "no other node" in known.ring_trouble()
    assert not known.can_form_ring()
    known.add_node(replace(node(B), addresses=()))
    assert "bbbb-bbbb has no address" in known.ring_trouble()
    known.add_node(node(B))
    assert known.can_form_ring()


def test_the_ring_of_a_single_node() -> None:
    known = Topology(node(A))
    assert known.ring_order() == (A,)
    assert known.ring_next() == known.ring_prev() == A
    assert known.ring_bandwidth() == 0
    assert not known.has_thunderbolt_ring()


def test_nodes_of_a_host_are_next_to_each_other() -> None:
    known = Topology(replace(node(A), host_token="one"))
    known.add_node(node(B))
    known.add_node(replace(node(C), host_token="one"))
    known.add_node(node(D))
    for a, b in ((A, B), (A, D), (C, B), (C, D), (B, D)):
        known.set_link(a, b, LinkProfile.ethernet())
    order = known.ring_order()
    assert set(order[:2]) == {A, C}
    assert known.ring_bandwidth() == 125e6


def test_only_the_long_unseen_are_pruned_and_never_ourselves() -> None:
    known = topology(A, B, C)
    known.mark_seen(B, 100.0)
    assert known.prune_stale_nodes(now_s=130.0, max_age_s=30.0) == [C]
    assert [each.id for each in known.nodes()] == [A, B]
    assert known.prune_stale_nodes(now_s=1e9, max_age_s=1.0) == [B]
    assert known.node_count() == 1
    with pytest.raises(ConfigError, match="ourselves"):
        known.remove_node(A)


def test_thunderbolt_is_recognised() -> None:
    known = topology(A, B, C)
    known.set_link(A, B, LinkProfile.thunderbolt())
    known.set_link(B, C, LinkProfile.thunderbolt())
    known.set_link(A, C, LinkProfile.ethernet())
    assert known.thunderbolt_nodes() == [A, B, C]
    assert not known.has_thunderbolt_ring()
    known.set_link(A, C, LinkProfile(1e-5, 5e9, 5e9, InterfaceKind.THUNDERBOLT))
    assert known.has_thunderbolt_ring()


def test_mlx_gets_itself_both_sides_and_nobody_else() -> None:
    names = [NodeId(letter * 52) for letter in "bacde"]
    known = topology(*names)
    assert known.mlx_ring_hosts(5000) == [
        "10.0.0.1:5000",
        "0.0.0.0:5000",
        "10.0.0.3:5000",
        "198.51.100.1:0",
        "198.51.100.1:0",
    ]
    assert json.loads(known.mlx_hostfile())[1] == {"ssh": "host-b", "ips": ["10.0.0.2"]}
