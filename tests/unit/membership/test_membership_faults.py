"""One fault at a time on a quiet LAN: how long it takes, and what stays untouched."""

from __future__ import annotations

from random import Random

import pytest

from ringleader.ids import NodeId
from ringleader.membership.config import MembershipConfig
from ringleader.membership.events import RefreshView
from ringleader.membership.member import View
from ringleader.membership.state_machine import MembershipMachine
from ringleader.simulation.membership.simulated_cluster import SimulatedCluster
from ringleader.simulation.membership.simulated_node import SimulatedNode

SEEDS = range(4)


def settled_cluster(size: int, seed: int = 0) -> SimulatedCluster:
    """Nodes at rest in one view; ada is the most senior, then bob, and so on."""
    cluster = SimulatedCluster(size, seed=seed)
    rng = Random(seed)
    for index, node in enumerate(cluster.nodes):
        node.clock_start_s = rng.uniform(0, 1e5)
        cluster.after(rng.uniform(0, 0.5), cluster.start, node, index)
    cluster.run(6.0)
    assert cluster.convergence_problem() is None
    return cluster


def time_to_rest(cluster: SimulatedCluster, limit_s: float = 15.0) -> float:
    """How long it takes until every node is in the view it should have."""
    begin_s = cluster.now_s
    while cluster.convergence_problem() is not None:
        assert cluster.now_s < begin_s + limit_s, cluster.convergence_problem()
        cluster.run(cluster.now_s + 0.02)
    return cluster.now_s - begin_s


def view_of(node: SimulatedNode) -> View:
    assert node.machine is not None
    assert node.machine.view is not None
    return node.machine.view


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", [0, 3])
def test_a_killed_node_is_replaced_within_a_second_and_a_half(
    seed: int, victim: int
) -> None:
    cluster = settled_cluster(5, seed)
    num_views = len(cluster.checker.views)
    cluster.kill(cluster.nodes[victim])
    assert time_to_rest(cluster) < 1.5
    cluster.run(cluster.now_s + 8)
    assert len(cluster.checker.views) == num_views + 1, "one fault, one new view"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", [0, 3])
def test_a_silent_cut_is_over_within_five_seconds(seed: int, victim: int) -> None:
    cluster = settled_cluster(5, seed)
    num_views = len(cluster.checker.views)
    lost = cluster.nodes[victim]
    cluster.split([lost], [n for n in cluster.nodes if n is not lost])
    assert time_to_rest(cluster) < 5.0
    cluster.run(cluster.now_s + 8)
    assert len(cluster.checker.views) == num_views + 2, "one for each side"
    cluster.heal()
    assert time_to_rest(cluster) < 3.0
    assert view_of(cluster.nodes[1]).leader == cluster.nodes[0].member


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", [0, 3])
def test_two_seconds_of_sigstop_change_nothing(seed: int, victim: int) -> None:
    cluster = settled_cluster(5, seed)
    num_views = len(cluster.checker.views)
    cluster.pause(cluster.nodes[victim])
    cluster.run(cluster.now_s + 2.0)
    cluster.resume(cluster.nodes[victim])
    cluster.run(cluster.now_s + 8)
    assert len(cluster.checker.views) == num_views
    assert cluster.convergence_problem() is None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("closes", [True, False])
def test_thirty_seconds_of_sigstop_evict_that_node_only_and_it_comes_back(
    seed: int, victim: int, closes: bool
) -> None:
    cluster = settled_cluster(5, seed)
    cluster.closes_dead_links = closes
    stopped = cluster.nodes[victim]
    others = [n for n in cluster.nodes if n is not stopped]
    num_views = len(cluster.checker.views)
    cluster.pause(stopped)
    cluster.run(cluster.now_s + 30.0)
    members = {n.member for n in others}
    assert all(set(view_of(n).members) == members for n in others)
    assert len(cluster.checker.views) == num_views + 1
    cluster.resume(stopped)
    assert time_to_rest(cluster) < 3.0
    cluster.run(cluster.now_s + 8)
    assert len(cluster.checker.views) == num_views + 2, "and one view when it is back"


def test_a_node_without_a_link_to_us_is_known_from_the_peers_that_hear_it() -> None:
    cluster = settled_cluster(3)
    one, hub, other = cluster.nodes

    def heard(node: SimulatedNode) -> dict[NodeId, list[NodeId]]:
        assert isinstance(node.machine, MembershipMachine)
        return node.machine.heard_by_peers()

    assert [heard(node) for node in cluster.nodes] == [{}, {}, {}]
    cluster.block(one, other, one_way=False)
    time_to_rest(cluster)
    assert heard(one) == {other.member.node: [hub.member.node]}
    assert heard(other) == {one.member.node: [hub.member.node]}
    assert heard(hub) == {}


