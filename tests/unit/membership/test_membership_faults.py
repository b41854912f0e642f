"""One fault at a time on a quiet LAN: how long it takes, and what stays untouched."""

from __future__ import annotations

from random import Random

import pytest

from ringleader.membership.config import MembershipConfig
from ringleader.membership.events import Refresh
from ringleader.membership.machine import Machine
from ringleader.membership.member import View
from ringleader.simulation.membership.simulated_cluster import World
from ringleader.simulation.membership.simulated_node import Node

SEEDS = range(4)


def cluster(size: int, seed: int = 0) -> World:
    """Nodes at rest in one view; ada is the most senior, then bob, and so on."""
    world = World(size, seed=seed)
    rng = Random(seed)
    for index, node in enumerate(world.nodes):
        node.clock_start_s = rng.uniform(0, 1e5)
        world.after(rng.uniform(0, 0.5), world.start, node, index)
    world.run(6.0)
    assert world.unrest() is None
    return world


def time_to_rest(world: World, limit_s: float = 15.0) -> float:
    """How long it takes until every node is in the view it should have."""
    begin_s = world.now_s
    while world.unrest() is not None:
        assert world.now_s < begin_s + limit_s, world.unrest()
        world.run(world.now_s + 0.02)
    return world.now_s - begin_s


def view_of(node: Node) -> View:
    assert node.subject is not None
    assert node.subject.view is not None
    return node.subject.view


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", [0, 3])
def test_a_killed_node_is_replaced_within_a_second_and_a_half(
    seed: int, victim: int
) -> None:
    world = cluster(5, seed)
    num_views = len(world.watch.views)
    world.kill(world.nodes[victim])
    assert time_to_rest(world) < 1.5
    world.run(world.now_s + 8)
    assert len(world.watch.views) == num_views + 1, "one fault, one new view"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", [0, 3])
def test_a_silent_cut_is_over_within_five_seconds(seed: int, victim: int) -> None:
    world = cluster(5, seed)
    num_views = len(world.watch.views)
    lost = world.nodes[victim]
    world.split([lost], [n for n in world.nodes if n is not lost])
    assert time_to_rest(world) < 5.0
    world.run(world.now_s + 8)
    assert len(world.watch.views) == num_views + 2, "one for each side"
    world.heal()
    assert time_to_rest(world) < 3.0
    assert view_of(world.nodes[1]).leader == world.nodes[0].member


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", [0, 3])
def test_two_seconds_of_sigstop_change_nothing(seed: int, victim: int) -> None:
    world = cluster(5, seed)
    num_views = len(world.watch.views)
    world.pause(world.nodes[victim])
    world.run(world.now_s + 2.0)
    world.resume(world.nodes[victim])
    world.run(world.now_s + 8)
    assert len(world.watch.views) == num_views
    assert world.unrest() is None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("closes", [True, False])
def test_thirty_seconds_of_sigstop_evict_that_node_only_and_it_comes_back(
    seed: int, victim: int, closes: bool
) -> None:
    world = cluster(5, seed)
    world.closes_dead_links = closes
    stopped = world.nodes[victim]
    others = [n for n in world.nodes if n is not stopped]
    num_views = len(world.watch.views)
    world.pause(stopped)
    world.run(world.now_s + 30.0)
    members = {n.member for n in others}
    assert all(set(view_of(n).members) == members for n in others)
    assert len(world.watch.views) == num_views + 1
    world.resume(stopped)
    assert time_to_rest(world) < 3.0
    world.run(world.now_s + 8)
    assert len(world.watch.views) == num_views + 2, "and one view when it is back"


def test_one_who_leaves_is_gone_at_once() -> None:
    world = cluster(4)
    world.leave(world.nodes[0])
    assert time_to_rest(world) < 1.0
    assert view_of(world.nodes[3]).leader == world.nodes[1].member


