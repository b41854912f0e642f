"""The leaders after convergence depend only on which nodes reach each other."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader.membership.election import expected_views
from ringleader.membership.member import MAX_MEMBERS, Member
from ringleader.simulation.membership.simulated_cluster import SimulatedCluster
from ringleader.simulation.membership.simulated_node import SimulatedNode, node_id


def nodes(count: int) -> list[Member]:
    cluster = SimulatedCluster(count)
    for index, node in enumerate(cluster.nodes):
        cluster.start(node, index)
    return [node.member for node in cluster.nodes]


FIVE = nodes(5)
PAIRS = [frozenset(pair) for pair in combinations(FIVE, 2)]


def test_all_who_hear_each_other_are_one_island() -> None:
    assert expected_views(FIVE, set(PAIRS)) == [tuple(FIVE)]


def test_nobody_hears_nobody() -> None:
    assert expected_views(FIVE, set()) == [(m,) for m in FIVE]


def test_of_two_that_do_not_hear_each_other_the_senior_one_stays() -> None:
    a, b, c, d, e = FIVE
    lost = frozenset((c, d))
    assert expected_views(FIVE, set(PAIRS) - {lost}) == [(a, b, c, e), (d,)]


def test_a_chain_does_not_make_a_group() -> None:
    a, b, c, *_ = FIVE
    chain = {frozenset((a, b)), frozenset((b, c))}
    assert expected_views((a, b, c), chain) == [(a, b), (c,)]


def test_an_island_is_not_larger_than_a_view_may_be() -> None:
    many = [Member(i, node_id(i), FIVE[0].incarnation) for i in range(MAX_MEMBERS + 2)]
    pairs = {frozenset(pair) for pair in combinations(many, 2)}
    assert [len(i) for i in expected_views(many, pairs)] == [MAX_MEMBERS, 2]


@given(st.sets(st.sampled_from(PAIRS)))
def test_islands_are_cliques_led_by_seniority(mutual: set[frozenset[Member]]) -> None:
    found = expected_views(FIVE, mutual)
    assert sorted(m for island in found for m in island) == FIVE
    for island in found:
        assert all(frozenset(p) in mutual for p in combinations(island, 2))
        assert list(island) == sorted(island)
    for number, island in enumerate(found):
        for later in found[number + 1 :]:
            stranger = later[0]
            rivals = [m for m in island if m < stranger]
            assert not all(frozenset((stranger, m)) in mutual for m in rivals)


@pytest.mark.parametrize("seed", range(12))
def test_machines_come_to_rest_in_the_islands_of_a_broken_network(seed: int) -> None:
    rng = Random(seed)
    cluster = SimulatedCluster(6, seed=seed)
    for a, b in combinations(cluster.nodes, 2):
        if rng.random() < 0.35:
            cluster.block(a, b, one_way=rng.random() < 0.5)
    order: list[SimulatedNode] = rng.sample(cluster.nodes, len(cluster.nodes))
    for node in order:
        cluster.after(rng.uniform(0, 2), cluster.start, node, rng.randrange(100))
    cluster.run(20)
    assert cluster.convergence_problem() is None
    cluster.heal()
    cluster.run(30)
    assert cluster.convergence_problem() is None