def test_one_who_leaves_is_gone_at_once() -> None:
    cluster = settled_cluster(4)
    cluster.leave(cluster.nodes[0])
    assert time_to_rest(cluster) < 1.0
    assert view_of(cluster.nodes[3]).leader == cluster.nodes[1].member


@pytest.mark.parametrize("seed", SEEDS)
def test_a_link_that_breaks_and_comes_back_changes_nothing(seed: int) -> None:
    cluster = settled_cluster(5, seed)
    num_views = len(cluster.checker.views)
    cluster.cut(cluster.nodes[0], cluster.nodes[2])
    cluster.cut(cluster.nodes[3], cluster.nodes[4])
    cluster.run(cluster.now_s + 8)
    assert len(cluster.checker.views) == num_views
    assert cluster.convergence_problem() is None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("one_way", [True, False])
def test_of_a_pair_that_cannot_talk_the_junior_one_goes(
    seed: int, one_way: bool
) -> None:
    cluster = settled_cluster(4, seed)
    cluster.block(cluster.nodes[1], cluster.nodes[2], one_way=one_way)
    time_to_rest(cluster)
    assert view_of(cluster.nodes[2]).members == (cluster.nodes[2].member,)
    assert len(view_of(cluster.nodes[0]).members) == 3
    cluster.heal()
    time_to_rest(cluster)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_heals_into_the_view_of_the_most_senior_node(seed: int) -> None:
    cluster = settled_cluster(6, seed)
    senior, junior = cluster.nodes[:2], cluster.nodes[2:]
    cluster.split(senior, junior)
    assert time_to_rest(cluster) < 5.0
    assert view_of(junior[0]).leader == junior[0].member, "an island goes on by itself"
    for _ in range(4):  # more views there, so that its counter is ahead
        cluster.step(junior[0], RefreshView())
        cluster.run(cluster.now_s + 1)
    assert view_of(junior[0]).id.counter > view_of(senior[0]).id.counter
    num_views = len(cluster.checker.views)
    cluster.heal()
    assert time_to_rest(cluster) < 3.5
    assert view_of(junior[3]).leader == senior[0].member
    assert len(cluster.checker.views) - num_views <= 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("silent", [True, False])
def test_a_restarted_node_is_back_with_its_new_life(seed: int, silent: bool) -> None:
    cluster = settled_cluster(4, seed)
    old = cluster.nodes[1].member
    cluster.kill(cluster.nodes[1], silent=silent)
    cluster.run(cluster.now_s + 0.4)
    cluster.start(cluster.nodes[1], 10**6)
    assert time_to_rest(cluster) < 5.0
    members = view_of(cluster.nodes[0]).members
    assert cluster.nodes[1].member in members
    assert old not in members


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copied_key_does_not_disturb_the_view(seed: int) -> None:
    cluster = settled_cluster(4, seed)
    before = view_of(cluster.nodes[0])
    copy = cluster.copy_key(cluster.nodes[2])
    cluster.start(copy, 10**6)
    cluster.run(cluster.now_s + 8)
    assert copy.machine is None, "it was told, and ended"
    assert view_of(cluster.nodes[2]) == before


def test_everybody_sees_what_a_member_refreshed() -> None:
    cluster = settled_cluster(3)
    cluster.renew_payload(cluster.nodes[2])
    cluster.step(cluster.nodes[2], RefreshView())
    assert time_to_rest(cluster) < 1.0
    payload = view_of(cluster.nodes[0]).payload_of(cluster.nodes[2].member)
    assert payload == cluster.nodes[2].payload


def test_machines_that_are_switched_on_together_make_few_views() -> None:
    cluster = SimulatedCluster(8, seed=3)
    for node in cluster.nodes:
        cluster.start(node)
    cluster.run(8)
    assert cluster.convergence_problem() is None
    groups = [v for v in cluster.checker.views.values() if len(v.members) > 1]
    assert len(groups) == 1, "alone at first, then one view of all"


@pytest.mark.parametrize("profile", ["for_loopback", "for_wifi", "for_wan"])
def test_every_profile_notices_a_silent_loss_in_its_own_time(profile: str) -> None:
    config: MembershipConfig = getattr(MembershipConfig, profile)()
    cluster = SimulatedCluster(4, make=lambda me: MembershipMachine(me, config))
    for index, node in enumerate(cluster.nodes):
        cluster.start(node, index)
    cluster.run(40)
    assert cluster.convergence_problem() is None
    cluster.kill(cluster.nodes[0], silent=True)
    took_s = time_to_rest(cluster, limit_s=60)
    latest_s = config.dead_after_s + config.heartbeat_s + config.debounce_s + 0.5
    assert config.dead_after_s - config.heartbeat_s < took_s < latest_s