@pytest.mark.parametrize("seed", SEEDS)
def test_a_link_that_breaks_and_comes_back_changes_nothing(seed: int) -> None:
    world = cluster(5, seed)
    num_views = len(world.watch.views)
    world.cut(world.nodes[0], world.nodes[2])
    world.cut(world.nodes[3], world.nodes[4])
    world.run(world.now_s + 8)
    assert len(world.watch.views) == num_views
    assert world.unrest() is None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("one_way", [True, False])
def test_of_a_pair_that_cannot_talk_the_junior_one_goes(
    seed: int, one_way: bool
) -> None:
    world = cluster(4, seed)
    world.block(world.nodes[1], world.nodes[2], one_way=one_way)
    time_to_rest(world)
    assert view_of(world.nodes[2]).members == (world.nodes[2].member,)
    assert len(view_of(world.nodes[0]).members) == 3
    world.heal()
    time_to_rest(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_heals_into_the_view_of_the_most_senior_node(seed: int) -> None:
    world = cluster(6, seed)
    senior, junior = world.nodes[:2], world.nodes[2:]
    world.split(senior, junior)
    assert time_to_rest(world) < 5.0
    assert view_of(junior[0]).leader == junior[0].member, "an island goes on by itself"
    for _ in range(4):  # more views there, so that its counter is ahead
        world.step(junior[0], Refresh())
        world.run(world.now_s + 1)
    assert view_of(junior[0]).id.counter > view_of(senior[0]).id.counter
    num_views = len(world.watch.views)
    world.heal()
    assert time_to_rest(world) < 3.5
    assert view_of(junior[3]).leader == senior[0].member
    assert len(world.watch.views) - num_views <= 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("silent", [True, False])
def test_a_restarted_node_is_back_with_its_new_life(seed: int, silent: bool) -> None:
    world = cluster(4, seed)
    old = world.nodes[1].member
    world.kill(world.nodes[1], silent=silent)
    world.run(world.now_s + 0.4)
    world.start(world.nodes[1], 10**6)
    assert time_to_rest(world) < 5.0
    members = view_of(world.nodes[0]).members
    assert world.nodes[1].member in members
    assert old not in members


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copied_key_does_not_disturb_the_view(seed: int) -> None:
    world = cluster(4, seed)
    before = view_of(world.nodes[0])
    copy = world.copy_key(world.nodes[2])
    world.start(copy, 10**6)
    world.run(world.now_s + 8)
    assert copy.subject is None, "it was told, and ended"
    assert view_of(world.nodes[2]) == before


def test_everybody_sees_what_a_member_refreshed() -> None:
    world = cluster(3)
    world.renew(world.nodes[2])
    world.step(world.nodes[2], Refresh())
    assert time_to_rest(world) < 1.0
    payload = view_of(world.nodes[0]).payload_of(world.nodes[2].member)
    assert payload == world.nodes[2].payload


def test_machines_that_are_switched_on_together_make_few_views() -> None:
    world = World(8, seed=3)
    for node in world.nodes:
        world.start(node)
    world.run(8)
    assert world.unrest() is None
    groups = [v for v in world.watch.views.values() if len(v.members) > 1]
    assert len(groups) == 1, "alone at first, then one view of all"


@pytest.mark.parametrize("profile", ["for_loopback", "for_wifi", "for_wan"])
def test_every_profile_notices_a_silent_loss_in_its_own_time(profile: str) -> None:
    config: MembershipConfig = getattr(MembershipConfig, profile)()
    world = World(4, make=lambda me: Machine(me, config))
    for index, node in enumerate(world.nodes):
        world.start(node, index)
    world.run(40)
    assert world.unrest() is None
    world.kill(world.nodes[0], silent=True)
    took_s = time_to_rest(world, limit_s=60)
    latest_s = config.dead_after_s + config.heartbeat_s + config.debounce_s + 0.5
    assert config.dead_after_s - config.heartbeat_s < took_s < latest_s
